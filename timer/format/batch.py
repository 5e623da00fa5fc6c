"""Changes for a store, in the order of their offsets: timers to add, and pending ones that end."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from timer.format.body import Body, pack
from timer.format.unit import (
    MAGIC_NORMAL,
    MAGIC_ROLL,
    MAGIC_UNCHAINED,
    MAX_DELAY_MS,
    UNIT,
    UNIT_EXTRA,
    UNIT_SIZE,
    Ints,
    Rows,
    hashes_of,
    joined,
    topic_hash,
)

TimerToAdd: TypeAlias = tuple[Body, int, int]
"""A timer, its wake-up time, and 0 or MAGIC_UNCHAINED. Bytes and columns are made for all rows at once."""


class Batch:
    """`add` or `hold` each timer, `drop` one that ends before it is stored, `end` one that is stored."""

    def __init__(self) -> None:
        self._rows: list[TimerToAdd | None] = []
        self._ended: list[Rows] = []

    def __len__(self) -> int:
        """Return the number of units that the batch will write."""
        return len(self._rows) - self._rows.count(None) + len(self._ended)

    def add(self, body: Body, visit_ms: int) -> int:
        """Add a timer; return its index in the batch."""
        self._rows.append((body, visit_ms, 0))
        return len(self._rows) - 1

    def hold(self, body: Body, visit_ms: int) -> int:
        """Add an out-of-order timer; return its index in the batch."""
        self._rows.append((body, visit_ms, MAGIC_UNCHAINED))
        return len(self._rows) - 1

    def drop(self, place: int) -> None:
        """Remove the timer at index `place`: it ended before it was stored."""
        self._rows[place] = None

    def end(self, row: Rows) -> None:
        """End the timer of `row` (one TIMER_ROW, from `StoreQueries.find`)."""
        self._ended.append(row)

    def timers(self) -> list[TimerToAdd]:
        """Return the timers to add."""
        return [row for row in self._rows if row is not None]

    def places(self) -> list[tuple[int, int]]:
        """Return (visit_ms, origin offset) of the timers to add."""
        return [(visit_ms, body.origin_offset) for body, visit_ms, _ in self.timers()]

    def ended(self) -> Rows:
        """Return the rows of stored timers that end."""
        return joined(self._ended)

    def units(self) -> tuple[Rows, Rows, list[bytes]]:
        """Return UNIT rows, UNIT_EXTRA rows and frames of the timers to add.

        The units have no previous unit and no body position yet.
        """
        rows = self.timers()
        units = np.zeros(len(rows), UNIT)
        if not rows:
            return units, np.empty(0, UNIT_EXTRA), []
        bodies, visits, unchained = zip(*rows, strict=True)
        frames = [pack(body) for body in bodies]
        targets, _, _, timestamps, dues, _, _, _, _, origins, _, ids = zip(*bodies, strict=True)
        visits_ms, timestamps_ms = np.array(visits, np.int64), np.array(timestamps, np.int64)
        delays_ms = visits_ms - timestamps_ms
        if delays_ms.min() < 0 or delays_ms.max() > MAX_DELAY_MS:
            raise ValueError(f"a wake-up time is not within {MAX_DELAY_MS} ms after its timestamp")
        extra = np.empty(len(rows), UNIT_EXTRA)
        extra["id_hash"], extra["due_ms"] = id_hashes(ids), dues
        units["size"] = UNIT_SIZE
        units["previous"] = -1
        units["magic"] = np.where(visits_ms >= extra["due_ms"], MAGIC_NORMAL, MAGIC_ROLL) | np.array(unchained)
        units["written_ms"] = timestamps_ms
        units["delay_ms"] = delays_ms
        units["body_size"] = list(map(len, frames))
        units["topic_hash"] = list(map(topic_hash, targets))
        units["origin"] = origins
        return units, extra, frames


def id_hashes(ids: Sequence[bytes | None]) -> Ints:
    """Return the hash of each id, 0 for None."""
    hashes = np.zeros(len(ids), np.int64)
    if ids.count(None) == len(ids):
        return hashes
    hashes[[id_ is not None for id_ in ids]] = hashes_of([id_ for id_ in ids if id_ is not None])
    return hashes
