"""Counters and histograms that one thread adds to and any thread reads, without a lock.

    tally.add("orders", amount=4000)                {("orders",): 4000}
    histogram.add(np.array([0.0, 0.003, 0.012]))    one pass of numpy, whatever the batch's size

A reader never sees half of a batch: an update of more than one step replaces the state.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Labels = tuple[str, ...]

OTHER = "other"


class LabelledSums:
    """Sums by labels. Labels of `known` start at 0, so that the first event of a kind is an increase."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._sums: dict[Labels, float] = {(label,): 0 for label in known}

    def add(self, *labels: str, amount: float = 1) -> None:
        self._sums[labels] = self._sums.get(labels, 0) + amount

    def read(self) -> dict[Labels, float]:
        return self._sums.copy()


class Histogram:
    """Counts of values up to each of `bounds` (ascending, inclusive), and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._bounds = np.array(bounds, np.float64)
        self._state = np.zeros(len(bounds) + 1, np.int64), 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        within = self._bounds.searchsorted(values, side="left")
        counts, total = self._state
        self._state = counts + np.bincount(within, minlength=len(counts)), total + float(values.sum())

    def add_one(self, value: float) -> None:
        counts, total = self._state
        counts = counts.copy()
        counts[bisect_left(self.bounds, value)] += 1
        self._state = counts, total + value

    def read(self) -> tuple[list[int], float]:
        """Return cumulative counts, the last one of all values, and the sum."""
        counts, total = self._state
        return np.cumsum(counts).tolist(), total


class LabelNames:
    """Gives the first `most` names a label of their own, and all others `other`: senders choose names of topics."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name

    def labelled(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return counts by label; those of names without an own label are added up."""
        sums: dict[str, int] = {}
        for name, count in counts.items():
            label = self.label(name)
            sums[label] = sums.get(label, 0) + count
        return sums
