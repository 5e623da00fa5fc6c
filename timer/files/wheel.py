"""The TimerWheel: for each tick ahead, where its chain of units begins and ends, and how many of them live.

    tick 10 ms, 8 slots      visit 1000..1009 -> time 100 -> index 100 % 8 = 4
                             visit 1080..1089 -> time 108 -> index 4 too: one lap later
    slot, 32 bytes, big-endian:  0:8 time (visit // tick) | 8:8 first | 16:8 last | 24:4 live units | 28:4 check

A slot that holds the time of another lap, or no live unit, is free. The wheel says in which tick to look, never when to
release: that is the unit's own visit, to the millisecond. Positions are RIP-43's, bytes in the TimerLog, -1 for none.
Runs on any buffer: a mapped file, a bytearray. A slot that was never used is all zeros.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from timer.errors import WheelFullError
from timer.format.checksum import Checks
from timer.format.unit import Ints, Rows, counted, stable_order

SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">u4")])
SLOT_SIZE = 32
assert SLOT.itemsize == SLOT_SIZE
_WEIGHTS = np.array([pow(0x9E3779B1, word, 1 << 32) for word in range(1, SLOT_SIZE // 4)], np.uint32)
_SCAN_SLOTS = 4096


def slot_checks(slots: Rows) -> Checks:
    """What the last field of each of `slots` has to hold: no other part of a slot can change without it.

    A sum of words with odd weights, as a rebuild fills millions of slots; 0 for a slot of zeros.
    """
    words = np.frombuffer(slots.tobytes(), ">u4").reshape(-1, SLOT_SIZE // 4)[:, : len(_WEIGHTS)].astype(np.uint32)
    found: Checks = words @ _WEIGHTS
    return found


class Links(NamedTuple):
    """The previous position of each unit (-1: none), and the slots as they will be."""

    previous: Ints
    where: Ints
    slots: Rows


class Wheel:
    """`slots` slots of `tick_ms` over `buffer` (slots * 32 bytes)."""

    def __init__(self, buffer: memoryview, *, tick_ms: int, slots: int) -> None:
        self.tick_ms = tick_ms
        self._slots = slots
        self._table = np.frombuffer(buffer, SLOT, count=slots)
        self._empty = (0, -1)
        """No tick in (first, second] holds a live unit: who looks again and again looks at each slot once."""

    def is_sound(self) -> bool:
        """Whether the check of each slot fits."""
        for start in range(0, self._slots, _SCAN_SLOTS):
            slots = self._table[start : start + _SCAN_SLOTS]
            if (slot_checks(slots) != slots["magic"]).any():
                return False
        return True

    def clear(self) -> None:
        """No slot holds anything."""
        self._table[:] = np.zeros(1, SLOT)

    def close(self) -> None:
        """Lets go of the buffer."""
        del self._table

    def plan(self, visits_ms: Ints, positions: Ints, counted: NDArray[np.bool_]) -> "Links":
        """How units, in the order of the log, join their chains; those not `counted` are no timers. Changes nothing.

        Raises WheelFullError where a slot is occupied by another lap.
        """
        times = visits_ms // self.tick_ms
        if len(times) == 0:
            return Links(times, times, np.empty(0, SLOT))  # no view: the buffer may have to go before these
        order = stable_order(times)
        ordered, chained = times[order], positions[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        ends = np.concatenate((starts[1:], [len(ordered)])) - 1
        index = self._free_or_own(ordered[starts])
        slots = self._table[index]
        alive = (slots["time"] == ordered[starts]) & (slots["num"] > 0)
        previous = np.empty(len(order), np.int64)
        previous[1:] = chained[:-1]
        previous[starts] = np.where(alive, slots["last"], -1)
        slots["first"] = np.where(alive, slots["first"], chained[starts])
        slots["time"] = ordered[starts]
        slots["last"] = chained[ends]
        slots["num"] = np.where(alive, slots["num"], 0) + np.add.reduceat(counted[order].astype(np.int32), starts)
        in_log_order = np.empty(len(order), np.int64)
        in_log_order[order] = previous
        return Links(in_log_order, index, slots)

    def link(self, links: "Links") -> None:
        """Does what `plan` found; nothing may have changed in between."""
        self._empty = (0, -1)
        self._put(links.where, links.slots)

    def _put(self, index: Ints, slots: Rows) -> None:
        slots["magic"] = slot_checks(slots)
        self._table[index] = slots

    def _free_or_own(self, times: Ints) -> Ints:
        """The slots of `times`, ascending and each once: two can share one only where they span more than a lap."""
        index = times % self._slots
        slots = self._table[index]
        taken = (slots["num"] > 0) & (slots["time"] != times)
        spans_a_lap = int(times[-1]) - int(times[0]) >= self._slots  # they are sorted
        if taken.any() or (spans_a_lap and len(np.unique(index)) != len(index)):
            raise WheelFullError(f"{max(1, int(taken.sum()))} slots hold timers of another lap of {self._slots} ticks")
        return index

    def settle(self, visits_ms: Ints) -> None:
        """Takes settled units out of the counts; a slot without live units is free."""
        times, counts = counted(visits_ms // self.tick_ms)
        index = times % self._slots
        slots = self._table[index]
        slots["num"] -= counts.astype(np.int32)
        self._put(index, slots)

    def slot(self, time: int) -> tuple[int, int, int]:
        """(first, last, live) of the tick `time`; (-1, -1, 0) where it is free or of another lap."""
        standing: Any = self._table[time % self._slots]
        if int(standing["time"]) != time or int(standing["num"]) <= 0:
            return (-1, -1, 0)
        return (int(standing["first"]), int(standing["last"]), int(standing["num"]))

    def next_time(self, after: int, until: int) -> int | None:
        """The first tick in (after, until] that holds a live unit."""
        empty_after, empty_until = self._empty
        is_known = empty_after <= after <= empty_until
        if is_known and until <= empty_until:
            return None
        found = self._search(empty_until if is_known else after, until)
        self._empty = (empty_after if is_known else after, until if found is None else found - 1)
        return found

    def _search(self, after: int, until: int) -> int | None:
        if until - after > self._slots:
            return self._first_time_above(after, until)
        start = after + 1
        while start <= until:
            at = start % self._slots
            end = min(at + until + 1 - start, at + _SCAN_SLOTS, self._slots)
            for used in (self._table["num"][at:end] > 0).nonzero()[0].tolist():
                if int(self._table["time"][at + used]) == start + used:
                    return start + used
            start += end - at
        return None

    def _first_time_above(self, after: int, until: int) -> int | None:
        times = self._table["time"].astype(np.int64)
        found = times[(self._table["num"] > 0) & (times > after) & (times <= until)]
        return int(found.min()) if len(found) else None
