"""Take the timers that leave out of a partition's store, and put them into its draft: as deliveries or as copies.

    due, its target takes it              -> delivery
    not due yet, or waited for too long   -> copy: it rolls
    its target's circuit breaker is open  -> copy, so that its transaction does not wait for that target
    due, and its copy would be too large  -> rejected topic

Never early: only `DueTimers.leave` and `DueTimers._roll` make deliveries, of timers whose due time has come.

A recurring timer also gets a copy for its next occurrence, in the same draft: from then on it waits for that one.
"""

from dataclasses import dataclass

from bridge.partition.copies import RolledCopy, copy_of
from bridge.partition.draft import BATCH_BYTES, Draft, expired
from bridge.partition.limits import CircuitBreakers, TargetRateLimits
from bridge.partition.options import TurnOptions
from bridge.partition.request import occurrence_of, size_of
from bridge.ports import Outgoing
from kafka_timer.headers import Refusal
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight
from timer.format.body import Body
from timer.format.unit import isin
from timer.schedule.release_policy import most_wait_ms
from timer.store import Store

TOO_LARGE_TO_WAIT = Refusal(
    "too-large",
    "its target made it wait for longer than Kafka keeps it here, and a copy of it would be too large: shorten it",
)
_MISSED = Refusal(
    "missed",
    "the next occurrence was due when it could be released (timer-missed: none), and no later one is to come",
)
_MOST_HELD = 100_000
"""Out-of-order timers of one partition: K had passed their key before they were read. Beyond this they are rolled."""
_CROWDED_SHARE = 4


@dataclass(eq=False)
class DueTimers:
    """Due timers of one open partition. Each call gets a draft, as the partition freezes one and begins another."""

    _partition: TimerPartition
    _store: Store
    _options: TurnOptions
    _breakers: CircuitBreakers

    def __post_init__(self) -> None:
        self._most_wait_ms = most_wait_ms(self._options.rules.roll_window_ms)
        self.limits = TargetRateLimits(self._options.targets, self._breakers)

    @property
    def too_many_held(self) -> str:
        """The reason why intake waits until out-of-order timers have left or are rolled; empty if there is none."""
        is_full = self._store.release_queue.held >= _MOST_HELD
        return f"{_MOST_HELD} timers are held: it goes on when some have left or are rolled" if is_full else ""

    def release(self, draft: Draft, now_ms: int, most: int) -> bool:
        """Draft the timers that leave now, at most `most`, as far as one transaction has room. True if it was full."""
        room = min(most, self._room(draft))
        if room <= 0:
            return True
        room_bytes = max(1, self._options.max_due_bytes - draft.size_bytes)
        gate = None if self.limits.is_open else self.limits
        queue, bodies = self._store.release_queue, self._store.queries.bodies
        waiting = queue.blocked_hashes()
        due = queue.take_due(now_ms, room, room_bytes, gate, self._most_wait_ms)
        if due.total:
            draft.decisions.released.extend(due.released["origin"].tolist() + due.old_released["origin"].tolist())
            for rows in (due.rows, due.released) if waiting else ():
                draft.waited_origins.update(rows["origin"][isin(rows["topic_hash"], waiting)].tolist())
            self.leave(draft, bodies(due.rows) + bodies(due.released), now_ms)
            self._roll(draft, bodies(due.old_rows) + bodies(due.old_released), now_ms)
        return due.total >= room

    def roll_held(self, draft: Draft, now_ms: int) -> None:
        """Roll the oldest out-of-order timers, also under full load: intake must reach the end of a pause."""
        room = max(self._room(draft), self._options.max_due_records // _CROWDED_SHARE)
        rows = self._store.release_queue.take_overflow(now_ms, room, self._options.max_due_bytes)
        draft.decisions.released.extend(rows["origin"].tolist())
        self._roll(draft, self._store.queries.bodies(rows), now_ms)

    def _room(self, draft: Draft) -> int:
        return self._options.max_due_records - len(draft.bodies) - len(draft.copies)

    def leave(self, draft: Draft, bodies: list[Body], now_ms: int) -> None:
        """Draft deliveries, or copies of timers that are not due yet."""
        is_limited = not self.limits.is_open
        for body in bodies:
            if body.due_ms <= now_ms:
                if body.rolls and body.due_ms < body.timestamp_ms:  # the copy came too late: its timer was paused
                    draft.waited_origins.add(body.origin_offset)
                is_delivered = self._deliver(draft, body, now_ms)
                if is_limited and (not is_delivered or expired(body, now_ms)):  # its target will not get it
                    self.limits.spend(body.target, -1, now_ms)
            else:
                self._roll(draft, [body], now_ms)

    def _deliver(self, draft: Draft, body: Body, now_ms: int) -> bool:
        """Draft a due timer: its delivery, and the copy for the next occurrence. False if it is not delivered."""
        occurrence = None if body.plain else occurrence_of(body)
        if occurrence is None:
            draft.add_delivery(body)
            return True
        is_delivered, following = occurrence.follow(now_ms)
        if following is not None:
            draft.add_copy(copy_of(self._partition, body, now_ms, occurrence=following))
        elif not is_delivered:
            draft.parked[body.origin_offset] = _MISSED
        if is_delivered or following is None:
            draft.add_delivery(body)
        return is_delivered

    def _roll(self, draft: Draft, bodies: list[Body], now_ms: int) -> None:
        """Draft copies for the timer topic. A due timer whose copy is too large is rejected instead."""
        for body in bodies:
            copy = copy_of(self._partition, body, now_ms)
            if body.due_ms > now_ms or not self._is_too_large(copy):
                draft.add_copy(copy)
            elif self._deliver(draft, body, now_ms) or body.origin_offset in draft.parked:
                draft.parked[body.origin_offset] = TOO_LARGE_TO_WAIT

    def _is_too_large(self, copy: Outgoing) -> bool:
        return size_of(copy.key, copy.value, copy.headers) + BATCH_BYTES > self._options.max_message_bytes

    def roll_unavailable(self, draft: Draft, now_ms: int, at_ms: int) -> list[CopyInFlight]:
        """Replace deliveries to targets that take no records by copies, and return the copies.

        A timer whose copy would be too large for the timer topic goes to the rejected topic. at_ms: when the
        transaction was frozen, which is later than `now_ms` if the clock was set back.
        """
        copies: list[RolledCopy] = []
        for body in draft.bodies if self._breakers else ():
            if body.origin_offset in draft.parked or not self._breakers.is_open(body.target, now_ms):
                continue
            copy = copy_of(self._partition, body, at_ms)
            if self._is_too_large(copy):
                draft.parked[body.origin_offset] = TOO_LARGE_TO_WAIT
            else:
                copies.append(copy)
        draft.replace_by_copies(copies)
        return [copy.flight for copy in copies]

    def next_ms(self, now_ms: int, until_ms: int) -> int:
        """Return when the next stored timer may leave, at the latest `until_ms`."""
        visit_ms = self._store.release_queue.next_visit_ms(until_ms)
        release_ms = self._store.release_queue.next_release_ms(
            lambda target: self.limits.next_ms(target, now_ms), self._most_wait_ms
        )
        return min((at_ms for at_ms in (visit_ms, release_ms) if at_ms is not None), default=until_ms)
