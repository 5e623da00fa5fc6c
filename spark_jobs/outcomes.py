"""One row per origin with all that the rules look at: what was asked, what came of it, and what differs.

folded evidence + next + previous  ->  the request's fields, the first delivery's fields, requested, lateness_ms,
                                       altered: ["value", "headers", ...]
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas import headers as names
from spark_jobs.columns import standing

_COUNTS = ("copies", "deliveries", "rejections", "told_done", "told_ended")
_PARTS = ("key", "value", "headers")


def outcomes(lined: DataFrame) -> DataFrame:
    """From spark_jobs.succession. Receipts alone make no row: they prove, they do not ask."""
    seen = lined.where(F.col("asked").isNotNull() | (F.col("deliveries") > 0) | (F.col("rejections") > 0))
    counted = seen.withColumns({name: F.coalesce(name, F.lit(0)) for name in _COUNTS})
    requested = counted.select(
        "*", "asked.*", "place.*", F.col("asked").isNotNull().alias("requested"), _parts_that_differ().alias("altered")
    )
    is_moved = F.col("moved_low").isNotNull()
    said_ms = F.when(F.col("deliveries") > 0, F.col("got_low.deliver_ms"))
    due_ms = F.coalesce(said_ms, F.greatest("due_ms", "moved_high"))
    timed = requested.withColumn("due_ms", F.when(is_moved, due_ms).otherwise(F.col("due_ms")))
    expected_ms = F.when(is_moved, F.greatest("requested_ms", "due_ms")).otherwise(F.col("expected_ms"))
    return timed.withColumns(
        {
            "expected_ms": expected_ms,
            "lateness_ms": F.col("delivered_ms") - F.col("due_ms"),
            "ended_by": F.col("next.origin"),
            "ended_by_ms": F.col("next.ms"),
        }
    )


def _parts_that_differ() -> Column:
    """Of the records that name the origin, against the request. Null where nothing can be compared."""
    asked, place = F.col("asked"), F.col("place")
    want = {part: asked["want"][part] for part in _PARTS}
    got = want | {"topic": asked["target"], "control": F.lit(True)}
    told = {"control": "control-headers"}
    parts = [_differs("got", part, wanted, told.get(part, part)) for part, wanted in got.items()]
    parts.append(_other_time(asked["due_ms"]))
    parts.append(F.when(place["delivered_partition"] != asked["want_partition"], "partition"))
    # It may have been delivered from an earlier copy than the last; not from one that is not there.
    parts.append(F.when(place["delivered_rolls"] > F.coalesce("rolls", F.lit(0)), names.ROLLS))
    parts += [_differs("returned", part, want[part], part) for part in ("value", "headers")]
    # Parked after intake or refused at it: the rejected record may have either key.
    other_key = asked["own_key"] != F.col("returned_low.key")
    parts.append(F.when(other_key, _differs("returned", "key", want["key"], "key")))
    is_timer = ~asked["kind"].isin("cancel", "move", "pause", "resume")
    return F.when(asked.isNotNull() & ~asked["malformed"] & is_timer, standing(parts))


def _other_time(own_ms: Column) -> Column:
    """A time that is neither its own nor between those that requests moved it to."""
    low, high = F.col("got_low.deliver_ms"), F.col("got_high.deliver_ms")
    fits = (low >= F.least(own_ms, "moved_low")) & (high <= F.greatest(own_ms, "moved_high"))
    return F.when(F.col("got_low").isNotNull() & ~F.coalesce(fits, F.lit(False)), names.DELIVER_MS)


def _differs(record: str, part: str, want: Column, name: str) -> Column:
    low, high = F.col(f"{record}_low"), F.col(f"{record}_high")
    return F.when(low.isNotNull() & ~(low[part].eqNullSafe(want) & high[part].eqNullSafe(want)), name)
