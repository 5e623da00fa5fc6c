"""The pending units of the TimerLog: those of a tick, those in the order of the log, and all of them at a start.

    WheelTimers   the units of one tick, along the chain of its slot; those from the lowest one on, for L, searches,
                  listings and compaction
    LiveScan      two passes over all units when a store is opened, block by block:
                  1   the check of each unit; delete marks -> which units have ended
                  2   of the others: chained units are pending if their key is above K or in a key range of their
                      target; of the out-of-order ones, the last unit of each origin (earlier ones were rolled)

If the journal has ended more timers since the checkpoint, their units get a delete mark.
"""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.format.body import Body, Peek
from timer.format.checkpoint import UNITS, Checkpoint
from timer.format.unit import MAGIC_DELETE, MAGIC_UNCHAINED, NO_ROWS, Rows, hashes_of, isin, joined, topic_hash
from timer.index.id_index import OriginIndex
from timer.index.pending_index import EndedUnits, LiveCounts, PendingIndex
from timer.schedule.pending_timers import Waits, pending_by_key, pending_in_order
from timer.schedule.release_queue import ReleaseQueue
from timer.store import StoreQueries
from timer.wheel.timer_log import FrameLog, UnitLog
from timer.wheel.timer_wheel import Wheel

_SCAN_UNITS = 1 << 16
_FIRST_BLOCK_UNITS = 16
_SPARSE_UNITS = 512
"""Units per pending unit of a tick from which following the chain is cheaper than reading the log through."""
_READ_UNITS = 256
_LISTED_UNITS = 1 << 13
_LOOKED_AT_UNITS = 16


class WheelTimers(StoreQueries):
    release_queue: ReleaseQueue

    def __init__(self, units: UnitLog, bodies: FrameLog, wheel: Wheel) -> None:
        self._units = units
        self._bodies = bodies
        self._wheel = wheel
        self.index = PendingIndex(units.per_segment, bodies.bases_of, lambda row: self.peek(row).target)
        self.tick_ms = wheel.tick_ms
        self.dues = self.index.dues
        self.low_unit = units.end
        """No unit below is pending."""
        self._lowest = (-1, -1)
        """The lowest pending unit as of the last call, and the offset of its request."""
        self._read: tuple[Rows, Rows] = NO_ROWS, NO_ROWS
        """Units from `low_unit` on that were read ahead, and the same as TIMER_ROW."""

    # -- the port for the release queue

    @property
    def end_unit(self) -> int:
        return self._units.end

    def next_tick(self, after: int, until: int) -> int | None:
        return self._wheel.next_time(after, until)

    def remove(self, rows: Rows, in_order: Rows, *, has_ended: bool = False) -> None:
        if len(in_order):
            self._wheel.settle(in_order["visit_ms"])
        if has_ended:
            self.index.ended.mark(rows["unit"].tolist())
        self.index.remove(rows)

    def read_tick(self, tick: int, settled: Key, waits: Waits) -> Rows:
        """Return the pending rows of `tick`: along its chain if that is sparse, else block by block."""
        first, last, live = self._wheel.slot(tick)
        number, stop = self._units.number(last), self._units.number(first)
        found: list[Rows] = []
        block = _SCAN_UNITS if live * _SPARSE_UNITS >= number - stop else _FIRST_BLOCK_UNITS
        while number >= stop:
            start = max(stop, self._units.segment(number) * self._units.per_segment, number - block + 1)
            units, run = self._units.read_rows(start, number + 1, is_checked=True)
            own = (run["visit_ms"] // self._wheel.tick_ms == tick) & (units["magic"] & MAGIC_UNCHAINED == 0)
            if not own[-1]:
                raise CorruptStoreError(f"wheel, tick {tick}", f"unit {number} belongs to another tick")
            found.append(run[own & (units["magic"] & MAGIC_DELETE == 0) & ~self.index.ended.flags(start, number + 1)])
            earliest = int(own.argmax())
            number = self._previous_unit(int(units["previous"][earliest]), start + earliest)
        run = joined(found)
        run = run[pending_by_key(run, settled, waits)]
        if len(run) != live:
            raise CorruptStoreError(f"wheel, tick {tick}", f"{len(run)} live units, the slot counts {live}")
        return run

    def _previous_unit(self, position: int, unit: int) -> int:
        number = self._units.number(position) if position >= 0 else -1
        if number >= unit:
            raise CorruptStoreError(f"timer, unit {unit}", f"previous is {number}, which is not before it")
        return number

    # -- questions

    @property
    def pending(self) -> int:
        return self.index.pending

    @property
    def pending_bytes(self) -> int:
        return self.index.bodies.all_bytes()

    @property
    def size_bytes(self) -> int:
        return sum(folder.size_bytes for folder in (*self._units.folders, self._bodies))

    def all_rows(self) -> Iterator[Rows]:
        for start, end in self._units.blocks(self.low_unit):
            yield self.rows(start, end)

    def list_pending(self, first: int) -> tuple[Rows, int | None]:
        ranges = self._units.blocks(max(first, self.low_unit), _LISTED_UNITS)
        here, following = next(ranges, None), next(ranges, None)
        rows = NO_ROWS if here is None else self.rows(*here)
        return rows, None if following is None else following[0]

    def pending_at(self, unit: int) -> Rows:
        return self.rows(unit, unit + 1) if self.low_unit <= unit < self._units.end else NO_ROWS

    def find(self, ids: list[bytes]) -> dict[bytes, Rows]:
        found: dict[bytes, Rows] = {}
        if not len(self.index.ids):
            return found
        for at, units in self.index.ids.find(hashes_of(ids)).items():
            for unit in units:
                _, row = self._units.read_rows(unit, unit + 1)
                if self.peek(row).id == ids[at]:
                    found[ids[at]] = row
                else:  # another id with that hash, or damage: then this raises
                    self.bodies(row)
        return found

    def find_origin(self, origin_offset: int) -> Rows:
        """Return the row, or none. The first call reads all units."""
        if self.index.origins is None:
            index = OriginIndex()
            for rows in self.all_rows():
                index.add(rows)
            self.index.origins = index
        for first, last in self.index.origins.places(origin_offset):
            for start, end in self._units.blocks(max(first, self.low_unit), last=last):
                rows = self.rows(start, end)
                found: Rows = rows[rows["origin"] == origin_offset]
                if len(found):
                    return found
        return NO_ROWS

    def bodies(self, rows: Rows) -> list[Body]:
        return self._bodies.bodies(rows)

    def peek(self, row: Rows) -> Peek:
        return self._bodies.peek(row)

    # -- the pending units, and the lowest one

    def _are_pending(self, units: Rows, run: Rows) -> NDArray[np.bool_]:
        """Return which of `units` of one segment are pending. run: the same units as TIMER_ROW."""
        queue = self.release_queue
        is_in_order = pending_in_order(units, run, queue.settled, queue.blocked.key_ranges())
        start = int(run["unit"][0])
        ended = (units["magic"] & MAGIC_DELETE != 0) | self.index.ended.flags(start, start + len(run))
        found: NDArray[np.bool_] = (is_in_order | queue.out_of_order.has(run["unit"])) & ~ended
        return found

    def rows(self, start: int, end: int) -> Rows:
        """Return the pending rows among units [start, end) of one segment, none if it was deleted."""
        if not self._units.has(start):
            return NO_ROWS
        units, run = self._units.read_rows(start, end)
        pending: Rows = run[self._are_pending(units, run)]
        return pending

    def low_offset(self) -> int | None:
        """Return L. Each unit is read once for it in the life of a store, as L only moves forward."""
        row = self._first_pending()
        if row is None:
            return None
        if self.low_unit != self._lowest[0]:
            (body,) = self.bodies(row)
            self._lowest = self.low_unit, body.offset  # the offset of a copy is not its origin
        return self._lowest[1]

    def _first_pending(self) -> Rows | None:
        """Return the first pending row. `low_unit` becomes its unit, or the end of the log if there is none."""
        if (row := self._first_read_ahead()) is not None:
            return row
        for start, end in self._units.blocks(self.low_unit, _READ_UNITS):
            self.low_unit = start
            self._read = self._units.read_rows(start, end, is_checked=True)  # units below L are never read again
            if (row := self._first_read_ahead()) is not None:
                return row
        return None

    def _first_read_ahead(self) -> Rows | None:
        """Return the first pending row of the units that were read ahead; drop the ones before it."""
        count = _LOOKED_AT_UNITS
        while len(self._read[0]):
            units, run = self._read
            found = np.flatnonzero(self._are_pending(units[:count], run[:count]))
            passed = int(found[0]) if len(found) else min(count, len(units))
            self._read = units[passed:], run[passed:]
            self.low_unit += passed
            if len(found):
                first: Rows = run[passed : passed + 1]
                return first
            count *= 4
        return None

    def forget_read_ahead(self) -> None:
        """Read units again, as some have other body positions now."""
        self._read = NO_ROWS, NO_ROWS


def ranges_at(checkpoint: Checkpoint) -> Waits:
    return {topic_hash(wait.target): wait.stretches for wait in checkpoint.waits}


def _only(rows: Rows, is_wanted: NDArray[np.bool_]) -> Rows:
    """Return the wanted rows; without a copy if that is all of them."""
    return rows if is_wanted.all() else rows[is_wanted]


class LiveScan:
    """One scan of a log that ends at `found`. Out-of-order (held) and ended origins and waits are those of now."""

    def __init__(
        self, log: UnitLog, found: Checkpoint, settled: Key, held: Collection[int], ended: Collection[int], waits: Waits
    ) -> None:
        self._log, self._checkpoint, self._settled, self._waits = log, found, settled, waits
        origins = (np.fromiter(each, np.int64, len(each)) for each in (held, ended, found.held))
        self._held, self._journal_ended, self._held_then = origins
        self._waits_then = ranges_at(found)
        self.ended = EndedUnits(log.per_segment)
        self.last_visits = LiveCounts()
        """The latest wake-up time of each segment."""
        self._counted = self._ids = 0
        self._out_of_order_then: set[int] = set()
        self.held: dict[int, Rows] = {}
        """The pending out-of-order row (one TIMER_ROW) by origin."""
        self.newly_ended: list[Rows] = []
        self._last = -1, NO_ROWS, NO_ROWS
        """First unit and rows of the last block of pass 1. A short log is one block, so pass 2 reads no file."""

    @property
    def max_ids(self) -> int:
        """The largest possible number of pending timers with an id."""
        return min(self._ids, self._checkpoint.pending)

    def mark(self) -> None:
        """Run pass 1 over every byte. Raises CorruptStoreError.

        A segment is needed until its last tick has passed, also for ended units: a pending chain may pass through.
        """
        for start, end in self._log.blocks(self._checkpoint.low_unit):
            units, run = self._log.read_rows(start, end, is_checked=True)
            self._last = start, units, run
            self._ids += int((run["id_hash"] != 0).sum())
            marks = units[units["magic"] & MAGIC_DELETE != 0]
            marked = [self._log.number(at) for at in marks["body"].tolist()]
            if max(marked, default=-1) >= end:
                raise CorruptStoreError(UNITS, f"a delete mark below unit {end} for unit {max(marked)}")
            self.ended.mark(unit for unit in marked if self._log.has(unit))  # the files of others are deleted
            self.last_visits.retain_until(self._log.segment(start), int(run["visit_ms"].max()))

    def live(self) -> Iterator[Rows]:
        """Run pass 2: yield rows above K in the order of the log. Raises CorruptStoreError if the count is wrong."""
        for start, end in self._log.blocks(self._checkpoint.low_unit):
            units, run = self._last[1:] if start == self._last[0] else self._log.read_rows(start, end)
            is_timer = (units["magic"] & MAGIC_DELETE == 0) & ~self.ended.flags(start, end)
            units, run = _only(units, is_timer), _only(run, is_timer)
            held_then = isin(run["origin"], self._held_then)
            above_then = pending_in_order(units, run, self._checkpoint.progress.settled, self._waits_then) & ~held_then
            self._counted += int(above_then.sum())
            self._out_of_order_then.update(run["origin"][held_then].tolist())
            ended_since = isin(run["origin"], self._journal_ended)
            is_held = isin(run["origin"], self._held) & ~ended_since
            for at in np.flatnonzero(is_held).tolist():
                self.held[int(run["origin"][at])] = run[at : at + 1]
            is_above = pending_in_order(units, run, self._settled, self._waits) & ~is_held
            self.newly_ended.append(run[is_above & ended_since])
            yield _only(run, is_above & ~ended_since)
        self._check_count()

    def _check_count(self) -> None:
        found, expected = self._counted + len(self._out_of_order_then), self._checkpoint.pending
        if found != expected:
            raise CorruptStoreError(UNITS, f"{found} live units, the checkpoint counts {expected}")
