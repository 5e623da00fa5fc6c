"""Questions about the pending timers of a store, as staged: by id, by target and due time, in the order of the log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timer.files.body_reader import BodyReader
from timer.files.segment_log import FrameLog, UnitLog
from timer.files.wheel import Wheel
from timer.format.body import Body, Peek
from timer.format.unit import NO_ROWS, Rows, topic_hash
from timer.index.due_counts import HOUR_MS, DueRange
from timer.index.due_range_search import DueRangeSearch
from timer.index.id_index import hashes_of
from timer.index.origin_index import OriginIndex
from timer.index.pending_index import PendingIndex
from timer.schedule.pending_log import PendingLog
from timer.schedule.release_queue import ReleaseQueue

_LISTED_UNITS = 1 << 13


@dataclass(frozen=True, slots=True)
class StoreQueries:
    """Changes nothing. Raises CorruptStoreError."""

    _units: UnitLog
    _bodies: FrameLog
    _wheel: Wheel
    _index: PendingIndex
    _release_queue: ReleaseQueue
    _log: PendingLog
    _body_reader: BodyReader

    @property
    def pending_bytes(self) -> int:
        """Bytes of the bodies of pending timers. Exact after every kind of start."""
        return self._index.bodies.all_bytes()

    @property
    def size_bytes(self) -> int:
        """Bytes of the log files, without wheel and id index."""
        return self._units.size_bytes + self._bodies.size_bytes

    @property
    def targets(self) -> int:
        """Number of target topics with pending timers."""
        return self._index.dues.targets

    def has_target(self, target: str) -> bool:
        return self._index.dues.has(topic_hash(target))

    def pending_by_topic(self) -> dict[str, int]:
        return self._index.dues.counts()

    def due_hours(self) -> dict[str, dict[int, int]]:
        """Return, by target topic, the start of each hour (epoch ms) and the number of timers due in it."""
        return self._index.dues.hours()

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """Return, by target topic, the number of pending timers and their first and last due time.

        Unknown times are looked up in the ticks of their hour, or in the log if timers of that hour roll first. If
        `is_over()` returns True before that is done, or for last times without `needs_last`, they are exact to the
        hour.
        """
        search = DueRangeSearch(self._index.dues, self._rows_of_hour, self._all_rows)
        return search.ranges(is_over, needs_last=needs_last)

    def _rows_of_hour(self, hour: int) -> Iterator[Rows]:
        """Yield out-of-order rows, then the pending rows of each tick of `hour` (since the epoch)."""
        yield self._release_queue.out_of_order.rows()
        tick_ms = self._wheel.tick_ms
        tick: int | None = hour * HOUR_MS // tick_ms - 1
        last = ((hour + 1) * HOUR_MS - 1) // tick_ms
        while tick is not None and (tick := self._wheel.next_time(tick, last)) is not None:
            yield self._release_queue.load_tick(tick)

    def _all_rows(self) -> Iterator[Rows]:
        for start, end in self._units.blocks(self._log.low_unit):
            yield self._log.rows(start, end)

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        """Return the pending rows of one block of the log from unit `first` on, and the next `first`, None at the end.

        In the order of the log. A listing in several calls returns every row that stays pending; a row that rolls
        meanwhile may come twice, or not at all while its copy is in flight.
        """
        ranges = self._units.blocks(max(first, self._log.low_unit), _LISTED_UNITS)
        here, following = next(ranges, None), next(ranges, None)
        rows = NO_ROWS if here is None else self._log.rows(*here)
        return rows, None if following is None else following[0]

    def pending_at(self, unit: int) -> Rows:
        """Return the row of `unit`, no row if it is not pending any more."""
        return self._log.rows(unit, unit + 1) if self._log.low_unit <= unit < self._units.end else NO_ROWS

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        """Return the row (one TIMER_ROW) of each id that has a pending timer."""
        found: dict[bytes, Rows] = {}
        if not len(self._index.ids):
            return found
        for at, units in self._index.ids.find(hashes_of(ids)).items():
            for unit in units:
                _, row = self._units.read_rows(unit, unit + 1)
                if self.peek(row).id == ids[at]:
                    found[ids[at]] = row
                else:  # another id with that hash, or damage: then this raises
                    self.bodies(row)
        return found

    def find_origin(self, origin_offset: int) -> Rows:
        """Return the row of the pending timer with this origin offset, no row if there is none.

        The first call reads all units: 0.08 us each (2 million timers, quiet).
        """
        if self._index.origins is None:
            index = OriginIndex()
            for rows in self._all_rows():
                index.add(rows)
            self._index.origins = index
        for start, end in self._index.origins.places(origin_offset):
            for rows in self._rows_between(max(start, self._log.low_unit), min(end, self._units.end)):
                found: Rows = rows[rows["origin"] == origin_offset]
                if len(found):
                    return found
        return NO_ROWS

    def _rows_between(self, start: int, end: int) -> Iterator[Rows]:
        """Yield the pending rows among units [start, end) by segment."""
        while start < end:
            stop = min(end, (self._units.segment(start) + 1) * self._units.per_segment)
            yield self._log.rows(start, stop)
            start = stop

    def bodies(self, rows: Rows) -> list[Body]:
        return self._body_reader.read(rows)

    def peek(self, row: Rows) -> Peek:
        """Return the beginning of the body of `row`, one TIMER_ROW."""
        return self._body_reader.peek(row)
