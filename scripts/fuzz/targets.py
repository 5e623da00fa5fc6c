"""Targets: decoders of untrusted bytes. Each takes any bytes. An error that it does not expect is a finding.

store        a store's folder, edited (scripts.fuzz.store_mutator): verified, inspected, opened and emptied
checkpoint   the same with any text as its checkpoint
frame        a frame of the body log, and the headers in it
journal      records of the journal, one per line, and the decisions that they make together
progress     metadata of a committed offset
headers      a request's headers, in all spellings
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from bridge.partition.recover import read_checkpoint
from kafka_timer.headers import CONTROL, MAX_INT64, Claim, Schedule
from schemas.journal import END, CopyInFlight, Decisions, JournalRecord, Wait
from schemas.profiles import PROFILES, read
from schemas.progress import NOTHING_SETTLED, ForeignProgressError, Key, Progress
from schemas.rules import Rules
from scripts.fuzz.store_mutator import (
    OPTIONS,
    START_MS,
    Contents,
    disk_of,
    edited,
    frames,
    sealed_frame,
    sealed_text,
    seeds,
    sound,
)
from timer.engines import open_store
from timer.errors import CorruptStoreError, WheelFullError
from timer.format.body import pack_headers, peek, unpack, unpack_headers
from timer.format.checkpoint import CLOSED, NAME
from timer.stopped_store import NoStoreError, StoppedStore, verify
from timer.store import Store
from timer.testing import SimDisk

RULES = Rules(max_delay_ms=86_400_000, roll_window_ms=3_600_000, profiles=("native", *PROFILES))


class Target(NamedTuple):
    """A decoder. `check` raises on a finding. `seeds`: the first inputs."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def _store(data: bytes) -> None:
    _look_into(edited(data))


def _checkpoint(text: bytes) -> None:
    sealed = sealed_text(text)
    _look_into({**sound(), NAME: sealed, CLOSED: sealed})


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
        _live_on(disk_of(contents))


def _live_on(disk: SimDisk) -> None:
    found = read_checkpoint(disk)
    if found is None or found.tick_ms != OPTIONS.tick_ms:  # the bridge rebuilds a store of another tick
        return
    store = open_store(disk, OPTIONS, found, found.progress, found.held, found.ended_flights, found.waits)
    try:
        store.queries.due_ranges()
        store.queries.find([b"id-1", b"id-13"])
        _list(store)
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


def _list(store: Store) -> None:
    following: int | None = 0
    while following is not None:
        rows, following = store.queries.list_pending(following)
        for at in range(len(rows)):
            store.queries.peek(rows[at : at + 1])


def _frame(data: bytes) -> None:
    with suppress(CorruptStoreError):
        peek(data, 0)
    with suppress(CorruptStoreError):
        unpack(data, 0)
    with suppress(CorruptStoreError):
        unpack_headers(unpack(sealed_frame(data), 0).headers)


def _frames() -> Iterable[bytes]:
    for name, content in sound().items():
        if name.startswith("body/"):
            yield from (content[at : at + size] for at, size in frames(content))


def _journal(data: bytes) -> None:
    with suppress(ValueError):
        records = [JournalRecord.from_bytes(line) for line in data.split(b"\n")]
        _tell(records)


def _tell(records: list[JournalRecord]) -> None:
    decisions = Decisions(records, known=5)
    for offset in (0, 3, MAX_INT64):
        decisions.rules_from(offset)


def _journals() -> Iterable[bytes]:
    flight = CopyInFlight(3, 1, START_MS, "orders", "0a", "0b")
    wait = Wait("orders", is_paused=True, stretches=((Key(1, 2), Key(3, 4)), (Key(5, 6), END)))
    first = JournalRecord(from_offset=0, next_offset=5, rules=RULES, refused=(1,), ended=(2,), rolled=(flight,))
    more = JournalRecord(
        from_offset=5,
        next_offset=9,
        rules=RULES,
        landed=((3, 1),),
        dropped=(4,),
        held=(5,),
        released=(5,),
        waits=(wait,),
    )
    again = JournalRecord(from_offset=2, next_offset=4, rules=RULES, held=(1,))
    yield from (b"\n".join(record.to_bytes() for record in some) for some in ((first,), (first, more), (more, again)))


def _progress(data: bytes) -> None:
    with suppress(ForeignProgressError):
        progress = Progress.committed(7, data[:4096].decode("utf-8", "replace"))
        Progress.committed(7, progress.metadata())


def _progresses() -> Iterable[bytes]:
    yield Progress(7, NOTHING_SETTLED, 0).metadata().encode()
    yield Progress(7, Key(START_MS, 3), 2, 99).metadata().encode()


def _headers(data: bytes) -> None:
    """Parse headers, one per line: name, `=`, value; without `=`: null. The first line is the key, if any."""
    key, *lines = data.split(b"\n")
    headers = [_header(*line.partition(b"=")) for line in lines]
    asked = read(headers, START_MS, RULES, key or None, None if len(data) % 2 else b"value")
    match asked:
        case Schedule(target=target, due_ms=due_ms) | Claim(schedule=Schedule(target=target, due_ms=due_ms)):
            assert target.isascii()
            assert due_ms >= 0
    encoded, _ = pack_headers(headers)
    assert unpack_headers(encoded) == headers


def _header(name: bytes, parting: bytes, value: bytes) -> tuple[str, bytes | None]:
    return name.decode("utf-8", "replace"), value if parting else None


def _header_sets() -> Iterable[bytes]:
    values = (b"5", b"orders", b"cancel", b"2026-12-24T18:00:00Z", b"99999999999999999999", b"", b"-1", b"a+b")
    for profile in PROFILES.values():
        for value in values:
            yield b"key\n" + b"\n".join(name.encode() + b"=" + value for name in sorted(profile.control))
    for value in values:
        for name in sorted(CONTROL):
            yield b"\ntimer-topic=orders\ntimer-delay-ms=5\n" + name.encode() + b"=" + value


def _checkpoints() -> Iterable[bytes]:
    yield sound()[NAME].partition(b"\n")[2]


TARGETS = {
    "store": Target(_store, seeds),
    "checkpoint": Target(_checkpoint, _checkpoints),
    "frame": Target(_frame, _frames),
    "journal": Target(_journal, _journals),
    "progress": Target(_progress, _progresses),
    "headers": Target(_headers, _header_sets),
}
