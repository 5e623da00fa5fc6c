"""Pending timers whose key has passed, so that K says nothing about them. The journal names each.

push    waits for its wake-up time: the clock went back before K, or it was just rolled (roll cooldown)
block   waits for its target, which takes no more now (timer.schedule.release_policy)
"""

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import NO_ROWS, Ints, Rows, isin, joined
from timer.schedule.row_queue import RowQueue


class OutOfOrderTimers:
    """Rows of TIMER_ROW; the bodies are on disk."""

    def __init__(self) -> None:
        self._queue = RowQueue()
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
        return joined([self._queue.rows(), *blocked])

    def push(self, run: Rows) -> None:
        self._units.update(run["unit"].tolist())
        self._queue.push(run)

    def remove(self, units: Ints) -> None:
        """Remove the rows of `units`; other units are ignored."""
        units = units[self.has(units)]
        if len(units) == 0:
            return
        for queue in (self._queue, *self._blocked.values()):
            queue.remove(units)
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

    def next_visit_ms(self) -> int | None:
        """Return the earliest wake-up time, None if there is none. Blocked rows do not count."""
        return self._queue.next_visit_ms()

    def has_due(self, now_ms: int) -> bool:
        """True if `take` returns rows now."""
        visit_ms = self._queue.next_visit_ms()
        return visit_ms is not None and visit_ms <= now_ms

    def is_idle(self, now_ms: int) -> bool:
        """True if no row is blocked and `take` returns none now."""
        return not self.has_due(now_ms) and not self.blocked()

    def take(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Remove and return the rows whose wake-up time has come; limits as in RowQueue.take."""
        return self._forget_units(self._queue.take(now_ms, limit, limit_bytes))

    def _forget_units(self, run: Rows) -> Rows:
        self._units.difference_update(run["unit"].tolist())
        return run
