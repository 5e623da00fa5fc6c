"""The store of one partition: pending timers on disk, the next due ones in memory.

    add(batch) -> body log, TimerLog, wheel          due(now) -> rows in order -> bodies(rows) -> committed(...)

    Store          opens the files, appends and commits
    .release_queue what leaves next, and which targets wait        timer.schedule.release_queue
    .queries       find, listings, counts                          timer.store_queries
    (private)      checkpoints, deletion of files, compaction      timer.maintenance.maintenance

Rules:
1. A row is pending if it is out of order, or its key (visit_ms, origin offset) is above K, or its key is in a key range
   of its target's backlog (timer.schedule.pending_keys). A delete mark ends it; a delivery writes no mark.
2. `add` and `due` stage changes until `committed`. Memory has no undo: if the transaction is lost, the store is closed
   and opened again at its checkpoint.
3. A checkpoint starts only when everything staged is committed. A segment without pending rows is deleted after a
   checkpoint that does not name it is durable.
4. The disk is a cache: impossible bytes raise CorruptStoreError, and the owner rebuilds the store from Kafka.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing, suppress

import numpy as np
from numpy.typing import NDArray

from schemas.headers import MAX_INT64
from schemas.journal import CopyInFlight, Wait
from schemas.progress import Key, Progress
from timer.errors import CorruptStoreError, UnreadableError, WheelFullError
from timer.files.body_reader import BodyReader
from timer.files.disk import Disk
from timer.files.segment_log import FrameLog, UnitLog, delete_other_files
from timer.files.wheel import SLOT_SIZE, Wheel
from timer.format.batch import Batch
from timer.format.body import Body
from timer.format.checkpoint import CLOSED, NAME, Checkpoint, runs
from timer.format.file_names import BODIES, IDS, UNITS, WHEEL
from timer.format.unit import MAGIC_UNCHAINED, UNIT, UNIT_EXTRA, Ints, Rows, delete_marks, joined, run_of, visits_ms
from timer.index.id_index import IdIndex
from timer.index.pending_index import PendingIndex
from timer.maintenance import shutdown_snapshot
from timer.maintenance.maintenance import Maintenance
from timer.maintenance.startup_scan import LiveScan
from timer.options import StoreOptions
from timer.schedule.pending_log import PendingLog
from timer.schedule.release_policy import OPEN, Gate
from timer.schedule.release_queue import Due, ReleaseQueue
from timer.store_queries import StoreQueries


def wipe(disk: Disk) -> None:
    """Remove a store. The checkpoint goes first and durably, so that a crash in between leaves no store.

    The checkpoint is emptied, not removed: after a loss of power a removed file may be back, and an old checkpoint
    would name the files of a later store.
    """
    disk.start_replace(NAME, b"").wait()
    disk.remove(WHEEL)
    for folder in (UNITS, BODIES, IDS):
        delete_other_files(disk, folder, ())


def _origins(origins: Collection[int]) -> Ints:
    return np.fromiter(origins, np.int64, len(origins))


class Store:
    """See the module. Opened by `Store.create` (empty) or `Store.open` (at its checkpoint)."""

    def __init__(
        self,
        disk: Disk,
        options: StoreOptions,
        segment_bytes: int,
        progress: Progress,
        found: Checkpoint | None,
        waits: Collection[Wait] = (),
    ) -> None:
        """found: names the files of this store; all other files are deleted."""
        unit_files, body_files = (found.unit_files(), found.bodies) if found else ((), ())
        for folder, only in ((UNITS, unit_files), (IDS, unit_files), (BODIES, body_files)):
            delete_other_files(disk, folder, only)
        self._disk = disk
        self._options = options
        self._segment_bytes = segment_bytes
        has_same_wheel = found is not None and (found.progress, found.slots) == (progress, options.slots)
        with ExitStack() as opened:  # on an error, close those that are open
            self._units = UnitLog(disk, UNITS, IDS, segment_bytes, unit_files)
            opened.callback(self._units.close)
            self._bodies = FrameLog(disk, BODIES, segment_bytes, body_files)
            opened.callback(self._bodies.close)
            self._snapshot = shutdown_snapshot.take(disk, found if has_same_wheel else None)
            self._mapping = disk.map(WHEEL, options.slots * SLOT_SIZE)
            opened.pop_all()
        self._wheel = Wheel(self._mapping.buffer, tick_ms=options.tick_ms, slots=options.slots)
        reader = BodyReader(self._bodies)
        self._index = PendingIndex(self._units.per_segment, self._bodies.bases_of, lambda row: reader.peek(row).target)
        self.release_queue = ReleaseQueue(self._units, self._wheel, self._index, progress.settled, waits)
        self._log = PendingLog(self._units, reader, self.release_queue)
        self.queries = StoreQueries(
            self._units, self._bodies, self._wheel, self._index, self.release_queue, self._log, reader
        )
        self._maintenance = Maintenance(disk, options, self._units, self._bodies, self._index, self._log)
        self._next_offset = progress.next_offset
        self._low_offset = progress.low_offset
        self._committed = progress

    # -- opening and closing

    @classmethod
    def create(cls, disk: Disk, options: StoreOptions, progress: Progress, waits: Collection[Wait] = ()) -> "Store":
        """Create an empty store in place of any other. The caller adds the requests from `progress.low_offset` on."""
        wipe(disk)
        store = cls(disk, options, options.segment_bytes, progress, None, waits)
        if progress.low_offset == progress.next_offset:
            store._maintenance.skip_checkpoint_at(progress)  # nothing to keep, perhaps nothing committed yet
        return store

    @classmethod
    def open(
        cls,
        disk: Disk,
        options: StoreOptions,
        found: Checkpoint,
        progress: Progress,
        held: Collection[int],
        ended: Collection[int],
        waits: Collection[Wait] = (),
    ) -> "Store":
        """Open the store at the checkpoint `found`, as of `progress`, `held` and `ended` (origins) and `waits`.

        The caller adds the requests from `found.progress.next_offset` on. `options` must have the tick of `found`:
        chains of the TimerLog belong to a tick. Raises CorruptStoreError, WheelFullError, and OSError if the disk is
        full.
        """
        if found.tick_ms != options.tick_ms:
            raise ValueError(f"tick_ms is {options.tick_ms}, the store was built with {found.tick_ms}")
        store = cls(disk, options, found.segment_bytes, progress, found, waits)
        try:
            store._truncate_to_checkpoint(found)
            if not store._restore_snapshot(found):
                key_ranges = store.release_queue.key_ranges()
                now = (progress.settled, _origins(held), _origins(ended), key_ranges)
                store._rebuild(LiveScan(store._units, found, *now))
        except (CorruptStoreError, WheelFullError, OSError):
            store.close()
            raise
        return store

    def _truncate_to_checkpoint(self, found: Checkpoint) -> None:
        """Remove everything that was written after the checkpoint."""
        self._units.truncate(found.units_end)
        self._bodies.truncate(found.body_end)
        self._log.low_unit = found.low_unit

    def _restore_snapshot(self, found: Checkpoint) -> bool:
        """Restore indexes and counts from the shutdown snapshot. False if there is none that fits."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return False
        if not (self._wheel.is_sound() and snapshot.is_possible(found)):
            self._wheel.clear()
            return False
        snapshot.restore(self._index)
        self.release_queue.out_of_order.push(snapshot.held)
        return True

    def _rebuild(self, scan: LiveScan) -> None:
        """Rebuild wheel, indexes and counts from the log. The wheel on disk is ignored."""
        index = self._index
        scan.mark(index.ended, index.units)
        index.ids = IdIndex(scan.max_ids)
        for run in scan.live(index.ended):
            if len(run):
                is_timer = np.ones(len(run), np.bool_)
                self._wheel.link(self._wheel.plan(run["visit_ms"], self._units.positions(run["unit"]), is_timer))
                self._restore_rows(run)
        for row in scan.held.values():
            self.release_queue.out_of_order.push(row)
            self._restore_rows(row)
        newly_ended = joined(scan.newly_ended)
        if len(newly_ended):
            index.ended.mark(newly_ended["unit"])
            first = self._units.end
            is_chained = np.zeros(len(newly_ended), np.bool_)
            marks = delete_marks(newly_ended, self._units.positions(newly_ended["unit"]), is_chained)
            self._units.append(marks, np.zeros(len(marks), UNIT_EXTRA))
            self._retain_marks(first, newly_ended)

    def _restore_rows(self, run: Rows) -> None:
        self._bodies.check_frames_exist(run["body"], run["body_size"])
        self._index.add(run)

    def close(self) -> None:
        """Close the files. The next opening goes back to the last checkpoint."""
        self._maintenance.abandon()
        if self._maintenance.durable is not None and self._is_as(self._maintenance.durable):
            self._mark_closed(self._maintenance.durable)
        with ExitStack() as ends:
            ends.callback(self._bodies.close)
            ends.callback(self._units.close)
            ends.callback(self._mapping.close)
            ends.callback(self._wheel.close)

    def _is_as(self, checkpoint: Checkpoint) -> bool:
        """True if nothing has changed since `checkpoint`."""
        state = (self._units.end, self._bodies.end, self.pending, self._committed)
        is_same = state == (checkpoint.units_end, checkpoint.body_end, checkpoint.pending, checkpoint.progress)
        return is_same and not self.release_queue.has_staged and self._maintenance.is_idle

    def _mark_closed(self, checkpoint: Checkpoint) -> None:
        """Write the shutdown snapshot and `closed`. Without them the next opening is as after a kill."""
        with suppress(OSError, UnreadableError), closing(self._disk.open(WHEEL)) as wheel:
            # A compaction may have changed units since the checkpoint; a restored snapshot does not check them.
            dirty = self._units.take_dirty() + self._bodies.take_dirty()
            state = shutdown_snapshot.Snapshot.of(self._index, self.release_queue.out_of_order.rows())
            shutdown_snapshot.write(self._disk, checkpoint, state)
            self._disk.start_sync([*dirty, wheel]).wait()
            self._disk.start_replace(CLOSED, checkpoint.to_bytes()).wait()

    # -- appending

    @property
    def next_offset(self) -> int:
        """C as staged: all requests below it are stored, rejected or settled."""
        return self._next_offset

    @property
    def settled(self) -> Key:
        """K as staged."""
        return self.release_queue.settled

    @property
    def pending(self) -> int:
        """Number of pending timers, as staged."""
        return self._index.pending

    def add(self, batch: Batch, next_offset: int) -> None:
        """Store `batch`; C becomes `next_offset`. On OSError and WheelFullError nothing is stored."""
        if len(batch):
            self._append(batch)
        self._next_offset = next_offset
        self.release_queue.has_staged = True

    def _append(self, batch: Batch) -> None:
        first, body_end = self._units.end, self._bodies.end
        ended = batch.ended()
        added, extra, frames = batch.units()
        units = self._with_delete_marks(added, ended)
        timers = units[: len(added)]
        is_timer = np.arange(len(units)) < len(added)
        chained = units["magic"] & MAGIC_UNCHAINED == 0
        positions = self._units.positions(np.arange(first, first + len(units)))
        links = self._wheel.plan(visits_ms(units)[chained], positions[chained], is_timer[chained])
        units["previous"][chained] = links.previous
        try:
            if frames:
                timers["body"] = self._bodies.append(frames)
            self._units.append(
                units, np.concatenate([extra, np.zeros(len(ended), UNIT_EXTRA)]) if len(ended) else extra
            )
        except OSError:
            self._bodies.truncate(body_end)
            raise
        self._wheel.link(links)
        self._retain_marks(first + len(added), ended)
        run = run_of(timers, extra, first)
        self._index.add(run)
        self._enqueue(run, chained[: len(added)], batch)
        if len(ended):
            self.release_queue.end(ended)

    def _enqueue(self, run: Rows, is_in_order: NDArray[np.bool_], batch: Batch) -> None:
        if is_in_order.all():
            self.release_queue.push(run)
            return
        is_cooling = batch.cooling_down()
        self.release_queue.out_of_order.push(run[~is_in_order & ~is_cooling])
        self.release_queue.out_of_order.cool_down(run[is_cooling], *batch.cooldown_ms)
        self.release_queue.push(run[is_in_order])

    def _with_delete_marks(self, added: Rows, ended: Rows) -> Rows:
        """Return `added` and a delete mark for each of `ended`."""
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
            self._index.retain_until(at, visit_ms)

    # -- what intake and release ask most: see ReleaseQueue and StoreQueries

    def take_due(
        self, now_ms: int, limit: int, limit_bytes: int, gate: Gate = OPEN, most_wait_ms: int = MAX_INT64
    ) -> Due:
        return self.release_queue.take_due(now_ms, limit, limit_bytes, gate, most_wait_ms)

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool:
        return self.release_queue.is_unreleased(target, place)

    def pause(self, target: str, *, is_paused: bool) -> None:
        self.release_queue.pause(target, is_paused=is_paused)

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        return self.queries.find(ids)

    def find_origin(self, origin_offset: int) -> Rows:
        return self.queries.find_origin(origin_offset)

    def bodies(self, rows: Rows) -> list[Body]:
        return self.queries.bodies(rows)

    def pending_by_topic(self) -> dict[str, int]:
        return self.queries.pending_by_topic()

    # -- committing

    def progress(self) -> Progress:
        """Return (C, K, L) as staged: what the next transaction commits."""
        low_offset = self._log.low_offset()
        self._low_offset = max(self._low_offset, self._next_offset if low_offset is None else low_offset)
        return Progress(self._next_offset, self.settled, self._low_offset, era=self._committed.era)

    @property
    def committed_progress(self) -> Progress:
        """Progress of the last transaction that is known to be committed."""
        return self._committed

    def committed(self, progress: Progress, *, is_all: bool = True) -> None:
        """Record that the transaction with `progress` is committed. is_all: nothing was staged after it."""
        self._committed = progress
        if is_all:
            self.release_queue.has_staged = False

    # -- checkpoints and compaction

    @property
    def may_checkpoint(self) -> bool:
        """True if everything staged is committed and not in a checkpoint yet, and no checkpoint is running."""
        is_committed = not self.release_queue.has_staged
        return is_committed and self._maintenance.is_idle and self._maintenance.has_changed(self._committed)

    def start_checkpoint(
        self, journal_offset: int, flights: Sequence[CopyInFlight], ended_flights: Sequence[int]
    ) -> bool:
        """Start to make the committed state durable. Return False if that is not possible now."""
        if not self.may_checkpoint:
            return False
        dead_units, dead_bodies = self._maintenance.deletable(self.release_queue.oldest_open_ms())
        found = Checkpoint(
            progress=self._committed,
            segment_bytes=self._segment_bytes,
            tick_ms=self._options.tick_ms,
            slots=self._options.slots,
            units_end=self._units.end,
            body_end=self._bodies.end,
            low_unit=self._log.low_unit,
            segments=runs(sorted(set(self._units.segments()) - set(dead_units))),
            bodies=tuple(sorted(set(self._bodies.bases()) - set(dead_bodies))),
            pending=self.pending,
            held=tuple(self.release_queue.out_of_order.rows()["origin"].tolist()),
            waits=self.release_queue.waits,
            flights=tuple(flights),
            ended_flights=tuple(ended_flights),
            journal_offset=journal_offset,
        )
        self._maintenance.start(found, dead_units, dead_bodies)
        self.release_memory()
        return True

    def release_memory(self) -> None:
        """Give the wheel's pages to the kernel's cache: a tick's page is used again only hours later."""
        self._mapping.drop_page_cache()

    def continue_checkpoint(self) -> bool:
        return self._maintenance.continue_checkpoint()

    def finish_checkpoint(self) -> None:
        self._maintenance.continue_checkpoint(is_last=True)

    def compact_some(self) -> None:
        """Run one bounded step of a compaction; start one if it is worth it."""
        moved = self._maintenance.compact_some(self.settled.visit_ms)
        if moved is not None:
            self.release_queue.repoint(*moved)
            self._log.forget_read_ahead()
