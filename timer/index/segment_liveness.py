"""Pending and ended units by segment of a log, so that a segment without pending rows can be deleted."""

import numpy as np
from numpy.typing import NDArray

from schemas.headers import MAX_INT64
from timer.format.unit import Ints, Rows

_FEW = 64
_VERY_FEW = 8


class LiveCounts:
    """Bytes of pending rows, latest wake-up time, first and last unit, by segment."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._last_visit_ms: dict[int, int] = {}
        self._units: dict[int, tuple[int, int]] = {}

    def add(self, segments: Ints, run: Rows) -> None:
        """Add rows. segments: the segment of each row."""
        if len(run) <= _VERY_FEW:
            rows = zip(
                *(column.tolist() for column in (segments, run["body_size"], run["visit_ms"], run["unit"])), strict=True
            )
            for segment, size, visit_ms, unit in rows:
                self._add(segment, size, visit_ms, unit, unit)
            return
        first_of_all = int(segments[0])
        is_one = bool((segments == first_of_all).all())
        for segment in [first_of_all] if is_one else np.unique(segments).tolist():
            own = run if is_one else run[segments == segment]
            size, visit_ms = int(own["body_size"].sum(dtype=np.int64)), int(own["visit_ms"].max())
            self._add(segment, size, visit_ms, int(own["unit"].min()), int(own["unit"].max()))

    def _add(self, segment: int, size: int, visit_ms: int, first_unit: int, last_unit: int) -> None:
        self._bytes[segment] = self._bytes.get(segment, 0) + size
        self.retain_until(segment, visit_ms)
        first, last = self._units.get(segment, (MAX_INT64, -1))
        self._units[segment] = (min(first, first_unit), max(last, last_unit))

    def state(self) -> Ints:
        """Return rows of (segment, bytes, last wake-up time, first unit, last unit), -1 for unknown."""
        rows = [
            (s, self._bytes.get(s, -1), self._last_visit_ms.get(s, -1), *self._units.get(s, (-1, -1)))
            for s in self._bytes.keys() | self._last_visit_ms.keys() | self._units.keys()
        ]
        return np.array(rows, np.int64).reshape(-1, 5)

    @classmethod
    def restored(cls, state: Ints) -> "LiveCounts":
        counts = cls()
        for segment, size, last_visit_ms, first, last in state.tolist():
            if size >= 0:
                counts._bytes[segment] = size
            if last_visit_ms >= 0:
                counts._last_visit_ms[segment] = last_visit_ms
            if last >= 0:
                counts._units[segment] = (first, last)
        return counts

    def retain_until(self, segment: int, visit_ms: int) -> None:
        """Keep `segment` until `visit_ms` has passed."""
        self._last_visit_ms[segment] = max(self._last_visit_ms.get(segment, -1), visit_ms)

    def remove(self, segments: Ints, run: Rows) -> None:
        if len(run) <= _FEW:
            for segment, size in zip(segments.tolist(), run["body_size"].tolist(), strict=True):
                self._bytes[segment] -= size
            return
        ids, where = np.unique(segments, return_inverse=True)
        sizes = np.bincount(where, weights=run["body_size"], minlength=len(ids))
        for segment, size in zip(ids.tolist(), sizes.tolist(), strict=True):
            self._bytes[segment] -= int(size)

    def deletable(self, segments: list[int], visits_before_ms: int) -> list[int]:
        """Return those of `segments` without pending bytes and without wake-up times from `visits_before_ms` on."""
        return [s for s in segments if not self._bytes.get(s) and self._last_visit_ms.get(s, -1) < visits_before_ms]

    def all_bytes(self) -> int:
        """Return the live bytes of all segments."""
        return sum(self._bytes.values())

    def live_bytes(self, segment: int) -> int:
        return self._bytes.get(segment, 0)

    def last_visit_ms(self, segment: int) -> int:
        return self._last_visit_ms.get(segment, -1)

    def units(self, segment: int) -> tuple[int, int]:
        """Return the first and last unit that had a row in `segment`."""
        return self._units[segment]

    def forget(self, segment: int) -> None:
        self._bytes.pop(segment, None)
        self._last_visit_ms.pop(segment, None)
        self._units.pop(segment, None)


class EndedUnits:
    """Units that ended although their key is above K: one flag a unit, in segments that have any."""

    def __init__(self, per_segment: int) -> None:
        self._per_segment = per_segment
        self._flags: dict[int, NDArray[np.bool_]] = {}

    def mark(self, units: Ints) -> None:
        for unit in units.tolist():
            segment, within = divmod(unit, self._per_segment)
            if segment not in self._flags:
                self._flags[segment] = np.zeros(self._per_segment, np.bool_)
            self._flags[segment][within] = True

    def state(self) -> Ints:
        """Return the ended units."""
        found = [segment * self._per_segment + np.flatnonzero(flags) for segment, flags in self._flags.items()]
        return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)

    def flags(self, start: int, end: int) -> NDArray[np.bool_]:
        """Return the flags of units [start, end) of one segment."""
        segment, within = divmod(start, self._per_segment)
        flags = self._flags.get(segment)
        return np.zeros(end - start, np.bool_) if flags is None else flags[within : within + end - start]

    def forget(self, segment: int) -> None:
        self._flags.pop(segment, None)
