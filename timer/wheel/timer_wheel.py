"""The TimerWheel: for each future tick, the first and the last unit of its chain, and how many of them are pending.

    tick 10 ms, 8 slots      wake-up 1000..1009 -> time 100 -> index 100 % 8 = 4
                             wake-up 1080..1089 -> time 108 -> index 4 too: one lap later
    slot, 32 bytes, big-endian:  0:8 time (wake-up // tick) | 8:8 first | 16:8 last | 24:4 pending units | 28:4 check

A slot of another lap, or without pending units, is free. The wheel says which tick to look at, never when to release:
the unit has its wake-up time to the millisecond. Positions are RIP-43's, bytes in the TimerLog, -1 for none. The buffer
may be a mapped file or a bytearray. A slot that was never used is all zeros.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from timer.errors import WheelFullError
from timer.format.unit import Checks, Ints, Rows, stable_argsort, unique_counts
from timer.schedule.pending_timers import EmptyTicks

SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">u4")])
SLOT_SIZE = 32
assert SLOT.itemsize == SLOT_SIZE
_WEIGHTS = np.array([pow(0x9E3779B1, word, 1 << 32) for word in range(1, SLOT_SIZE // 4)], np.uint32)
_SCAN_SLOTS = 4096


def slot_checks(slots: Rows) -> Checks:
    """Return the value of the last field of each of `slots`; it covers all other bytes of the slot.

    A sum of words with odd weights, because a rebuild fills millions of slots; 0 for a slot of zeros.
    """
    words = np.frombuffer(slots.tobytes(), ">u4").reshape(-1, SLOT_SIZE // 4)[:, : len(_WEIGHTS)].astype(np.uint32)
    found: Checks = words @ _WEIGHTS
    return found


class Links(NamedTuple):
    """The previous position of each unit (-1: none), and the new slots."""

    previous: Ints
    where: Ints
    slots: Rows


class Wheel:
    """`slots` slots of `tick_ms` over `buffer` (slots * 32 bytes)."""

    def __init__(self, buffer: memoryview, *, tick_ms: int, slots: int) -> None:
        self.tick_ms = tick_ms
        self._slots = slots
        self._table = np.frombuffer(buffer, SLOT, count=slots)
        self._empty = EmptyTicks()

    def is_sound(self) -> bool:
        """True if the check of every slot matches."""
        for start in range(0, self._slots, _SCAN_SLOTS):
            slots = self._table[start : start + _SCAN_SLOTS]
            if (slot_checks(slots) != slots["magic"]).any():
                return False
        return True

    def clear(self) -> None:
        """Empty all slots."""
        self._table[:] = np.zeros(1, SLOT)

    def close(self) -> None:
        """Release the buffer."""
        del self._table

    def plan(self, visits_ms: Ints, positions: Ints, is_timer: NDArray[np.bool_]) -> "Links":
        """Return how units join their chains. Changes nothing.

        Units are in the order of the log; those without `is_timer` are delete marks and not counted. Raises
        WheelFullError if a slot holds pending units of another lap.
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
        self._empty.forget()
        self._put(links.where, links.slots)

    def _put(self, index: Ints, slots: Rows) -> None:
        slots["magic"] = slot_checks(slots)
        self._table[index] = slots

    def _free_or_own(self, times: Ints) -> tuple[Ints, Rows]:
        """Return the places and a copy of the slots of `times`, which are ascending and distinct.

        Two share a slot only if they span a lap.
        """
        index = times % self._slots
        slots = self._table[index]
        taken = (slots["num"] > 0) & (slots["time"] != times)
        spans_a_lap = int(times[-1]) - int(times[0]) >= self._slots  # they are sorted
        if taken.any() or (spans_a_lap and len(np.unique(index)) != len(index)):
            raise WheelFullError(f"{max(1, int(taken.sum()))} slots hold timers of another lap of {self._slots} ticks")
        return index, slots

    def settle(self, visits_ms: Ints) -> None:
        """Remove settled units from the counts; a slot without pending units is free."""
        times, counts = unique_counts(visits_ms // self.tick_ms)
        index = times % self._slots
        slots = self._table[index]
        slots["num"] -= counts.astype(np.int32)
        self._put(index, slots)

    def slot(self, time: int) -> tuple[int, int, int]:
        """Return (first, last, pending) of the tick `time`; (-1, -1, 0) if the slot is free or of another lap."""
        slot: Any = self._table[time % self._slots]
        if int(slot["time"]) != time or int(slot["num"]) <= 0:
            return (-1, -1, 0)
        return (int(slot["first"]), int(slot["last"]), int(slot["num"]))

    def next_time(self, after: int, until: int) -> int | None:
        """Return the first tick in (after, until] with a pending unit."""
        return self._empty.next(after, until, self._search)

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
