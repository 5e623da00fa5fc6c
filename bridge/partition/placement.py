"""Partitions that clients choose for an id: a cancel from one kind of client misses the timer of another kind.

Sources: murmur2 as in kafka_timer.murmur2; librdkafka's default `consistent_random` takes CRC32 of the key, modulo the
number of partitions (rdkafka_msg.c, tried in integration_tests/bridge/test_client.py).
"""

from zlib import crc32

from kafka_timer.murmur2 import partition_of

_MAX_ID_BYTES = 64
"""Longer ids get no hint: murmur2 of 1 KB takes 0.14 ms, and a sender may cancel thousands in a turn."""


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
