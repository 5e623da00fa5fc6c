"""Rules of an adoption: what is pending on the mirror of a lost cluster's timer topic. Offsets there are other ones.

    schedule a, schedule b, cancel a, replace b, copy of b     the mirror, read to its end    ->  b
    deliveries                                                 mirrors of the target topics   ->  without b, if it left

1. A timer that was due before `due_from_ms` has left. For a recurring timer, this holds for each occurrence.
2. A cancel, replacement or move counts wherever it is in the log, so only timers that no later request ended are sent.
3. A copy belongs to a request before it, by id, else by contents. It adds what the request does not say: the occurrence
   of a recurring timer, a move by origin. Without such a request (retention took it), the first copy is the request.
4. A delivery names an offset of the lost cluster, so it is found by partition, contents and due time. Timers that are
   equal in all of them are interchangeable.
5. A cancel by origin counts if a copy has shown which timer has that origin.
6. A timer that is paused at the end is not sent. One that was resumed has left if it was due before `due_from_ms`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bridge.partition.copies import digest
from bridge.partition.draft import deliveries
from bridge.partition.request import absolute_headers, ask_of, body_of, bounded_ask_of, occurrence_of, size_of
from bridge.ports import Record
from bridge.redrive.rules import KeyAndHeaders, Parked, sendable
from kafka_timer import headers as names
from kafka_timer.headers import Asked, ByOrigin, Cancel, Claim, Headers, Move, Pausing, Recurrence, Schedule
from kafka_timer.origin import TimerPartition
from schemas.recurrence import Occurrence
from schemas.rules import Rules
from timer.format.body import Body, LongNameError, pack_headers

PENDING = "pending"
Delivered = Counter[tuple[int, str, int]]
"""Number of deliveries by partition of the timer topic, contents and due time."""

Due = int | Pausing
_Kind = tuple[str, Recurrence | None]
"""Contents, and the rule of a recurring timer."""


def contents(target: str, key: bytes | None, value: bytes | None, headers: Headers) -> str:
    """Return a digest of a delivery without the bridge's headers."""
    encoded, _ = pack_headers([header for header in headers if header[0] not in names.CONTROL])
    return digest(key, value, target.encode() + b" " + encoded)


def count_deliveries(
    found: Delivered, target: str, records: Iterable[Record], timer_topic: str, due_from_ms: int
) -> None:
    """Add the deliveries to `target` that were due at `due_from_ms` or later. timer_topic: the lost cluster's."""
    for record in records:
        ours = dict(record.headers)
        topic, _, place = (ours.get(names.ORIGIN) or b"").partition(b"/")
        due, partition = ours.get(names.DELIVER_MS) or b"", place.partition(b"/")[0]
        if topic == timer_topic.encode() and due.isdigit() and partition.isdigit() and int(due) >= due_from_ms:
            found[int(partition), contents(target, record.key, record.value, record.headers), int(due)] += 1


@dataclass(slots=True, eq=False)
class MirroredTimer:
    """record: its first one, with its code; None if that is still to come. dues_ms: the last one counts."""

    record: Parked | None
    contents: str
    dues_ms: list[int]
    occurrence: Occurrence | None
    is_ended: bool = False
    is_paused: bool = False

    @property
    def kind(self) -> _Kind:
        """The same for a request and its copies."""
        return self.contents, self.occurrence and self.occurrence.rule._replace(needs_first=False)

    def request(self, record: Record, rules: Rules) -> KeyAndHeaders:
        """Return key and headers to send. record: its first one."""
        body = _body(record, ask_of(record, rules))
        assert body is not None
        headers = absolute_headers(body, self.dues_ms[-1])
        if self.occurrence is not None:  # it begins again with number 1
            left = (names.COUNT, b"%d" % (self.occurrence.rule.most - self.occurrence.number + 1))
            headers = [left if header[0] == names.COUNT else header for header in headers]
        return sendable(record.key, headers)


@dataclass(eq=False)
class MirroredPartition:
    """The timers of a partition. Read its records on the mirror (`place`) first, then those on the new timer topic."""

    _place: TimerPartition
    _new: TimerPartition
    _rules: Rules
    _due_from_ms: int

    targets: set[str] = field(default_factory=set)
    unknown: dict[bytes, Due | None] = field(default_factory=dict)
    """Origins that a cancel (None), move, pause or resume names, and that no copy has shown."""
    _timers: list[MirroredTimer] = field(default_factory=list)
    _by_id: dict[bytes, MirroredTimer] = field(default_factory=dict)
    _by_origin: dict[bytes, MirroredTimer] = field(default_factory=dict)
    _without_copy: dict[_Kind, dict[int, list[MirroredTimer]]] = field(default_factory=lambda: defaultdict(dict))
    """Requests without an id, by kind and due time."""

    def read(self, records: Iterable[Record], *, is_new: bool = False) -> None:
        """is_new: True for the new timer topic, whose requests end and move timers of the mirror, and are none."""
        for record in records:
            match ask := bounded_ask_of(record, self._rules):
                case Schedule():
                    self._end(ask.id)
                    if not is_new and (ask.due_ms >= self._due_from_ms or ask.recurrence is not None):
                        self._add(self._timer(record, ask))
                case Cancel():
                    if not self._end(ask.id) and ask.fallback is not None:
                        self._end(ask.fallback[1], ask.fallback[0])
                case Move():
                    self._move(ask, record.timestamp_ms)
                case ByOrigin() if not is_new:
                    self._apply(ask, record.timestamp_ms)
                case Claim() if not is_new:
                    self._take_copy(self._timer(record, ask.schedule), ask.origin)

    def judged(self, delivered: Delivered) -> Iterator[tuple[Parked, MirroredTimer]]:
        """Yield each timer, with the code pending, paused, ended or delivered. Takes deliveries out of `delivered`."""
        for timer in self._timers:
            assert timer.record is not None
            if timer.is_ended or timer.is_paused:
                code = "ended" if timer.is_ended else "paused"
            else:
                code = PENDING if self._is_pending(timer, delivered) else "delivered"
            yield timer.record._replace(code=code), timer

    def _is_pending(self, timer: MirroredTimer, delivered: Delivered) -> bool:
        while timer.dues_ms[-1] < self._due_from_ms or self._has_left(timer, delivered):
            later = None if timer.occurrence is None else timer.occurrence.follow(timer.dues_ms[-1])[1]
            if later is None:
                return False
            timer.occurrence, timer.dues_ms = later, [later.due_ms]
        return True

    def _has_left(self, timer: MirroredTimer, delivered: Delivered) -> bool:
        for due_ms in timer.dues_ms:
            if delivered[self._place.partition, timer.contents, due_ms] > 0:
                delivered[self._place.partition, timer.contents, due_ms] -= 1
                return True
        return False

    # -- one record

    def _timer(self, record: Record, schedule: Schedule) -> MirroredTimer | None:
        """Return the timer; None if a bridge refuses it."""
        is_paused = schedule.due_ms >= names.PAUSED_MS
        body = _body(record, schedule._replace(due_ms=schedule.due_ms % names.PAUSED_MS))
        occurrence = None if body is None else occurrence_of(body)
        if occurrence is not None:
            occurrence = occurrence.started()
        if body is None or (occurrence is not None and not occurrence.number):
            return None
        (made,) = deliveries(self._new, [body], 0)
        at, size = record.offset, size_of(record.key, record.value, record.headers)
        first = Parked(self._place, at, record.timestamp_ms, PENDING, self._new, at, made.topic, body.id, size)
        due_ms = body.due_ms if occurrence is None else occurrence.due_ms
        what = contents(made.topic, made.key, made.value, made.headers)
        return MirroredTimer(first, what, [due_ms], occurrence, is_paused=is_paused)

    def _add(self, timer: MirroredTimer | None) -> None:
        if timer is None or timer.record is None:
            return
        self._timers.append(timer)
        self.targets.add(timer.record.target)
        if timer.record.id is None:
            self._without_copy[timer.kind].setdefault(timer.dues_ms[-1], []).append(timer)
        else:
            self._by_id[timer.record.id] = timer

    def _end(self, id_: bytes | None, target: str = "") -> bool:
        timer = None if id_ is None else self._by_id.get(id_)
        if timer is None or timer.is_ended or (target and timer.record and timer.record.target != target):
            return False
        timer.is_ended = True
        return True

    def _move(self, move: Move, at_ms: int) -> None:
        timer = self._by_id.get(move.id)
        if timer is not None and not timer.is_ended:
            self._change(timer, move.due_ms, at_ms)
        elif isinstance(move.due_ms, int):  # it was due before `due_from_ms`; the copy of this move has its contents
            timer = self._by_id[move.id] = MirroredTimer(None, "", [move.due_ms], None)

    def _apply(self, ask: ByOrigin, at_ms: int) -> None:
        timer = self._by_origin.get(ask.origin)
        if timer is None:
            self.unknown[ask.origin] = ask.due_ms
        elif ask.due_ms is None:
            timer.is_ended = True
        else:
            self._change(timer, ask.due_ms, at_ms)

    def _change(self, timer: MirroredTimer, due: Due, at_ms: int) -> None:
        """Move, pause or resume a timer, unless it has left before `at_ms`."""
        if not timer.is_paused and timer.dues_ms[-1] < min(at_ms, self._due_from_ms):
            return
        timer.is_paused = due == "paused"
        if isinstance(due, int):
            timer.dues_ms.append(due)

    def _take_copy(self, copy: MirroredTimer | None, origin: bytes) -> None:
        if copy is None or copy.record is None:
            return
        timer = self._by_origin.get(origin)
        if timer is None:
            find = self._without_id if copy.record.id is None else self._with_id
            timer = self._by_origin[origin] = find(copy, copy.record.id or origin)
        if (asked := self.unknown.pop(origin, 0)) is None:
            timer.is_ended = True
        if copy.record.id is None or isinstance(asked, str):
            timer.is_paused = copy.is_paused
        if timer.occurrence is not None:
            timer.occurrence, timer.dues_ms = copy.occurrence, copy.dues_ms
        elif copy.record.id is None and timer.dues_ms[-1] != copy.dues_ms[-1]:
            timer.dues_ms += copy.dues_ms

    def _with_id(self, copy: MirroredTimer, id_: bytes) -> MirroredTimer:
        timer = self._by_id.get(id_)
        if timer is None:
            self._add(copy)
        elif timer.record is None:
            copy.is_ended, copy.dues_ms = timer.is_ended, timer.dues_ms
            self._add(copy)
        elif timer.kind == copy.kind:
            return timer
        return copy  # replaced while it was on its way, if it was not added

    def _without_id(self, copy: MirroredTimer, origin: bytes) -> MirroredTimer:
        alike, due_ms = self._without_copy[copy.kind], copy.dues_ms[-1]
        if due_ms not in alike and (copy.occurrence is not None or self.unknown.get(origin) == due_ms):
            due_ms = next(iter(alike), due_ms)  # the request has another time
        if due_ms in alike:
            timer = alike[due_ms].pop()
            if not alike[due_ms]:
                del alike[due_ms]
            return timer
        self._add(copy)
        return copy


def _body(record: Record, ask: Asked) -> Body | None:
    schedule = ask.schedule if isinstance(ask, Claim) else ask
    with suppress(LongNameError):
        return body_of(record, schedule, record.offset, 0) if isinstance(schedule, Schedule) else None
    return None
