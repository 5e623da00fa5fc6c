"""Marks of what was sent again, 8 bytes for each: kept from one view to the next, which reads only what came since."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from bridge.http.api.ports import TopicReader
from bridge.redrive.rules import marks_in
from schemas.origin import Shard

Digests = npt.NDArray[np.uint64]
Bounds = dict[Shard, tuple[int, int]]


class Marks:
    """As of one reading."""

    def __init__(self, digests: Digests) -> None:
        """`digests`: in order."""
        self._digests = digests

    def __contains__(self, mark: object) -> bool:
        if not isinstance(mark, bytes):
            return False
        digest = np.uint64(_digest(mark))
        at = int(np.searchsorted(self._digests, digest))
        return at < len(self._digests) and bool(self._digests[at] == digest)


class MarksTopic:
    """One reading at a time."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._bounds: Bounds = {}
        self._digests = _in_order(())

    def read_on(self, reader: TopicReader) -> Marks:
        """All of them, as of now."""
        places = [Shard(self._topic, number) for number in range(reader.partitions(self._topic) or 0)]
        bounds = {place: reader.bounds(place) for place in places}
        if self._is_another(bounds):
            self._bounds, self._digests = {}, _in_order(())
        parts = [
            _in_order(marks_in(reader, place, self._bounds[place][1] if place in self._bounds else first, end))
            for place, (first, end) in bounds.items()
        ]
        if any(map(len, parts)):
            self._digests = np.unique(np.concatenate([self._digests, *parts]))
        self._bounds = bounds
        return Marks(self._digests)

    def _is_another(self, bounds: Bounds) -> bool:
        """Whether the topic was made anew: offsets of one topic never go back."""
        return any(
            place not in bounds or bounds[place][0] < first or bounds[place][1] < end
            for place, (first, end) in self._bounds.items()
        )


def _in_order(marks: Iterable[bytes]) -> Digests:
    return np.unique(np.fromiter(map(_digest, marks), np.uint64))


def _digest(mark: bytes) -> int:
    return int.from_bytes(blake2b(mark, digest_size=8).digest())
