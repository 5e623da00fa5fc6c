"""Order of deliveries: timers of one due time in one partition of the timer topic leave in the order of their requests.

    origin        due_ms   delivered
    t/0/7         5000     orders/1/31
    t/0/9         5000     orders/1/30     out of order: its request is later

It is a relation of two deliveries, so it is not a class of a request. The invariant: ARCHITECTURE.md, 10.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from schemas.tables import AuditClass

OUT_OF_ORDER = "out-of-order"
OUT_OF_ORDER_MEANING = "delivered before an earlier request of its partition with the same due time"


def out_of_order(table: DataFrame, *, tolerance_ms: int, skew_ms: int) -> DataFrame:
    """Return the rows of REQUESTS that were delivered before an earlier request of the same due time.

    Compared are timers whose requests came before they were due, and that left within the tolerance, once, neither
    rolled nor moved. Others may have been held back by a limit or a roll, or were sent by a backfill.
    """
    is_plain = F.expr("deliveries = 1 AND coalesce(copies, 0) = 0 AND moved_low_ms IS NULL")
    in_time = (F.col("requested_ms") + skew_ms <= F.col("due_ms")) & (F.col("lateness_ms") <= tolerance_ms)
    is_sound = F.col("class").isin(AuditClass.DELIVERED.value, AuditClass.LATE.value)
    same = Window.partitionBy("topic", "partition", "delivered_topic", "delivered_partition", "due_ms")
    earlier = same.orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    compared = table.where(is_sound & is_plain & in_time)
    placed = compared.withColumn("earlier_offset", F.max("delivered_offset").over(earlier))
    return placed.where(F.col("delivered_offset") < F.col("earlier_offset")).drop("earlier_offset")
