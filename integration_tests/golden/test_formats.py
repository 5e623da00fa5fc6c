"""This version writes the golden bytes of each format, and reads in every golden file what was written into it.

formats/journal.v1.jsonl    written now == file    else the format has changed: give it a new version
                            file read now == SEEN  else this version misreads what an older one wrote

A file of an older version stays in SEEN for as long as its version must be read.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bridge.partition.copies import CopiesInFlight
from bridge.ports import Record
from bridge.redrive.rules import Parked, parked
from integration_tests.golden import FOLDER, make, samples
from integration_tests.golden.records import objects, raw, records_in
from integration_tests.golden.samples import NOW_MS, PARTITION, REJECTED
from kafka_timer.headers import CONTROL, DELIVER_MS, ORIGIN, RELEASED_MS, ROLLS, Claim, Schedule, parse
from kafka_timer.origin import TimerPartition
from schemas.control import read as read_control
from schemas.journal import CopyInFlight, JournalRecord
from schemas.pending_table import parse_stores
from schemas.progress import Progress
from schemas.receipts import Receipt

pytestmark = pytest.mark.timeout(60)

FILES = FOLDER / "formats"


def test_each_golden_file_is_read_and_the_newest_is_written() -> None:
    """Stores: test_store_format.py."""
    assert {path.name for path in FILES.iterdir() if path.is_file()} == SEEN.keys()
    assert samples.WRITTEN.keys() <= SEEN.keys()


@pytest.mark.parametrize("name", [name for name in samples.WRITTEN if not name.endswith(".parquet")])
def test_this_version_writes_the_golden_file(name: str) -> None:
    """If this fails, a format has changed: docs/formats.md, "Golden files"."""
    assert samples.WRITTEN[name]() == (FILES / name).read_bytes()


def test_an_export_of_this_version_has_the_rows_of_the_golden_one() -> None:
    """The rest of a Parquet file depends on pyarrow's version."""
    assert read_export(samples.export()) == read_export((FILES / "export.v2.parquet").read_bytes())


def test_the_maker_writes_what_is_missing_and_changes_nothing(tmp_path: Path) -> None:
    assert make.main(tmp_path) == 0
    made, (left,) = tmp_path / "formats" / "progress.v1.txt", (tmp_path / "upgrade").glob("*/kafka.jsonl")
    assert made.read_bytes() == (FILES / "progress.v1.txt").read_bytes()
    for path in (made, left):
        path.write_bytes(b"of a former version")
    assert make.main(tmp_path) == 1
    assert made.read_bytes() == left.read_bytes() == b"of a former version"


# -- readers


def read_progress(data: bytes) -> list[Progress]:
    told = (line.partition(" ") for line in data.decode().splitlines())
    return [Progress.committed(int(offset), metadata) for offset, _, metadata in told]


def read_journal(data: bytes) -> list[JournalRecord]:
    return [JournalRecord.from_bytes(line) for line in data.splitlines()]


def read_controls(data: bytes) -> list[object]:
    return [read_control(raw(told["key"]), raw(told["value"])) for told in objects(data)]


def read_receipts(data: bytes) -> list[tuple[object, ...]]:
    found = [(record.key, Receipt.model_validate_json(record.value or b"")) for record in records_in(data)]
    assert {(told.v, told.at_ms) for _, told in found} == {(1, NOW_MS)}
    return [(key, told.kind, told.request, told.origin, told.id, told.due_ms, told.code) for key, told in found]


def read_deliveries(data: bytes) -> list[object]:
    """Return key, value, the sender's headers, and the headers that the audit reads."""
    found: list[object] = []
    for record in records_in(data):
        told = dict(record.headers)
        sent = [header for header in record.headers if header[0] not in CONTROL]
        found.append(
            (record.key, record.value, sent, [told[name] for name in (ORIGIN, DELIVER_MS, RELEASED_MS, ROLLS)])
        )
    return found


def read_copies(data: bytes) -> list[object]:
    """Return the claim of each copy, and its flight in FLIGHTS, found by the digest."""
    flights = CopiesInFlight(PARTITION, FLIGHTS, ())
    found: list[object] = []
    for offset, sent in enumerate(records_in(data), 100):
        record = Record(offset, NOW_MS, sent.key, sent.value, sent.headers)
        claim = parse(record.headers, record.timestamp_ms, samples.RULES)
        found.append((claim, flights.claimed(record, claim) if isinstance(claim, Claim) else None))
    return found


def read_rejected(data: bytes) -> list[Parked | None]:
    records = enumerate(records_in(data))
    rules = {PARTITION.topic: samples.RULES}
    return [parked(REJECTED, Record(at, r.timestamp_ms, r.key, r.value, r.headers), rules) for at, r in records]


def read_redriven(data: bytes) -> list[object]:
    return [(told["key"], json.loads(told["value"])) for told in objects(data)]


def read_flights(data: bytes) -> list[CopyInFlight]:
    found = [CopyInFlight(*told) for told in objects(data)]
    assert sorted(CopiesInFlight(PARTITION, found, ()).with_id(b"id-1")) == found, (
        "a cancel finds them by the hash of the id"
    )
    return found


def read_export(data: bytes) -> tuple[object, object, object]:
    """Return columns (name, type, nullable), the stores by their age, and the rows without the first two columns."""
    table = pq.read_table(io.BytesIO(data))
    columns = [(field.name, str(field.type), field.nullable) for field in table.schema]
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert {TimerPartition(*row[:2]) for row in rows} == {PARTITION}
    stores = parse_stores(pq.read_metadata(io.BytesIO(data)).metadata)
    return columns, stores, [(*row[2:-1], [tuple(header.values()) for header in row[-1]]) for row in rows]


# -- contents of the files

PLACE = "timer.requests/3"
ORIGIN_10, ORIGIN_11, ORIGIN_12 = (f"{PLACE}/{offset}".encode() for offset in (10, 11, 12))
DUE, RELEASED = b"1700000005000", b"1700000005001"
ID_HASH = "53c507d05b826bcc0ef01e54799aca72"
FLIGHTS = [
    CopyInFlight(10, 1, NOW_MS + 5000, "orders", ID_HASH, digest="933e8aaf256cce63a9f4480b350f4360"),
    CopyInFlight(11, 4, NOW_MS + 5000, "orders", ID_HASH, digest="21bf1af1763d1a10efaa6c0ea0ca52f2"),
    CopyInFlight(12, 1, NOW_MS + 5000, "orders", ID_HASH, digest="e25da8d032e3e55210f542ac4dc2da6c"),
]
RECEIPTS = [
    (ORIGIN_10, "accepted", f"{PLACE}/10", f"{PLACE}/10", None, NOW_MS + 5, None),
    (b"caf\xe9", "delivered", f"{PLACE}/10", f"{PLACE}/10", "caf\\xe9", NOW_MS, None),
    (b"id-1", "cancelled", f"{PLACE}/12", f"{PLACE}/10", "id-1", NOW_MS + 5, None),
    (b"id-1", "replaced", f"{PLACE}/13", f"{PLACE}/10", "id-1", None, None),
    (b"id-1", "moved", f"{PLACE}/14", f"{PLACE}/10", "id-1", NOW_MS + 9, None),
    (b"id-2", "not-found", f"{PLACE}/15", None, "id-2", None, None),
    (b"id-3", "too-late", f"{PLACE}/16", None, "id-3", None, None),
    (b"id-4", "rejected", f"{PLACE}/17", f"{PLACE}/17", "id-4", None, "bad-header"),
]
DELIVERIES = [
    (b"delivered key", b"hello", [("trace", b"1"), ("trace", None)], [ORIGIN_10, DUE, RELEASED, b"0"]),
    (None, None, [], [ORIGIN_11, DUE, RELEASED, b"3"]),
    (b"k", b"", [("trace", b"\xff")], [ORIGIN_12, DUE, RELEASED, b"0"]),
]
COPIES = [
    (Claim(ORIGIN_10, 1, Schedule("orders", NOW_MS + 5000, 2, b"id-1")), FLIGHTS[0]),
    (Claim(ORIGIN_11, 4, Schedule("orders", NOW_MS + 5000, -1, None)), FLIGHTS[1]),
    (Claim(ORIGIN_12, 1, Schedule("orders", NOW_MS + 5000, 2, b"id-1")), FLIGHTS[2]),
]
PARKED = [
    Parked(REJECTED, 0, NOW_MS, "bad-header", PARTITION, 20, "orders", id=None, size=145),
    Parked(REJECTED, 1, NOW_MS, "unknown-topic", PARTITION, 10, "orders", id=b"id-1", size=196),
    Parked(REJECTED, 2, NOW_MS, "unknown-topic", PARTITION, 11, "orders", id=None, size=183),
    Parked(REJECTED, 3, NOW_MS, "unknown-topic", PARTITION, 12, "orders", id=None, size=133),
    Parked(REJECTED, 4, NOW_MS, "unknown-topic", PARTITION, 10, "", id=None, size=172, is_bare=True),
]
MARKS = [
    ("timer.rejected/1/17", {"v": 1, "parked": "timer.rejected/1/17", "parked_ms": NOW_MS, "origin": f"{PLACE}/10"})
]
COLUMNS = [
    ("topic", "string", False),
    ("partition", "int32", False),
    ("origin_offset", "int64", False),
    ("target", "string", False),
    ("target_partition", "int32", True),
    ("due_ms", "int64", False),
    ("visit_ms", "int64", False),
    ("timestamp_ms", "int64", False),
    ("rolls", "int32", False),
    ("id", "binary", True),
    ("key", "binary", True),
    ("value", "binary", True),
    ("headers", "list<element: struct<name: string not null, value: binary> not null>", False),
]
STORES = {PARTITION: (NOW_MS - 5, 16, NOW_MS + 1300, 2, 7)}
FEW = [("timer-topic", b"orders")]
MANY = [*FEW, ("trace", b"\x00\xff"), ("timer-key", b"delivered key"), ("none", None)]
PENDING = [
    (4, "orders", 0, NOW_MS + 2100, NOW_MS + 2100, NOW_MS + 4, 0, b"id-4", b"key-4", b"value-4", FEW),
    (5, "orders", 1, NOW_MS + 2500, NOW_MS + 2500, NOW_MS + 5, 0, b"id-5", b"key-5", b"value-5", MANY),
    (6, "orders", None, NOW_MS + 2900, NOW_MS + 2900, NOW_MS + 6, 0, b"id-6", b"key-6", b"value-6", FEW),
    (7, "orders", 0, NOW_MS + 3300, NOW_MS + 3300, NOW_MS + 7, 0, b"id-7", b"key-7", b"value-7", MANY),
    (8, "orders", 1, NOW_MS + 3700, NOW_MS + 3700, NOW_MS + 8, 0, b"id-8", b"key-8", b"value-8", FEW),
    (9, "orders", None, NOW_MS + 90_000, NOW_MS + 8000, NOW_MS + 9, 0, None, None, b"value-9", MANY),
    (1, "orders", 0, NOW_MS + 3000, NOW_MS + 3000, NOW_MS + 10, 1, b"id-10", b"key-10", None, FEW),
    (15, "bills", None, NOW_MS + 2000, NOW_MS + 2000, NOW_MS + 15, 0, b"id-15", b"key-15", b"value-15", MANY),
    (11, "orders", 1, NOW_MS + 60_000, NOW_MS + 1000, NOW_MS + 11, 0, b"id-11", None, None, MANY),
]
SEEN: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "progress.v1.txt": (read_progress, samples.PROGRESS),
    "journal.v1.jsonl": (read_journal, samples.JOURNAL),
    "journal-key.v1.txt": (bytes.decode, "my-group timer.requests"),
    "control.v1.jsonl": (read_controls, samples.CONTROLS),
    "receipts.v1.jsonl": (read_receipts, RECEIPTS),
    "deliveries.v1.jsonl": (read_deliveries, DELIVERIES),
    "copies.v1.jsonl": (read_copies, COPIES),
    "flights.v1.jsonl": (read_flights, FLIGHTS),
    "rejected.v1.jsonl": (read_rejected, PARKED),
    "redriven.v1.jsonl": (read_redriven, MARKS),
    "resent.v1.jsonl": (read_redriven, [(f"redrive/{key}", value) for key, value in MARKS]),
    "export.v1.parquet": (read_export, (COLUMNS, STORES, PENDING)),
    "export.v2.parquet": (
        read_export,
        (
            [*COLUMNS[:-1], ("is_paused", "bool", False), COLUMNS[-1]],
            STORES,
            [(*row[:-1], False, row[-1]) for row in PENDING],
        ),
    ),
}
"""Reader and expected contents of each file."""


@pytest.mark.parametrize("name", SEEN)
def test_a_golden_file_has_the_expected_contents(name: str) -> None:
    read, expected = SEEN[name]
    assert read((FILES / name).read_bytes()) == expected
