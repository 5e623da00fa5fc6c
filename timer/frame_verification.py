"""The body log, frame behind frame: each by its CRC, the dead ones too, which nothing else looks at."""

import struct
import zlib
from collections.abc import Iterator

from timer.checksum import changed_byte
from timer.disk import File
from timer.record import HEAD, HEAD_SIZE
from timer.verified import FaultError, Folder, field_at

HEAD_FIELDS = (
    "size", "checksum", "version", "flags", "target size", "partition", "offset", "timestamp", "due", "origin", "rolls",
    "key size", "value size", "id size",
)  # fmt: skip
PARTS = ("target", "id", "key", "value", "headers")
"""What follows a frame's head."""
_CHECKED_FROM = 8
_READ_BYTES = 4 << 20


def head_offsets() -> dict[str, int]:
    """Where each field of a frame's head begins."""
    codes = HEAD.format.lstrip(">")
    return {name: struct.calcsize(">" + codes[:at]) for at, name in enumerate(HEAD_FIELDS)}


def part_offsets(frame: bytes) -> dict[str, int]:
    """Where each part behind the head of `frame` begins, and `end`."""
    told = dict(zip(HEAD_FIELDS, HEAD.unpack_from(frame), strict=True))
    at, found = HEAD_SIZE, {}
    for part in PARTS[:-1]:
        found[part] = at
        at += told[f"{part} size"]
    return {**found, "headers": at, "end": len(frame)}


def check_frames(bodies: Folder, body_end: int) -> int:
    """Returns how many frames lie below `body_end`. Raises FaultError."""
    count = 0
    for base in bodies.bases:
        if base < body_end:
            name, file = bodies.name(base), bodies.open(base)
            size = min(file.size(), body_end - base)
            for at, frame in _frames(file, size):
                _check_frame(name, at, frame, size - at)
                count += 1
            file.close()
    return count


def _frames(file: File, end: int) -> Iterator[tuple[int, bytes]]:
    """(where it begins, frame) up to `end`; the last one, with fewer bytes than it tells, where it is cut short."""
    data, base, at = b"", 0, 0
    while at < end:
        size = int.from_bytes(data[at - base : at - base + 4], "big") if at - base + 4 <= len(data) else 0
        if not size or at - base + size > len(data):
            data, base = file.read(at, min(max(_READ_BYTES, size), end - at)), at
            size = int.from_bytes(data[:4], "big")
        frame = data[at - base : at - base + max(size, HEAD_SIZE)]
        yield at, frame
        at += len(frame)


def _check_frame(name: str, at: int, frame: bytes, left: int) -> None:
    if len(frame) < HEAD_SIZE:
        raise FaultError(name, at, "size", f"{len(frame)} bytes are left where a frame must begin")
    size, checksum = HEAD.unpack_from(frame)[:2]
    if size != len(frame):
        raise FaultError(name, at, "size", f"a frame of {size} bytes where {left} are left")
    computed = zlib.crc32(memoryview(frame)[_CHECKED_FROM:])
    if computed != checksum:
        raise _changed(name, at, frame, changed_byte(checksum, computed, size - _CHECKED_FROM))


def _changed(name: str, at: int, frame: bytes, place: int | None) -> FaultError:
    """`place`: the byte that changed, of those under the CRC."""
    if place is None:
        return FaultError(name, at, "size", "the CRC does not fit: the size is another, or several bytes are")
    place += _CHECKED_FROM
    if place == len(frame):
        return FaultError(name, at, "checksum", "the CRC is not that of the frame")
    offsets = head_offsets() if place < HEAD_SIZE else part_offsets(frame)
    return FaultError(name, at, field_at(offsets, place), f"the CRC does not fit: byte {place} of the frame")
