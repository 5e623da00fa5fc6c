"""Which timers leave a store in one turn when targets are limited.

rows in order    -> split_by_limit      -> leave, or their target gets a backlog   (timer.schedule.target_backlog)
out of order     -> take_out_of_order   -> leave, or are blocked until they may    (timer.schedule.out_of_order)
target backlogs  -> take_from_backlog   -> oldest and fresh timers, as far as the gate allows
                    take_old            -> the oldest roll if they have waited too long
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from schemas.progress import Key
from timer.format.unit import NO_ROWS, Rows, joined
from timer.schedule.out_of_order import OutOfOrderTimers
from timer.schedule.target_backlog import TargetBacklog
from timer.schedule.waiting_target import KeyRange, WaitingTarget, last_key


class Gate(Protocol):
    """How many timers of each target may leave now."""

    def allowance(self, target: str) -> int | None:
        """Return how many may leave; None: any number."""
        ...

    def spend(self, target: str, timers: int) -> None:
        """Count `timers` that leave now."""
        ...

    def fresh(self, target: str) -> tuple[float, int]:
        """Return the share of the rate for fresh timers, and the ms after its due time for which a timer is fresh."""
        ...


class OpenGate:
    """A gate without limits."""

    def allowance(self, target: str) -> int | None:
        del target
        return None

    def spend(self, target: str, timers: int) -> None:
        """Do nothing."""

    def fresh(self, target: str) -> tuple[float, int]:
        del target
        return 0.0, 0


OPEN = OpenGate()


@dataclass(slots=True)
class Room:
    """Timers and bytes that one turn may still take, over all targets. The last body may exceed the bytes."""

    timers: int
    size_bytes: int
    starved_targets: list[int] = field(default_factory=list)
    """Hashes of targets that got nothing because there was no room."""

    def spend(self, run: Rows) -> None:
        """Subtract the timers and bytes of `run`."""
        if len(run) == 0:
            return
        self.size_bytes -= int(run["body_size"].sum(dtype=np.int64))
        self.timers = self.timers - len(run) if self.size_bytes > 0 else 0

    def at_most(self, wanted: int | None, hash_: int) -> int:
        """Return how many of `wanted` timers (None: any number) of a target have room."""
        if wanted != 0 and self.timers == 0:
            self.starved_targets.append(hash_)
        return self.timers if wanted is None else min(wanted, self.timers)


def rotated_to(first: int, hashes: list[int]) -> list[int]:
    """Return `hashes` rotated so that `first` is the first: no target is always the last."""
    at = hashes.index(first) if first in hashes else 0
    return hashes[at:] + hashes[:at]


@dataclass(frozen=True, slots=True)
class ReleasePolicy:
    """The rules of one turn at `now_ms`. name_of: a target by its hash; first: hash of the target served first."""

    gate: Gate
    backlogs: TargetBacklog
    out_of_order: OutOfOrderTimers
    name_of: Callable[[int], str]
    now_ms: int
    room: Room
    first: int

    def split_by_limit(self, rows: Rows, before: Key) -> tuple[Rows, dict[str, Key]]:
        """Return the rows that may leave, and for each limited target the key after which its timers wait.

        before: K before `rows` were taken.
        """
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
        self.room.spend(through)
        return through, begin

    def take_out_of_order(self, taken: Rows) -> Rows:
        """Return rows that may leave: of `taken`, and of those blocked earlier. Block the others."""
        parts = [self._unblocked(taken)] if len(taken) else []
        for hash_ in rotated_to(self.first, self.out_of_order.blocked()):
            if self.out_of_order.first_blocked_ms(hash_) > self.now_ms:
                continue
            most = self.room.at_most(self._allowed(self.name_of(hash_)), hash_)
            run = self.out_of_order.take_blocked(hash_, most, self.now_ms, self.room.size_bytes)
            self.gate.spend(self.name_of(hash_), len(run))
            self.room.spend(run)
            parts.append(run)
        return joined(parts)

    def _unblocked(self, taken: Rows) -> Rows:
        is_free = np.ones(len(taken), np.bool_)
        for hash_ in np.unique(taken["topic_hash"]).tolist():
            if self._allowed(self.name_of(hash_)) is not None:
                own = (taken["topic_hash"] == hash_) & (taken["due_ms"] <= self.now_ms)
                self.out_of_order.block(hash_, taken[own])
                is_free[own] = False
        free: Rows = taken[is_free]
        self.room.spend(free)
        return free

    def take_from_backlog(self, waiting: WaitingTarget, load_ahead: Callable[[WaitingTarget], None]) -> Rows:
        """Return the timers of one target that may leave: its oldest, and its fresh ones for their share."""
        first_ms = waiting.first_visit_ms()
        if first_ms is None or first_ms > self.now_ms:
            return NO_ROWS
        allowed = self._allowed(waiting.target)
        if allowed == 0 and self._passing(waiting.ranges[0].queue.rows(), 0) == 0:
            return NO_ROWS
        if self.room.at_most(None, waiting.hash) == 0:
            return NO_ROWS
        allowed = self.room.timers if allowed is None else allowed
        share, fresh_ms = self.gate.fresh(waiting.target) if allowed else (0.0, 0)
        parts: list[Rows] = []
        if share > 0:
            self.backlogs.split_fresh(waiting, self.now_ms, fresh_ms)
            load_ahead(waiting)
            if len(waiting.ranges) > 1:
                for_fresh = waiting.fresh_part(allowed, share)
                parts.append(self._take_passing(waiting.ranges[-1], for_fresh))
        for key_range in waiting.heads() if share > 0 else waiting.ranges[:1]:
            parts.append(self._take_passing(key_range, allowed - sum(map(self._due, parts))))
        run = joined(parts)
        self.gate.spend(waiting.target, self._due(run))
        return run

    def take_old(self, waiting: WaitingTarget, before_ms: int, units_end: int) -> Rows:
        """Return the oldest timers of one target that have waited since before `before_ms`: they roll."""
        oldest = waiting.ranges[0]
        first_ms = oldest.first_visit_ms()
        if first_ms is None or first_ms > before_ms or before_ms < 0:
            return NO_ROWS
        if self.room.at_most(None, waiting.hash) == 0:
            return NO_ROWS
        units_end = self.backlogs.start_roll_pass(self.now_ms, before_ms, units_end)
        run = oldest.queue.rows()
        stops = np.flatnonzero((run["visit_ms"] > before_ms) | (run["unit"] >= units_end))
        old = int(stops[0]) if len(stops) else len(run)
        taken = self._take(oldest, before_ms, old)
        if len(taken) < old:
            self.room.starved_targets.append(waiting.hash)
        return taken

    def take_old_out_of_order(self, before_ms: int, units_end: int) -> Rows:
        """Return blocked out-of-order timers that have waited since before `before_ms`: they roll."""
        parts: list[Rows] = []
        for hash_ in rotated_to(self.first, self.out_of_order.blocked()):
            if self.out_of_order.first_blocked_ms(hash_) > before_ms or (most := self.room.at_most(None, hash_)) == 0:
                continue
            end = self.backlogs.start_roll_pass(self.now_ms, before_ms, units_end)
            parts.append(self.out_of_order.take_old_blocked(hash_, before_ms, end, most, self.room.size_bytes))
            self.room.spend(parts[-1])
        return joined(parts)

    def _due(self, run: Rows) -> int:
        return int((run["due_ms"] <= self.now_ms).sum())

    def _passing(self, run: Rows, allowed: int) -> int:
        """Return how many rows at the start of `run` may leave if `allowed` due ones may. Rolls are not limited."""
        return int((run["due_ms"] <= self.now_ms).cumsum().searchsorted(allowed, side="right"))

    def _take_passing(self, key_range: KeyRange, allowed: int) -> Rows:
        return self._take(key_range, self.now_ms, self._passing(key_range.queue.rows(), allowed))

    def _take(self, key_range: KeyRange, until_ms: int, most: int) -> Rows:
        run = key_range.take(until_ms, min(most, self.room.timers), self.room.size_bytes)
        self.room.spend(run)
        return run

    def _allowed(self, target: str) -> int | None:
        waiting = self.backlogs.get(target)
        return 0 if waiting is not None and waiting.is_paused else self.gate.allowance(target)
