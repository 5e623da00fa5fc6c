"""Questions about the pending timers of a store with the engine `wheel`."""

from collections.abc import Iterator

from timer.files.body_reader import BodyReader
from timer.files.segment_log import FrameLog, UnitLog
from timer.format.body import Body, Peek
from timer.format.unit import NO_ROWS, Rows
from timer.index.id_index import hashes_of
from timer.index.origin_index import OriginIndex
from timer.index.pending_index import PendingIndex
from timer.schedule.pending_log import PendingLog
from timer.schedule.pending_timers import PendingTimers
from timer.schedule.release_queue import ReleaseQueue
from timer.store_queries import StoreQueries

_LISTED_UNITS = 1 << 13


class WheelQueries(StoreQueries):
    def __init__(
        self,
        release_queue: ReleaseQueue,
        timers: PendingTimers,
        units: UnitLog,
        bodies: FrameLog,
        index: PendingIndex,
        log: PendingLog,
        body_reader: BodyReader,
    ) -> None:
        super().__init__(release_queue, timers)
        self._units = units
        self._bodies = bodies
        self._index = index
        self._log = log
        self._body_reader = body_reader

    @property
    def pending_bytes(self) -> int:
        return self._index.bodies.all_bytes()

    @property
    def size_bytes(self) -> int:
        return self._units.size_bytes + self._bodies.size_bytes

    def _all_rows(self) -> Iterator[Rows]:
        for start, end in self._units.blocks(self._log.low_unit):
            yield self._log.rows(start, end)

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        ranges = self._units.blocks(max(first, self._log.low_unit), _LISTED_UNITS)
        here, following = next(ranges, None), next(ranges, None)
        rows = NO_ROWS if here is None else self._log.rows(*here)
        return rows, None if following is None else following[0]

    def pending_at(self, unit: int) -> Rows:
        return self._log.rows(unit, unit + 1) if self._log.low_unit <= unit < self._units.end else NO_ROWS

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
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
        """See StoreQueries.find_origin.

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
        return self._body_reader.peek(row)
