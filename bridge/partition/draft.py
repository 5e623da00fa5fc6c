"""One partition's part of a transaction: a draft that collects, and its frozen form that is published.

    take in, release --> Draft --freeze--> FrozenDraft --> records of one transaction
                                              ^    |
                          the broker refuses  +----+ reject: to the rejected topic instead, then repeated

    due, its target takes it              -> delivery
    not due yet, or waited for too long   -> copy: it rolls
    its target's circuit breaker is open  -> copy, so that its transaction does not wait for that target
    due, and its copy would be too large  -> rejected topic

Never early: only `Draft.leave` and `Draft.roll` make deliveries, of timers whose due time has come. A recurring timer
also gets a copy for its next occurrence, in the same draft: from then on it waits for that one.

A timer or request has one name here: its origin offset, which is unique in a draft. If the broker refuses a record, its
type says where else it may go: a `Delivery` to the rejected topic, a `Rejection` there without its payload, any other
record nowhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from bridge.partition.copies import RolledCopy, copy_of
from bridge.partition.journal import NewDecisions, ReceiptDraft
from bridge.partition.limits import TargetRateLimits
from bridge.partition.names import other_place
from bridge.partition.options import TurnOptions
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
    Refusal,
)
from kafka_timer.origin import TimerPartition, origin
from schemas.journal import CopyInFlight, JournalRecord
from schemas.progress import Progress
from schemas.receipts import Receipt, is_sent, printable
from timer.format.body import Body, unpack_headers

_REASON_HEADERS = 3
"""Number of headers that give the reason of a rejection."""
_TOO_LARGE = b"; too large for this topic"
_EXPIRES = EXPIRE_MS.encode()
_BATCH_BYTES = 128
"""Upper bound for the batch around a copy."""
_KIND = itemgetter(ReceiptDraft._fields.index("kind"))
_OURS_SINCE = Refusal("bad-target", "its target has become the bridge's own topic since: send it to another")
TOO_LARGE_TO_WAIT = Refusal(
    "too-large",
    "its target made it wait for longer than Kafka keeps it here, and a copy of it would be too large: shorten it",
)
_MISSED = Refusal(
    "missed", "the next occurrence was due when it could be released (timer-missed: none), and no later one is to come"
)


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
    reason: list[tuple[str, bytes | None]] = [
        (ERROR, refusal.code.encode()),
        (ERROR_DETAIL, refusal.detail.encode()),
        (ORIGIN, origin(timer_partition, record.offset)),
    ]
    return Rejection(topic, -1, record.key, record.value, [*record.headers, *reason], now_ms, record.offset)


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
    request = Record(body.origin_offset, body.timestamp_ms, body.key, body.value, headers)
    return refuse(topic, timer_partition, request, refusal, now_ms)


def bare(rejected: Rejection) -> Rejection:
    """Return a rejected record that was too large, without the request, which is found by its `timer-origin`."""
    (error, code), (name, detail), place = rejected.headers[-_REASON_HEADERS:]
    headers = [(error, code), (name, (detail or b"") + _TOO_LARGE + BARE), place]
    return replace(rejected, key=None, value=None, headers=headers)


def receipt(
    topic: str, timer_partition: TimerPartition, draft: ReceiptDraft, now_ms: int, partitions: int | None = None
) -> Outgoing:
    """Return the receipt of a request. Its key is the id, or else the origin. partitions: number in the timer topic."""
    kind, request, origin_offset, id_, due_ms, code = draft
    about = origin(timer_partition, origin_offset) if origin_offset >= 0 else None
    is_missed = kind == "not-found" and id_
    said = Receipt(
        kind=kind,
        at_ms=now_ms,
        request=origin(timer_partition, request).decode(),
        origin=about.decode() if about else None,
        id=printable(id_) if id_ else None,
        due_ms=due_ms,
        code=code,
        detail=other_place(id_, timer_partition.partition, partitions) if is_missed and partitions else None,
    )
    return Outgoing(topic, -1, id_ or about, said.to_bytes(), [], now_ms)


@dataclass(slots=True)
class Draft:
    """Outcomes of requests and timers of one partition since the last freeze. limits: of its targets."""

    partition: TimerPartition
    options: TurnOptions
    limits: TargetRateLimits
    bodies: list[Body] = field(default_factory=list)
    """Timers that leave: to their target topic, or to the rejected topic if in `parked`, with the reason."""
    parked: dict[int, Refusal] = field(default_factory=dict)
    bare: set[int] = field(default_factory=set)
    """Parked timers and refused requests that go without payload, as the rejected topic does not take them whole."""
    copies: list[RolledCopy] = field(default_factory=list)
    size_bytes: int = 0
    """Approximate size of bodies, copies and refused requests."""
    decisions: NewDecisions = field(default_factory=NewDecisions)
    waited_origins: set[int] = field(default_factory=set)
    """Timers that leave later than due because they or their target were paused or limited."""

    @property
    def room(self) -> int:
        """How many more timers may leave in its transaction."""
        return self.options.max_due_records - len(self.bodies) - len(self.copies)

    def has_output(self) -> bool:
        return bool(self.bodies or self.copies or self.decisions.refused or self.decisions.receipts)

    def only_ordered_releases(self, below: int) -> bool:
        """True if it holds only timers of requests below this offset that leave in their order."""
        return not self.copies and not self.decisions and all(body.origin_offset < below for body in self.bodies)

    # -- requests

    def add_decisions(self, decisions: NewDecisions) -> None:
        """Add decisions on requests, with their receipts as far as they are sent."""
        receipts = [each for each in decisions.receipts if is_sent(each.kind, self.options.receipts)]
        self.decisions.add(replace(decisions, receipts=receipts))
        self.size_bytes += sum(size_of(record.key, record.value, record.headers) for record, _ in decisions.refused)

    def add_copy(self, copy: RolledCopy) -> None:
        self.copies.append(copy)
        self.decisions.rolled.append(copy.flight)
        self.size_bytes += size_of(copy.key, copy.value, copy.headers) + _BATCH_BYTES

    # -- timers

    def leave(self, bodies: Iterable[Body], now_ms: int) -> None:
        """Add deliveries, or copies of timers that are not due yet."""
        is_limited = not self.limits.is_open
        for body in bodies:
            if body.due_ms <= now_ms:
                if body.rolls and body.due_ms < body.timestamp_ms:  # the copy came too late: its timer was paused
                    self.waited_origins.add(body.origin_offset)
                is_delivered = self._deliver(body, now_ms)
                if is_limited and (not is_delivered or expired(body, now_ms)):  # its target will not get it
                    self.limits.spend(body.target, -1, now_ms)
            else:
                self.roll([body], now_ms)

    def _deliver(self, body: Body, now_ms: int) -> bool:
        """Add a due timer: its delivery, and the copy for the next occurrence. False if it is not delivered."""
        occurrence = None if body.plain else occurrence_of(body)
        if occurrence is None:
            self._add_delivery(body)
            return True
        is_delivered, following = occurrence.follow(now_ms)
        if following is not None:
            self.add_copy(copy_of(self.partition, body, now_ms, following=following))
        elif not is_delivered:
            self.parked[body.origin_offset] = _MISSED
        if is_delivered or following is None:
            self._add_delivery(body)
        return is_delivered

    def _add_delivery(self, body: Body) -> None:
        self.bodies.append(body)
        self.size_bytes += len(body.key or b"") + len(body.value or b"") + len(body.headers)

    def roll(self, bodies: Iterable[Body], now_ms: int) -> None:
        """Add copies for the timer topic. A due timer whose copy is too large is rejected instead."""
        for body in bodies:
            copy = copy_of(self.partition, body, now_ms)
            if body.due_ms > now_ms or not self._is_too_large(copy):
                self.add_copy(copy)
            elif self._deliver(body, now_ms) or body.origin_offset in self.parked:
                self.parked[body.origin_offset] = TOO_LARGE_TO_WAIT

    def _is_too_large(self, copy: Outgoing) -> bool:
        return size_of(copy.key, copy.value, copy.headers) + _BATCH_BYTES > self.options.max_message_bytes

    def park(self, now_ms: int) -> None:
        """Park the timers that have expired at `now_ms`, and those whose target has become a topic of the bridge."""
        own_topics = self.options.rules.own_topics
        for body in self.bodies:
            if not body.plain and (why := expired(body, now_ms)):
                self.parked[body.origin_offset] = why
            elif body.target in own_topics:
                self.parked.setdefault(body.origin_offset, _OURS_SINCE)

    def roll_unavailable(self, now_ms: int, at_ms: int) -> list[CopyInFlight]:
        """Replace deliveries to targets that take no records by copies, and return the copies.

        A timer whose copy would be too large for the timer topic goes to the rejected topic. at_ms: when the
        transaction was frozen, which is later than `now_ms` if the clock was set back.
        """
        copies: list[RolledCopy] = []
        breakers = self.limits.breakers
        for body in self.bodies if breakers else ():
            if body.origin_offset in self.parked or not breakers.is_open(body.target, now_ms):
                continue
            copy = copy_of(self.partition, body, at_ms)
            if self._is_too_large(copy):
                self.parked[body.origin_offset] = TOO_LARGE_TO_WAIT
            else:
                copies.append(copy)
        if copies:
            self.replace_by_copies(copies)
        return [copy.flight for copy in copies]

    def replace_by_copies(self, copies: Sequence[RolledCopy]) -> None:
        """Replace timers that were to leave by their copies.

        A recurring timer then has no copy for its next occurrence, which would have the same origin and rolls.
        """
        rolled = {copy.flight.origin_offset for copy in copies}
        self.bodies = [body for body in self.bodies if body.origin_offset not in rolled]
        self.copies = [copy for copy in self.copies if copy.flight.origin_offset not in rolled]
        self.decisions.rolled[:] = [each for each in self.decisions.rolled if each.origin_offset not in rolled]
        for copy in copies:
            self.add_copy(copy)


@dataclass(slots=True)
class FrozenDraft:
    """A partition's part of one transaction. It is repeated if the transaction is aborted.

    ids: of the timers that leave. requests: how many it commits, without copies.
    """

    draft: Draft
    progress: Progress
    journal: JournalRecord | None
    at_ms: int
    ids: frozenset[bytes]
    requests: int
    records: list[Outgoing] = field(default_factory=list)
    """Of the last try."""
    receipt_kinds: Counter[str] = field(default_factory=Counter)
    """Number of receipts of each kind among them."""

    def retry(self, now_ms: int) -> list[CopyInFlight]:
        """Prepare a retry at `now_ms`: reject what has expired. Return the copies that replace what no target takes."""
        self.at_ms = max(self.at_ms, now_ms)
        self.draft.park(self.at_ms)
        if copies := self.draft.roll_unavailable(now_ms, self.at_ms):
            reached, rules = self.progress.next_offset, self.draft.options.rules
            journal = self.journal or JournalRecord(from_offset=reached, next_offset=reached, rules=rules)
            self.journal = journal.model_copy(update={"rolled": tuple(self.draft.decisions.rolled)})
        self.make_records()
        return copies

    def make_records(self) -> None:
        """Make deliveries and parked timers by due time; then copies, refused records, receipts.

        Raises CorruptStoreError if the headers of a timer are damaged.
        """
        draft, options, partition, now_ms = self.draft, self.draft.options, self.draft.partition, self.at_ms
        records = deliveries(partition, draft.bodies, now_ms)
        if draft.parked:
            records = [self._parked(body) or each for body, each in zip(draft.bodies, records, strict=True)]
        records += draft.copies
        for request, why in draft.decisions.refused:
            records.append(self._whole_or_bare(refuse(options.rejected_topic, partition, request, why, now_ms)))
        receipts = self._receipts()
        topic, count = options.receipts_topic, options.partitions
        records += [receipt(topic, partition, each, now_ms, count) for each in receipts]
        self.records, self.receipt_kinds = records, Counter(map(_KIND, receipts))

    def _parked(self, body: Body) -> Rejection | None:
        draft, why = self.draft, self.draft.parked.get(body.origin_offset)
        return why and self._whole_or_bare(park(draft.options.rejected_topic, draft.partition, body, why, self.at_ms))

    def _whole_or_bare(self, rejection: Rejection) -> Rejection:
        return bare(rejection) if rejection.origin_offset in self.draft.bare else rejection

    def _receipts(self) -> list[ReceiptDraft]:
        draft, mode = self.draft, self.draft.options.receipts
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
        """Handle the broker's refusal of records, each with its code. Return the first one without another place."""
        return next((each for each in self.records if each in refused and not self._reject(each, refused[each])), None)

    def _reject(self, record: Outgoing, code: str) -> bool:
        """Give a refused record another place. Return False if it has none.

        What is too large for the rejected topic goes there without its payload: a sender may have compressed more.
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
