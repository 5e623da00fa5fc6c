"""Find the pending rows of a TimerLog when a store is opened: two passes over its units, block by block.

    pass 1   the check of each unit; delete marks -> which units have ended
    pass 2   of the others: chained units are pending if their key is above K or in a key range of their target;
             of the out-of-order ones, the last unit of each origin (earlier ones were rolled)

If the journal has ended more timers since the checkpoint, their units get a delete mark.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.files.segment_log import UnitLog
from timer.format.checkpoint import Checkpoint
from timer.format.file_names import UNITS
from timer.format.unit import MAGIC_DELETE, Ints, Rows, isin, topic_hash
from timer.index.segment_liveness import EndedUnits, LiveCounts
from timer.schedule.pending_keys import Waits, pending_in_order


def ranges_at(checkpoint: Checkpoint) -> Waits:
    return {topic_hash(wait.target): wait.stretches for wait in checkpoint.waits}


def _only(rows: Rows, is_wanted: NDArray[np.bool_]) -> Rows:
    """Return the wanted rows; without a copy if that is all of them."""
    return rows if is_wanted.all() else rows[is_wanted]


@dataclass(eq=False)
class LiveScan:
    """One scan of a log that ends at `checkpoint`. Out-of-order (held) and ended origins and waits are those of now."""

    _log: UnitLog
    _checkpoint: Checkpoint
    _settled: Key
    _held: Ints
    _journal_ended: Ints
    _waits: Waits

    def __post_init__(self) -> None:
        self._waits_then = ranges_at(self._checkpoint)
        self._held_then = np.array(self._checkpoint.held, np.int64)
        self._counted = 0
        self._ids = 0
        self._out_of_order_then: set[int] = set()
        self.held: dict[int, Rows] = {}
        """The pending out-of-order row (one TIMER_ROW) by origin."""
        self.newly_ended: list[Rows] = []

    @property
    def max_ids(self) -> int:
        """The largest possible number of pending timers with an id."""
        return min(self._ids, self._checkpoint.pending)

    def mark(self, ended: EndedUnits, live: LiveCounts) -> None:
        """Run pass 1 over every byte. Raises CorruptStoreError.

        A segment is needed until its last tick has passed, also for ended units: a pending chain may pass through.
        """
        for start, end in self._log.blocks(self._checkpoint.low_unit):
            units, run = self._log.read_rows(start, end, is_checked=True)
            self._ids += int((run["id_hash"] != 0).sum())
            marks = units[units["magic"] & MAGIC_DELETE != 0]
            if len(marks):
                ended.mark(np.array(self._ended_by(marks, end), np.int64))
            live.retain_until(self._log.segment(start), int(run["visit_ms"].max()))

    def _ended_by(self, marks: Rows, end: int) -> list[int]:
        """Return the units that `marks` name, without those of deleted files. The marks are below unit `end`."""
        found = [self._log.number(at) for at in marks["body"].tolist()]
        if max(found) >= end:
            raise CorruptStoreError(UNITS, f"a delete mark below unit {end} for unit {max(found)}")
        return [unit for unit in found if self._log.has(unit)]

    def live(self, ended: EndedUnits) -> Iterator[Rows]:
        """Run pass 2: yield rows above K in the order of the log. Raises CorruptStoreError if the count is wrong."""
        for start, end in self._log.blocks(self._checkpoint.low_unit):
            units, run = self._log.read_rows(start, end)
            is_timer = (units["magic"] & MAGIC_DELETE == 0) & ~ended.flags(start, end)
            units, run = _only(units, is_timer), _only(run, is_timer)
            self._count(units, run)
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

    def _count(self, units: Rows, run: Rows) -> None:
        """Count what was pending at the checkpoint."""
        held = isin(run["origin"], self._held_then)
        settled = self._checkpoint.progress.settled
        self._counted += int((pending_in_order(units, run, settled, self._waits_then) & ~held).sum())
        self._out_of_order_then.update(run["origin"][held].tolist())
