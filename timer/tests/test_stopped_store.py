"""Tests of the offline store: it shows what is pending at the checkpoint, and changes nothing."""

import random
from collections import Counter
from pathlib import Path

import pytest

from timer.disk import Disk, ReadOnlyDisk, RealDisk
from timer.engines import wipe
from timer.errors import CorruptStoreError
from timer.format.checkpoint import NAME
from timer.stopped_store import EmptyStoreError, NoStoreError, StoppedStore, read_checkpoint
from timer.testing import SimDisk
from timer.tests.history import OPTIONS, START_MS, History, full_history


@pytest.fixture(params=["simulated", "real", "rocksdb"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The engine is the wheel but for `rocksdb`."""
    if request.param == "rocksdb":
        monkeypatch.setattr(History, "engine", "rocksdb")
    return SimDisk(random.Random(0)) if request.param == "simulated" else RealDisk(tmp_path)


def stopped(disk: Disk, tmp_path: Path) -> StoppedStore:
    """The store on `disk`, opened so that nothing can be written."""
    return StoppedStore(disk if isinstance(disk, SimDisk) else ReadOnlyDisk(tmp_path))


def contents(disk: Disk, tmp_path: Path) -> dict[str, bytes]:
    if isinstance(disk, SimDisk):
        return disk.contents()
    return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_the_offline_store_lists_what_the_store_would_release(disk: Disk, tmp_path: Path) -> None:
    history = full_history(disk)
    history.closes()
    before = contents(disk, tmp_path)
    with stopped(disk, tmp_path) as store:
        seen = store.soonest(1000)
        assert store.soonest(5) == seen[:5]
        assert len(seen) == store.checkpoint.pending
        ticks, held = dict(store.ticks(1000)), set(store.checkpoint.held)
        assert store.closed
    assert contents(disk, tmp_path) == before

    history.starts_again()
    due = history.store.release_queue.take_due(START_MS + 10**6, 1000, 1 << 20)
    released = history.store.queries.bodies(due.rows) + history.store.queries.bodies(due.released)
    assert [timer.body for timer in seen if timer.body.origin_offset not in held] == released[: len(due.rows)]
    assert Counter(timer.body for timer in seen) == Counter(released)
    assert ticks == Counter(timer.visit_ms // OPTIONS.tick_ms * OPTIONS.tick_ms for timer in seen)
    assert {timer.body.origin_offset for timer in seen} >= held != set()


def test_a_timer_is_found_by_its_id_until_it_ends(disk: Disk, tmp_path: Path) -> None:
    history = History(disk)
    history.receives(1000, 2000, 3000, 4000, 5000, 6000, 7000)
    history.cancels(2)
    history.releases(2000)
    history.closes()
    with stopped(disk, tmp_path) as store:
        found = {
            origin: [timer.body.origin_offset for timer in store.with_id(b"id-%d" % origin)]
            for origin in (1, 2, 3, 5, 99)
        }
    assert found == {1: [], 2: [], 3: [3], 5: [5], 99: []}


def test_units_after_the_checkpoint_are_not_shown(disk: Disk, tmp_path: Path) -> None:
    history = History(disk)
    history.receives(*range(1000, 1020))
    history.checkpoints()
    history.receives(*range(1020, 1040))
    history.cancels(3, 5)
    history.releases(1010)
    before = contents(disk, tmp_path)
    with stopped(disk, tmp_path) as store:
        assert [unit for rows in store.live() for unit in rows["unit"].tolist()] == list(range(20)), "the log's order"
        assert [timer.body.origin_offset for timer in store.soonest(100)] == list(range(20))
        assert not store.closed
        sizes = store.files()
    assert contents(disk, tmp_path) == before
    in_use = ("rocksdb/open-",)
    assert sizes == {
        name: len(content) for name, content in before.items() if "/" in name and not name.startswith(in_use)
    }


def test_a_store_without_a_first_checkpoint(disk: Disk, tmp_path: Path) -> None:
    wipe(disk)
    with pytest.raises(EmptyStoreError, match="no checkpoint was written yet"):
        stopped(disk, tmp_path)


def test_a_folder_without_a_store_and_a_damaged_checkpoint() -> None:
    with pytest.raises(NoStoreError, match="no checkpoint, so this is no store"):
        read_checkpoint(SimDisk())
    for damaged in (b"noise", b"00000000\n{}", b"\n"):
        disk = SimDisk()
        disk.start_replace(NAME, damaged).wait()
        with pytest.raises(CorruptStoreError, match="checkpoint"):
            read_checkpoint(disk)
