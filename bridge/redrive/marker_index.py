"""An index of redrive markers, 8 bytes each. It is kept between reads, and each read fetches only the new ones."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from bridge.http.api.ports import TopicReader
from bridge.redrive.rules import read_markers
from schemas.origin import Shard

Digests = npt.NDArray[np.uint64]
Bounds = dict[Shard, tuple[int, int]]


class MarkerIndex:
    """The markers as of one read."""

    def __init__(self, digests: Digests) -> None:
        """`digests`: sorted."""
        self._digests = digests

    def __contains__(self, marker: object) -> bool:
        if not isinstance(marker, bytes):
            return False
        digest = np.uint64(_digest(marker))
        at = int(np.searchsorted(self._digests, digest))
        return at < len(self._digests) and bool(self._digests[at] == digest)


class MarkerReader:
    """Reads the marker topic. Not thread-safe."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._bounds: Bounds = {}
        self._digests = _sorted_digests(())

    def update(self, reader: TopicReader) -> MarkerIndex:
        """Read the new markers. Return the index of all."""
        places = [Shard(self._topic, number) for number in range(reader.partitions(self._topic) or 0)]
        bounds = {place: reader.bounds(place) for place in places}
        if self._is_recreated(bounds):
            self._bounds, self._digests = {}, _sorted_digests(())
        parts = [
            _sorted_digests(
                read_markers(reader, place, self._bounds[place][1] if place in self._bounds else first, end)
            )
            for place, (first, end) in bounds.items()
        ]
        if any(map(len, parts)):
            self._digests = np.unique(np.concatenate([self._digests, *parts]))
        self._bounds = bounds
        return MarkerIndex(self._digests)

    def _is_recreated(self, bounds: Bounds) -> bool:
        """True if the topic was created again: offsets of one topic never go back."""
        return any(
            place not in bounds or bounds[place][0] < first or bounds[place][1] < end
            for place, (first, end) in self._bounds.items()
        )


def _sorted_digests(markers: Iterable[bytes]) -> Digests:
    return np.unique(np.fromiter(map(_digest, markers), np.uint64))


def _digest(marker: bytes) -> int:
    return int.from_bytes(blake2b(marker, digest_size=8).digest())
