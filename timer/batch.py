"""Changes on their way into a store, in the order of their offsets: timers to add, and live ones that end."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timer.entry import (
    MAGIC_DELETE,
    MAGIC_NORMAL,
    MAGIC_ROLL,
    MAGIC_UNCHAINED,
    MAX_DELAY_MS,
    RUN,
    UNIT,
    UNIT_SIZE,
    Ints,
    Rows,
    topic_hash,
)
from timer.ids import hash_of
from timer.record import Body, pack


class _Row(NamedTuple):
    """A timer as its unit needs it."""

    frame: bytes
    visit_ms: int
    timestamp_ms: int
    origin: int
    topic_hash: int
    id_hash: int
    magic: int


class Batch:
    """`add` or `hold` each timer, `drop` one that ends before it is stored, `end` one that is stored."""

    def __init__(self) -> None:
        self._rows: list[_Row | None] = []
        self._ended: list[Rows] = []

    def __len__(self) -> int:
        """Units that it will write."""
        return sum(row is not None for row in self._rows) + len(self._ended)

    def add(self, body: Body, visit_ms: int) -> int:
        """Returns its place in the batch."""
        return self._put(body, visit_ms, MAGIC_NORMAL if visit_ms >= body.due_ms else MAGIC_ROLL)

    def hold(self, body: Body, visit_ms: int) -> int:
        """One whose key is <= K although its visit has not come. Returns its place in the batch."""
        return self._put(body, visit_ms, MAGIC_UNCHAINED | (MAGIC_NORMAL if visit_ms >= body.due_ms else MAGIC_ROLL))

    def _put(self, body: Body, visit_ms: int, magic: int) -> int:
        if not 0 <= visit_ms - body.timestamp_ms <= MAX_DELAY_MS:
            raise ValueError(f"visit {visit_ms} is not within {MAX_DELAY_MS} ms after timestamp {body.timestamp_ms}")
        id_hash = 0 if body.id is None else hash_of(body.id)
        hash_ = topic_hash(body.target)
        self._rows.append(_Row(pack(body), visit_ms, body.timestamp_ms, body.origin, hash_, id_hash, magic))
        return len(self._rows) - 1

    def drop(self, place: int) -> None:
        """The timer at `place` ended before it was stored."""
        self._rows[place] = None

    def end(self, row: Rows) -> None:
        """`row` (a RUN of one, from `Store.find`) ends."""
        self._ended.append(row)

    def places(self) -> list[tuple[int, int]]:
        """(visit_ms, origin) of the timers to add."""
        return [(row.visit_ms, row.origin) for row in self._rows if row is not None]

    def frames(self) -> list[bytes]:
        return [row.frame for row in self._rows if row is not None]

    def ended(self) -> Rows:
        """Timers of the store that end, as a RUN."""
        return np.concatenate(self._ended) if self._ended else np.empty(0, RUN)

    def units(self) -> tuple[Rows, Ints]:
        """Units of the timers to add, neither chained nor with a body's position yet, and their id hashes."""
        rows = [row for row in self._rows if row is not None]
        units = np.zeros(len(rows), UNIT)
        if not rows:
            return units, np.zeros(0, np.int64)
        frames, visits_ms, timestamps_ms, origins, topic_hashes, id_hashes, magics = zip(*rows, strict=True)
        units["size"] = UNIT_SIZE
        units["previous"] = -1
        units["magic"] = magics
        units["written_ms"] = timestamps_ms
        units["delay_ms"] = np.array(visits_ms, np.int64) - np.array(timestamps_ms, np.int64)
        units["body_size"] = [len(frame) for frame in frames]
        units["topic_hash"] = topic_hashes
        units["origin"] = origins
        return units, np.array(id_hashes, np.int64)


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
