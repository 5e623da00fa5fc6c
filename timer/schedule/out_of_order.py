"""Pending timers whose key has passed, so that K says nothing about them. The journal names each.

push    waits for its wake-up time: the clock went back before K, or it was just rolled (roll cooldown)
block   waits for its target, which is blocked (timer.schedule.blocked_targets)
"""

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import Ints, Rows, isin, joined
from timer.schedule.row_queue import RowQueue

_EMPTY = RowQueue()


class OutOfOrderTimers:
    """Rows of TIMER_ROW; the bodies are on disk."""

    def __init__(self) -> None:
        self.queue = RowQueue()
        """Rows that are not blocked."""
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
        return joined(queue.rows() for queue in (self.queue, *self._blocked.values()))

    def push(self, run: Rows) -> None:
        self._units.update(run["unit"].tolist())
        self.queue.push(run)

    def remove(self, units: Ints) -> None:
        """Remove the rows of `units`; other units are ignored."""
        units = units[self.has(units)]
        if len(units):
            for queue in (self.queue, *self._blocked.values()):
                queue.remove(units)
            self._units.difference_update(units.tolist())

    def forget(self, run: Rows) -> None:
        """Note that `run`, which was taken from a queue, leaves."""
        self._units.difference_update(run["unit"].tolist())

    def repoint(self, units: Ints, bodies: Ints) -> None:
        """Set the body positions of the rows of `units`; other units are ignored."""
        for queue in (self.queue, *self._blocked.values()):
            queue.repoint(units, bodies)

    # -- blocked targets

    def block(self, run: Rows) -> list[int]:
        """Let `run`, which is not in the queue, wait for its targets. Return their hashes."""
        hashes: list[int] = np.unique(run["topic_hash"]).tolist()
        for hash_ in hashes:
            self._blocked.setdefault(hash_, RowQueue()).push(run[run["topic_hash"] == hash_])
        return hashes

    def block_due(self, hashes: list[int], now_ms: int) -> None:
        """Block the rows of these targets whose wake-up time is at or before `now_ms`."""
        run = self.queue.rows()
        run = run[(run["visit_ms"] <= now_ms) & isin(run["topic_hash"], hashes)]
        self.queue.remove(run["unit"])
        self.block(run)

    def blocked(self, hash_: int) -> RowQueue:
        """Return the blocked rows of a target, to take some."""
        return self._blocked.get(hash_, _EMPTY)

    def unblock(self, hash_: int) -> None:
        """Forget the queue of a target, which is empty."""
        self._blocked.pop(hash_, None)
