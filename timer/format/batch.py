"""Changes for a store, in the order of their offsets: timers to add, and pending ones that end."""

import numpy as np
from numpy.typing import NDArray

from timer.format.body import Body, pack
from timer.format.unit import MAGIC_UNCHAINED, TIMER_ROW, Ints, Rows, hashes_of, joined, topic_hash


class Batch:
    """`add` or `hold` each timer, `drop` one that ends before it is stored, `end` one that is stored."""

    def __init__(self) -> None:
        self._rows: list[tuple[Body, int, int] | None] = []
        """A timer, its wake-up time, and 0 or MAGIC_UNCHAINED. Bytes and columns are made for all rows at once."""
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

    def ended(self) -> Rows:
        return joined(self._ended)

    def rows(self, first_unit: int) -> tuple[Rows, Ints, NDArray[np.bool_], list[bytes]]:
        """Return rows of the timers to add, their timestamps, which of them are in order, and their frames.

        The rows are TIMER_ROW, numbered from `first_unit` on, and have no body position yet.
        """
        added = [row for row in self._rows if row is not None]
        rows = np.zeros(len(added), TIMER_ROW)
        if not added:
            return rows, np.empty(0, np.int64), np.empty(0, np.bool_), []
        bodies, visits_ms, unchained = zip(*added, strict=True)
        frames = [pack(body) for body in bodies]
        targets, _, _, timestamps_ms, dues_ms, _, _, _, _, origins, _, ids = zip(*bodies, strict=True)
        rows["visit_ms"] = visits_ms
        rows["origin"] = origins
        rows["unit"] = np.arange(first_unit, first_unit + len(rows))
        rows["body_size"] = list(map(len, frames))
        rows["topic_hash"] = list(map(topic_hash, targets))
        if ids.count(None) < len(ids):
            with_id = [id_ is not None for id_ in ids]
            rows["id_hash"][with_id] = hashes_of([id_ for id_ in ids if id_ is not None])
        rows["due_ms"] = dues_ms
        return rows, np.array(timestamps_ms, np.int64), np.array(unchained) == 0, frames
