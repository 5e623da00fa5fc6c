"""The pending units of the TimerLog, in the order of the log, from the lowest one on."""

import numpy as np
from numpy.typing import NDArray

from timer.files.body_reader import BodyReader
from timer.files.segment_log import UnitLog
from timer.format.unit import MAGIC_DELETE, NO_ROWS, Rows
from timer.index.segment_liveness import EndedUnits
from timer.schedule.pending_keys import pending_in_order
from timer.schedule.release_queue import ReleaseQueue

_READ_UNITS = 256
_LOOKED_AT_UNITS = 16


class PendingLog:
    """Raises CorruptStoreError."""

    def __init__(self, units: UnitLog, body_reader: BodyReader, release_queue: ReleaseQueue, ended: EndedUnits) -> None:
        self._units = units
        self._ended = ended
        self._body_reader = body_reader
        self._release_queue = release_queue
        self.low_unit = units.end
        """No unit below is pending."""
        self._lowest = (-1, -1)
        """The lowest pending unit as of the last call, and the offset of its request."""
        self._read: tuple[Rows, Rows] = NO_ROWS, NO_ROWS
        """Units from `low_unit` on that were read ahead, and the same as TIMER_ROW."""

    def _are_pending(self, units: Rows, run: Rows) -> NDArray[np.bool_]:
        """Return which of `units` of one segment are pending. run: the same units as TIMER_ROW."""
        queue = self._release_queue
        is_in_order = pending_in_order(units, run, queue.settled, queue.key_ranges())
        start = int(run["unit"][0])
        ended = (units["magic"] & MAGIC_DELETE != 0) | self._ended.flags(start, start + len(run))
        found: NDArray[np.bool_] = (is_in_order | queue.out_of_order.has(run["unit"])) & ~ended
        return found

    def rows(self, start: int, end: int) -> Rows:
        """Return the pending rows among units [start, end) of one segment, none if it was deleted."""
        if not self._units.has(start):
            return NO_ROWS
        units, run = self._units.read_rows(start, end)
        pending: Rows = run[self._are_pending(units, run)]
        return pending

    def low_offset(self) -> int | None:
        """Return the lowest pending offset, None if nothing is pending.

        Each unit is read once in the life of a store, as L only moves forward.
        """
        row = self._first_pending()
        if row is None:
            return None
        if self.low_unit != self._lowest[0]:
            (body,) = self._body_reader.read(row)
            self._lowest = self.low_unit, body.offset  # the offset of a copy is not its origin
        return self._lowest[1]

    def _first_pending(self) -> Rows | None:
        """Return the first pending row. `low_unit` becomes its unit, or the end of the log if there is none."""
        if (row := self._first_read_ahead()) is not None:
            return row
        for start, end in self._units.blocks(self.low_unit, _READ_UNITS):
            self.low_unit = start
            self._read = self._units.read_rows(start, end, is_checked=True)  # units below L are never read again
            if (row := self._first_read_ahead()) is not None:
                return row
        return None

    def _first_read_ahead(self) -> Rows | None:
        """Return the first pending row of the units that were read ahead; drop the ones before it."""
        count = _LOOKED_AT_UNITS
        while len(self._read[0]):
            units, run = self._read
            found = np.flatnonzero(self._are_pending(units[:count], run[:count]))
            passed = int(found[0]) if len(found) else min(count, len(units))
            self._read = units[passed:], run[passed:]
            self.low_unit += passed
            if len(found):
                first: Rows = run[passed : passed + 1]
                return first
            count *= 4
        return None

    def forget_read_ahead(self) -> None:
        """Read units again, as some have other body positions now."""
        self._read = NO_ROWS, NO_ROWS
