"""The ticks that one turn loads, each once for all targets."""

from collections.abc import Callable

from timer.format.unit import NO_ROWS, Rows

_MAX_TICKS = 64
_MAX_CACHED_ROWS = 1 << 18


class LoadedTicks:
    """See the module. load: reads one tick."""

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
