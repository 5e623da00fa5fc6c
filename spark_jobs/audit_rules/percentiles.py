"""Percentiles of lateness: count each value, then look up the values at the ranks.

    rows, any number --by keys and value--> counts, few --cumulative sum--> p50, p99, ...: one row per group

The p-th percentile is the least value that p of a hundred deliveries do not exceed: exact below 10 s, beyond that
rounded to four digits. A group has at most about 9,000 values for each power of ten, and the rows are read once.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

_CLOCKS = ("CreateTime", "LogAppendTime")
_EXACT_BELOW_MS = 10_000


def lateness_percentiles(delivered: DataFrame, *keys: str, percentiles: Sequence[int] = (50, 99)) -> DataFrame:
    """Return a row for each group by `keys`: deliveries, lateness_min_ms, lateness_p50_ms ..., lateness_max_ms, clock.

    `delivered`: lateness_ms, not null, and clock. `clock`: LogAppendTime, CreateTime, or both.
    """
    lateness = F.col("lateness_ms")
    counted = delivered.groupBy(*keys, lateness_bucket(lateness).alias("value")).agg(
        F.count("*").alias("count"),
        F.min(lateness).alias("low"),
        F.max(lateness).alias("high"),
        *(F.count_if(F.col("clock") == name).alias(name) for name in _CLOCKS),
    )
    group = Window.partitionBy(*keys)
    up_to = F.sum("count").over(group.orderBy("value").rowsBetween(Window.unboundedPreceding, Window.currentRow))
    ranked = counted.withColumns({"up_to": up_to, "all": F.sum("count").over(group)})
    reached = {p: F.col("up_to") * 100 >= F.col("all") * p for p in percentiles}
    return ranked.groupBy(*keys).agg(
        F.sum("count").alias("deliveries"),
        F.min("low").alias("lateness_min_ms"),
        *(F.min(F.when(is_so, F.col("value"))).alias(f"lateness_p{p}_ms") for p, is_so in reached.items()),
        F.max("high").alias("lateness_max_ms"),
        _clocks().alias("clock"),
    )


def lateness_bucket(value_ms: Column) -> Column:
    """Return `value_ms` rounded towards zero to four digits; below 10 s unchanged."""
    digits = F.length(F.abs(value_ms).cast("string"))
    step = F.pow(F.lit(10), digits - 4).cast("bigint")
    return F.when(F.abs(value_ms) < _EXACT_BELOW_MS, value_ms).otherwise(value_ms - value_ms % step)


def _clocks() -> Column:
    told = (F.when(F.sum(name) > 0, F.lit(name)) for name in _CLOCKS)
    return F.nullif(F.concat_ws(", ", *told), F.lit(""))
