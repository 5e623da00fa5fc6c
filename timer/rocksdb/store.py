"""Engine `rocksdb`: the pending timers of a store in a RocksDB database.

    rocksdb/open-x1   the database in use. It holds changes that no transaction has committed yet
    rocksdb/7         the database at the checkpoint whose `database` is 7

An opening links the files of the folder that the checkpoint names into a new folder in use. A return to the checkpoint
therefore undoes all uncommitted changes, as with the wheel, and the database in use needs no write-ahead log.

A timer that leaves or ends stays in the database until the next checkpoint, as its transaction still needs its body.
Until then its unit is among the removed ones in memory, and no answer contains it.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
from numpy.typing import NDArray

from schemas.journal import Wait
from schemas.progress import Key, Progress
from timer.disk import Disk, Syncing
from timer.errors import CorruptStoreError
from timer.format.batch import Batch
from timer.format.body import Body, Peek, peek, unpack
from timer.format.checkpoint import CLOSED, DATABASE, Checkpoint
from timer.format.unit import NO_ROWS, Rows, hashes_of, joined
from timer.index.due_counts import DueCounts
from timer.options import StoreOptions
from timer.rocksdb.database import BINDINGS_FILE, OPEN, ROW_SIZE, Database, link, rows_of
from timer.schedule.pending_timers import Waits, pending_by_key
from timer.schedule.release_queue import ReleaseQueue
from timer.store import Store, StoreQueries

_BLOCK_ROWS = 1 << 13


class RocksTimers(StoreQueries):
    """The database with what was removed since the last checkpoint."""

    release_queue: ReleaseQueue
    end_unit = pending = pending_bytes = 0

    def __init__(self, database: Database, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.database = database
        self.dues = DueCounts(lambda row: self.peek(row).target)
        self._removed: set[int] = set()
        self._removed_rows: list[Rows] = []
        self._lowest: tuple[int, int] | None = None
        """The lowest pending unit, if it is known, and the offset of its request."""
        self._low_unit = 0
        """No unit below is pending."""

    # -- state, as of a checkpoint

    def state(self) -> bytes:
        topics, hours, rolled = self.dues.state()
        counts = {"topics": topics, "hours": hours.tolist(), "rolled": rolled.tolist()}
        return json.dumps({"end_unit": self.end_unit, "bytes": self.pending_bytes} | counts).encode()

    def restore(self, pending: int) -> None:
        """Restore `state`. pending: number of timers by the checkpoint. Raises CorruptStoreError."""
        try:
            state = json.loads(self.database.state())
            hours = np.array(state["hours"], np.int64).reshape(-1, 3)
            rolled = np.array(state["rolled"], np.int64).reshape(-1, 2)
            self.dues.restore([tuple(topic) for topic in state["topics"]], hours, rolled)
            self.end_unit, self.pending_bytes = int(state["end_unit"]), int(state["bytes"])
        except (ValueError, KeyError, TypeError) as wrong:
            raise CorruptStoreError(DATABASE, f"impossible state: {wrong}") from wrong
        self.pending = int(hours[:, 2].sum())
        if self.pending != pending:
            raise CorruptStoreError(DATABASE, f"{self.pending} timers, the checkpoint counts {pending}")

    # -- changes

    def add(self, rows: Rows, in_order: NDArray[np.bool_], frames: list[bytes]) -> None:
        if not len(rows):
            return
        self.database.add(rows, frames, in_order.tolist())
        self.end_unit += len(rows)
        self.pending += len(rows)
        self.pending_bytes += int(rows["body_size"].sum())
        self.dues.add(rows)

    def remove(self, rows: Rows, in_order: Rows = NO_ROWS, *, has_ended: bool = False) -> None:  # noqa: ARG002
        if not len(rows):
            return
        units = rows["unit"].tolist()
        self._removed.update(units)
        self._removed_rows.append(rows)
        self.pending -= len(rows)
        self.pending_bytes -= int(rows["body_size"].sum())
        self.dues.remove(rows)
        if self._lowest is not None and self._lowest[0] in self._removed:
            self._lowest = None

    def flush(self) -> None:
        """Delete what was removed, and write the state: the database holds the pending timers and nothing else."""
        self.database.remove(joined(self._removed_rows), self.state())
        self._removed, self._removed_rows = set(), []

    # -- in the order of release

    def next_tick(self, after: int, until: int) -> int | None:
        for visit_ms, unit in self.database.visits_ms(max(0, (after + 1) * self.tick_ms)):
            if visit_ms // self.tick_ms > until:
                return None
            if unit not in self._removed:
                return visit_ms // self.tick_ms
        return None

    def read_tick(self, tick: int, settled: Key, waits: Waits) -> Rows:  # noqa: ARG002
        return joined(self.in_order(tick * self.tick_ms, (tick + 1) * self.tick_ms))

    def in_order(self, start_ms: int, end_ms: int) -> list[Rows]:
        return [self._without_removed(rows) for rows in self.database.in_order(start_ms, end_ms, _BLOCK_ROWS)]

    def _without_removed(self, rows: Rows) -> Rows:
        if not self._removed or not len(rows):
            return rows
        is_pending = np.fromiter((unit not in self._removed for unit in rows["unit"].tolist()), np.bool_, len(rows))
        return rows[is_pending]

    # -- in the order of the requests

    def low_offset(self) -> int | None:
        if self.pending == 0:
            self._low_unit, self._lowest = self.end_unit, None
            return None
        if self._lowest is None:
            for unit, value in self.database.log(self._low_unit):
                if unit not in self._removed:  # the offset of a copy is not its origin
                    self._low_unit, self._lowest = unit, (unit, unpack(value[ROW_SIZE:], unit).offset)
                    break
            else:
                raise CorruptStoreError(DATABASE, f"no timer in the log, {self.pending} are counted")
        return self._lowest[1]

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        log = self.database.log(max(first, self._low_unit))
        rows = rows_of(value for _, value in islice(log, _BLOCK_ROWS))
        return self._without_removed(rows), next((unit for unit, _ in log), None)

    def all_rows(self) -> Iterator[Rows]:
        following: int | None = 0
        while following is not None:
            rows, following = self.list_pending(following)
            yield rows

    def bodies(self, rows: Rows) -> list[Body]:
        values = self.database.values(rows["unit"])
        units, origins = rows["unit"].tolist(), rows["origin"].tolist()
        return [unpack(value[ROW_SIZE:], *row) for value, *row in zip(values, units, origins, strict=True)]

    def pending_at(self, unit: int) -> Rows:
        value = None if unit in self._removed else self.database.value(unit)
        return NO_ROWS if value is None else rows_of([value])

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        if not self.pending:
            return {}
        hashes = zip(ids, hashes_of(ids).tolist(), strict=True)
        asked = [(id_, unit) for id_, hash_ in hashes for unit in self._units("ids", hash_)]
        values = self.database.values(np.array([unit for _, unit in asked], np.int64))
        return {
            id_: rows_of([value])
            for (id_, unit), value in zip(asked, values, strict=True)
            if peek(value[ROW_SIZE:], unit).id == id_
        }

    def find_origin(self, origin_offset: int) -> Rows:
        units = self._units("origins", origin_offset)
        return self.pending_at(units[0]) if units else NO_ROWS

    def _units(self, index: str, first: int) -> list[int]:
        """Return the pending units in `index` (ids, origins) whose keys begin with `first`."""
        return [unit for unit in self.database.units(index, first) if unit not in self._removed]

    def peek(self, row: Rows) -> Peek:
        (value,) = self.database.values(row["unit"])
        return peek(value[ROW_SIZE:], int(row["unit"][0]))

    @property
    def size_bytes(self) -> int:
        return self.database.size_bytes


class RocksStore(Store):
    def __init__(
        self, disk: Disk, options: StoreOptions, progress: Progress, found: Checkpoint | None, waits: Collection[Wait]
    ) -> None:
        super().__init__(disk, options, progress, found, waits)
        self._folder = disk.folder(DATABASE)
        if disk.read(CLOSED):
            disk.start_replace(CLOSED, b"").wait()
        self._number = -1 if found is None or found.database is None else found.database
        # A new name each time: a process opens a folder once, and an error may keep a closed database alive.
        self._open = Path(mkdtemp(prefix=OPEN, dir=self._folder))
        self._delete_other_folders()
        if self._number >= 0:
            try:
                link(self._folder / str(self._number), self._open)
            except FileNotFoundError as missing:
                raise CorruptStoreError(DATABASE, f"folder {self._number} is missing or incomplete") from missing
        self._database = Database(self._open)
        self.queries = self._timers = RocksTimers(self._database, options.tick_ms)
        self.release_queue = self._timers.release_queue = ReleaseQueue(self._timers, progress.settled, waits)

    # -- opening and closing

    def restore(self, found: Checkpoint, held: Collection[int], ended: Collection[int]) -> None:
        timers, queue = self._timers, self.release_queue
        timers.restore(found.pending)
        held_now = set(held) - set(ended)
        for origin_offset in sorted({*held, *ended, *found.held}):
            row = self.queries.find_origin(origin_offset)
            if not len(row):
                continue
            if origin_offset in held_now:
                self._database.take_out_of_order(row)
                queue.out_of_order.push(row)
            else:
                timers.remove(row)
        key_ranges = queue.blocked.key_ranges()
        # A target's backlog may begin above K, and its timers below that have left.
        begins = [after for ranges in key_ranges.values() for after, _ in ranges]
        for rows in timers.in_order(0, max([queue.settled, *begins]).visit_ms + 1):
            timers.remove(rows[~pending_by_key(rows, queue.settled, key_ranges)])

    def _close_files(self) -> None:
        self._database.close()

    # -- appending

    def _append(self, batch: Batch, ended: Rows) -> tuple[Rows, NDArray[np.bool_]]:  # noqa: ARG002
        rows, _, is_in_order, frames = batch.rows(self._timers.end_unit)
        self._timers.add(rows, is_in_order, frames)
        return rows, is_in_order

    # -- checkpoints

    def _write(self, checkpoint: Callable[..., Checkpoint]) -> tuple[Checkpoint, Syncing]:
        """RocksDB writes its files here: the only part of a checkpoint for which a turn waits."""
        self._timers.flush()
        self._number += 1
        self._disk.remove_folder(f"{DATABASE}/{self._number}")  # left by a checkpoint that was not completed
        self._database.checkpoint(self._folder / str(self._number))
        found = checkpoint(
            segment_bytes=self._options.segment_bytes,
            units_end=self._timers.end_unit,
            body_end=0,
            low_unit=0,
            segments=(),
            bodies=(),
            database=self._number,
        )
        return found, self._disk.start_sync([])

    def _is_durable(self) -> None:
        self._delete_other_folders()

    def _delete_other_folders(self) -> None:
        for path in self._folder.iterdir():
            if path.name not in (self._open.name, str(self._number)):
                shutil.rmtree(path)


class RocksRows:
    """The timers of a stopped store, as timer.stopped_store.WheelRows."""

    def __init__(self, disk: Disk, checkpoint: Checkpoint) -> None:
        self._name = f"{DATABASE}/{checkpoint.database}"
        self._checkpoint = checkpoint
        try:
            self._folder = disk.folder(self._name)
        except FileNotFoundError as missing:
            raise CorruptStoreError(self._name, "the folder is missing") from missing
        with ExitStack() as opened:  # on an error, nothing stays
            # The binding writes a file of its own wherever it opens a database, so it gets a folder of links.
            links = Path(opened.enter_context(TemporaryDirectory(prefix="timer-bridge-")))
            for path in self._folder.iterdir():
                if path.name != BINDINGS_FILE:
                    (links / path.name).symlink_to(path.resolve())
            self._database = Database(links, is_read_only=True)
            opened.callback(self._database.close)
            self._opened = opened.pop_all()
        self._timers = RocksTimers(self._database, checkpoint.tick_ms)
        self.close, self.live, self.bodies = self._opened.close, self._timers.all_rows, self._timers.bodies

    def files(self) -> dict[str, int]:
        return {f"{self._name}/{path.name}": path.stat().st_size for path in sorted(self._folder.iterdir())}

    def damaged(self, unit: int, what: str) -> CorruptStoreError:
        return CorruptStoreError(self._name, f"unit {unit}: {what}")

    def check(self, by_tick: Counter[int], with_id: int, *, is_closed: bool) -> None:  # noqa: ARG002
        """Compare the four orders. RocksDB checks the checksum of each block that it reads."""
        checkpoint = self._checkpoint
        self._timers.restore(checkpoint.pending)
        in_order = Counter(visit_ms // checkpoint.tick_ms for visit_ms, _ in self._database.visits_ms(0))
        counts = {
            "timers": (self._database.count("log"), checkpoint.pending),
            "origins": (self._database.count("origins"), checkpoint.pending),
            "ids": (self._database.count("ids"), with_id),
            "in order": (in_order.total(), by_tick.total()),
        }
        for name, (count, expected) in counts.items():
            if count != expected:
                raise CorruptStoreError(self._name, f"{count} {name}, expected {expected}")
        if in_order != by_tick:
            raise CorruptStoreError(self._name, "the timers in order have other wake-up times than those in the log")
