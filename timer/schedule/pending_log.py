"""The pending units of the TimerLog, in the order of the log, from the lowest one on."""

import numpy as np

from timer.files.body_reader import BodyReader
from timer.files.segment_log import UnitLog
from timer.format.unit import NO_ROWS, Rows
from timer.schedule.release_queue import ReleaseQueue

_FIRST_BLOCK_UNITS = 16


class PendingLog:
    """Raises CorruptStoreError."""

    def __init__(self, units: UnitLog, body_reader: BodyReader, release_queue: ReleaseQueue) -> None:
        self._units = units
        self._body_reader = body_reader
        self._release_queue = release_queue
        self.low_unit = units.end
        """No unit below is pending."""
        self._lowest: tuple[Rows, Rows, int] | None = None
        """The lowest pending unit as of the last call, the same as TIMER_ROW, and the offset of its request."""

    def rows(self, start: int, end: int) -> Rows:
        """Return the pending rows among units [start, end) of one segment, none if it was deleted."""
        if not self._units.has(start):
            return NO_ROWS
        units, run = self._units.read_rows(start, end)
        pending: Rows = run[self._release_queue.is_pending(units, run)]
        return pending

    def low_offset(self) -> int | None:
        """Return the lowest pending offset, None if nothing is pending.

        Each unit is read once in the life of a store, as L only moves forward.
        """
        if self._lowest is None or not self._release_queue.is_pending(*self._lowest[:2])[0]:
            self._lowest = self._find_lowest()
        return None if self._lowest is None else self._lowest[2]

    def _find_lowest(self) -> tuple[Rows, Rows, int] | None:
        for start, end in self._units.blocks(self.low_unit, _FIRST_BLOCK_UNITS):
            units, run = self._units.read_rows(start, end, is_checked=True)  # units below L are never read again
            for at in np.flatnonzero(self._release_queue.is_pending(units, run))[:1].tolist():
                self.low_unit = start + at
                row = run[at : at + 1].copy()
                (body,) = self._body_reader.read(row)
                return units[at : at + 1].copy(), row, body.offset  # the offset of a copy is not its origin
            self.low_unit = end
        return None
