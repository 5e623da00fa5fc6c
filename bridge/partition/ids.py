"""Ids: those whose last timer was delivered within the last hour, and the partitions that clients choose for one.

A cancel of a timer that was delivered lately is `too-late`.

A cancel from one kind of client misses the timer of another kind. Sources: murmur2 as in kafka_timer.murmur2;
librdkafka's default `consistent_random` takes CRC32 of the key, modulo the number of partitions (rdkafka_msg.c; see
integration_tests/bridge/test_client.py).
"""

from collections.abc import Iterable
from zlib import crc32

from kafka_timer.murmur2 import partition_of
from timer.index.due_counts import HOUR_MS

MOST_IDS = 100_000
_MAX_ID_BYTES = 64
"""Longer ids get no hint: murmur2 of 1 KB takes 0.14 ms, and a sender may cancel thousands in a turn."""


class RecentlyDelivered:
    """The newest 100,000 ids, in the order of delivery. Kept in memory as long as the store is open.

    A hash of 8 bytes stands for each id: 17 MB in all, however long the ids are. If two hashes are equal, the cancel of
    an unknown id is `too-late` instead of `not-found`.
    """

    def __init__(self) -> None:
        self._at_ms: dict[int, int] = {}

    def add(self, ids: Iterable[bytes], now_ms: int) -> None:
        for id_ in ids:
            key = hash(id_)
            self._at_ms.pop(key, None)
            self._at_ms[key] = now_ms
        while len(self._at_ms) > MOST_IDS:
            del self._at_ms[next(iter(self._at_ms))]

    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove ids whose later timer has ended, or could not be delivered."""
        for id_ in ids:
            self._at_ms.pop(hash(id_), None)

    def has(self, id_: bytes, now_ms: int) -> bool:
        at_ms = self._at_ms.get(hash(id_))
        return at_ms is not None and now_ms - at_ms <= HOUR_MS


def other_place(id_: bytes, partition: int, partitions: int) -> str | None:
    """Return where the timer of `id_` may be if `partition` lacks it; None if no client's rule puts it elsewhere."""
    if len(id_) > _MAX_ID_BYTES:
        return None
    by_murmur2, by_crc32 = partition_of(id_, partitions), crc32(id_) % partitions
    if by_murmur2 == by_crc32 or partition not in (by_murmur2, by_crc32):  # the sender chose the partition itself
        return None
    return (
        f"this is partition {partition}; the id goes to partition {by_murmur2} by murmur2 (Java, kafka_timer) and to"
        f" {by_crc32} by CRC32 (librdkafka's default): give all senders partitioner=murmur2_random"
    )


def is_by_crc32(id_: bytes, partition: int, partitions: int) -> bool:
    """True if CRC32 puts `id_` into `partition`, and murmur2 does not."""
    return len(id_) <= _MAX_ID_BYTES and crc32(id_) % partitions == partition != partition_of(id_, partitions)
