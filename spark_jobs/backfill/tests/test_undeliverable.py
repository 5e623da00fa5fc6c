"""What a backfill may touch: nothing that a bridge will still deliver, or that a cancel has ended."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafka_timer.headers import PAUSED_MS
from schemas.journal import CopyInFlight, JournalRecord
from schemas.progress import Key, Progress
from schemas.rules import Rules
from spark_jobs.backfill.undeliverable import SKEW_MS, with_reasons

pytestmark = pytest.mark.spark

RULES = Rules(max_delay_ms=10**9, roll_window_ms=10_000)
PROGRESS = Progress(100, Key(5_000, 50), 60)
FAR = [2**63 - 1, 2**63 - 1]
JOURNAL_DDL = "topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, value BINARY"
ASKED_DDL = "partition INT, offset BIGINT, requested_ms BIGINT, due_ms BIGINT, target STRING"


class Written(NamedTuple):
    """A record of the journal."""

    at_ms: int
    value: bytes


class Asked(NamedTuple):
    offset: int
    due_ms: int
    target: str = "orders"
    requested_ms: int = 0


class History(NamedTuple):
    """A partition of the timer topic."""

    progress: Progress | None
    journal: Sequence[Written]
    asked: Sequence[Asked]


def record(from_offset: int = 0, at_ms: int = 4_000, waits: Any = None, **told: Any) -> Written:
    value = JournalRecord(from_offset=from_offset, next_offset=100, rules=RULES, **told).to_bytes()
    return Written(at_ms, value if waits is None else json.dumps(json.loads(value) | {"waits": waits}).encode())


def flight(origin: int, due_ms: int = 4_000, rolls: int = 1) -> CopyInFlight:
    return CopyInFlight(origin, rolls, due_ms, "orders", "", "")


def reasons(spark: SparkSession, histories: Sequence[History]) -> list[list[str | None]]:
    """Return the reasons of each history's timers, in the order in which they were asked."""
    journal = [
        ("journal", partition, offset, *written)
        for partition, history in enumerate(histories)
        for offset, written in enumerate(history.journal)
    ]
    asked = [
        (partition, each.offset, each.requested_ms, each.due_ms, each.target)
        for partition, history in enumerate(histories)
        for each in history.asked
    ]
    progress = {partition: history.progress for partition, history in enumerate(histories)}
    told = spark.createDataFrame(journal, JOURNAL_DDL)
    rows = with_reasons(spark.createDataFrame(asked, ASKED_DDL), told, progress).collect()
    found = {tuple(row)[:-1]: row.waits for row in rows}
    assert len(rows) == len(asked)
    return [
        [found[partition, each.offset, each.requested_ms, each.due_ms, each.target] for each in history.asked]
        for partition, history in enumerate(histories)
    ]


BACKLOG = [["Aa", True, [[[1_000, 5], [2_000, 5]], [[3_000, 1], FAR]]]]
SHARED = [["orders", False, [[[1_000_000, 0], [10_000_000, 0]], [[20_000_000, 0], FAR]]]]
"""A target beyond its rate, with a share for fresh ones: those before and behind the first stretch have left."""
ROLLED = [["orders", False, [[[8_000, 0], [9_000, 0]], [[300_000, 0], FAR]]]]
VISIT_MS, DUE_MS = RULES.roll_window_ms // 2, RULES.roll_window_ms + 1


def landed(at_ms: int) -> list[Written]:
    return [record(rolled=(flight(7, 900_000),)), record(100, at_ms, SHARED, landed=((7, 1),))]


CASES: dict[str, tuple[Progress | None, Sequence[Written], dict[Asked, str | None]]] = {
    "the rule": (
        PROGRESS,
        [record()],
        {
            **dict.fromkeys((Asked(8, 4_999), Asked(50, 5_000), Asked(99, 0))),
            **dict.fromkeys((Asked(51, 5_000), Asked(7, 5_001)), "live"),
            Asked(100, 0): "unread",
        },
    ),
    "without the journal since the first pending request nothing is": (
        PROGRESS,
        [record(61)],
        {Asked(8, 0): "no-journal", Asked(60, 0): "no-journal", Asked(61, 0): None, Asked(100, 0): "unread"},
    ),
    "settled requests may have left the journal": (Progress(100, Key(5_000, 50), 100), [], {Asked(8, 0): None}),
    "without progress nothing is settled": (None, [], {Asked(0, 0): "no-progress"}),
    "the journal overrides the rule": (
        PROGRESS,
        [
            record(ended=(1,), refused=(2,), dropped=(3,), held=(4, 5), rolled=(flight(6), flight(7))),
            record(100, released=(5,), landed=((7, 1),)),
        ],
        {
            Asked(1, 0): "ended",
            Asked(2, 0): "refused",
            Asked(3, 0): "ended",
            Asked(4, 0): "held",
            Asked(5, 0): None,
            Asked(6, 0): "rolling",
            Asked(7, 0): "live",  # its copy may have come as late as the record that tells of it
            Asked(8, 0): None,
        },
    ),
    "a copy that landed waits no longer than its own time": (
        Progress(100, Key(4_000 + SKEW_MS, 7), 60),
        [record(rolled=(flight(7),)), record(100, landed=((7, 1),))],
        {Asked(7, 4_000): None},
    ),
    "a copy that was given another due time waits until then": (
        Progress(100, Key(4_000 + SKEW_MS, 99), 60),
        [record(rolled=(flight(7, 9_000_000),)), record(100, landed=((7, 1),))],
        {Asked(7, 4_000): "live"},
    ),
    "a paused copy waits; one that was resumed has its own due time": (
        PROGRESS,
        [
            record(rolled=(flight(7, PAUSED_MS + 4_000), flight(8, PAUSED_MS + 4_000)), at_ms=4_000 - SKEW_MS),
            record(100, landed=((7, 1), (8, 1)), rolled=(flight(8, rolls=2),), at_ms=4_000 - SKEW_MS),
            record(100, landed=((8, 2),), at_ms=4_000 - SKEW_MS),
        ],
        {Asked(7, 4_000): "live", Asked(8, 4_000): None},
    ),
    "a key in a target backlog is held": (
        PROGRESS,
        [record(waits=BACKLOG)],
        {
            Asked(5, 1_000, "Aa"): None,
            Asked(6, 1_000, "Aa"): "held",
            Asked(15, 2_000, "Aa"): None,
            Asked(4, 2_000, "Aa"): "held",
            Asked(2, 3_000, "Aa"): "held",
            Asked(1, 1_000, "BB"): None,
            Asked(9, 1_000, "BB"): "held",  # names of one hash wait together
            Asked(10, 1_000): None,
        },
    ),
    "a target whose backlog is over": (PROGRESS, [record(waits=BACKLOG), record(100)], {Asked(6, 1_000, "Aa"): None}),
    "a copy's own place is in a stretch; the latest possible one lies in a gap": (
        Progress(100, Key(30_000_000, 50), 60),
        landed(9_990_000),
        {Asked(7, 900_000): "held"},
    ),
    "its place is at the end of the gap before, the latest possible one in the stretch": (
        Progress(100, Key(30_000_000, 50), 60),
        landed(950_000),
        {Asked(7, 900_000): "held"},
    ),
    "whatever the copy's place, that has left": (
        Progress(100, Key(30_000_000, 50), 60),
        landed(800_000),
        {Asked(7, 900_000): None},
    ),
    "a timer that had to roll and waited until due has the place of its roll, in the first stretch": (
        Progress(100, Key(400_000, 50), 60),
        [record(waits=ROLLED)],
        {
            Asked(7, 8_500 - VISIT_MS + DUE_MS, requested_ms=8_500 - VISIT_MS): "held",
            Asked(8, 100_000 + DUE_MS, requested_ms=100_000): None,
            Asked(9, 10_000, requested_ms=1): None,  # never to be rolled
        },
    ),
    "progress that was set back takes decisions along": (
        PROGRESS,
        [record(ended=(7, 60), held=(8, 61)), record(50, refused=(62,)), record(100, released=(8,))],
        {Asked(7, 0): "ended", Asked(60, 0): None, Asked(61, 0): None, Asked(62, 0): "refused", Asked(8, 0): None},
    ),
}


def test_why_a_timer_must_not_be_sent(spark: SparkSession) -> None:
    told = reasons(spark, [History(progress, journal, [*asked]) for progress, journal, asked in CASES.values()])
    for (name, (_, _, asked)), found in zip(CASES.items(), told, strict=True):
        assert dict(zip(asked, found, strict=True)) == asked, name


@pytest.mark.parametrize("value", [None, record().value.replace(b'"v":1', b'"v":2')])
def test_a_record_that_is_not_understood_ends_the_job(spark: SparkSession, value: bytes | None) -> None:
    """It could say that a timer waits."""
    rows = spark.createDataFrame([("journal", 0, 5, 4_000, value)], JOURNAL_DDL)
    asked = spark.createDataFrame([(0, 7, 0, 0, "orders")], ASKED_DDL)
    with pytest.raises(PySparkException, match="journal/0/5: not a journal record of this version"):
        with_reasons(asked, rows, {0: PROGRESS}).collect()
