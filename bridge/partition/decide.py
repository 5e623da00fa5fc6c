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
timer in flight, so a batch ends with a move (`batch_length`).

A copy that is received is a timer again under its old origin, and ends nothing. A copy that is not awaited is refused.

Policy and quota apply once to each request. A replay uses the journal's refusals; the request of a copy was accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from bridge.partition.copies import CopiesInFlight
from bridge.partition.decisions import Intake, ReceiptDraft
from bridge.partition.ids import Name, PendingIds, PendingTimers, Place, RecentlyDelivered
from bridge.partition.limits import BEYOND_BYTES, BEYOND_TIMERS, TOO_MANY_LIMITED, Quota, TargetGate, TargetQueue
from bridge.partition.options import TurnOptions
from bridge.partition.request import RequestBatch, body_of, first_copy_size, moved_copy_size, size_of
from bridge.ports import Record
from kafka_timer.headers import NOT_OURS, OF, Asked, ByOrigin, Cancel, Claim, Move, Pause, Refusal, Schedule, shown
from schemas.journal import CopyInFlight
from schemas.receipts import Kind, is_sent
from schemas.recurrence import problem_of
from timer.format.body import Body, LongNameError, frame_size
from timer.format.unit import MAX_DELAY_MS
from timer.schedule.release_policy import roll_cooldown_ms, visit_ms

_NO_PAUSE = Refusal(
    "denied-action",
    "pause and resume are not taken from senders: use `timer-bridge pause` or `resume`, which need the control topic",
)
_TOO_LARGE_TO_MOVE = Refusal("too-large", "with the headers of a moved copy it would not fit: replace it instead")


def _told_id(name: Name) -> bytes:
    """Return the id for a receipt: none for a request by origin, as a copy in flight has only a hash of its id."""
    return name if isinstance(name, bytes) else b""


@dataclass(eq=False)
class BatchIntake:
    """Decides one batch, request by request."""

    requests: RequestBatch
    queries: PendingTimers
    queue: TargetQueue
    flights: CopiesInFlight
    recently: RecentlyDelivered
    options: TurnOptions
    targets: TargetGate
    now_ms: int
    quota: Quota = field(default_factory=Quota)
    overdue: Mapping[int, Body] = field(default_factory=dict)
    """Overdue timers of earlier parts of the batch. The result's `overdue` begins with them."""

    def __post_init__(self) -> None:
        requests = self.requests
        self._taken = Intake(overdue=dict(self.overdue))
        self._decisions = self._taken.decisions
        origin_offset = None if requests.origin is None else self.flights.offset_of(requests.origin)
        self._ids = PendingIds(self.queries, self.flights, requests.ids, self._taken, origin_offset)
        self._window_ms = self.options.rules.roll_window_ms
        self._counts_bytes = self.quota.size_bytes < inf
        self._confirms = is_sent("accepted", self.options.receipts)

    def decide(self) -> Intake:
        """Return what becomes of the requests."""
        for record, ask in self.requests.asked:
            self._decide_one(record, ask)
        return self._taken

    def _decide_one(self, record: Record, ask: Asked) -> None:
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
        self._decisions.refused.append((record, refusal))
        self._decisions.receipts.append(ReceiptDraft("rejected", record.offset, record.offset, b"", code=refusal.code))

    def _receipt(self, kind: Kind, record: Record, origin_offset: int, id_: bytes, due_ms: int | None = None) -> None:
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
        if self._counts_bytes and frame_size(body) > self.quota.size_bytes + self._ids.stored_bytes(ask.id):
            self._refuse(record, BEYOND_BYTES)
            return
        if ask.id is not None and not self._end("replaced", record, ask.id) and ask.replaces:
            self._receipt(self._missed(ask.id), record, -1, ask.id)
        self._place(body, visit)
        self.quota.timers -= 1
        if self._confirms:
            self._receipt("accepted", record, record.offset, ask.id or b"", ask.due_ms)

    def _refusal(self, record: Record, ask: Schedule, visit: int) -> Refusal | None:
        """Return why a well-formed request is not accepted, None if it is."""
        most = self.options.max_request_bytes
        if most is not None and (size := size_of(record.key, record.value, record.headers)) > most:
            return Refusal(
                "too-large", f"key, value and headers have {size} bytes, max_request_bytes is {most}: shorten it"
            )
        policy, is_pending = self.options.policy, self._ids.is_pending(ask.id)
        action = "replace" if ask.replaces or is_pending else "schedule"
        denied = policy.action_refusal(action) or policy.refusal(ask.target)
        if denied is not None:
            return denied
        if ask.recurrence is not None and (problem := problem_of(ask.recurrence, ask.due_ms)):
            return problem
        if (visit < ask.due_ms or ask.recurrence is not None) and first_copy_size(
            record, ask
        ) > self.options.max_message_bytes:
            return Refusal("too-large", "with the headers of a rolled copy it would not fit: shorten it")
        if self.quota.timers <= 0 and not is_pending:
            return BEYOND_TIMERS
        return TOO_MANY_LIMITED if self.targets.is_one_too_many(ask.target) else None

    def _place(self, body: Body, visit: int) -> None:
        """Put the timer into the store, or let it leave at once if it is overdue."""
        if self._counts_bytes:
            self.quota.size_bytes -= frame_size(body)
        if self.queue.is_unreleased(body.target, (visit, body.origin_offset)):
            self._ids.put(body, Place.STORED, self._taken.batch.add(body, visit))
        elif visit <= self.now_ms and not self.targets.must_wait(body.target):
            self._taken.overdue[body.offset] = body
            self._ids.put(body, Place.OVERDUE, body.offset)
        else:
            self._decisions.held.append(body.origin_offset)
            self._ids.put(body, Place.STORED, self._taken.batch.hold(body, visit))

    # -- cancel and move

    def _cancel(self, record: Record, ask: Cancel) -> None:
        if denied := self.options.policy.action_refusal("cancel"):
            self._refuse(record, denied)
            return
        if self._end("cancelled", record, ask.id):
            return
        if ask.fallback is not None and self._ids.is_for(ask.fallback[1], ask.fallback[0]):
            self._end("cancelled", record, ask.fallback[1])
            return
        missed = self._missed(ask.id)
        if ask.fallback is not None and missed == "not-found":
            missed = self._missed(ask.fallback[1])
        self._receipt(missed, record, -1, ask.id)

    def _change_by_origin(self, record: Record, ask: ByOrigin) -> None:
        """Cancel or move the timer of an origin, with or without an id."""
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
        body = None if isinstance(name, bytes) else self._ids.body(name)
        id_ = name if isinstance(name, bytes) else body and body.id
        copies = self._ids.copies_in_flight(name)
        ended = self._take_out(name) + [(flight.origin_offset, flight.due_ms) for flight in copies]
        if ended and id_:
            self._taken.ended_ids.add(id_)
        for origin_offset, due_ms in ended:
            self._ids.ended.add(origin_offset)
            self._decisions.ended.append(origin_offset)
            self._receipt(kind, record, origin_offset, _told_id(name), due_ms)
        self.quota.timers += len(ended)
        return bool(ended)

    def _take_out(self, name: Name) -> list[tuple[int, int | None]]:
        if self._counts_bytes:
            self.quota.size_bytes += self._ids.stored_bytes(name)
        return self._ids.take_out(name)

    def _missed(self, name: Name) -> Kind:
        if isinstance(name, int):
            return "not-found"
        is_late = name not in self._taken.ended_ids and self.recently.has(name, self.now_ms)
        return "too-late" if is_late else "not-found"

    def _move(self, record: Record, name: Name, due_ms: int) -> None:
        """Roll the timer with its new due time, so that every rule of rolls holds for moves."""
        if denied := self.options.policy.action_refusal("move"):
            self._refuse(record, denied)
            return
        copies, body = self._ids.copies_in_flight(name), self._ids.body(name)
        if body is None and not copies:
            self._receipt(self._missed(name), record, -1, _told_id(name))
            return
        if body is not None:
            if body.rolls == 0 and moved_copy_size(body) > self.options.max_message_bytes:
                self._refuse(record, _TOO_LARGE_TO_MOVE)
                return
            self._take_out(name)
            self._roll(body, due_ms)
        self._decisions.rolled += [flight._replace(due_ms=due_ms) for flight in copies]
        origin_offset = copies[0].origin_offset if body is None else body.origin_offset
        self._receipt("moved", record, origin_offset, _told_id(name), due_ms)

    def _roll(self, body: Body, due_ms: int) -> None:
        """Let the timer leave the store, whatever K says, as a copy that is due at `due_ms`."""
        self._taken.moved[body.origin_offset] = (body, due_ms)
        self._decisions.released.append(body.origin_offset)
        self._ids.put(body, Place.MOVED, due_ms)

    # -- copies of rolled timers

    def _receive_copy(self, record: Record, claim: Claim) -> None:
        flight = self.flights.claimed(record, claim)
        if flight is None or (flight.origin_offset, flight.rolls) in self._ids.landed:
            self._refuse(record, NOT_OURS)
            return
        self._ids.landed.add((flight.origin_offset, flight.rolls))
        self._decisions.landed.append((flight.origin_offset, flight.rolls))
        if flight.origin_offset in self.flights.ended or flight.origin_offset in self._ids.ended:
            self._decisions.dropped.append(record.offset)
            return
        visit = visit_ms(claim.schedule.due_ms, record.timestamp_ms, self._window_ms)
        body = body_of(record, claim.schedule, flight.origin_offset, flight.rolls)
        if flight.due_ms != claim.schedule.due_ms:  # moved while it was in flight
            self._roll(body, flight.due_ms)
        elif self._must_cool_down(flight, visit):
            self._cool_down(body)
        else:
            self._place(body, visit)

    def _must_cool_down(self, flight: CopyInFlight, visit: int) -> bool:
        """True if the copy would roll again within the cooldown, because our clock is ahead of the brokers'."""
        cooldown_ms = roll_cooldown_ms(self._window_ms)
        is_soon = visit < min(self.now_ms + cooldown_ms, flight.due_ms) and flight.due_ms > self.now_ms
        return is_soon and self.flights.was_rolled_within(flight, cooldown_ms, self.now_ms)

    def _cool_down(self, body: Body) -> None:
        if self._counts_bytes:
            self.quota.size_bytes -= frame_size(body)
        wake_ms = min(self.now_ms + roll_cooldown_ms(self._window_ms), body.due_ms, body.timestamp_ms + MAX_DELAY_MS)
        self._decisions.held.append(body.origin_offset)
        self._ids.put(body, Place.STORED, self._taken.batch.hold(body, wake_ms))
