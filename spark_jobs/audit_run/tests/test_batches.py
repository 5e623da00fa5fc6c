"""What a streaming audit tells of one delivery in two batches."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_jobs.audit_run.batches import write_minutes
from spark_jobs.audit_run.incremental import PartPlan, write_changed
from spark_jobs.kafka.admin import Span
from spark_jobs.tests.records import AS_OF_MS, History, Record, copy, delivery, request

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_delivery_that_waits_for_its_copy_is_counted_when_that_is_read(spark: SparkSession, tmp_path: Path) -> None:
    asked = request(0, due_ms=AS_OF_MS)
    came = delivery(asked, rolls=1)
    previous = None
    deliveries = []
    behind: list[Record] = [copy(asked, 5)]
    for number, copies in enumerate(([], behind, behind)):
        rows = History([asked, *copies], [came]).judged(spark, as_of_ms=AS_OF_MS + number)
        part = f"day=1970-01-01/batch={number}"
        plan = PartPlan(part, number, previous, AS_OF_MS + number)
        write_changed(tmp_path, rows, rows.select("origin"), plan)
        read_now = [Span("orders", 0, number, 1), Span("timer.requests", 0, number, 10)]
        write_minutes(tmp_path, part, previous, read_now, over_ms=2 * AS_OF_MS)
        deliveries.append(sum(pq.read_table(tmp_path / "minutes" / part, partitioning=None)["deliveries"].to_pylist()))
        previous = part
    assert deliveries == [0, 1, 0]
