"""One partition's part of a transaction: a draft that collects, and its frozen form that is published.

take in, release --> Draft --freeze--> FrozenDraft --outgoing--> records of one transaction
                                          ^    |
                      the broker refuses  +----+ reject: to the rejected topic instead, then repeated

A timer or request has one name here: its origin offset, which is unique in a draft.

`OwnedPartition.freeze` freezes it, `OwnedPartition.recheck` prepares its retry.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from bridge.config.loop_options import TurnOptions
from bridge.intake.copies_in_flight import RolledCopy
from bridge.intake.decisions import NewDecisions, ReceiptDraft
from bridge.intake.request import size_of
from bridge.ports import Outgoing
from bridge.publish.records import Delivery, Rejection, bare, deliveries, expired, park, receipt, refuse
from schemas.headers import Refusal
from schemas.journal import JournalRecord
from schemas.origin import Shard
from schemas.progress import Progress
from schemas.receipts import is_sent
from timer.format.body import Body

BATCH_BYTES = 128
"""Upper bound for the batch around a copy."""
_KIND = itemgetter(ReceiptDraft._fields.index("kind"))


@dataclass(slots=True)
class Draft:
    """Outcomes of requests and timers of one partition since the last freeze."""

    bodies: list[Body] = field(default_factory=list)
    """Timers that leave: to their target topic, or to the rejected topic if in `parked`."""
    parked: dict[int, Refusal] = field(default_factory=dict)
    """Those of `bodies` that go to the rejected topic, with the reason."""
    bare: set[int] = field(default_factory=set)
    """Parked timers and refused requests that go without payload, as the rejected topic does not take them whole."""
    copies: list[RolledCopy] = field(default_factory=list)
    size_bytes: int = 0
    """Approximate size of bodies and copies."""
    decisions: NewDecisions = field(default_factory=NewDecisions)
    waited_origins: set[int] = field(default_factory=set)
    """Origin offsets of timers that leave later than due because their target was paused or beyond its rate."""
    requests: int = 0
    """Requests that were taken in, without copies."""

    def park_expired(self, now_ms: int) -> None:
        """Park the timers that have expired at `now_ms`."""
        for body in self.bodies:
            if not body.plain and (why := expired(body, now_ms)):
                self.parked[body.origin_offset] = why

    def add_delivery(self, body: Body) -> None:
        self.bodies.append(body)
        self.size_bytes += len(body.key or b"") + len(body.value or b"") + len(body.headers)

    def replace_by_copies(self, copies: Sequence[RolledCopy]) -> None:
        """Replace timers that were to leave by their copies.

        A recurring timer then has no copy for its next occurrence, which would have the same origin and rolls.
        """
        if not copies:
            return
        rolled = {copy.flight.origin_offset for copy in copies}
        self.bodies = [body for body in self.bodies if body.origin_offset not in rolled]
        self.copies = [copy for copy in self.copies if copy.flight.origin_offset not in rolled]
        self.decisions.rolled = [each for each in self.decisions.rolled if each.origin_offset not in rolled]
        for copy in copies:
            self.add_copy(copy)

    def add_copy(self, copy: RolledCopy) -> None:
        self.copies.append(copy)
        self.decisions.rolled.append(copy.flight)
        self.size_bytes += size_of(copy.key, copy.value, copy.headers) + BATCH_BYTES

    def has_output(self) -> bool:
        return bool(self.bodies or self.copies or self.decisions.refused or self.decisions.receipts)

    def only_ordered_releases(self, below: int) -> bool:
        """True if it holds only timers of requests below this offset that leave in their order."""
        return not self.copies and not self.decisions and all(body.origin_offset < below for body in self.bodies)


@dataclass(slots=True)
class FrozenDraft:
    """A partition's part of one transaction. It is repeated if the transaction is aborted.

    options: those of the freeze. ids: of the timers that leave.
    """

    shard: Shard
    options: TurnOptions
    draft: Draft
    progress: Progress
    journal: JournalRecord | None
    at_ms: int
    ids: frozenset[bytes]
    records: list[Outgoing] = field(default_factory=list)
    """The records of the last try."""

    def outgoing(self) -> list[Outgoing]:
        """Return deliveries and parked timers in order of due time; then copies, refused records, receipts."""
        draft, shard, options, now_ms = self.draft, self.shard, self.options, self.at_ms
        self.records = deliveries(shard, draft.bodies, now_ms)
        if draft.parked:
            self.records = [self._parked(body) or each for body, each in zip(draft.bodies, self.records, strict=True)]
        self.records += draft.copies
        for request, why in draft.decisions.refused:
            self.records.append(self._whole_or_bare(refuse(options.rejected_topic, shard, request, why, now_ms)))
        self.records += [receipt(options.receipts_topic, shard, each, now_ms) for each in self._receipts()]
        return self.records

    def _parked(self, body: Body) -> Rejection | None:
        why = self.draft.parked.get(body.origin_offset)
        return why and self._whole_or_bare(park(self.options.rejected_topic, self.shard, body, why, self.at_ms))

    def _whole_or_bare(self, rejection: Rejection) -> Rejection:
        return bare(rejection) if rejection.origin_offset in self.draft.bare else rejection

    def _receipts(self) -> list[ReceiptDraft]:
        draft, mode = self.draft, self.options.receipts
        receipts = draft.decisions.receipts.copy()
        for body in draft.bodies if is_sent("rejected", mode) and draft.parked else ():
            at = body.origin_offset
            if (why := draft.parked.get(at)) is not None:
                receipts.append(ReceiptDraft("rejected", at, at, body.id or b"", None, why.code))
        if is_sent("delivered", mode):
            left = ((b.origin_offset, b) for b in draft.bodies if b.origin_offset not in draft.parked)
            receipts += [ReceiptDraft("delivered", at, at, b.id or b"", b.due_ms) for at, b in left]
        return receipts

    def receipt_counts(self) -> Counter[str]:
        """Return the number of receipts of each kind, without making them: metrics ask after each commit."""
        draft, mode = self.draft, self.options.receipts
        kinds: Counter[str] = Counter(map(_KIND, draft.decisions.receipts))
        if is_sent("rejected", mode):
            kinds["rejected"] += len(draft.parked)
        if is_sent("delivered", mode):
            kinds["delivered"] += len(draft.bodies) - len(draft.parked)
        return kinds

    def reject(self, refused: Mapping[Outgoing, str]) -> Outgoing | None:
        """Handle the broker's refusal of records. Return the first one that has no other place, or None.

        refused: records of a transaction, each with its code. Those of other drafts are left alone.
        """
        return next((each for each in self.records if each in refused and not self._reject(each, refused[each])), None)

    def _reject(self, record: Outgoing, code: str) -> bool:
        """Give a refused record another place. Return False if it has none.

        A timer goes to the rejected topic. A record that is too large for the rejected topic goes there without its
        payload: a sender that compresses may write more than that topic takes.
        """
        match record:
            case Delivery():
                detail = f"topic {record.topic} does not take it: fix the topic, then send it again"
                self.draft.parked[record.origin_offset] = Refusal(code, detail)
                return True
            case Rejection() if code == "too-large" and record.origin_offset not in self.draft.bare:
                self.draft.bare.add(record.origin_offset)
                return True
        return False
