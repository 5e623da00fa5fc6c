"""A store that is opened with other ticks or slots than it was written with (case 12): nothing is lost."""

import random
from dataclasses import replace

import numpy as np
import pytest

from timer.checkpoint import NAME, Checkpoint
from timer.disk import Disk
from timer.errors import WheelFullError
from timer.inspection import StoppedStore
from timer.options import StoreOptions
from timer.test_verification import OPTIONS, START_MS, History, full_history
from timer.testing import Crash, Fuse, SimDisk
from timer.verification import verify


def live(disk: Disk) -> list[tuple[int, int]]:
    """(visit, origin) of what lives."""
    with StoppedStore(disk) as store:
        rows = np.concatenate(list(store.live()))
    return sorted(zip(rows["visit_ms"].tolist(), rows["origin"].tolist(), strict=True))


def left(history: History, held: int) -> list[tuple[int, int]]:
    """(visit, origin) of all that leaves, by and by; `held` of them beside the order."""
    found: list[tuple[int, int]] = []
    beside: list[tuple[int, int]] = []
    for now in range(0, 120_000, 500):
        while (due := history.store.due(START_MS + now, 7, 1 << 20)).total:
            found += zip(due.rows["visit_ms"].tolist(), due.rows["origin"].tolist(), strict=True)
            beside += zip(due.released["visit_ms"].tolist(), due.released["origin"].tolist(), strict=True)
            assert [body.origin for body in history.store.bodies(due.rows)] == due.rows["origin"].tolist()
    assert found == sorted(found)
    assert len(beside) == held
    return sorted(found + beside)


@pytest.mark.parametrize("tick_ms", [1, 7, 250, 999, 1001, 2000, 60_000])
def test_case_12_a_changed_tick_leaves_a_sound_store_from_which_all_leaves_in_order(tick_ms: int) -> None:
    disk = SimDisk(random.Random(0))
    history = full_history(disk)
    history.closes()
    expected = live(disk)
    assert len(expected) > 40
    history.starts_again(StoreOptions(tick_ms=tick_ms, slots=200_000 // tick_ms, segment_bytes=400, compact_below=0.0))
    assert history.store.pending == len(expected)
    seen = verify(disk.copy())
    assert (seen.fault, seen.live) == (None, len(expected))
    history.receives(5000, 7300, 9000)
    history.closes()
    seen = verify(disk)
    assert (seen.fault, seen.notes, seen.closed) == (None, [], True)
    expected = live(disk)
    history.starts_again()
    assert left(history, held=1) == expected


def test_case_12_the_files_of_the_old_ticks_go() -> None:
    disk = SimDisk(random.Random(0))
    history = full_history(disk)
    history.closes()
    old = disk.names("timer")
    history.starts_again(replace(OPTIONS, tick_ms=70, slots=2000))
    assert set(old[:-1]).isdisjoint(disk.names("timer"))
    assert len(disk.names("timer")) == len(disk.names("ids")) <= len(old) + 1


def test_case_12_a_store_in_which_nothing_lives() -> None:
    disk = SimDisk(random.Random(0))
    history = History(disk)
    history.receives(*[1000] * 6)  # fills a file
    history.releases(1000)
    history.closes()
    for tick_ms in (10, 1000, 70):
        history.starts_again(replace(OPTIONS, tick_ms=tick_ms))
        assert history.store.pending == 0
        history.receives(5000)
        history.checkpoints()
        history.cancels(history.offset - 1)
        history.releases(5000)
        history.closes()
        assert verify(disk).fault is None


@pytest.mark.parametrize("death", ["kill", "power"])
def test_case_12_a_crash_in_the_middle_leaves_the_old_store_or_the_new_one(death: str) -> None:
    disk = SimDisk(random.Random(0))
    full_history(disk).closes()
    expected = live(disk)
    options = replace(OPTIONS, tick_ms=70, slots=2000)
    found = set()
    for steps in range(1, 1000, 5):
        fuse = Fuse()
        fuse.arm(steps)
        twin = SimDisk.copy(disk, fuse)
        history = History.__new__(History)
        history.disk, history.options = twin, options
        try:
            history.starts_again()
        except Crash:
            pass
        else:
            break
        if death == "power":
            twin.lose_power(random.Random(steps))
        history.disk = twin.reopen()
        assert verify(history.disk).fault is None
        assert live(history.disk) == expected
        told = Checkpoint.from_bytes(history.disk.read(NAME) or b"")
        assert told is not None
        found.add(told.tick_ms)
        history.starts_again()
        assert left(history, held=1) == expected
    assert found == {OPTIONS.tick_ms, options.tick_ms}


def test_case_12_fewer_slots_than_the_timers_span_are_refused_and_nothing_is_lost() -> None:
    disk = SimDisk(random.Random(0))
    history = full_history(disk)
    history.closes()
    expected = live(disk)
    for tick_ms in (OPTIONS.tick_ms, 70):
        with pytest.raises(WheelFullError):
            history.starts_again(replace(OPTIONS, tick_ms=tick_ms, slots=5))
    history.starts_again(replace(OPTIONS, slots=100))
    assert left(history, held=1) == expected
