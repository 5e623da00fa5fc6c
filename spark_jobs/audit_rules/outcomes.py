"""One row per origin with all that the rules look at: what was asked, what came of it, and what differs.

folded evidence + next + previous  ->  the request's fields, the first delivery's fields, requested, lateness_ms,
                                       altered: ["value", "headers", ...]
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas import headers as names
from spark_jobs.audit_rules.headers import standing

_COUNTS = ("copies", "deliveries", "rejections", "told_done", "told_ended")
_PARTS = ("key", "value", "headers")


def compared(folded: DataFrame) -> DataFrame:
    """`folded` (spark_jobs.audit_rules.evidence) with `differs` and `told_..._ms`: all that contents are needed for."""
    told = {f"told_{end}_ms": F.col(f"got_{end}.deliver_ms") for end in ("low", "high")}
    return folded.withColumns({"differs": _parts_that_differ()} | told)


def without_contents(compared_: DataFrame) -> DataFrame:
    """Most of a row is digests: what is judged once, and not kept as evidence, is moved and sorted without them."""
    lean = F.col("asked").dropFields("want", "own_key")
    return compared_.drop("got_low", "got_high", "returned_low", "returned_high").withColumn("asked", lean)


def is_only_told() -> Column:
    """Of `outcomes`. Receipts alone make no row of a table: they prove, they do not ask."""
    found = [F.col(count) > 0 for count in ("deliveries", "rejections", "copies")]
    return ~reduce(or_, found, F.col("requested"))


def outcomes(lined: DataFrame) -> DataFrame:
    """From spark_jobs.audit_rules.id_chains."""
    counted = lined.withColumns({name: F.coalesce(name, F.lit(0)) for name in _COUNTS})
    requested = counted.select(
        "*", "asked.*", "place.*", F.col("asked").isNotNull().alias("requested"), _altered().alias("altered")
    )
    is_moved = F.col("moved_low").isNotNull()
    due_ms = F.coalesce("told_low_ms", F.greatest("due_ms", "moved_high"))
    timed = requested.withColumn("due_ms", F.when(is_moved, due_ms).otherwise(F.col("due_ms")))
    expected_ms = F.when(is_moved, F.greatest("requested_ms", "due_ms")).otherwise(F.col("expected_ms"))
    return timed.withColumns(
        {
            "expected_ms": expected_ms,
            "lateness_ms": F.col("delivered_ms") - F.col("due_ms"),
            "ended_by": F.col("next.origin"),
            "ended_by_ms": F.col("next.ms"),
            "moved_low_ms": F.when(is_moved, F.least("asked.due_ms", "moved_low")),
        }
    )


def _altered() -> Column:
    """Null where nothing can be compared."""
    return F.array_union("differs", standing([_other_time(F.col("asked.due_ms"))]))


def _parts_that_differ() -> Column:
    """Of the records that name the origin, against the request, but for its time, which moves may change.

    Null where nothing can be compared.
    """
    asked, place = F.col("asked"), F.col("place")
    want = {part: asked["want"][part] for part in _PARTS}
    got = want | {"topic": asked["target"], "control": F.lit(True)}
    told = {"control": "control-headers"}
    parts = [_differs("got", part, wanted, told.get(part, part)) for part, wanted in got.items()]
    parts.append(F.when(place["delivered_partition"] != asked["want_partition"], "partition"))
    # It may have been delivered from an earlier copy than the last; not from one that is not there.
    fits = F.coalesce(place["delivered_rolls"] <= F.coalesce("rolls", F.lit(0)), F.lit(False))
    parts.append(F.when(place.isNotNull() & F.col("got_low")["control"] & ~fits, names.ROLLS))
    parts += [_differs("returned", part, want[part], part) for part in ("value", "headers")]
    # Parked after intake or refused at it: the rejected record may have either key.
    other_key = asked["own_key"] != F.col("returned_low.key")
    parts.append(F.when(other_key, _differs("returned", "key", want["key"], "key")))
    is_timer = ~asked["kind"].isin("cancel", "move", "pause", "resume")
    return F.when(asked.isNotNull() & ~asked["malformed"] & is_timer, standing(parts))


def _other_time(own_ms: Column) -> Column:
    """A time that is neither its own nor between those that requests moved it to."""
    low, high = F.col("told_low_ms"), F.col("told_high_ms")
    fits = (low >= F.least(own_ms, "moved_low")) & (high <= F.greatest(own_ms, "moved_high"))
    return F.when((F.col("deliveries") > 0) & ~F.coalesce(fits, F.lit(False)), names.DELIVER_MS)


def _differs(record: str, part: str, want: Column, name: str) -> Column:
    low, high = F.col(f"{record}_low"), F.col(f"{record}_high")
    return F.when(low.isNotNull() & ~(low[part].eqNullSafe(want) & high[part].eqNullSafe(want)), name)
