"""The pending timers of the engine `wheel`: TimerWheel, TimerLog and the indexes in memory."""

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.files.segment_log import UnitLog
from timer.files.wheel import Wheel
from timer.format.unit import Rows
from timer.index.due_counts import DueCounts
from timer.index.pending_index import PendingIndex
from timer.schedule.pending_keys import Waits
from timer.schedule.tick_reader import TickReader


class WheelTimers:
    """See timer.schedule.pending_timers.PendingTimers."""

    def __init__(self, units: UnitLog, wheel: Wheel, index: PendingIndex) -> None:
        self._units = units
        self._wheel = wheel
        self._index = index
        self._ticks = TickReader(units, wheel, index.ended)

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

    def read_tick(self, tick: int, settled: Key, waits: Waits) -> Rows:
        return self._ticks.read(tick, settled, waits)

    def leave(self, rows: Rows, *, is_in_order: bool) -> None:
        if is_in_order:
            self._wheel.settle(rows["visit_ms"])
        self._index.remove(rows)

    def end(self, rows: Rows, in_order: NDArray[np.bool_]) -> None:
        self._wheel.settle(rows["visit_ms"][in_order])
        self._index.ended.mark(rows["unit"])
        self._index.remove(rows)
