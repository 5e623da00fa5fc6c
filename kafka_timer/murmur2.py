"""Kafka's default partitioner for keys: murmur2, as in the Java client.

    partition_of(b"order-17", 4) -> the partition of the key order-17 for every client with the murmur2 partitioner

Ids use it too, so that a cancel from any language reaches its timer. librdkafka has it only for a record's key.
"""


def murmur2(data: bytes) -> int:
    """Return org.apache.kafka.common.utils.Utils.murmur2, unsigned."""
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
    """Return the partition of `key` in a topic with `partitions` of them."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
