"""One partition's part of a transaction: a draft that collects, and its frozen form that is published.

take in, release --> Draft --freeze--> FrozenDraft --outgoing--> records of one transaction
                                          ^    |
                      the broker refuses  +----+ reject: to the rejected topic instead, then repeated

`OwnedPartition.freeze` freezes it, `OwnedPartition.recheck` prepares its retry.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from bridge.config.loop_options import TurnOptions
from bridge.intake.decisions import NewDecisions, ReceiptDraft
from bridge.intake.request import size_of
from bridge.ports import Outgoing
from bridge.publish.records import bare, deliveries, expired, park, receipt, refuse
from schemas.headers import Refusal
from schemas.journal import CopyInFlight, JournalRecord
from schemas.origin import Shard
from schemas.progress import Progress
from schemas.receipts import is_sent
from timer.format.body import Body

BATCH_BYTES = 128
"""Upper bound for the batch around a copy."""
_KIND = itemgetter(ReceiptDraft._fields.index("kind"))


@dataclass(slots=True)
class Draft:
    """Outcomes of requests and timers of one partition since the last freeze. Numbers are origins (offsets)."""

    bodies: list[Body] = field(default_factory=list)
    """Timers that leave: to their target topic, or to the rejected topic if in `parked_rows`."""
    parked_rows: dict[int, Refusal] = field(default_factory=dict)
    """By row of `bodies`: those that go to the rejected topic, with the reason."""
    bare_rows: set[int] = field(default_factory=set)
    """By row of `FrozenDraft.outgoing`: records without payload, as the rejected topic does not take them whole."""
    copies: list[Outgoing] = field(default_factory=list)
    size_bytes: int = 0
    """Approximate size of bodies and copies."""
    decisions: NewDecisions = field(default_factory=NewDecisions)
    parked: dict[int, Refusal] = field(default_factory=dict)
    """Timers that leave to the rejected topic, whatever their target says, with the reason."""
    waited_origins: set[int] = field(default_factory=set)
    """Origin offsets of timers that leave later than due because their target was paused or beyond its rate."""
    requests: int = 0
    """Requests that were taken in, without copies."""

    def park_expired(self, now_ms: int) -> None:
        """Park the timers that have expired at `now_ms`."""
        for row, body in enumerate(self.bodies):
            if not body.plain and (why := expired(body, now_ms)):
                self.parked_rows[row] = why

    def add_delivery(self, body: Body) -> None:
        self.bodies.append(body)
        self.size_bytes += len(body.key or b"") + len(body.value or b"") + len(body.headers)

    def replace_by_copies(self, copies: Mapping[int, tuple[Outgoing, CopyInFlight]]) -> None:
        """Replace the bodies at these rows by their copies, and renumber the rows of the other bodies.

        A recurring timer then has no copy for its next occurrence, which would be the same place: origin and rolls.
        """
        if not copies:
            return
        places = {(flight.origin_offset, flight.rolls) for _, flight in copies.values()}
        self.decisions.rolled = [
            each for each in self.decisions.rolled if (each.origin_offset, each.rolls) not in places
        ]
        ends = [copy.headers[-2:] for copy, _ in copies.values()]  # origin and rolls
        kept = [copy for copy in self.copies if copy.headers[-2:] not in ends]
        dropped, self.copies = len(self.copies) - len(kept), kept
        left = [row for row in range(len(self.bodies)) if row not in copies]
        moved_to = {row: at for at, row in enumerate(left)}
        self.bare_rows = {
            moved_to.get(row, row - dropped) for row in self.bare_rows
        }  # outputs after bodies and copies keep their row, but for the copies that were dropped
        self.parked_rows = {moved_to[row]: why for row, why in self.parked_rows.items()}
        self.bodies = [self.bodies[row] for row in left]
        for copy, flight in copies.values():
            self.add_copy(copy, flight)

    def add_copy(self, copy: Outgoing, flight: CopyInFlight) -> None:
        self.copies.append(copy)
        self.decisions.rolled.append(flight)
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

    def outgoing(self) -> list[Outgoing]:
        """Return deliveries and parked timers in order of due time; then copies, refused records, receipts."""
        draft, shard, options, now_ms = self.draft, self.shard, self.options, self.at_ms
        refused = draft.decisions.refused
        records = deliveries(shard, draft.bodies, now_ms)
        for row, refusal in draft.parked_rows.items():
            records[row] = park(options.rejected_topic, shard, draft.bodies[row], refusal, now_ms)
        records += draft.copies
        records += [refuse(options.rejected_topic, shard, record, why, now_ms) for record, why in refused]
        for row in draft.bare_rows:
            records[row] = bare(records[row])
        records += [receipt(options.receipts_topic, shard, each, now_ms) for each in self._receipts()]
        return records

    def _receipts(self) -> list[ReceiptDraft]:
        draft, mode = self.draft, self.options.receipts
        receipts = draft.decisions.receipts.copy()
        if is_sent("rejected", mode):
            for row, why in draft.parked_rows.items():
                body = draft.bodies[row]
                at = body.origin_offset
                receipts.append(ReceiptDraft("rejected", at, at, body.id or b"", None, why.code))
        if is_sent("delivered", mode):
            left = ((b.origin_offset, b) for row, b in enumerate(draft.bodies) if row not in draft.parked_rows)
            receipts += [ReceiptDraft("delivered", at, at, b.id or b"", b.due_ms) for at, b in left]
        return receipts

    def receipt_counts(self) -> Counter[str]:
        """Return the number of receipts of each kind, without making them: metrics ask after each commit."""
        draft, mode = self.draft, self.options.receipts
        kinds: Counter[str] = Counter(map(_KIND, draft.decisions.receipts))
        if is_sent("rejected", mode):
            kinds["rejected"] += len(draft.parked_rows)
        if is_sent("delivered", mode):
            kinds["delivered"] += len(draft.bodies) - len(draft.parked_rows)
        return kinds

    def reject(self, row: int, code: str) -> bool:
        """Handle the broker's refusal of the record at `row` of `outgoing`. Return False if it has no other place.

        A timer goes to the rejected topic instead. A record that is too large for the rejected topic goes there without
        its payload: a sender that compresses may write more than that topic takes.
        """
        draft = self.draft
        if row < len(draft.bodies) and row not in draft.parked_rows:
            target = draft.bodies[row].target
            draft.parked_rows[row] = Refusal(
                code, f"topic {target} does not take it: fix the topic, then send it again"
            )
            return True
        refused_from = len(draft.bodies) + len(draft.copies)
        is_rejected = row in draft.parked_rows or 0 <= row - refused_from < len(draft.decisions.refused)
        if code != "too-large" or not is_rejected or row in draft.bare_rows:
            return False
        draft.bare_rows.add(row)
        return True
