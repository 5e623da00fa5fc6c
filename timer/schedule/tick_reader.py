"""Read the pending rows of ticks from the TimerLog, and keep those of one turn."""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.files.segment_log import UnitLog
from timer.files.wheel import Wheel
from timer.format.unit import MAGIC_DELETE, MAGIC_UNCHAINED, NO_ROWS, Rows, joined
from timer.index.segment_liveness import EndedUnits
from timer.schedule.pending_keys import Waits, pending_by_key

_SCAN_UNITS = 1 << 16
_FIRST_BLOCK_UNITS = 16
_SPARSE_UNITS = 512
"""Units per pending unit of a tick from which following the chain is cheaper than reading the log through."""
_MAX_TICKS = 64
_MAX_CACHED_ROWS = 1 << 18


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
            units, run = self._units.read_rows(start, number + 1, is_checked=True)
            own = (run["visit_ms"] // self._wheel.tick_ms == tick) & (units["magic"] & MAGIC_UNCHAINED == 0)
            if not own[-1]:
                raise CorruptStoreError(f"wheel, tick {tick}", f"unit {number} belongs to another tick")
            found.append(run[own & (units["magic"] & MAGIC_DELETE == 0) & ~self._ended.flags(start, number + 1)])
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


class LoadedTicks:
    """The ticks that one turn loads, each once for all targets."""

    def __init__(self, load: Callable[[int], Rows]) -> None:
        self._load = load
        self._rows: dict[int, Rows] = {}
        self._large: tuple[int, Rows] = -1, NO_ROWS
        self._kept = 0
        self._left = _MAX_TICKS

    def get(self, tick: int) -> Rows | None:
        """Return the rows of a tick, None if this turn has loaded enough ticks."""
        rows = self._large[1] if tick == self._large[0] else self._rows.get(tick)
        if rows is None and self._left > 0:
            rows = self._load(tick)
            self._left -= 1
            if self._kept + len(rows) <= _MAX_CACHED_ROWS:
                self._rows[tick] = rows
                self._kept += len(rows)
            else:  # the last one, as the next target asks for the same
                self._large = tick, rows
        return rows
