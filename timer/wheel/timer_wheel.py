"""The TimerWheel: for each future tick, the first and the last unit of its chain, and how many of them are pending.

    tick 10 ms, 8 slots      wake-up 1000..1009 -> time 100 -> index 100 % 8 = 4
                             wake-up 1080..1089 -> time 108 -> index 4 too: one lap later
    slot, 32 bytes, big-endian:  0:8 time (wake-up // tick) | 8:8 first | 16:8 last | 24:4 pending units | 28:4 check

A slot of another lap, or without pending units, is free. The wheel says which tick to look at, never when to release:
the unit has its wake-up time to the millisecond. Positions are RIP-43's, bytes in the TimerLog, -1 for none.

A slot that was never used is all zeros. An extent gets blocks when one of its slots is used; before, it is not read.
"""

import zlib
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from timer.disk import Disk, MappedFile
from timer.errors import UnreadableError, WheelFullError
from timer.format.checkpoint import WHEEL
from timer.format.unit import Checks, Ints, Rows, stable_argsort, unique_counts

SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">u4")])
SLOT_SIZE = 32
assert SLOT.itemsize == SLOT_SIZE
_WEIGHTS = np.array([pow(0x9E3779B1, word, 1 << 32) for word in range(1, SLOT_SIZE // 4)], np.uint32)
EXTENT_SLOTS = 4096
_EXTENT_BYTES = EXTENT_SLOTS * SLOT_SIZE
"""128 KiB: an hour of ticks of a second."""


def slot_checks(slots: Rows) -> Checks:
    """Return the value of the last field of each of `slots`; it covers all other bytes of the slot.

    A sum of words with odd weights, because a rebuild fills millions of slots; 0 for a slot of zeros.
    """
    words = np.frombuffer(slots.tobytes(), ">u4").reshape(-1, SLOT_SIZE // 4)[:, : len(_WEIGHTS)].astype(np.uint32)
    found: Checks = words @ _WEIGHTS
    return found


def used_extents(disk: Disk, slots: int) -> tuple[Ints, int] | None:
    """Return the extents of the wheel on disk that hold pending units, and its `Wheel.crc`.

    None if it is damaged or has another size. Not mapped: reading an unallocated page of a mapped file may take room.
    """
    found, crc, at = [], 0, 0
    with suppress(UnreadableError), closing(disk.open(WHEEL)) as file:
        if file.size() != slots * SLOT_SIZE:
            return None
        while (at := file.next_data(at)) < file.size():
            extent = at // _EXTENT_BYTES
            data = file.read(extent * _EXTENT_BYTES, _EXTENT_BYTES)
            at = (extent + 1) * _EXTENT_BYTES
            if data != bytes(len(data)):
                own = np.frombuffer(data, SLOT)
                if (slot_checks(own) != own["magic"]).any():
                    return None
                if (own["num"] > 0).any():
                    found.append(extent)
                    crc = zlib.crc32(data, crc)
        return np.array(found, np.int64), crc
    return None


class Links(NamedTuple):
    """The previous position of each unit (-1: none), and the new slots."""

    previous: Ints
    where: Ints
    slots: Rows


class Wheel:
    """`slots` slots of `tick_ms` over `mapping` (slots * 32 bytes), which are free unless their extent is allocated."""

    def __init__(self, mapping: MappedFile, *, tick_ms: int, slots: int) -> None:
        self.tick_ms = tick_ms
        self._slots = slots
        self._mapping = mapping
        self._table = np.frombuffer(mapping.buffer, SLOT, count=slots)
        self._is_used = np.zeros(-(-slots // EXTENT_SLOTS), np.bool_)

    def close(self) -> None:
        del self._table  # the buffer may be released now

    def plan(self, visits_ms: Ints, positions: Ints, is_timer: NDArray[np.bool_]) -> "Links":
        """Return how units join their chains. Changes nothing.

        Units are in the order of the log; those without `is_timer` are delete marks and not counted. Raises
        WheelFullError if a slot holds pending units of another lap, and OSError if the disk is full.
        """
        times = visits_ms // self.tick_ms
        if len(times) == 0:
            return Links(times, times, np.empty(0, SLOT))  # not a view: the buffer may be released earlier
        order = stable_argsort(times)
        ordered, chained = times[order], positions[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        ends = np.concatenate((starts[1:], [len(ordered)])) - 1
        index, slots = self._free_or_own(ordered[starts])
        alive = (slots["time"] == ordered[starts]) & (slots["num"] > 0)
        previous = np.empty(len(order), np.int64)
        previous[1:] = chained[:-1]
        previous[starts] = np.where(alive, slots["last"], -1)
        slots["first"] = np.where(alive, slots["first"], chained[starts])
        slots["time"] = ordered[starts]
        slots["last"] = chained[ends]
        slots["num"] = np.where(alive, slots["num"], 0) + np.add.reduceat(is_timer[order].astype(np.int32), starts)
        in_log_order = np.empty(len(order), np.int64)
        in_log_order[order] = previous
        return Links(in_log_order, index, slots)

    def link(self, links: "Links") -> None:
        """Apply `links`. The wheel must not have changed since `plan`."""
        self._put(links.where, links.slots)

    def _put(self, index: Ints, slots: Rows) -> None:
        slots["magic"] = slot_checks(slots)
        self._table[index] = slots

    def _free_or_own(self, times: Ints) -> tuple[Ints, Rows]:
        """Return the places and a copy of the slots of `times`, which are ascending and distinct."""
        index = times % self._slots
        extents = index // EXTENT_SLOTS
        slots, known = np.zeros(len(index), SLOT), self._is_used[extents]
        slots[known] = self._table[index[known]]  # others are zeros: a read costs a page fault before the write's
        self.allocate(extents)
        taken = (slots["num"] > 0) & (slots["time"] != times)
        spans_a_lap = int(times[-1]) - int(times[0]) >= self._slots  # they are sorted
        if taken.any() or (spans_a_lap and len(np.unique(index)) != len(index)):
            raise WheelFullError(f"{max(1, int(taken.sum()))} slots hold timers of another lap of {self._slots} ticks")
        return index, slots

    def allocate(self, extents: Ints) -> None:
        if self._is_used[extents].all():
            return
        for extent in np.unique(extents[~self._is_used[extents]]).tolist():
            at = extent * _EXTENT_BYTES
            self._mapping.allocate(at, min(_EXTENT_BYTES, self._table.nbytes - at))
            self._is_used[extent] = True

    def settle(self, visits_ms: Ints) -> None:
        """Remove settled units from the counts; a slot without pending units is free."""
        times, counts = unique_counts(visits_ms // self.tick_ms)
        index = times % self._slots
        slots = self._table[index]
        slots["num"] -= counts.astype(np.int32)
        self._put(index, slots)

    def crc(self) -> int:
        """Return a CRC-32 of the extents that hold pending units: an older wheel has another one."""
        crc = 0
        for extent in self._is_used.nonzero()[0].tolist():
            slots = self._table[extent * EXTENT_SLOTS : (extent + 1) * EXTENT_SLOTS]
            crc = zlib.crc32(slots.tobytes(), crc) if (slots["num"] > 0).any() else crc
        return crc

    def slot(self, time: int) -> tuple[int, int, int]:
        """Return (first, last, pending) of the tick `time`; (-1, -1, 0) if the slot is free or of another lap."""
        at = time % self._slots
        slot: Any = self._table[at]  # not read yet
        if not self._is_used[at // EXTENT_SLOTS] or int(slot["time"]) != time or int(slot["num"]) <= 0:
            return (-1, -1, 0)
        return (int(slot["first"]), int(slot["last"]), int(slot["num"]))

    def next_time(self, after: int, until: int) -> int | None:
        if until - after > self._slots:
            return self._first_time_above(after, until)
        start = after + 1
        while start <= until:
            at = start % self._slots
            extent = at // EXTENT_SLOTS
            end = min(at + until + 1 - start, (extent + 1) * EXTENT_SLOTS, self._slots)
            if self._is_used[extent]:
                for used in (self._table["num"][at:end] > 0).nonzero()[0].tolist():
                    if int(self._table["time"][at + used]) == start + used:
                        return start + used
            start += end - at
        return None

    def _first_time_above(self, after: int, until: int) -> int | None:
        first = None
        for extent in self._is_used.nonzero()[0].tolist():
            slots = self._table[extent * EXTENT_SLOTS : (extent + 1) * EXTENT_SLOTS]
            times = slots["time"][slots["num"] > 0]
            times = times[(times > after) & (times <= until)]
            if len(times):
                first = until = int(times.min())
        return first
