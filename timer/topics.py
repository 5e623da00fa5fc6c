"""Live timers per real topic, counted as they come and go; exact after a restart, as it is counted anew from the log.

Counted by the topic's hash, which every unit has; a name is looked up in a body once. Two topics whose names share
Java's hash code are counted together, under the name that was seen first.
"""

from collections.abc import Callable

import numpy as np

from timer.entry import Rows


class TopicCounts:
    """`target_of(row)` tells a name."""

    def __init__(self, target_of: Callable[[Rows], str]) -> None:
        self._target_of = target_of
        self._counts: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def add(self, run: Rows) -> None:
        hashes, first, counts = np.unique(run["topic_hash"], return_index=True, return_counts=True)
        for hash_, at, count in zip(hashes.tolist(), first.tolist(), counts.tolist(), strict=True):
            if hash_ not in self._names:
                self._names[hash_] = self._target_of(run[at : at + 1])
            self._counts[hash_] = self._counts.get(hash_, 0) + count

    def remove(self, run: Rows) -> None:
        hashes, counts = np.unique(run["topic_hash"], return_counts=True)
        for hash_, count in zip(hashes.tolist(), counts.tolist(), strict=True):
            self._counts[hash_] -= count

    def counts(self) -> dict[str, int]:
        """By name, without those that have none."""
        return {self._names[hash_]: count for hash_, count in sorted(self._counts.items()) if count}
