"""Pending timers whose key has passed, so that K says nothing about them. The journal names each.

push       waits for its wake-up time: the clock went back before K
block      waits for its target, which takes no more now (timer.schedule.release_policy)
cool_down  waits until `until_ms` or its due time: it was just rolled. With a clock ahead of the brokers' it would
           roll again soon. A clock that steps back ends the cooldown.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import NO_ROWS, Ints, Rows, isin, joined
from timer.schedule.row_queue import RowQueue

_GROUPS_PER_COOLDOWN = 8
"""Timers whose cooldowns begin within an eighth of a cooldown form one group."""


@dataclass(slots=True)
class _CoolingDown:
    since_ms: int
    until_ms: int
    runs: list[Rows] = field(default_factory=list)

    def rows(self) -> Rows:
        return joined(self.runs)

    def first_due_ms(self) -> int:
        return min(int(run["due_ms"].min()) for run in self.runs)

    def has_ended(self, now_ms: int) -> bool:
        """True if the cooldown of some rows is over, or the clock is before its beginning."""
        return not self.since_ms <= now_ms < self.until_ms or self.first_due_ms() <= now_ms

    def take(self, now_ms: int) -> list[Rows]:
        """Remove and return the rows whose cooldown is over."""
        if not self.since_ms <= now_ms < self.until_ms:
            taken, self.runs = self.runs, []
            return taken
        if self.first_due_ms() > now_ms:
            return []
        rows = self.rows()
        self.runs = [rows[rows["due_ms"] > now_ms]]
        return [rows[rows["due_ms"] <= now_ms]]


class OutOfOrderTimers:
    """Rows of TIMER_ROW; the bodies are on disk."""

    def __init__(self) -> None:
        self._queue = RowQueue()
        self._cooling_down: list[_CoolingDown] = []
        self._blocked: dict[int, RowQueue] = {}
        """By hash of the target."""
        self._units: set[int] = set()

    def __len__(self) -> int:
        return len(self._units)

    def has(self, units: Ints) -> NDArray[np.bool_]:
        """Return which of `units` are here."""
        if not self._units:
            return np.zeros(len(units), np.bool_)
        return np.fromiter((unit in self._units for unit in units.tolist()), np.bool_, len(units))

    def rows(self) -> Rows:
        """Return all rows, in no order."""
        blocked = (queue.rows() for queue in self._blocked.values())
        return joined([self._queue.rows(), *(each.rows() for each in self._cooling_down), *blocked])

    def push(self, run: Rows) -> None:
        self._units.update(run["unit"].tolist())
        self._queue.push(run)

    def cool_down(self, run: Rows, since_ms: int, until_ms: int) -> None:
        """Add `run`, which `take` does not return from `since_ms` to about `until_ms` unless it is due."""
        if len(run) == 0:
            return
        last = self._cooling_down[-1] if self._cooling_down else None
        if (
            last is None
            or since_ms < last.since_ms
            or _GROUPS_PER_COOLDOWN * (since_ms - last.since_ms) > until_ms - since_ms
        ):
            last = _CoolingDown(since_ms, until_ms)
            self._cooling_down.append(last)
        last.runs.append(run)
        self._units.update(run["unit"].tolist())

    def remove(self, units: Ints) -> None:
        """Remove the rows of `units`; other units are ignored."""
        units = units[self.has(units)]
        if len(units) == 0:
            return
        for queue in (self._queue, *self._blocked.values()):
            queue.remove(units)
        for each in self._cooling_down:
            each.runs = [kept for run in each.runs if len(kept := run[~isin(run["unit"], units)])]
        self._drop_empty()
        self._units.difference_update(units.tolist())

    def block(self, hash_: int, run: Rows) -> None:
        """Add `run` to wait for its target."""
        self._blocked.setdefault(hash_, RowQueue()).push(run)
        self._units.update(run["unit"].tolist())

    def blocked(self) -> list[int]:
        """Return hashes of the targets with blocked rows."""
        if self._blocked:
            self._blocked = {hash_: queue for hash_, queue in self._blocked.items() if len(queue)}
        return list(self._blocked)

    def first_blocked_ms(self, hash_: int) -> int:
        """Return the earliest wake-up time of the blocked rows of a target."""
        return self._blocked[hash_].next_visit_ms() or 0

    def take_blocked(self, hash_: int, limit: int, now_ms: int, limit_bytes: int) -> Rows:
        """Remove and return the first blocked rows of a target."""
        return self._forget_units(self._blocked[hash_].take(now_ms, limit, limit_bytes)) if limit > 0 else NO_ROWS

    def block_due(self, hashes: list[int], now_ms: int) -> None:
        """Block the rows of these targets whose wake-up time is at or before `now_ms`."""
        run = self._queue.rows()
        run = run[(run["visit_ms"] <= now_ms) & isin(run["topic_hash"], hashes)]
        self._queue.remove(run["unit"])
        for hash_ in np.unique(run["topic_hash"]).tolist():
            self.block(hash_, run[run["topic_hash"] == hash_])

    def take_old_blocked(self, hash_: int, before_ms: int, units_end: int, limit: int, limit_bytes: int) -> Rows:
        """Remove and return blocked rows of a target that wake up by `before_ms`, with units below `units_end`.

        The first row is returned whatever its size.
        """
        run = self._blocked[hash_].rows()
        old = run[(run["visit_ms"] <= before_ms) & (run["unit"] < units_end)][:limit]
        fits = int(np.searchsorted(np.cumsum(old["body_size"], dtype=np.int64), limit_bytes, side="right"))
        old = old[: max(1, fits)]
        self._blocked[hash_].remove(old["unit"])
        return self._forget_units(old)

    def repoint(self, units: Ints, bodies: Ints) -> None:
        """Set the body positions of the rows of `units`; other units are ignored."""
        for queue in (self._queue, *self._blocked.values()):
            queue.repoint(units, bodies)
        where = dict(zip(units.tolist(), bodies.tolist(), strict=True))
        for each in self._cooling_down:
            for run in each.runs:
                run["body"] = [where.get(unit, body) for unit, body in run[["unit", "body"]].tolist()]

    def next_visit_ms(self) -> int | None:
        """Return the earliest wake-up time or end of a cooldown, None if there is none. Blocked rows do not count."""
        visit_ms = self._queue.next_visit_ms()
        if not self._cooling_down:
            return visit_ms
        looks = [min(each.until_ms, each.first_due_ms()) for each in self._cooling_down]
        return min(looks if visit_ms is None else [*looks, visit_ms], default=None)

    def has_due(self, now_ms: int) -> bool:
        """True if `take` returns rows now."""
        visit_ms = self._queue.next_visit_ms()
        return (visit_ms is not None and visit_ms <= now_ms) or any(
            each.has_ended(now_ms) for each in self._cooling_down
        )

    def is_idle(self, now_ms: int) -> bool:
        """True if no row is blocked and `take` returns none now."""
        return not self.has_due(now_ms) and not self.blocked()

    def take(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Remove and return the rows whose wake-up time has come; limits as in RowQueue.take."""
        if self._cooling_down:
            for each in self._cooling_down:
                for run in each.take(now_ms):
                    self._queue.push(run)
            self._drop_empty()
        return self._forget_units(self._queue.take(now_ms, limit, limit_bytes))

    def _forget_units(self, run: Rows) -> Rows:
        self._units.difference_update(run["unit"].tolist())
        return run

    def _drop_empty(self) -> None:
        for each in self._cooling_down:
            each.runs = [run for run in each.runs if len(run)]
        self._cooling_down = [each for each in self._cooling_down if each.runs]
