"""Queue of the timers that leave a store next, and of those that wait for their target.

    the engine -> ticks up to now are opened -> rows in order   -> due      K (`settled`) follows the rows taken
    out of order                             -> rows released   -> due
    target backlogs                          -> rows in order, and old ones that must roll

Ticks up to the cursor are open: their pending rows are in memory. Later rows are only on disk. A backlog of a target
begins when its timers may not leave (timer.schedule.target_backlog), and ends when none of them waits.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from schemas.headers import MAX_INT64
from schemas.journal import Wait
from schemas.progress import NOTHING_SETTLED, Key
from timer.format.unit import NO_ROWS, Ints, Rows, joined
from timer.schedule.backlog_summary import WaitingTimers
from timer.schedule.loaded_ticks import LoadedTicks
from timer.schedule.out_of_order import OutOfOrderTimers
from timer.schedule.pending_keys import Waits
from timer.schedule.pending_timers import PendingTimers
from timer.schedule.release_policy import OPEN, Gate, ReleasePolicy, Room, rotated_to
from timer.schedule.row_queue import RowQueue
from timer.schedule.target_backlog import TargetBacklog
from timer.schedule.waiting_target import WaitingTarget, last_key

_PAUSED_CHECKS = 8
"""A paused target is checked at least this many times before its first timer must roll."""


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


class ReleaseQueue:
    """The order of release of one store, as staged."""

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
        self._backlogs = TargetBacklog(waits, timers.tick_ms)
        self.waiting = WaitingTimers(self._backlogs, self.out_of_order, timers.dues)
        self._turns = 0
        self._first_starved: int | None = None
        """Hash of the first target without room in the last turn; 0 for out-of-order timers."""

    # -- pending rows

    def key_ranges(self) -> Waits:
        return self._backlogs.key_ranges()

    def load_tick(self, tick: int) -> Rows:
        return self._timers.read_tick(tick, self.settled, self.key_ranges())

    def push(self, run: Rows) -> None:
        """Add rows in order that were just stored."""
        self._backlogs.push(run)
        opened = run[run["visit_ms"] // self._tick_ms <= self._cursor]
        self._queue.push(self._backlogs.without(opened))

    def end(self, rows: Rows) -> None:
        """Remove pending `rows` that have ended before they left."""
        self._timers.end(rows, ~self.out_of_order.has(rows["unit"]))
        self._queue.remove(rows["unit"])
        self._backlogs.remove(rows)
        self.out_of_order.remove(rows["unit"])

    def repoint(self, units: Ints, bodies: Ints) -> None:
        """Set the body positions of the rows of `units` that are in memory."""
        self._queue.repoint(units, bodies)
        self.out_of_order.repoint(units, bodies)
        self._backlogs.repoint(units, bodies)

    # -- due

    def take_due(
        self, now_ms: int, limit: int, limit_bytes: int, gate: Gate = OPEN, most_wait_ms: int = MAX_INT64
    ) -> Due:
        """Take the rows that leave now, at most `limit` in all, and move K past them.

        Timers of paused targets, and beyond what `gate` allows, stay in a backlog. Rows that waited for `most_wait_ms`
        must roll. After a turn without room for all targets, rows in order get only half of the limit.
        """
        room, self._turns = Room(limit, limit_bytes), self._turns + 1
        in_order = (limit, limit_bytes)
        if self._first_starved is not None:
            in_order = ((limit + self._turns // 2 % 2) // 2, max(1, limit_bytes // 2))
        self._open_ticks(now_ms, in_order[0])
        before = self.settled
        rows = self._queue.take(now_ms, *in_order)
        if len(rows):
            self.settled = last_key(rows)
        is_open = gate is OPEN and not len(self._backlogs)
        if is_open and len(rows) == 0 and self.out_of_order.is_idle(now_ms):
            self._first_starved = None
            return NOTHING_DUE
        release = ReleasePolicy(
            gate, self._backlogs, self.out_of_order, self._timers.dues.name, now_ms, room, self._first_starved or 0
        )
        if not is_open or self.out_of_order.blocked():
            due = self._apply_target_limits(rows, release, before, max(-1, now_ms - most_wait_ms))
        else:
            room.spend(rows)
            self._settle(rows)
            due = Due(rows, release.take_out_of_order(self._take_due_out_of_order(release)))
        self._first_starved = room.starved_targets[0] if room.starved_targets else None
        for part in (due.released, due.old_released):
            self._timers.leave(part, is_in_order=False)
        self.has_staged |= due.total > 0
        return due

    def _open_ticks(self, now_ms: int, enough: int) -> None:
        now_tick = now_ms // self._tick_ms
        while self._cursor < now_tick and len(self._queue) < enough:
            tick = self._timers.next_tick(self._cursor, now_tick)
            if tick is None:
                self._cursor = now_tick
            else:
                self._queue.push(self._backlogs.without(self.load_tick(tick)))
                self._cursor = tick

    def _settle(self, rows: Rows) -> None:
        """Remove rows in order that leave from the engine."""
        if len(rows):
            self._timers.leave(rows, is_in_order=True)

    def _take_due_out_of_order(self, release: ReleasePolicy) -> Rows:
        """Take out-of-order rows whose wake-up time has come, as far as there is room."""
        room = release.room
        if room.at_most(None if self.out_of_order.has_due(release.now_ms) else 0, 0) == 0:
            return NO_ROWS
        return self.out_of_order.take(release.now_ms, room.timers, room.size_bytes)

    def take_overflow(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Take the oldest blocked out-of-order timers. They roll, so that their copies get a place in the order.

        Their targets wait from now on, also those that are beyond their rate only for a moment.
        """
        self.out_of_order.block_due(self._backlogs.hashes(), now_ms)
        parts: list[Rows] = []
        for hash_ in self.out_of_order.blocked():
            if limit <= 0 or limit_bytes <= 0:
                break
            target = self._timers.dues.name(hash_)
            if self._backlogs.get(target) is None:
                self._start_backlog({target: self.settled})
            run = self.out_of_order.take_blocked(hash_, limit, now_ms, limit_bytes)
            limit, limit_bytes = limit - len(run), max(0, limit_bytes - int(run["body_size"].sum()))
            parts.append(run)
        rows = joined(parts)
        self._timers.leave(rows, is_in_order=False)
        self.has_staged |= len(rows) > 0
        return rows

    def next_visit_ms(self, until_ms: int) -> int | None:
        """Return the next wake-up time in memory, or the start of the next tick to open, up to `until_ms`."""
        waiting = [at for at in (self._queue.next_visit_ms(), self.out_of_order.next_visit_ms()) if at is not None]
        tick = self._timers.next_tick(self._cursor, until_ms // self._tick_ms)
        if tick is not None:
            waiting.append(tick * self._tick_ms)
        return min(waiting, default=None)

    def advance_settled(self, before_ms: int, step_ms: int) -> None:
        """Move K to `before_ms`, or to the first pending timer before it, in steps of at least `step_ms`.

        Then files can be deleted even if all timers end before they are delivered.
        """
        is_small = before_ms < self.settled.visit_ms + step_ms
        if is_small or len(self._backlogs) or before_ms // self._tick_ms > self._cursor:
            return
        first_ms = self._queue.next_visit_ms()
        settled = Key(before_ms if first_ms is None else min(before_ms, first_ms), -1)
        if settled > self.settled:
            self.settled = settled
            self.has_staged = True

    # -- targets that wait

    @property
    def held(self) -> int:
        """Number of pending out-of-order timers; the journal names each of them."""
        return len(self.out_of_order)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """All target backlogs, as staged."""
        return self._backlogs.waits()

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool:
        """True if the timer of `target` with the key (visit_ms, origin offset) `place` has not left."""
        waiting = self._backlogs.get(target) if len(self._backlogs) else None
        if waiting is None:
            return place > self.settled
        return any(after < place <= until for after, until in waiting.key_ranges())

    def pause(self, target: str, *, is_paused: bool) -> None:
        """Pause `target`, or let its timers leave again."""
        waiting = self._backlogs.get(target)
        if waiting is not None:
            self._backlogs.wake(waiting)
            waiting.is_paused = is_paused
        elif is_paused:
            self._start_backlog({target: self.settled}, is_paused=True)
        self.has_staged = True

    def paused(self) -> set[str]:
        return {waiting.target for waiting in self._backlogs if waiting.is_paused}

    def must_wait(self, target: str) -> bool:
        """True if new timers of `target` have to wait."""
        return self._backlogs.get(target) is not None

    def oldest_open_ms(self) -> int:
        """Return the start of the tick of K, or of the oldest backlog: units of earlier ticks are not read again."""
        oldest_ms = self._backlogs.oldest_ms()
        visit_ms = self.settled.visit_ms if oldest_ms is None else min(oldest_ms, self.settled.visit_ms)
        return visit_ms // self._tick_ms * self._tick_ms

    def next_release_ms(self, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int | None:
        """Return when the first waiting timer may leave or must roll.

        may_leave_ms: returns when the rate of a target allows the next one.
        """
        return 0 if self._first_starved is not None else self.waiting.next_release_ms(may_leave_ms, most_wait_ms)

    def _apply_target_limits(self, rows: Rows, release: ReleasePolicy, before: Key, old_before_ms: int) -> Due:
        """Apply target limits to due rows; add backlog rows that may leave or must roll.

        Out-of-order timers and backlogs take turns in being served first.
        """
        rows, begin = release.split_by_limit(rows, before)
        self._start_backlog(begin)
        self._settle(rows)
        if self._turns % 2:
            released, old_released = self._take_out_of_order(release, old_before_ms)
            leaving, old = self._take_from_backlogs(release, old_before_ms)
        else:
            leaving, old = self._take_from_backlogs(release, old_before_ms)
            released, old_released = self._take_out_of_order(release, old_before_ms)
        return Due(joined([rows, leaving]), released, old, old_released)

    def _take_out_of_order(self, release: ReleasePolicy, old_before_ms: int) -> tuple[Rows, Rows]:
        released = release.take_out_of_order(self._take_due_out_of_order(release))
        return released, release.take_old_out_of_order(old_before_ms, self._timers.end_unit)

    def _take_from_backlogs(self, release: ReleasePolicy, old_before_ms: int) -> tuple[Rows, Rows]:
        """Return rows of backlogs that leave, and rows that must roll."""
        leaving: list[Rows] = []
        old: list[Rows] = []
        until_tick = max(max(release.now_ms, self.settled.visit_ms) // self._tick_ms, self._cursor)
        ticks = LoadedTicks(self.load_tick)

        def load_ahead(waiting: WaitingTarget) -> None:
            if not self._backlogs.load_ahead(waiting, until_tick, self._timers.next_tick, ticks):
                release.room.starved_targets.append(waiting.hash)

        self._backlogs.wake_up(release.now_ms)
        for hash_ in rotated_to(release.first, self._backlogs.awake()):
            waiting = self._backlogs.by_hash(hash_)
            load_ahead(waiting)
            leaving.append(release.take_from_backlog(waiting, load_ahead))
            self._settle(leaving[-1])
            old.append(release.take_old(waiting, old_before_ms, self._timers.end_unit))
            self._settle(old[-1])
            load_ahead(waiting)
            waiting.drop_until(old_before_ms, release.now_ms)
            self._end_backlog(waiting, release.now_ms, until_tick)
            self._put_to_sleep(waiting, release, until_tick, old_before_ms)
        return joined(leaving), joined(old)

    def _put_to_sleep(
        self, waiting: WaitingTarget, release: ReleasePolicy, until_tick: int, old_before_ms: int
    ) -> None:
        """Skip a paused target until its next timer wakes up, or until its first waiting one must roll."""
        room, now_ms = release.room, release.now_ms
        if not waiting.is_paused or room.timers == 0 or waiting.hash in room.starved_targets:
            return
        first_ms, most_wait_ms = waiting.first_visit_ms(), now_ms - old_before_ms
        if first_ms is None:
            self._backlogs.sleep(waiting, (until_tick + 1) * self._tick_ms, is_empty=True)
        elif first_ms <= now_ms:
            until_ms = min(first_ms + most_wait_ms, now_ms + most_wait_ms // _PAUSED_CHECKS)
            if until_ms > now_ms:
                self._backlogs.sleep(waiting, until_ms, is_empty=False)

    def _start_backlog(self, begin: Mapping[str, Key], *, is_paused: bool = False) -> None:
        hashes = [self._backlogs.begin(target, after, is_paused=is_paused).hash for target, after in begin.items()]
        if hashes:
            self._queue.remove_targets(np.array(hashes, np.int64))
            self.has_staged = True

    def _end_backlog(self, waiting: WaitingTarget, now_ms: int, until_tick: int) -> None:
        """Return a target without waiting timers to the common order."""
        if waiting.is_paused or len(waiting.ranges) > 1 or not self._backlogs.is_loaded_to(waiting, until_tick):
            return
        if waiting.hash in self.out_of_order.blocked():
            return
        (last,) = waiting.ranges
        first_ms, main_ms = last.first_visit_ms(), self._queue.next_visit_ms()
        is_waiting = first_ms is not None and first_ms <= max(now_ms, self.settled.visit_ms)
        is_ahead = last.after > self.settled and (
            self._cursor < last.after.visit_ms // self._tick_ms
            or (main_ms is not None and main_ms <= last.after.visit_ms)
        )
        if is_waiting or is_ahead:
            return
        self.settled = max(self.settled, last.after)
        self._backlogs.end(waiting)
        run = last.queue.rows()
        self._queue.push(run[run["visit_ms"] // self._tick_ms <= self._cursor])
        self.has_staged = True
