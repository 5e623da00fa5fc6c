"""Tests of `verify`: it finds a flipped byte anywhere and records that contradict each other, and nothing else."""

import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from schemas.progress import NOTHING_SETTLED, Progress
from timer.errors import CorruptStoreError
from timer.files.disk import Disk, RealDisk
from timer.files.read_only_disk import ReadOnlyDisk
from timer.files.wheel import SLOT, SLOT_SIZE, slot_checks
from timer.format.batch import Batch
from timer.format.body import HEAD, Body, pack_headers
from timer.format.checkpoint import CLOSED, NAME, Checkpoint
from timer.format.checksum import UNIT_EXTRA_DISK, unit_checks
from timer.format.unit import BLANK, BLANK_SIZE, MAGIC_DELETE, MAGIC_ROLL, MAGIC_UNCHAINED, UNIT, UNIT_SIZE, Rows
from timer.inspect.offline_store import NoStoreError, StoppedStore
from timer.inspect.verify import StoreFault, verify
from timer.options import StoreOptions
from timer.store import Store
from timer.testing import SimDisk
from timer.tests.test_store import StoreAgainstList

OPTIONS = StoreOptions(tick_ms=1000, slots=64, segment_bytes=400, compact_below=0.0)
PER_SEGMENT = (OPTIONS.segment_bytes - BLANK_SIZE) // UNIT_SIZE
START_MS = 1_700_000_000_000
FRESH = Progress(0, NOTHING_SETTLED, 0)


def id_of(offset: int) -> bytes | None:
    return b"id-%d" % offset if offset % 4 else None


def body(offset: int, due_ms: int, *, origin: int | None = None, rolls: int = 0) -> Body:
    """Return a body; key, value and headers vary with the offset."""
    headers, plain = pack_headers([("timer-topic", b"orders"), ("trace", None)][: 1 + offset % 2])
    key = None if offset % 5 == 0 else b"key-%d" % offset
    value = None if offset % 7 == 0 else b"v" * (offset % 30)
    origin = offset if origin is None else origin
    id_ = id_of(origin)
    return Body("orders", offset % 3 - 1, offset, START_MS, due_ms, key, value, headers, plain, origin, rolls, id_)


class History:
    """A store, and methods that drive it. Times are ms after START_MS."""

    def __init__(self, disk: Disk, options: StoreOptions = OPTIONS) -> None:
        self.disk = disk
        self.options = options
        self.store = Store.create(disk, options, FRESH)
        self.offset = 0

    def receives(self, *dues: int, visit: int | None = None, origin: int | None = None) -> None:
        batch = Batch()
        for due in dues:
            visit_ms = START_MS + (due if visit is None else visit)
            timer = body(self.offset, START_MS + due, origin=origin, rolls=0 if origin is None else 1)
            place = batch.add if (visit_ms, timer.origin) > self.store.settled else batch.hold
            place(timer, visit_ms)
            self.offset += 1
        self.store.add(batch, self.offset)

    def cancels(self, *origins: int) -> None:
        batch = Batch()
        for row in self.store.find([id_ for origin in origins if (id_ := id_of(origin))]).values():
            batch.end(row)
        self.offset += 1
        self.store.add(batch, self.offset)

    def releases(self, now: int, limit: int = 1000) -> None:
        self.store.due(START_MS + now, limit, 1 << 20)

    def checkpoints(self) -> None:
        self.store.committed(self.store.progress())
        if self.store.start_checkpoint(0, (), ()):
            self.store.finish_checkpoint()

    def closes(self) -> None:
        self.checkpoints()
        self.store.close()

    def starts_again(self, options: StoreOptions | None = None) -> None:
        found = Checkpoint.from_bytes(self.disk.read(NAME) or b"")
        assert found is not None
        self.options = options or self.options
        self.store = Store.open(self.disk, self.options, found, found.progress, found.held, ())
        self.offset = found.progress.next_offset


def full_history(disk: Disk) -> History:
    """Return a history with every kind of unit; some files are deleted."""
    history = History(disk)
    for due in range(0, 3000, 100):
        history.receives(due)
    history.receives(*(5000 + 300 * i for i in range(30)))
    history.releases(2450)
    history.checkpoints()
    history.receives(90_000, 95_000, visit=9000)  # to be rolled
    history.receives(7000, origin=3)  # a copy
    history.receives(100_000, visit=2000)  # key has passed, not due: out of order
    history.receives(101_000, visit=2001)
    history.cancels(33, 41, 42, 63)  # the last one is out of order
    history.receives(5200, 6200, 7300)
    history.cancels(34)
    history.checkpoints()
    history.starts_again()
    history.receives(*(8000 + i for i in range(9)))
    return history


@pytest.fixture(scope="module")
def closed() -> SimDisk:
    """A store that was closed cleanly. Tests must not change it."""
    disk = SimDisk(random.Random(0))
    full_history(disk).closes()
    return disk


def flipped(disk: SimDisk, name: str, at: int, change: int = 0x40) -> SimDisk:
    """Return a copy of `disk` with one changed byte."""
    twin = disk.copy()
    file = twin.open(name)
    file.overwrite(at, bytes([file.read(at, 1)[0] ^ change]))
    return twin


def fault_of(disk: Disk) -> StoreFault:
    found = verify(disk).fault
    assert found is not None, "nothing was found"
    return found


def test_a_sound_store_has_no_fault(closed: SimDisk) -> None:
    before = closed.contents()
    seen = verify(closed)
    assert (seen.fault, seen.notes, seen.closed) == (None, [], True)
    with StoppedStore(closed) as store:
        assert seen.live == store.checkpoint.pending > 40
        assert len(store.checkpoint.held) == 1
    assert seen.markers >= 4
    assert closed.contents() == before


def test_the_history_has_every_kind_of_unit_and_file(closed: SimDisk) -> None:
    assert {"normal", "roll", "held", "settled", "ended", "marker", "unchained marker"} == set(units_by_kind(closed))
    assert int(closed.names("timer")[0]) > 0, "files of settled timers are deleted"
    assert len(closed.names("timer")) > 4
    assert len(closed.names("body")) > 4


# -- a flipped byte in each field of each file


def units_by_kind(disk: SimDisk) -> dict[str, tuple[str, int]]:
    """Return the file and position of the first unit of each kind."""
    with StoppedStore(disk) as store:
        rows = np.concatenate(list(store.live()))
        live, held, settled = set(rows["unit"].tolist()), set(store.checkpoint.held), store.checkpoint.progress.settled
    found: dict[str, tuple[str, int]] = {}
    for name in disk.names("timer"):
        data = disk.read(f"timer/{name}") or b""
        units = np.frombuffer(data[: len(data) // UNIT_SIZE * UNIT_SIZE], UNIT)
        for at, unit in enumerate(units):
            number = int(name) // OPTIONS.segment_bytes * PER_SEGMENT + at
            visit_ms = int(unit["written_ms"]) + int(unit["delay_ms"])
            if unit["magic"] & MAGIC_DELETE:
                kind = "unchained marker" if unit["magic"] & MAGIC_UNCHAINED else "marker"
            elif number not in live:
                kind = "settled" if (visit_ms, int(unit["origin"])) <= settled else "ended"
            elif int(unit["origin"]) in held:
                kind = "held"
            else:
                kind = "roll" if unit["magic"] & MAGIC_ROLL else "normal"
            found.setdefault(kind, (f"timer/{name}", at * UNIT_SIZE))
    return found


def place_of(dtype: np.dtype[Any], field: str) -> range:
    """Return the bytes of a field within its record."""
    assert dtype.fields is not None
    kind, at = dtype.fields[field][:2]
    return range(at, at + kind.itemsize)


KINDS = ("normal", "roll", "held", "settled", "ended", "marker", "unchained marker")
HARMLESS = (("settled", "body"), ("ended", "body"))
"""Body positions of timers that are not pending: never read."""


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind in KINDS for field in UNIT.names or () if (kind, field) not in HARMLESS],
)
def test_a_flipped_byte_in_a_field_of_a_unit(closed: SimDisk, kind: str, field: str) -> None:
    name, at = units_by_kind(closed)[kind]
    for within in place_of(UNIT, field):
        found = fault_of(flipped(closed, name, at + within))
        assert (found.file, found.at) == (name, at)


@pytest.mark.parametrize("field", UNIT_EXTRA_DISK.names or ())
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_in_the_ids_file(closed: SimDisk, kind: str, field: str) -> None:
    unit_name, unit_at = units_by_kind(closed)[kind]
    name, at = unit_name.replace("timer/", "ids/"), unit_at // UNIT_SIZE * UNIT_EXTRA_DISK.itemsize
    for within in place_of(UNIT_EXTRA_DISK, field):
        found = fault_of(flipped(closed, name, at + within))
        assert (found.file, found.at) == (unit_name, unit_at)


@pytest.mark.parametrize("field", BLANK.names or ())
def test_a_flipped_byte_in_a_blank_record(closed: SimDisk, field: str) -> None:
    name, at = f"timer/{closed.names('timer')[0]}", PER_SEGMENT * UNIT_SIZE
    for within in place_of(BLANK, field):
        found = fault_of(flipped(closed, name, at + within))
        assert (found.file, found.at) == (name, at)


def frames(disk: SimDisk) -> Iterator[tuple[str, int, bytes]]:
    """Yield (file, position, frame) of all frames."""
    for name in disk.names("body"):
        data, at = disk.read(f"body/{name}") or b"", 0
        while at < len(data):
            size = HEAD.unpack_from(data, at)[0]
            yield f"body/{name}", at, data[at : at + size]
            at += size


@pytest.mark.thorough
def test_a_flipped_byte_in_a_frame(closed: SimDisk) -> None:
    for name, at, frame in frames(closed):
        for within in range(len(frame)):
            found = fault_of(flipped(closed, name, at + within))
            assert (found.file, found.at) == (name, at)


@pytest.mark.parametrize("field", SLOT.names or ())
@pytest.mark.parametrize("life", ["closed", "killed"])
def test_a_flipped_byte_in_a_slot_of_the_wheel(closed: SimDisk, field: str, life: str) -> None:
    slots = np.frombuffer(closed.read("wheel") or b"", SLOT)
    disk = closed.copy()
    if life == "killed":
        disk.remove(CLOSED)
    for slot in np.flatnonzero(slots["num"] > 0).tolist():
        for within in place_of(SLOT, field):
            found = fault_of(flipped(disk, "wheel", slot * SLOT_SIZE + within))
            assert (found.file, found.at) == ("wheel", slot * SLOT_SIZE)


@pytest.mark.parametrize("name", [NAME, CLOSED])
def test_a_flipped_byte_in_the_checkpoint_and_in_its_copy(closed: SimDisk, name: str) -> None:
    for at in range(len(closed.read(name) or b"")):
        assert fault_of(flipped(closed, name, at)).file == name


def test_a_real_folder_is_verified_like_a_simulated_one(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    full_history(disk).closes()
    disk.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    seen = verify(ReadOnlyDisk(tmp_path))
    assert (seen.fault, seen.notes, seen.closed) == (None, [], True)
    for path in before:
        damaged = bytearray(before[path])
        damaged[len(damaged) // 3] ^= 0x10
        path.write_bytes(damaged)
        name = str(path.relative_to(tmp_path)).replace("ids/", "timer/")
        assert fault_of(ReadOnlyDisk(tmp_path)).file == name
        path.write_bytes(before[path])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_read_only_disk_refuses_writes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    disk = ReadOnlyDisk(tmp_path)
    file = disk.open("a")
    refused: list[Callable[[], object]] = [
        lambda: file.append(b"d"),
        lambda: file.overwrite(0, b"d"),
        lambda: file.truncate(0),
        lambda: disk.map("a", 3),
        lambda: disk.remove("a"),
        lambda: disk.start_sync([file]),
        lambda: disk.start_replace("a", b"d"),
    ]
    for attempt in refused:
        with pytest.raises(PermissionError):
            attempt()
    with pytest.raises(FileNotFoundError):
        disk.open("b")
    assert (file.read(1, 9), file.size(), disk.read("b"), disk.names("b")) == (b"bc", 3, None, [])
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# -- a flipped byte anywhere, after any history


def any_history(disk: SimDisk, rng: random.Random) -> History:
    history = History(disk, StoreOptions(tick_ms=rng.choice((100, 1000)), slots=512, segment_bytes=400))
    now = 0
    for _ in range(rng.randint(2, 8)):
        history.receives(*(max(0, now + rng.randint(-400, 9000)) for _ in range(rng.randint(0, 12)) if now))
        history.receives(*(now + rng.randint(0, 9000) for _ in range(rng.randint(1, 12))))
        if rng.random() < 0.5:
            history.receives(now + 60_000, visit=now + rng.randint(1, 3000))
        if rng.random() < 0.7:
            history.cancels(*(rng.randrange(history.offset) for _ in range(5)))
        now += rng.randint(0, 3000)
        history.releases(now, rng.randint(1, 20))
        history.checkpoints()
        if rng.random() < 0.3:
            history.starts_again()
    return history


def is_harmless(disk: SimDisk, name: str, at: int) -> bool:
    """True if the byte may change without harm: see docs/formats.md."""
    folder, _, file = name.partition("/")
    with StoppedStore(disk) as store:
        checkpoint = store.checkpoint
        live = {unit for rows in store.live() for unit in rows["unit"].tolist()}
    if folder == "body":
        return int(file) + at >= checkpoint.body_end
    if folder not in ("timer", "ids"):
        return False
    segment = int(file) // checkpoint.segment_bytes
    within = at // (UNIT_SIZE if folder == "timer" else UNIT_EXTRA_DISK.itemsize)
    number = segment * PER_SEGMENT + within
    if number > checkpoint.units_end or (number == checkpoint.units_end and within < PER_SEGMENT):
        return True  # after the checkpoint; the blank record belongs to the unit before it
    if within == PER_SEGMENT:
        return False
    unit = np.frombuffer(disk.open(name).read(within * UNIT_SIZE, UNIT_SIZE), UNIT) if folder == "timer" else None
    is_dead = unit is not None and number not in live and not unit["magic"][0] & MAGIC_DELETE
    return is_dead and at % UNIT_SIZE in place_of(UNIT, "body")


@given(
    st.integers(0, 2**32),
    st.sampled_from(["closed", "killed"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_anywhere_is_found(seed: int, life: str, part: float, change: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    disk = SimDisk(rng)
    history = any_history(disk, rng)
    if life == "killed":
        history.receives(20_000, 21_000)
        disk.kill()
        disk = disk.reopen()
    else:
        history.closes()
    assert verify(disk).fault is None
    sizes = {name: len(content) for name, content in disk.contents().items() if content}
    name = data.draw(st.sampled_from(sorted(sizes)))
    at = int(part * sizes[name])
    if not is_harmless(disk, name, at):
        assert fault_of(flipped(disk, name, at, change)).file == name.replace("ids/", "timer/")


# -- records with matching checks and impossible contents


def rewrite_unit(disk: SimDisk, number: int, **fields: int) -> tuple[str, int]:
    """Changes a unit together with its check, as a mistake of the bridge would."""
    segment, within = divmod(number, PER_SEGMENT)
    base = f"{segment * OPTIONS.segment_bytes:020d}"
    units, ids = disk.open(f"timer/{base}"), disk.open(f"ids/{base}")
    unit = np.frombuffer(units.read(within * UNIT_SIZE, UNIT_SIZE), UNIT).copy()
    column = np.frombuffer(
        ids.read(within * UNIT_EXTRA_DISK.itemsize, UNIT_EXTRA_DISK.itemsize), UNIT_EXTRA_DISK
    ).copy()
    for field, value in fields.items():
        (column if field in ("id_hash", "due_ms") else unit)[field] = value
    column["check"] = unit_checks(unit, column, number)
    units.overwrite(within * UNIT_SIZE, unit.tobytes())
    ids.overwrite(within * UNIT_EXTRA_DISK.itemsize, column.tobytes())
    return f"timer/{base}", within * UNIT_SIZE


def rewrite_slot(disk: SimDisk, slot: int, **fields: int) -> None:
    file = disk.open("wheel")
    found = np.frombuffer(file.read(slot * SLOT_SIZE, SLOT_SIZE), SLOT).copy()
    for field, value in fields.items():
        found[field] = value
    found["magic"] = slot_checks(found)
    file.overwrite(slot * SLOT_SIZE, found.tobytes())


def three_in_a_tick(**more: Any) -> tuple[SimDisk, History]:
    """Return a store with units 0, 1, 2 in one tick, 3 and 4 in another; not closed yet."""
    disk = SimDisk(random.Random(0))
    history = History(disk, **more)
    history.receives(5000, 5001, 5002, 6000, 6001)
    history.checkpoints()
    return disk, history


FIFTH = (START_MS + 5000) // OPTIONS.tick_ms % OPTIONS.slots
"""The slot of units 0, 1 and 2."""


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (2, "previous", -1),  # the chain ends too early
        (2, "previous", 0),  # passes over unit 1
        (2, "previous", 3 * UNIT_SIZE),  # forwards
        (2, "previous", 2 * UNIT_SIZE),  # a link to itself
        (4, "previous", 2 * UNIT_SIZE),  # into another tick
        (1, "origin", 7),
        (1, "topic_hash", 7),
        (1, "written_ms", START_MS - 1),
        (1, "delay_ms", 4000),  # in the tick before, and before it is due
        (1, "delay_ms", -1),
        (1, "body_size", 70),
        (1, "body", 0),
        (1, "body", 10**9),
        (1, "magic", 16),
        (1, "size", 53),
    ],
)
def test_a_unit_that_contradicts_its_frame_or_its_chain(number: int, field: str, value: int) -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    name, at = rewrite_unit(disk, number, **{field: value})
    found = fault_of(disk)
    assert (found.file, found.at) == (name, at)


def test_a_unit_that_rolls_although_it_is_due() -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    rewrite_unit(disk, 1, magic=MAGIC_ROLL)
    assert fault_of(disk).at == UNIT_SIZE


@pytest.mark.parametrize("field", ["id_hash", "due_ms"])
def test_a_row_of_ids_that_contradicts_the_body(field: str) -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    rewrite_unit(disk, 1, **{field: 7})
    assert fault_of(disk).at == UNIT_SIZE


@pytest.mark.parametrize("field", ["body", "origin", "written_ms", "topic_hash", "body_size"])
def test_a_delete_mark_that_contradicts_the_unit_that_it_ends(field: str) -> None:
    disk, history = three_in_a_tick()
    history.cancels(1)
    history.closes()
    name, at = rewrite_unit(disk, 5, **{field: 2 * UNIT_SIZE})
    found = fault_of(disk)
    assert (found.file, found.at) == (name, at)


@pytest.mark.parametrize("body_at", [5 * UNIT_SIZE, 1])
def test_a_delete_mark_without_an_earlier_unit(body_at: int) -> None:
    disk, history = three_in_a_tick()
    history.cancels(1)
    history.closes()
    rewrite_unit(disk, 5, body=body_at)
    assert fault_of(disk).at == 5 * UNIT_SIZE


def test_two_units_swapped() -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    for folder, size in (("timer", UNIT_SIZE), ("ids", UNIT_EXTRA_DISK.itemsize)):
        file = disk.open(f"{folder}/{0:020d}")
        first, second = file.read(0, size), file.read(size, size)
        file.overwrite(0, second + first)
    assert fault_of(disk).at == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num", 2),
        ("num", 4),
        ("time", (START_MS + 5000) // OPTIONS.tick_ms + OPTIONS.slots),
        ("first", 1 * UNIT_SIZE),
        ("first", 3 * UNIT_SIZE),
        ("last", 1 * UNIT_SIZE),
        ("last", 4 * UNIT_SIZE),
        ("last", 3),
        ("last", 5 * UNIT_SIZE),  # after the log
    ],
)
def test_a_slot_that_contradicts_the_log(field: str, value: int) -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    rewrite_slot(disk, FIFTH, **{field: value})
    found = fault_of(disk)
    assert (found.file, found.at) == ("wheel", FIFTH * SLOT_SIZE)


def test_two_slots_swapped() -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    rewrite_slot(disk, FIFTH + 2, time=(START_MS + 5000) // OPTIONS.tick_ms, num=1)
    assert fault_of(disk).at == (FIFTH + 2) * SLOT_SIZE


def test_a_slot_may_begin_and_end_at_an_ended_unit() -> None:
    disk, history = three_in_a_tick()
    history.receives(5003)
    history.cancels(1)  # in the middle; its marker is the last of the chain
    history.receives(5004)
    history.releases(5000)  # the first
    history.closes()
    slot = np.frombuffer(disk.read("wheel") or b"", SLOT)[FIFTH]
    assert (int(slot["first"]), int(slot["num"])) == (0, 3)
    assert verify(disk).fault is None


def test_a_checkpoint_with_another_count(closed: SimDisk) -> None:
    disk = closed.copy()
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    disk.start_replace(NAME, found.model_copy(update={"pending": found.pending + 1}).to_bytes()).wait()
    assert "live units where the checkpoint counts" in fault_of(disk).what


# -- files


def test_a_missing_file_with_pending_timers_is_a_fault(closed: SimDisk) -> None:
    for folder in ("timer", "ids", "body"):
        for name in closed.names(folder):
            disk = closed.copy()
            disk.remove(f"{folder}/{name}")
            assert fault_of(disk).file.partition("/")[0] in (folder, "timer")


def test_a_file_that_is_too_short_or_too_long(closed: SimDisk) -> None:
    for name, content in closed.contents().items():
        if "/" in name:
            disk = closed.copy()
            disk.open(name).truncate(len(content) - 1)
            assert fault_of(disk).file == name
    first = f"timer/{closed.names('timer')[0]}"
    disk = closed.copy()
    disk.open(first).append(b"x")
    assert fault_of(disk).file == first


@pytest.mark.parametrize("name", [f"timer/{7:020d}", f"ids/{0:020d}", f"body/{1:020d}", "body/notes.txt"])
def test_a_file_outside_the_checkpoint_is_noted_and_deleted_at_the_next_start(closed: SimDisk, name: str) -> None:
    disk = closed.copy()
    disk.open(name).append(b"as it was once")
    seen = verify(disk)
    assert (seen.fault, seen.closed, len(seen.notes)) == (None, True, 1)
    assert seen.notes[0].startswith(f"{name}: not in the checkpoint")
    history = History.__new__(History)
    history.disk, history.options = disk, OPTIONS
    history.starts_again()
    assert disk.read(name) is None
    history.closes()
    assert (verify(disk).fault, verify(disk).notes) == (None, [])


def test_no_store_and_a_store_of_a_newer_version(closed: SimDisk) -> None:
    with pytest.raises(NoStoreError, match="no checkpoint"):
        verify(SimDisk())
    disk = closed.copy()
    text = (disk.read(NAME) or b"").partition(b"\n")[2].replace(b'"format":3', b'"format":4,"more":[1]')
    disk.start_replace(NAME, b"%08x\n%s" % (zlib.crc32(text), text)).wait()
    with pytest.raises(NoStoreError, match="format 4"):
        verify(disk)


# -- stores that were not closed cleanly


def test_a_killed_store_has_no_fault_and_notes_what_the_next_start_removes() -> None:
    disk, history = three_in_a_tick()
    history.receives(5003, 9000)
    history.releases(5001)
    disk.kill()
    disk = disk.reopen()
    seen = verify(disk)
    assert (seen.fault, seen.closed, seen.live) == (None, False, 5)
    assert [note.partition("/")[0].partition(":")[0] for note in seen.notes] == ["timer", "ids", "body", "wheel"]
    history.disk = disk
    history.starts_again()
    assert verify(disk).fault is None


@pytest.mark.parametrize("wheel", ["deleted", "older", "newer", "another size"])
def test_case_13_an_outdated_wheel_is_noted_and_rebuilt_at_start(wheel: str) -> None:
    disk, history = three_in_a_tick()
    older = disk.read("wheel") or b""
    history.receives(7000)
    history.releases(5000)
    history.closes()
    history.starts_again()
    history.receives(8000)
    newer = disk.read("wheel") or b""
    history.store.close()
    disk = twin_with(disk, {"deleted": None, "older": older, "newer": newer, "another size": bytes(64)}[wheel])
    seen = verify(disk)
    assert (seen.fault, seen.closed) == (None, False)
    assert any(note.startswith("wheel") for note in seen.notes)

    history.disk = disk
    history.starts_again()
    history.closes()
    assert (verify(disk).fault, verify(disk).closed) == (None, True)
    damaged = twin_with(disk, {"deleted": None, "older": older, "newer": newer, "another size": bytes(64)}[wheel])
    assert fault_of(damaged).file == "wheel"


def twin_with(disk: SimDisk, wheel: bytes | None) -> SimDisk:
    twin = disk.copy()
    twin.remove("wheel")
    if wheel is not None:
        twin.open("wheel").append(wheel)
    return twin


def test_units_in_a_pending_chain_stay_after_a_restart() -> None:
    disk = SimDisk(random.Random(0))
    history = History(disk)
    history.receives(1000, 5000)
    history.receives(*[9000] * (PER_SEGMENT - 2))
    ended = [history.offset + at for at in range(12) if (history.offset + at) % 4]
    history.receives(*[5001] * 12)  # in the middle of the chain of a tick, and of the log
    history.receives(5002)
    history.receives(*[9001] * 2 * PER_SEGMENT)
    history.cancels(*ended)
    history.releases(1000)
    history.closes()
    for _ in range(3):
        history.starts_again()
        history.receives(9002)
        history.closes()
        assert verify(disk).fault is None
    history.starts_again()
    due = history.store.due(START_MS + 5002, 100, 1 << 20)
    assert due.total == 2 + 12 - len(ended)


def test_a_compaction_leaves_no_fault_at_any_step() -> None:
    disk = SimDisk(random.Random(0))
    history = History(disk, StoreOptions(tick_ms=1000, slots=4096, segment_bytes=4000, compact_below=0.3))
    history.receives(*[2000] * 30, *[3_000_000] * 5, *[2000] * 30)
    history.checkpoints()
    history.releases(2000)
    history.receives(*[4_000_000] * 60)
    old = disk.names("body")[0]
    steps = 0
    while old in disk.names("body"):
        history.store.compact_some()
        assert verify(disk).fault is None
        history.receives(4_000_000)
        history.checkpoints()
        assert verify(disk).fault is None
        steps += 1
        assert steps < 20, "nothing was compacted"
    history.closes()
    assert (verify(disk).fault, verify(disk).closed) == (None, True)


class StoreIsSound(StoreAgainstList):
    """After each step of any history, after kills and losses of power, the files have no fault."""

    @invariant()
    def is_sound(self) -> None:
        try:
            assert verify(self.disk.copy()).fault is None
        except NoStoreError:
            assert not self.disk.read(NAME)

    def teardown(self) -> None:
        self.store.add(Batch(), self.store.next_offset + 1)
        self.store.finish_checkpoint()
        self.store.committed(self.store.progress())
        self.store.start_checkpoint(0, (), ())
        self.store.finish_checkpoint()
        self.store.close()
        seen = verify(self.disk)
        assert (seen.fault, seen.closed) == (None, True)


TestStoreIsSound = StoreIsSound.TestCase
TestStoreIsSound.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# -- checks


@given(st.integers(0, SLOT_SIZE - 5), st.integers(1, 255), st.binary(min_size=SLOT_SIZE, max_size=SLOT_SIZE))
def test_the_check_of_a_slot_covers_every_byte(at: int, change: int, data: bytes) -> None:
    damaged = bytearray(data)
    damaged[at] ^= change
    assert slot_check(data) != slot_check(bytes(damaged))


def slot_check(data: bytes) -> int:
    slots: Rows = np.frombuffer(data, SLOT)
    return int(slot_checks(slots)[0])


def test_an_unreadable_store_is_reported_with_the_place() -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    disk.open(f"body/{0:020d}").truncate(10)
    with StoppedStore(disk) as store, pytest.raises(CorruptStoreError, match="body"):
        store.soonest(5)
