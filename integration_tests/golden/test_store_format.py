"""The store: this version writes the golden files byte by byte, and reads what was written into them."""

import zlib

from integration_tests.golden import FOLDER, samples, store
from integration_tests.golden.store import ENDED_FLIGHT, FLIGHT, START_MS, timer
from schemas.journal import END, Wait
from schemas.progress import Key, Progress
from timer.engines import open_store
from timer.format.checkpoint import FORMAT, Checkpoint
from timer.stopped_store import StoppedStore, verify
from timer.testing import SimDisk
from timer.wheel import shutdown_snapshot as resume
from timer.wheel.timer_wheel import Wheel, used_extents

NEWEST = f"store.v{FORMAT}"


def files_of(name: str) -> dict[str, bytes]:
    folder = FOLDER / "formats" / name
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def disk_of(name: str) -> SimDisk:
    disk = SimDisk()
    for path, data in files_of(name).items():
        disk.start_replace(path, data).wait()
    return disk


GOLDEN = files_of("store.v4")


def test_a_store_that_is_written_now_is_the_golden_one() -> None:
    """If this fails, the store's format has changed: docs/formats.md, "Golden files"."""
    assert samples.STORE == NEWEST
    assert store.files() == files_of(NEWEST)


def test_version_4_verify_finds_no_fault() -> None:
    seen = verify(disk_of("store.v4"))
    assert (seen.fault, seen.closed, seen.live) == (None, True, 9)


def test_version_4_checkpoint() -> None:
    assert GOLDEN["closed"] == GOLDEN["checkpoint"]
    assert Checkpoint.from_bytes(GOLDEN["checkpoint"]) == Checkpoint(
        format=4,
        progress=Progress(16, Key(START_MS + 1300, 2), low_offset=4, number=7, era=START_MS - 5),
        segment_bytes=480,
        tick_ms=1000,
        slots=16,
        units_end=16,
        body_end=1835,
        low_unit=4,
        segments=((0, 1),),
        bodies=(0, 1167, 1675),
        pending=9,
        held=(11,),
        waits=(Wait("bills", is_paused=True, stretches=((Key(START_MS + 1300, 2), END),)),),
        flights=(FLIGHT, ENDED_FLIGHT),
        ended_flights=(2,),
        journal_offset=21,
    )


VISITS = {4: 2100, 5: 2500, 6: 2900, 7: 3300, 8: 3700, 9: 8000, 1: 3000, 15: 2000, 11: 1000}
"""Wake-up time of each pending timer by origin, in the order of the log."""
LIVE = [
    *(timer(offset, 500 + 400 * offset) for offset in range(4, 9)),
    timer(9, 90_000, key=None, id=None),
    timer(10, 3000, origin=1, rolls=1, value=None),
    timer(15, 2000, target="bills"),
    timer(11, 60_000, key=None, value=None),
]


def test_version_4_live_timers_and_bodies() -> None:
    with StoppedStore(disk_of("store.v4")) as stopped:
        found = [found for rows in stopped.live() for found in stopped.timers(rows)]
        (with_id,) = stopped.with_id(b"id-5")
    assert {timer.body.origin_offset: timer.visit_ms - START_MS for timer in found} == VISITS
    assert [timer.body for timer in found] == LIVE
    assert with_id.body == LIVE[1]


def test_version_4_resume_and_wheel_are_taken_over() -> None:
    disk = disk_of("store.v4")
    told = Checkpoint.from_bytes(GOLDEN["checkpoint"])
    assert told is not None
    state = resume.read(disk, told)
    assert state is not None
    assert state.is_possible(told)
    assert state.ended.tolist() == [3, 12]
    assert (state.held["origin"].tolist(), state.held["visit_ms"].tolist()) == ([11], [START_MS + 1000])
    assert sorted(unit - 1 for unit in state.id_units.tolist() if unit > 0) == [4, 5, 6, 7, 8, 10, 11, 15]
    opened = open_store(disk, store.OPTIONS, told, told.progress, told.held, (), told.waits)
    assert opened.pending == 9
    assert opened.queries.pending_by_topic() == {"orders": 8, "bills": 1}
    assert {
        id_: rows["origin"].tolist() for id_, rows in opened.queries.find([b"id-4", b"id-3", b"id-11"]).items()
    } == {
        b"id-4": [4],
        b"id-11": [11],
    }
    due = opened.release_queue.take_due(START_MS + 2500, 100, 1 << 20)
    assert due.rows["origin"].tolist() == [4, 5]
    opened.close()


def test_version_4_wheel() -> None:
    disk = SimDisk()
    disk.start_replace("wheel", GOLDEN["wheel"]).wait()
    used = used_extents(disk, 16)
    assert used is not None
    extents, crc = used
    assert crc == zlib.crc32(GOLDEN["wheel"])
    wheel = Wheel(disk.map("wheel", len(GOLDEN["wheel"])), tick_ms=1000, slots=16)
    wheel.allocate(extents)
    found = {time: wheel.slot(1_700_000_000 + time) for time in range(16)}
    assert {time: slot for time, slot in found.items() if slot != (-1, -1, 0)} == {
        2: (208, 844, 4),
        3: (364, 584, 3),
        8: (532, 532, 1),
    }
