"""The state that a clean stop saves for the next opening, so that it is not rebuilt from the log.

    resume    one line of JSON | arrays, one after the other | CRC-32 of all before, 4 bytes, big-endian
    wheel     as it was

Both are used only with a `closed` file equal to the checkpoint. `closed` is emptied before either is changed.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import closing
from math import prod
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from kafka_timer.headers import MAX_INT64
from timer.disk import Disk, File
from timer.errors import UnreadableError
from timer.format.checkpoint import CLOSED, WHEEL, Checkpoint
from timer.format.unit import TIMER_ROW, Ints, Rows
from timer.index.due_counts import HOUR_MS, TopicState
from timer.index.id_index import IdIndex
from timer.index.pending_index import LiveCounts, PendingIndex
from timer.wheel.timer_wheel import used_extents

RESUME = "resume"
_CHUNK_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20


class Snapshot(NamedTuple):
    """State of IdIndex, EndedUnits, LiveCounts (twice), DueCounts and the out-of-order rows."""

    id_hashes: Ints
    id_units: Ints
    ended: Ints
    live_units: Ints
    live_bodies: Ints
    due_hours: Ints
    elsewhere: Ints
    held: Rows
    topics: list[TopicState]
    wheel: int
    """`Wheel.crc`"""

    @classmethod
    def of(cls, index: PendingIndex, out_of_order: Rows, wheel_crc: int) -> "Snapshot":
        topics, due_hours, elsewhere = index.dues.state()
        counts = (index.ended.state(), index.units.state(), index.bodies.state(), due_hours, elsewhere)
        return cls(*index.ids.state(), *counts, out_of_order, topics, wheel_crc)

    def restore(self, index: PendingIndex) -> None:
        index.ids = IdIndex.restored(self.id_hashes, self.id_units)
        index.ended.mark(self.ended.tolist())
        index.units = LiveCounts.restored(self.live_units)
        index.bodies = LiveCounts.restored(self.live_bodies)
        index.dues.restore(self.topics, self.due_hours, self.elsewhere)
        index.pending = int(self.due_hours[:, 2].sum())

    def is_possible(self, checkpoint: Checkpoint) -> bool:
        """True if a store with this checkpoint can have this state: units within its log, counts that add up."""
        slots, units, counts = len(self.id_units), checkpoint.units_end, self.due_hours[:, 2]
        segments = [position // checkpoint.segment_bytes for position in checkpoint.unit_files()]
        files = (self.live_units, segments), (self.live_bodies, checkpoint.bodies)
        return (
            slots == len(self.id_hashes)
            and slots.bit_count() == 1
            and bool((self.id_units == 0).any())
            and all(_within(column, -1, units) for column in (self.id_units, self.ended, self.held["unit"]))
            and _within(self.ended, 0, units)
            and _within(self.due_hours[:, 1], 0, MAX_INT64 // HOUR_MS)
            and _within(counts, 1, checkpoint.pending)
            and _within(self.elsewhere, 0, MAX_INT64)
            and sum(counts.tolist()) == checkpoint.pending
            and set(self.due_hours[:, 0].tolist()) == {hash_ for hash_, *_ in self.topics}
            and all(set(rows[:, 0].tolist()) <= set(named) for rows, named in files)
        )


def _within(values: Ints, least: int, most: int) -> bool:
    return not len(values) or (int(values.min()) >= least and int(values.max()) <= most)


_ARRAYS = Snapshot._fields[:-2]
_COLUMNS = {"live_units": 5, "live_bodies": 5, "due_hours": 3, "elsewhere": 2}
"""Columns of the two-dimensional arrays; the others have one dimension."""


class _Head(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: int
    wheel: int
    topics: list[TopicState]
    arrays: dict[str, tuple[int, ...]]

    @model_validator(mode="after")
    def _has_all_arrays(self) -> "_Head":
        for name in _ARRAYS:
            shape = self.arrays.get(name, ())
            if shape[1:] != ((_COLUMNS[name],) if name in _COLUMNS else ()) or min(shape, default=-1) < 0:
                raise ValueError(f"{name}: impossible shape {shape}")
        return self


def write(disk: Disk, checkpoint: Checkpoint, state: Snapshot) -> None:
    """Write the snapshot and wait until it is durable. Raises OSError."""
    crc = 0
    with closing(disk.open(RESUME)) as file:
        file.truncate(0)
        for part in _parts(checkpoint, state):
            file.append(part)
            crc = zlib.crc32(part, crc)
        file.append(crc.to_bytes(4, "big"))
        disk.start_sync([file]).wait()


def _parts(checkpoint: Checkpoint, state: Snapshot) -> Iterator[bytes]:
    arrays = {name: np.ascontiguousarray(getattr(state, name)) for name in _ARRAYS}
    head = {
        "checkpoint": zlib.crc32(checkpoint.to_bytes()),
        "wheel": state.wheel,
        "topics": state.topics,
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }
    yield json.dumps(head).encode() + b"\n"
    for array in arrays.values():
        data = array.tobytes()
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def take(disk: Disk, checkpoint: Checkpoint | None) -> tuple[Snapshot, Ints] | None:
    """Return the snapshot of a clean stop at `checkpoint` and the used extents of its wheel.

    Remove the snapshot, as the files change from now on. Without a snapshot or its wheel, remove both.
    """
    found = None if checkpoint is None else read(disk, checkpoint)
    wheel = None if checkpoint is None or found is None else used_extents(disk, checkpoint.slots)
    if found is None or wheel is None or wheel[1] != found.wheel:
        found = wheel = None
    if _closed(disk) != b"":
        disk.start_replace(CLOSED, b"").wait()  # a removed file may be back after a loss of power
    if wheel is None:
        disk.remove(WHEEL)
    disk.remove(RESUME)
    return None if found is None or wheel is None else (found, wheel[0])


def read(disk: Disk, checkpoint: Checkpoint) -> Snapshot | None:
    """Return the snapshot of a clean stop at this checkpoint, None if there is none or it is damaged."""
    if not is_closed_as(disk, checkpoint):
        return None
    try:
        with closing(disk.open(RESUME)) as file:
            found = _read(file, zlib.crc32(checkpoint.to_bytes()))
    except UnreadableError:  # the log has everything, too
        return None
    return found if found is not None and found.is_possible(checkpoint) else None


def is_closed_as(disk: Disk, checkpoint: Checkpoint) -> bool:
    """True if the store was closed cleanly at this checkpoint; False if that cannot be read."""
    return _closed(disk) == checkpoint.to_bytes()


def _closed(disk: Disk) -> bytes | None:
    """Return the content of `closed`, empty if missing, None if unreadable."""
    try:
        return disk.read(CLOSED) or b""
    except UnreadableError:
        return None


def _read(file: File, checkpoint_crc: int) -> Snapshot | None:
    end = file.size() - 4
    line = _first_line(file, end)
    try:
        head = _Head.model_validate_json(line)
    except ValidationError:
        return None
    sizes = {name: _dtype(name).itemsize * prod(head.arrays[name]) for name in _ARRAYS}
    at = len(line) + 1
    if head.checkpoint != checkpoint_crc or at + sum(sizes.values()) != end:
        return None
    crc, arrays = zlib.crc32(line + b"\n"), {}
    for name, size in sizes.items():
        data = np.empty(size, np.uint8)
        for start in range(0, size, _CHUNK_BYTES):
            some = file.read(at + start, min(_CHUNK_BYTES, size - start))
            data[start : start + len(some)] = np.frombuffer(some, np.uint8)
            crc = zlib.crc32(some, crc)
        arrays[name] = data.view(_dtype(name)).reshape(head.arrays[name])
        at += size
    is_sound = file.read(end, 4) == crc.to_bytes(4, "big")
    return Snapshot(**arrays, topics=head.topics, wheel=head.wheel) if is_sound else None


def _first_line(file: File, end: int) -> bytes:
    """Return the line of JSON. Its length is not limited: it names every target topic with pending timers."""
    found, at = [b""], 0
    while at < end and b"\n" not in found[-1]:
        found.append(file.read(at, min(_HEAD_BYTES, end - at)))
        at += len(found[-1])
    return b"".join(found).partition(b"\n")[0]


def _dtype(name: str) -> "np.dtype[Any]":
    return TIMER_ROW if name == "held" else np.dtype(np.int64)
