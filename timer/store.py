"""The store of one partition: pending timers on disk, the next due ones in memory.

    add(batch) -> on disk   release_queue.take_due(now) -> rows in order   queries.bodies(rows)   committed(...)

    Store          what every engine does: order of release, progress, staging
    WheelStore     engine `wheel`: TimerLog, TimerWheel and body log                timer.wheel.store
    RocksStore     engine `rocksdb`: the same timers in a RocksDB database          timer.rocksdb.store
    .release_queue what leaves next, and which targets wait                         timer.schedule.release_queue
    .queries       find, listings, counts                                           StoreQueries

Rules of every engine:
1. A row is pending if it is out of order, or its key (visit_ms, origin offset) is above K, or its key is in a key range
   of its target's backlog (timer.schedule.pending_timers), and it was not ended.
2. `add` and `take_due` stage changes until `committed`. Memory has no undo: if the transaction is lost, the store is
   closed and opened again at its checkpoint.
3. A checkpoint starts only when everything staged is committed.
4. The disk is a cache: impossible bytes raise CorruptStoreError, and the owner rebuilds the store from Kafka.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.journal import CopyInFlight, Wait
from schemas.progress import Progress
from timer.disk import Disk, Syncing
from timer.errors import UnreadableError
from timer.format.batch import Batch
from timer.format.body import Body, Peek
from timer.format.checkpoint import CLOSED, NAME, Checkpoint
from timer.format.unit import Rows
from timer.index.due_counts import DueRange
from timer.options import StoreOptions
from timer.schedule.pending_timers import PendingTimers
from timer.schedule.release_queue import ReleaseQueue


class StoreQueries(PendingTimers, Protocol):
    """The pending timers of an engine, and questions about them, which change nothing and raise CorruptStoreError."""

    release_queue: ReleaseQueue
    """To be set before the first question."""

    @property
    def pending(self) -> int: ...

    def low_offset(self) -> int | None:
        """Return the lowest offset of a pending request or copy, None if nothing is pending."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies of pending timers. Exact after every kind of start."""

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, without the wheel."""

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """Return, by target topic, the number of pending timers and their first and last due time.

        Unknown times are looked up in the ticks of their hour, or in the log if timers of that hour roll first. If
        `is_over()` returns True before that is done, or for last times without `needs_last`, they are exact to the
        hour.
        """
        self.dues.search(self.release_queue.rows_of_hour, self.all_rows, is_over, needs_last=needs_last)
        return self.dues.ranges()

    def all_rows(self) -> Iterator[Rows]:
        """Yield all pending rows block by block, in the order of the log."""

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        """Return the pending rows of one block of the log from unit `first` on, and the next `first`, None at the end.

        In the order of the log. A listing in several calls returns every row that stays pending; a row that rolls
        meanwhile may come twice, or not at all while its copy is in flight.
        """

    def pending_at(self, unit: int) -> Rows:
        """Return the row of `unit`, no row if it is not pending any more."""

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        """Return the row (one TIMER_ROW) of each id that has a pending timer."""

    def find_origin(self, origin_offset: int) -> Rows:
        """Return the row of the pending timer with this origin offset, no row if there is none."""

    def bodies(self, rows: Rows) -> list[Body]:
        """Return the bodies of `rows`, in their order."""

    def peek(self, row: Rows) -> Peek: ...


@dataclass(slots=True)
class CheckpointWriter:
    """A running checkpoint of `state`. First the logs become durable, then the checkpoint replaces the last one."""

    checkpoint: Checkpoint
    logs: Syncing
    state: tuple[object, ...]
    replacing: Syncing | None = None


class Store(ABC):
    """See the module. Opened by timer.engines."""

    release_queue: ReleaseQueue
    queries: StoreQueries

    @abstractmethod
    def __init__(
        self, disk: Disk, options: StoreOptions, progress: Progress, found: Checkpoint | None, waits: Collection[Wait]
    ) -> None:
        """found: names the files of this store; all other files are deleted."""
        self._disk = disk
        self._options = options
        self.next_offset = progress.next_offset
        """C as staged: all requests below it are stored, rejected or settled."""
        self._low_offset = progress.low_offset
        self.committed_progress = progress
        """Progress of the last transaction that is known to be committed."""
        self._writer: CheckpointWriter | None = None
        self._checkpointed: tuple[object, ...] = ()
        """The state of the last checkpoint."""
        self._durable: Checkpoint | None = None
        """The last checkpoint that was made since the store was opened."""

    # -- opening and closing

    @abstractmethod
    def restore(self, found: Checkpoint, held: Collection[int], ended: Collection[int]) -> None:
        """Bring the timers of `found` to the committed progress. held, ended: origins, as of that."""

    def close(self) -> None:
        """Close the files. The next opening goes back to the last checkpoint."""
        if self._writer is not None:
            with suppress(OSError):  # written later, it would name logs of another opening
                if self._writer.replacing is not None:
                    self._writer.replacing.wait()
        elif self._durable is not None and self._checkpointed == self._state() and not self.release_queue.has_staged:
            with suppress(OSError, UnreadableError):
                self._save_snapshot(self._durable)
                self._disk.start_replace(CLOSED, self._durable.to_bytes()).wait()
        self._close_files()

    def _save_snapshot(self, checkpoint: Checkpoint) -> None:  # noqa: B027
        """Save what the next opening at `checkpoint`, which is the state of now, would have to rebuild."""

    @abstractmethod
    def _close_files(self) -> None: ...

    # -- appending

    @property
    def pending(self) -> int:
        return self.queries.pending

    def add(self, batch: Batch, next_offset: int) -> None:
        """Store `batch`; C becomes `next_offset`. On OSError and WheelFullError nothing is stored."""
        queue = self.release_queue
        if len(batch):
            ended = batch.ended()
            run, is_in_order = self._append(batch, ended)
            if not is_in_order.all():
                queue.out_of_order.push(run[~is_in_order])
                run = run[is_in_order]
            queue.push(run)
            if len(ended):
                queue.end(ended)
        self.next_offset = next_offset
        queue.has_staged = True

    @abstractmethod
    def _append(self, batch: Batch, ended: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        """Store `batch`, which is not empty. Return the rows that it adds, and which of them are in order."""

    # -- committing

    def advance_progress(self) -> Progress:
        """Move L to the lowest pending offset. Return (C, K, L) as staged: what the next transaction commits."""
        low_offset = self.queries.low_offset()
        self._low_offset = max(self._low_offset, self.next_offset if low_offset is None else low_offset)
        return Progress(self.next_offset, self.release_queue.settled, self._low_offset, era=self.committed_progress.era)

    def committed(self, progress: Progress, *, is_all: bool = True) -> None:
        """Record that the transaction with `progress` is committed. is_all: nothing was staged after it."""
        self.committed_progress = progress
        if is_all:
            self.release_queue.has_staged = False

    # -- checkpoints and compaction

    def _state(self) -> tuple[object, ...]:
        """Return what a checkpoint keeps. No new one is needed while it is the same."""
        return self.committed_progress, self.queries.end_unit, self.pending

    def skip_checkpoint(self) -> None:
        """Behave as if a checkpoint of this state had been made."""
        self._checkpointed = self._state()

    @property
    def may_checkpoint(self) -> bool:
        """True if everything staged is committed and not in a checkpoint yet, and no checkpoint is running."""
        return not self.release_queue.has_staged and self._writer is None and self._checkpointed != self._state()

    def start_checkpoint(
        self, journal_offset: int, flights: Sequence[CopyInFlight], ended_flights: Sequence[int]
    ) -> bool:
        """Start to make the committed state durable. Return False if that is not possible now."""
        if not self.may_checkpoint:
            return False
        found = partial(
            Checkpoint,
            progress=self.committed_progress,
            tick_ms=self._options.tick_ms,
            slots=self._options.slots,
            pending=self.pending,
            held=tuple(self.release_queue.held_rows()["origin"].tolist()),
            waits=self.release_queue.waits,
            flights=tuple(flights),
            ended_flights=tuple(ended_flights),
            journal_offset=journal_offset,
        )
        self._writer = CheckpointWriter(*self._write(found), self._state())
        return True

    @abstractmethod
    def _write(self, checkpoint: Callable[..., Checkpoint]) -> tuple[Checkpoint, Syncing]:
        """Return the checkpoint, and the running sync of the logs. checkpoint: makes it from what this engine knows."""

    def finish_checkpoint(self) -> None:
        self.continue_checkpoint(waits=True)

    def continue_checkpoint(self, *, waits: bool = False) -> bool:
        """Return True if no checkpoint is running. Raises OSError if it failed; then it is dropped."""
        writer = self._writer
        if writer is None:
            return True
        try:
            if writer.replacing is None:
                if not _is_done(writer.logs, waits=waits):
                    return False
                writer.replacing = self._disk.start_replace(NAME, writer.checkpoint.to_bytes())
            if not _is_done(writer.replacing, waits=waits):
                return False
        except OSError:
            self._writer = None
            if writer.replacing is None:  # else the logs are durable
                self._restore_dirty()
            raise
        self._writer = None
        self._checkpointed, self._durable = writer.state, writer.checkpoint
        self._is_durable()
        return True

    @abstractmethod
    def _is_durable(self) -> None:
        """Delete what the durable checkpoint does not name."""

    def _restore_dirty(self) -> None:  # noqa: B027
        """Sync the files again that were taken last: it is unknown which of their bytes are durable."""

    @property
    def is_writing(self) -> bool:
        """True if a checkpoint or a compaction runs, which the owner has to continue."""
        return self._writer is not None

    def release_memory(self) -> None:  # noqa: B027
        """Give memory back that is not needed soon."""

    def compact_some(self) -> None:  # noqa: B027
        """Run one bounded step of a compaction; start one if it is worth it."""


def _is_done(syncing: Syncing, *, waits: bool) -> bool:
    if waits:
        syncing.wait()
    return waits or syncing.done()
