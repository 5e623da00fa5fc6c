"""What a store that is closed cleanly leaves for its next opening: all that it would make anew from its log.

    resume    one line of JSON | arrays, one behind the other | CRC-32 of all before, 4 bytes, big-endian
    wheel     as it was

Both are believed only with a `closed` that is the checkpoint itself; that is emptied before either is touched.
"""

import json
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from timer.checkpoint import CLOSED, Checkpoint
from timer.disk import Disk, File
from timer.dues import TopicState
from timer.entry import RUN, Ints, Rows

RESUME = "resume"
_CHUNK_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20


class State(NamedTuple):
    """See the classes that tell it: IdIndex, EndedUnits, LiveCounts (twice), DueCounts."""

    id_hashes: Ints
    id_units: Ints
    ended: Ints
    live_units: Ints
    live_bodies: Ints
    due_hours: Ints
    elsewhere: Ints
    held: Rows
    topics: list[TopicState]


_ARRAYS = State._fields[:-1]


def write(disk: Disk, told: Checkpoint, state: State) -> None:
    """Durably. Raises OSError."""
    file = disk.open(RESUME)
    try:
        file.truncate(0)
        crc = 0
        for part in _parts(told, state):
            file.append(part)
            crc = zlib.crc32(part, crc)
        file.append(crc.to_bytes(4, "big"))
        disk.start_sync([file]).wait()
    finally:
        file.close()


def _parts(told: Checkpoint, state: State) -> Iterator[bytes]:
    arrays = {name: np.ascontiguousarray(getattr(state, name)) for name in _ARRAYS}
    head = {
        "checkpoint": zlib.crc32(told.to_bytes()),
        "topics": state.topics,
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }
    yield json.dumps(head).encode() + b"\n"
    for array in arrays.values():
        data = array.tobytes()
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def read(disk: Disk, told: Checkpoint) -> State | None:
    """The state in which the store of this checkpoint was closed; None where it was not closed cleanly then."""
    if disk.read(CLOSED) != told.to_bytes():
        return None
    file = disk.open(RESUME)
    try:
        return _read(file, zlib.crc32(told.to_bytes()))
    finally:
        file.close()


def _read(file: File, checkpoint_crc: int) -> State | None:
    end = file.size() - 4
    crc, at = 0, 0
    while at < end:
        chunk = file.read(at, min(_CHUNK_BYTES, end - at))
        crc, at = zlib.crc32(chunk, crc), at + len(chunk)
    if end <= 0 or file.read(end, 4) != crc.to_bytes(4, "big"):
        return None
    line, _, _ = file.read(0, _HEAD_BYTES).partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    if head["checkpoint"] != checkpoint_crc:
        return None
    at = len(line) + 1
    arrays = {}
    for name in _ARRAYS:
        dtype, shape = RUN if name == "held" else np.dtype(np.int64), head["arrays"][name]
        size = dtype.itemsize * int(np.prod(shape))
        data = np.empty(size, np.uint8)
        for start in range(0, size, _CHUNK_BYTES):
            some = min(_CHUNK_BYTES, size - start)
            data[start : start + some] = np.frombuffer(file.read(at + start, some), np.uint8)
        arrays[name] = data.view(dtype).reshape(shape)
        at += size
    return State(**arrays, topics=[tuple(topic) for topic in head["topics"]])
