"""An index of the marks of redrives, 8 bytes each. It is kept between reads: each read fetches only the new marks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from bridge.redrive.rules import RejectedLog
from kafka_timer.origin import TimerPartition
from schemas.resent import MarkTopics, Source

Digests = npt.NDArray[np.uint64]
Bounds = dict[Source, tuple[int, int]]


@dataclass(frozen=True)
class MarkIndex:
    """The marks as of one read. `digests`: sorted."""

    _digests: Digests

    def __contains__(self, marker: object) -> bool:
        if not isinstance(marker, bytes):
            return False
        digest = np.uint64(_digest(marker))
        at = int(np.searchsorted(self._digests, digest))
        return at < len(self._digests) and bool(self._digests[at] == digest)


class MarkReader:
    """Reads the topic of marks, and the one of former versions. Not thread-safe."""

    def __init__(self, topics: MarkTopics) -> None:
        self._topics = topics
        self._bounds: Bounds = {}
        self._digests = _sorted_digests(())

    def update(self, log: RejectedLog, partitions: Callable[[str], int | None]) -> MarkIndex:
        """Read the new marks. Return the index of all. partitions: number of a topic; None: there is no such topic."""
        counts = {topic: partitions(topic) for topic in (self._topics.topic, self._topics.former)}
        bounds = {source: log.bounds(TimerPartition(*source[:2])) for source in self._topics.sources(counts)}
        if self._is_recreated(bounds):
            self._bounds, self._digests = {}, _sorted_digests(())
        parts = [
            _sorted_digests(_read(log, source, self._bounds[source][1] if source in self._bounds else first, end))
            for source, (first, end) in bounds.items()
        ]
        if any(map(len, parts)):
            self._digests = np.unique(np.concatenate([self._digests, *parts]))
        self._bounds = bounds
        return MarkIndex(self._digests)

    def _is_recreated(self, bounds: Bounds) -> bool:
        """True if a topic was created again: offsets of one topic never go back."""
        return any(
            source not in bounds or bounds[source][0] < first or bounds[source][1] < end
            for source, (first, end) in self._bounds.items()
        )


def _read(log: RejectedLog, source: Source, from_offset: int, to_offset: int) -> Iterator[bytes]:
    for records in log.requests(TimerPartition(*source[:2]), from_offset, to_offset):
        for record in records:
            if record.value is not None and (record.key or b"").startswith(source.prefix):
                yield record.value


def _sorted_digests(markers: Iterable[bytes]) -> Digests:
    return np.unique(np.fromiter(map(_digest, markers), np.uint64))


def _digest(marker: bytes) -> int:
    return int.from_bytes(blake2b(marker, digest_size=8).digest())
