"""A few long timers must not keep a large file of bodies: they move to the end of the body log, and the file goes.

    1 copy      their frames to the end, some in each step                    the units still point to the old ones
    2 wait      until a checkpoint has made the copies durable
    3 repoint   the units, in place, some in each step                        old and new frames both stand
    4 the old file holds nothing live: it goes behind the next checkpoint, as any other

At each crash point every unit points to a frame that is there. A unit torn while it is overwritten points to bytes
that are not its own, which the reading notices, as it does all damage.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from timer.files.segment_log import FrameLog, UnitLog
from timer.format.unit import Ints, Rows

_STEP_UNITS = 4096


@dataclass(eq=False)
class Compaction:
    """Of the body file `base`, whose live units lie in [next, last]. `live_rows(start, end)`: those of a stretch."""

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
        """From here on the body log holds copies that no unit points to yet: none of its files may go."""

    def copy_some(self) -> None:
        """Step 1. Raises OSError where the disk is full: then it is to be given up, the copies are dead bytes."""
        if self._copied_to is not None:
            return
        segment = self._units.segment(self._next)
        end = min(self._last + 1, (segment + 1) * self._units.per_segment, self._next + _STEP_UNITS)
        rows = self._live_rows(self._next, end)
        rows = rows[(rows["body"] >= self._base) & (rows["body"] < self._end)]
        if len(rows):
            frames = [
                self._bodies.read(position, size)
                for position, size in zip(rows["body"].tolist(), rows["body_size"].tolist(), strict=True)
            ]
            copies = self._bodies.append(frames)
            self._moved.append((rows["unit"].copy(), copies))
            if self.first_copy is None:
                self.first_copy = int(copies[0])
        self._next = end
        if self._next > self._last:
            self._copied_to = self._bodies.end

    def is_durable_at(self, body_end: int) -> bool:
        """Step 2: whether a durable checkpoint with this end of the body log holds every copy."""
        return self._copied_to is not None and body_end >= self._copied_to

    def repoint_some(self) -> tuple[Rows, Ints]:
        """Step 3: live rows as they were, and the positions their units have now; to be called until `is_over`."""
        numbers, positions = self._moved.pop()
        rows = [self._live_rows(unit, unit + 1) for unit in numbers.tolist()]
        alive = np.array([len(row) > 0 for row in rows], np.bool_)
        for unit, position in zip(numbers[alive].tolist(), positions[alive].tolist(), strict=True):
            self._units.repoint(unit, position)
        return np.concatenate(rows), positions[alive]

    @property
    def is_over(self) -> bool:
        return self._copied_to is not None and not self._moved
