"""Kafka's own choice of a partition for a key: murmur2, as the Java client's default partitioner has it.

    partition_of(b"order-17", 4) -> the partition that every client's murmur2 default takes for the key order-17

Ids use it too, so that a cancel from any language meets its timer. librdkafka can do this for a record's key alone.
"""


def murmur2(data: bytes) -> int:
    """org.apache.kafka.common.utils.Utils.murmur2, unsigned."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic with so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
