"""Which unit holds the live timer of an id: a table of 64-bit hashes, 16 bytes a slot, worked on in batches.

    hash -> slot hash & mask, then the next one, until the hash or an empty slot      an empty slot is all zeros

Two ids may share a hash; then both stand, and the caller, who has the body, says which is meant. The table grows and
gets rid of taken out slots by moving to a new one bit by bit, so that no batch waits for all of it.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from timer.format.unit import Ints

_EMPTY, _GONE = 0, -1
_ABOVE = 1
"""Units are kept one higher, so that a new table is zeros that the system has not touched yet."""
_SMALLEST = 1024
_MOVED_AT_ONCE = 1 << 15


def hash_of(id_: bytes) -> int:
    """64 bits, signed, never 0: in the columns 0 stands for no id."""
    return int.from_bytes(blake2b(id_, digest_size=8).digest(), "big", signed=True) or 1


def hashes_of(ids: Iterable[bytes]) -> Ints:
    """`hash_of` each."""
    digests = b"".join([blake2b(id_, digest_size=8).digest() for id_ in ids])
    hashes = np.frombuffer(digests, ">i8").astype(np.int64)
    hashes[hashes == 0] = 1
    return hashes


class _Table:
    """Open addressing with linear probing over two columns."""

    def __init__(self, slots: int) -> None:
        self.hashes = np.zeros(slots, np.int64)
        self.units = np.zeros(slots, np.int64)
        self._mask = slots - 1
        self.used = 0
        """Slots that are not empty: live ones and taken out ones."""

    @classmethod
    def of(cls, hashes: Ints, units: Ints) -> "_Table":
        table = cls(0)
        table.hashes, table.units, table._mask = hashes, units, len(units) - 1
        table.used = int((units != _EMPTY).sum())
        return table

    def insert(self, hashes: Ints, units: Ints) -> None:
        """No unit is twice among `units`."""
        at = hashes & self._mask
        left = np.arange(len(hashes))
        while len(left):
            free = left[self.units[at[left]] <= 0]
            where, coming = at[free], units[free] + _ABOVE
            was_empty = self.units[where] == _EMPTY
            self.units[where] = coming
            stays = self.units[where] == coming  # of several for one slot one has been written last
            placed = free[stays]
            self.hashes[where[stays]] = hashes[placed]
            self.used += int(was_empty[stays].sum())
            keep = np.ones(len(hashes), np.bool_)
            keep[placed] = False
            left = left[keep[left]]
            at[left] = (at[left] + 1) & self._mask

    def find(self, hashes: Ints) -> tuple[Ints, Ints]:
        """Every (index into `hashes`, unit) with an equal hash."""
        at = hashes & self._mask
        left = np.arange(len(hashes))
        found_index: list[Ints] = []
        found_unit: list[Ints] = []
        while len(left):
            units = self.units[at[left]]
            hit = (units > 0) & (self.hashes[at[left]] == hashes[left])
            found_index.append(left[hit])
            found_unit.append(units[hit] - _ABOVE)
            left = left[units != _EMPTY]
            at[left] = (at[left] + 1) & self._mask
        return np.concatenate([left, *found_index]), np.concatenate([left, *found_unit])

    def remove(self, hashes: Ints, units: Ints) -> int:
        """Takes the pairs out; returns how many were here."""
        at = hashes & self._mask
        left = np.arange(len(hashes))
        gone = 0
        while len(left):
            here = self.units[at[left]]
            hit = here == units[left] + _ABOVE
            self.units[at[left[hit]]] = _GONE
            gone += int(hit.sum())
            left = left[(here != _EMPTY) & ~hit]
            at[left] = (at[left] + 1) & self._mask
        return gone


def _slots_for(live: int) -> int:
    slots = _SMALLEST
    while slots < live * 2:
        slots *= 2
    return slots


class IdIndex:
    """hash -> unit, for the live timers that have an id."""

    def __init__(self, expected: int = 0) -> None:
        """`expected`: about how many are to come at once; the table has room for them."""
        self._table = _Table(_slots_for(expected))
        self._old: _Table | None = None
        self._old_live = 0
        """Still to be moved. The table always has room for them: with them and what comes, a third of it is empty."""
        self._moved = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def state(self) -> tuple[Ints, Ints]:
        """The slots of the table, as `restored` takes them."""
        while self._old is not None:
            self._move_some()
        return self._table.hashes, self._table.units

    @classmethod
    def restored(cls, hashes: Ints, units: Ints) -> "IdIndex":
        index = cls()
        index._table = _Table.of(hashes, units)
        index._live = int((units > _EMPTY).sum())
        return index

    def insert(self, hashes: Ints, units: Ints) -> None:
        for start in range(0, len(hashes), _MOVED_AT_ONCE):
            part = slice(start, start + _MOVED_AT_ONCE)
            self._make_room(len(hashes[part]))
            self._table.insert(hashes[part], units[part])
            self._live += len(hashes[part])

    def find(self, hashes: Ints) -> dict[int, list[int]]:
        """For each index into `hashes` that meets any: the units."""
        found: dict[int, list[int]] = {}
        for table in (self._table, self._old):
            if table is not None:
                index, units = table.find(hashes)
                for i, unit in zip(index.tolist(), units.tolist(), strict=True):
                    found.setdefault(i, []).append(unit)
        return found

    def remove(self, hashes: Ints, units: Ints) -> None:
        """Pairs that are not here are passed over."""
        self._live -= self._table.remove(hashes, units)
        if self._old is not None:
            gone = self._old.remove(hashes, units)
            self._live -= gone
            self._old_live -= gone

    def _make_room(self, coming: int) -> None:
        if self._is_too_small(coming):
            while self._old is not None:
                self._move_some()
            if self._is_too_small(coming):
                self._old, self._old_live, self._moved = self._table, self._live, 0
                self._table = _Table(_slots_for(self._live + coming))
        if self._old is not None:
            self._move_some()

    def _is_too_small(self, coming: int) -> bool:
        return (self._table.used + self._old_live + coming) * 3 > len(self._table.units) * 2

    def _move_some(self) -> None:
        assert self._old is not None
        part = slice(self._moved, self._moved + _MOVED_AT_ONCE)
        live = self._old.units[part] > 0
        self._old_live -= int(live.sum())
        self._table.insert(self._old.hashes[part][live], self._old.units[part][live] - _ABOVE)
        self._old.units[part][live] = _GONE
        self._moved += _MOVED_AT_ONCE
        if self._moved >= len(self._old.units):
            self._old = None
