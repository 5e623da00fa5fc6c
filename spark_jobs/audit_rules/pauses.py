"""Pauses of target topics, from the control topic: during which time may the timers of a target wait?

    pause/timer.requests/orders  on at 10:00, off at 10:20   ->  orders  paused_ms 10:00  resumed_ms 10:20
    pause/timer.requests/bills   on at 11:00                 ->  bills   paused_ms 11:00  resumed_ms null

The last pause of a target counts. The control topic is compacted, so the records of earlier ones may be gone. The same
format as kafka_timer.control, written a second time on purpose.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

_KEY = r"\Apause/([^/]+)/([^/]+)\z"


def pauses(records: DataFrame, timer_topic: str) -> DataFrame:
    """Return a row for each target of the timer topic that was paused: target, paused_ms, resumed_ms."""
    key = F.col("key").cast("string")
    is_on = F.from_json(F.col("value").cast("string"), "v INT, on BOOLEAN")["on"]
    told = records.select(
        F.regexp_extract(key, _KEY, 1).alias("timer_topic"),
        F.regexp_extract(key, _KEY, 2).alias("target"),
        "offset",
        F.col("timestamp_ms").alias("ms"),
        is_on.alias("is_on"),
    ).where((F.col("timer_topic") == timer_topic) & F.col("is_on").isNotNull())
    before = F.coalesce(F.lag("is_on").over(Window.partitionBy("target").orderBy("offset")), F.lit(False))
    turns = told.withColumn("before", before).where(F.col("is_on") != F.col("before"))
    last = turns.groupBy("target").agg(
        F.max_by(F.when(F.col("is_on"), F.col("ms")), F.when(F.col("is_on"), F.col("offset"))).alias("paused_ms"),
        F.max_by(F.struct("is_on", "ms"), "offset").alias("last"),
    )
    return last.select("target", "paused_ms", F.when(~F.col("last.is_on"), F.col("last.ms")).alias("resumed_ms"))
