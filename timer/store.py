"""The store of one shard: live timers on disk, the next due ones in memory.

    add(batch) -> body log, TimerLog, wheel          due(now) -> rows in order -> bodies(rows) -> committed(...)

Rules:
1. A row is live when it is held, or else its key (visit_ms, origin) is above K, or, where its target waits, in one of
   the target's stretches (timer.schedule.target_backlog); unless a delete marker says that it ended.
   No mark is written when a timer leaves (invariant 3).
2. What `add` and `due` do is staged until `committed`. There is no undo in memory: a store whose transaction is lost is
   closed and opened again, which takes it back to its checkpoint.
3. A checkpoint is started only when all that is staged is committed. A segment is deleted once a durable checkpoint
   knows that nothing in it lives.
4. Up to `cursor` the wheel's ticks are open: their live rows wait in memory, later ones on disk.
5. The disk is a cache: bytes that cannot be right raise CorruptStoreError, and the owner rebuilds the shard from Kafka.
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
from timer.files.disk import Disk
from timer.files.segment_log import FrameLog, UnitLog, sweep
from timer.files.wheel import SLOT_SIZE, Links, Wheel
from timer.format.batch import Batch, markers
from timer.format.body import PEEK_SIZE, Body, Peek, peek, unpack
from timer.format.checkpoint import CLOSED, NAME, Checkpoint, runs
from timer.format.file_names import BODIES, IDS, UNITS, WHEEL
from timer.format.unit import (
    BESIDE,
    MAGIC_DELETE,
    MAGIC_UNCHAINED,
    NO_ROWS,
    UNIT,
    Ints,
    Rows,
    joined,
    run_of,
    topic_hash,
    visits_ms,
)
from timer.index.due_counts import HOUR_MS, DueBound, DueCounts, DueRange
from timer.index.id_index import IdIndex, hashes_of
from timer.index.segment_liveness import EndedUnits
from timer.maintenance import shutdown_snapshot as resume
from timer.maintenance.maintenance import Upkeep
from timer.maintenance.startup_scan import LiveScan, above, blocks, to_come
from timer.options import StoreOptions
from timer.schedule.due_queue import DueQueue
from timer.schedule.out_of_order import HeldTimers
from timer.schedule.release_policy import Release, Room, beginning_with
from timer.schedule.target_backlog import OPEN, Backlog, Gate, LoadedTicks, TargetBacklog, WaitingTarget, last_key

_SCAN_UNITS = 1 << 16
_LISTED_UNITS = 1 << 13
_FIRST_BLOCK = 16
_SPARSE = 512
"""Units between two of a chain from which on a hop is cheaper than reading through."""
_READ_THROUGH_BYTES = 4096
_READ_MOST_BYTES = 8 << 20
_LOOKS_WHILE_PAUSED = 8
"""Until what is paused is rolled: so far the place lags behind from which on it is told."""


class Due(NamedTuple):
    """Rows that leave now: those in their place in the order, and those that were held.

    Behind them those of targets that wait which have waited too long: they are to be rolled.
    """

    rows: Rows
    released: Rows
    old_rows: Rows = NO_ROWS
    old_released: Rows = NO_ROWS

    @property
    def total(self) -> int:
        return sum(map(len, self))


NOTHING_DUE = Due(NO_ROWS, NO_ROWS)


def wipe(disk: Disk) -> None:
    """Removes a store; the checkpoint first and durably, so that half a wipe is no store.

    Emptied, not removed: one that is still on its way, or the old one after a loss of power, must not come back and
    speak of files that are another store's by then.
    """
    disk.start_replace(NAME, b"").wait()
    disk.remove(WHEEL)
    for folder in (UNITS, BODIES, IDS):
        sweep(disk, folder, ())


def _origins(origins: Collection[int]) -> Ints:
    return np.fromiter(origins, np.int64, len(origins))


def _edges_in(run: Rows, hour: int) -> Iterator[tuple[DueBound, int, DueBound, int]]:
    """Of each topic of which rows are due in `hour`: the first and the last due time there."""
    dues = run["due_ms"]
    here = np.flatnonzero(dues // HOUR_MS == hour)
    if len(here):
        here = here[np.lexsort((dues[here], run["topic_hash"][here]))]
        hashes = run["topic_hash"][here]
        ends = [*(np.flatnonzero(np.diff(hashes)) + 1).tolist(), len(here)]
        start = 0
        for end in ends:
            hash_ = int(hashes[start])
            yield (
                DueBound(hash_, hour, False),
                int(dues[here[start]]),
                DueBound(hash_, hour, True),
                int(dues[here[end - 1]]),
            )
            start = end


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
        """`found`: it names the files that are this store's; others were written later, or an older one left them."""
        units, bodies = (found.unit_files(), found.bodies) if found else ((), ())
        for folder, only in ((UNITS, units), (IDS, units), (BODIES, bodies)):
            sweep(disk, folder, only)
        self._disk = disk
        self._options = options
        self._segment_bytes = segment_bytes
        with ExitStack() as opened:  # an error leaves none of them open
            self._units = UnitLog(disk, UNITS, IDS, segment_bytes, units)
            opened.callback(self._units.close)
            self._bodies = FrameLog(disk, BODIES, segment_bytes, bodies)
            opened.callback(self._bodies.close)
            self._resumed = resume.read(disk, found) if found is not None and self._fits(found, progress) else None
            if resume.may_be_closed(disk):
                disk.start_replace(CLOSED, b"").wait()  # a removed one could be back after a loss of power
            if self._resumed is None:
                disk.remove(WHEEL)
            disk.remove(resume.RESUME)
            self._mapping = disk.map(WHEEL, options.slots * SLOT_SIZE)
            opened.pop_all()
        self._wheel = Wheel(self._mapping.buffer, tick_ms=options.tick_ms, slots=options.slots)
        self._queue = DueQueue()
        self._held = HeldTimers()
        self._waiting = TargetBacklog(waits, options.tick_ms)
        self._settled = progress.settled
        self._next_offset = progress.next_offset
        self._committed = progress
        self._low_unit = self._units.end
        self._low_offset = progress.low_offset
        self._cursor = progress.settled.visit_ms // options.tick_ms - 1 if progress.settled != NOTHING_SETTLED else -1
        self._low_row = NO_ROWS
        """The one at L, where it is known and lives by its key."""
        self._ids = IdIndex()
        self._ended = EndedUnits(self._units.per_segment)
        self._dues = DueCounts(lambda row: self.peek(row).target)
        self._upkeep = Upkeep(disk, options, self._units, self._bodies, self._ended, self._live_rows)
        self._pending = 0
        self._turns = 0
        self._short: int | None = None
        """The hash of the first target that had no room in the last turn, 0 for those that are held."""
        self._has_staged = False

    @classmethod
    def create(cls, disk: Disk, options: StoreOptions, progress: Progress, waits: Collection[Wait] = ()) -> "Store":
        """An empty store, in place of whatever lies there; requests from `progress.low_offset` on are to be added."""
        wipe(disk)
        store = cls(disk, options, options.segment_bytes, progress, None, waits)
        if progress.low_offset == progress.next_offset:
            store._upkeep.needs_none(progress)  # nothing to keep, and perhaps no commit stands behind it yet
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
        """The store as of `found`, with what `progress`, `held`, `ended` (origins) and `waits` say is live now.

        The tick of `options` must be that of `found`, as each chain of the TimerLog is that of a tick. Requests from
        `found.progress.next_offset` on are to be added. Raises CorruptStoreError, WheelFullError, and OSError where the
        disk is full.
        """
        if found.tick_ms != options.tick_ms:
            raise ValueError(f"tick_ms is {options.tick_ms}, the store was built with {found.tick_ms}")
        store = cls(disk, options, found.segment_bytes, progress, found, waits)
        try:
            store._take_back(found)
            now = (_origins(held), _origins(ended), store._waiting.spans())
            scan = LiveScan(store._units, found, progress.settled, *now)
            if not store._restore_snapshot(found):
                store._rebuild(scan)
        except (CorruptStoreError, WheelFullError, OSError):
            store.close()
            raise
        return store

    def _fits(self, found: Checkpoint, progress: Progress) -> bool:
        """Whether what lay in the wheel then is what is to lie in it now."""
        return (found.progress, found.slots) == (progress, self._options.slots)

    def _restore_snapshot(self, found: Checkpoint) -> bool:
        """Wheel, index and counts as they were when the store was closed, where that is known."""
        state, self._resumed = self._resumed, None
        if state is None:
            return False
        if not (self._wheel.is_sound() and state.is_possible(found)):
            self._wheel.clear()
            return False
        self._ids = IdIndex.restored(state.id_hashes, state.id_units)
        self._ended.mark(state.ended)
        self._upkeep.restore(state.live_units, state.live_bodies)
        self._dues.restore(state.topics, state.due_hours, state.elsewhere)
        self._held.push(state.held)
        self._pending = sum(self._dues.counts().values())
        return True

    def _state(self) -> resume.Snapshot:
        topics, due_hours, elsewhere = self._dues.state()
        return resume.Snapshot(
            *self._ids.state(),
            self._ended.state(),
            *self._upkeep.state(),
            due_hours,
            elsewhere,
            self._held.rows(),
            topics,
        )

    def _take_back(self, found: Checkpoint) -> None:
        """Remove what was written after the checkpoint."""
        self._units.truncate(found.units_end)
        self._bodies.truncate(found.body_end)
        self._low_unit = found.low_unit

    def _rebuild(self, scan: LiveScan) -> None:
        """Wheel, index and counts from the log: whatever wheel lay there is not asked."""
        scan.mark(self._ended, self._upkeep.units)
        self._ids = IdIndex(scan.named)
        for run in scan.live(self._ended):
            if len(run):
                self._wheel.link(self._plan_links(run["visit_ms"], run["unit"]))
                self._take_back_in(run)
        for row in scan.held.values():
            self._held.push(row)
            self._take_back_in(row)
        newly_ended = joined(scan.newly_ended)
        if len(newly_ended):
            self._ended.mark(newly_ended["unit"])
            self._units.append(self._markers(newly_ended), np.zeros(len(newly_ended), BESIDE))

    def _take_back_in(self, run: Rows) -> None:
        self._bodies.expect(run["body"], run["body_size"])
        self._count_in(run)

    def _plan_links(self, visits: Ints, units: Ints) -> Links:
        return self._wheel.plan(visits, self._units.positions(units), np.ones(len(units), np.bool_))

    def _markers(self, ended: Rows) -> Rows:
        """Delete markers at the end of the log; their segments stay until the ticks of what they end have passed."""
        if len(ended):
            first, last, last_ms = self._units.end, self._units.end + len(ended) - 1, int(ended["visit_ms"].max())
            for at in (*range(first, last, self._units.per_segment), last):  # one in each segment
                self._upkeep.see(at, last_ms)
        return markers(ended, self._units.positions(ended["unit"]), np.zeros(len(ended), np.bool_))

    # -- staging

    @property
    def next_offset(self) -> int:
        """Requests below it are in the store, refused or settled."""
        return self._next_offset

    @property
    def settled(self) -> Key:
        """K, as staged."""
        return self._settled

    @property
    def pending(self) -> int:
        """Live timers, as staged."""
        return self._pending

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies of live timers, as staged. Exact after every kind of start, as each body is counted."""
        return self._upkeep.live_body_bytes

    @property
    def held(self) -> int:
        """Live timers of which K says nothing: the journal knows them one by one."""
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """Of its log's files; wheel and index of ids not counted."""
        return self._units.size_bytes + self._bodies.size_bytes

    @property
    def targets(self) -> int:
        """How many real topics have live timers."""
        return self._dues.targets

    def has_target(self, target: str) -> bool:
        """Whether it is one of these."""
        return self._dues.has(topic_hash(target))

    def pending_by_topic(self) -> dict[str, int]:
        """Live timers of each real topic that has any."""
        return self._dues.counts()

    def due_hours(self) -> dict[str, dict[int, int]]:
        """Live timers of each real topic by due time: start of the hour, epoch ms, to their number."""
        return self._dues.hours()

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """For each real topic that has live timers: how many, and their first and last due time.

        What is not known any more is looked up: in the ticks of the hour, or, where timers of that hour are to be
        rolled first, in the log. Once `is_over`, what is left of that is told to the hour; so are last ones that are
        not needed.
        """
        edges = [edge for edge in self._dues.unknown() if needs_last or not edge.is_last]
        for hour in sorted({edge.hour for edge in edges}):
            if is_over():
                break
            here = {edge for edge in edges if edge.hour == hour}
            for edge, due_ms in self._find_edges(hour, here, is_over).items():
                self._dues.learn(edge, due_ms)
        return self._dues.ranges()

    def _find_edges(self, hour: int, edges: set[DueBound], is_over: Callable[[], bool]) -> dict[DueBound, int]:
        found: dict[DueBound, int] = {}
        sure: set[DueBound] = set()
        is_in_order = not self._dues.elsewhere(hour)
        for number, run in enumerate(self._due_in(hour)):
            if is_over():
                return {edge: found[edge] for edge in sure}
            for first, first_ms, last, last_ms in _edges_in(run, hour):
                if first in edges:
                    found[first] = min(found.get(first, first_ms), first_ms)
                    if is_in_order and number > 0:  # the first run is of those held, which are in no order
                        sure.add(first)
                if last in edges:
                    found[last] = max(found.get(last, last_ms), last_ms)
            if sure == edges:  # none of the last ones, as they are never sure before the end
                break
        return found

    def _due_in(self, hour: int) -> Iterator[Rows]:
        """Live rows, all that are due in `hour` (since the epoch) among them."""
        if self._dues.elsewhere(hour):
            for start, end in blocks(self._units, self._low_unit):
                yield self._live_rows(start, end)
            return
        yield self._held.rows()
        tick_ms = self._options.tick_ms
        tick: int | None = hour * HOUR_MS // tick_ms - 1
        last = ((hour + 1) * HOUR_MS - 1) // tick_ms
        while tick is not None and (tick := self._wheel.next_time(tick, last)) is not None:
            yield self._load(tick)

    def some_live(self, first: int) -> tuple[Rows, int | None]:
        """Live rows of a stretch of the log, from unit `first` on, and where the next one begins; None: there is none.

        In the order of the log. Whoever goes through it in several steps meets what lives all the time, whatever
        happens between them; what is rolled meanwhile may be met twice, or not at all while it is on its way.
        """
        stretches = blocks(self._units, max(first, self._low_unit), _LISTED_UNITS)
        here, following = next(stretches, None), next(stretches, None)
        rows = NO_ROWS if here is None else self._live_rows(*here)
        return rows, None if following is None else following[0]

    def live_at(self, unit: int) -> Rows:
        """The row of `unit` where it lives, as some_live has told it; else no row."""
        return self._live_rows(unit, unit + 1) if self._low_unit <= unit < self._units.end else NO_ROWS

    def add(self, batch: Batch, next_offset: int) -> None:
        """Stores `batch`: requests below `next_offset` are dealt with. Else OSError or WheelFullError, and nothing."""
        if len(batch):
            self._append(batch)
        self._next_offset = next_offset
        self._has_staged = True

    def _append(self, batch: Batch) -> None:
        first, body_end = self._units.end, self._bodies.end
        ended = batch.ended()
        added, beside, frames = batch.units()
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
            self._units.append(units, np.concatenate([beside, np.zeros(len(ended), BESIDE)]) if len(ended) else beside)
        except OSError:
            self._bodies.truncate(body_end)
            raise
        self._wheel.link(links)
        for at, visit in zip(range(first + len(added), first + len(units)), visits[~is_timer].tolist(), strict=True):
            self._upkeep.see(at, visit)
        self._take_in(run_of(units[is_timer], beside, first), chained[is_timer], batch)
        self._remove_ended(ended)

    def _with_markers(self, added: Rows, ended: Rows) -> Rows:
        if len(ended) == 0:
            return added
        units = np.empty(len(added) + len(ended), UNIT)  # np.concatenate would turn the bytes' order
        units[: len(added)] = added
        units[len(added) :] = markers(ended, self._units.positions(ended["unit"]), ~self._is_held(ended))
        return units

    def _take_in(self, run: Rows, chained: NDArray[np.bool_], batch: Batch) -> None:
        rests = batch.rests()
        self._held.push(run[~chained & ~rests])
        self._held.rest(run[rests], *batch.rest_ms)
        in_order = run[chained]
        self._waiting.push(in_order)
        opened = in_order[in_order["visit_ms"] // self._options.tick_ms <= self._cursor]
        self._queue.push(self._waiting.without(opened))
        self._count_in(run)

    def _remove_ended(self, ended: Rows) -> None:
        """`ended` rows leave queue, wheel, index and counts."""
        if len(ended) == 0:
            return
        self._wheel.settle(ended["visit_ms"][~self._is_held(ended)])
        self._ended.mark(ended["unit"])
        if self._low_unit in ended["unit"]:
            self._low_row = NO_ROWS
        self._queue.remove(ended["unit"])
        self._waiting.remove(ended)
        self._held.remove(ended["unit"])
        self._count_out(ended)

    def _is_held(self, rows: Rows) -> NDArray[np.bool_]:
        return self._held.has(rows["unit"])

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        """For each id under which a timer lives: its row, a RUN of one."""
        found: dict[bytes, Rows] = {}
        if not len(self._ids):
            return found
        hashes = hashes_of(ids)
        for at, units in self._ids.find(hashes).items():
            for unit in units:
                row = self._row(unit)
                if self.peek(row).id == ids[at]:
                    found[ids[at]] = row
                else:  # another id of that hash, or a damaged one
                    self.bodies(row)
        return found

    def _row(self, unit: int) -> Rows:
        return run_of(self._units.read(unit, unit + 1), self._units.beside(unit, unit + 1), unit)

    def due(self, now_ms: int, limit: int, limit_bytes: int, gate: Gate = OPEN, most_wait_ms: int = MAX_INT64) -> Due:
        """Takes what leaves now, at most `limit` in all; K moves over what was looked at.

        Targets wait that are paused, and those of which `gate` lets no more out. Who has waited for `most_wait_ms` is
        to be rolled. Where there was no room for somebody, the order of all has half of it in the next turns.
        """
        room, self._turns = Room(limit, limit_bytes), self._turns + 1
        in_order = (limit, limit_bytes)
        if self._short is not None:
            in_order = ((limit + self._turns // 2 % 2) // 2, max(1, limit_bytes // 2))
        self._open_ticks(now_ms, in_order[0])
        before = self._settled
        rows = self._queue.take(now_ms, *in_order)
        if len(rows):
            self._settled = last_key(rows)
        is_open = gate is OPEN and not len(self._waiting)
        if is_open and len(rows) == 0 and self._held.is_quiet(now_ms):
            self._short = None
            return NOTHING_DUE
        release = Release(gate, self._waiting, self._held, self._dues.name, now_ms, room, self._short or 0)
        if not is_open or self._held.blocked():
            due = self._apply_target_limits(rows, release, before, max(-1, now_ms - most_wait_ms))
        else:
            room.fill(rows)
            self._settle(rows)
            due = Due(rows, release.of_held(self._take_held(release)))
        self._short = room.short[0] if room.short else None
        for part in (due.released, due.old_released):
            self._let_go(part)
        self._has_staged |= due.total > 0
        return due

    def take_overflow(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """The oldest of those that are held for their targets, which are to be rolled: their copies find a place.

        So their targets wait from here on, also those that are beyond their rate for a moment.
        """
        self._held.block_due([waiting.hash for waiting in self._waiting], now_ms)
        parts: list[Rows] = []
        for hash_ in self._held.blocked():
            if limit <= 0 or limit_bytes <= 0:
                break
            target = self._dues.name(hash_)
            if self._waiting.get(target) is None:
                self._begin_to_wait({target: self._settled})
            run = self._held.take_blocked(hash_, limit, now_ms, limit_bytes)
            limit, limit_bytes = limit - len(run), max(0, limit_bytes - int(run["body_size"].sum()))
            parts.append(run)
        rows = joined(parts)
        self._let_go(rows)
        self._has_staged |= len(rows) > 0
        return rows

    def _let_go(self, held: Rows) -> None:
        if len(held) == 0:
            return
        self._count_out(held)
        if self._low_unit in held["unit"]:
            self._low_row = NO_ROWS

    def _take_held(self, release: Release) -> Rows:
        """Those that are to be looked at now, as far as there is room."""
        room = release.room
        if room.at_most(None if self._held.has_visit(release.now_ms) else 0, 0) == 0:
            return NO_ROWS
        return self._held.take(release.now_ms, room.timers, room.size_bytes)

    def _apply_target_limits(self, rows: Rows, release: Release, before: Key, old_before_ms: int) -> Due:
        """Without what has to wait, and with what may leave, or is too old, of what has waited.

        Those that are held, and those that wait in their order, take turns in being the first.
        """
        rows, begin = release.let_through(rows, before)
        self._begin_to_wait(begin)
        self._settle(rows)
        if self._turns % 2:
            released, old_released = self._of_held(release, old_before_ms)
            leaving, old = self._of_waiting(release, old_before_ms)
        else:
            leaving, old = self._of_waiting(release, old_before_ms)
            released, old_released = self._of_held(release, old_before_ms)
        return Due(joined([rows, leaving]), released, old, old_released)

    def _of_held(self, release: Release, old_before_ms: int) -> tuple[Rows, Rows]:
        released = release.of_held(self._take_held(release))
        return released, release.too_old_held(old_before_ms, self._units.end)

    def _of_waiting(self, release: Release, old_before_ms: int) -> tuple[Rows, Rows]:
        leaving: list[Rows] = []
        old: list[Rows] = []
        until_tick = max(max(release.now_ms, self._settled.visit_ms) // self._options.tick_ms, self._cursor)

        ticks = LoadedTicks(self._load)

        def read_ahead(waiting: WaitingTarget) -> None:
            if not self._waiting.read_ahead(waiting, until_tick, self._wheel.next_time, ticks):
                release.room.short.append(waiting.hash)

        self._waiting.wake_up(release.now_ms)
        for hash_ in beginning_with(release.first, self._waiting.awake()):
            waiting = self._waiting.by_hash(hash_)
            read_ahead(waiting)
            if waiting.is_paused and waiting.first_visit_ms() is None:
                waiting.forget(old_before_ms, release.now_ms)
                self._let_sleep(waiting, release, until_tick, old_before_ms)
                continue
            leaving.append(release.of_waiting(waiting, read_ahead))
            self._settle(leaving[-1])
            old.append(release.too_old(waiting, old_before_ms, self._units.end))
            self._settle(old[-1])
            read_ahead(waiting)
            waiting.forget(old_before_ms, release.now_ms)
            self._end_wait(waiting, release.now_ms, until_tick)
            self._let_sleep(waiting, release, until_tick, old_before_ms)
        return joined(leaving), joined(old)

    def _let_sleep(self, waiting: WaitingTarget, release: Release, until_tick: int, old_before_ms: int) -> None:
        """A paused one that has been seen to: what it has now waits, until the first of it is too old."""
        room, now_ms = release.room, release.now_ms
        if not waiting.is_paused or room.timers == 0 or waiting.hash in room.short:
            return
        first_ms, most_wait_ms = waiting.first_visit_ms(), now_ms - old_before_ms
        if first_ms is None:
            self._waiting.sleep(waiting, (until_tick + 1) * self._options.tick_ms, is_empty=True)
        elif first_ms <= now_ms:
            until_ms = min(first_ms + most_wait_ms, now_ms + most_wait_ms // _LOOKS_WHILE_PAUSED)
            if until_ms > now_ms:
                self._waiting.sleep(waiting, until_ms, is_empty=False)

    def _settle(self, rows: Rows) -> None:
        """`rows`, which had their place in the order, leave."""
        if len(rows):
            self._wheel.settle(rows["visit_ms"])
            self._count_out(rows)

    def _begin_to_wait(self, begin: Mapping[str, Key], *, is_paused: bool = False) -> None:
        hashes = [self._waiting.begin(target, after, is_paused=is_paused).hash for target, after in begin.items()]
        if hashes:
            self._queue.remove_targets(np.array(hashes, np.int64))
            self._has_staged = True

    def _end_wait(self, waiting: WaitingTarget, now_ms: int, until_tick: int) -> None:
        """Where nothing of it waits any more, it goes on in the order of all."""
        if waiting.is_paused or len(waiting.stretches) > 1 or not self._waiting.is_read_to(waiting, until_tick):
            return
        if waiting.hash in self._held.blocked():
            return
        (last,) = waiting.stretches
        first_ms, main_ms = last.first_visit_ms(), self._queue.next_visit_ms()
        is_waiting = first_ms is not None and first_ms <= max(now_ms, self._settled.visit_ms)
        is_ahead = last.after > self._settled and (
            self._cursor < last.after.visit_ms // self._options.tick_ms
            or (main_ms is not None and main_ms <= last.after.visit_ms)
        )
        if is_waiting or is_ahead:
            return
        self._settled = max(self._settled, last.after)
        self._waiting.end(waiting)
        run = last.queue.rows()
        self._queue.push(run[run["visit_ms"] // self._options.tick_ms <= self._cursor])
        self._has_staged = True

    # -- targets that wait

    @property
    def waits(self) -> tuple[Wait, ...]:
        """All of them, as staged."""
        return self._waiting.told()

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool:
        """Whether a timer of `target` with this (visit_ms, origin) has not left."""
        waiting = self._waiting.get(target) if len(self._waiting) else None
        if waiting is None:
            return place > self._settled
        return any(after < place <= until for after, until in waiting.spans())

    def pause(self, target: str, *, is_paused: bool) -> None:
        """From now on timers of `target` wait, or go on."""
        waiting = self._waiting.get(target)
        if waiting is not None:
            self._waiting.wake(waiting)
            waiting.is_paused = is_paused
        elif is_paused:
            self._begin_to_wait({target: self._settled}, is_paused=True)
        self._has_staged = True

    def paused(self) -> set[str]:
        """Targets that are paused."""
        return {waiting.target for waiting in self._waiting if waiting.is_paused}

    def must_wait(self, target: str) -> bool:
        """Whether timers of `target` wait, whoever comes next."""
        return self._waiting.get(target) is not None

    def waiting_hashes(self) -> list[int]:
        """Hashes of the targets of which timers wait, also of those that are held."""
        return [*dict.fromkeys([*self._waiting.hashes(), *self._held.blocked()])]

    def backlogs(self, now_ms: int) -> list[Backlog]:
        """Of each of these."""
        firsts = {hash_: self._held.first_blocked_ms(hash_) for hash_ in self._held.blocked()}
        names = {hash_: self._dues.name(hash_) for hash_ in firsts}
        paused: set[int] = set()
        for each in self._waiting:
            names[each.hash] = each.target
            if each.is_paused:
                paused.add(each.hash)
            if (first_ms := each.first_visit_ms()) is not None:
                firsts[each.hash] = min(first_ms, firsts.get(each.hash, first_ms))
        return [
            Backlog(
                target,
                hash_ in paused,
                self._dues.due_by(hash_, now_ms // HOUR_MS),
                since_ms if (since_ms := firsts.get(hash_)) is not None and since_ms <= now_ms else None,
            )
            for hash_, target in names.items()
        ]

    def next_release_ms(self, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int | None:
        """When the first of those that wait may leave, or is to be rolled. `may_leave_ms`: of a target by its rate."""
        looks = [] if self._short is None else [0]
        for waiting in map(self._waiting.by_hash, self._waiting.awake()):
            first_ms = waiting.first_visit_ms()
            if first_ms is not None:
                looks.append(self._release_ms(waiting.target, first_ms, may_leave_ms, most_wait_ms))
        for hash_ in self._held.blocked():
            first_ms = self._held.first_blocked_ms(hash_)
            looks.append(self._release_ms(self._dues.name(hash_), first_ms, may_leave_ms, most_wait_ms))
        roll_ms = self._waiting.next_roll_ms()
        return min(looks if roll_ms is None else [*looks, max(roll_ms, self._waiting.next_pass_ms)], default=None)

    def _release_ms(self, target: str, first_ms: int, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int:
        old_ms = max(first_ms + most_wait_ms, self._waiting.next_pass_ms)
        waiting = self._waiting.get(target)
        return old_ms if waiting is not None and waiting.is_paused else min(old_ms, max(first_ms, may_leave_ms(target)))

    def _open_ticks(self, now_ms: int, enough: int) -> None:
        now_tick = now_ms // self._options.tick_ms
        while self._cursor < now_tick and len(self._queue) < enough:
            tick = self._wheel.next_time(self._cursor, now_tick)
            if tick is None:
                self._cursor = now_tick
            else:
                self._queue.push(self._waiting.without(self._load(tick)))
                self._cursor = tick

    def _load(self, tick: int) -> Rows:
        """The live rows of a tick: its chain hop by hop where it is sparse, the log it lies in block by block else."""
        first, last, live = self._wheel.slot(tick)
        number, stop = self._units.number(last), self._units.number(first)
        found: list[Rows] = []
        block = _SCAN_UNITS if live * _SPARSE >= number - stop else _FIRST_BLOCK
        while number >= stop:
            start = max(stop, self._units.segment(number) * self._units.per_segment, number - block + 1)
            units, beside = self._units.read_checked(start, number + 1)
            own = (visits_ms(units) // self._options.tick_ms == tick) & (units["magic"] & MAGIC_UNCHAINED == 0)
            if not own[-1]:
                raise CorruptStoreError(f"wheel, tick {tick}", f"unit {number} belongs to another tick")
            run = run_of(units, beside, start)
            found.append(run[own & (units["magic"] & MAGIC_DELETE == 0) & ~self._ended.among(start, number + 1)])
            earliest = int(own.argmax())
            number = self._below(int(units["previous"][earliest]), start + earliest)
        run = joined(found)
        run = run[above(run, self._settled, self._waiting.spans())]
        if len(run) != live:
            raise CorruptStoreError(f"wheel, tick {tick}", f"{len(run)} live units where the slot counts {live}")
        return run

    def _below(self, position: int, unit: int) -> int:
        """The number of the unit before `unit` in its chain, -1 where it is the first."""
        number = self._units.number(position) if position >= 0 else -1
        if number >= unit:
            raise CorruptStoreError(f"timer, unit {unit}", f"its previous is {number}")
        return number

    def next_visit_ms(self, until_ms: int) -> int | None:
        """When to look again: the first visit of an open tick, or the start of one to be opened, up to `until_ms`."""
        waiting = [at for at in (self._queue.next_visit_ms(), self._held.next_visit_ms()) if at is not None]
        tick = self._wheel.next_time(self._cursor, until_ms // self._options.tick_ms)
        if tick is not None:
            waiting.append(tick * self._options.tick_ms)
        return min(waiting, default=None)

    def bodies(self, rows: Rows) -> list[Body]:
        """The bodies of `rows`, in their order. Raises CorruptStoreError where one cannot be right."""
        if not len(rows):  # of four kinds that leave, a small turn has one
            return []
        positions, sizes = rows["body"].tolist(), rows["body_size"].tolist()
        origins = rows["origin"].tolist()
        bodies: list[Body] = []
        at = 0
        while at < len(positions):
            base = positions[at]
            end, upto = self._stretch(positions, sizes, at)
            data = memoryview(self._bodies.read(base, end - base))
            for i in range(at, upto):
                offset = positions[i] - base
                body = unpack(data[offset : offset + sizes[i]], positions[i])
                if body.origin != origins[i]:
                    raise CorruptStoreError(f"body log at {positions[i]}", f"origin {body.origin}, not {origins[i]}")
                bodies.append(body)
            at = upto
        return bodies

    def _stretch(self, positions: list[int], sizes: list[int], at: int) -> tuple[int, int]:
        """Bodies from row `at` on that one read serves: its end, and the row behind the last of them."""
        base = positions[at]
        file_end = self._bodies.file_end(base)
        end = base + sizes[at]
        upto = at + 1
        while upto < len(positions):
            begin = positions[upto]
            if not end <= begin <= end + _READ_THROUGH_BYTES or begin >= file_end or begin - base > _READ_MOST_BYTES:
                break
            end = begin + sizes[upto]
            upto += 1
        return end, upto

    # -- committing

    def advance_settled(self, before_ms: int, step_ms: int) -> None:
        """K moves on to `before_ms` where that is a step of `step_ms` or more, and nothing that lives stands before it.

        So files of what has ended can go, also where all ends before it leaves.
        """
        is_small = before_ms < self._settled.visit_ms + step_ms
        if is_small or len(self._waiting) or before_ms // self._options.tick_ms > self._cursor:
            return
        first_ms = self._queue.next_visit_ms()
        settled = Key(before_ms if first_ms is None else min(before_ms, first_ms), -1)
        if settled > self._settled:
            self._settled = settled
            self._has_staged = True

    def progress(self) -> Progress:
        """(C, K, L) as staged: what the transaction commits."""
        if not len(self._low_row) or not above(self._low_row, self._settled, self._waiting.spans())[0]:
            self._low_offset = max(self._low_offset, self._find_low_offset())
        return Progress(self._next_offset, self._settled, self._low_offset, era=self._committed.era)

    def _find_low_offset(self) -> int:
        """The lowest live offset. The search only moves forward: over the life of a store it reads each unit once."""
        spans = self._waiting.spans()
        for start, end in blocks(self._units, self._low_unit, _FIRST_BLOCK):
            units, beside = self._units.read_checked(start, end)  # what L passes over no rebuild would read again
            run = run_of(units, beside, start)
            ended = (units["magic"] & MAGIC_DELETE != 0) | self._ended.among(start, end)
            live = run[(to_come(units, run, self._settled, spans) | self._is_held(run)) & ~ended]
            if len(live):
                self._low_unit = int(live["unit"][0])
                self._low_row = live[:1].copy()
                return self.bodies(live[:1])[0].offset  # a copy's own offset is not its origin
            self._low_unit = end
        self._low_row = NO_ROWS
        return self._next_offset

    def peek(self, row: Rows) -> Peek:
        """The beginning of the body of `row`, a RUN of one.

        Raises CorruptStoreError where the unit was torn and points to another's.
        """
        position = int(row["body"][0])
        found = peek(self._bodies.read_upto(position, PEEK_SIZE), position)
        if (found.size, found.origin) != (row["body_size"][0], row["origin"][0]):
            raise CorruptStoreError(f"body log at {position}", f"not the body of origin {row['origin'][0]}")
        return found

    @property
    def committed_progress(self) -> Progress:
        """Of the last transaction that it knows to stand."""
        return self._committed

    def committed(self, progress: Progress, *, is_all: bool = True) -> None:
        """The transaction that carried `progress` stands. `is_all`: nothing was staged behind what it carried."""
        self._committed = progress
        if is_all:
            self._has_staged = False

    def _count_in(self, run: Rows) -> None:
        if len(run) == 0:
            return
        self._pending += len(run)
        self._dues.add(run)
        self._upkeep.count_in(run)
        named = run[run["id_hash"] != 0]
        if len(named):
            self._ids.insert(named["id_hash"], named["unit"])

    def _count_out(self, run: Rows) -> None:
        self._pending -= len(run)
        self._dues.remove(run)
        self._upkeep.count_out(run)
        named = run[run["id_hash"] != 0]
        if len(named):
            self._ids.remove(named["id_hash"], named["unit"])

    # -- durability

    @property
    def may_checkpoint(self) -> bool:
        """All that is staged is committed, something is since the last checkpoint, and none is on its way."""
        return not self._has_staged and self._upkeep.is_idle and self._upkeep.has_news(self._committed)

    def start_checkpoint(
        self, journal_offset: int, flights: Sequence[CopyInFlight], ended_flights: Sequence[int]
    ) -> bool:
        """Begins to make durable what is committed. False, and nothing, where that may not be now."""
        if not self.may_checkpoint:
            return False
        dead_units, dead_bodies = self._upkeep.dead(self._open_tick_ms())
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
            held=tuple(self._held.rows()["origin"].tolist()),
            waits=self._waiting.told(),
            flights=tuple(flights),
            ended_flights=tuple(ended_flights),
            journal_offset=journal_offset,
        )
        self._upkeep.start(found, dead_units, dead_bodies)
        self._mapping.drop_page_cache()  # each tick's page is touched once and again hours later
        return True

    def _open_tick_ms(self) -> int:
        """Start of the tick of K, or of the oldest that waits."""
        oldest_ms = self._waiting.oldest_ms()
        visit_ms = self._settled.visit_ms if oldest_ms is None else min(oldest_ms, self._settled.visit_ms)
        return visit_ms // self._options.tick_ms * self._options.tick_ms

    def continue_checkpoint(self) -> bool:
        """True once no checkpoint is on its way. Raises OSError where the disk refuses: then there is none."""
        return self._upkeep.go_on()

    def finish_checkpoint(self) -> None:
        """Waits for the one on its way. Raises OSError where the disk refuses."""
        self._upkeep.finish()

    def compact_some(self) -> None:
        """Goes on with a compaction, or begins one where it is worth it; a bounded piece of work for each turn."""
        moved = self._upkeep.compact_some(self._settled.visit_ms)
        if moved is not None:
            rows, positions = moved
            self._queue.repoint(rows["unit"], positions)
            self._held.repoint(rows["unit"], positions)
            self._waiting.repoint(rows["unit"], positions)

    def _live_rows(self, start: int, end: int) -> Rows:
        """Live rows among units [start, end) of one segment, which may be gone by now."""
        if not self._units.has(start):
            return NO_ROWS
        units = self._units.read(start, end)
        run = run_of(units, self._units.beside(start, end), start)
        is_timer = (units["magic"] & MAGIC_DELETE == 0) & ~self._ended.among(start, end)
        is_chained = to_come(units, run, self._settled, self._waiting.spans())
        live: Rows = run[is_timer & (is_chained | self._is_held(run))]
        return live

    def close(self) -> None:
        """Lets go of the files. What was not checkpointed is taken back at the next opening."""
        self._upkeep.abandon()
        if self._upkeep.durable is not None and self._is_as(self._upkeep.durable):
            self._note_closed(self._upkeep.durable)
        with ExitStack() as ends:
            ends.callback(self._bodies.close)
            ends.callback(self._units.close)
            ends.callback(self._mapping.close)
            ends.callback(self._wheel.close)

    def _is_as(self, told: Checkpoint) -> bool:
        """Nothing has changed since `told`."""
        ends = (self._units.end, self._bodies.end, self._pending, self._committed)
        is_same = ends == (told.units_end, told.body_end, told.pending, told.progress)
        return is_same and not self._has_staged and self._upkeep.is_idle

    def _note_closed(self, told: Checkpoint) -> None:
        """For the next opening, which takes over, and for `verify`. Without it, it is as after a kill."""
        with suppress(OSError, UnreadableError), closing(self._disk.open(WHEEL)) as wheel:
            # Units may point elsewhere since `told`, and who takes over does not look at them.
            dirty = self._units.take_dirty() + self._bodies.take_dirty()
            resume.write(self._disk, told, self._state())
            self._disk.start_sync([*dirty, wheel]).wait()
            self._disk.start_replace(CLOSED, told.to_bytes()).wait()
