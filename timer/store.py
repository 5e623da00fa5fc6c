"""The store of one partition: pending timers on disk, the next due ones in memory.

    add(batch) -> on disk   release_queue.take_due(now) -> rows in order   queries.bodies(rows)   committed(...)

    Store          what every engine does: order of release, progress, staging
    WheelStore     engine `wheel`: TimerLog, TimerWheel and body log                timer.wheel_store
    RocksStore     engine `rocksdb`: the same timers in a RocksDB database          timer.rocksdb.store
    .release_queue what leaves next, and which targets wait                         timer.schedule.release_queue
    .queries       find, listings, counts                                           timer.store_queries

Rules of every engine:
1. A row is pending if it is out of order, or its key (visit_ms, origin offset) is above K, or its key is in a key range
   of its target's backlog (timer.schedule.pending_keys), and it was not ended.
2. `add` and `take_due` stage changes until `committed`. Memory has no undo: if the transaction is lost, the store is
   closed and opened again at its checkpoint.
3. A checkpoint starts only when everything staged is committed.
4. The disk is a cache: impossible bytes raise CorruptStoreError, and the owner rebuilds the store from Kafka.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.journal import CopyInFlight, Wait
from schemas.progress import Key, Progress
from timer.errors import CorruptStoreError, WheelFullError
from timer.files.disk import Disk
from timer.files.segment_log import delete_other_files
from timer.format.batch import Batch
from timer.format.checkpoint import NAME, Checkpoint
from timer.format.file_names import BODIES, DATABASE, IDS, UNITS, WHEEL
from timer.format.unit import Rows
from timer.options import StoreOptions
from timer.schedule.release_queue import ReleaseQueue
from timer.store_queries import StoreQueries


def wipe(disk: Disk) -> None:
    """Remove a store of any engine. The checkpoint goes first and durably, so that a crash in between leaves no store.

    The checkpoint is emptied, not removed: after a loss of power a removed file may be back, and an old checkpoint
    would name the files of a later store.
    """
    disk.start_replace(NAME, b"").wait()
    disk.remove(WHEEL)
    disk.remove_folder(DATABASE)
    for folder in (UNITS, BODIES, IDS):
        delete_other_files(disk, folder, ())


class Store(ABC):
    """See the module. Opened by `Store.create` (empty) or `Store.open` (at its checkpoint)."""

    release_queue: ReleaseQueue
    queries: StoreQueries

    @abstractmethod
    def __init__(
        self, disk: Disk, options: StoreOptions, progress: Progress, found: Checkpoint | None, waits: Collection[Wait]
    ) -> None:
        """found: names the files of this store; all other files are deleted."""
        self._disk = disk
        self._options = options
        self._next_offset = progress.next_offset
        self._low_offset = progress.low_offset
        self._committed = progress

    # -- opening and closing

    @staticmethod
    def create(disk: Disk, options: StoreOptions, progress: Progress, waits: Collection[Wait] = ()) -> "Store":
        """Create an empty store in place of any other. The caller adds the requests from `progress.low_offset` on."""
        wipe(disk)
        store = _engine(options)(disk, options, progress, None, waits)
        if progress.low_offset == progress.next_offset:
            store.skip_checkpoint()  # nothing to keep, perhaps nothing committed yet
        return store

    @staticmethod
    def open(
        disk: Disk,
        options: StoreOptions,
        found: Checkpoint,
        progress: Progress,
        held: Collection[int],
        ended: Collection[int],
        waits: Collection[Wait] = (),
    ) -> "Store":
        """Open the store at the checkpoint `found`, as of `progress`, `held` and `ended` (origins) and `waits`.

        The caller adds the requests from `found.progress.next_offset` on. `options` must have the engine and the tick
        of `found`. Raises CorruptStoreError, WheelFullError, and OSError if the disk is full.
        """
        if (found.engine, found.tick_ms) != (options.engine, options.tick_ms):
            raise ValueError(
                f"engine {options.engine} with tick_ms {options.tick_ms}, the store was built by {found.engine} with"
                f" {found.tick_ms}"
            )
        store = _engine(options)(disk, options, progress, found, waits)
        try:
            store.restore(found, held, ended)
        except (CorruptStoreError, WheelFullError, OSError):
            store.close()
            raise
        return store

    @abstractmethod
    def restore(self, found: Checkpoint, held: Collection[int], ended: Collection[int]) -> None:
        """Bring the timers of `found` to the committed progress. held, ended: origins, as of that."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. The next opening goes back to the last checkpoint."""

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
    @abstractmethod
    def pending(self) -> int:
        """Number of pending timers, as staged."""

    def add(self, batch: Batch, next_offset: int) -> None:
        """Store `batch`; C becomes `next_offset`. On OSError and WheelFullError nothing is stored."""
        if len(batch):
            self._append(batch)
        self._next_offset = next_offset
        self.release_queue.has_staged = True

    @abstractmethod
    def _append(self, batch: Batch) -> None:
        """Store `batch`, which is not empty."""

    def _enqueue(self, run: Rows, is_in_order: NDArray[np.bool_]) -> None:
        if not is_in_order.all():
            self.release_queue.out_of_order.push(run[~is_in_order])
            run = run[is_in_order]
        self.release_queue.push(run)

    # -- committing

    def progress(self) -> Progress:
        """Return (C, K, L) as staged: what the next transaction commits."""
        low_offset = self._first_pending_offset()
        self._low_offset = max(self._low_offset, self._next_offset if low_offset is None else low_offset)
        return Progress(self._next_offset, self.settled, self._low_offset, era=self._committed.era)

    @abstractmethod
    def _first_pending_offset(self) -> int | None:
        """Return the lowest offset of a pending request or copy, None if nothing is pending."""

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

    @abstractmethod
    def skip_checkpoint(self) -> None:
        """Behave as if a checkpoint of this state had been made."""

    @property
    @abstractmethod
    def may_checkpoint(self) -> bool:
        """True if everything staged is committed and not in a checkpoint yet, and no checkpoint is running."""

    @abstractmethod
    def start_checkpoint(
        self, journal_offset: int, flights: Sequence[CopyInFlight], ended_flights: Sequence[int]
    ) -> bool:
        """Start to make the committed state durable. Return False if that is not possible now."""

    @abstractmethod
    def continue_checkpoint(self) -> bool:
        """Return True if no checkpoint is running. Raises OSError if it failed; then it is dropped."""

    @abstractmethod
    def finish_checkpoint(self) -> None:
        """Wait for the running checkpoint. Raises OSError if it failed."""

    def release_memory(self) -> None:  # noqa: B027
        """Give memory back that is not needed soon."""

    def compact_some(self) -> None:  # noqa: B027
        """Run one bounded step of a compaction; start one if it is worth it."""


def _engine(options: StoreOptions) -> type[Store]:
    """Return the class of the engine. Imported here: a bridge without that engine does not load its library."""
    if options.engine == "rocksdb":
        from timer.rocksdb.store import RocksStore

        return RocksStore
    from timer.wheel_store import WheelStore

    return WheelStore
