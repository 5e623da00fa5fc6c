"""What a backfill decides of a missing timer, before it sends anything."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from schemas.tables import REQUESTS
from spark_jobs.access import Access
from spark_jobs.backfill import BackfillArguments, decided, missing
from spark_jobs.brokers import FOREVER_MS
from spark_jobs.errors import UsageError
from spark_jobs.settled import SKEW_MS

pytestmark = pytest.mark.spark

NOW_MS = 100
DUE_MS = 1_000_000


def test_the_first_reason_not_to_send_is_told(spark: SparkSession) -> None:
    due_ms = DUE_MS
    cases = [
        (True, True, "held", "t/0/9", 1, 1, due_ms, "gone", "backfilled-before"),
        (None, True, "live", "t/0/9", 1, 1, due_ms, "gone", "came"),
        (None, None, "ended", "t/0/9", 1, 1, due_ms, "gone", "ended"),
        (None, None, None, "t/0/9", 1, 1, due_ms, "gone", "superseded"),
        (None, None, None, None, NOW_MS, 1, due_ms, "gone", "expired"),
        (None, None, None, None, NOW_MS + 1, 1, due_ms, "gone", "no-topic"),
        (None, None, None, None, None, 1, due_ms, "compacted", "cannot-tell"),
        (None, None, None, None, None, 1, due_ms + SKEW_MS - 1, "short", "cannot-tell"),
        (None, None, None, None, None, 1, due_ms + SKEW_MS, "short", None),
        (None, None, None, None, None, due_ms + SKEW_MS, 1, "short", None),
        (None, None, None, None, None, 1, 1, "orders", None),
    ]
    columns = (
        "is_marked BOOLEAN, has_come BOOLEAN, waits STRING, ended_by STRING, expire_ms BIGINT, requested_ms BIGINT,"
        " due_ms BIGINT, target STRING, wanted STRING"
    )
    targets = {"orders": 0, "short": due_ms, "compacted": FOREVER_MS}
    found = decided(spark.createDataFrame(cases, columns), targets, NOW_MS).collect()
    assert [row.outcome for row in found] == [row.wanted for row in found]


def test_what_a_later_request_has_ended_is_known_from_the_audit(spark: SparkSession, tmp_path: Path) -> None:
    """It was lost before its cancel came: missing to the audit, and nobody wants it any more."""
    row = {"topic": "timer.requests", "partition": 0, "class": "missing", "kind": "schedule", "target": "orders"}
    rows = [row | {"origin": "t/0/1", "offset": 1, "due_ms": 5, "ended_by": "t/0/2"}]
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS.arrow()), tmp_path / "requests" / "part.parquet")
    arguments = BackfillArguments(access=Access("localhost:9092"), audit=tmp_path, out=tmp_path)
    with pytest.raises(UsageError, match="has not come to its end"):
        missing(spark, arguments)
    (tmp_path / "requests" / "_SUCCESS").touch()
    (found,) = missing(spark, arguments).collect()
    assert (found.origin, found.ended_by) == ("t/0/1", "t/0/2")
