"""Headers and keys as Spark sees them. Numbers, names and hashes are compared with the parser in test_profiles.py."""

from random import Random

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import murmur2 as bridge
from schemas.tables import Column, Kind, Table
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules import murmur2
from spark_jobs.platform.tables import as_table

pytestmark = pytest.mark.spark


def test_headers_by_name(spark: SparkSession) -> None:
    record = [([("a", b"1"), ("timer-id", None), ("a", b"2"), ("timer-id", b"x")],), ([],), (None,)]
    headers = F.col("h")
    records = spark.createDataFrame(record, f"h {c.HEADERS_DDL}").withColumn("h", c.headers_or_empty(headers))
    frame = records.select(
        c.value_of(headers, "a"),
        c.last_value_of(headers, "a"),
        c.has(headers, "timer-id"),
        c.value_of(headers, "timer-id"),
        c.digest(c.value_of(headers, "timer-id")),
        F.size(c.foreign(headers)),
    )
    assert [tuple(row) for row in frame.collect()] == [
        (b"1", b"2", True, None, b"", 2),
        (None, None, False, None, b"", 0),
        (None, None, False, None, b"", 0),
    ]


def test_headers_of_ours_are_counted_however_many_headers_there_are(spark: SparkSession) -> None:
    ours: list[tuple[str, bytes | None]] = [("timer-id", b"1"), ("timer-topic", b"t")]
    twice: list[tuple[str, bytes | None]] = [("timer-id", b"1"), ("timer-id", None)]
    lists = [ours, twice, [], [*ours, *twice]]
    rows = [([*each, *[("a", b"x")] * count],) for count in (0, 1, 2, 9) for each in lists]
    frame = spark.createDataFrame(rows, f"h {c.HEADERS_DDL}").select(c.count_of_ours("h"), c.has_duplicates("h"))
    assert [tuple(row) for row in frame.collect()] == [(2, False), (2, True), (0, False), (4, True)] * 4


def test_rows_are_fitted_to_a_table_and_not_built_again_without_need(spark: SparkSession) -> None:
    kinds = {"name": Kind.STRING, "tags": Kind.STRINGS, "place": Kind.PAUSE, "deliveries": Kind.INT64}
    table = Table("any", *(Column(name, kind, "") for name, kind in kinds.items()))
    place = "named_struct('ms', 3L, 'ended_ms', 4L, 'answered_ms', 5L, 'since_ms', 6L)"
    fitted = as_table(spark.sql(f"SELECT {place} AS place, array('x') AS tags, 'a' AS name FROM range(1)"), table)
    assert fitted.collect() == [("a", ["x"], (3, 4, 5, 6), None)]
    assert "lambda" not in fitted._jdf.queryExecution().toString()
    assert as_table(spark.sql("SELECT 'a' AS name, 1 AS deliveries"), table).collect() == [("a", None, None, 1)]
    with pytest.raises(AnalysisException, match="deliveries"):
        as_table(spark.sql("SELECT 'x' AS deliveries"), table)


def test_a_key_has_the_partition_that_kafka_s_producers_choose(spark: SparkSession) -> None:
    """For keys of all lengths."""
    random = Random(1)
    keys = [random.randbytes(length) for length in range(40) for _ in range(5)] + [b"\xff" * 9, b"\x00" * 8]
    rows = spark.createDataFrame([(key, 1 + at % 7) for at, key in enumerate(keys)], "key BINARY, partitions INT")
    hashed = murmur2.murmur2(F.col("key")), murmur2.partition_of(F.col("key"), F.col("partitions"))
    found = [(bytes(key), *other) for key, *other in rows.select("key", "partitions", *hashed).collect()]
    assert [key for key, *_ in found] == keys
    for key, count, hash_, partition in found:
        assert (hash_, partition) == (bridge.murmur2(key), bridge.partition_of(key, count)), key
