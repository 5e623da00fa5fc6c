"""What a backfill decides of a missing timer, before it sends anything."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.tables import REQUESTS
from spark_jobs.backfill import job as backfill
from spark_jobs.backfill.arguments import BackfillArguments
from spark_jobs.backfill.job import missing
from spark_jobs.backfill.outcomes import with_outcomes
from spark_jobs.backfill.publish import BODIES, PublishTask
from spark_jobs.backfill.undeliverable import SKEW_MS
from spark_jobs.errors import UsageError
from spark_jobs.kafka.admin import FOREVER_MS, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.arrow_tasks import ddl

pytestmark = pytest.mark.spark

NOW_MS = 100
DUE_MS = 1_000_000


def test_the_first_reason_not_to_send_is_the_outcome(spark: SparkSession) -> None:
    due_ms, refused_ms = DUE_MS, 50
    sent_ms = refused_ms + SKEW_MS
    cases = [
        ("t/0/1#2", True, True, "held", "t/0/9", 1, 1, due_ms, "gone", "occurrence"),
        ("t/0/1", True, True, "held", "t/0/9", 1, 1, due_ms, "gone", "backfilled-before"),
        ("t/0/1", None, True, "live", "t/0/9", 1, 1, due_ms, "gone", "came"),
        ("t/0/1", None, None, "ended", "t/0/9", 1, 1, due_ms, "gone", "ended"),
        ("t/0/1", None, None, None, "t/0/9", 1, 1, due_ms, "gone", "superseded"),
        ("t/0/1", None, None, None, None, NOW_MS, 1, due_ms, "gone", "expired"),
        ("t/0/1", None, None, None, None, NOW_MS + 1, 1, due_ms, "gone", "no-topic"),
        ("t/0/1", None, None, None, None, None, sent_ms, due_ms, "compacted", "cannot-tell"),
        ("t/0/1", None, None, None, None, None, sent_ms, due_ms + SKEW_MS - 1, "short", "cannot-tell"),
        ("t/0/1", None, None, None, None, None, sent_ms, due_ms + SKEW_MS, "short", None),
        ("t/0/1", None, None, None, None, None, sent_ms, 1, "orders", None),
        ("t/0/1", None, None, None, None, None, sent_ms - 1, due_ms, "orders", "cannot-tell"),
    ]
    columns = (
        "origin STRING, is_marked BOOLEAN, has_come BOOLEAN, waits STRING, ended_by STRING, expire_ms BIGINT,"
        " requested_ms BIGINT, earliest_ms BIGINT, target STRING, wanted STRING"
    )
    targets = {"orders": 0, "short": due_ms, "compacted": FOREVER_MS}
    asked = spark.createDataFrame(cases, columns)
    found = with_outcomes(asked, targets, NOW_MS, refused_ms).collect()
    assert [row.outcome for row in found] == [row.wanted for row in found]
    *_, last = with_outcomes(asked, targets, NOW_MS).collect()
    assert last.outcome is None, "the rejected topic has all it ever had"


def test_a_timer_ended_by_a_later_request_is_known_from_the_audit(spark: SparkSession, tmp_path: Path) -> None:
    """It was lost before its cancel came: missing to the audit, and nobody wants it any more."""
    row = {"topic": "timer.requests", "partition": 0, "class": "missing", "kind": "schedule", "target": "orders"}
    rows = [row | {"origin": "t/0/1", "offset": 1, "due_ms": 5, "ended_by": "t/0/2"}]
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS.arrow()), tmp_path / "requests" / "part.parquet")
    arguments = BackfillArguments(access=KafkaAccess("localhost:9092"), audit=tmp_path, out=tmp_path)
    with pytest.raises(UsageError, match="has not ended"):
        missing(spark, arguments)
    (tmp_path / "requests" / "_SUCCESS").touch()
    (found,) = missing(spark, arguments).collect()
    assert (found.origin, found.ended_by) == ("t/0/1", "t/0/2")


@pytest.mark.parametrize(
    ("requested_ms", "due_ms", "moved_low_ms", "earliest_ms"),
    [(1, 9, None, 9), (5, 1, None, 5), (1, 9, 7, 7), (5, 9, 3, 5)],
)
def test_a_moved_timer_may_have_been_delivered_at_the_earliest_of_its_times(
    spark: SparkSession, tmp_path: Path, requested_ms: int, due_ms: int, moved_low_ms: int | None, earliest_ms: int
) -> None:
    row = {"topic": "timer.requests", "partition": 0, "class": "missing", "kind": "schedule", "target": "orders"}
    times = {"requested_ms": requested_ms, "due_ms": due_ms, "moved_low_ms": moved_low_ms}
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.Table.from_pylist([row | times], schema=REQUESTS.arrow()), tmp_path / "requests" / "0.parquet")
    (tmp_path / "requests" / "_SUCCESS").touch()
    arguments = BackfillArguments(access=KafkaAccess("localhost:9092"), audit=tmp_path, out=tmp_path)
    assert [found.earliest_ms for found in missing(spark, arguments).collect()] == [earliest_ms]


WAITS = pa.schema([*list(BODIES)[:7], ("ended_by", pa.string()), ("earliest_ms", pa.int64()), ("waits", pa.string())])


@dataclass(frozen=True)
class BridgeAtWork:
    """In place of progress and journal: what has still to be delivered at a first look has left by a second one."""

    folder: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            waits = None if (self.folder / "looked").exists() else "live"
            (self.folder / "looked").touch()
            yield pa.RecordBatch.from_pylist([row | {"waits": waits} for row in batch.to_pylist()], schema=WAITS)


class EmptyCluster:
    def __init__(self, partitions: int = 1) -> None:
        self.partitions = {"timer.requests": partitions, "timer.resent": 1}

    def spans(self, topics: Sequence[str]) -> list[Span]:
        return [Span(topic, 0, 0, 0) for topic in topics]

    stable_spans = spans


def test_what_waited_before_the_real_topics_were_looked_at_is_not_asked_about_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is lost, and what it had kept is made anew: behind a delivery that lies beyond what was read."""
    row = {"topic": "timer.requests", "partition": 0, "class": "missing", "kind": "schedule", "target": "orders"}
    rows = [row | {"origin": "timer.requests/0/1", "offset": 1, "requested_ms": 1, "due_ms": 5}]
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS.arrow()), tmp_path / "requests" / "part.parquet")
    (tmp_path / "requests" / "_SUCCESS").touch()

    def nothing_came(spark: SparkSession, judged: DataFrame, *_: object) -> DataFrame:
        spark.catalog.clearCache()
        nothing = {name: F.lit(None).cast("boolean") for name in ("is_marked", "has_come")}
        return with_outcomes(judged.withColumns(nothing), {"orders": 0}, NOW_MS)

    def judged(spark: SparkSession, asked: DataFrame, *_: object) -> DataFrame:
        return asked.mapInArrow(BridgeAtWork(tmp_path), ddl(WAITS))

    monkeypatch.setattr(backfill, "_with_reasons", judged)
    monkeypatch.setattr(backfill, "with_later_outcomes", nothing_came)
    cluster: Any = EmptyCluster()
    arguments = BackfillArguments(access=KafkaAccess("localhost:9092"), audit=tmp_path, out=tmp_path)
    assert backfill._backfill(spark, cluster, arguments).counts == {"live": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"requests", "looked", "backfill"}


def test_partitions_that_lack_nothing_get_no_share_of_the_rate(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[PublishTask] = []

    def noted(*given: Any) -> PublishTask:
        tasks.append(PublishTask(*given))
        return tasks[-1]

    monkeypatch.setattr(backfill, "PublishTask", noted)
    access, cluster = KafkaAccess("localhost:9092"), cast(Any, EmptyCluster(partitions=4))
    arguments = BackfillArguments(access=access, audit=tmp_path, out=tmp_path, apply=True, per_s=100)
    for lacking, share in ((1, 100), (2, 50), (0, 100)):
        backfill._sent(spark.createDataFrame([], ddl(BODIES)), lacking, cluster, arguments, [])
        assert tasks[-1].per_s == share
