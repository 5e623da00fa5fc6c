"""Inputs that the fuzzer found once, and a run of each target. The search itself: `make fuzz`."""

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from schemas.progress import ForeignProgressError, Progress
from scripts.fuzz.store_mutator import (
    AS_CLOSED,
    OPTIONS,
    PER_SEGMENT,
    SEALED,
    Contents,
    disk_of,
    edited,
    seal,
    sealed_frame,
    sound,
)
from scripts.fuzz.targets import TARGETS
from timer.engines import open_store
from timer.errors import CorruptStoreError
from timer.format.body import HEAD_SIZE, unpack, unpack_headers
from timer.format.checkpoint import NAME, Checkpoint
from timer.format.unit import MAGIC_DELETE, UNIT_SIZE
from timer.index.pending_index import EndedUnits, LiveCounts
from timer.stopped_store import StoppedStore, verify
from timer.store import Store
from timer.wheel.pending_units import LiveScan
from timer.wheel.shutdown_snapshot import RESUME
from timer.wheel.stopped import WheelRows


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "store"])
def test_the_seeds_of_a_target_are_no_finding(target: str) -> None:
    for seed in TARGETS[target].seeds():
        TARGETS[target].check(seed)


def test_some_seeds_of_the_store_are_no_finding() -> None:
    for seed in islice(TARGETS["store"].seeds(), 0, None, 25):
        TARGETS["store"].check(seed)


def test_a_store_that_is_sealed_again_is_the_store_that_it_was() -> None:
    contents = edited(bytes([SEALED | AS_CLOSED]))
    assert contents == sound()
    seen = verify(disk_of(contents))
    assert (seen.fault, seen.closed) == (None, True)


def told(**fields: Any) -> Contents:
    """Return a sound store with these fields in its checkpoint."""
    contents = dict(sound())
    text = json.loads(contents[NAME].partition(b"\n")[2])
    contents[NAME] = b"\n" + json.dumps({**text, **fields}).encode()
    seal(contents, as_closed=True)
    return contents


@pytest.mark.parametrize(
    "fields",
    [
        {"segments": [[0, 1 << 40]]},
        {"segments": [[3, 2]]},
        {"segments": [[2, 3], [0, 1]]},
        {"bodies": [5, 5]},
        {"bodies": [-7]},
        {"tick_ms": 0},
        {"slots": 0},
        {"segment_bytes": 10},
        {"held": [1 << 70]},
        {"units_end": -1},
        {"low_unit": 1 << 70},
        {"progress": [1, [1 << 64, 0], 0, 0]},
    ],
)
def test_a_checkpoint_that_no_bridge_writes_is_none_though_its_checksum_fits(fields: dict[str, Any]) -> None:
    contents = told(**fields)
    assert Checkpoint.from_bytes(contents[NAME]) is None
    fault = verify(disk_of(contents)).fault
    assert fault is not None
    assert fault.file == NAME


def test_a_checkpoint_that_tells_of_a_wheel_larger_than_any_costs_no_memory() -> None:
    fault = verify(disk_of(told(slots=1 << 40))).fault
    assert fault is not None
    assert (fault.file, fault.what.split()[1]) == (NAME, "slots,")


@pytest.mark.parametrize(
    "metadata", ["[" * 4000, '{"v":1,"k":[1e999,0],"l":0}', '{"v":1,"k":[1,2],"l":99999999999999999999}']
)
def test_metadata_that_no_bridge_wrote_is_foreign(metadata: str) -> None:
    with pytest.raises(ForeignProgressError):
        Progress.committed(7, metadata)


def with_head(change: Callable[[bytearray], None]) -> bytes:
    """A frame with its check, its head changed before."""
    frame = bytearray(next(iter(TARGETS["frame"].seeds())))
    change(frame)
    return sealed_frame(bytes(frame))


def _wrong_name(frame: bytearray) -> None:
    frame[HEAD_SIZE] = 0xFF


def _negative_key(frame: bytearray) -> None:
    frame[52] = 0xFF


def _beyond_its_end(frame: bytearray) -> None:
    frame[57] = 0xFF


@pytest.mark.parametrize("change", [_wrong_name, _negative_key, _beyond_its_end])
def test_a_frame_whose_parts_cannot_be_is_corrupt_though_its_checksum_fits(change: Callable[[bytearray], None]) -> None:
    with pytest.raises(CorruptStoreError):
        unpack(with_head(change), 0)


@pytest.mark.parametrize("encoded", [b"\0", b"\0\1\0\0\0\1\xff\0", b"\0\1\0\0\0\5ab", b"\0\7\xff\xff\xff\xffab"])
def test_bytes_that_are_no_headers_are_corrupt(encoded: bytes) -> None:
    with pytest.raises(CorruptStoreError):
        unpack_headers(encoded)


def _unit(contents: Contents, magic: int) -> tuple[str, int]:
    """The file and place of a unit with `magic` in the newest file that has one."""
    for name in sorted(contents, reverse=True):
        if name.startswith("timer/"):
            for at in range(0, min(len(contents[name]) // UNIT_SIZE, PER_SEGMENT) * UNIT_SIZE, UNIT_SIZE):
                if contents[name][at + 15] & magic:
                    return name, at
    raise AssertionError("there is none")


def changed_unit(magic: int, at: int, data: bytes) -> Contents:
    """A sound store that was killed, but for some bytes of a unit."""
    contents = dict(sound())
    name, begin = _unit(contents, magic)
    content = contents[name]
    contents[name] = content[: begin + at] + data + content[begin + at + len(data) :]
    seal(contents, as_closed=False)
    del contents["closed"]
    return contents


def scan(contents: Contents) -> EndedUnits:
    ended = EndedUnits(PER_SEGMENT)
    with StoppedStore(disk_of(contents)) as store:
        nobody = np.empty(0, np.int64)
        told = store.checkpoint
        assert isinstance(store.rows, WheelRows)
        LiveScan(store.rows.units, told, told.progress.settled, nobody, nobody, {}).mark(ended, LiveCounts())
    return ended


@pytest.mark.parametrize("at", [16, 24, 28, 36, 44])
def test_a_unit_with_a_negative_field_is_corrupt_though_its_check_fits(at: int) -> None:
    with pytest.raises(CorruptStoreError):
        scan(changed_unit(1, at, b"\xff"))


def test_a_unit_that_is_to_be_visited_beyond_all_times_is_corrupt() -> None:
    with pytest.raises(CorruptStoreError):
        scan(changed_unit(1, 16, b"\x7f" + 7 * b"\xff"))


def test_a_marker_for_a_unit_that_is_not_there_costs_no_memory() -> None:
    with pytest.raises(CorruptStoreError):
        scan(changed_unit(MAGIC_DELETE, 28, (1024 << 30).to_bytes(8, "big")))


def resumed(change: Callable[[dict[str, Any]], None]) -> Store:
    """Change the `resume` of a cleanly closed store, and open it."""
    contents = dict(sound())
    line, _, rest = contents[RESUME].partition(b"\n")
    head = json.loads(line)
    change(head)
    contents[RESUME] = json.dumps(head).encode() + b"\n" + rest
    seal(contents, as_closed=True)
    found = Checkpoint.from_bytes(contents[NAME])
    assert found is not None
    return open_store(disk_of(contents), OPTIONS, found, found.progress, found.held, (), found.waits)


def _without_topics(head: dict[str, Any]) -> None:
    head["topics"] = []


def _negative_shape(head: dict[str, Any]) -> None:
    head["arrays"]["ended"] = [-1]


def _other_shape(head: dict[str, Any]) -> None:
    head["arrays"]["id_hashes"], head["arrays"]["id_units"] = [1000], [1048]


def _no_arrays(head: dict[str, Any]) -> None:
    del head["arrays"]


@pytest.mark.parametrize("change", [_without_topics, _negative_shape, _other_shape, _no_arrays])
def test_an_impossible_snapshot_is_rebuilt_from_the_log(change: Callable[[dict[str, Any]], None]) -> None:
    store = resumed(change)
    assert store.pending == sum(store.queries.pending_by_topic().values()) > 20
    store.close()
