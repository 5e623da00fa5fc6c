"""Percentiles of lateness: count each value, then look up the values at the ranks.

    rows, any number --by keys and value--> counts, few --cumulative sum--> p50, p99, ...: one row per group

Counts by topic and minute are kept as the table `lateness`: any percentile of any range of minutes follows from them.
The p-th percentile is the least value that p of a hundred deliveries do not exceed: exact below 10 s, beyond that
rounded to four digits. A group has at most about 9,000 values for each power of ten, and the rows are read once.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

_CLOCKS = {"CreateTime": "create_time", "LogAppendTime": "log_append_time"}
_EXACT_BELOW_MS = 10_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def interval_start(column: str, width_ms: int) -> Column:
    """Return the start of the interval of `width_ms` in which a time (epoch ms) lies."""
    return F.col(column) - F.pmod(column, F.lit(width_ms))


def lateness_counts(delivered: DataFrame, *keys: str) -> DataFrame:
    """Return a row for each value of lateness in each group by `keys`, with the columns of schemas.tables.LATENESS.

    `delivered`: lateness_ms, not null, and clock (LogAppendTime or CreateTime).
    """
    lateness, clock = F.col("lateness_ms"), F.col("clock")
    return delivered.groupBy(*keys, lateness_bucket(lateness).alias("value_ms")).agg(
        F.count("*").alias("deliveries"),
        F.min(lateness).alias("low_ms"),
        F.max(lateness).alias("high_ms"),
        *(F.count_if(clock == name).alias(column) for name, column in _CLOCKS.items()),
    )


def lateness_percentiles(counts: DataFrame, *keys: str, percentiles: Sequence[int] = (50, 99)) -> DataFrame:
    """Return a row for each group by `keys`: deliveries, lateness_min_ms, lateness_p50_ms ..., lateness_max_ms, clock.

    counts: `lateness_counts`, by these keys or by more. `clock`: LogAppendTime, CreateTime, or both.
    """
    counted = counts.groupBy(*keys, "value_ms").agg(
        F.min("low_ms").alias("low_ms"),
        F.max("high_ms").alias("high_ms"),
        *(F.sum(name).alias(name) for name in ("deliveries", *_CLOCKS.values())),
    )
    group = Window.partitionBy(*keys)
    by_value = group.orderBy("value_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    up_to, every = F.sum("deliveries").over(by_value), F.sum("deliveries").over(group)
    clocks = (F.when(F.sum(column) > 0, F.lit(name)) for name, column in _CLOCKS.items())
    ranked = counted.withColumns({"up_to": up_to, "all": every})
    reached = {p: F.col("up_to") * 100 >= F.col("all") * p for p in percentiles}
    return ranked.groupBy(*keys).agg(
        F.sum("deliveries").alias("deliveries"),
        F.min("low_ms").alias("lateness_min_ms"),
        *(F.min(F.when(is_so, F.col("value_ms"))).alias(f"lateness_p{p}_ms") for p, is_so in reached.items()),
        F.max("high_ms").alias("lateness_max_ms"),
        F.nullif(F.concat_ws(", ", *clocks), F.lit("")).alias("clock"),
    )


def lateness_bucket(value_ms: Column) -> Column:
    """Return `value_ms` rounded towards zero to four digits; below 10 s unchanged."""
    # No number of a BIGINT has more than 19 digits.
    rounded = F.when(F.abs(value_ms) < _EXACT_BELOW_MS, value_ms)
    for step in (10**zeros for zeros in range(1, 15)):
        rounded = rounded.when(F.abs(value_ms) < _EXACT_BELOW_MS * step, value_ms - value_ms % step)
    return rounded.otherwise(value_ms - value_ms % 10**15)
