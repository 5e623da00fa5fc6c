"""Tests of `verify`: it finds a flipped byte anywhere and records that contradict each other, and nothing else."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from timer.disk import Disk, ReadOnlyDisk
from timer.format.batch import Batch
from timer.format.checkpoint import NAME, Checkpoint
from timer.format.unit import UNIT, UNIT_EXTRA_DISK, UNIT_SIZE, unit_checks
from timer.stopped_store import NoStoreError, StoppedStore, StoreFault, verify
from timer.testing import SimDisk
from timer.tests.history import OPTIONS, PER_SEGMENT, START_MS, History, full_history
from timer.tests.test_store import StoreAgainstList, stopped
from timer.wheel.timer_wheel import SLOT, SLOT_SIZE, slot_checks

IDS_SIZE = UNIT_EXTRA_DISK.itemsize
BODY_FIELD = range(28, 36)
"""Bytes of the body position in a unit."""


@pytest.fixture(scope="module")
def closed() -> SimDisk:
    """A store that was closed cleanly. Tests must not change it."""
    disk = SimDisk(random.Random(0))
    full_history(disk).closes()
    return disk


def flipped(disk: SimDisk, name: str, at: int, change: int) -> SimDisk:
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
    assert (seen.fault, seen.closed) == (None, True)
    with StoppedStore(closed) as store:
        assert seen.live == store.checkpoint.pending > 40
        assert len(store.checkpoint.held) == 1
    assert int(closed.names("timer")[0]) > 0, "files of settled timers are deleted"
    assert closed.contents() == before


# -- a flipped byte


def needed_bytes(disk: SimDisk) -> dict[str, list[int]]:
    """Return the bytes that a reader needs by file: not frames and body positions of timers that are not pending."""
    with StoppedStore(disk) as store:
        places = np.concatenate(list(store.live()))[["body", "body_size"]].tolist()
    frames = {at for begin, size in places for at in range(begin, begin + size)}
    needed = {}
    for name, content in disk.contents().items():
        folder, _, first = name.partition("/")
        needed[name] = list(range(len(content)))
        if folder == "body":
            needed[name] = [at for at in needed[name] if int(first) + at in frames]
        if folder == "timer":
            units = needed[name][: PER_SEGMENT * UNIT_SIZE]  # without the blank record
            needed[name] = [at for at in units if at % UNIT_SIZE not in BODY_FIELD]
    return needed


def test_a_flipped_byte_anywhere_is_found_with_its_record(closed: SimDisk) -> None:
    rng = random.Random(0)
    record_size = {"timer": UNIT_SIZE, "ids": IDS_SIZE, "wheel": SLOT_SIZE}
    for name, needed in needed_bytes(closed).items():
        folder = name.partition("/")[0]
        for at in rng.sample(needed, min(3, len(needed))):
            found = fault_of(flipped(closed, name, at, rng.randint(1, 255)))
            if folder in record_size:
                begin = at // record_size[folder] * (SLOT_SIZE if folder == "wheel" else UNIT_SIZE)
                assert (found.file, found.at) == (name.replace("ids/", "timer/"), begin)
            else:
                assert found.file == name or folder == "body"  # then it is the unit of the frame


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


# -- records with matching checks and impossible contents


def rewrite_unit(disk: SimDisk, number: int, **fields: int) -> tuple[str, int]:
    """Change a unit together with its check, as a mistake of the bridge would; return its file and position."""
    segment, within = divmod(number, PER_SEGMENT)
    base = f"{segment * OPTIONS.segment_bytes:020d}"
    units, ids = disk.open(f"timer/{base}"), disk.open(f"ids/{base}")
    unit = np.frombuffer(units.read(within * UNIT_SIZE, UNIT_SIZE), UNIT).copy()
    extra = np.frombuffer(ids.read(within * IDS_SIZE, IDS_SIZE), UNIT_EXTRA_DISK).copy()
    for field, value in fields.items():
        (unit if field in (UNIT.names or ()) else extra)[field] = value
    extra["check"] = unit_checks(unit, extra, number)
    units.overwrite(within * UNIT_SIZE, unit.tobytes())
    ids.overwrite(within * IDS_SIZE, extra.tobytes())
    return f"timer/{base}", within * UNIT_SIZE


def three_in_a_tick() -> tuple[SimDisk, History]:
    """Return a store with units 0, 1, 2 in one tick, 3 and 4 in another; not closed yet."""
    disk = SimDisk(random.Random(0))
    history = History(disk)
    history.receives(5000, 5001, 5002, 6000, 6001)
    history.checkpoints()
    return disk, history


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (1, "origin", 7),
        (1, "topic_hash", 7),
        (1, "topic_high", 7),
        (1, "id_hash", 7),
        (1, "due_ms", 7),
        (1, "delay_ms", -1),
        (1, "body_size", 70),
        (1, "body", 0),
        (1, "body", 10**9),
        (1, "size", 53),
    ],
)
def test_a_unit_that_contradicts_its_frame(number: int, field: str, value: int) -> None:
    disk, history = three_in_a_tick()
    history.store.close()
    name, at = rewrite_unit(disk, number, **{field: value})
    found = fault_of(disk)
    assert (found.file, found.at) == (name, at)


@pytest.mark.parametrize("body_at", [8 * UNIT_SIZE, 1])
def test_a_delete_mark_of_no_unit(body_at: int) -> None:
    disk, history = three_in_a_tick()
    history.cancels(1)
    history.closes()
    rewrite_unit(disk, 5, body=body_at)
    assert fault_of(disk).file.startswith("timer")


@pytest.mark.parametrize(
    ("field", "value"), [("num", 2), ("num", 4), ("time", (START_MS + 5000) // OPTIONS.tick_ms + OPTIONS.slots)]
)
@pytest.mark.parametrize("slot", [0, 2])
def test_a_slot_that_contradicts_the_log(slot: int, field: str, value: int) -> None:
    """The slot of units 0, 1 and 2, and an empty one, which may have any time."""
    disk, history = three_in_a_tick()
    history.store.close()
    slot += (START_MS + 5000) // OPTIONS.tick_ms % OPTIONS.slots
    file = disk.open("wheel")
    found = np.frombuffer(file.read(slot * SLOT_SIZE, SLOT_SIZE), SLOT).copy()
    is_free = field == "time" and not found["num"][0]
    found[field] = value
    found["magic"] = slot_checks(found)
    file.overwrite(slot * SLOT_SIZE, found.tobytes())
    fault = verify(disk).fault
    assert (fault and (fault.file, fault.at)) == ("wheel", None if is_free else slot * SLOT_SIZE)


def test_a_checkpoint_with_another_count(closed: SimDisk) -> None:
    disk = closed.copy()
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    disk.start_replace(NAME, found.model_copy(update={"pending": found.pending + 1}).to_bytes()).wait()
    assert "live units, the checkpoint counts" in fault_of(disk).what


# -- files


def test_a_file_that_is_missing_or_empty(closed: SimDisk) -> None:
    for name in closed.contents():
        if "/" in name:
            disk = closed.copy()
            disk.remove(name)
            assert fault_of(disk).file.startswith(("timer", "ids", "body"))
            disk = closed.copy()
            disk.open(name).truncate(0)
            assert fault_of(disk).file.startswith(("timer", "ids", "body"))


# -- stores that were not closed cleanly


def test_a_killed_store_has_no_fault() -> None:
    """Also if the kill has torn a frame after the checkpoint."""
    disk = SimDisk()
    history = History(disk, replace(OPTIONS, segment_bytes=4000))
    history.receives(5000, 6000)
    history.checkpoints()
    history.receives(7000)
    history.releases(5001)
    disk.kill()
    disk = disk.reopen()
    (name,) = disk.names("body")
    torn = disk.open(f"body/{name}")
    torn.truncate(torn.size() - 1)
    seen = verify(disk)
    assert (seen.fault, seen.closed, seen.live) == (None, False, 2)
    history.disk = disk.copy()
    history.starts_again()
    assert verify(history.disk).fault is None
    torn.truncate(10)
    assert "no frame for it" in fault_of(disk).what


@pytest.mark.parametrize("wheel", ["deleted", "older", "newer", "another size"])
def test_an_outdated_wheel_is_rebuilt_at_start(wheel: str) -> None:
    disk, history = three_in_a_tick()
    older = disk.read("wheel") or b""
    history.receives(7000)
    history.releases(5000)
    history.closes()
    history.starts_again()
    history.receives(8000)
    newer = disk.read("wheel") or b""
    history.store.close()
    content = {"deleted": b"", "older": older, "newer": newer, "another size": bytes(64)}[wheel]
    disk.start_replace("wheel", content).wait()
    seen = verify(disk)
    assert (seen.fault, seen.closed) == (None, False)
    history.starts_again()
    history.closes()
    assert (verify(disk).fault, verify(disk).closed) == (None, True)
    disk.start_replace("wheel", content).wait()
    assert fault_of(disk).file == "wheel"
    history.starts_again()
    history.closes()
    assert verify(disk).fault is None, "after a clean stop, too"


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
    due = history.store.release_queue.take_due(START_MS + 5002, 100, 1 << 20)
    assert due.total == 2 + 12 - len(ended)


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
        stopped(self.store)
        seen = verify(self.disk)
        assert (seen.fault, seen.closed) == (None, True)


TestStoreIsSound = pytest.mark.thorough(StoreIsSound.TestCase)
TestStoreIsSound.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
