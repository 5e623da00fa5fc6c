"""What lives in a TimerLog when a store is opened: two passes over its units, block by block.

    pass 1   each unit by its check; delete markers -> which units have ended
    pass 2   of the others: chained ones with a key > K live, or, where their target waits, in one of its stretches;
             of those held, the last unit of the origin does (earlier ones were rolled)

Between the checkpoint and now, the journal may have ended more: those get a marker of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.errors import CorruptStoreError
from timer.files.segment_log import UnitLog
from timer.format.checkpoint import Checkpoint
from timer.format.file_names import UNITS
from timer.format.unit import MAGIC_DELETE, MAGIC_UNCHAINED, Ints, Rows, among, isin, run_of, topic_hash, visits_ms
from timer.index.segment_liveness import EndedUnits, LiveCounts

_BLOCK_UNITS = 1 << 16


Stretches: TypeAlias = Sequence[tuple[Key, Key]]
"""Keys (after, until], ascending."""
Waits: TypeAlias = Mapping[int, Stretches]
"""Of targets that wait, by the hash of their names (timer.schedule.target_backlog)."""


def _above(run: Rows, key: Key) -> NDArray[np.bool_]:
    visits = run["visit_ms"]
    found: NDArray[np.bool_] = (visits > key.visit_ms) | ((visits == key.visit_ms) & (run["origin"] > key.origin))
    return found


def among_stretches(run: Rows, stretches: Stretches) -> NDArray[np.bool_]:
    """Which rows of a RUN have a key in one of `stretches`."""
    found = np.zeros(len(run), np.bool_)
    for after, until in stretches:
        found |= _above(run, after) & ~_above(run, until)
    return found


def above(run: Rows, settled: Key, waits: Waits) -> NDArray[np.bool_]:
    """Which rows of a RUN live by their key: those > `settled`, or in the stretches of their target where it waits."""
    found = _above(run, settled)
    if not waits:
        return found
    for hash_ in among(waits, run["topic_hash"]):
        own = (run["topic_hash"] == hash_).nonzero()[0]
        found[own] = among_stretches(run[own], waits[hash_])
    return found


def to_come(units: Rows, run: Rows, settled: Key, waits: Waits) -> NDArray[np.bool_]:
    """Which of `units`, the same as a RUN, have a place in the order that has not left."""
    chained: NDArray[np.bool_] = units["magic"] & MAGIC_UNCHAINED == 0
    return above(run, settled, waits) & chained


def blocks(log: UnitLog, first: int, size: int = _BLOCK_UNITS) -> Iterator[tuple[int, int]]:
    """Stretches [start, end) of the log from unit `first` on, each within one segment that exists; `size` grows."""
    log_end = log.end
    for segment in log.segments():
        start = max(first, segment * log.per_segment)
        end = min(log_end, (segment + 1) * log.per_segment)
        while start < end:
            yield start, min(end, start + size)
            start, size = start + size, min(_BLOCK_UNITS, size * 4)


def waits_of(told: Checkpoint) -> Waits:
    """What waited at a checkpoint."""
    return {topic_hash(wait.target): wait.stretches for wait in told.waits}


@dataclass(eq=False)
class LiveScan:
    """`found`: the checkpoint at whose ends the log stands. What was held (origins), ended and waited is as of now."""

    _log: UnitLog
    _found: Checkpoint
    _settled: Key
    _held: Ints
    _journal_ended: Ints
    _waits: Waits

    def __post_init__(self) -> None:
        self._waits_then = waits_of(self._found)
        self._held_then = np.array(self._found.held, np.int64)
        self._counted = 0
        self._named = 0
        self._holding_then: set[int] = set()
        self.held: dict[int, Rows] = {}
        """By origin, the row (a RUN of one) that waits."""
        self.newly_ended: list[Rows] = []

    @property
    def named(self) -> int:
        """How many timers have an id, at most: of all that were marked, live or not."""
        return min(self._named, self._found.pending)

    def mark(self, ended: EndedUnits, live: LiveCounts) -> None:
        """Pass 1, which looks at every byte; raises CorruptStoreError where one is not what was written.

        A segment is needed until its last tick, also of what ended: a live chain may pass through.
        """
        for start, end in blocks(self._log, self._found.low_unit):
            units, beside = self._log.read_checked(start, end)
            self._named += int((beside["id_hash"] != 0).sum())
            markers = units[units["magic"] & MAGIC_DELETE != 0]
            if len(markers):
                ended.mark(np.array(self._ended_by(markers, end), np.int64))
            live.see(self._log.segment(start), int(visits_ms(units).max()))

    def _ended_by(self, markers: Rows, end: int) -> list[int]:
        """The units that `markers`, below unit `end`, speak of; without those that are gone with their file."""
        found = [self._log.number(at) for at in markers["body"].tolist()]
        if max(found) >= end:
            raise CorruptStoreError(UNITS, f"a marker below unit {end} for unit {max(found)}")
        return [unit for unit in found if self._log.has(unit)]

    def live(self, ended: EndedUnits) -> Iterator[Rows]:
        """Pass 2: the rows above K, in the order of the log. Raises CorruptStoreError where the count is not right."""
        for start, end in blocks(self._log, self._found.low_unit):
            units = self._log.read(start, end)
            run = run_of(units, self._log.beside(start, end), start)
            stands = (units["magic"] & MAGIC_DELETE == 0) & ~ended.among(start, end)
            units, run = units[stands], run[stands]
            self._count(units, run)
            gone = isin(run["origin"], self._journal_ended)
            is_held = isin(run["origin"], self._held) & ~gone
            for at in np.flatnonzero(is_held).tolist():
                self.held[int(run["origin"][at])] = run[at : at + 1]
            is_above = to_come(units, run, self._settled, self._waits) & ~is_held
            self.newly_ended.append(run[is_above & gone])
            yield run[is_above & ~gone]
        self._check_count()

    def _check_count(self) -> None:
        counted = self._counted + len(self._holding_then)
        if counted != self._found.pending:
            raise CorruptStoreError(UNITS, f"{counted} live units where the checkpoint counts {self._found.pending}")

    def _count(self, units: Rows, run: Rows) -> None:
        """What lived at the time of the checkpoint."""
        held = isin(run["origin"], self._held_then)
        settled = self._found.progress.settled
        self._counted += int((to_come(units, run, settled, self._waits_then) & ~held).sum())
        self._holding_then.update(run["origin"][held].tolist())
