"""Keep a store durable and its files few: checkpoints, deletion of segments, compaction.

    start -> logs durable -> checkpoint durable -> segments without pending rows deleted     polled once a turn
    compact_some                                                                             one step each turn

A compaction moves the few pending bodies of a large file to the end of the body log, so that the file can be deleted:

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

from kafka_timer.headers import MAX_INT64
from timer.disk import Disk
from timer.errors import UnreadableError
from timer.format.checkpoint import Checkpoint
from timer.format.unit import Ints, Rows
from timer.options import StoreOptions
from timer.store import CheckpointWriter
from timer.wheel.pending_units import WheelTimers
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
        """True if a durable checkpoint with this end of the body log holds every copy (step 2)."""
        return self._copied_to is not None and body_end >= self._copied_to

    def repoint_some(self) -> tuple[Rows, Ints]:
        """Run a part of step 3, until `is_over`. Return pending rows as they were, and their new body positions."""
        numbers, positions = self._moved.pop()
        rows = [self._live_rows(unit, unit + 1) for unit in numbers.tolist()]
        alive = np.array([len(row) > 0 for row in rows], np.bool_)
        for unit, position in zip(numbers[alive].tolist(), positions[alive].tolist(), strict=True):
            self._units.repoint(unit, position)
        return np.concatenate(rows), positions[alive]

    @property
    def is_over(self) -> bool:
        return self._copied_to is not None and not self._moved


@dataclass(eq=False)
class Maintenance:
    _disk: Disk
    _options: StoreOptions
    _unit_log: UnitLog
    _body_log: FrameLog
    _timers: WheelTimers

    def __post_init__(self) -> None:
        self._compaction: Compaction | None = None

    # -- checkpoints

    def deletable(self, before_ms: int) -> tuple[list[int], list[int]]:
        """Return segments of the TimerLog and the body log without pending rows and wake-up times from `before_ms` on.

        Never the newest ones, and never one that the chain of a pending unit passes through.
        """
        bases, running = self._body_log.bases()[:-1], self._compaction
        if running is not None and running.first_copy is not None:
            bases = [base for base in bases if self._body_log.file_end(base) <= running.first_copy]
        units = self._timers.index.units.deletable(self._unit_log.segments()[:-1], before_ms)
        return units, self._timers.index.bodies.deletable(bases, MAX_INT64)

    def start(self, checkpoint: Checkpoint, dead_units: list[int], dead_bodies: list[int]) -> CheckpointWriter:
        """Start to make `checkpoint` durable, which does not name dead segments. Raises OSError, UnreadableError."""
        try:
            files = self._unit_log.take_dirty() + self._body_log.take_dirty()
            logs = self._disk.start_sync(files)
        except (OSError, UnreadableError):
            self.restore_dirty()
            raise
        return CheckpointWriter(checkpoint, logs, dead_units, dead_bodies)

    def restore_dirty(self) -> None:
        """Sync the files again that were taken last: it is unknown which of their bytes are durable."""
        self._unit_log.restore_dirty()
        self._body_log.restore_dirty()

    def delete_dead(self, written: CheckpointWriter) -> None:
        """Delete the dead segments of a checkpoint that is durable now."""
        for segment in written.dead_units:
            self._unit_log.drop_segment(segment)
            self._timers.index.units.forget(segment)
            self._timers.index.ended.forget(segment)
        for base in written.dead_bodies:
            self._body_log.drop_segment(base)
            self._timers.index.bodies.forget(base)

    # -- compaction

    @property
    def is_compacting(self) -> bool:
        return self._compaction is not None

    def compact_some(self, settled_ms: int, durable: Checkpoint | None) -> tuple[Ints, Ints] | None:
        """Run one bounded step. Return units whose bodies have moved and their new positions, None if there are none.

        settled_ms: K. Bodies that leave soon after K are not worth a copy. durable: the last checkpoint. Raises
        OSError if the disk is full.
        """
        running = self._compaction
        if running is None:
            self._compaction = self._worth_compacting(settled_ms + self._options.compact_ahead_ms)
            return None
        try:
            running.copy_some()
        except OSError:
            self._compaction = None
            raise
        moved = None
        if durable is not None and running.is_durable_at(durable.body_end) and not running.is_over:
            rows, positions = running.repoint_some()
            if len(rows):
                self._timers.index.move_bodies(rows, positions)
                moved = rows["unit"], positions
        if running.is_over:
            self._compaction = None
        return moved

    def _worth_compacting(self, far_ms: int) -> Compaction | None:
        bodies = self._timers.index.bodies
        for base in self._body_log.bases()[:-1]:
            live = bodies.live_bytes(base)
            size = self._body_log.file_end(base) - base
            if 0 < live < size * self._options.compact_below and bodies.last_visit_ms(base) > far_ms:
                return Compaction(self._unit_log, self._body_log, self._timers.rows, base, *bodies.units(base))
        return None
