"""The store of one partition: pending timers on disk, the next due ones in memory.

    add(batch) -> body log, TimerLog, wheel          due(now) -> rows in order -> bodies(rows) -> committed(...)

Rules:
1. A row is pending if it is out of order, or its key (visit_ms, origin) is above K, or its key is in a key range of its
   target's backlog (timer.schedule.target_backlog); unless a delete mark says that it ended. A delivery writes no mark.
2. `add` and `due` stage changes until `committed`. Memory has no undo: if the transaction is lost, the store is closed
   and opened again at its checkpoint.
3. A checkpoint starts only when everything staged is committed. A segment without pending rows is deleted after a
   checkpoint that does not name it is durable.
4. Ticks up to `cursor` are open: their pending rows are in memory. Later rows are only on disk.
5. The disk is a cache: impossible bytes raise CorruptStoreError, and the owner rebuilds the store from Kafka.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.headers import MAX_INT64
from schemas.journal import CopyInFlight, Wait
from schemas.progress import NOTHING_SETTLED, Key, Progress
from timer.errors import CorruptStoreError, UnreadableError, WheelFullError
from timer.files.body_reader import BodyReader
from timer.files.disk import Disk
from timer.files.segment_log import FrameLog, UnitLog, delete_other_files
from timer.files.wheel import SLOT_SIZE, Links, Wheel
from timer.format.batch import Batch, markers
from timer.format.body import Body, Peek
from timer.format.checkpoint import CLOSED, NAME, Checkpoint, runs
from timer.format.file_names import BODIES, IDS, UNITS, WHEEL
from timer.format.unit import (
    MAGIC_DELETE,
    MAGIC_UNCHAINED,
    NO_ROWS,
    UNIT,
    UNIT_EXTRA,
    Ints,
    Rows,
    joined,
    run_of,
    topic_hash,
    visits_ms,
)
from timer.index.due_counts import HOUR_MS, DueCounts, DueRange
from timer.index.due_range_search import DueRangeSearch
from timer.index.id_index import IdIndex, hashes_of
from timer.index.segment_liveness import EndedUnits
from timer.maintenance import shutdown_snapshot
from timer.maintenance.maintenance import Maintenance
from timer.maintenance.startup_scan import LiveScan, blocks, pending_by_key, pending_in_order
from timer.options import StoreOptions
from timer.schedule.backlog_summary import Backlog, WaitingTimers
from timer.schedule.due_queue import DueQueue
from timer.schedule.out_of_order import OutOfOrderTimers
from timer.schedule.release_policy import OPEN, Gate, ReleasePolicy, Room, rotated_to
from timer.schedule.target_backlog import TargetBacklog
from timer.schedule.tick_reader import LoadedTicks, TickReader
from timer.schedule.waiting_target import WaitingTarget, last_key

_LISTED_UNITS = 1 << 13
_FIRST_BLOCK_UNITS = 16
_PAUSED_CHECKS = 8
"""A paused target is checked at least this many times until its first timer must roll."""


class Due(NamedTuple):
    """Rows that leave now: in the order of release, and out of order; then rows that waited too long and must roll."""

    rows: Rows
    released: Rows
    old_rows: Rows = NO_ROWS
    old_released: Rows = NO_ROWS

    @property
    def total(self) -> int:
        return sum(map(len, self))


NOTHING_DUE = Due(NO_ROWS, NO_ROWS)


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
        units, bodies = (found.unit_files(), found.bodies) if found else ((), ())
        for folder, only in ((UNITS, units), (IDS, units), (BODIES, bodies)):
            delete_other_files(disk, folder, only)
        self._disk = disk
        self._options = options
        self._segment_bytes = segment_bytes
        with ExitStack() as opened:  # on an error, close those that are open
            self._units = UnitLog(disk, UNITS, IDS, segment_bytes, units)
            opened.callback(self._units.close)
            self._bodies = FrameLog(disk, BODIES, segment_bytes, bodies)
            opened.callback(self._bodies.close)
            self._loaded_snapshot = (
                shutdown_snapshot.read(disk, found)
                if found is not None and self._has_same_wheel(found, progress)
                else None
            )
            if shutdown_snapshot.may_be_closed(disk):
                disk.start_replace(CLOSED, b"").wait()  # a removed file may be back after a loss of power
            if self._loaded_snapshot is None:
                disk.remove(WHEEL)
            disk.remove(shutdown_snapshot.RESUME)
            self._mapping = disk.map(WHEEL, options.slots * SLOT_SIZE)
            opened.pop_all()
        self._wheel = Wheel(self._mapping.buffer, tick_ms=options.tick_ms, slots=options.slots)
        self._queue = DueQueue()
        self._out_of_order = OutOfOrderTimers()
        self._backlogs = TargetBacklog(waits, options.tick_ms)
        self._settled = progress.settled
        self._next_offset = progress.next_offset
        self._committed = progress
        self._low_unit = self._units.end
        self._low_offset = progress.low_offset
        self._cursor = progress.settled.visit_ms // options.tick_ms - 1 if progress.settled != NOTHING_SETTLED else -1
        self._low_row = NO_ROWS
        """The row at L, if it is known and pending by its key."""
        self._ids = IdIndex()
        self._ended = EndedUnits(self._units.per_segment)
        self._body_reader = BodyReader(self._bodies)
        self._dues = DueCounts(lambda row: self.peek(row).target)
        self._ticks = TickReader(self._units, self._wheel, self._ended)
        self._waiting = WaitingTimers(self._backlogs, self._out_of_order, self._dues)
        self._maintenance = Maintenance(disk, options, self._units, self._bodies, self._ended, self._pending_rows)
        self._pending = 0
        self._turns = 0
        self._first_starved: int | None = None
        """Hash of the first target without room in the last turn; 0 for out-of-order timers."""
        self._has_staged = False

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
            now = (_origins(held), _origins(ended), store._backlogs.key_ranges())
            scan = LiveScan(store._units, found, progress.settled, *now)
            if not store._restore_snapshot(found):
                store._rebuild(scan)
        except (CorruptStoreError, WheelFullError, OSError):
            store.close()
            raise
        return store

    def _has_same_wheel(self, found: Checkpoint, progress: Progress) -> bool:
        """True if the wheel of the checkpoint holds exactly what it has to hold now."""
        return (found.progress, found.slots) == (progress, self._options.slots)

    def _restore_snapshot(self, found: Checkpoint) -> bool:
        """Restore wheel, indexes and counts from the shutdown snapshot. False if there is none that fits."""
        state, self._loaded_snapshot = self._loaded_snapshot, None
        if state is None:
            return False
        if not (self._wheel.is_sound() and state.is_possible(found)):
            self._wheel.clear()
            return False
        self._ids = IdIndex.restored(state.id_hashes, state.id_units)
        self._ended.mark(state.ended)
        self._maintenance.restore(state.live_units, state.live_bodies)
        self._dues.restore(state.topics, state.due_hours, state.elsewhere)
        self._out_of_order.push(state.held)
        self._pending = sum(self._dues.counts().values())
        return True

    def _snapshot(self) -> shutdown_snapshot.Snapshot:
        topics, due_hours, elsewhere = self._dues.state()
        return shutdown_snapshot.Snapshot(
            *self._ids.state(),
            self._ended.state(),
            *self._maintenance.state(),
            due_hours,
            elsewhere,
            self._out_of_order.rows(),
            topics,
        )

    def _truncate_to_checkpoint(self, found: Checkpoint) -> None:
        """Remove everything that was written after the checkpoint."""
        self._units.truncate(found.units_end)
        self._bodies.truncate(found.body_end)
        self._low_unit = found.low_unit

    def _rebuild(self, scan: LiveScan) -> None:
        """Rebuild wheel, indexes and counts from the log. The wheel on disk is ignored."""
        scan.mark(self._ended, self._maintenance.units)
        self._ids = IdIndex(scan.max_ids)
        for run in scan.live(self._ended):
            if len(run):
                self._wheel.link(self._plan_links(run["visit_ms"], run["unit"]))
                self._restore_rows(run)
        for row in scan.held.values():
            self._out_of_order.push(row)
            self._restore_rows(row)
        newly_ended = joined(scan.newly_ended)
        if len(newly_ended):
            self._ended.mark(newly_ended["unit"])
            self._units.append(self._markers(newly_ended), np.zeros(len(newly_ended), UNIT_EXTRA))

    def _restore_rows(self, run: Rows) -> None:
        self._bodies.check_frames_exist(run["body"], run["body_size"])
        self._count_in(run)

    def _plan_links(self, visits: Ints, units: Ints) -> Links:
        return self._wheel.plan(visits, self._units.positions(units), np.ones(len(units), np.bool_))

    def _markers(self, ended: Rows) -> Rows:
        """Return delete marks for the end of the log; retain their segments until the ticks of `ended` have passed."""
        if len(ended):
            first, last, last_ms = self._units.end, self._units.end + len(ended) - 1, int(ended["visit_ms"].max())
            for at in (*range(first, last, self._units.per_segment), last):  # one in each segment
                self._maintenance.retain_until(at, last_ms)
        return markers(ended, self._units.positions(ended["unit"]), np.zeros(len(ended), np.bool_))

    # -- staging

    @property
    def next_offset(self) -> int:
        """C as staged: all requests below it are stored, rejected or settled."""
        return self._next_offset

    @property
    def settled(self) -> Key:
        """K as staged."""
        return self._settled

    @property
    def pending(self) -> int:
        """Number of pending timers, as staged."""
        return self._pending

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies of pending timers, as staged. Exact after every kind of start."""
        return self._maintenance.live_body_bytes

    @property
    def held(self) -> int:
        """Number of pending out-of-order timers; the journal names each of them."""
        return len(self._out_of_order)

    @property
    def size_bytes(self) -> int:
        """Bytes of the log files, without wheel and id index."""
        return self._units.size_bytes + self._bodies.size_bytes

    @property
    def targets(self) -> int:
        """Number of target topics with pending timers."""
        return self._dues.targets

    def has_target(self, target: str) -> bool:
        """True if `target` has pending timers."""
        return self._dues.has(topic_hash(target))

    def pending_by_topic(self) -> dict[str, int]:
        """Return the number of pending timers by target topic."""
        return self._dues.counts()

    def due_hours(self) -> dict[str, dict[int, int]]:
        """Return, by target topic, the start of each hour (epoch ms) and the number of timers due in it."""
        return self._dues.hours()

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """Return, by target topic, the number of pending timers and their first and last due time.

        Unknown times are looked up in the ticks of their hour, or in the log if timers of that hour roll first. If
        `is_over()` returns True before that is done, or for last times without `needs_last`, they are exact to the
        hour.
        """
        search = DueRangeSearch(self._dues, self._rows_of_hour, self._all_rows)
        return search.ranges(is_over, needs_last=needs_last)

    def _rows_of_hour(self, hour: int) -> Iterator[Rows]:
        """Yield out-of-order rows, then the pending rows of each tick of `hour` (since the epoch)."""
        yield self._out_of_order.rows()
        tick_ms = self._options.tick_ms
        tick: int | None = hour * HOUR_MS // tick_ms - 1
        last = ((hour + 1) * HOUR_MS - 1) // tick_ms
        while tick is not None and (tick := self._wheel.next_time(tick, last)) is not None:
            yield self._load_tick(tick)

    def _all_rows(self) -> Iterator[Rows]:
        for start, end in blocks(self._units, self._low_unit):
            yield self._pending_rows(start, end)

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        """Return the pending rows of one block of the log from unit `first` on, and the next `first`, None at the end.

        In the order of the log. A listing in several calls returns every row that stays pending; a row that rolls
        meanwhile may come twice, or not at all while its copy is in flight.
        """
        ranges = blocks(self._units, max(first, self._low_unit), _LISTED_UNITS)
        here, following = next(ranges, None), next(ranges, None)
        rows = NO_ROWS if here is None else self._pending_rows(*here)
        return rows, None if following is None else following[0]

    def pending_at(self, unit: int) -> Rows:
        """Return the row of `unit`, no row if it is not pending any more."""
        return self._pending_rows(unit, unit + 1) if self._low_unit <= unit < self._units.end else NO_ROWS

    def add(self, batch: Batch, next_offset: int) -> None:
        """Store `batch`; C becomes `next_offset`. On OSError and WheelFullError nothing is stored."""
        if len(batch):
            self._append(batch)
        self._next_offset = next_offset
        self._has_staged = True

    def _append(self, batch: Batch) -> None:
        first, body_end = self._units.end, self._bodies.end
        ended = batch.ended()
        added, extra, frames = batch.units()
        units = self._with_markers(added, ended)
        visits = visits_ms(units)
        is_timer = np.arange(len(units)) < len(added)
        chained = units["magic"] & MAGIC_UNCHAINED == 0
        positions = self._units.positions(np.arange(first, first + len(units)))
        links = self._wheel.plan(visits[chained], positions[chained], is_timer[chained])
        units["previous"][chained] = links.previous
        try:
            if frames:
                units["body"][is_timer] = self._bodies.append(frames)
            self._units.append(
                units, np.concatenate([extra, np.zeros(len(ended), UNIT_EXTRA)]) if len(ended) else extra
            )
        except OSError:
            self._bodies.truncate(body_end)
            raise
        self._wheel.link(links)
        for at, visit in zip(range(first + len(added), first + len(units)), visits[~is_timer].tolist(), strict=True):
            self._maintenance.retain_until(at, visit)
        self._index_added(run_of(units[is_timer], extra, first), chained[is_timer], batch)
        self._remove_ended(ended)

    def _with_markers(self, added: Rows, ended: Rows) -> Rows:
        if len(ended) == 0:
            return added
        units = np.empty(len(added) + len(ended), UNIT)  # np.concatenate would change the byte order
        units[: len(added)] = added
        units[len(added) :] = markers(ended, self._units.positions(ended["unit"]), ~self._is_out_of_order(ended))
        return units

    def _index_added(self, run: Rows, chained: NDArray[np.bool_], batch: Batch) -> None:
        cooling_down = batch.cooling_down()
        self._out_of_order.push(run[~chained & ~cooling_down])
        self._out_of_order.cool_down(run[cooling_down], *batch.cooldown_ms)
        in_order = run[chained]
        self._backlogs.push(in_order)
        opened = in_order[in_order["visit_ms"] // self._options.tick_ms <= self._cursor]
        self._queue.push(self._backlogs.without(opened))
        self._count_in(run)

    def _remove_ended(self, ended: Rows) -> None:
        """Remove `ended` rows from queue, wheel, indexes and counts."""
        if len(ended) == 0:
            return
        self._wheel.settle(ended["visit_ms"][~self._is_out_of_order(ended)])
        self._ended.mark(ended["unit"])
        if self._low_unit in ended["unit"]:
            self._low_row = NO_ROWS
        self._queue.remove(ended["unit"])
        self._backlogs.remove(ended)
        self._out_of_order.remove(ended["unit"])
        self._count_out(ended)

    def _is_out_of_order(self, rows: Rows) -> NDArray[np.bool_]:
        return self._out_of_order.has(rows["unit"])

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        """Return the row (one TIMER_ROW) of each id that has a pending timer."""
        found: dict[bytes, Rows] = {}
        if not len(self._ids):
            return found
        hashes = hashes_of(ids)
        for at, units in self._ids.find(hashes).items():
            for unit in units:
                row = self._row(unit)
                if self.peek(row).id == ids[at]:
                    found[ids[at]] = row
                else:  # another id with that hash, or damage: a check of the body tells
                    self.bodies(row)
        return found

    def _row(self, unit: int) -> Rows:
        return run_of(self._units.read(unit, unit + 1), self._units.extras(unit, unit + 1), unit)

    def due(self, now_ms: int, limit: int, limit_bytes: int, gate: Gate = OPEN, most_wait_ms: int = MAX_INT64) -> Due:
        """Take the rows that leave now, at most `limit` in all, and move K past them.

        Timers of paused targets, and beyond what `gate` allows, stay in a backlog. Rows that waited for `most_wait_ms`
        must roll. After a turn without room for all targets, rows in order get only half of the limit.
        """
        room, self._turns = Room(limit, limit_bytes), self._turns + 1
        in_order = (limit, limit_bytes)
        if self._first_starved is not None:
            in_order = ((limit + self._turns // 2 % 2) // 2, max(1, limit_bytes // 2))
        self._open_ticks(now_ms, in_order[0])
        before = self._settled
        rows = self._queue.take(now_ms, *in_order)
        if len(rows):
            self._settled = last_key(rows)
        is_open = gate is OPEN and not len(self._backlogs)
        if is_open and len(rows) == 0 and self._out_of_order.is_idle(now_ms):
            self._first_starved = None
            return NOTHING_DUE
        release = ReleasePolicy(
            gate, self._backlogs, self._out_of_order, self._dues.name, now_ms, room, self._first_starved or 0
        )
        if not is_open or self._out_of_order.blocked():
            due = self._apply_target_limits(rows, release, before, max(-1, now_ms - most_wait_ms))
        else:
            room.fill(rows)
            self._settle(rows)
            due = Due(rows, release.take_out_of_order(self._take_due_out_of_order(release)))
        self._first_starved = room.starved_targets[0] if room.starved_targets else None
        for part in (due.released, due.old_released):
            self._count_taken(part)
        self._has_staged |= due.total > 0
        return due

    def take_overflow(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Take the oldest blocked out-of-order timers. They roll, so that their copies get a place in the order.

        Their targets wait from now on, also those that are beyond their rate only for a moment.
        """
        self._out_of_order.block_due([waiting.hash for waiting in self._backlogs], now_ms)
        parts: list[Rows] = []
        for hash_ in self._out_of_order.blocked():
            if limit <= 0 or limit_bytes <= 0:
                break
            target = self._dues.name(hash_)
            if self._backlogs.get(target) is None:
                self._start_backlog({target: self._settled})
            run = self._out_of_order.take_blocked(hash_, limit, now_ms, limit_bytes)
            limit, limit_bytes = limit - len(run), max(0, limit_bytes - int(run["body_size"].sum()))
            parts.append(run)
        rows = joined(parts)
        self._count_taken(rows)
        self._has_staged |= len(rows) > 0
        return rows

    def _count_taken(self, held: Rows) -> None:
        """Remove out-of-order rows that were taken from the counts."""
        if len(held) == 0:
            return
        self._count_out(held)
        if self._low_unit in held["unit"]:
            self._low_row = NO_ROWS

    def _take_due_out_of_order(self, release: ReleasePolicy) -> Rows:
        """Take out-of-order rows whose wake-up time has come, as far as there is room."""
        room = release.room
        if room.at_most(None if self._out_of_order.has_due(release.now_ms) else 0, 0) == 0:
            return NO_ROWS
        return self._out_of_order.take(release.now_ms, room.timers, room.size_bytes)

    def _apply_target_limits(self, rows: Rows, release: ReleasePolicy, before: Key, old_before_ms: int) -> Due:
        """Apply target limits to due rows; add backlog rows that may leave or must roll.

        Out-of-order timers and backlogs take turns in being served first.
        """
        rows, begin = release.split_by_limit(rows, before)
        self._start_backlog(begin)
        self._settle(rows)
        if self._turns % 2:
            released, old_released = self._take_out_of_order(release, old_before_ms)
            leaving, old = self._take_from_backlogs(release, old_before_ms)
        else:
            leaving, old = self._take_from_backlogs(release, old_before_ms)
            released, old_released = self._take_out_of_order(release, old_before_ms)
        return Due(joined([rows, leaving]), released, old, old_released)

    def _take_out_of_order(self, release: ReleasePolicy, old_before_ms: int) -> tuple[Rows, Rows]:
        released = release.take_out_of_order(self._take_due_out_of_order(release))
        return released, release.take_old_out_of_order(old_before_ms, self._units.end)

    def _take_from_backlogs(self, release: ReleasePolicy, old_before_ms: int) -> tuple[Rows, Rows]:
        leaving: list[Rows] = []
        old: list[Rows] = []
        until_tick = max(max(release.now_ms, self._settled.visit_ms) // self._options.tick_ms, self._cursor)

        ticks = LoadedTicks(self._load_tick)

        def load_ahead(waiting: WaitingTarget) -> None:
            if not self._backlogs.load_ahead(waiting, until_tick, self._wheel.next_time, ticks):
                release.room.starved_targets.append(waiting.hash)

        self._backlogs.wake_up(release.now_ms)
        for hash_ in rotated_to(release.first, self._backlogs.awake()):
            waiting = self._backlogs.by_hash(hash_)
            load_ahead(waiting)
            if waiting.is_paused and waiting.first_visit_ms() is None:
                waiting.drop_until(old_before_ms, release.now_ms)
                self._put_to_sleep(waiting, release, until_tick, old_before_ms)
                continue
            leaving.append(release.take_from_backlog(waiting, load_ahead))
            self._settle(leaving[-1])
            old.append(release.take_old(waiting, old_before_ms, self._units.end))
            self._settle(old[-1])
            load_ahead(waiting)
            waiting.drop_until(old_before_ms, release.now_ms)
            self._end_backlog(waiting, release.now_ms, until_tick)
            self._put_to_sleep(waiting, release, until_tick, old_before_ms)
        return joined(leaving), joined(old)

    def _put_to_sleep(
        self, waiting: WaitingTarget, release: ReleasePolicy, until_tick: int, old_before_ms: int
    ) -> None:
        """Skip a paused target until its next timer wakes up, or until its first waiting one must roll."""
        room, now_ms = release.room, release.now_ms
        if not waiting.is_paused or room.timers == 0 or waiting.hash in room.starved_targets:
            return
        first_ms, most_wait_ms = waiting.first_visit_ms(), now_ms - old_before_ms
        if first_ms is None:
            self._backlogs.sleep(waiting, (until_tick + 1) * self._options.tick_ms, is_empty=True)
        elif first_ms <= now_ms:
            until_ms = min(first_ms + most_wait_ms, now_ms + most_wait_ms // _PAUSED_CHECKS)
            if until_ms > now_ms:
                self._backlogs.sleep(waiting, until_ms, is_empty=False)

    def _settle(self, rows: Rows) -> None:
        """Remove rows in order that leave from wheel and counts."""
        if len(rows):
            self._wheel.settle(rows["visit_ms"])
            self._count_out(rows)

    def _start_backlog(self, begin: Mapping[str, Key], *, is_paused: bool = False) -> None:
        hashes = [self._backlogs.begin(target, after, is_paused=is_paused).hash for target, after in begin.items()]
        if hashes:
            self._queue.remove_targets(np.array(hashes, np.int64))
            self._has_staged = True

    def _end_backlog(self, waiting: WaitingTarget, now_ms: int, until_tick: int) -> None:
        """Return a target without waiting timers to the common order."""
        if waiting.is_paused or len(waiting.ranges) > 1 or not self._backlogs.is_loaded_to(waiting, until_tick):
            return
        if waiting.hash in self._out_of_order.blocked():
            return
        (last,) = waiting.ranges
        first_ms, main_ms = last.first_visit_ms(), self._queue.next_visit_ms()
        is_waiting = first_ms is not None and first_ms <= max(now_ms, self._settled.visit_ms)
        is_ahead = last.after > self._settled and (
            self._cursor < last.after.visit_ms // self._options.tick_ms
            or (main_ms is not None and main_ms <= last.after.visit_ms)
        )
        if is_waiting or is_ahead:
            return
        self._settled = max(self._settled, last.after)
        self._backlogs.end(waiting)
        run = last.queue.rows()
        self._queue.push(run[run["visit_ms"] // self._options.tick_ms <= self._cursor])
        self._has_staged = True

    # -- targets that wait

    @property
    def waits(self) -> tuple[Wait, ...]:
        """All target backlogs, as staged."""
        return self._backlogs.waits()

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool:
        """True if the timer of `target` with the key (visit_ms, origin) `place` has not left."""
        waiting = self._backlogs.get(target) if len(self._backlogs) else None
        if waiting is None:
            return place > self._settled
        return any(after < place <= until for after, until in waiting.key_ranges())

    def pause(self, target: str, *, is_paused: bool) -> None:
        """Pause `target`, or let its timers leave again."""
        waiting = self._backlogs.get(target)
        if waiting is not None:
            self._backlogs.wake(waiting)
            waiting.is_paused = is_paused
        elif is_paused:
            self._start_backlog({target: self._settled}, is_paused=True)
        self._has_staged = True

    def paused(self) -> set[str]:
        """Return the paused targets."""
        return {waiting.target for waiting in self._backlogs if waiting.is_paused}

    def must_wait(self, target: str) -> bool:
        """True if new timers of `target` have to wait."""
        return self._backlogs.get(target) is not None

    def backlog_hashes(self) -> list[int]:
        """Return hashes of the targets with waiting timers, out-of-order ones included."""
        return self._waiting.hashes()

    def backlogs(self, now_ms: int) -> list[Backlog]:
        """Return the backlog of each target with waiting timers."""
        return self._waiting.backlogs(now_ms)

    def next_release_ms(self, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int | None:
        """Return when the first waiting timer may leave or must roll.

        may_leave_ms: returns when the rate of a target allows the next one.
        """
        return 0 if self._first_starved is not None else self._waiting.next_release_ms(may_leave_ms, most_wait_ms)

    def _open_ticks(self, now_ms: int, enough: int) -> None:
        now_tick = now_ms // self._options.tick_ms
        while self._cursor < now_tick and len(self._queue) < enough:
            tick = self._wheel.next_time(self._cursor, now_tick)
            if tick is None:
                self._cursor = now_tick
            else:
                self._queue.push(self._backlogs.without(self._load_tick(tick)))
                self._cursor = tick

    def _load_tick(self, tick: int) -> Rows:
        """Read the pending rows of a tick: along its chain if that is sparse, else block by block."""
        return self._ticks.read(tick, self._settled, self._backlogs.key_ranges())

    def next_visit_ms(self, until_ms: int) -> int | None:
        """Return the next wake-up time in memory, or the start of the next tick to open, up to `until_ms`."""
        waiting = [at for at in (self._queue.next_visit_ms(), self._out_of_order.next_visit_ms()) if at is not None]
        tick = self._wheel.next_time(self._cursor, until_ms // self._options.tick_ms)
        if tick is not None:
            waiting.append(tick * self._options.tick_ms)
        return min(waiting, default=None)

    def bodies(self, rows: Rows) -> list[Body]:
        """Return the bodies of `rows`, in their order. Raises CorruptStoreError."""
        return self._body_reader.read(rows)

    # -- committing

    def advance_settled(self, before_ms: int, step_ms: int) -> None:
        """Move K to `before_ms`, or to the first pending timer before it, in steps of at least `step_ms`.

        So that files can be deleted even if all timers end before they are delivered.
        """
        is_small = before_ms < self._settled.visit_ms + step_ms
        if is_small or len(self._backlogs) or before_ms // self._options.tick_ms > self._cursor:
            return
        first_ms = self._queue.next_visit_ms()
        settled = Key(before_ms if first_ms is None else min(before_ms, first_ms), -1)
        if settled > self._settled:
            self._settled = settled
            self._has_staged = True

    def progress(self) -> Progress:
        """Return (C, K, L) as staged: what the next transaction commits."""
        if not len(self._low_row) or not pending_by_key(self._low_row, self._settled, self._backlogs.key_ranges())[0]:
            self._low_offset = max(self._low_offset, self._find_low_offset())
        return Progress(self._next_offset, self._settled, self._low_offset, era=self._committed.era)

    def _find_low_offset(self) -> int:
        """Return the lowest pending offset. Each unit is read once in the life of a store, as L only moves forward."""
        key_ranges = self._backlogs.key_ranges()
        for start, end in blocks(self._units, self._low_unit, _FIRST_BLOCK_UNITS):
            units, extra = self._units.read_checked(start, end)  # units below L are never read again
            run = run_of(units, extra, start)
            ended = (units["magic"] & MAGIC_DELETE != 0) | self._ended.flags(start, end)
            live = run[(pending_in_order(units, run, self._settled, key_ranges) | self._is_out_of_order(run)) & ~ended]
            if len(live):
                self._low_unit = int(live["unit"][0])
                self._low_row = live[:1].copy()
                return self.bodies(live[:1])[0].offset  # the offset of a copy is not its origin
            self._low_unit = end
        self._low_row = NO_ROWS
        return self._next_offset

    def peek(self, row: Rows) -> Peek:
        """Return the beginning of the body of `row`, one TIMER_ROW.

        Raises CorruptStoreError if a torn unit points to another timer's body.
        """
        return self._body_reader.peek(row)

    @property
    def committed_progress(self) -> Progress:
        """Progress of the last transaction that is known to be committed."""
        return self._committed

    def committed(self, progress: Progress, *, is_all: bool = True) -> None:
        """Record that the transaction with `progress` is committed. is_all: nothing was staged after it."""
        self._committed = progress
        if is_all:
            self._has_staged = False

    def _count_in(self, run: Rows) -> None:
        if len(run) == 0:
            return
        self._pending += len(run)
        self._dues.add(run)
        self._maintenance.count_in(run)
        max_ids = run[run["id_hash"] != 0]
        if len(max_ids):
            self._ids.insert(max_ids["id_hash"], max_ids["unit"])

    def _count_out(self, run: Rows) -> None:
        self._pending -= len(run)
        self._dues.remove(run)
        self._maintenance.count_out(run)
        max_ids = run[run["id_hash"] != 0]
        if len(max_ids):
            self._ids.remove(max_ids["id_hash"], max_ids["unit"])

    # -- durability

    @property
    def may_checkpoint(self) -> bool:
        """True if everything staged is committed and not in a checkpoint yet, and no checkpoint is running."""
        return not self._has_staged and self._maintenance.is_idle and self._maintenance.has_changed(self._committed)

    def start_checkpoint(
        self, journal_offset: int, flights: Sequence[CopyInFlight], ended_flights: Sequence[int]
    ) -> bool:
        """Start to make the committed state durable. Return False if that is not possible now."""
        if not self.may_checkpoint:
            return False
        dead_units, dead_bodies = self._maintenance.deletable(self._open_tick_ms())
        found = Checkpoint(
            progress=self._committed,
            segment_bytes=self._segment_bytes,
            tick_ms=self._options.tick_ms,
            slots=self._options.slots,
            units_end=self._units.end,
            body_end=self._bodies.end,
            low_unit=self._low_unit,
            segments=runs(sorted(set(self._units.segments()) - set(dead_units))),
            bodies=tuple(sorted(set(self._bodies.bases()) - set(dead_bodies))),
            pending=self._pending,
            held=tuple(self._out_of_order.rows()["origin"].tolist()),
            waits=self._backlogs.waits(),
            flights=tuple(flights),
            ended_flights=tuple(ended_flights),
            journal_offset=journal_offset,
        )
        self._maintenance.start(found, dead_units, dead_bodies)
        self._mapping.drop_page_cache()  # a tick's page is used again only hours later
        return True

    def _open_tick_ms(self) -> int:
        """Return the start of the tick of K, or of the oldest backlog."""
        oldest_ms = self._backlogs.oldest_ms()
        visit_ms = self._settled.visit_ms if oldest_ms is None else min(oldest_ms, self._settled.visit_ms)
        return visit_ms // self._options.tick_ms * self._options.tick_ms

    def continue_checkpoint(self) -> bool:
        """Return True if no checkpoint is running. Raises OSError if it failed; then it is dropped."""
        return self._maintenance.continue_checkpoint()

    def finish_checkpoint(self) -> None:
        """Wait for the running checkpoint. Raises OSError if it failed."""
        self._maintenance.finish()

    def compact_some(self) -> None:
        """Run one bounded step of a compaction; start one if it is worth it."""
        moved = self._maintenance.compact_some(self._settled.visit_ms)
        if moved is not None:
            rows, positions = moved
            self._queue.repoint(rows["unit"], positions)
            self._out_of_order.repoint(rows["unit"], positions)
            self._backlogs.repoint(rows["unit"], positions)

    def _pending_rows(self, start: int, end: int) -> Rows:
        """Return pending rows among units [start, end) of one segment, none if it was deleted."""
        if not self._units.has(start):
            return NO_ROWS
        units = self._units.read(start, end)
        run = run_of(units, self._units.extras(start, end), start)
        is_timer = (units["magic"] & MAGIC_DELETE == 0) & ~self._ended.flags(start, end)
        is_chained = pending_in_order(units, run, self._settled, self._backlogs.key_ranges())
        live: Rows = run[is_timer & (is_chained | self._is_out_of_order(run))]
        return live

    def close(self) -> None:
        """Close the files. The next opening goes back to the last checkpoint."""
        self._maintenance.abandon()
        if self._maintenance.durable is not None and self._matches(self._maintenance.durable):
            self._mark_closed(self._maintenance.durable)
        with ExitStack() as ends:
            ends.callback(self._bodies.close)
            ends.callback(self._units.close)
            ends.callback(self._mapping.close)
            ends.callback(self._wheel.close)

    def _matches(self, checkpoint: Checkpoint) -> bool:
        """True if nothing has changed since `checkpoint`."""
        ends = (self._units.end, self._bodies.end, self._pending, self._committed)
        is_same = ends == (checkpoint.units_end, checkpoint.body_end, checkpoint.pending, checkpoint.progress)
        return is_same and not self._has_staged and self._maintenance.is_idle

    def _mark_closed(self, checkpoint: Checkpoint) -> None:
        """Write the shutdown snapshot and `closed`. Without them the next opening is that after a kill."""
        with suppress(OSError, UnreadableError), closing(self._disk.open(WHEEL)) as wheel:
            # A compaction may have changed units since the checkpoint; a restored snapshot does not check them.
            dirty = self._units.take_dirty() + self._bodies.take_dirty()
            shutdown_snapshot.write(self._disk, checkpoint, self._snapshot())
            self._disk.start_sync([*dirty, wheel]).wait()
            self._disk.start_replace(CLOSED, checkpoint.to_bytes()).wait()
