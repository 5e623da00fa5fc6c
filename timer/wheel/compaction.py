"""Move the few pending bodies of a large file to the end of the body log, so that the file can be deleted.

    1 copy      some frames in each step to the end                           the units still point to the old ones
    2 wait      until a checkpoint has made the copies durable
    3 repoint   some units in each step, in place                             old and new frames both exist
    4 delete    the old file has no pending bodies: after the next checkpoint, like any other

At each crash point every unit points to an existing frame. A unit torn while it is overwritten points to other bytes;
the reader notices that like any damage.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from timer.format.unit import Ints, Rows
from timer.wheel.timer_log import FrameLog, UnitLog

_STEP_UNITS = 4096


@dataclass(eq=False)
class Compaction:
    """One compaction of the body file `base`, whose pending units are in [next, last]."""

    _units: UnitLog
    _bodies: FrameLog
    _live_rows: Callable[[int, int], Rows]
    _base: int
    _next: int
    _last: int

    def __post_init__(self) -> None:
        self._end = self._bodies.file_end(self._base)
        self._moved: list[tuple[Ints, Ints]] = []
        self._copied_to: int | None = None
        """End of the body log when the last frame was copied."""
        self.first_copy: int | None = None
        """From here on the body log holds copies without units: none of its files may be deleted."""

    def copy_some(self) -> None:
        """Run a part of step 1. Raises OSError if the disk is full: drop the compaction, its copies are garbage."""
        if self._copied_to is not None:
            return
        segment = self._units.segment(self._next)
        end = min(self._last + 1, (segment + 1) * self._units.per_segment, self._next + _STEP_UNITS)
        rows = self._live_rows(self._next, end)
        rows = rows[(rows["body"] >= self._base) & (rows["body"] < self._end)]
        if len(rows):
            places = zip(rows["body"].tolist(), rows["body_size"].tolist(), strict=True)
            copies = self._bodies.append([self._bodies.read(*place) for place in places])
            self._moved.append((rows["unit"].copy(), copies))
            if self.first_copy is None:
                self.first_copy = int(copies[0])
        self._next = end
        if self._next > self._last:
            self._copied_to = self._bodies.end

    def repoint_some(self, durable_end: int) -> tuple[Rows, Ints] | None:
        """Run a part of step 3 if a durable checkpoint with this end of the body log holds every copy (step 2).

        Return pending rows as they were, and their new body positions.
        """
        if self._copied_to is None or durable_end < self._copied_to or self.is_over:
            return None
        numbers, positions = self._moved.pop()
        rows = [self._live_rows(unit, unit + 1) for unit in numbers.tolist()]
        alive = np.array([len(row) > 0 for row in rows], np.bool_)
        for unit, position in zip(numbers[alive].tolist(), positions[alive].tolist(), strict=True):
            self._units.repoint(unit, position)
        return np.concatenate(rows), positions[alive]

    @property
    def is_over(self) -> bool:
        return self._copied_to is not None and not self._moved
