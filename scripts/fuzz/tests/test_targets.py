"""Inputs that the fuzzer found once, and a run of each target. The search itself: `make fuzz`."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from scripts.fuzz.run import SHARES
from scripts.fuzz.targets import (
    AS_CLOSED,
    OPTIONS,
    TARGETS,
    Contents,
    as_closed,
    disk_of,
    edited,
    sound,
    without_checksums,
)
from timer.engines import open_store
from timer.errors import CorruptStoreError
from timer.format.body import HEAD_SIZE, unpack, unpack_headers
from timer.format.checkpoint import NAME, Checkpoint
from timer.stopped_store import verify
from timer.wheel.shutdown_snapshot import RESUME


@pytest.fixture(autouse=True)
def _without_checksums() -> Iterator[None]:
    with without_checksums():
        yield


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_no_finding(target: str) -> None:
    for seed in islice(TARGETS[target].seeds(), 0, None, 41 if target == "store" else 1):
        TARGETS[target].check(seed)


def test_each_target_has_a_share_of_the_time() -> None:
    assert SHARES.keys() == TARGETS.keys()


def test_a_store_without_edits_is_sound() -> None:
    contents = edited(bytes([AS_CLOSED]))
    assert contents == sound()
    assert verify(disk_of(contents)).closed


def with_json(file: str, **fields: Any) -> Contents:
    """Return a closed store with these fields in the JSON of a file; a value of None removes the field."""
    contents = dict(sound())
    line = {NAME: 1, RESUME: 0}[file]
    lines = contents[file].split(b"\n", 1)
    changed = {**json.loads(lines[line]), **fields}
    lines[line] = json.dumps({name: value for name, value in changed.items() if value is not None}).encode()
    contents[file] = b"\n".join(lines)
    return as_closed(contents)


IMPOSSIBLE = [
    *({"segments": places} for places in ([[0, 1 << 40]], [[3, 2]], [[2, 3], [0, 1]])),
    *({"bodies": places} for places in ([5, 5], [-7])),
    *({name: 0} for name in ("tick_ms", "slots")),
    *({"segment_bytes": 10}, {"held": [1 << 70]}, {"units_end": -1}, {"low_unit": 1 << 70}, {"slots": 1 << 40}),
    {"progress": [1, [1 << 64, 0], 0, 0]},
]


@pytest.mark.parametrize("fields", IMPOSSIBLE)
def test_an_impossible_checkpoint_is_a_fault_of_its_file(fields: dict[str, Any]) -> None:
    fault = verify(disk_of(with_json(NAME, **fields))).fault
    assert fault is not None
    assert fault.file == NAME


@pytest.mark.parametrize("at", [HEAD_SIZE, 52, 57], ids=["name", "key's size", "end"])
def test_a_frame_with_impossible_parts_is_corrupt_though_its_checksum_fits(at: int) -> None:
    frame = next(iter(TARGETS["frame"].seeds()))
    with pytest.raises(CorruptStoreError):
        unpack(frame[:at] + b"\xff" + frame[at + 1 :], 0)


@pytest.mark.parametrize("encoded", [b"\0", b"\0\1\0\0\0\1\xff\0", b"\0\1\0\0\0\5ab", b"\0\7\xff\xff\xff\xffab"])
def test_bytes_that_are_no_headers_are_corrupt(encoded: bytes) -> None:
    with pytest.raises(CorruptStoreError):
        unpack_headers(encoded)


@pytest.mark.parametrize("fields", [{"topics": []}, {"arrays": None}, {"arrays": {"ended": [-1]}}])
def test_an_impossible_snapshot_is_rebuilt_from_the_log(fields: dict[str, Any]) -> None:
    contents = with_json(RESUME, **fields)
    found = Checkpoint.from_bytes(contents[NAME])
    assert found is not None
    store = open_store(disk_of(contents), OPTIONS, found, found.progress, found.held, (), found.waits)
    assert store.pending == sum(store.queries.dues.counts().values()) > 20
    store.close()
