"""Decide what each request means for the store, without I/O.

    key = (visit_ms, origin offset)   visit_ms: the wake-up time (timer.schedule.release_policy)
    K, C                              the last settled key, the next offset to read (schemas.progress)

    refused                          -> rejected topic, named in the journal
    key >  K                         -> store, in its order        (a target that waits: timer.schedule.blocked_targets)
    key <= K, wake-up time <= now    -> overdue: leaves in the transaction that moves C past it
    key <= K, its target waits       -> out of order ("held"), until it may leave
    key <= K, wake-up time >  now    -> out of order: the clock went back below K; stored, named in the journal
    a copy that would roll again at once -> out of order, for a cooldown (timer.schedule.queues)

One rule for ids: a request with an id ends the earlier pending timer with that id (bridge.partition.ids). A
schedule then takes its place; a cancel does not. Timers to release are chosen after intake, and a request that names a
timer of a transaction in flight waits for its outcome: a cancel that is taken in before the release commits wins.

A move is a roll with another due time: the timer leaves the store, and its next copy has the new time. If a
copy is in flight at that time, it rolls once more when it is received. The next request must find the copy of a moved
timer in flight, so a batch ends with a move (`requests_of`).

A pause is a move to PAUSED_MS plus the due time, so it needs no state of its own. A resume is the move back.

A copy that is received is a timer again under its old origin, and ends nothing. A copy that is not awaited is refused.

Policy and quota apply once to each request. A replay uses the journal's refusals; the request of a copy was accepted.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple, Protocol

from bridge.partition.copies import CopiesInFlight
from bridge.partition.decisions import ReceiptDraft
from bridge.partition.ids import Intake, Name, PendingTimers, RecentlyDelivered
from bridge.partition.limits import BEYOND_BYTES, BEYOND_TIMERS, MOST_LIMITED, TOO_MANY_LIMITED, TargetRateLimits
from bridge.partition.options import TurnOptions
from bridge.partition.request import (
    LOOK_EACH,
    MAX_HEADERS,
    RequestBatch,
    body_of,
    first_copy_size,
    moved_copy_size,
    next_due_ms,
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
from schemas.sizes import size_text
from timer.format.body import Body, LongNameError, frame_size
from timer.format.unit import MAX_DELAY_MS
from timer.schedule.release_policy import roll_cooldown_ms, visit_ms

_NO_PAUSE = Refusal(
    "denied-action",
    "pause and resume name a timer by timer-id or timer-of; `timer-bridge pause` and `resume` are for a target topic",
)
_TOO_LARGE_TO_MOVE = Refusal("too-large", "with the headers of a moved copy it would not fit: replace it instead")


class TargetQueue(Protocol):
    """The part of the store's release queue that intake needs."""

    def must_wait(self, target: str) -> bool: ...

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool: ...


class View(NamedTuple):
    """The state of a partition that decisions depend on. Decisions do not change it, except that time refills rates."""

    queries: PendingTimers
    queue: TargetQueue
    flights: CopiesInFlight
    recently: RecentlyDelivered
    limits: TargetRateLimits
    options: TurnOptions


class Quota(NamedTuple):
    """How many more timers may be pending, and how many more bytes of bodies (without copies in flight)."""

    timers: float = inf
    size_bytes: float = inf


NO_QUOTA = Quota()


def decide(
    view: View,
    requests: RequestBatch,
    now_ms: int,
    quota: Quota = NO_QUOTA,
    overdue: Mapping[int, Body] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Intake:
    """Return what becomes of the requests, until `is_over()`, at least of the first few.

    overdue: overdue timers of earlier batches that have not left. The result's `overdue` begins with them.
    """
    intake = BatchIntake(view, requests, now_ms, quota, overdue or {})
    count = 0
    for count, (record, ask) in enumerate(requests.asked, 1):
        intake.decide_one(record, ask)
        if not count % LOOK_EACH and is_over():
            break
    intake.taken.note_decided(count)
    return intake.taken


def _told_id(name: Name) -> bytes:
    """Return the id for a receipt: none for a request by origin, as a copy in flight has only a hash of its id."""
    return name if isinstance(name, bytes) else b""


class BatchIntake:
    """Decides one batch, request by request."""

    def __init__(
        self, view: View, requests: RequestBatch, now_ms: int, quota: Quota, overdue: Mapping[int, Body]
    ) -> None:
        queries, self.queue, self.flights, self.recently, self.limits, self.options = view
        origin_offset = None if requests.origin is None else self.flights.offset_of(requests.origin)
        names: list[Name] = [*requests.ids] if origin_offset is None else [origin_offset]
        self.taken = Intake(queries, self.flights, names, overdue)
        self._queries = queries
        self._now_ms = now_ms
        self._timers_left, self._bytes_left = quota
        self._new_targets: set[str] = set()
        """Targets with a rate that had no pending timer before this batch."""
        self._decisions = self.taken.decisions
        self._window_ms = self.options.rules.roll_window_ms
        self._counts_bytes = quota.size_bytes < inf
        self._confirms = is_sent("accepted", self.options.receipts)

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
        self._decisions.refused.append((record, refusal))
        self._decisions.receipts.append(ReceiptDraft("rejected", record.offset, record.offset, b"", code=refusal.code))

    def _receipt(self, kind: Kind, record: Record, origin_offset: int, id_: bytes, due_ms: int | None = None) -> None:
        if due_ms is not None:
            due_ms %= PAUSED_MS
        self._decisions.receipts.append(ReceiptDraft(kind, record.offset, origin_offset, id_, due_ms))

    # -- schedule

    def _schedule(self, record: Record, ask: Schedule) -> None:
        visit = visit_ms(ask.due_ms, record.timestamp_ms, self._window_ms)
        refusal = self._refusal(record, ask, visit)
        if refusal is not None:
            self._refuse(record, refusal)
            return  # a bad request changes nothing
        try:
            body = body_of(record, ask, record.offset, 0)
        except LongNameError as wrong:
            self._refuse(record, Refusal("bad-header", f"{wrong}: shorten it"))
            return
        if self._counts_bytes and frame_size(body) > self._bytes_left + self.taken.stored_bytes(ask.id):
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
            return Refusal(
                "too-large",
                f"key, value and headers have {size} bytes, max_request_bytes is {size_text(most)}: shorten it",
            )
        policy, is_pending = self.options.policy, self.taken.is_pending(ask.id)
        action = "replace" if ask.replaces or is_pending else "schedule"
        denied = policy.action_refusal(action) or policy.refusal(ask.target)
        if denied is None and (rule := ask.recurrence) is not None:
            missed = record.timestamp_ms, self.options.max_missed
            denied = policy.action_refusal("recur") or problem_of(rule, ask.due_ms, *missed)
        if denied is not None:
            return denied
        if (visit < ask.due_ms or ask.recurrence is not None) and first_copy_size(
            record, ask
        ) > self.options.max_message_bytes:
            return Refusal("too-large", "with the headers of a rolled copy it would not fit: shorten it")
        if self._timers_left <= 0 and not is_pending:
            return BEYOND_TIMERS
        return TOO_MANY_LIMITED if self._is_one_too_many(ask.target) else None

    def _is_one_too_many(self, target: str) -> bool:
        """True if the target has a rate and no pending timer, and too many targets have pending timers."""
        if not self.limits.is_limited(target) or target in self._new_targets or self._queries.has_target(target):
            return False
        if self._queries.targets + len(self._new_targets) >= MOST_LIMITED:
            return True
        self._new_targets.add(target)
        return False

    def _place(self, body: Body, visit: int) -> None:
        """Put the timer into the store, or let it leave at once if it is overdue."""
        if self._counts_bytes:
            self._bytes_left -= frame_size(body)
        if self.queue.is_unreleased(body.target, (visit, body.origin_offset)):
            self.taken.store(body, visit)
        elif visit <= self._now_ms and not self._must_wait(body.target):
            self.taken.leave(body)
        else:
            self.taken.hold(body, visit)

    def _must_wait(self, target: str) -> bool:
        """True if an overdue timer may not leave at once. Those that may are counted."""
        if self.queue.must_wait(target):
            return True
        allowed = None if self.limits.is_open else self.limits.allowance(target, self._now_ms)
        if allowed is None:
            return False
        if self.taken.leaving[target] >= allowed:
            return True
        self.taken.leaving[target] += 1
        return False

    # -- cancel and move

    def _cancel(self, record: Record, ask: Cancel) -> None:
        if denied := self.options.policy.action_refusal("cancel"):
            self._refuse(record, denied)
            return
        if self._end("cancelled", record, ask.id):
            return
        if ask.fallback is not None and self.taken.is_for(ask.fallback[1], ask.fallback[0]):
            self._end("cancelled", record, ask.fallback[1])
            return
        missed = self._missed(ask.id)
        if ask.fallback is not None and missed == "not-found":
            missed = self._missed(ask.fallback[1])
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
            self._receipt(self._missed(name), record, -1, _told_id(name))

    def _end(self, kind: Kind, record: Record, name: Name) -> bool:
        """End the timer that is pending under `name`. Return True if there was one."""
        self._free_bytes(name)
        ended = self.taken.end(name)
        for origin_offset, due_ms in ended:
            self._receipt(kind, record, origin_offset, _told_id(name), due_ms)
        self._timers_left += len(ended)
        return bool(ended)

    def _free_bytes(self, name: Name) -> None:
        """Count the bytes of the timer, which is about to leave the store, as free."""
        if self._counts_bytes:
            self._bytes_left += self.taken.stored_bytes(name)

    def _missed(self, name: Name) -> Kind:
        if isinstance(name, int):
            return "not-found"
        is_late = name not in self.taken.ended_ids and self.recently.has(name, self._now_ms)
        return "too-late" if is_late else "not-found"

    def _move(self, record: Record, name: Name, to: int | Pausing) -> None:
        """Roll the timer with its new due time, so that every rule of rolls holds for moves, pauses and resumes."""
        kind: Kind = "moved" if isinstance(to, int) else to
        if denied := self.options.policy.action_refusal("move" if kind == "moved" else "pause"):
            self._refuse(record, denied)
            return
        copies, body = self.taken.copies_in_flight(name), self.taken.body(name)
        if body is None and not copies:
            self._receipt(self._missed(name), record, -1, _told_id(name))
            return
        was_ms = None if isinstance(to, int) else self.taken.due_ms(name)
        due_ms = to if isinstance(to, int) else (was_ms or 0) % PAUSED_MS + PAUSED_MS * (to == "paused")
        if body is not None and due_ms != was_ms:
            if body.rolls == 0 and moved_copy_size(body) > self.options.max_message_bytes:
                self._refuse(record, _TOO_LARGE_TO_MOVE)
                return
            self._free_bytes(name)
            self.taken.take_out(name)
            self.taken.roll(body, due_ms)
        self._decisions.rolled.extend(flight._replace(due_ms=due_ms) for flight in copies if due_ms != was_ms)
        origin_offset = copies[0].origin_offset if body is None else body.origin_offset
        self._receipt(kind, record, origin_offset, _told_id(name), due_ms)

    # -- copies of rolled timers

    def _receive_copy(self, record: Record, claim: Claim) -> None:
        flight = self.flights.claimed(record, claim)
        if flight is None or self.taken.has_landed(flight):
            self._refuse(record, NOT_OURS)
            return
        self.taken.land(flight)
        if self.taken.has_ended(flight.origin_offset):
            self._decisions.dropped.append(record.offset)
            return
        visit = visit_ms(claim.schedule.due_ms, record.timestamp_ms, self._window_ms)
        body = body_of(record, claim.schedule, flight.origin_offset, flight.rolls)
        if flight.due_ms != claim.schedule.due_ms:  # moved while it was in flight
            self.taken.roll(body, flight.due_ms)
        elif self._must_cool_down(flight, visit):
            self._cool_down(body)
        else:
            self._place(body, visit)

    def _must_cool_down(self, flight: CopyInFlight, visit: int) -> bool:
        """True if the copy would roll again within the cooldown, because our clock is ahead of the brokers'."""
        cooldown_ms = roll_cooldown_ms(self._window_ms)
        is_soon = visit < min(self._now_ms + cooldown_ms, flight.due_ms) and flight.due_ms > self._now_ms
        return is_soon and self.flights.was_rolled_within(flight, cooldown_ms, self._now_ms)

    def _cool_down(self, body: Body) -> None:
        if self._counts_bytes:
            self._bytes_left -= frame_size(body)
        wake_ms = min(self._now_ms + roll_cooldown_ms(self._window_ms), body.due_ms, body.timestamp_ms + MAX_DELAY_MS)
        self.taken.hold(body, wake_ms)
