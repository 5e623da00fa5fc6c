"""One partition's part of a transaction: a draft that collects, and its frozen form that is published.

    take in, release --> Draft --freeze--> FrozenDraft --outgoing--> records of one transaction
                                              ^    |
                          the broker refuses  +----+ reject: to the rejected topic instead, then repeated

A timer or request has one name here: its origin offset, which is unique in a draft. If the broker refuses a record, its
type says where else it may go: a `Delivery` to the rejected topic, a `Rejection` there without its payload, any other
record nowhere.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from bridge.partition.copies import RolledCopy
from bridge.partition.decisions import NewDecisions, ReceiptDraft
from bridge.partition.options import TurnOptions
from bridge.partition.placement import other_place
from bridge.partition.request import absolute_headers, headers_without_profile, occurrence_of, sent_headers, size_of
from bridge.ports import Outgoing, Record
from kafka_timer.headers import (
    BARE,
    CONTROL,
    DELIVER_MS,
    ERROR,
    ERROR_DETAIL,
    EXPIRE_MS,
    KEY,
    OCCURRENCE,
    ORIGIN,
    RECURRENCE,
    RELEASED_MS,
    ROLLS,
    Headers,
    Refusal,
)
from kafka_timer.origin import TimerPartition, origin
from schemas.journal import JournalRecord
from schemas.progress import Progress
from schemas.receipts import Mode, Receipt, is_sent, printable
from timer.format.body import Body, unpack_headers

_REASON_HEADERS = 3
"""Number of headers that give the reason of a rejection."""
_TOO_LARGE = b"; too large for this topic"
_EXPIRES = EXPIRE_MS.encode()


@dataclass(slots=True, eq=False)
class Delivery(Outgoing):
    """A timer's record for its target topic."""

    origin_offset: int


@dataclass(slots=True, eq=False)
class Rejection(Outgoing):
    """A record for the rejected topic: a timer that its target does not take, or a refused request."""

    origin_offset: int


def expired(body: Body, now_ms: int) -> Refusal | None:
    """Return why a timer that leaves now has expired, or None."""
    if body.plain or _EXPIRES not in body.headers:
        return None
    expire_ms = dict(unpack_headers(body.headers)).get(EXPIRE_MS)
    if expire_ms is None or now_ms < int(expire_ms):
        return None
    return Refusal("expired", f"not released before {EXPIRE_MS} {int(expire_ms)}: send it again if it is still of use")


def deliveries(timer_partition: TimerPartition, bodies: Iterable[Body], now_ms: int) -> list[Outgoing]:
    """Return the delivery of each timer: key, value, the sender's own headers, then four of ours, five if it recurs.

    Headers are made once for the release time, equal due times in a row, and `timer-rolls: 0`: a batch is large.
    """
    origin_prefix = origin(timer_partition, 0)[:-1]
    released, not_rolled, last_ms, due = (RELEASED_MS, b"%d" % now_ms), (ROLLS, b"0"), -1, (DELIVER_MS, b"")
    records: list[Outgoing] = []
    for body in bodies:
        target, partition, _, _, due_ms, key, value, _, plain, offset, rolls, _ = body
        if due_ms != last_ms:
            last_ms, due = due_ms, (DELIVER_MS, b"%d" % due_ms)
        headers: list[tuple[str, bytes | None]] = [
            (ORIGIN, origin_prefix + b"%d" % offset),
            due,
            released,
            (ROLLS, b"%d" % rolls) if rolls else not_rolled,
        ]
        if not plain:
            theirs = headers_without_profile(body)
            key = dict(theirs).get(KEY, key)
            if occurrence := occurrence_of(body):
                headers.append((OCCURRENCE, b"%d" % occurrence.number))
            headers[:0] = [header for header in theirs if header[0] not in CONTROL]
        records.append(Delivery(target, partition, key, value, headers, now_ms, offset))
    return records


def refuse(topic: str, timer_partition: TimerPartition, record: Record, refusal: Refusal, now_ms: int) -> Rejection:
    """Return the rejected record of a request that was refused at intake: the request, then the reason headers."""
    return _rejected(topic, timer_partition, record.offset, record.key, record.value, record.headers, refusal, now_ms)


def park(topic: str, timer_partition: TimerPartition, body: Body, refusal: Refusal, now_ms: int) -> Rejection:
    """Return the rejected record of a timer that its target refuses: its request, then the reason headers.

    Of a recurring timer that is a request for this occurrence alone: the timer itself goes on.
    """
    occurrence = occurrence_of(body)
    if occurrence is None:
        headers = sent_headers(body)
    else:
        headers = [each for each in absolute_headers(body, body.due_ms) if each[0] not in RECURRENCE]
        headers.append((OCCURRENCE, b"%d" % occurrence.number))
    return _rejected(topic, timer_partition, body.origin_offset, body.key, body.value, headers, refusal, now_ms)


def bare(rejected: Rejection) -> Rejection:
    """Return a rejected record that was too large, without the request, which is found by its `timer-origin`."""
    (error, code), (name, detail), place = rejected.headers[-_REASON_HEADERS:]
    headers = [(error, code), (name, (detail or b"") + _TOO_LARGE + BARE), place]
    return replace(rejected, key=None, value=None, headers=headers)


def receipt(
    topic: str, timer_partition: TimerPartition, draft: ReceiptDraft, now_ms: int, partitions: int | None = None
) -> Outgoing:
    """Return the receipt of a request. Its key is the id, or else the origin. partitions: number in the timer topic."""
    about = origin(timer_partition, draft.origin_offset) if draft.origin_offset >= 0 else None
    said = Receipt(
        kind=draft.kind,
        at_ms=now_ms,
        request=origin(timer_partition, draft.request).decode(),
        origin=about.decode() if about else None,
        id=printable(draft.id) if draft.id else None,
        due_ms=draft.due_ms,
        code=draft.code,
        detail=other_place(draft.id, timer_partition.partition, partitions)
        if draft.kind == "not-found" and draft.id and partitions
        else None,
    )
    return Outgoing(topic, -1, draft.id or about, said.to_bytes(), [], now_ms)


def _rejected(
    topic: str,
    timer_partition: TimerPartition,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    refusal: Refusal,
    now_ms: int,
) -> Rejection:
    reason: list[tuple[str, bytes | None]] = [
        (ERROR, refusal.code.encode()),
        (ERROR_DETAIL, refusal.detail.encode()),
        (ORIGIN, origin(timer_partition, offset)),
    ]
    return Rejection(topic, -1, key, value, [*headers, *reason], now_ms, offset)


BATCH_BYTES = 128
"""Upper bound for the batch around a copy."""
_KIND = itemgetter(ReceiptDraft._fields.index("kind"))
_OURS_SINCE = Refusal("bad-target", "its target has become the bridge's own topic since: send it to another")


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
    """Approximate size of bodies, copies and refused requests."""
    decisions: NewDecisions = field(default_factory=NewDecisions)
    waited_origins: set[int] = field(default_factory=set)
    """Origin offsets of timers that leave later than due because they or their target were paused or limited."""

    def park(self, own_topics: Container[str], now_ms: int) -> None:
        """Park the timers that have expired at `now_ms`, and those whose target has become a topic of the bridge."""
        for body in self.bodies:
            if not body.plain and (why := expired(body, now_ms)):
                self.parked[body.origin_offset] = why
            elif body.target in own_topics:
                self.parked.setdefault(body.origin_offset, _OURS_SINCE)

    def add_decisions(self, decisions: NewDecisions, mode: Mode) -> None:
        """Add decisions on requests, with their receipts as far as `mode` asks for them."""
        receipts = [each for each in decisions.receipts if is_sent(each.kind, mode)]
        self.decisions.add(replace(decisions, receipts=receipts))
        self.size_bytes += sum(size_of(record.key, record.value, record.headers) for record, _ in decisions.refused)

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
        self.decisions.forget_rolled(lambda flight: flight.origin_offset in rolled)
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

    options: those of the freeze. ids: of the timers that leave. requests: how many it commits, without copies.
    """

    partition: TimerPartition
    options: TurnOptions
    draft: Draft
    progress: Progress
    journal: JournalRecord | None
    at_ms: int
    ids: frozenset[bytes]
    requests: int
    records: list[Outgoing] = field(default_factory=list)
    """The records of the last try."""
    receipt_kinds: Counter[str] = field(default_factory=Counter)
    """Number of receipts of each kind among them."""

    def retry(self, now_ms: int) -> None:
        """Prepare a retry at `now_ms`: reject timers that have expired meanwhile."""
        self.at_ms = max(self.at_ms, now_ms)
        self.draft.park(self.options.rules.own_topics, self.at_ms)

    def journal_copies(self) -> None:
        """Let the journal name all copies that the transaction now holds."""
        rolled, reached = tuple(self.draft.decisions.rolled), self.progress.next_offset
        if self.journal is None:
            rules = self.options.rules
            self.journal = JournalRecord(from_offset=reached, next_offset=reached, rules=rules, rolled=rolled)
        else:
            self.journal = self.journal.model_copy(update={"rolled": rolled})

    def outgoing(self) -> list[Outgoing]:
        """Return deliveries and parked timers in order of due time; then copies, refused records, receipts."""
        draft, timer_partition, options, now_ms = self.draft, self.partition, self.options, self.at_ms
        self.records = deliveries(timer_partition, draft.bodies, now_ms)
        if draft.parked:
            self.records = [self._parked(body) or each for body, each in zip(draft.bodies, self.records, strict=True)]
        self.records += draft.copies
        for request, why in draft.decisions.refused:
            self.records.append(
                self._whole_or_bare(refuse(options.rejected_topic, timer_partition, request, why, now_ms))
            )
        receipts = self._receipts()
        topic, count = options.receipts_topic, options.partitions
        self.records += [receipt(topic, timer_partition, each, now_ms, count) for each in receipts]
        self.receipt_kinds = Counter(map(_KIND, receipts))
        return self.records

    def _parked(self, body: Body) -> Rejection | None:
        why = self.draft.parked.get(body.origin_offset)
        return why and self._whole_or_bare(park(self.options.rejected_topic, self.partition, body, why, self.at_ms))

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
