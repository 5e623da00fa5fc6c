"""Engine `rocksdb`: the pending timers of a store in a RocksDB database.

    rocksdb/open-x1   the database in use. It holds changes that no transaction has committed yet
    rocksdb/7         the database at the checkpoint whose `database` is 7

An opening links the files of the folder that the checkpoint names into a new folder in use. A return to the checkpoint
therefore undoes all uncommitted changes, as with the wheel, and the database in use needs no write-ahead log.
"""

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from numpy.typing import NDArray

from schemas.journal import Wait
from schemas.progress import Progress
from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.format.batch import Batch
from timer.format.checkpoint import CLOSED, DATABASE, Checkpoint
from timer.format.unit import Rows
from timer.options import StoreOptions
from timer.rocksdb.database import OPEN, Database, link
from timer.rocksdb.timers import RocksTimers
from timer.schedule.pending_timers import pending_by_key
from timer.schedule.release_queue import ReleaseQueue
from timer.store import CheckpointWriter, Store


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
        self._timers = RocksTimers(self._database, options.tick_ms)
        self.queries = self._timers
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
        key_ranges = queue.key_ranges()
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

    def _state(self) -> tuple[object, ...]:
        return self.committed_progress, self._timers.end_unit, self.pending

    def _write(self, checkpoint: Callable[..., Checkpoint]) -> CheckpointWriter:
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
        return CheckpointWriter(found, self._disk.start_sync([]))

    def _is_durable(self, written: CheckpointWriter) -> None:  # noqa: ARG002
        self._delete_other_folders()

    def _delete_other_folders(self) -> None:
        for path in self._folder.iterdir():
            if path.name not in (self._open.name, str(self._number)):
                shutil.rmtree(path)
