"""Percentiles from counts, beside the same rule in plain Python."""

from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules.percentiles import lateness_bucket, lateness_counts, lateness_percentiles

pytestmark = pytest.mark.spark


CLOCKS = {"a": ["LogAppendTime"], "b": ["CreateTime"], "c": ["LogAppendTime", "CreateTime"]}


def rounded(value_ms: int) -> int:
    digits = str(abs(value_ms))
    shown = int(digits[:4] + "0" * len(digits[4:]))
    return shown if value_ms >= 0 else -shown


def test_four_digits_towards_zero_and_all_of_them_below_10_s(spark: SparkSession) -> None:
    values = [0, 1, -1, 9_999, -9_999, 10_000, 10_009, 12_345, -12_345, 99_999, 600_000, 3_600_001, 2**63 - 1, -(2**62)]
    frame = spark.createDataFrame([(value,) for value in values], "v BIGINT")
    assert [row[0] for row in frame.select(lateness_bucket(F.col("v"))).collect()] == [rounded(v) for v in values]


@pytest.mark.parametrize("keys", [("t",), ("t", "minute")])
def test_percentiles_are_the_values_at_their_ranks(keys: tuple[str, ...], spark: SparkSession) -> None:
    """Also if they were counted by more keys."""
    rng = Random(7)
    rows = [("a", rng.choice((rng.randrange(50), rng.randrange(-300, 40_000)))) for _ in range(999)]
    rows += [("b", 5), ("c", -7), ("c", 70_009)]
    frame = spark.createDataFrame(
        [(topic, at % 5, late, CLOCKS[topic][at % len(CLOCKS[topic])]) for at, (topic, late) in enumerate(rows)],
        "t STRING, minute INT, lateness_ms BIGINT, clock STRING",
    )
    counts = lateness_counts(frame, *keys)
    found = {row.t: row for row in lateness_percentiles(counts, "t", percentiles=(50, 90, 99)).collect()}
    for topic in "abc":
        values = sorted(late for name, late in rows if name == topic)
        ranked = [rounded(values[-(-len(values) * part // 100) - 1]) for part in (50, 90, 99)]
        told = found[topic]
        assert [told.lateness_p50_ms, told.lateness_p90_ms, told.lateness_p99_ms] == ranked
        assert (told.deliveries, told.lateness_min_ms, told.lateness_max_ms) == (len(values), values[0], values[-1])
        assert told.clock == ", ".join(sorted(CLOCKS[topic]))
