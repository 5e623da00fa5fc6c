"""The pending timers of the engine `rocksdb`.

A timer that leaves or ends stays in the database until the next checkpoint, as its transaction still needs its body.
Until then its unit is among the removed ones in memory, and no answer contains it.
"""

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.format.body import Body, Peek, peek, unpack
from timer.format.checkpoint import DATABASE
from timer.format.unit import NO_ROWS, Rows, hashes_of, joined
from timer.index.due_counts import DueCounts
from timer.rocksdb.database import ROW_SIZE, Database, rows_of
from timer.schedule.pending_timers import EmptyTicks, Waits
from timer.store import StoreQueries

_BLOCK_ROWS = 1 << 13


class RocksTimers(StoreQueries):
    """The database with what was removed since the last checkpoint."""

    pending = pending_bytes = 0

    def __init__(self, database: Database, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.database = database
        self.dues = DueCounts(self._target_of)
        self.end_unit = 0
        self._removed: set[int] = set()
        self._removed_rows: list[Rows] = []
        self._lowest: tuple[int, int] | None = None
        """The lowest pending unit, if it is known, and the offset of its request."""
        self._low_unit = 0
        """No unit below is pending."""
        self._empty = EmptyTicks()

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
        self._empty.forget()

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
        return self._empty.next(after, until, self._search)

    def _search(self, after: int, until: int) -> int | None:
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
        values: list[bytes] = []
        for unit, value in self.database.log(max(first, self._low_unit)):
            if len(values) == _BLOCK_ROWS:
                return self._without_removed(rows_of(values)), unit
            values.append(value[:ROW_SIZE])
        return self._without_removed(rows_of(values)), None

    def all_rows(self) -> Iterator[Rows]:
        following: int | None = 0
        while following is not None:
            rows, following = self.list_pending(following)
            yield rows

    def bodies(self, rows: Rows) -> list[Body]:
        values = self.database.values(rows["unit"])
        units, origins = rows["unit"].tolist(), rows["origin"].tolist()
        return [_body(value, *row) for value, *row in zip(values, units, origins, strict=True)]

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

    def _target_of(self, row: Rows) -> str:
        return self.peek(row).target


def _body(value: bytes, unit: int, origin_offset: int) -> Body:
    body = unpack(value[ROW_SIZE:], unit)
    if body.origin_offset != origin_offset:
        raise CorruptStoreError(DATABASE, f"unit {unit} is of origin {body.origin_offset}, not {origin_offset}")
    return body
