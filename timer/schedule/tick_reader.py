"""Read the pending rows of a tick from the TimerLog."""

from dataclasses import dataclass

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.files.segment_log import UnitLog
from timer.files.wheel import Wheel
from timer.format.unit import MAGIC_DELETE, MAGIC_UNCHAINED, Rows, joined, run_of, visits_ms
from timer.index.segment_liveness import EndedUnits
from timer.maintenance.startup_scan import Waits, pending_by_key

_SCAN_UNITS = 1 << 16
_FIRST_BLOCK_UNITS = 16
_SPARSE_UNITS = 512
"""Units per pending unit of a tick from which following the chain is cheaper than reading the log through."""


@dataclass(frozen=True, slots=True)
class TickReader:
    """Reads the units of one tick from its last to its first."""

    _units: UnitLog
    _wheel: Wheel
    _ended: EndedUnits

    def read(self, tick: int, settled: Key, waits: Waits) -> Rows:
        """Return the pending rows of `tick`: along its chain if that is sparse, else block by block.

        Raises CorruptStoreError, also if their number is not that of the slot.
        """
        first, last, live = self._wheel.slot(tick)
        number, stop = self._units.number(last), self._units.number(first)
        found: list[Rows] = []
        block = _SCAN_UNITS if live * _SPARSE_UNITS >= number - stop else _FIRST_BLOCK_UNITS
        while number >= stop:
            start = max(stop, self._units.segment(number) * self._units.per_segment, number - block + 1)
            units, extra = self._units.read_checked(start, number + 1)
            own = (visits_ms(units) // self._wheel.tick_ms == tick) & (units["magic"] & MAGIC_UNCHAINED == 0)
            if not own[-1]:
                raise CorruptStoreError(f"wheel, tick {tick}", f"unit {number} belongs to another tick")
            run = run_of(units, extra, start)
            found.append(run[own & (units["magic"] & MAGIC_DELETE == 0) & ~self._ended.flags(start, number + 1)])
            earliest = int(own.argmax())
            number = self._previous_unit(int(units["previous"][earliest]), start + earliest)
        run = joined(found)
        run = run[pending_by_key(run, settled, waits)]
        if len(run) != live:
            raise CorruptStoreError(f"wheel, tick {tick}", f"{len(run)} live units where the slot counts {live}")
        return run

    def _previous_unit(self, position: int, unit: int) -> int:
        """Return the number of the unit before `unit` in its chain, -1 for the first."""
        number = self._units.number(position) if position >= 0 else -1
        if number >= unit:
            raise CorruptStoreError(f"timer, unit {unit}", f"previous is {number}, which is not before it")
        return number
