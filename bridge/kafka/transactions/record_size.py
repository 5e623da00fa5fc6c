"""Bytes of a record in a batch of its own, uncompressed: `max.message.bytes` of a topic limits them.

Kafka's record format 2: lengths as zigzag varints, a null as length -1; times and offsets within a batch of one are 0.
"""

from schemas.headers import Headers

_BATCH_BYTES = 61
_FIXED_BYTES = 3
"""Attributes, time and offset within the batch."""


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    record = _FIXED_BYTES + _field(key) + _field(value) + _varint(len(headers))
    for name, content in headers:
        record += _field(name.encode()) + _field(content)
    return _BATCH_BYTES + _varint(record) + record


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Return the bytes of a non-negative number."""
    return max(1, -(-(2 * number).bit_length() // 7))
