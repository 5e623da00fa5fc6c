"""Size of a record in a batch of its own, uncompressed: `max.message.bytes` of a topic limits it.

Kafka's record format 2: lengths as zigzag varints, a null as length -1; times and offsets within a batch of one are 0.
"""

from bridge.ports import Outgoing

_BATCH_BYTES = 61
_FIXED_BYTES = 3
"""Attributes, time and offset within the batch."""


def size_of(record: Outgoing) -> int:
    """Return the record's bytes in a batch of its own. A broker that accepts it accepts smaller ones."""
    size = _FIXED_BYTES + _field(record.key) + _field(record.value) + _varint(len(record.headers))
    for name, content in record.headers:
        size += _field(name.encode()) + _field(content)
    return _BATCH_BYTES + _varint(size) + size


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Return the bytes of a non-negative number."""
    return max(1, -(-(2 * number).bit_length() // 7))
