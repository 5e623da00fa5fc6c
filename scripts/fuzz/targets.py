"""Targets of the fuzzer: decoders of untrusted bytes. An error that a target does not expect is a finding.

store        a store's folder, edited: verified, inspected, opened and emptied
checkpoint   the same with any text as its checkpoint
frame        a frame of the body log, and the headers in it
journal      records of the journal, one per line, and the decisions that they make together
progress     metadata of a committed offset

An input of `store` edits a valid store. All checksums are 0 (`without_checksums`), so that the fuzzer need not find one
by chance.

    flags 1 | edits, 12 bytes each: file 1, size 1, place 2, value 8
    flags     AS_CLOSED: the store counts as closed in the state of its checkpoint
    size      0: the file is removed, 1 to 8: so many bytes of the value are written at the place, more: it is cut there
"""

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import NamedTuple
from unittest import mock

import numpy as np

from bridge.partition.recover import read_checkpoint
from kafka_timer.headers import MAX_INT64
from schemas.journal import END, CopyInFlight, Decisions, JournalRecord, Wait
from schemas.profiles import PROFILES
from schemas.progress import NOTHING_SETTLED, ForeignProgressError, Key, Progress
from schemas.rules import Rules
from timer.engines import create_store, open_store
from timer.errors import CorruptStoreError, WheelFullError
from timer.format.batch import Batch
from timer.format.body import HEAD_SIZE, Body, pack_headers, peek, unpack, unpack_headers
from timer.format.checkpoint import CLOSED, NAME
from timer.options import StoreOptions
from timer.stopped_store import NoStoreError, StoppedStore, verify
from timer.testing import SimDisk

START_MS = 1_700_000_000_000
OPTIONS = StoreOptions(tick_ms=1000, slots=256, segment_bytes=1024)
AS_CLOSED = 1
EDIT = struct.Struct(">BBHq")
RULES = Rules(max_delay_ms=86_400_000, roll_window_ms=3_600_000, profiles=("native", *PROFILES), passed_on=frozenset())
Contents = dict[str, bytes]


class Target(NamedTuple):
    """A decoder. `check` raises on a finding. `seeds`: the first inputs."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def without_checksums() -> ExitStack:
    """Return a context in which every checksum of a store is 0. All stores of the targets are made and read in it."""
    stack = ExitStack()
    stack.enter_context(mock.patch("zlib.crc32", lambda *_: 0))  # noqa: PT008  (a MagicMock takes time)
    # `stopped_store` first: it must not be imported while the function that it takes over is replaced.
    for name in ("stopped_store.slot_checks", "wheel.timer_wheel.slot_checks", "wheel.timer_log.unit_checks"):
        stack.enter_context(mock.patch(f"timer.{name}", lambda rows, *_: np.zeros(len(rows), np.uint32)))
    return stack


# -- a valid store, and edits of it


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

    def receive(first: int, *visits: tuple[int, int]) -> None:
        batch = Batch()
        for offset, (visit, due) in enumerate(visits, first):
            place = batch.add if (START_MS + visit, offset) > store.release_queue.settled else batch.hold
            place(_body(offset, START_MS + due), START_MS + visit)
        store.add(batch, first + len(visits))

    receive(0, *((due, due) for due in range(0, 9000, 300)))
    store.release_queue.take_due(START_MS + 1500, 100, 1 << 20)
    receive(30, (9000, 90_000), (500, 100_000), (4000, 4000))
    ended = Batch()
    for row in store.queries.find([b"id-10", b"id-11", b"id-20"]).values():
        ended.end(row)
    store.add(ended, 33)
    store.release_queue.pause("bills", is_paused=True)
    store.committed(store.advance_progress())
    store.start_checkpoint(0, (), ())
    store.finish_checkpoint()
    store.close()
    return {name: content for name, content in disk.contents().items() if content}


def disk_of(contents: Contents) -> SimDisk:
    disk = SimDisk()
    for name, content in contents.items():
        disk.start_replace(name, content).wait()
    return disk


def edited(data: bytes) -> Contents:
    contents, names, flags = dict(sound()), sorted(sound()), data[0] if data else 0
    for at in range(1, len(data) - EDIT.size + 1, EDIT.size):
        which, size, place, value = EDIT.unpack_from(data, at)
        content = contents.pop(name := names[which % len(names)], b"")
        if size:
            at_byte = place % (len(content) + 1)
            after = value.to_bytes(8, "big", signed=True)[8 - size :] + content[at_byte + size :] if size <= 8 else b""
            contents[name] = content[:at_byte] + after
    return as_closed(contents) if flags & AS_CLOSED else contents


def as_closed(contents: Contents) -> Contents:
    return contents | ({CLOSED: contents[NAME]} if NAME in contents else {})


def frames(content: bytes) -> Iterator[bytes]:
    """Return each frame, and then the rest that has no valid size."""
    while len(content) >= HEAD_SIZE <= (size := int.from_bytes(content[:4], "big")) <= len(content):
        yield content[:size]
        content = content[size:]
    yield content


def _store_seeds() -> Iterator[bytes]:
    """Return no edit, and for each file: without it, cut, and with extreme numbers at many places."""
    for flags in (0, AS_CLOSED):
        yield bytes([flags])
        for which in range(len(sound())):
            edits = [(0, 0, 0), (9, 40, 0)]
            edits += [(size, place, value) for size in (1, 8) for place in range(0, 64, 4) for value in (-1, 1 << 40)]
            yield from (bytes([flags]) + EDIT.pack(which, *edit) for edit in edits)


# -- the checks


def _look_into(contents: Contents) -> None:
    """Read the store as `verify`, `inspect` and a starting bridge do."""
    with suppress(NoStoreError):
        verify(disk_of(contents))
    with suppress(NoStoreError, CorruptStoreError), StoppedStore(disk_of(contents)) as stopped:
        stopped.soonest(10)
        stopped.ticks(10)
        stopped.dues()
        stopped.with_id(b"id-1")
    with suppress(CorruptStoreError, WheelFullError):
        _empty(disk_of(contents))


def _empty(disk: SimDisk) -> None:
    found = read_checkpoint(disk)
    if found is None or found.tick_ms != OPTIONS.tick_ms:  # the bridge rebuilds a store of another tick
        return
    store = open_store(disk, OPTIONS, found, found.progress, found.held, found.ended_flights, found.waits)
    try:
        store.queries.due_ranges()
        store.queries.find([b"id-1", b"id-13"])
        following: int | None = 0
        while following is not None:
            rows, following = store.queries.list_pending(following)
            for at in range(len(rows)):
                store.queries.peek(rows[at : at + 1])
        for target in store.release_queue.paused():
            store.release_queue.pause(target, is_paused=False)
        for now_ms in (START_MS + 3000, START_MS + 50_000, START_MS + 86_400_000):
            for part in store.release_queue.take_due(now_ms, 1000, 1 << 20):
                store.queries.bodies(part)
            store.committed(store.advance_progress())
            store.compact_some()
            if store.start_checkpoint(0, (), ()):
                store.finish_checkpoint()
    finally:
        store.close()


def _frame(data: bytes) -> None:
    after_head = struct.pack(">II", len(data), 0) + b"\1" + data[9:]
    checks = (lambda: peek(data, 0), lambda: unpack(data, 0), lambda: unpack_headers(unpack(after_head, 0).headers))
    for check in checks:
        with suppress(CorruptStoreError):
            check()


def _journal(data: bytes) -> None:
    with suppress(ValueError):
        decisions = Decisions([JournalRecord.from_bytes(line) for line in data.split(b"\n")], known=5)
        for offset in (0, 3, MAX_INT64):
            decisions.rules_from(offset)


def _journal_seeds() -> Iterator[bytes]:
    flight = CopyInFlight(3, 1, START_MS, "orders", "0a", "0b")
    wait = Wait("orders", is_paused=True, stretches=((Key(1, 2), Key(3, 4)), (Key(5, 6), END)))
    first = JournalRecord(from_offset=0, next_offset=5, rules=RULES, refused=(1,), ended=(2,), rolled=(flight,))
    ends = {"landed": ((3, 1),), "dropped": (4,), "held": (5,), "released": (5,), "waits": (wait,)}
    more = JournalRecord(from_offset=5, next_offset=9, rules=RULES, **ends)
    again = JournalRecord(from_offset=2, next_offset=4, rules=RULES, held=(1,))
    yield from (b"\n".join(record.to_bytes() for record in some) for some in ((first,), (first, more), (more, again)))


def _progress(data: bytes) -> None:
    with suppress(ForeignProgressError):
        Progress.committed(7, Progress.committed(7, data[:4096].decode("utf-8", "replace")).metadata())


TARGETS = {
    "store": Target(lambda data: _look_into(edited(data)), _store_seeds),
    "checkpoint": Target(
        lambda text: _look_into(as_closed(sound() | {NAME: b"%08x\n%s" % (0, text)})),
        lambda: iter([sound()[NAME].partition(b"\n")[2]]),
    ),
    "frame": Target(_frame, lambda: (frame for n in sound() if n.startswith("body/") for frame in frames(sound()[n]))),
    "journal": Target(_journal, _journal_seeds),
    "progress": Target(_progress, lambda: (p.metadata().encode() for p in (Progress(7, Key(START_MS, 3), 2, 99),))),
}
