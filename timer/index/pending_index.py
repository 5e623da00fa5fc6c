"""Index in memory of all pending timers: ids, due times, and bytes by segment of both logs.

A segment without pending bytes can be deleted when its wake-up times have passed.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import Ints, Rows
from timer.index.due_counts import DueCounts
from timer.index.id_index import IdIndex, OriginIndex

_FEW = 64
"""Up to this many rows, lists are faster than numpy."""
_BYTES, _LAST_MS, _FIRST_UNIT, _LAST_UNIT = range(4)


class LiveCounts:
    """Bytes of pending rows, latest wake-up time, first and last unit, by segment. -1: unknown."""

    def __init__(self) -> None:
        self._segments: dict[int, list[int]] = {}

    def _of(self, segment: int) -> list[int]:
        return self._segments.setdefault(segment, [-1, -1, -1, -1])

    def add(self, segments: Ints, run: Rows) -> None:
        """Add rows. segments: the segment of each row."""
        first_of_all = int(segments[0])
        is_one = bool((segments == first_of_all).all())
        if is_one and len(run) <= _FEW:
            sizes, visits_ms, units = run["body_size"].tolist(), run["visit_ms"].tolist(), run["unit"].tolist()
            self._add(first_of_all, sum(sizes), max(visits_ms), min(units), max(units))
            return
        for segment in [first_of_all] if is_one else np.unique(segments).tolist():
            own = run if is_one else run[segments == segment]
            size, visit_ms = int(own["body_size"].sum(dtype=np.int64)), int(own["visit_ms"].max())
            self._add(segment, size, visit_ms, int(own["unit"].min()), int(own["unit"].max()))

    def _add(self, segment: int, size: int, visit_ms: int, first_unit: int, last_unit: int) -> None:
        own = self._of(segment)
        own[_BYTES] = max(own[_BYTES], 0) + size
        own[_LAST_MS] = max(own[_LAST_MS], visit_ms)
        own[_FIRST_UNIT] = first_unit if own[_FIRST_UNIT] < 0 else min(own[_FIRST_UNIT], first_unit)
        own[_LAST_UNIT] = max(own[_LAST_UNIT], last_unit)

    def state(self) -> Ints:
        """Return rows of (segment, bytes, last wake-up time, first unit, last unit), as a set orders the segments."""
        rows = [(segment, *self._segments[segment]) for segment in set(self._segments)]
        return np.array(rows, np.int64).reshape(-1, 5)

    @classmethod
    def restored(cls, state: Ints) -> "LiveCounts":
        counts = cls()
        counts._segments = {segment: own for segment, *own in state.tolist()}
        return counts

    def retain_until(self, segment: int, visit_ms: int) -> None:
        own = self._of(segment)
        own[_LAST_MS] = max(own[_LAST_MS], visit_ms)

    def remove(self, segments: Ints, run: Rows) -> None:
        if len(run) <= _FEW:
            for segment, size in zip(segments.tolist(), run["body_size"].tolist(), strict=True):
                self._segments[segment][_BYTES] -= size
            return
        ids, where = np.unique(segments, return_inverse=True)
        sizes = np.bincount(where, weights=run["body_size"], minlength=len(ids))
        for segment, size in zip(ids.tolist(), sizes.tolist(), strict=True):
            self._segments[segment][_BYTES] -= int(size)

    def deletable(self, segments: list[int], visits_before_ms: int) -> list[int]:
        """Return those of `segments` without pending bytes and without wake-up times from `visits_before_ms` on."""
        return [s for s in segments if self.live_bytes(s) == 0 and self.last_visit_ms(s) < visits_before_ms]

    def all_bytes(self) -> int:
        return sum(map(self.live_bytes, self._segments))

    def live_bytes(self, segment: int) -> int:
        return max(self._segments[segment][_BYTES], 0) if segment in self._segments else 0

    def last_visit_ms(self, segment: int) -> int:
        return self._segments[segment][_LAST_MS] if segment in self._segments else -1

    def units(self, segment: int) -> tuple[int, int]:
        """Return the first and last unit that had a row in `segment`."""
        return self._segments[segment][_FIRST_UNIT], self._segments[segment][_LAST_UNIT]

    def forget(self, segment: int) -> None:
        self._segments.pop(segment, None)


class EndedUnits:
    """Units that ended although their key is above K: one flag a unit, in segments that have any."""

    def __init__(self, per_segment: int) -> None:
        self._per_segment = per_segment
        self._flags: dict[int, NDArray[np.bool_]] = {}

    def mark(self, units: Iterable[int]) -> None:
        for unit in units:
            segment, within = divmod(unit, self._per_segment)
            if segment not in self._flags:
                self._flags[segment] = np.zeros(self._per_segment, np.bool_)
            self._flags[segment][within] = True

    def state(self) -> Ints:
        found = [segment * self._per_segment + np.flatnonzero(flags) for segment, flags in self._flags.items()]
        return np.concatenate([np.empty(0, np.int64), *found])

    def flags(self, start: int, end: int) -> NDArray[np.bool_]:
        """Return the flags of units [start, end) of one segment."""
        segment, within = divmod(start, self._per_segment)
        flags = self._flags.get(segment)
        return np.zeros(end - start, np.bool_) if flags is None else flags[within : within + end - start]

    def forget(self, segment: int) -> None:
        self._flags.pop(segment, None)


class PendingIndex:
    """per_segment: units in a file of the TimerLog. bases_of: returns the body files of positions."""

    def __init__(self, per_segment: int, bases_of: Callable[[Ints], Ints], target_of: Callable[[Rows], str]) -> None:
        self._per_segment = per_segment
        self._bases_of = bases_of
        self.pending = 0
        self.ids = IdIndex()
        self.origins: OriginIndex | None = None
        """None until the first search by origin."""
        self.dues = DueCounts(target_of)
        self.ended = EndedUnits(per_segment)
        self.units = LiveCounts()
        """By segment of the TimerLog."""
        self.bodies = LiveCounts()
        """By file of the body log."""

    def add(self, run: Rows) -> None:
        if len(run) == 0:
            return
        self.pending += len(run)
        self.dues.add(run)
        self.units.add(run["unit"] // self._per_segment, run)
        self.bodies.add(self._bases_of(run["body"]), run)
        with_id = run[run["id_hash"] != 0]
        if len(with_id):
            self.ids.insert(with_id["id_hash"], with_id["unit"])
        if self.origins is not None:
            self.origins.add(run)

    def remove(self, run: Rows) -> None:
        if len(run) == 0:
            return
        self.pending -= len(run)
        self.dues.remove(run)
        self.units.remove(run["unit"] // self._per_segment, run)
        self.bodies.remove(self._bases_of(run["body"]), run)
        with_id = run[run["id_hash"] != 0]
        if len(with_id):
            self.ids.remove(with_id["id_hash"], with_id["unit"])
        if self.origins is not None:
            self.origins.remove(run)

    def move_bodies(self, run: Rows, positions: Ints) -> None:
        """Count the bodies of `run` at `positions`."""
        self.bodies.add(self._bases_of(positions), run)
        self.bodies.remove(self._bases_of(run["body"]), run)
