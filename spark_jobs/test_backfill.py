"""What a backfill decides of a missing timer, before it sends anything."""

import pytest
from pyspark.sql import SparkSession

from spark_jobs.backfill import decided

pytestmark = pytest.mark.spark

NOW_MS = 100


def test_the_first_reason_not_to_send_is_told(spark: SparkSession) -> None:
    cases = [
        (True, True, "held", 1, "gone", "backfilled-before"),
        (None, True, "live", 1, "gone", "came"),
        (None, None, "ended", 1, "gone", "ended"),
        (None, None, None, NOW_MS, "gone", "expired"),
        (None, None, None, NOW_MS + 1, "gone", "no-topic"),
        (None, None, None, None, "orders", None),
    ]
    columns = "is_marked BOOLEAN, has_come BOOLEAN, waits STRING, expire_ms BIGINT, target STRING, wanted STRING"
    found = decided(spark.createDataFrame(cases, columns), ["orders"], NOW_MS).collect()
    assert [row.outcome for row in found] == [row.wanted for row in found]
