"""Changes on their way into a store, in the order of their offsets: timers to add, and live ones that end."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from timer.format.body import Body, pack
from timer.format.unit import (
    BESIDE,
    MAGIC_DELETE,
    MAGIC_NORMAL,
    MAGIC_ROLL,
    MAGIC_UNCHAINED,
    MAX_DELAY_MS,
    UNIT,
    UNIT_SIZE,
    Ints,
    Rows,
    joined,
    topic_hash,
)
from timer.index.id_index import hashes_of

_Row: TypeAlias = tuple[Body, int, int]
"""A timer, its visit, and 0 or MAGIC_UNCHAINED. Bytes and columns are made of all at once, when the store asks."""


class Batch:
    """`add` or `hold` each timer, `drop` one that ends before it is stored, `end` one that is stored."""

    def __init__(self) -> None:
        self._rows: list[_Row | None] = []
        self._resting: set[int] = set()
        self.rest_ms = (0, 0)
        """From when until when those rest that do."""
        self._ended: list[Rows] = []

    def __len__(self) -> int:
        """Units that it will write."""
        return len(self._rows) - self._rows.count(None) + len(self._ended)

    def add(self, body: Body, visit_ms: int) -> int:
        """Returns its place in the batch."""
        self._rows.append((body, visit_ms, 0))
        return len(self._rows) - 1

    def hold(self, body: Body, visit_ms: int) -> int:
        """One that is no part of the order: K says nothing of it. Returns its place in the batch."""
        self._rows.append((body, visit_ms, MAGIC_UNCHAINED))
        return len(self._rows) - 1

    def rest(self, body: Body, visit_ms: int, since_ms: int, until_ms: int) -> int:
        """One that is not looked at before `until_ms`, whatever its visit, unless it is due; see HeldTimers.rest."""
        self.rest_ms = (since_ms, until_ms)
        self._resting.add(len(self._rows))
        return self.hold(body, visit_ms)

    def drop(self, place: int) -> None:
        """The timer at `place` ended before it was stored."""
        self._rows[place] = None

    def end(self, row: Rows) -> None:
        """`row` (a RUN of one, from `Store.find`) ends."""
        self._ended.append(row)

    def places(self) -> list[tuple[int, int]]:
        """(visit_ms, origin) of the timers to add."""
        return [(row[1], row[0].origin) for row in self._rows if row is not None]

    def rests(self) -> NDArray[np.bool_]:
        """Which of the timers to add rest."""
        if not self._resting:
            return np.zeros(len(self._rows) - self._rows.count(None), np.bool_)
        return np.array([at in self._resting for at, row in enumerate(self._rows) if row is not None], np.bool_)

    def ended(self) -> Rows:
        """Timers of the store that end, as a RUN."""
        return joined(self._ended)

    def units(self) -> tuple[Rows, Rows, list[bytes]]:
        """Of the timers to add: units, neither chained nor with a body's position yet, rows of BESIDE, and frames."""
        rows = [row for row in self._rows if row is not None]
        units = np.zeros(len(rows), UNIT)
        if not rows:
            return units, np.empty(0, BESIDE), []
        bodies, visits, unchained = zip(*rows, strict=True)
        frames = [pack(body) for body in bodies]
        targets, _, _, timestamps, dues, _, _, _, _, origins, _, ids = zip(*bodies, strict=True)
        visits_ms, timestamps_ms = np.array(visits, np.int64), np.array(timestamps, np.int64)
        delays_ms = visits_ms - timestamps_ms
        if delays_ms.min() < 0 or delays_ms.max() > MAX_DELAY_MS:
            raise ValueError(f"a visit is not within {MAX_DELAY_MS} ms after its timestamp")
        beside = np.empty(len(rows), BESIDE)
        beside["id_hash"], beside["due_ms"] = _id_hashes(ids), dues
        units["size"] = UNIT_SIZE
        units["previous"] = -1
        units["magic"] = np.where(visits_ms >= beside["due_ms"], MAGIC_NORMAL, MAGIC_ROLL) | np.array(unchained)
        units["written_ms"] = timestamps_ms
        units["delay_ms"] = delays_ms
        units["body_size"] = list(map(len, frames))
        units["topic_hash"] = list(map(topic_hash, targets))
        units["origin"] = origins
        return units, beside, frames


def _id_hashes(ids: Sequence[bytes | None]) -> Ints:
    """0 where there is none."""
    hashes = np.zeros(len(ids), np.int64)
    hashes[[id_ is not None for id_ in ids]] = hashes_of([id_ for id_ in ids if id_ is not None])
    return hashes


def markers(ended: Rows, positions: Ints, chained: NDArray[np.bool_]) -> Rows:
    """Delete markers for `ended`, whose units lie at `positions`; those `chained` are to join their tick's chain."""
    units = np.zeros(len(ended), UNIT)
    units["size"] = UNIT_SIZE
    units["previous"] = -1
    units["magic"] = np.where(chained, MAGIC_DELETE, MAGIC_DELETE | MAGIC_UNCHAINED)
    units["written_ms"] = ended["visit_ms"]
    units["body"] = positions
    units["topic_hash"] = ended["topic_hash"]
    units["origin"] = ended["origin"]
    return units
