"""What keeps a store durable and its files few: checkpoints, the segments that go behind them, compaction.

    start -> logs durable -> checkpoint durable -> segments in which nothing lives go        asked once a turn
    compact_some                                                                             a piece of it each turn

What lives in which segment is counted here, and what a segment is still needed for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.headers import MAX_INT64
from schemas.progress import Progress
from timer.errors import UnreadableError
from timer.files.disk import Disk
from timer.files.segment_log import FrameLog, UnitLog
from timer.format.checkpoint import Checkpoint
from timer.format.unit import Ints, Rows
from timer.index.segment_liveness import EndedUnits, LiveCounts
from timer.maintenance.checkpoint_writer import Checkpointing
from timer.maintenance.compaction import Compaction
from timer.options import StoreOptions


@dataclass(eq=False)
class Upkeep:
    _disk: Disk
    _options: StoreOptions
    _unit_log: UnitLog
    _body_log: FrameLog
    _ended: EndedUnits
    _live_rows: Callable[[int, int], Rows]
    """Live rows among units [start, end) of one segment, for a compaction."""

    def __post_init__(self) -> None:
        self.units = LiveCounts()
        """By segment of the TimerLog."""
        self.durable: Checkpoint | None = None
        """The last one that was made since the store was opened."""
        self._bodies = LiveCounts()
        self._checkpointing: Checkpointing | None = None
        self._checkpointed: Progress | None = None
        self._compaction: Compaction | None = None

    # -- what lives where

    def state(self) -> tuple[Ints, Ints]:
        """Of the TimerLog and of the body log, for `restore`."""
        return self.units.state(), self._bodies.state()

    def restore(self, units: Ints, bodies: Ints) -> None:
        self.units = LiveCounts.restored(units)
        self._bodies = LiveCounts.restored(bodies)

    def count_in(self, run: Rows) -> None:
        self.units.add(run["unit"] // self._unit_log.per_segment, run)
        self._bodies.add(self._body_log.bases_of(run["body"]), run)

    def count_out(self, run: Rows) -> None:
        self.units.remove(run["unit"] // self._unit_log.per_segment, run)
        self._bodies.remove(self._body_log.bases_of(run["body"]), run)

    @property
    def live_body_bytes(self) -> int:
        return self._bodies.all_bytes()

    def see(self, unit: int, visit_ms: int) -> None:
        """`unit` is needed until `visit_ms` has passed, though nothing lives by it."""
        self.units.see(self._unit_log.segment(unit), visit_ms)

    # -- checkpoints

    @property
    def is_idle(self) -> bool:
        """No checkpoint is on its way."""
        return self._checkpointing is None

    def has_news(self, committed: Progress) -> bool:
        """Whether a checkpoint would tell anything that the last one does not."""
        return self._checkpointed != committed or self._compaction is not None

    def needs_none(self, committed: Progress) -> None:
        """As if one with that progress had been made."""
        self._checkpointed = committed

    def dead(self, before_ms: int) -> tuple[list[int], list[int]]:
        """Segments of the TimerLog and of the body log in which nothing lives, and no visit from `before_ms` on.

        Not the newest ones, and none that a live chain passes through: its visits lie before the tick of K.
        """
        bases, going = self._body_log.bases()[:-1], self._compaction
        if going is not None and going.first_copy is not None:
            bases = [base for base in bases if self._body_log.file_end(base) <= going.first_copy]
        return self.units.dead(self._unit_log.segments()[:-1], before_ms), self._bodies.dead(bases, MAX_INT64)

    def start(self, told: Checkpoint, dead_units: list[int], dead_bodies: list[int]) -> None:
        """Begins to make `told` durable, which knows nothing of the dead segments any more.

        Raises OSError where the disk refuses, UnreadableError.
        """
        try:
            files = self._unit_log.take_dirty() + self._body_log.take_dirty()
            logs = self._disk.start_sync(files)
        except (OSError, UnreadableError):
            self._give_back(has_failed=False)
            raise
        self._checkpointing = Checkpointing(self._disk, told, dead_units, dead_bodies, logs)

    def _give_back(self, *, has_failed: bool) -> None:
        """There is no checkpoint on its way. `has_failed`: nobody knows what of the logs is durable."""
        self._checkpointing = None
        self._unit_log.give_back(has_failed=has_failed)
        self._body_log.give_back(has_failed=has_failed)

    def go_on(self) -> bool:
        """True once no checkpoint is on its way. Raises OSError where the disk refuses: then there is none."""
        going = self._checkpointing
        if going is None:
            return True
        try:
            if not going.durable():
                return False
        except OSError:
            self._give_back(has_failed=going.replacing is None)
            raise
        self._checkpointing = None
        self._checkpointed = going.checkpoint.progress
        self.durable = going.checkpoint
        for segment in going.dead_units:
            self._unit_log.drop_segment(segment)
            self.units.forget(segment)
            self._ended.forget(segment)
        for base in going.dead_bodies:
            self._body_log.drop_segment(base)
            self._bodies.forget(base)
        return True

    def finish(self) -> None:
        """Waits for the one on its way. Raises OSError where the disk refuses."""
        going = self._checkpointing
        if going is None:
            return
        try:
            going.wait()
        except OSError:
            self._give_back(has_failed=going.replacing is None)
            raise
        self.go_on()

    def abandon(self) -> None:
        """Nothing of what is on its way happens later."""
        if self._checkpointing is not None:
            self._checkpointing.abandon()

    # -- compaction

    def compact_some(self, settled_ms: int) -> tuple[Rows, Ints] | None:
        """A bounded piece of work. Rows whose bodies lie elsewhere now, and where; None: none do.

        `settled_ms`: what is to leave soon behind it is not worth it. Raises OSError where the disk is full.
        """
        going = self._compaction
        if going is None:
            self._compaction = self._worth_compacting(settled_ms + self._options.compact_ahead_ms)
            return None
        try:
            going.copy_some()
        except OSError:
            self._compaction = None
            raise
        body_end = 0 if self.durable is None else self.durable.body_end
        moved = None
        if going.is_durable_at(body_end) and not going.is_over:
            rows, positions = going.repoint_some()
            if len(rows):
                moved = rows, positions
                self._count_moved(rows, positions)
        if going.is_over:
            self._compaction = None
        return moved

    def _worth_compacting(self, far_ms: int) -> Compaction | None:
        for base in self._body_log.bases()[:-1]:
            live = self._bodies.live_bytes(base)
            size = self._body_log.file_end(base) - base
            if 0 < live < size * self._options.compact_below and self._bodies.last_visit_ms(base) > far_ms:
                return Compaction(self._unit_log, self._body_log, self._live_rows, base, *self._bodies.units(base))
        return None

    def _count_moved(self, rows: Rows, positions: Ints) -> None:
        moved = rows.copy()
        moved["body"] = positions
        self._bodies.add(self._body_log.bases_of(moved["body"]), moved)
        self._bodies.remove(self._body_log.bases_of(rows["body"]), rows)
