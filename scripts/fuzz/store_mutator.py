"""Malicious stores: a real store, edited, with all of its checksums recomputed.

    input    flags 1 | edits, 12 bytes each: what 1, which file 1, place 2, value 8
    flags    1: checksums are recomputed   2: and the store counts as closed in the state of its checkpoint

The fuzzer mutates the edits, so that it need not find the four bytes of a CRC by chance.
"""

import json
import random
import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from schemas.progress import NOTHING_SETTLED, Progress
from timer.engines import create_store
from timer.format.batch import Batch
from timer.format.body import HEAD, HEAD_SIZE, Body, pack_headers
from timer.format.checkpoint import CLOSED, NAME, WHEEL, Checkpoint
from timer.format.unit import BLANK_SIZE, UNIT, UNIT_EXTRA_DISK, UNIT_SIZE, unit_checks
from timer.options import StoreOptions
from timer.testing import SimDisk
from timer.wheel.shutdown_snapshot import RESUME
from timer.wheel.timer_wheel import SLOT, slot_checks

START_MS = 1_700_000_000_000
OPTIONS = StoreOptions(tick_ms=1000, slots=256, segment_bytes=1024)
PER_SEGMENT = (OPTIONS.segment_bytes - BLANK_SIZE) // UNIT_SIZE

SEALED, AS_CLOSED = 1, 2
EDIT = struct.Struct(">BBHq")
_BYTE, _FIELD, _CUT, _MORE, _REMOVE, _COPY = range(6)
_MOST_BYTES = 1 << 14
_DTYPES = {"timer": UNIT, "ids": UNIT_EXTRA_DISK, WHEEL: SLOT}
_NUMBER = re.compile(rb"-?\d+")

Contents = dict[str, bytes]


def _body(offset: int, due_ms: int) -> Body:
    headers, plain = pack_headers([("timer-topic", b"orders"), ("trace", None)][: 1 + offset % 2])
    id_ = b"id-%d" % offset if offset % 3 else None
    target = "bills" if offset % 4 == 0 else "orders"
    return Body(target, -1, offset, START_MS, due_ms, b"key", b"v" * (offset % 9), headers, plain, offset, 0, id_)


@cache
def sound() -> Contents:
    """Return the files of a closed store: timers to deliver, to roll, out of order, ended, and in a target backlog."""
    disk = SimDisk(random.Random(1))
    store = create_store(disk, OPTIONS, Progress(0, NOTHING_SETTLED, 0))
    offset = 0

    def receive(*visits: tuple[int, int]) -> None:
        nonlocal offset
        batch = Batch()
        for visit, due in visits:
            timer = _body(offset, START_MS + due)
            place = batch.add if (START_MS + visit, offset) > store.settled else batch.hold
            place(timer, START_MS + visit)
            offset += 1
        store.add(batch, offset)

    receive(*((due, due) for due in range(0, 9000, 300)))
    store.release_queue.take_due(START_MS + 1500, 100, 1 << 20)
    receive((9000, 90_000), (500, 100_000), (4000, 4000))
    ended = Batch()
    for row in store.queries.find([b"id-10", b"id-11", b"id-20"]).values():
        ended.end(row)
    store.add(ended, offset)
    store.release_queue.pause("bills", is_paused=True)
    store.committed(store.advance_progress())
    store.start_checkpoint(0, (), ())
    store.finish_checkpoint()
    store.close()
    return {name: content for name, content in disk.contents().items() if content}


def disk_of(contents: Contents) -> SimDisk:
    """Return a disk with these files, durable."""
    disk = SimDisk()
    for name, content in contents.items():
        disk.start_replace(name, content).wait()
    return disk


def edited(data: bytes) -> Contents:
    """Return the files that `data` asks for."""
    contents, flags = dict(sound()), data[0] if data else 0
    for at in range(1, len(data) - EDIT.size + 1, EDIT.size):
        _edit(contents, *EDIT.unpack_from(data, at))
    if flags & SEALED:
        seal(contents, as_closed=bool(flags & AS_CLOSED))
    return contents


def _edit(contents: Contents, what: int, which: int, place: int, value: int) -> None:
    names = sorted(contents)
    if not names:
        return
    name = names[which % len(names)]
    content = contents[name]
    match what % 6:
        case 0 if content:
            at = place % len(content)
            contents[name] = content[:at] + bytes([content[at] ^ (value & 255)]) + content[at + 1 :]
        case 1:
            contents[name] = _with_field(name, content, place, value)
        case 2:
            contents[name] = content[: place % (len(content) + 1)]
        case 3:
            contents[name] = (content + value.to_bytes(8, "big", signed=True) * (place % 64))[:_MOST_BYTES]
        case 4:
            del contents[name]
        case 5:
            contents[names[value % len(names)]] = content


def _with_field(name: str, content: bytes, place: int, value: int) -> bytes:
    """Return `content` with `value` in the `place`-th field, counted through its records."""
    raw = value.to_bytes(8, "big", signed=True)
    folder = name.partition("/")[0]
    if folder == "body":
        places = [(at + begin, size) for at, _ in frames(content) for begin, size in _head_fields()]
    elif folder in _DTYPES:
        dtype: Any = _DTYPES[folder]
        fields = [(begin, kind.itemsize) for kind, begin in dtype.fields.values()]
        count = len(content) // dtype.itemsize
        places = [(at * dtype.itemsize + begin, size) for at in range(count) for begin, size in fields]
    else:
        numbers = [match.span() for match in _NUMBER.finditer(content.partition(b"\n")[2] or content)]
        if not numbers:
            return content
        shift = len(content) - len(content.partition(b"\n")[2] or content)
        begin, end = (shift + at for at in numbers[place % len(numbers)])
        return content[:begin] + str(value).encode() + content[end:]
    if not places:
        return content
    begin, size = places[place % len(places)]
    return content[:begin] + raw[8 - size :] + content[begin + size :]


@cache
def _head_fields() -> tuple[tuple[int, int], ...]:
    codes = HEAD.format.lstrip(">")
    bounds = [struct.calcsize(">" + codes[:at]) for at in range(len(codes) + 1)]
    return tuple((begin, end - begin) for begin, end in pairwise(bounds))


def frames(content: bytes) -> Iterator[tuple[int, int]]:
    """Return start and size of each frame, as far as the sizes are valid."""
    at = 0
    while at + HEAD_SIZE <= len(content):
        size = max(HEAD_SIZE, int.from_bytes(content[at : at + 4], "big"))
        if at + size > len(content):
            return
        yield at, size
        at += size


def seal(contents: Contents, *, as_closed: bool) -> None:
    """Recompute every checksum of every file."""
    for name in [*contents]:
        folder, _, base = name.partition("/")
        if folder == "timer" and base.isascii() and base.isdigit():
            _seal_units(contents, name, int(base))
        elif folder == "body":
            contents[name] = sealed_frames(contents[name])
        elif folder == WHEEL:
            contents[name] = _sealed_slots(contents[name])
    for name in (NAME, CLOSED):
        if name in contents:
            contents[name] = sealed_text(contents[name].partition(b"\n")[2])
    if as_closed and NAME in contents:
        contents[CLOSED] = contents[NAME]
    if RESUME in contents:
        contents[RESUME] = _sealed_resume(contents[RESUME], contents.get(NAME, b""))


def _seal_units(contents: Contents, name: str, base: int) -> None:
    column_name = name.replace("timer/", "ids/")
    column = contents.get(column_name, b"")
    count = min(len(contents[name]) // UNIT_SIZE, len(column) // UNIT_EXTRA_DISK.itemsize, PER_SEGMENT)
    units = np.frombuffer(contents[name][: count * UNIT_SIZE], UNIT)
    rows = np.frombuffer(column[: count * UNIT_EXTRA_DISK.itemsize], UNIT_EXTRA_DISK).copy()
    rows["check"] = unit_checks(units, rows, base // OPTIONS.segment_bytes * PER_SEGMENT)
    contents[column_name] = rows.tobytes() + column[count * UNIT_EXTRA_DISK.itemsize :]


def sealed_frames(content: bytes) -> bytes:
    """Return `content` with each frame's CRC recomputed."""
    data = bytearray(content)
    for at, size in frames(content):
        data[at + 4 : at + 8] = zlib.crc32(data[at + 8 : at + size]).to_bytes(4, "big")
    return bytes(data)


def sealed_frame(content: bytes) -> bytes:
    """Return `content` as one frame, with its CRC recomputed."""
    if len(content) < HEAD_SIZE:
        return content
    checked = b"\1" + content[9:]
    return struct.pack(">II", len(content), zlib.crc32(checked)) + checked


def _sealed_slots(content: bytes) -> bytes:
    slots = np.frombuffer(content[: len(content) // SLOT.itemsize * SLOT.itemsize], SLOT).copy()
    slots["magic"] = slot_checks(slots)
    return slots.tobytes() + content[slots.nbytes :]


def sealed_text(text: bytes) -> bytes:
    """Return a checkpoint with this text."""
    return b"%08x\n%s" % (zlib.crc32(text), text)


def _sealed_resume(content: bytes, checkpoint: bytes) -> bytes:
    found = Checkpoint.from_bytes(checkpoint)
    line, _, rest = content.partition(b"\n")
    try:
        head = json.loads(line)
        head["checkpoint"] = zlib.crc32(found.to_bytes() if found else b"")
        content = json.dumps(head).encode() + b"\n" + rest
    except (ValueError, TypeError, RecursionError):
        pass  # it is hostile enough
    return content[:-4] + zlib.crc32(content[:-4]).to_bytes(4, "big")


def seeds() -> Iterator[bytes]:
    """Return inputs: no edit; each kind of edit in each file; extreme numbers in each field of a first record."""
    yield bytes([0])
    names = sorted(sound())
    for flags in (SEALED, SEALED | AS_CLOSED):
        yield bytes([flags])
        for which in range(len(names)):
            for what in (_BYTE, _CUT, _MORE, _REMOVE, _COPY):
                yield bytes([flags]) + EDIT.pack(what, which, 40, 3)
            for place in range(20):
                yield bytes([flags]) + EDIT.pack(_FIELD, which, place, -1 if place % 2 else 1 << 40)
