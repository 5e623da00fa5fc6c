"""Index from id to unit for pending timers: a table of 64-bit hashes, 16 bytes a slot, used in batches.

    hash -> slot hash & mask, then the next, until the hash or an empty slot          an empty slot is all zeros

If two ids share a hash, both are in the table, and the caller compares the ids in the bodies. The table grows, and
drops removed slots, by moving to a new one in steps, so that no batch waits for the whole move.

OriginIndex, from origin offset to unit, is made when a request first names an origin:

    a request   its origin is above those of all units before it: found by the highest origin of each block of units
    a copy      of a rolled timer lies among later requests: found by a table of hashes

A timer takes no memory there until it has rolled.
"""

from bisect import bisect_left

import numpy as np

from timer.format.unit import Ints, Rows

_EMPTY, _REMOVED = 0, -1
_UNIT_SHIFT = 1
"""Added to stored units, so that a new table is untouched zero pages."""
_MIN_SLOTS = 1024
_MOVE_SLOTS = 1 << 15


class _Table:
    """Open addressing with linear probing over two columns."""

    def __init__(self, hashes: Ints, units: Ints) -> None:
        self.hashes, self.units = hashes, units
        self._mask = len(units) - 1
        self.used = 0
        """Slots that are not empty, removed ones included."""

    def insert(self, hashes: Ints, units: Ints) -> None:
        """Add pairs. `units` are distinct."""
        at = hashes & self._mask
        remaining = np.arange(len(hashes))
        while len(remaining):
            free = remaining[self.units[at[remaining]] <= 0]
            where, added = at[free], units[free] + _UNIT_SHIFT
            was_empty = self.units[where] == _EMPTY
            self.units[where] = added
            won = self.units[where] == added  # of several for one slot the last write wins
            placed = free[won]
            self.hashes[where[won]] = hashes[placed]
            self.used += int(was_empty[won].sum())
            keep = np.ones(len(hashes), np.bool_)
            keep[placed] = False
            remaining = remaining[keep[remaining]]
            at[remaining] = (at[remaining] + 1) & self._mask

    def find(self, hashes: Ints) -> tuple[Ints, Ints]:
        """Return every (index into `hashes`, unit) with an equal hash."""
        at = hashes & self._mask
        remaining = np.arange(len(hashes))
        found_index: list[Ints] = []
        found_unit: list[Ints] = []
        while len(remaining):
            units = self.units[at[remaining]]
            hit = (units > 0) & (self.hashes[at[remaining]] == hashes[remaining])
            found_index.append(remaining[hit])
            found_unit.append(units[hit] - _UNIT_SHIFT)
            remaining = remaining[units != _EMPTY]
            at[remaining] = (at[remaining] + 1) & self._mask
        return np.concatenate([remaining, *found_index]), np.concatenate([remaining, *found_unit])

    def remove(self, hashes: Ints, units: Ints) -> int:
        """Remove pairs; return how many were here."""
        at = hashes & self._mask
        remaining = np.arange(len(hashes))
        removed = 0
        while len(remaining):
            here = self.units[at[remaining]]
            hit = here == units[remaining] + _UNIT_SHIFT
            self.units[at[remaining[hit]]] = _REMOVED
            removed += int(hit.sum())
            remaining = remaining[(here != _EMPTY) & ~hit]
            at[remaining] = (at[remaining] + 1) & self._mask
        return removed


def _table_for(live: int) -> _Table:
    slots = max(_MIN_SLOTS, 1 << (2 * live - 1).bit_length())  # a power of two
    return _Table(np.zeros(slots, np.int64), np.zeros(slots, np.int64))


class IdIndex:
    """hash -> unit of the pending timers that have an id."""

    def __init__(self, expected: int = 0) -> None:
        """expected: how many will be inserted at first; they fill up to two thirds, above which the table grows."""
        self._table = _table_for(-(-expected * 3 // 4))
        self._old: _Table | None = None
        self._old_live = 0
        """Entries still to be moved. With them and the next batch at least a third of the table stays empty."""
        self._moved = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def state(self) -> tuple[Ints, Ints]:
        """Return the slots of the table, for `restored`."""
        while self._old is not None:
            self._move_some()
        return self._table.hashes, self._table.units

    @classmethod
    def restored(cls, hashes: Ints, units: Ints) -> "IdIndex":
        index = cls()
        index._table = _Table(hashes, units)
        index._table.used = int((units != _EMPTY).sum())
        index._live = int((units > _EMPTY).sum())
        return index

    def insert(self, hashes: Ints, units: Ints) -> None:
        for start in range(0, len(hashes), _MOVE_SLOTS):
            part = slice(start, start + _MOVE_SLOTS)
            self._make_room(len(hashes[part]))
            self._table.insert(hashes[part], units[part])
            self._live += len(hashes[part])

    def find(self, hashes: Ints) -> dict[int, list[int]]:
        """Return the units for each index into `hashes` that has any."""
        found: dict[int, list[int]] = {}
        for table in (self._table, self._old):
            if table is not None:
                index, units = table.find(hashes)
                for i, unit in zip(index.tolist(), units.tolist(), strict=True):
                    found.setdefault(i, []).append(unit)
        return found

    def remove(self, hashes: Ints, units: Ints) -> None:
        self._live -= self._table.remove(hashes, units)
        if self._old is not None:
            removed = self._old.remove(hashes, units)
            self._live -= removed
            self._old_live -= removed

    def _make_room(self, added: int) -> None:
        if self._is_too_small(added):
            while self._old is not None:
                self._move_some()
            if self._is_too_small(added):
                self._old, self._old_live, self._moved = self._table, self._live, 0
                self._table = _table_for(self._live + added)
        if self._old is not None:
            self._move_some()

    def _is_too_small(self, added: int) -> bool:
        return (self._table.used + self._old_live + added) * 3 > len(self._table.units) * 2

    def _move_some(self) -> None:
        assert self._old is not None
        part = slice(self._moved, self._moved + _MOVE_SLOTS)
        live = self._old.units[part] > 0
        self._old_live -= int(live.sum())
        self._table.insert(self._old.hashes[part][live], self._old.units[part][live] - _UNIT_SHIFT)
        self._old.units[part][live] = _REMOVED
        self._moved += _MOVE_SLOTS
        if self._moved >= len(self._old.units):
            self._old = None


BLOCK_UNITS = 4096
_FACTOR = -7046029254386353131
"""Spreads origins over a table: odd, from the golden ratio."""


def _hashes_of(origins: Ints) -> Ints:
    mixed: Ints = origins.astype(np.int64) * np.int64(_FACTOR)
    return mixed ^ (mixed >> 32)


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
