"""Questions about the pending timers of a store, as staged: by id, by target and due time, in the order of the log."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from timer.format.body import Body, Peek
from timer.format.unit import Rows, topic_hash
from timer.index.due_counts import HOUR_MS, DueRange
from timer.index.due_range_search import DueRangeSearch
from timer.schedule.pending_timers import PendingTimers
from timer.schedule.release_queue import ReleaseQueue


class StoreQueries(ABC):
    """Changes nothing. Raises CorruptStoreError."""

    def __init__(self, release_queue: ReleaseQueue, timers: PendingTimers) -> None:
        self._release_queue = release_queue
        self._timers = timers

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Bytes of the bodies of pending timers. Exact after every kind of start."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes on disk, without what has a fixed size."""

    @property
    def targets(self) -> int:
        """Number of target topics with pending timers."""
        return self._timers.dues.targets

    def has_target(self, target: str) -> bool:
        return self._timers.dues.has(topic_hash(target))

    def pending_by_topic(self) -> dict[str, int]:
        return self._timers.dues.counts()

    def due_hours(self) -> dict[str, dict[int, int]]:
        """Return, by target topic, the start of each hour (epoch ms) and the number of timers due in it."""
        return self._timers.dues.hours()

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """Return, by target topic, the number of pending timers and their first and last due time.

        Unknown times are looked up in the ticks of their hour, or in the log if timers of that hour roll first. If
        `is_over()` returns True before that is done, or for last times without `needs_last`, they are exact to the
        hour.
        """
        search = DueRangeSearch(self._timers.dues, self._rows_of_hour, self._all_rows)
        return search.ranges(is_over, needs_last=needs_last)

    def _rows_of_hour(self, hour: int) -> Iterator[Rows]:
        """Yield out-of-order rows, then the pending rows of each tick of `hour` (since the epoch)."""
        yield self._release_queue.out_of_order.rows()
        tick_ms = self._timers.tick_ms
        tick: int | None = hour * HOUR_MS // tick_ms - 1
        last = ((hour + 1) * HOUR_MS - 1) // tick_ms
        while tick is not None and (tick := self._timers.next_tick(tick, last)) is not None:
            yield self._release_queue.load_tick(tick)

    @abstractmethod
    def _all_rows(self) -> Iterator[Rows]:
        """Yield all pending rows block by block, in the order of the log."""

    @abstractmethod
    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        """Return the pending rows of one block of the log from unit `first` on, and the next `first`, None at the end.

        In the order of the log. A listing in several calls returns every row that stays pending; a row that rolls
        meanwhile may come twice, or not at all while its copy is in flight.
        """

    @abstractmethod
    def pending_at(self, unit: int) -> Rows:
        """Return the row of `unit`, no row if it is not pending any more."""

    @abstractmethod
    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        """Return the row (one TIMER_ROW) of each id that has a pending timer."""

    @abstractmethod
    def find_origin(self, origin_offset: int) -> Rows:
        """Return the row of the pending timer with this origin offset, no row if there is none."""

    @abstractmethod
    def bodies(self, rows: Rows) -> list[Body]:
        """Return the bodies of `rows`, in their order."""

    @abstractmethod
    def peek(self, row: Rows) -> Peek:
        """Return the beginning of the body of `row`, one TIMER_ROW."""
