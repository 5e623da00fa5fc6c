"""The audit's partitioner beside the bridge's, for keys of all lengths."""

from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import murmur2 as bridge
from spark_jobs.audit_rules import murmur2

pytestmark = pytest.mark.spark


def test_a_key_has_the_partition_that_kafka_s_producers_choose(spark: SparkSession) -> None:
    random = Random(1)
    keys = [random.randbytes(length) for length in range(40) for _ in range(5)] + [b"\xff" * 9, b"\x00" * 8]
    rows = spark.createDataFrame([(key, 1 + at % 7) for at, key in enumerate(keys)], "key BINARY, partitions INT")
    found = rows.withColumns(
        {
            "hash": murmur2.murmur2(F.col("key")),
            "partition": murmur2.partition_of(F.col("key"), F.col("partitions")),
        }
    ).collect()
    assert len(found) == len(keys)
    for row in found:
        key = bytes(row.key)
        assert (row.hash, row.partition) == (bridge.murmur2(key), bridge.partition_of(key, row.partitions)), key
