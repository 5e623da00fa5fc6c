"""A request in the body log: one frame, checked by a CRC, holding all that a delivery or a rejection needs.

    0:4 frame size | 4:4 CRC-32 of the bytes from 8 on | 8:1 version | 9:1 flags | 10:2 target length
    12:4 partition (-1: the partitioner's choice) | 16:8 offset | 24:8 timestamp ms | 32:8 due ms
    40:8 origin | 48:4 rolls | 52:4 key length | 56:4 value length | 60:2 id length
    62: target, id, key, value, headers                                          (big-endian)
    a header: 2 name length | 4 value length (-1: null) | name | value

The request's headers are kept whole and in order, ours too: a record that turns out undeliverable goes to the rejected
topic as it came. The flag PLAIN says that none of them matters to a delivery, so that they need not be decoded.
"""

import struct
import zlib
from typing import NamedTuple

from schemas.headers import CONTROL, EXPIRE_MS, KEY, Headers
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
"""Of a header's name. Kafka has no such limit."""
_VERSION = 1
_PLAIN_NAMES = CONTROL - {KEY, EXPIRE_MS}

NULL_KEY = 1
NULL_VALUE = 2
PLAIN = 4
HAS_ID = 8


class LongNameError(ValueError):
    """A header's name for which the frame has no room."""


class Body(NamedTuple):
    """A request that became a timer. `headers` are its own, encoded; `plain`: none that a delivery looks at."""

    target: str
    partition: int
    offset: int
    timestamp_ms: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes
    plain: bool
    origin: int
    """Offset of the first request; `offset` is that of this copy of it."""
    rolls: int
    id: bytes | None


def frame_size(body: Body) -> int:
    """Return the bytes of `pack(body)`."""
    texts = (body.id, body.key, body.value, body.headers)
    return HEAD_SIZE + len(body.target) + sum(len(text) for text in texts if text is not None)


def pack(body: Body) -> bytes:
    """The frame of `body`."""
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
    head = _CHECKED_HEAD.pack(
        _VERSION,
        flags,
        len(target),
        partition,
        offset,
        timestamp_ms,
        due_ms,
        origin,
        rolls,
        len(key),
        len(value),
        len(id_),
    )
    checked = b"".join((head, target, id_, key, value, headers))
    return _SIZE_AND_CHECK.pack(_CHECKED_FROM + len(checked), zlib.crc32(checked)) + checked


def unpack(frame: bytes | memoryview, position: int) -> Body:
    """The body in `frame`, which was read at `position`. Raises CorruptStoreError where a byte of it changed."""
    if len(frame) < HEAD_SIZE:
        raise CorruptStoreError(f"body log at {position}", f"{len(frame)} bytes are no frame")
    (
        size,
        checksum,
        version,
        flags,
        target_size,
        partition,
        offset,
        timestamp_ms,
        due_ms,
        origin,
        rolls,
        key_size,
        value_size,
        id_size,
    ) = HEAD.unpack_from(frame)
    if size != len(frame) or version != _VERSION or zlib.crc32(memoryview(frame)[_CHECKED_FROM:]) != checksum:
        raise CorruptStoreError(f"body log at {position}", "the checksum does not fit the frame")
    id_at = HEAD_SIZE + target_size
    key_at = id_at + id_size
    value_at = key_at + key_size
    headers_at = value_at + value_size
    if not key_at <= value_at <= headers_at <= size:
        raise CorruptStoreError(f"body log at {position}", "its parts do not lie in the frame")
    return Body(
        _ascii(frame[HEAD_SIZE:id_at], position),
        partition,
        offset,
        timestamp_ms,
        due_ms,
        None if flags & NULL_KEY else bytes(frame[key_at:value_at]),
        None if flags & NULL_VALUE else bytes(frame[value_at:headers_at]),
        bytes(frame[headers_at:]),
        bool(flags & PLAIN),
        origin,
        rolls,
        bytes(frame[id_at:key_at]) if flags & HAS_ID else None,
    )


def _ascii(target: bytes | memoryview, position: int) -> str:
    try:
        return str(target, "ascii")
    except UnicodeDecodeError as wrong:
        raise CorruptStoreError(f"body log at {position}", "its target is no name of a topic") from wrong


PEEK_SIZE = HEAD_SIZE + 249 + 1024
"""What a look at a frame's beginning has to read: its head, target and id."""


class Peek(NamedTuple):
    """The beginning of a frame, unchecked: the caller compares what it finds with what it looks for."""

    size: int
    origin: int
    offset: int
    target: str
    id: bytes | None
    partition: int
    rolls: int


def peek(head: bytes, position: int) -> Peek:
    """What stands in `head`, the first PEEK_SIZE bytes of the frame at `position`, or fewer where there are no more."""
    if len(head) < HEAD_SIZE:
        raise CorruptStoreError(f"body log at {position}", f"{len(head)} bytes are no frame")
    fields = HEAD.unpack_from(head)
    id_at = HEAD_SIZE + fields[4]
    id_ = head[id_at : id_at + fields[13]] if fields[3] & HAS_ID else None
    target = str(head[HEAD_SIZE:id_at], "ascii", "replace")
    return Peek(fields[0], fields[9], fields[6], target, id_, fields[5], fields[10])


def pack_headers(headers: Headers) -> tuple[bytes, bool]:
    """The headers' bytes, and whether none of them matters to a delivery. Raises LongNameError."""
    parts: list[bytes] = []
    plain = True
    for name, value in headers:
        if plain and name not in _PLAIN_NAMES:
            plain = False
        if value is None:
            parts.append(_beginning(name, -1))
            continue
        try:
            parts.append(_beginnings[name][len(value)])
        except KeyError:
            parts.append(_beginning(name, len(value)))
        parts.append(value)
    return b"".join(parts), plain


def _beginning(name: str, size: int) -> bytes:
    """A header's bytes before its value of `size` bytes (-1: null)."""
    raw = name.encode()
    if len(raw) > MOST_NAME_BYTES:
        raise LongNameError(f"a header's name has {len(raw)} bytes: {MOST_NAME_BYTES} is the most")
    beginning = _HEADER.pack(len(raw), size) + raw
    _remember(name, size, beginning)
    return beginning


_beginnings: dict[str, dict[int, bytes]] = {}
"""By name and size of the value. Senders choose both, so not all are kept."""
_MOST_NAMES = 128
_MOST_SIZES = 128
_LONGEST_NAME = 256


def _remember(name: str, size: int, beginning: bytes) -> None:
    if len(name) > _LONGEST_NAME:
        return
    if name not in _beginnings and len(_beginnings) >= _MOST_NAMES:
        _beginnings.clear()
    by_size = _beginnings.setdefault(name, {})
    if len(by_size) >= _MOST_SIZES:
        by_size.clear()
    by_size[size] = beginning


def unpack_headers(encoded: bytes) -> list[tuple[str, bytes | None]]:
    """The headers as they came, in order. Raises CorruptStoreError where the bytes are none."""
    try:
        headers, end = _unpacked(encoded)
    except (struct.error, UnicodeDecodeError) as wrong:
        raise CorruptStoreError("body log", f"bytes that are no headers: {wrong}") from wrong
    if end != len(encoded):
        raise CorruptStoreError("body log", "the last header ends behind its frame")
    return headers


def _unpacked(encoded: bytes) -> tuple[list[tuple[str, bytes | None]], int]:
    """The headers, and where the last of them ends by what it says."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(encoded):
        name_size, value_size = _HEADER.unpack_from(encoded, at)
        at += _HEADER.size
        name = str(encoded[at : at + name_size], "utf-8")
        at += name_size
        if value_size < 0:
            headers.append((name, None))
        else:
            headers.append((name, encoded[at : at + value_size]))
            at += value_size
    return headers, at
