"""Queues of pending timers in memory: those of open ticks in their order, and those that are out of order.

RowQueue has the order (visit_ms, origin offset). A cut is always at a full key.

    runs, each sorted          take(now=12, limit=3)
    [10/1 12/4 13/0]           -> 10/1 11/2 12/3     the cut may lie inside equal times:
    [11/2 12/3]                   12/4 stays, though it is due

A tick that opens is one run; requests for open ticks are small runs. Many small runs are merged into one.

OutOfOrderTimers are those whose key has passed, so that K says nothing about them. The journal names each. One waits
for its wake-up time (the clock went back before K, or its copy would roll again soon), then perhaps for its target,
which is blocked (timer.schedule.blocked_targets).
"""

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.format.unit import NO_ROWS, Ints, Rows, isin, joined

_MAX_RUNS = 16


def in_order(run: Rows) -> Rows:
    return run[np.lexsort((run["origin"], run["visit_ms"]))]


def last_key(rows: Rows) -> Key:
    return Key(int(rows["visit_ms"][-1]), int(rows["origin"][-1]))


def earliest(*times_ms: int | None) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


class RowQueue:
    """Sorted runs of pending timers: rows, never bodies."""

    def __init__(self) -> None:
        self._runs: list[Rows] = []
        self.first_ms: int | None = None
        """The earliest wake-up time."""

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def rows(self) -> Rows:
        return in_order(joined(self._runs))

    def push(self, run: Rows) -> None:
        if len(run) == 0:
            return
        runs = [*self._runs, in_order(run)]
        self._set_runs(runs if len(runs) <= _MAX_RUNS else [in_order(joined(runs))])

    def remove(self, values: Ints | list[int], column: str = "unit") -> None:
        """Remove the rows with one of `values` in `column`; other values are ignored."""
        kept = [run[~isin(run[column], values)] for run in self._runs]
        self._set_runs([run for run in kept if len(run)])

    def _set_runs(self, runs: list[Rows]) -> None:
        self._runs = runs
        self.first_ms = min((int(run["visit_ms"][0]) for run in runs), default=None)

    def repoint(self, units: Ints, bodies: Ints) -> None:
        """Set the body positions of the rows of `units`; other units are ignored."""
        by_unit = np.argsort(units)
        for run in self._runs:
            at = np.minimum(np.searchsorted(units, run["unit"], sorter=by_unit), len(units) - 1)
            hit = units[by_unit[at]] == run["unit"]
            run["body"][hit] = bodies[by_unit[at]][hit]

    def take(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Remove and return the first rows with visit_ms <= now_ms: at most `limit`, bodies of at most `limit_bytes`.

        The first row is returned whatever its size.
        """
        if self.first_ms is None or self.first_ms > now_ms:
            return NO_ROWS
        counts = [min(limit, int(run["visit_ms"].searchsorted(now_ms, side="right"))) for run in self._runs]
        due = joined(run[:count] for run, count in zip(self._runs, counts, strict=True))
        of_run = np.repeat(np.arange(len(counts)), counts)
        if len(due) > max(counts):  # else all are of one run, in order
            order = np.lexsort((due["origin"], due["visit_ms"]))[:limit]
            due, of_run = due[order], of_run[order]
        fits = max(1, int(due["body_size"].cumsum(dtype=np.int64).searchsorted(limit_bytes, side="right")))
        taken = np.bincount(of_run[:fits], minlength=len(counts)).tolist()
        self._set_runs([run[count:] for run, count in zip(self._runs, taken, strict=True) if count < len(run)])
        return due[:fits]


class OutOfOrderTimers:
    def __init__(self) -> None:
        self.queue = RowQueue()
        """Rows whose target is not blocked."""
        self._units: set[int] = set()
        """Of all out-of-order timers, blocked ones included."""

    def __len__(self) -> int:
        return len(self._units)

    def has(self, units: Ints) -> NDArray[np.bool_]:
        if not self._units:
            return np.zeros(len(units), np.bool_)
        return np.fromiter((unit in self._units for unit in units.tolist()), np.bool_, len(units))

    def push(self, run: Rows) -> None:
        self._units.update(run["unit"].tolist())
        self.queue.push(run)

    def remove(self, units: Ints) -> None:
        """Remove `units`; those in order are ignored."""
        units = units[self.has(units)]
        if len(units):
            self.queue.remove(units)
            self._units.difference_update(units.tolist())

    def forget(self, run: Rows) -> None:
        """Note that `run`, which was taken from a queue, leaves."""
        self._units.difference_update(run["unit"].tolist())
