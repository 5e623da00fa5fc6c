"""What this version writes: for each golden file of `formats/`, the values in it, written by the product's own code.

If a format changes, its row in WRITTEN gets the name of the new version. The old file stays, and test_formats.py still
reads it.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.cli.parquet_export import pending_file
from bridge.partition import draft as made
from bridge.partition.copies import copy_of
from bridge.partition.draft import bare, park, receipt, refuse
from bridge.partition.journal import ReceiptDraft
from bridge.ports import Record
from bridge.redrive.rules import Parked, marker_of
from integration_tests.golden import store
from integration_tests.golden.records import lines, lines_of, text
from kafka_timer.control import Paused, Skipped, control_record
from kafka_timer.headers import Headers, Refusal
from kafka_timer.origin import TimerPartition
from schemas.journal import END, CopyInFlight, JournalRecord, Wait, writer_key
from schemas.progress import NOTHING_SETTLED, Key, Progress
from schemas.resent import Job, MarkTopics
from schemas.rules import Rules
from timer.format.body import Body, pack_headers
from timer.stopped_store import StoppedStore
from timer.testing import SimDisk

PARTITION = TimerPartition("timer.requests", 3)
REJECTED = TimerPartition("timer.rejected", 1)
NOW_MS = 1_700_000_000_000
MARKS = MarkTopics(Job.REDRIVE, "timer.resent", "timer.redriven")

PROGRESS = [
    Progress(next_offset=9, settled=Key(visit_ms=NOW_MS, origin_offset=7), low_offset=5, number=42, era=NOW_MS - 1),
    Progress(next_offset=0, settled=NOTHING_SETTLED, low_offset=0, number=0, era=NOW_MS),
    Progress(next_offset=3, settled=Key(visit_ms=NOW_MS, origin_offset=2), low_offset=1, number=4, era=0),
]


def progress() -> bytes:
    """Committed offset, a space, its metadata."""
    return "".join(f"{each.next_offset} {each.metadata()}\n" for each in PROGRESS).encode()


RULES = Rules(
    max_delay_ms=31_622_400_000,
    roll_window_ms=172_800_000,
    levels_ms=(0, 1000, 5000),
    profiles=("native", "rocketmq"),
    own_topics=frozenset({"timer.requests"}),  # one name: the order of several is undefined
)
CLAIM = JournalRecord(from_offset=12, next_offset=12, rules=RULES)
DECISIONS = JournalRecord(
    from_offset=12,
    next_offset=40,
    rules=RULES,
    refused=(13, 14),
    ended=(15,),
    rolled=(
        CopyInFlight(origin_offset=16, rolls=2, due_ms=NOW_MS, target="orders", id_hash="", digest="d1"),
        CopyInFlight(origin_offset=17, rolls=1, due_ms=NOW_MS + 1, target="bills", id_hash="ab", digest="d2"),
    ),
    landed=((18, 3), (19, 1)),
    dropped=(20,),
    held=(21, 22),
    released=(23,),
)
WAITS = DECISIONS.model_copy(
    update={
        "waits": (
            Wait(target="orders", is_paused=True, stretches=((Key(visit_ms=NOW_MS, origin_offset=24), END),)),
            Wait(target="bills", is_paused=False, stretches=((Key(1, 2), Key(3, 4)), (Key(5, 6), END))),
        )
    }
)
JOURNAL = [CLAIM, DECISIONS, WAITS]


def journal() -> bytes:
    return b"".join(record.to_bytes() + b"\n" for record in JOURNAL)


def journal_key() -> bytes:
    return writer_key("my-group", "timer.requests")


CONTROLS: list[tuple[Paused | Skipped, bool]] = [
    (Paused(timer_topic="timer.requests", target="orders"), True),
    (Paused(timer_topic="timer.requests", target="orders"), False),
    (Skipped(partition=PARTITION, offset=4711), True),
]


def control() -> bytes:
    records = (control_record(key, on=on) for key, on in CONTROLS)
    return lines({"key": text(key), "value": text(value)} for key, value in records)


TOLD = [
    ReceiptDraft("accepted", request=10, origin_offset=10, id=b"", due_ms=NOW_MS + 5),
    ReceiptDraft("delivered", request=10, origin_offset=10, id=b"caf\xe9", due_ms=NOW_MS),
    ReceiptDraft("cancelled", request=12, origin_offset=10, id=b"id-1", due_ms=NOW_MS + 5),
    ReceiptDraft("replaced", request=13, origin_offset=10, id=b"id-1"),
    ReceiptDraft("moved", request=14, origin_offset=10, id=b"id-1", due_ms=NOW_MS + 9),
    ReceiptDraft("not-found", request=15, origin_offset=-1, id=b"id-2"),
    ReceiptDraft("too-late", request=16, origin_offset=-1, id=b"id-3"),
    ReceiptDraft("rejected", request=17, origin_offset=17, id=b"id-4", code="bad-header"),
]


def receipts() -> bytes:
    return lines_of(receipt("timer.receipts", PARTITION, told, NOW_MS) for told in TOLD)


def body(origin: int, headers: Headers, *, key: bytes | None, value: bytes | None, rolls: int = 0) -> Body:
    """Return a request for partition 2 of `orders` with the id `id-1`, due at NOW_MS + 5000, as the store keeps it."""
    packed, is_plain = pack_headers(headers)
    return Body(
        "orders", 2, origin + rolls, NOW_MS, NOW_MS + 5000, key, value, packed, is_plain, origin, rolls, b"id-1"
    )


NATIVE: Headers = [
    ("timer-topic", b"orders"),
    ("trace", b"1"),
    ("timer-delay-ms", b"5000"),
    ("timer-id", b"id-1"),
    ("timer-partition", b"2"),
    ("timer-key", b"delivered key"),
    ("trace", None),
]
COPY: Headers = [
    ("timer-topic", b"orders"),
    ("timer-deliver-ms", b"1700000005000"),
    ("timer-origin", b"timer.requests/3/11"),
    ("timer-rolls", b"3"),
]
ROCKETMQ: Headers = [
    ("timer-profile", b"rocketmq"),
    ("REAL_TOPIC", b"orders"),
    ("TIMER_DELAY_SEC", b"5"),
    ("trace", b"\xff"),
]
BODIES = [
    body(10, NATIVE, key=b"k", value=b"hello"),
    body(11, COPY, key=None, value=None, rolls=3),
    body(12, ROCKETMQ, key=b"k", value=b""),
]


def deliveries() -> bytes:
    return lines_of(made.deliveries(PARTITION, BODIES, NOW_MS + 5001))


def copies() -> bytes:
    return lines_of(copy_of(PARTITION, each, NOW_MS) for each in BODIES)


def flights() -> bytes:
    """Return the journal's entries of these copies, with hash of the id and digest."""
    return lines(copy_of(PARTITION, each, NOW_MS).flight for each in BODIES)


def rejected() -> bytes:
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"-5"), ("timer-id", b"x")]
    wrong = Refusal("bad-header", "timer-delay-ms is no number")
    refused = refuse(REJECTED.topic, PARTITION, Record(20, NOW_MS, b"k", b"hello", headers), wrong, NOW_MS)
    unknown = Refusal("unknown-topic", "orders does not exist")
    parked = [park(REJECTED.topic, PARTITION, each, unknown, NOW_MS) for each in BODIES]
    return lines_of([refused, *parked, bare(parked[0])])


def resent() -> bytes:
    """Key and value of the mark of a redriven record."""
    parked = Parked(REJECTED, 17, NOW_MS, "unknown-topic", PARTITION, 10, "orders", b"id-1", 99)
    return lines([{"key": text(MARKS.key(parked.name)), "value": text(marker_of(parked))}])


def export() -> bytes:
    """The Parquet file of `timer-bridge export` over the golden store. Its bytes depend on pyarrow's version."""
    disk = SimDisk()
    store.write(disk)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "export.parquet"
        with pending_file(out) as write, StoppedStore(disk) as stopped:
            write(PARTITION, stopped)
        return out.read_bytes()


WRITTEN: dict[str, Callable[[], bytes]] = {
    "progress.v1.txt": progress,
    "journal.v1.jsonl": journal,
    "journal-key.v1.txt": journal_key,
    "control.v1.jsonl": control,
    "receipts.v1.jsonl": receipts,
    "deliveries.v1.jsonl": deliveries,
    "copies.v1.jsonl": copies,
    "flights.v1.jsonl": flights,
    "rejected.v1.jsonl": rejected,
    "resent.v1.jsonl": resent,
    "export.v2.parquet": export,
}
"""Function that writes each file of `formats/`, in the newest version of its format."""
STORE = "store.v4"
"""Folder of `formats/` with the files of the golden store: `timer.format.checkpoint.FORMAT` is its version."""


def written() -> dict[str, bytes]:
    """Return all files of `formats/` that this version writes."""
    pending_in_store = {f"{STORE}/{name}": data for name, data in store.files().items()}
    return {name: write() for name, write in WRITTEN.items()} | pending_in_store
