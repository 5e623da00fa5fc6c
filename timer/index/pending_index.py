"""Index in memory of all pending timers: ids, due times, and bytes by segment of both logs."""

from collections.abc import Callable

from timer.format.unit import Ints, Rows
from timer.index.due_counts import DueCounts
from timer.index.id_index import IdIndex
from timer.index.origin_index import OriginIndex
from timer.index.segment_liveness import EndedUnits, LiveCounts


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
        moved = run.copy()
        moved["body"] = positions
        self.bodies.add(self._bases_of(positions), moved)
        self.bodies.remove(self._bases_of(run["body"]), run)

    def retain_until(self, unit: int, visit_ms: int) -> None:
        """Keep the segment of `unit` until `visit_ms` has passed, though the unit is not a pending timer."""
        self.units.retain_until(unit // self._per_segment, visit_ms)
