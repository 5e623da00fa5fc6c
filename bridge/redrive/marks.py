"""An index of the marks of redrives, 8 bytes each. It is kept between reads: each read fetches only the new marks."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Self

import numpy as np

from bridge.redrive.rules import TopicReader
from kafka_timer.origin import TimerPartition
from schemas.resent import MarkTopics, Source

Bounds = dict[Source, tuple[int, int]]
_NO_DIGESTS = np.empty(0, np.uint64)


class MarkIndex:
    """The marks on the topic of marks, and on the one of former versions. Any thread may look one up."""

    def __init__(self, topics: MarkTopics) -> None:
        self._topics = topics
        self._bounds: Bounds = {}
        self._digests = _NO_DIGESTS

    def __contains__(self, marker: object) -> bool:
        if not isinstance(marker, bytes):
            return False
        digests, digest = self._digests, np.uint64(_digest(marker))
        at = int(np.searchsorted(digests, digest))
        return at < len(digests) and bool(digests[at] == digest)

    def update(self, reader: TopicReader) -> Self:
        """Read the new marks; one thread at a time."""
        counts = {topic: reader.partitions(topic) for topic in (self._topics.topic, self._topics.former)}
        bounds = {source: reader.bounds(TimerPartition(*source[:2])) for source in self._topics.sources(counts)}
        if self._is_recreated(bounds):
            self._bounds, self._digests = {}, _NO_DIGESTS
        new = np.fromiter(map(_digest, self._new_marks(reader, bounds)), np.uint64)
        if len(new):
            self._digests = np.union1d(self._digests, new)
        self._bounds = bounds
        return self

    def _is_recreated(self, bounds: Bounds) -> bool:
        """True if a topic was created again: offsets of one topic never go back."""
        return any(
            source not in bounds or bounds[source][0] < first or bounds[source][1] < end
            for source, (first, end) in self._bounds.items()
        )

    def _new_marks(self, reader: TopicReader, bounds: Bounds) -> Iterator[bytes]:
        for source, (first, end) in bounds.items():
            _, begin = self._bounds.get(source, (0, first))
            for records in reader.requests(TimerPartition(*source[:2]), begin, end):
                for record in records:
                    if record.value is not None and (record.key or b"").startswith(source.prefix):
                        yield record.value


def _digest(marker: bytes) -> int:
    return int.from_bytes(blake2b(marker, digest_size=8).digest())
