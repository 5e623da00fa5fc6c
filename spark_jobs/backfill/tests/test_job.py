"""What a backfill decides of a missing timer, before it sends anything."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from schemas.audit_state import OPEN_VERDICTS, SPANS
from schemas.resent import Job, MarkTopics
from schemas.tables import REQUESTS
from spark_jobs.audit_run.audit_folder import Kind, open_folder
from spark_jobs.audit_run.positions import ReadPosition
from spark_jobs.backfill import job as backfill
from spark_jobs.backfill.arguments import BackfillArguments
from spark_jobs.backfill.job import missing
from spark_jobs.backfill.outcomes import marked, unreliable_topics, with_outcomes
from spark_jobs.backfill.publish import BODIES
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import write_rows
from spark_jobs.tests.fake_cluster import FakeCluster

pytestmark = pytest.mark.spark

NOW_MS = 100


def test_the_first_reason_not_to_send_is_the_outcome(spark: SparkSession) -> None:
    cases = [
        ("t/0/1#2", True, True, "held", "t/0/9", 1, True, "gone", "occurrence"),
        ("t/0/1", True, True, "held", "t/0/9", 1, True, "gone", "backfilled-before"),
        ("t/0/1", None, True, "live", "t/0/9", 1, True, "gone", "came"),
        ("t/0/1", None, None, "ended", "t/0/9", 1, True, "gone", "ended"),
        ("t/0/1", None, None, None, "t/0/9", 1, True, "gone", "superseded"),
        ("t/0/1", None, None, None, None, NOW_MS, True, "gone", "expired"),
        ("t/0/1", None, None, None, None, NOW_MS + 1, True, "gone", "no-topic"),
        ("t/0/1", None, None, None, None, None, False, "cut", "cannot-tell"),
        ("t/0/1", None, None, None, None, None, True, "orders", "cannot-tell"),
        ("t/0/1", None, None, None, None, None, False, "orders", None),
        ("t/0/1", None, None, None, None, None, True, "asked", None),
    ]
    columns = (
        "origin STRING, is_marked BOOLEAN, has_come BOOLEAN, waits STRING, ended_by STRING, expire_ms BIGINT,"
        " is_unread BOOLEAN, target STRING, wanted STRING"
    )
    is_whole = {"orders": True, "cut": False, "asked": False}
    found = with_outcomes(spark.createDataFrame(cases, columns), is_whole, ["asked"], NOW_MS).collect()
    assert [row.outcome for row in found] == [row.wanted for row in found]
    assert {row.detail for row in found if row.target == "cut"} == {
        "ask the consumers, then give --although-unknown cut"
    }


def test_a_mark_from_before_its_request_is_about_an_earlier_topic_of_that_name(spark: SparkSession) -> None:
    """An earlier run's mark counts by its own time; one without a time, and one by a clock that is behind, count."""
    year_ms = 365 * 86_400_000
    marks = MarkTopics(Job.BACKFILL, "marks", "former")
    told = [(5, year_ms), (6, 2 * year_ms - 1), (7, None), (8, 2 * year_ms), (9, 2 * year_ms)]
    records = [
        (topic, b"%st/0/%d" % (prefix, offset), b"{}" if at_ms is None else b'{"v": 1, "at_ms": %d}' % at_ms)
        for topic, prefix in (("marks", b"backfill/"), ("former", b""))
        for offset, at_ms in told
    ]
    records += [("marks", b"redrive/t/0/4", b"{}"), ("marks", b"t/0/4", b"{}")]
    judged = [(f"t/0/{offset}", 2 * year_ms) for offset in range(4, 9)]
    found = marked(
        spark.createDataFrame(records, "topic STRING, key BINARY, value BINARY"),
        spark.createDataFrame(judged, "origin STRING, requested_ms BIGINT"),
        marks,
    )
    assert {row.origin for row in found.collect()} == {"t/0/6", "t/0/7", "t/0/8"}


def orders(*starts: int, **known: Any) -> FakeCluster:
    return FakeCluster(*(Span("orders", at, start, 90) for at, start in enumerate(starts)), **known)


@pytest.mark.parametrize(
    ("now", "is_changed"),
    [
        (orders(0, 20), False),
        (orders(0, 21), True),
        (orders(0, 0, topic_id="second"), True),
        (orders(0, 0, topic_id=None), True),
        (orders(0, 0, 0), False),
        (orders(0, 0, 1), True),
        (orders(0, 20, is_compacted=True), True),
        (orders(0, 20, is_compacted=None), True),
    ],
)
def test_a_topic_that_was_created_again_cut_or_compacted_since_the_audit_may_have_had_what_is_missing(
    now: Cluster, is_changed: object
) -> None:
    reached = {("orders", at): ReadPosition(((0, 20),), True, "first") for at in range(2)}
    assert unreliable_topics(now, reached, ["orders"]) == ({"orders"} if is_changed else set())
    unknown = {place: replace(at, topic_id=None) for place, at in reached.items()}
    assert unreliable_topics(now, unknown, ["orders"]) == {"orders"}


def write_requests(folder: Path, *rows: dict[str, Any]) -> None:
    """Write the table of an audit that has not ended."""
    row = {"topic": "timer.requests", "partition": 0, "class": "missing", "kind": "schedule", "target": "orders"}
    (folder / "requests").mkdir()
    table = pa.Table.from_pylist([row | each for each in rows], schema=REQUESTS.arrow())
    pq.write_table(table, folder / "requests" / "part.parquet")


def test_what_ended_a_timer_or_may_have_delivered_it_is_known_from_the_audit(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One was lost before its cancel came: missing to the audit, and it is not wanted any more."""
    write_requests(
        tmp_path,
        {"origin": "t/0/1", "offset": 1, "due_ms": 5, "ended_by": "t/0/2"},
        {"origin": "t/0/3", "offset": 3, "due_ms": 5, "proof": "unread-outcome"},
        {"origin": "t/0/4", "offset": 4, "due_ms": 5, "proof": "unread-outcome", "class": "unjudged"},
        {"origin": "t/0/5", "offset": 5, "due_ms": 5, "class": "unjudged"},
    )
    arguments = BackfillArguments(access=KafkaAccess("localhost:9092"), audit=tmp_path, out=tmp_path)
    found = missing(arguments).select("origin", "ended_by", "is_unread").collect()
    assert sorted(map(tuple, found)) == [("t/0/1", "t/0/2", False), ("t/0/3", None, True), ("t/0/4", None, True)]


@pytest.mark.parametrize("kind", ["daily", "stream"])
def test_what_was_unread_in_an_earlier_part_is_known_until_a_later_one_has_it(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    open_folder(tmp_path, kind)
    parts = [f"day=2026-01-0{n}" if kind == "daily" else f"day=2026-01-01/batch={n:09d}" for n in (1, 2)]
    unread = {"topic": "timer.requests", "partition": 0, "class": "unjudged", "proof": "unread-outcome", "due_ms": 5}
    unread |= {"kind": "schedule", "target": "orders"}
    rows: list[list[dict[str, object]]]
    rows = [[unread | {"origin": f"t/0/{n}", "offset": n} for n in (1, 2)], [{"origin": "t/0/2", "class": "delivered"}]]
    for part, told in zip(parts, rows, strict=True):
        write_rows(tmp_path, REQUESTS, part, told)
        write_rows(tmp_path, OPEN_VERDICTS, part, [])
        write_rows(tmp_path, SPANS, part, [])
    arguments = BackfillArguments(access=KafkaAccess("localhost:9092"), audit=tmp_path, out=tmp_path)
    assert [tuple(row) for row in missing(arguments).select("origin", "is_unread").collect()] == [("t/0/1", True)]


WAITS = pa.schema([*list(BODIES)[:7], ("ended_by", pa.string()), ("is_unread", pa.bool_()), ("waits", pa.string())])


@dataclass(frozen=True)
class BridgeAtWork:
    """In place of progress and journal: what has still to be delivered at a first look has left by a second one."""

    folder: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            waits = None if (self.folder / "looked").exists() else "live"
            (self.folder / "looked").touch()
            yield pa.RecordBatch.from_pylist([row | {"waits": waits} for row in batch.to_pylist()], schema=WAITS)


def test_what_waited_before_the_real_topics_were_looked_at_is_not_asked_about_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is lost, and what it had kept is made anew: behind a delivery that lies beyond what was read."""
    write_requests(tmp_path, {"origin": "timer.requests/0/1", "offset": 1, "requested_ms": 1, "due_ms": 5})

    def nothing_came(judged: DataFrame, *_: object) -> DataFrame:
        spark.catalog.clearCache()
        nothing = {name: F.lit(None).cast("boolean") for name in ("is_marked", "has_come")}
        return with_outcomes(judged.withColumns(nothing), {"orders": True}, [], NOW_MS)

    def judged(asked: DataFrame, *_: object) -> DataFrame:
        return asked.mapInArrow(BridgeAtWork(tmp_path), from_arrow_schema(WAITS))

    monkeypatch.setattr(backfill, "_with_reasons", judged)
    monkeypatch.setattr(backfill, "with_later_outcomes", nothing_came)
    cluster = FakeCluster(*(Span(topic, 0, 0, 0) for topic in ("timer.requests", "timer.resent")))
    arguments = BackfillArguments(access=KafkaAccess("localhost:9092"), audit=tmp_path, out=tmp_path)
    assert backfill._backfill(cluster, arguments) == {"live": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"requests", "looked", "backfill"}
