"""Engine `wheel`: TimerLog, TimerWheel and body log, as RIP-43 describes them.

    add(batch) -> body log, TimerLog, wheel          due(now) -> ticks of the wheel -> TimerLog -> bodies

A delete mark ends a row; a delivery writes no mark. A segment without pending rows is deleted after a checkpoint that
does not name it is durable. Sparse files of the body log are compacted (timer.wheel.compaction).
"""

from collections.abc import Callable, Collection
from contextlib import ExitStack, closing

import numpy as np
from numpy.typing import NDArray

from kafka_timer.headers import MAX_INT64
from schemas.journal import Wait
from schemas.progress import Progress
from timer.disk import Disk, File, Syncing
from timer.errors import UnreadableError
from timer.format.batch import Batch
from timer.format.checkpoint import BODIES, IDS, UNITS, WHEEL, Checkpoint, runs
from timer.format.unit import MAGIC_UNCHAINED, TIMER_ROW, UNIT, Rows, delete_marks, joined, units_of, visits_ms
from timer.index.id_index import IdIndex
from timer.options import StoreOptions
from timer.schedule.release_queue import ReleaseQueue
from timer.store import Store
from timer.wheel import shutdown_snapshot
from timer.wheel.compaction import Compaction
from timer.wheel.pending_units import LiveScan, WheelTimers
from timer.wheel.timer_log import FrameLog, UnitLog, delete_other_files
from timer.wheel.timer_wheel import SLOT_SIZE, Wheel


class WheelStore(Store):
    def __init__(
        self, disk: Disk, options: StoreOptions, progress: Progress, found: Checkpoint | None, waits: Collection[Wait]
    ) -> None:
        super().__init__(disk, options, progress, found, waits)
        self._segment_bytes = segment_bytes = found.segment_bytes if found else options.segment_bytes
        unit_files, body_files = (found.unit_files(), found.bodies) if found else ((), ())
        for folder, only in ((UNITS, unit_files), (IDS, unit_files), (BODIES, body_files)):
            delete_other_files(disk, folder, only)
        has_same_wheel = found is not None and (found.progress, found.slots) == (progress, options.slots)
        with ExitStack() as opened:  # on an error, close those that are open
            self._units = UnitLog(disk, UNITS, IDS, segment_bytes, unit_files)
            for segments in self._units.folders:
                opened.callback(segments.close)
            self._bodies = FrameLog(disk, BODIES, segment_bytes, body_files)
            opened.callback(self._bodies.close)
            self._folders = (*self._units.folders, self._bodies)
            self._snapshot = shutdown_snapshot.take(disk, found if has_same_wheel else None)
            self._mapping = disk.map(WHEEL, options.slots * SLOT_SIZE)
            opened.pop_all()
        self._wheel = Wheel(self._mapping, tick_ms=options.tick_ms, slots=options.slots)
        self.queries = self._timers = WheelTimers(self._units, self._bodies, self._wheel)
        self._index = self._timers.index
        self.release_queue = self._timers.release_queue = ReleaseQueue(self._timers, progress.settled, waits)
        self._compaction: Compaction | None = None
        self._dead: tuple[list[int], list[int]] = [], []
        """Segments of both logs that the running checkpoint does not name, as they have no pending rows."""

    # -- opening and closing

    def restore(self, found: Checkpoint, held: Collection[int], ended: Collection[int]) -> None:
        self._truncate_to_checkpoint(found)
        taken, self._snapshot = self._snapshot, None
        if taken is None:
            settled, key_ranges = self.committed_progress.settled, self.release_queue.blocked.key_ranges()
            self._rebuild(LiveScan(self._units, found, settled, held, ended, key_ranges))
        else:
            snapshot, used_extents = taken
            self._wheel.allocate(used_extents)
            snapshot.restore(self._index)
            self.release_queue.out_of_order.push(snapshot.held)

    def _truncate_to_checkpoint(self, found: Checkpoint) -> None:
        self._units.truncate(found.units_end)
        self._bodies.truncate(found.body_end)
        self._timers.low_unit = found.low_unit

    def _rebuild(self, scan: LiveScan) -> None:
        """Rebuild wheel, indexes and counts from the log. The wheel on disk is ignored."""
        index = self._index
        scan.mark()
        index.ended, index.units = scan.ended, scan.last_visits
        index.ids = IdIndex(scan.max_ids)
        for run in scan.live():
            if len(run):
                is_timer = np.ones(len(run), np.bool_)
                self._wheel.link(self._wheel.plan(run["visit_ms"], self._units.positions(run["unit"]), is_timer))
                self._restore_rows(run)
        for row in scan.held.values():
            self.release_queue.out_of_order.push(row)
            self._restore_rows(row)
        newly_ended = joined(scan.newly_ended)
        if len(newly_ended):
            index.ended.mark(newly_ended["unit"].tolist())
            first = self._units.end
            is_chained = np.zeros(len(newly_ended), np.bool_)
            marks = delete_marks(newly_ended, self._units.positions(newly_ended["unit"]), is_chained)
            self._units.append(marks, np.zeros(len(marks), TIMER_ROW))
            self._retain_marks(first, newly_ended)

    def _restore_rows(self, run: Rows) -> None:
        self._bodies.check_frames_exist(run["body"], run["body_size"])
        self._index.add(run)

    def _close_files(self) -> None:
        with ExitStack() as ends:
            for each in (*self._folders, self._mapping, self._wheel):
                ends.callback(each.close)

    def _save_snapshot(self, checkpoint: Checkpoint) -> None:
        with closing(self._disk.open(WHEEL)) as wheel:
            # A compaction may have changed units since the checkpoint; a restored snapshot does not check them.
            dirty = self._take_dirty()
            state = shutdown_snapshot.Snapshot.of(self._index, self.release_queue.held_rows(), self._wheel.crc())
            shutdown_snapshot.write(self._disk, checkpoint, state)
            self._disk.start_sync([*dirty, wheel]).wait()

    # -- appending

    def _append(self, batch: Batch, ended: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        first, body_end = self._units.end, self._bodies.end
        rows, timestamps_ms, is_in_order, frames = batch.rows(first)
        units = self._with_delete_marks(units_of(rows, timestamps_ms, is_in_order), ended)
        is_timer = np.arange(len(units)) < len(rows)
        chained = units["magic"] & MAGIC_UNCHAINED == 0
        positions = self._units.positions(np.arange(first, first + len(units)))
        links = self._wheel.plan(visits_ms(units)[chained], positions[chained], is_timer[chained])
        units["previous"][chained] = links.previous
        try:
            if frames:
                rows["body"] = units["body"][: len(rows)] = self._bodies.append(frames)
            self._units.append(units, joined([rows, np.zeros(len(ended), TIMER_ROW)]))
        except OSError:
            self._bodies.truncate(body_end)
            raise
        self._wheel.link(links)
        self._retain_marks(first + len(rows), ended)
        self._index.add(rows)
        return rows, is_in_order

    def _with_delete_marks(self, added: Rows, ended: Rows) -> Rows:
        if len(ended) == 0:
            return added
        units = np.empty(len(added) + len(ended), UNIT)  # np.concatenate would change the byte order
        units[: len(added)] = added
        is_in_order = ~self.release_queue.out_of_order.has(ended["unit"])
        units[len(added) :] = delete_marks(ended, self._units.positions(ended["unit"]), is_in_order)
        return units

    def _retain_marks(self, first: int, ended: Rows) -> None:
        """Keep the delete marks of `ended`, from unit `first` on, until the ticks of `ended` have passed."""
        for at, visit_ms in enumerate(ended["visit_ms"].tolist(), first):
            self._index.units.retain_until(self._units.segment(at), visit_ms)

    # -- checkpoints and compaction

    def _state(self) -> tuple[object, ...]:
        return *super()._state(), self._bodies.end

    def _write(self, checkpoint: Callable[..., Checkpoint]) -> tuple[Checkpoint, Syncing]:
        self._dead = dead_units, dead_bodies = self._deletable()
        found = checkpoint(
            segment_bytes=self._segment_bytes,
            units_end=self._units.end,
            body_end=self._bodies.end,
            low_unit=self._timers.low_unit,
            segments=runs(sorted(set(self._units.segments()) - set(dead_units))),
            bodies=tuple(sorted(set(self._bodies.bases) - set(dead_bodies))),
        )
        try:
            logs = self._disk.start_sync(self._take_dirty())
        except (OSError, UnreadableError):
            self._restore_dirty()
            raise
        self.release_memory()
        return found, logs

    def _deletable(self) -> tuple[list[int], list[int]]:
        """Return segments of the TimerLog and the body log without pending rows and without ticks that are open.

        Never the newest ones, and never one that the chain of a pending unit passes through.
        """
        bases, running = self._bodies.bases[:-1], self._compaction
        if running is not None and running.first_copy is not None:
            bases = [base for base in bases if self._bodies.file_end(base) <= running.first_copy]
        units = self._index.units.deletable(self._units.segments()[:-1], self.release_queue.oldest_open_ms())
        return units, self._index.bodies.deletable(bases, MAX_INT64)

    def _take_dirty(self) -> list[File]:
        return [file for folder in self._folders for file in folder.take_dirty()]

    def _restore_dirty(self) -> None:
        for folder in self._folders:
            folder.restore_dirty()

    def _is_durable(self) -> None:
        dead_units, dead_bodies = self._dead
        for segment in dead_units:
            self._units.drop_segment(segment)
            self._index.units.forget(segment)
            self._index.ended.forget(segment)
        for base in dead_bodies:
            self._bodies.drop(base)
            self._index.bodies.forget(base)

    def release_memory(self) -> None:
        """Give the wheel's pages to the kernel's cache: a tick's page is used again only hours later."""
        self._mapping.drop_page_cache()

    @property
    def is_writing(self) -> bool:
        return super().is_writing or self._compaction is not None

    def compact_some(self) -> None:
        running = self._compaction
        if running is None:
            self._compaction = self._worth_compacting()
            return
        try:
            running.copy_some()
        except OSError:
            self._compaction = None
            raise
        moved = None if self._durable is None else running.repoint_some(self._durable.body_end)
        if moved is not None and len(moved[0]):
            rows, positions = moved
            self._index.move_bodies(rows, positions)
            self.release_queue.repoint(rows["unit"], positions)
            self._timers.forget_read_ahead()
        if running.is_over:
            self._compaction = None

    def _worth_compacting(self) -> Compaction | None:
        """Return the compaction of a sparse file. Bodies that leave soon after K are not worth a copy."""
        bodies, far_ms = self._index.bodies, self.release_queue.settled.visit_ms + self._options.compact_ahead_ms
        for base in self._bodies.bases[:-1]:
            most = (self._bodies.file_end(base) - base) * self._options.compact_below
            if 0 < bodies.live_bytes(base) < most and bodies.last_visit_ms(base) > far_ms:
                return Compaction(self._units, self._bodies, self._timers.rows, base, *bodies.units(base))
        return None
