"""Questions about the pending timers of a store with the engine `rocksdb`."""

from collections.abc import Iterator

import numpy as np

from timer.format.body import Body, Peek, peek
from timer.format.unit import NO_ROWS, Rows
from timer.index.id_index import hashes_of
from timer.rocksdb.database import ROW_SIZE, rows_of
from timer.rocksdb.rocks_timers import RocksTimers
from timer.schedule.release_queue import ReleaseQueue
from timer.store_queries import StoreQueries


class RocksQueries(StoreQueries):
    def __init__(self, release_queue: ReleaseQueue, timers: RocksTimers) -> None:
        super().__init__(release_queue, timers)
        self._rocks = timers

    @property
    def pending_bytes(self) -> int:
        return self._rocks.pending_bytes

    @property
    def size_bytes(self) -> int:
        return self._rocks.database.size_bytes

    def _all_rows(self) -> Iterator[Rows]:
        return self._rocks.blocks()

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        return self._rocks.block(first)

    def pending_at(self, unit: int) -> Rows:
        return self._rocks.at(unit)

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        if not self._rocks.pending:
            return {}
        hashes = zip(ids, hashes_of(ids).tolist(), strict=True)
        asked = [(id_, unit) for id_, hash_ in hashes for unit in self._rocks.units("ids", hash_)]
        values = self._rocks.database.values(np.array([unit for _, unit in asked], np.int64))
        return {
            id_: rows_of([value])
            for (id_, unit), value in zip(asked, values, strict=True)
            if peek(value[ROW_SIZE:], unit).id == id_
        }

    def find_origin(self, origin_offset: int) -> Rows:
        units = self._rocks.units("origins", origin_offset)
        return self._rocks.at(units[0]) if units else NO_ROWS

    def bodies(self, rows: Rows) -> list[Body]:
        return self._rocks.bodies(rows)

    def peek(self, row: Rows) -> Peek:
        return peek(self._rocks.frame(row), int(row["unit"][0]))
