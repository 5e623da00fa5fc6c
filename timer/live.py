"""How much lives in each segment, so that one with nothing live can go, wherever it lies."""

import numpy as np

from timer.entry import Ints


class LiveCounts:
    """Live rows, and the latest visit ever seen, per segment."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._last_visit_ms: dict[int, int] = {}

    def add(self, segments: Ints, visits_ms: Ints) -> None:
        for segment in np.unique(segments).tolist():
            own = visits_ms[segments == segment]
            self._count[segment] = self._count.get(segment, 0) + len(own)
            self._last_visit_ms[segment] = max(self._last_visit_ms.get(segment, -1), int(own.max()))

    def remove(self, segments: Ints) -> None:
        ids, counts = np.unique(segments, return_counts=True)
        for segment, count in zip(ids.tolist(), counts.tolist(), strict=True):
            self._count[segment] -= count

    def dead(self, segments: list[int], visits_before_ms: int) -> list[int]:
        """Those of `segments` in which nothing lives and no visit lies at or behind `visits_before_ms`."""
        return [s for s in segments if not self._count.get(s) and self._last_visit_ms.get(s, -1) < visits_before_ms]

    def forget(self, segment: int) -> None:
        self._count.pop(segment, None)
        self._last_visit_ms.pop(segment, None)
