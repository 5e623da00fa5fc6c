"""A request in the body log: one frame with a CRC and all that a delivery or a rejection needs.

    0:4 frame size | 4:4 CRC-32 of the bytes from 8 on | 8:1 version | 9:1 flags | 10:2 target length
    12:4 partition (-1: the partitioner's choice) | 16:8 offset | 24:8 timestamp ms | 32:8 due ms
    40:8 origin offset | 48:4 rolls | 52:4 key length | 56:4 value length | 60:2 id length
    62: target, id, key, value, headers                                          (big-endian)
    a header: 2 name length | 4 value length (-1: null) | name | value

All headers of the request are kept in order, ours too: an undeliverable record goes to the rejected topic unchanged.
The flag PLAIN says that no header matters to a delivery, so that they need not be decoded.
"""

import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

from kafka_timer.headers import CONTROL, CRON, EVERY_MS, EXPIRE_MS, KEY, Headers
from timer.errors import CorruptStoreError

HEAD = struct.Struct(">IIBBHiqqqqiiiH")
HEAD_SIZE = 62
assert HEAD.size == HEAD_SIZE
_CHECKED_FROM = 8
_SIZE_AND_CHECK = struct.Struct(">II")
_CHECKED_HEAD = struct.Struct(">BBHiqqqqiiiH")
assert _SIZE_AND_CHECK.size == _CHECKED_FROM == HEAD_SIZE - _CHECKED_HEAD.size
_HEADER = struct.Struct(">Hi")
MOST_NAME_BYTES = 0xFFFF
"""The longest header name. Kafka has no such limit."""
_VERSION = 1
_PLAIN_NAMES = CONTROL - {KEY, EXPIRE_MS, CRON, EVERY_MS}

NULL_KEY = 1
NULL_VALUE = 2
PLAIN = 4
HAS_ID = 8


class LongNameError(ValueError):
    """A header name is too long for the frame."""


class Body(NamedTuple):
    """A request that became a timer. headers: its own, encoded. plain: True if none of them matters to a delivery."""

    target: str
    partition: int
    offset: int
    timestamp_ms: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes
    plain: bool
    origin_offset: int
    """Offset of the first request; `offset` is that of this copy."""
    rolls: int
    id: bytes | None


def frame_size(body: Body) -> int:
    texts = (body.id, body.key, body.value, body.headers)
    return HEAD_SIZE + len(body.target) + sum(len(text) for text in texts if text is not None)


def pack(body: Body) -> bytes:
    topic, partition, offset, timestamp_ms, due_ms, key, value, headers, plain, origin, rolls, id_ = body
    flags = PLAIN if plain else 0
    if key is None:
        key, flags = b"", flags | NULL_KEY
    if value is None:
        value, flags = b"", flags | NULL_VALUE
    if id_ is None:
        id_ = b""
    else:
        flags |= HAS_ID
    target = topic.encode("ascii")
    keys, values, ids = len(key), len(value), len(id_)
    head = _CHECKED_HEAD.pack(
        _VERSION, flags, len(target), partition, offset, timestamp_ms, due_ms, origin, rolls, keys, values, ids
    )
    checked = b"".join((head, target, id_, key, value, headers))
    return _SIZE_AND_CHECK.pack(_CHECKED_FROM + len(checked), zlib.crc32(checked)) + checked


def _unpack_head(frame: bytes, position: int) -> tuple[int, ...]:
    if len(frame) < HEAD_SIZE:
        what = f"truncated frame: {len(frame)} bytes, the header needs {HEAD_SIZE}"
        raise CorruptStoreError(f"body log at {position}", what)
    return HEAD.unpack_from(frame)


def unpack(frame: bytes, position: int, expected_origin: int | None = None) -> Body:
    """Return the body of `frame`, which was read at `position`.

    Raises CorruptStoreError if it is damaged, or not that of `expected_origin`.
    """
    # One of the hottest functions: slices of bytes and a plain tuple take half the time of their alternatives.
    size, checksum, version, flags, target_size, partition, offset, *others = _unpack_head(frame, position)
    timestamp_ms, due_ms, origin_offset, rolls, key_size, value_size, id_size = others
    if size != len(frame) or version != _VERSION or zlib.crc32(frame[_CHECKED_FROM:]) != checksum:
        raise CorruptStoreError(f"body log at {position}", "the checksum does not match the frame")
    if expected_origin is not None and origin_offset != expected_origin:
        raise CorruptStoreError(f"body log at {position}", f"origin {origin_offset}, not {expected_origin}")
    id_at = HEAD_SIZE + target_size
    key_at = id_at + id_size
    value_at = key_at + key_size
    headers_at = value_at + value_size
    if not key_at <= value_at <= headers_at <= size:
        raise CorruptStoreError(f"body log at {position}", "its fields exceed the frame")
    try:
        target = _target_name(frame[HEAD_SIZE:id_at])
    except UnicodeDecodeError as error:
        raise CorruptStoreError(f"body log at {position}", "its target is not ASCII") from error
    key = None if flags & NULL_KEY else frame[key_at:value_at]
    value = None if flags & NULL_VALUE else frame[value_at:headers_at]
    id_ = frame[id_at:key_at] if flags & HAS_ID else None
    headers, plain = frame[headers_at:], flags & PLAIN != 0
    return tuple.__new__(
        Body, (target, partition, offset, timestamp_ms, due_ms, key, value, headers, plain, origin_offset, rolls, id_)
    )


@lru_cache(maxsize=1024)
def _target_name(target: bytes) -> str:
    return str(target, "ascii")


PEEK_SIZE = HEAD_SIZE + 249 + 1024
"""Most bytes of a frame's beginning: fixed fields, target and id."""


class Peek(NamedTuple):
    """The beginning of a frame, not checked: the caller compares its fields."""

    size: int
    origin_offset: int
    offset: int
    target: str
    id: bytes | None
    partition: int
    rolls: int


def peek(head: bytes, position: int) -> Peek:
    """Return the fields in `head`, the first PEEK_SIZE bytes (or fewer) of the frame at `position`."""
    fields = _unpack_head(head, position)
    id_at = HEAD_SIZE + fields[4]
    id_ = head[id_at : id_at + fields[13]] if fields[3] & HAS_ID else None
    target = str(head[HEAD_SIZE:id_at], "ascii", "replace")
    return Peek(fields[0], fields[9], fields[6], target, id_, fields[5], fields[10])


def pack_headers(headers: Headers) -> tuple[bytes, bool]:
    """Return the headers' bytes, and True if none of them matters to a delivery. Raises LongNameError."""
    parts: list[bytes] = []
    plain = True
    for name, value in headers:
        if plain and name not in _PLAIN_NAMES:
            plain = False
        size = -1 if value is None else len(value)
        beginning = _beginning if len(name) <= _LONGEST_CACHED else _beginning.__wrapped__
        parts.append(beginning(name, size))
        if value is not None:
            parts.append(value)
    return b"".join(parts), plain


_LONGEST_CACHED = 256
"""Characters of a header's name. The cache is bounded, as senders choose names and sizes."""


@lru_cache(maxsize=4096)
def _beginning(name: str, size: int) -> bytes:
    """Return a header's bytes before its value of `size` bytes (-1: null)."""
    raw = name.encode()
    if len(raw) > MOST_NAME_BYTES:
        raise LongNameError(f"a header's name has {len(raw)} bytes: {MOST_NAME_BYTES} is the most")
    return _HEADER.pack(len(raw), size) + raw


def unpack_headers(encoded: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers in order. Raises CorruptStoreError if the bytes are damaged."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    try:
        while at < len(encoded):
            name_size, value_size = _HEADER.unpack_from(encoded, at)
            name_at = at + _HEADER.size
            value_at = name_at + name_size
            at = value_at + max(value_size, 0)
            headers.append((str(encoded[name_at:value_at], "utf-8"), None if value_size < 0 else encoded[value_at:at]))
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptStoreError("body log", f"invalid headers: {error}") from error
    if at != len(encoded):
        raise CorruptStoreError("body log", "the last header exceeds its frame")
    return headers
