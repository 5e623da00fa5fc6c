"""The pending timers of the engine `wheel`: TimerWheel, TimerLog and the indexes in memory."""

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.files.segment_log import UnitLog
from timer.files.wheel import Wheel
from timer.format.unit import MAGIC_DELETE, MAGIC_UNCHAINED, Rows, joined
from timer.index.due_counts import DueCounts
from timer.index.pending_index import PendingIndex
from timer.schedule.pending_keys import Waits, pending_by_key

_SCAN_UNITS = 1 << 16
_FIRST_BLOCK_UNITS = 16
_SPARSE_UNITS = 512
"""Units per pending unit of a tick from which following the chain is cheaper than reading the log through."""


class WheelTimers:
    """See timer.schedule.pending_timers.PendingTimers."""

    def __init__(self, units: UnitLog, wheel: Wheel, index: PendingIndex) -> None:
        self._units = units
        self._wheel = wheel
        self._index = index

    @property
    def tick_ms(self) -> int:
        return self._wheel.tick_ms

    @property
    def dues(self) -> DueCounts:
        return self._index.dues

    @property
    def end_unit(self) -> int:
        return self._units.end

    def next_tick(self, after: int, until: int) -> int | None:
        return self._wheel.next_time(after, until)

    def leave(self, rows: Rows, *, is_in_order: bool) -> None:
        if is_in_order:
            self._wheel.settle(rows["visit_ms"])
        self._index.remove(rows)

    def end(self, rows: Rows, in_order: NDArray[np.bool_]) -> None:
        self._wheel.settle(rows["visit_ms"][in_order])
        self._index.ended.mark(rows["unit"])
        self._index.remove(rows)

    def read_tick(self, tick: int, settled: Key, waits: Waits) -> Rows:
        """Return the pending rows of `tick`: along its chain if that is sparse, else block by block.

        Raises CorruptStoreError, also if their number is not that of the slot.
        """
        first, last, live = self._wheel.slot(tick)
        number, stop = self._units.number(last), self._units.number(first)
        found: list[Rows] = []
        block = _SCAN_UNITS if live * _SPARSE_UNITS >= number - stop else _FIRST_BLOCK_UNITS
        while number >= stop:
            start = max(stop, self._units.segment(number) * self._units.per_segment, number - block + 1)
            units, run = self._units.read_rows(start, number + 1, is_checked=True)
            own = (run["visit_ms"] // self._wheel.tick_ms == tick) & (units["magic"] & MAGIC_UNCHAINED == 0)
            if not own[-1]:
                raise CorruptStoreError(f"wheel, tick {tick}", f"unit {number} belongs to another tick")
            found.append(run[own & (units["magic"] & MAGIC_DELETE == 0) & ~self._index.ended.flags(start, number + 1)])
            earliest = int(own.argmax())
            number = self._previous_unit(int(units["previous"][earliest]), start + earliest)
        run = joined(found)
        run = run[pending_by_key(run, settled, waits)]
        if len(run) != live:
            raise CorruptStoreError(f"wheel, tick {tick}", f"{len(run)} live units, the slot counts {live}")
        return run

    def _previous_unit(self, position: int, unit: int) -> int:
        """Return the number of the unit before `unit` in its chain, -1 for the first."""
        number = self._units.number(position) if position >= 0 else -1
        if number >= unit:
            raise CorruptStoreError(f"timer, unit {unit}", f"previous is {number}, which is not before it")
        return number
