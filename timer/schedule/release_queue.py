"""Queue of the timers that leave a store next, and of those that wait for their target.

    the engine -> ticks up to now are opened -> rows in order   -> due      K (`settled`) follows the rows taken
    out of order                             -> rows released   -> due
    blocked targets                          -> rows in order, and old ones that must roll

Ticks up to the cursor are open: their pending rows are in memory. Later rows are only on disk. A target is blocked when
its timers may not leave (timer.schedule.blocked_targets), until none of them waits.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_timer.headers import MAX_INT64
from schemas.journal import END, Wait
from schemas.progress import NOTHING_SETTLED, Key
from timer.format.unit import NO_ROWS, Ints, Rows, isin, joined
from timer.index.due_counts import HOUR_MS
from timer.schedule.blocked_targets import BacklogReader, BlockedTarget, BlockedTargets
from timer.schedule.pending_timers import PendingTimers
from timer.schedule.queues import OutOfOrderTimers, RowQueue, earliest, last_key
from timer.schedule.release_policy import Gate, Room, count_due, leaving, passing, rotated_to

_PAUSED_CHECKS = 8
"""A paused target is checked at least this many times before its first timer must roll."""
_OUT_OF_ORDER = 1 << 32
"""Place of the out-of-order timers in the round robin of targets; no target has this hash."""


class Backlog(NamedTuple):
    """timers: due by the end of the hour. since_ms: first wake-up time, None if it has not come."""

    target: str
    is_paused: bool
    timers: int
    since_ms: int | None


class Due(NamedTuple):
    """Rows that leave now: in the order of release, and out of order; then rows that waited too long and must roll."""

    rows: Rows
    released: Rows
    old_rows: Rows = NO_ROWS
    old_released: Rows = NO_ROWS

    @property
    def total(self) -> int:
        return sum(map(len, self))


NOTHING_DUE = Due(NO_ROWS, NO_ROWS)


class _Turn(NamedTuple):
    now_ms: int
    old_ms: int
    """Timers with wake-up times up to this have waited too long; -1: none."""
    room: Room
    gate: Gate | None
    reader: BacklogReader


class ReleaseQueue:
    def __init__(self, timers: PendingTimers, settled: Key, waits: Collection[Wait]) -> None:
        self._timers = timers
        self._tick_ms = timers.tick_ms
        self.settled = settled
        """K as staged."""
        self.has_staged = False
        """True if something changed since the last commit."""
        self._cursor = settled.visit_ms // timers.tick_ms - 1 if settled != NOTHING_SETTLED else -1
        self._queue = RowQueue()
        self.out_of_order = OutOfOrderTimers()
        self.blocked = BlockedTargets(waits)
        self._empty_ticks = (0, -1)
        """No tick in (first, second] has a pending timer in order."""
        self._turns = 0
        self._first_starved: int | None = None
        """Hash of the first target without room in the last turn, or _OUT_OF_ORDER."""

    # -- pending rows

    def load_tick(self, tick: int) -> Rows:
        return self._timers.read_tick(tick, self.settled, self.blocked.key_ranges())

    def next_tick(self, after: int, until: int) -> int | None:
        """Return the first tick in (after, until] with a pending timer in order."""
        empty_after, empty_until = self._empty_ticks
        is_known = empty_after <= after <= empty_until
        if is_known and until <= empty_until:
            return None
        found = self._timers.next_tick(empty_until if is_known else after, until)
        self._empty_ticks = (empty_after if is_known else after, until if found is None else found - 1)
        return found

    def rows_of_hour(self, hour: int) -> Iterator[Rows]:
        """Yield out-of-order rows, then the pending rows of each tick of `hour` (since the epoch)."""
        yield self.held_rows()
        tick: int | None = hour * HOUR_MS // self._tick_ms - 1
        last = ((hour + 1) * HOUR_MS - 1) // self._tick_ms
        while tick is not None and (tick := self.next_tick(tick, last)) is not None:
            yield self.load_tick(tick)

    def push(self, run: Rows) -> None:
        self._empty_ticks = (0, -1)
        self.blocked.push(run)
        opened = run[run["visit_ms"] // self._tick_ms <= self._cursor]
        self._queue.push(self.blocked.without(opened))

    def end(self, rows: Rows) -> None:
        """Remove pending `rows` that have ended before they left."""
        self._timers.remove(rows, rows[~self.out_of_order.has(rows["unit"])], has_ended=True)
        self._queue.remove(rows["unit"])
        self.blocked.remove(rows)
        self.out_of_order.remove(rows["unit"])

    def repoint(self, units: Ints, bodies: Ints) -> None:
        """Set the body positions of the rows of `units` that are in memory."""
        waiting = (queue for each in self.blocked.values() for queue in (each.rows, each.held))
        for queue in (self._queue, self.out_of_order.queue, *waiting):
            queue.repoint(units, bodies)

    # -- due

    def take_due(
        self, now_ms: int, limit: int, limit_bytes: int, gate: Gate | None = None, most_wait_ms: int = MAX_INT64
    ) -> Due:
        """Take the rows that leave now, at most `limit` in all, and move K past them.

        Timers of paused targets, and beyond what `gate` allows, wait. Rows that waited for `most_wait_ms` must roll.
        After a turn without room for all targets, rows in order get only half of the limit.
        """
        self._turns += 1
        in_order = limit, limit_bytes
        if self._first_starved is not None:
            in_order = (limit + self._turns % 2) // 2, max(1, limit_bytes // 2)
        self._open_ticks(now_ms, in_order[0])
        rows = self._queue.take(now_ms, *in_order)
        if len(rows):
            self.has_staged = True
            rows = self._pass(rows, now_ms, gate)
        if not self.blocked and not len(self.out_of_order):
            self._first_starved = None
            return Due(rows, NO_ROWS) if len(rows) else NOTHING_DUE
        room = Room(limit, limit_bytes)
        room.spend(rows)
        until_tick = max(max(now_ms, self.settled.visit_ms) // self._tick_ms, self._cursor)
        reader = BacklogReader(self.load_tick, self.next_tick, self._tick_ms, until_tick)
        turn = _Turn(now_ms, max(-1, now_ms - most_wait_ms), room, gate, reader)
        parts = [Due(rows, NO_ROWS)]
        waiting = rotated_to(self._first_starved, [_OUT_OF_ORDER, *self.blocked.awake(now_ms)])
        while waiting:  # in rounds, as each takes one or two ticks of a target
            taken = {hash_: self._take_waiting(hash_, turn) for hash_ in waiting}
            parts += taken.values()
            waiting = [hash_ for hash_ in waiting if room.timers and taken[hash_].total and hash_ in self.blocked]
        due = Due(*map(joined, zip(*parts, strict=True)))
        self._first_starved = next(iter([*room.starved, *room.cut_short]), None)
        self.has_staged |= due.total > 0
        return due

    def _pass(self, rows: Rows, now_ms: int, gate: Gate | None) -> Rows:
        """Move K past `rows` in order; return those that leave. The targets of the others are blocked."""
        before, self.settled = self.settled, last_key(rows)
        if gate is not None and not (leaves := self._leaving(rows, now_ms, gate)).all():
            for hash_ in np.unique(rows["topic_hash"][~leaves]).tolist():
                gone = rows[leaves & (rows["topic_hash"] == hash_)]
                self._block(self._timers.dues.name(hash_), last_key(gone) if len(gone) else before)
            rows = rows[leaves]
        self._timers.remove(rows, rows)
        return rows

    def _leaving(self, rows: Rows, now_ms: int, gate: Gate | None) -> NDArray[np.bool_]:
        """Return which of `rows` leave by the allowances of their targets, and spend these.

        None leave for a target that is blocked: its timers go in turn.
        """
        allowances: dict[int, int] = {}
        if gate is not None or self.blocked:
            for hash_ in np.unique(rows["topic_hash"]).tolist():
                target = self._timers.dues.name(hash_)
                allowed = 0 if hash_ in self.blocked else None if gate is None else gate.allowance(target, now_ms)
                if allowed is not None:
                    allowances[hash_] = allowed
        leaves = leaving(rows, allowances, now_ms)
        if gate is not None:
            for hash_ in allowances:
                left = rows[leaves & (rows["topic_hash"] == hash_)]
                gate.spend(self._timers.dues.name(hash_), count_due(left, now_ms), now_ms)
        return leaves

    def _take_out_of_order(self, turn: _Turn) -> Due:
        """Take out-of-order rows whose wake-up time has come. Block those that their target may not have."""
        queue = self.out_of_order.queue
        first_ms = queue.first_ms
        if first_ms is None or first_ms > turn.now_ms or turn.room.is_full_for(_OUT_OF_ORDER):
            return NOTHING_DUE
        run = queue.take(turn.now_ms, turn.room.timers, turn.room.size_bytes)
        leaves = self._leaving(run, turn.now_ms, turn.gate) | (run["due_ms"] > turn.now_ms)
        self._hold(run[~leaves])
        turn.room.spend(run[leaves])
        return Due(NO_ROWS, self._release(run[leaves]))

    def _hold(self, run: Rows) -> None:
        """Let out-of-order rows that were taken from their queue wait for their targets."""
        for hash_ in np.unique(run["topic_hash"]).tolist():
            blocked = self._block(self._timers.dues.name(hash_), self.settled)
            blocked.held.push(run[run["topic_hash"] == hash_])
            blocked.wake()

    def _open_ticks(self, now_ms: int, enough: int) -> None:
        now_tick = now_ms // self._tick_ms
        while self._cursor < now_tick and len(self._queue) < enough:
            tick = self.next_tick(self._cursor, now_tick)
            if tick is None:
                self._cursor = now_tick
            else:
                self._queue.push(self.blocked.without(self.load_tick(tick)))
                self._cursor = tick

    def _release(self, rows: Rows) -> Rows:
        if len(rows):
            self.out_of_order.forget(rows)
            self._timers.remove(rows, NO_ROWS)
        return rows

    def take_overflow(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Take the oldest blocked out-of-order timers. They roll, so that their copies get a place in the order."""
        queue, room = self.out_of_order.queue, Room(limit, limit_bytes)
        run = queue.rows()
        run = run[(run["visit_ms"] <= now_ms) & isin(run["topic_hash"], list(self.blocked))]
        queue.remove(run["unit"])
        self._hold(run)
        taken = [room.take(each.held, now_ms, limit) for each in self.blocked.values()]
        rows = self._release(joined(taken))
        self.has_staged |= len(rows) > 0
        return rows

    def next_visit_ms(self, until_ms: int) -> int | None:
        """Return the next wake-up time in memory, or the start of the next tick to open, up to `until_ms`."""
        tick = self.next_tick(self._cursor, until_ms // self._tick_ms)
        tick_start_ms = None if tick is None else tick * self._tick_ms
        return earliest(self._queue.first_ms, self.out_of_order.queue.first_ms, tick_start_ms)

    def advance_settled(self, before_ms: int, step_ms: int) -> None:
        """Move K to `before_ms`, or to the first pending timer before it, in steps of at least `step_ms`.

        Then files can be deleted even if all timers end before they are delivered.
        """
        is_small = before_ms < self.settled.visit_ms + step_ms
        if is_small or self.blocked or before_ms // self._tick_ms > self._cursor:
            return
        first_ms = self._queue.first_ms
        settled = Key(before_ms if first_ms is None else min(before_ms, first_ms), -1)
        if settled > self.settled:
            self.settled = settled
            self.has_staged = True

    # -- blocked targets

    def held_rows(self) -> Rows:
        """Return the rows of the out-of-order timers, in no order."""
        return joined([self.out_of_order.queue.rows(), *(each.held.rows() for each in self.blocked.values())])

    @property
    def waits(self) -> tuple[Wait, ...]:
        return tuple(each.wait() for each in self.blocked.values())

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool:
        """True if the timer of `target` with the key (visit_ms, origin offset) `place` has not left."""
        blocked = self.blocked.named(target)
        if blocked is None:
            return place > self.settled
        return any(after < place <= until for after, until in blocked.wait().stretches)

    def pause(self, target: str, *, is_paused: bool) -> None:
        blocked = self._block(target, self.settled) if is_paused else self.blocked.named(target)
        if blocked is not None:
            blocked.pause(is_paused=is_paused)
        self.has_staged = True

    def paused(self) -> set[str]:
        return {blocked.target for blocked in self.blocked.values() if blocked.is_paused}

    def oldest_open_ms(self) -> int:
        """Return the start of the tick of K, or of the oldest backlog: units of earlier ticks are not read again."""
        oldest = min([self.settled, *(each.after for each in self.blocked.values())])
        return oldest.visit_ms // self._tick_ms * self._tick_ms

    def backlogs(self, now_ms: int) -> list[Backlog]:
        found = []
        for each in self.blocked.values():
            first_ms, timers = each.first_ms(), self._timers.dues.due_by(each.hash, now_ms // HOUR_MS)
            since_ms = first_ms if first_ms is not None and first_ms <= now_ms else None
            found.append(Backlog(each.target, each.is_paused, timers, since_ms))
        return found

    def next_release_ms(self, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int | None:
        """Return when the first waiting timer may leave or must roll, None if there is none.

        may_leave_ms: returns when the rate of a target allows the next one.
        """
        if self._first_starved is not None:
            return 0
        times = []
        pass_ms = self.blocked.next_roll_pass_ms
        for each in self.blocked.values():
            if each.look_ms:
                times += [] if each.is_empty else [max(each.look_ms, pass_ms)]
            elif (first_ms := each.first_ms()) is not None:
                old_ms = max(first_ms + most_wait_ms, pass_ms)
                times.append(old_ms if each.is_paused else min(old_ms, max(first_ms, may_leave_ms(each.target))))
        return min(times, default=None)

    def _take_waiting(self, hash_: int, turn: _Turn) -> Due:
        """Take the timers that may leave and the timers that must roll.

        hash_: topic hash of a blocked target, or _OUT_OF_ORDER.
        """
        if hash_ == _OUT_OF_ORDER:
            return self._take_out_of_order(turn)
        blocked = self.blocked[hash_]
        is_read = turn.reader.load_ahead(blocked)
        rows, released = self._take_allowed(blocked, turn)
        old, old_released = (self._take_old(queue, hash_, turn) for queue in (blocked.rows, blocked.held))
        for run in (rows, old):
            if len(run):
                blocked.left_until(last_key(run))
                self._timers.remove(run, run)
        due = Due(rows, self._release(released), old, self._release(old_released))
        if not (turn.reader.load_ahead(blocked) and is_read):
            turn.room.starved.append(hash_)
        blocked.skip_empty(turn.old_ms, turn.now_ms)
        if not self._unblock(blocked, turn):
            self._put_to_sleep(blocked, turn)
        return due

    def _take_allowed(self, blocked: BlockedTarget, turn: _Turn) -> tuple[Rows, Rows]:
        """Take the timers of a target that may leave, in order of their wake-up times: in order, and out of order."""
        now_ms, room, gate, rows, held = turn.now_ms, turn.room, turn.gate, blocked.rows, blocked.held
        first_ms = blocked.first_ms()
        if first_ms is None or first_ms > now_ms:
            return NO_ROWS, NO_ROWS
        allowed = 0 if blocked.is_paused else None if gate is None else gate.allowance(blocked.target, now_ms)
        has_none = allowed == 0 and passing(rows.rows(), 0, now_ms) == 0
        if has_none or room.is_full_for(blocked.hash):
            return NO_ROWS, NO_ROWS
        allowed = room.timers if allowed is None else allowed
        before_rows = room.take(held, min(now_ms, rows.first_ms or now_ms), allowed)
        allowed -= len(before_rows)
        run = room.take(rows, now_ms, passing(rows.rows(), allowed, now_ms))
        due = count_due(run, now_ms)
        released = joined([before_rows, room.take(held, now_ms, allowed - due)])
        if gate is not None:
            gate.spend(blocked.target, due + len(released), now_ms)
        return run, released

    def _take_old(self, queue: RowQueue, hash_: int, turn: _Turn) -> Rows:
        """Take the first timers that have waited too long: they roll."""
        first_ms = queue.first_ms
        if first_ms is None or first_ms > turn.old_ms or turn.room.is_full_for(hash_):
            return NO_ROWS
        end_unit = self.blocked.start_roll_pass(turn.now_ms, turn.old_ms, self._timers.end_unit)
        run = queue.rows()
        stops = np.flatnonzero((run["visit_ms"] > turn.old_ms) | (run["unit"] >= end_unit))
        old = int(stops[0]) if len(stops) else len(run)
        taken = turn.room.take(queue, turn.old_ms, old)
        if len(taken) < old:
            turn.room.cut_short.append(hash_)
        return taken

    def _block(self, target: str, after: Key) -> BlockedTarget:
        """Let the timers of `target` with a key above `after` wait, if they do not yet."""
        blocked = self.blocked.named(target)
        if blocked is None:
            blocked = BlockedTarget(target, is_paused=False, stretches=[(after, END)])
            self.blocked[blocked.hash] = blocked
            self._queue.remove([blocked.hash], "topic_hash")
            self.has_staged = True
        return blocked

    def _unblock(self, blocked: BlockedTarget, turn: _Turn) -> bool:
        """Return a target without waiting timers to the common order. False if it has some, or is paused."""
        if blocked.is_paused or len(blocked.stretches) > 1 or not turn.reader.has_read_all(blocked):
            return False
        after, first_ms, main_ms = blocked.after, blocked.first_ms(), self._queue.first_ms
        is_waiting = first_ms is not None and first_ms <= max(turn.now_ms, self.settled.visit_ms)
        is_ahead = after > self.settled and (
            self._cursor < after.visit_ms // self._tick_ms or (main_ms is not None and main_ms <= after.visit_ms)
        )
        if is_waiting or is_ahead or len(blocked.held):
            return False
        self.settled = max(self.settled, after)
        del self.blocked[blocked.hash]
        run = blocked.rows.rows()
        self._queue.push(run[run["visit_ms"] // self._tick_ms <= self._cursor])
        self.has_staged = True
        return True

    def _put_to_sleep(self, blocked: BlockedTarget, turn: _Turn) -> None:
        """Skip a paused target until its next timer wakes up, or until its first waiting one must roll."""
        now_ms, most_wait_ms = turn.now_ms, turn.now_ms - turn.old_ms
        if not blocked.is_paused or turn.room.timers == 0 or blocked.hash in turn.room.starved:
            return
        first_ms = blocked.first_ms()
        if first_ms is None:
            blocked.sleep(turn.reader.end_ms, is_empty=True)
        elif first_ms <= now_ms:
            until_ms = min(first_ms + most_wait_ms, now_ms + most_wait_ms // _PAUSED_CHECKS)
            if until_ms > now_ms:
                blocked.sleep(until_ms, is_empty=False)
