"""The store of one shard: live timers on disk, the next due ones in memory.

    add(batch) -> body log, TimerLog, wheel          due(now) -> rows in order -> bodies(rows) -> committed(...)

Rules:
1. A row is live when its key (visit_ms, origin) is above K, or it is held. Nothing else says so: no mark is written
   when a timer leaves (invariant 3).
2. What `add` and `due` do is staged until `committed`. There is no undo in memory: a store whose transaction is lost is
   closed and opened again, which takes it back to its checkpoint.
3. A checkpoint is started only when all that is staged is committed. A segment is deleted once a durable checkpoint
   knows that nothing in it lives.
4. Up to `cursor` the wheel's ticks are open: their live rows wait in memory, later ones on disk.
5. The disk is a cache: bytes that cannot be right raise CorruptStoreError, and the owner rebuilds the shard from Kafka.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.progress import NOTHING_SETTLED, Key, Progress
from timer.batch import Batch
from timer.checkpoint import NAME, Checkpoint
from timer.checkpointing import Checkpointing
from timer.disk import Disk
from timer.entry import MAGIC_UNCHAINED, RUN, Rows, run_of, visits_ms
from timer.errors import CorruptStoreError
from timer.live import LiveCounts
from timer.log import FrameLog, UnitLog
from timer.options import StoreOptions
from timer.plan import DueQueue
from timer.record import Body, unpack
from timer.wheel import SLOT_SIZE, Wheel

_SCAN_UNITS = 1 << 16
_FIRST_BLOCK = 16
_SPARSE = 512
"""Units between two of a chain from which on a hop is cheaper than reading through."""
_READ_THROUGH_BYTES = 4096
_READ_MOST_BYTES = 8 << 20
_FOREVER_MS = 2**63 - 1
_UNITS, _BODIES, _WHEEL = "timer", "body", "wheel"


class Due(NamedTuple):
    """Rows that leave now, each part in the order of release: those K moves over, and those that were held."""

    rows: Rows
    released: Rows

    def __len__(self) -> int:
        return len(self.rows) + len(self.released)

    @classmethod
    def none(cls) -> "Due":
        return cls(np.empty(0, RUN), np.empty(0, RUN))


def wipe(disk: Disk) -> None:
    """Removes a store; the checkpoint first, so that half a wipe is no store."""
    disk.remove(NAME)
    disk.remove(_WHEEL)
    for folder in (_UNITS, _BODIES):
        for name in disk.names(folder):
            disk.remove(f"{folder}/{name}")


def _above(run: Rows, settled: Key) -> NDArray[np.bool_]:
    """Which rows have a key > K."""
    visits = run["visit_ms"]
    above: NDArray[np.bool_] = (visits > settled.visit_ms) | (
        (visits == settled.visit_ms) & (run["origin"] > settled.origin)
    )
    return above


class Store:
    """See the module. Opened by `Store.create` (empty) or `Store.open` (at its checkpoint)."""

    def __init__(self, disk: Disk, options: StoreOptions, segment_bytes: int, progress: Progress) -> None:
        self._disk = disk
        self._options = options
        self._segment_bytes = segment_bytes
        self._units = UnitLog(disk, _UNITS, segment_bytes)
        self._bodies = FrameLog(disk, _BODIES, segment_bytes)
        disk.remove(_WHEEL)
        self._mapping = disk.map(_WHEEL, options.slots * SLOT_SIZE)
        self._wheel = Wheel(self._mapping.buffer, tick_ms=options.tick_ms, slots=options.slots)
        self._queue = DueQueue()
        self._held = DueQueue()
        self._settled = progress.settled
        self._next_offset = progress.next_offset
        self._committed = progress
        self._low_unit = self._units.end
        self._low_offset = progress.low_offset
        self._cursor = progress.settled.visit_ms // options.tick_ms - 1 if progress.settled != NOTHING_SETTLED else -1
        self._low_key: Key | None = None
        self._live_units = LiveCounts()
        self._live_bodies = LiveCounts()
        self._pending = 0
        self._taken = 0
        self._checkpointing: Checkpointing | None = None
        self._checkpointed: Progress | None = None

    @classmethod
    def create(cls, disk: Disk, options: StoreOptions, progress: Progress) -> "Store":
        """An empty store, in place of whatever lies there; requests from `progress.low_offset` on are to be added."""
        wipe(disk)
        return cls(disk, options, options.segment_bytes, progress)

    @classmethod
    def open(
        cls, disk: Disk, options: StoreOptions, found: Checkpoint, progress: Progress, held: Collection[int]
    ) -> "Store":
        """The store as of `found`, with what `progress` and `held` (origins) say is live now.

        Requests from `found.progress.next_offset` on are to be added. Raises CorruptStoreError.
        """
        store = cls(disk, options, found.segment_bytes, progress)
        try:
            store._take_back(found)
            store._rebuild(found, held)
        except CorruptStoreError:
            store.close()
            raise
        return store

    def _take_back(self, found: Checkpoint) -> None:
        self._units.truncate(found.units_end)
        self._bodies.truncate(found.body_end)
        self._low_unit = found.low_unit

    def _rebuild(self, found: Checkpoint, held: Collection[int]) -> None:
        """The wheel from the log, chunk by chunk: whatever wheel lay there is not asked."""
        kept = np.fromiter(held, np.int64, len(held))
        counted = 0
        for segment in self._units.segments():
            start = max(found.low_unit, segment * self._units.per_segment)
            end = min(found.units_end, (segment + 1) * self._units.per_segment)
            for at in range(start, end, _SCAN_UNITS):
                run = run_of(self._units.read(at, min(end, at + _SCAN_UNITS)), at)
                counted += int((_above(run, found.progress.settled) | np.isin(run["origin"], found.held)).sum())
                self._admit(run, np.isin(run["origin"], kept))
        if counted != found.pending:
            raise CorruptStoreError(_UNITS, f"{counted} live units where the checkpoint counts {found.pending}")

    def _admit(self, run: Rows, is_held: NDArray[np.bool_]) -> None:
        above = _above(run, self._settled) & ~is_held
        if above.any():
            self._wheel.link(self._wheel.plan(run["visit_ms"][above], self._units.positions(run["unit"][above])))
        self._held.push(run[is_held])
        self._count_in(run[above | is_held])

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
        """Live timers, as of the last commit, plus those added since."""
        return self._pending

    def add(self, batch: Batch, next_offset: int) -> None:
        """Stores `batch`: requests below `next_offset` are dealt with. Else OSError or WheelFullError, and nothing."""
        if len(batch):
            self._append(batch)
        self._next_offset = next_offset

    def _append(self, batch: Batch) -> None:
        first, body_end = self._units.end, self._bodies.end
        chained = np.ones(len(batch), np.bool_)
        chained[batch.held] = False
        positions = self._units.positions(np.arange(first, first + len(batch)))
        links = self._wheel.plan(np.array(batch.visits_ms, np.int64)[chained], positions[chained])
        try:
            units = batch.units(self._bodies.append(batch.frames))
            units["previous"][chained] = links.previous
            self._units.append(units)
        except OSError:
            self._bodies.truncate(body_end)
            raise
        self._wheel.link(links)
        run = run_of(units, first)
        self._held.push(run[~chained])
        self._queue.push(run[chained & (run["visit_ms"] // self._options.tick_ms <= self._cursor)])
        self._count_in(run)

    def due(self, now_ms: int, limit: int, limit_bytes: int) -> Due:
        """Takes what leaves now, at most `limit` of each part; K moves to the last of the rows."""
        self._open_ticks(now_ms, limit)
        rows = self._queue.take(now_ms, limit, limit_bytes)
        if len(rows):
            self._settled = Key(int(rows["visit_ms"][-1]), int(rows["origin"][-1]))
        due = Due(rows, self._held.take(now_ms, limit, limit_bytes))
        self._taken += len(due)
        return due

    def _open_ticks(self, now_ms: int, enough: int) -> None:
        now_tick = now_ms // self._options.tick_ms
        while self._cursor < now_tick and len(self._queue) < enough:
            tick = self._wheel.next_time(self._cursor, now_tick)
            if tick is None:
                self._cursor = now_tick
            else:
                self._queue.push(self._load(tick))
                self._cursor = tick

    def _load(self, tick: int) -> Rows:
        """The live rows of a tick: its chain hop by hop where it is sparse, the log it lies in block by block else."""
        first, last, live = self._wheel.slot(tick)
        number, stop = self._units.number(last), self._units.number(first)
        found: list[Rows] = []
        block = _SCAN_UNITS if live * _SPARSE >= number - stop else _FIRST_BLOCK
        while number >= stop:
            start = max(stop, self._units.segment(number) * self._units.per_segment, number - block + 1)
            units = self._units.read(start, number + 1)
            own = (visits_ms(units) // self._options.tick_ms == tick) & (units["magic"] & MAGIC_UNCHAINED == 0)
            if not own[-1]:
                raise CorruptStoreError(f"wheel, tick {tick}", f"unit {number} belongs to another tick")
            found.append(run_of(units, start)[own])
            earliest = int(np.argmax(own))
            number = self._below(int(units["previous"][earliest]), start + earliest)
        run = np.concatenate(found)
        run = run[_above(run, self._settled)]
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
                if body.offset != origins[i]:
                    raise CorruptStoreError(f"body log at {positions[i]}", f"offset {body.offset}, not {origins[i]}")
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

    def progress(self) -> Progress:
        """(C, K, L) as staged: what the transaction commits."""
        if self._low_key is None or self._low_key <= self._settled:
            self._low_offset = max(self._low_offset, self._find_low_offset())
        return Progress(self._next_offset, self._settled, self._low_offset)

    def _find_low_offset(self) -> int:
        """The lowest live offset. The search only moves forward: over the life of a store it reads each unit once."""
        held = self._held.rows()["unit"]
        for segment in self._units.segments():
            start = max(self._low_unit, segment * self._units.per_segment)
            end = min(self._units.end, (segment + 1) * self._units.per_segment)
            block = _FIRST_BLOCK
            while start < end:
                run = run_of(self._units.read(start, min(end, start + block)), start)
                live = run[_above(run, self._settled) | np.isin(run["unit"], held)]
                if len(live):
                    self._low_unit = int(live["unit"][0])
                    self._low_key = Key(int(live["visit_ms"][0]), int(live["origin"][0]))
                    return self._low_key.origin
                start += len(run)
                block = min(_SCAN_UNITS, block * 4)
            self._low_unit = max(self._low_unit, start)
        self._low_key = None
        return self._next_offset

    def committed(self, progress: Progress, due: Due) -> None:
        """The transaction that carried `progress` stands, and `due` has left with it."""
        self._committed = progress
        self._taken -= len(due)
        if len(due.rows):
            self._wheel.settle(due.rows["visit_ms"])
            self._count_out(due.rows)
        if len(due.released):
            self._count_out(due.released)

    def _count_in(self, run: Rows) -> None:
        self._pending += len(run)
        self._live_units.add(run["unit"] // self._units.per_segment, run["visit_ms"])
        self._live_bodies.add(self._bodies.bases_of(run["body"]), run["visit_ms"])

    def _count_out(self, run: Rows) -> None:
        self._pending -= len(run)
        self._live_units.remove(run["unit"] // self._units.per_segment)
        self._live_bodies.remove(self._bodies.bases_of(run["body"]))

    # -- durability

    @property
    def may_checkpoint(self) -> bool:
        """All that is staged is committed, something is since the last checkpoint, and none is on its way."""
        staged = (self._next_offset, self._settled) == (self._committed.next_offset, self._committed.settled)
        return staged and self._taken == 0 and self._checkpointing is None and self._checkpointed != self._committed

    def start_checkpoint(self, journal_offset: int) -> bool:
        """Begins to make durable what is committed. False, and nothing, where that may not be now."""
        if not self.may_checkpoint:
            return False
        found = Checkpoint(
            progress=self._committed,
            segment_bytes=self._segment_bytes,
            units_end=self._units.end,
            body_end=self._bodies.end,
            low_unit=self._low_unit,
            pending=self._pending,
            held=tuple(self._held.rows()["origin"].tolist()),
            journal_offset=journal_offset,
        )
        files = self._units.take_dirty() + self._bodies.take_dirty()
        self._checkpointing = Checkpointing.start(self._disk, files, found, self._dead_units(), self._dead_bodies())
        return True

    def _dead_units(self) -> list[int]:
        """Not the newest one, and none that a live chain passes through: its visits lie before the tick of K."""
        open_tick_ms = self._settled.visit_ms // self._options.tick_ms * self._options.tick_ms
        return self._live_units.dead(self._units.segments()[:-1], open_tick_ms)

    def _dead_bodies(self) -> list[int]:
        return self._live_bodies.dead(self._bodies.bases()[:-1], _FOREVER_MS)

    def continue_checkpoint(self) -> bool:
        """True once no checkpoint is on its way. Raises OSError where the disk refuses: then there is none."""
        going = self._checkpointing
        if going is None:
            return True
        try:
            if not going.durable():
                return False
        except OSError:
            self._checkpointing = None
            self._units.mark_dirty()
            self._bodies.mark_dirty()
            raise
        self._checkpointing = None
        self._checkpointed = going.checkpoint.progress
        for segment in going.dead_units:
            self._units.drop_segment(segment)
            self._live_units.forget(segment)
        for base in going.dead_bodies:
            self._bodies.drop_segment(base)
            self._live_bodies.forget(base)
        return True

    def finish_checkpoint(self) -> None:
        """Waits for the one on its way. Raises OSError where the disk refuses."""
        if self._checkpointing is not None:
            self._checkpointing.wait()
        self.continue_checkpoint()

    def close(self) -> None:
        """Lets go of the files. What was not checkpointed is taken back at the next opening."""
        self._wheel.close()
        self._mapping.close()
        self._units.close()
        self._bodies.close()
