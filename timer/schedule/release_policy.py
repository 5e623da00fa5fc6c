"""What leaves of a store at one moment, where targets wait: who is let out, who begins to wait, who waited too long.

order of release -> let_through -> leave, or their target waits from there on      (timer.schedule.target_backlog)
held             -> through     -> leave, or are blocked until they may            (timer.schedule.out_of_order)
waiting          -> backlog and fresh, as far as the gate lets them out; the oldest, where it is too old, to be rolled
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from schemas.progress import Key
from timer.format.unit import NO_ROWS, Rows, joined
from timer.schedule.out_of_order import HeldTimers
from timer.schedule.target_backlog import Gate, Stretch, TargetBacklog, WaitingTarget, last_key


@dataclass(slots=True)
class Room:
    """What one turn may still take out, all targets together; the last body may go beyond the bytes."""

    timers: int
    size_bytes: int
    short: list[int] = field(default_factory=list)
    """Hashes of targets that got nothing, as there was no room left."""

    def fill(self, run: Rows) -> None:
        if len(run) == 0:
            return
        self.size_bytes -= int(run["body_size"].sum(dtype=np.int64))
        self.timers = self.timers - len(run) if self.size_bytes > 0 else 0

    def at_most(self, wanted: int | None, hash_: int) -> int:
        """Of `wanted` timers (None: any number) of a target that has some."""
        if wanted != 0 and self.timers == 0:
            self.short.append(hash_)
        return self.timers if wanted is None else min(wanted, self.timers)


def beginning_with(first: int, hashes: list[int]) -> list[int]:
    """All of `hashes`, so that nobody is always the last."""
    at = hashes.index(first) if first in hashes else 0
    return hashes[at:] + hashes[:at]


@dataclass(frozen=True, slots=True)
class Release:
    """At `now_ms`, as far as there is `room`. `name_of`: a target by its hash; `first`: who is served first."""

    gate: Gate
    waiting: TargetBacklog
    held: HeldTimers
    name_of: Callable[[int], str]
    now_ms: int
    room: Room
    first: int

    def let_through(self, rows: Rows, before: Key) -> tuple[Rows, dict[str, Key]]:
        """Those of `rows` that may leave, and the targets of the others: they wait from that key on, K was `before`."""
        begin: dict[str, Key] = {}
        if len(rows) == 0:
            return rows, begin
        stays = np.zeros(len(rows), np.bool_)
        for hash_ in np.unique(rows["topic_hash"]).tolist():
            target = self.name_of(hash_)
            allowed = self.gate.allowance(target)
            if allowed is not None:
                own = (rows["topic_hash"] == hash_).nonzero()[0]
                passing = self._passing(rows[own], allowed)
                self.gate.spend(target, self._due(rows[own[:passing]]))
                if passing < len(own):
                    stays[own[passing:]] = True
                    begin[target] = last_key(rows[own[:passing]]) if passing else before
        through: Rows = rows[~stays]
        self.room.fill(through)
        return through, begin

    def of_held(self, taken: Rows) -> Rows:
        """Those of `taken`, and of the ones that were blocked before, that may leave; the others are blocked."""
        parts = [self._unblocked(taken)] if len(taken) else []
        for hash_ in beginning_with(self.first, self.held.blocked()):
            if self.held.first_blocked_ms(hash_) > self.now_ms:
                continue
            most = self.room.at_most(self._allowed(self.name_of(hash_)), hash_)
            run = self.held.take_blocked(hash_, most, self.now_ms, self.room.size_bytes)
            self.gate.spend(self.name_of(hash_), len(run))
            self.room.fill(run)
            parts.append(run)
        return joined(parts)

    def _unblocked(self, taken: Rows) -> Rows:
        is_free = np.ones(len(taken), np.bool_)
        for hash_ in np.unique(taken["topic_hash"]).tolist():
            if self._allowed(self.name_of(hash_)) is not None:
                own = (taken["topic_hash"] == hash_) & (taken["due_ms"] <= self.now_ms)
                self.held.block(hash_, taken[own])
                is_free[own] = False
        free: Rows = taken[is_free]
        self.room.fill(free)
        return free

    def of_waiting(self, waiting: WaitingTarget, read_ahead: Callable[[WaitingTarget], None]) -> Rows:
        """Those of one target that may leave: its oldest, and, for their share, its fresh ones."""
        first_ms = waiting.first_visit_ms()
        if first_ms is None or first_ms > self.now_ms:
            return NO_ROWS
        allowed = self._allowed(waiting.target)
        if allowed == 0 and self._passing(waiting.stretches[0].queue.rows(), 0) == 0:
            return NO_ROWS
        if self.room.at_most(None, waiting.hash) == 0:
            return NO_ROWS
        allowed = self.room.timers if allowed is None else allowed
        share, fresh_ms = self.gate.fresh(waiting.target) if allowed else (0.0, 0)
        parts: list[Rows] = []
        if share > 0:
            self.waiting.part_fresh(waiting, self.now_ms, fresh_ms)
            read_ahead(waiting)
            if len(waiting.stretches) > 1:
                for_fresh = waiting.fresh_part(allowed, share)
                parts.append(self._take_passing(waiting.stretches[-1], for_fresh))
        for stretch in waiting.heads() if share > 0 else waiting.stretches[:1]:
            parts.append(self._take_passing(stretch, allowed - sum(map(self._due, parts))))
        run = joined(parts)
        self.gate.spend(waiting.target, self._due(run))
        return run

    def too_old(self, waiting: WaitingTarget, before_ms: int, units_end: int) -> Rows:
        """The oldest of one target, as far as they were to leave before `before_ms`: they go round once more."""
        oldest = waiting.stretches[0]
        first_ms = oldest.first_visit_ms()
        if first_ms is None or first_ms > before_ms or before_ms < 0:
            return NO_ROWS
        if self.room.at_most(None, waiting.hash) == 0:
            return NO_ROWS
        units_end = self.waiting.begin_pass(self.now_ms, before_ms, units_end)
        run = oldest.queue.rows()
        stops = np.flatnonzero((run["visit_ms"] > before_ms) | (run["unit"] >= units_end))
        old = int(stops[0]) if len(stops) else len(run)
        taken = self._take(oldest, before_ms, old)
        if len(taken) < old:
            self.room.short.append(waiting.hash)
        return taken

    def too_old_held(self, before_ms: int, units_end: int) -> Rows:
        """The same of those that are held and blocked."""
        parts: list[Rows] = []
        for hash_ in beginning_with(self.first, self.held.blocked()):
            if self.held.first_blocked_ms(hash_) > before_ms or (most := self.room.at_most(None, hash_)) == 0:
                continue
            end = self.waiting.begin_pass(self.now_ms, before_ms, units_end)
            parts.append(self.held.take_old_blocked(hash_, before_ms, end, most, self.room.size_bytes))
            self.room.fill(parts[-1])
        return joined(parts)

    def _due(self, run: Rows) -> int:
        return int((run["due_ms"] <= self.now_ms).sum())

    def _passing(self, run: Rows, allowed: int) -> int:
        """How many of the first of `run` may leave where `allowed` due ones may: those to be rolled are not limited."""
        return int((run["due_ms"] <= self.now_ms).cumsum().searchsorted(allowed, side="right"))

    def _take_passing(self, stretch: Stretch, allowed: int) -> Rows:
        return self._take(stretch, self.now_ms, self._passing(stretch.queue.rows(), allowed))

    def _take(self, stretch: Stretch, until_ms: int, most: int) -> Rows:
        run = stretch.take(until_ms, min(most, self.room.timers), self.room.size_bytes)
        self.room.fill(run)
        return run

    def _allowed(self, target: str) -> int | None:
        waiting = self.waiting.get(target)
        return 0 if waiting is not None and waiting.is_paused else self.gate.allowance(target)
