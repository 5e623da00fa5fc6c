"""Decide what each request means for the store, without I/O.

    key = (visit_ms, origin offset)   visit_ms: the wake-up time (timer.schedule.release_policy)
    K, C                              the last settled key, the next offset to read (schemas.progress)

    refused                          -> rejected topic, named in the journal
    key >  K                         -> store, in its order        (a target that waits: timer.schedule.blocked_targets)
    key <= K, wake-up time <= now    -> overdue: leaves in the transaction that moves C past it
    key <= K, its target waits       -> out of order ("held"), until it may leave
    key <= K, wake-up time >  now    -> out of order: the clock went back below K; stored, named in the journal
    a copy that would roll again soon -> out of order, for a cooldown (timer.schedule.queues)

One rule for ids: a request with an id ends the earlier pending timer with that id. A schedule then takes its place; a
cancel does not. Timers to release are chosen after intake. A request that names a timer of a transaction in flight, or
may be one of its copies, waits for the outcome: a retry may replace copies, and a cancel that is read before wins.

A move is a roll with another due time: the timer leaves the store, and its next copy has the new time. If a
copy is in flight at that time, it rolls once more when it is received. The next request must find the copy of a moved
timer in flight, so a batch ends with a move (`requests_of`).

A pause is a move to PAUSED_MS plus the due time, so it needs no state of its own. A resume is the move back.

The timers that are pending under the names of a batch, and its changes to them: bridge.partition.names.

A copy that is received is a timer again under its old origin, and ends nothing. A copy that is not awaited is refused.

Policy and quota apply once to each request. A replay uses the journal's refusals; the request of a copy was accepted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import NamedTuple

from bridge.partition.copies import CopiesInFlight
from bridge.partition.journal import ReceiptDraft
from bridge.partition.limits import BEYOND_BYTES, BEYOND_TIMERS, MOST_LIMITED, TOO_MANY_LIMITED, TargetRateLimits
from bridge.partition.names import BatchChanges, Name, RecentlyDelivered
from bridge.partition.options import TurnOptions
from bridge.partition.request import (
    LOOK_EACH,
    MAX_HEADERS,
    body_of,
    first_copy_size,
    ids_in,
    moved_copy_size,
    next_due_ms,
    requests_of,
    size_of,
)
from bridge.ports import Record
from kafka_timer.headers import (
    LEFT,
    NOT_OURS,
    OF,
    PAUSED_MS,
    Asked,
    ByOrigin,
    Cancel,
    Claim,
    Move,
    Pause,
    Pausing,
    Refusal,
    Schedule,
    shown,
)
from schemas.journal import CopyInFlight
from schemas.receipts import Kind, is_sent
from schemas.recurrence import problem_of
from schemas.units import size_text
from timer.format.body import Body, LongNameError, frame_size
from timer.format.unit import MAX_DELAY_MS
from timer.schedule.release_policy import roll_cooldown_ms, visit_ms
from timer.schedule.release_queue import ReleaseQueue
from timer.store import StoreQueries

_NO_PAUSE = Refusal(
    "denied-action",
    "pause and resume name a timer by timer-id or timer-of; `timer-bridge pause` and `resume` are for a target topic",
)
_TOO_LARGE_TO_ROLL = Refusal("too-large", "with the headers of a rolled copy it would not fit: shorten it")
_TOO_LARGE_TO_MOVE = Refusal("too-large", "with the headers of a moved copy it would not fit: replace it instead")


class View(NamedTuple):
    """The state of a partition that decisions depend on. Decisions do not change it, except that time refills rates."""

    queries: StoreQueries
    queue: ReleaseQueue
    flights: CopiesInFlight
    recently: RecentlyDelivered
    limits: TargetRateLimits
    options: TurnOptions


class BatchIntake(BatchChanges):
    """Decides one batch, request by request: the outcome, and what is pending under its names. Call `decide` once."""

    def __init__(
        self,
        view: View,
        records: list[Record],
        now_ms: int,
        overdue: Mapping[int, Body],
        is_over: Callable[[float], bool],
    ) -> None:
        """Parse `records`, at least one, as far as `requests_of` does.

        overdue: overdue timers of earlier batches that have not left. Its own `overdue` begins with them.
        """
        queries, self.queue, flights, self.recently, self.limits, self.options = view
        self._asked = requests_of(records, self.options.rules, is_over)
        self._ids = ids_in(self._asked)
        first = self._asked[0][1]
        self._is_by_origin = isinstance(first, ByOrigin)
        named = flights.offset_of(first.origin) if isinstance(first, ByOrigin) else None
        super().__init__(queries, flights, overdue, named)
        self._is_over = is_over
        self._now_ms = now_ms
        self.count = 0
        """Number of requests that are decided, from the first one on."""
        self.leaving: Counter[str] = Counter()
        """Overdue timers of this batch that use the rate of their target."""
        self.ended_ids: set[bytes] = set()
        self._timers_left = self._bytes_left = inf
        """What may still be pending. Overdue timers count; copies in flight count as timers, not as bytes."""
        options = self.options
        if options.max_pending is not None:
            self._timers_left = options.max_pending - queries.pending - flights.alive_count - len(overdue)
        if options.max_pending_bytes is not None:
            in_memory = sum(map(frame_size, overdue.values()))
            self._bytes_left = options.max_pending_bytes - queries.pending_bytes - in_memory
        self._new_targets: set[str] = set()
        """Targets with a rate that had no pending timer before this batch."""
        self._window_ms = options.rules.roll_window_ms
        self._cool_ms = now_ms + roll_cooldown_ms(self._window_ms)
        self._counts_bytes = options.max_pending_bytes is not None
        self._confirms = is_sent("accepted", options.receipts)

    def may_name(self, ids: frozenset[bytes], copies: Iterable[CopyInFlight]) -> bool:
        """True if a request names one of these ids, or an origin, or may be one of these copies."""
        if self._is_by_origin or not ids.isdisjoint(self._ids):
            return True
        claimed = {self.flights.offset_of(ask.origin) for _, ask in self._asked if isinstance(ask, Claim)}
        return bool(claimed) and any(flight.origin_offset in claimed for flight in copies)

    def decide(self) -> None:
        """Decide what becomes of the requests, until `is_over(1)`, at least of the first few."""
        self.find(self._ids)
        for record, ask in self._asked:
            self.decide_one(record, ask)
            self.count += 1
            if not self.count % LOOK_EACH and self._is_over(1):
                break

    def decide_one(self, record: Record, ask: Asked) -> None:
        match ask:
            case Schedule():
                self._schedule(record, ask)
            case Cancel():
                self._cancel(record, ask)
            case Move():
                self._move(record, ask.id, ask.due_ms)
            case ByOrigin():
                self._change_by_origin(record, ask)
            case Pause():
                self._refuse(record, _NO_PAUSE)
            case Claim():
                self._receive_copy(record, ask)
            case Refusal():
                self._refuse(record, ask)

    def _refuse(self, record: Record, refusal: Refusal) -> None:
        if len(record.headers) > MAX_HEADERS:
            record = record._replace(headers=())
            refusal = Refusal(refusal.code, f"{refusal.detail}; its headers are {LEFT.decode()}")
        self.decisions.refused.append((record, refusal))
        self.decisions.receipts.append(ReceiptDraft("rejected", record.offset, record.offset, b"", code=refusal.code))

    def _receipt(self, kind: Kind, record: Record, origin_offset: int, name: Name, due_ms: int | None = None) -> None:
        """A receipt for a request by origin has no id, as a copy in flight has only a hash of its id."""
        id_ = name if isinstance(name, bytes) else b""
        due_ms = None if due_ms is None else due_ms % PAUSED_MS
        self.decisions.receipts.append(ReceiptDraft(kind, record.offset, origin_offset, id_, due_ms))

    # -- schedule

    def _schedule(self, record: Record, ask: Schedule) -> None:
        visit = visit_ms(ask.due_ms, record.timestamp_ms, self._window_ms)
        if (refusal := self._refusal(record, ask, visit)) is not None:
            self._refuse(record, refusal)
            return  # a bad request changes nothing
        try:
            body = body_of(record, ask, record.offset, 0)
        except LongNameError as wrong:
            self._refuse(record, Refusal("bad-header", f"{wrong}: shorten it"))
            return
        if self._counts_bytes and frame_size(body) > max(0, self._bytes_left) + self.stored_bytes(ask.id):
            self._refuse(record, BEYOND_BYTES)
            return
        if ask.id is not None and not self._end("replaced", record, ask.id) and ask.replaces:
            self._receipt(self._missed(ask.id), record, -1, ask.id)
        self._place(body, visit)
        self._timers_left -= 1
        if self._confirms:
            self._receipt("accepted", record, record.offset, ask.id or b"", next_due_ms(body))

    def _refusal(self, record: Record, ask: Schedule, visit: int) -> Refusal | None:
        """Return why a well-formed request is not accepted, None if it is."""
        most = self.options.max_request_bytes
        if most is not None and (size := size_of(record.key, record.value, record.headers)) > most:
            detail = f"key, value and headers have {size} bytes, max_request_bytes is {size_text(most)}: shorten it"
            return Refusal("too-large", detail)
        policy, is_pending = self.options.policy, self.is_pending(ask.id)
        action = "replace" if ask.replaces or is_pending else "schedule"
        denied = policy.action_refusal(action) or policy.refusal(ask.target)
        if denied is None and (rule := ask.recurrence) is not None:
            missed = record.timestamp_ms, self.options.max_missed
            denied = policy.action_refusal("recur") or problem_of(rule, ask.due_ms, *missed)
        if denied is not None:
            return denied
        has_copy = visit < ask.due_ms or ask.recurrence is not None
        if has_copy and first_copy_size(record, ask) > self.options.max_message_bytes:
            return _TOO_LARGE_TO_ROLL
        if self._timers_left <= 0 and not is_pending:
            return BEYOND_TIMERS
        return TOO_MANY_LIMITED if self._is_one_too_many(ask.target) else None

    def _is_one_too_many(self, target: str) -> bool:
        """True if the target has a rate and no pending timer, and too many targets have pending timers."""
        if not self.limits.is_limited(target) or target in self._new_targets or self.queries.dues.has(target):
            return False
        if self.queries.dues.targets + len(self._new_targets) >= MOST_LIMITED:
            return True
        self._new_targets.add(target)
        return False

    def _place(self, body: Body, visit: int, *, is_copy: bool = False) -> None:
        """Put the timer, perhaps a copy, into the store, or let it leave at once if it is overdue."""
        if self._counts_bytes:
            self._bytes_left -= frame_size(body)
        if is_copy and visit < min(self._cool_ms, body.due_ms) and body.due_ms > self._now_ms:
            self.hold(body, min(self._cool_ms, body.due_ms, body.timestamp_ms + MAX_DELAY_MS))
        elif self.queue.is_unreleased(body.target, (visit, body.origin_offset)):
            self.store(body, visit)
        elif visit <= self._now_ms and not self._must_wait(body.target):
            self.leave(body)
        else:
            self.hold(body, visit)

    def _must_wait(self, target: str) -> bool:
        """True if an overdue timer may not leave at once. Those that may are counted."""
        if self.queue.blocked.named(target) is not None:
            return True
        allowed = None if self.limits.is_open else self.limits.allowance(target, self._now_ms)
        if allowed is None:
            return False
        if self.leaving[target] >= allowed:
            return True
        self.leaving[target] += 1
        return False

    # -- cancel and move

    def _cancel(self, record: Record, ask: Cancel) -> None:
        if denied := self.options.policy.action_refusal("cancel"):
            self._refuse(record, denied)
            return
        if self._end("cancelled", record, ask.id):
            return
        missed = self._missed(ask.id)
        if ask.fallback is not None:
            target, id_ = ask.fallback
            if self.is_for(id_, target):
                self._end("cancelled", record, id_)
                return
            missed = self._missed(id_) if missed == "not-found" else missed
        self._receipt(missed, record, -1, ask.id)

    def _change_by_origin(self, record: Record, ask: ByOrigin) -> None:
        """Cancel, move, pause or resume the timer of an origin, with or without an id."""
        name = self.flights.offset_of(ask.origin)
        if name is None:
            detail = f"{OF} is {shown(ask.origin)}: send topic/partition/offset of a request to its own partition"
            self._refuse(record, Refusal("bad-header", detail))
        elif ask.due_ms is not None:
            self._move(record, name, ask.due_ms)
        elif denied := self.options.policy.action_refusal("cancel"):
            self._refuse(record, denied)
        elif not self._end("cancelled", record, name):
            self._receipt(self._missed(name), record, -1, name)

    def _end(self, kind: Kind, record: Record, name: Name) -> bool:
        """End the timer that is pending under `name`. Return True if there was one."""
        body = None if isinstance(name, bytes) else self.body(name)
        id_ = name if isinstance(name, bytes) else body and body.id
        copies = self.copies_in_flight(name)
        ended = self.take_out(name) + [(flight.origin_offset, flight.due_ms) for flight in copies]
        if ended and id_:
            self.ended_ids.add(id_)
        for origin_offset, due_ms in ended:
            self.ended.add(origin_offset)
            self.decisions.ended.append(origin_offset)
            self._receipt(kind, record, origin_offset, name, due_ms)
        self._timers_left += len(ended)
        return bool(ended)

    def take_out(self, name: Name) -> list[tuple[int, int | None]]:
        if self._counts_bytes:
            self._bytes_left += self.stored_bytes(name)
        return super().take_out(name)

    def _missed(self, name: Name) -> Kind:
        is_late = isinstance(name, bytes) and name not in self.ended_ids and self.recently.has(name, self._now_ms)
        return "too-late" if is_late else "not-found"

    def _move(self, record: Record, name: Name, to: int | Pausing) -> None:
        """Roll the timer with its new due time, so that every rule of rolls holds for moves, pauses and resumes."""
        kind: Kind = "moved" if isinstance(to, int) else to
        if denied := self.options.policy.action_refusal("move" if kind == "moved" else "pause"):
            self._refuse(record, denied)
            return
        copies, body = self.copies_in_flight(name), self.body(name)
        if body is None and not copies:
            self._receipt(self._missed(name), record, -1, name)
            return
        was_ms = None if isinstance(to, int) else self.due_ms(name)
        due_ms = to if isinstance(to, int) else (was_ms or 0) % PAUSED_MS + PAUSED_MS * (to == "paused")
        if body is not None and due_ms != was_ms:
            if body.rolls == 0 and moved_copy_size(body) > self.options.max_message_bytes:
                self._refuse(record, _TOO_LARGE_TO_MOVE)
                return
            self.take_out(name)
            self.roll(body, due_ms)
        self.decisions.rolled.extend(flight._replace(due_ms=due_ms) for flight in copies if due_ms != was_ms)
        origin_offset = copies[0].origin_offset if body is None else body.origin_offset
        self._receipt(kind, record, origin_offset, name, due_ms)

    # -- copies of rolled timers

    def _receive_copy(self, record: Record, claim: Claim) -> None:
        flight, schedule = self.flights.claimed(record, claim), claim.schedule
        if flight is None or flight.origin_offset in self.landed:
            self._refuse(record, NOT_OURS)
            return
        origin_offset = flight.origin_offset
        self.landed.add(origin_offset)
        self.decisions.landed.append((origin_offset, flight.rolls))
        if origin_offset in self.flights.ended or origin_offset in self.ended:  # while its copy was in flight
            self.decisions.dropped.append(record.offset)
            return
        body = body_of(record, schedule, origin_offset, flight.rolls)
        if flight.due_ms != schedule.due_ms:  # moved while it was in flight
            self.roll(body, flight.due_ms)
        else:
            self._place(body, visit_ms(schedule.due_ms, record.timestamp_ms, self._window_ms), is_copy=True)
