"""Index from origin offset to unit for pending timers, made when a request first names an origin.

    a request   its origin is above those of all units before it: found by the highest origin of each block of units
    a copy      of a rolled timer lies among later requests: found by a table, 16 bytes a slot (timer.index.id_index)

A timer takes no memory here until it has rolled.
"""

from bisect import bisect_left

import numpy as np

from timer.format.unit import Ints, Rows
from timer.index.id_index import IdIndex

BLOCK_UNITS = 4096
_FACTOR = -7046029254386353131
"""Spreads origins over a table: odd, from the golden ratio."""


def _hashes_of(origins: Ints) -> Ints:
    mixed = origins.astype(np.int64) * np.int64(_FACTOR)
    hashes: Ints = mixed ^ (mixed >> 32)
    return hashes


class OriginIndex:
    """Call `add` with all pending rows in the order of the log, then with those that are stored."""

    def __init__(self) -> None:
        self._highest: list[int] = []
        """By block of units: the highest origin up to its end."""
        self._copies = IdIndex()

    def add(self, run: Rows) -> None:
        if not len(run):
            return
        last = self._highest[-1] if self._highest else -1
        highest = np.maximum.accumulate(np.maximum(run["origin"], last))
        is_copy = run["origin"] <= np.concatenate([[last], highest[:-1]])
        if is_copy.any():
            self._add_copies(run[is_copy])
        blocks = run["unit"] // BLOCK_UNITS
        for at in [*np.flatnonzero(np.diff(blocks)).tolist(), len(run) - 1]:
            block = int(blocks[at])
            self._highest += [last] * (block + 1 - len(self._highest))
            self._highest[block] = last = int(highest[at])

    def _add_copies(self, run: Rows) -> None:
        self._copies.insert(_hashes_of(run["origin"]), run["unit"])

    def remove(self, run: Rows) -> None:
        if len(self._copies):
            self._copies.remove(_hashes_of(run["origin"]), run["unit"])

    def places(self, origin_offset: int) -> list[tuple[int, int]]:
        """Return parts [start, end) of the log, one of which has the timer of `origin_offset` if it is pending."""
        units = self._copies.find(_hashes_of(np.array([origin_offset]))).get(0, []) if len(self._copies) else []
        block = bisect_left(self._highest, origin_offset)
        in_order = [(block * BLOCK_UNITS, (block + 1) * BLOCK_UNITS)] if block < len(self._highest) else []
        return [(unit, unit + 1) for unit in units] + in_order
