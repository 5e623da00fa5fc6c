"""Find first and last due times that DueCounts does not know, hour by hour."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from timer.format.unit import Rows
from timer.index.due_counts import HOUR_MS, DueBound, DueCounts, DueRange


@dataclass(frozen=True, slots=True)
class DueRangeSearch:
    """How to read the pending rows of an hour. The functions yield rows block by block."""

    _dues: DueCounts
    _rows_of_hour: Callable[[int], Iterator[Rows]]
    """Rows out of order, then the rows of each tick of the hour (since the epoch), ascending."""
    _all_rows: Callable[[], Iterator[Rows]]

    def ranges(self, is_over: Callable[[], bool], *, needs_last: bool) -> dict[str, DueRange]:
        """Return the due range by topic.

        Unknown times are searched in their hour, or in all rows if timers of that hour roll first. If `is_over()`
        returns True before that is done, or for last times without `needs_last`, they are exact to the hour.
        """
        bounds = [bound for bound in self._dues.unknown() if needs_last or not bound.is_last]
        for hour in sorted({bound.hour for bound in bounds}):
            if is_over():
                break
            here = {bound for bound in bounds if bound.hour == hour}
            for bound, due_ms in self._find(hour, here, is_over).items():
                self._dues.learn(bound, due_ms)
        return self._dues.ranges()

    def _find(self, hour: int, bounds: set[DueBound], is_over: Callable[[], bool]) -> Mapping[DueBound, int]:
        found: dict[DueBound, int] = {}
        sure: set[DueBound] = set()
        is_in_order = not self._dues.has_rolled(hour)
        for number, run in enumerate(self._rows_of_hour(hour) if is_in_order else self._all_rows()):
            if is_over():
                return {bound: found[bound] for bound in sure}
            for first, first_ms, last, last_ms in _bounds_in(run, hour):
                if first in bounds:
                    found[first] = min(found.get(first, first_ms), first_ms)
                    if is_in_order and number > 0:  # run 0 is out of order
                        sure.add(first)
                if last in bounds:
                    found[last] = max(found.get(last, last_ms), last_ms)
            if sure == bounds:  # last times are sure only after all runs
                break
        return found


def _bounds_in(run: Rows, hour: int) -> Iterator[tuple[DueBound, int, DueBound, int]]:
    """Yield the first and the last due time in `hour` of each topic in `run`."""
    dues = run["due_ms"]
    here = np.flatnonzero(dues // HOUR_MS == hour)
    if len(here):
        here = here[np.lexsort((dues[here], run["topic_hash"][here]))]
        hashes = run["topic_hash"][here]
        ends = [*(np.flatnonzero(np.diff(hashes)) + 1).tolist(), len(here)]
        start = 0
        for end in ends:
            hash_ = int(hashes[start])
            yield (
                DueBound(hash_, hour, False),
                int(dues[here[start]]),
                DueBound(hash_, hour, True),
                int(dues[here[end - 1]]),
            )
            start = end
