"""The store: this version writes the golden files byte by byte, and reads what was written into them.

The bytes are also decoded by the layouts of docs/formats.md, written down here a second time.
"""

import json
import struct
import zlib

import numpy as np
import pytest

from integration_tests.golden import FOLDER, samples, store
from integration_tests.golden.store import ENDED_FLIGHT, FLIGHT, START_MS, timer
from schemas.journal import END, Wait
from schemas.progress import Key, Progress
from timer.engines import open_store
from timer.format.body import Body, unpack
from timer.format.checkpoint import FORMAT, Checkpoint
from timer.stopped_store import StoppedStore, verify
from timer.testing import SimDisk
from timer.wheel import shutdown_snapshot as resume
from timer.wheel.timer_wheel import Wheel, used_extents

STORES = sorted(path.name for path in (FOLDER / "formats").glob("store.v*"))
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
UNITS = GOLDEN["timer/00000000000000000000"], GOLDEN["timer/00000000000000000480"]
IDS = GOLDEN["ids/00000000000000000000"] + GOLDEN["ids/00000000000000000480"]
BODIES = {name: data for name, data in GOLDEN.items() if name.startswith("body/")}


def test_the_newest_golden_store_is_of_the_format_of_this_version() -> None:
    assert samples.STORE == NEWEST
    assert NEWEST in STORES


def test_the_store_has_the_golden_files() -> None:
    assert store.files().keys() == files_of(NEWEST).keys()


@pytest.mark.parametrize("file", files_of(NEWEST))
def test_a_store_that_is_written_now_is_the_golden_one(file: str) -> None:
    """If this fails, the store's format has changed: docs/formats.md, "Golden files"."""
    assert store.files()[file] == files_of(NEWEST)[file]


# -- store.v4 as the product reads it


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


# -- store.v4 by docs/formats.md


NORMAL, ROLL, DELETE, UNCHAINED = 1, 2, 4, 8
ORDERS_HASH, BILLS_HASH = 6_173_568_572_622_929_741, 4_560_462_517_347_399_328
"""BLAKE2b, 8 bytes, without the first bit."""
ORDERS, BILLS = (struct.unpack(">i", struct.pack(">q", full)[4:])[0] for full in (ORDERS_HASH, BILLS_HASH))
FIRST_FILE = [
    # size, previous, magic, written, delay, body, body size, topic hash, origin
    (52, -1, NORMAL, START_MS, 500, 0, 107, ORDERS, 0),
    (52, 0, NORMAL, START_MS + 1, 899, 107, 158, ORDERS, 1),
    (52, -1, NORMAL, START_MS + 2, 1298, 265, 107, ORDERS, 2),
    (52, 104, NORMAL, START_MS + 3, 1697, 372, 158, ORDERS, 3),
    (52, -1, NORMAL, START_MS + 4, 2096, 530, 107, ORDERS, 4),
    (52, 208, NORMAL, START_MS + 5, 2495, 637, 158, ORDERS, 5),
    (52, 260, NORMAL, START_MS + 6, 2894, 795, 107, ORDERS, 6),
    (52, -1, NORMAL, START_MS + 7, 3293, 902, 158, ORDERS, 7),
]
SECOND_FILE = [
    (52, 364, NORMAL, START_MS + 8, 3692, 1060, 107, ORDERS, 8),
    (52, -1, ROLL, START_MS + 9, 7991, 1167, 149, ORDERS, 9),
    (52, 480, NORMAL, START_MS + 10, 2990, 1316, 102, ORDERS, 1),
    (52, -1, ROLL | UNCHAINED, START_MS + 11, 989, 1418, 147, ORDERS, 11),
    (52, -1, ROLL | UNCHAINED, START_MS + 12, 988, 1565, 110, ORDERS, 12),
    (52, 156, DELETE, START_MS + 1700, 0, 156, 0, ORDERS, 3),
    (52, -1, DELETE | UNCHAINED, START_MS + 1000, 0, 688, 0, ORDERS, 12),
    (52, 312, NORMAL, START_MS + 15, 1985, 1675, 160, BILLS, 15),
]


@pytest.mark.parametrize(("data", "units"), [(UNITS[0], FIRST_FILE), (UNITS[1], SECOND_FILE)])
def test_version_4_timer_log(data: bytes, units: list[tuple[int, ...]]) -> None:
    assert list(struct.iter_unpack(">iqiqiqiiq", data[: 8 * 52])) == units
    assert struct.unpack(">iqI", data[8 * 52 :]) == (64, 0, 0xCBD43194)


ID_HASHES = {
    0: -6326473542593359136,
    5: -3346593455419342739,
    9: 0,
    10: 5129409393778478112,
    13: 0,
    15: 3208228764853704649,
}
"""BLAKE2b, 8 bytes, of id-0, id-5, none, id-10, of a delete marker, and id-15."""
DUES = [*range(500, 4000, 400), 90_000, 3000, 60_000, 61_000, -START_MS, -START_MS, 2000]


def test_version_4_ids() -> None:
    rows = list(struct.iter_unpack(">qqiI", IDS))
    assert {number: rows[number][0] for number in ID_HASHES} == ID_HASHES
    assert [row[1] - START_MS for row in rows] == DUES
    for number, (unit, row) in enumerate(zip([*FIRST_FILE, *SECOND_FILE], rows, strict=True)):
        is_marker = bool(unit[2] & DELETE)
        assert row[2] == (0 if is_marker else (BILLS_HASH if unit[7] == BILLS else ORDERS_HASH) >> 32)
        checked = unit if is_marker else (*unit[:5], 0, *unit[6:])
        assert row[3] == zlib.crc32(struct.pack(">iqiqiqiiqqqiq", *checked, *row[:3], number))


def test_version_4_body_log() -> None:
    """The frames of the timer at offset 5, with all headers, and of that at offset 11, without key and value."""
    for position, expected in ((637, LIVE[1]), (1418, LIVE[-1])):
        base = max(int(name.removeprefix("body/")) for name in BODIES if int(name.removeprefix("body/")) <= position)
        data = BODIES[f"body/{base:020d}"][position - base :]
        size, crc = struct.unpack_from(">II", data)
        assert zlib.crc32(data[8:size]) == crc
        assert decoded(data[:size]) == expected == unpack(data[:size], position)


def decoded(frame: bytes) -> Body:
    fields = struct.unpack_from(">BBHiqqqqiiiH", frame, 8)
    version, flags, target_size, partition, offset, timestamp_ms, due_ms, origin, rolls, *sizes = fields
    assert version == 1
    parts, at = [], 62
    for size in (target_size, sizes[2], sizes[0], sizes[1]):
        parts.append(frame[at : at + size])
        at += size
    target, id_, key, value = parts
    return Body(
        target=target.decode(),
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        due_ms=due_ms,
        key=None if flags & 1 else key,
        value=None if flags & 2 else value,
        headers=frame[at:],
        plain=bool(flags & 4),
        origin_offset=origin,
        rolls=rolls,
        id=id_ if flags & 8 else None,
    )


def test_version_4_headers_of_a_frame() -> None:
    trace = struct.pack(">Hi", 5, 2) + b"trace\x00\xff"
    none = struct.pack(">Hi", 4, -1) + b"none"
    topic, key = struct.pack(">Hi", 11, 6) + b"timer-topicorders", struct.pack(">Hi", 9, 13) + b"timer-keydelivered key"
    assert LIVE[1].headers == topic + trace + key + none


def test_version_4_checks_of_the_wheel() -> None:
    for at in range(16):
        *words, check = struct.unpack_from(">8I", GOLDEN["wheel"], 32 * at)
        assert check == sum(word * 0x9E3779B1**i for i, word in enumerate(words, 1)) % 2**32


def test_version_4_resume() -> None:
    head, _, rest = GOLDEN["resume"].partition(b"\n")
    told = json.loads(head)
    assert told["checkpoint"] == zlib.crc32(GOLDEN["checkpoint"])
    assert told["wheel"] == zlib.crc32(GOLDEN["wheel"])
    assert told["topics"] == [
        [ORDERS_HASH, "orders", None, START_MS + 90_000],
        [BILLS_HASH, "bills", START_MS + 2000, START_MS + 2000],
    ]
    assert list(told["arrays"].items()) == [
        ("id_hashes", [1024]),
        ("id_units", [1024]),
        ("ended", [2]),
        ("live_units", [2, 5]),
        ("live_bodies", [3, 5]),
        ("due_hours", [2, 3]),
        ("elsewhere", [1, 2]),
        ("held", [1]),
    ]
    ended = np.frombuffer(rest, np.int64, 2, offset=2 * 1024 * 8)
    assert ended.tolist() == [3, 12]
    assert int.from_bytes(GOLDEN["resume"][-4:], "big") == zlib.crc32(GOLDEN["resume"][:-4])
