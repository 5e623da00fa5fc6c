"""One row per origin with all that the rules need: the request, its outcome, and the differences.

folded evidence + next + previous  ->  the request's fields, the first delivery's fields, requested, lateness_ms,
                                       altered: ["value", "headers", ...]
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from spark_jobs.audit_rules.headers import distinct_non_null

_COUNTS = ("copies", "deliveries", "rejections", "told_done", "told_ended")
TRACE = "trace-id"
"""Part of `altered`: the delivery has the trace id of another request."""
_PARTS = ("key", "value", "headers")


def with_differences(folded: DataFrame) -> DataFrame:
    """Return `folded` (spark_jobs.audit_rules.evidence) with `differs` and `told_..._ms`.

    No later step needs the contents.
    """
    told = {f"told_{end}_ms": F.col(f"got_{end}.deliver_ms") for end in ("low", "high")}
    return folded.withColumns({"differs": _parts_that_differ()} | told)


def without_contents(rows: DataFrame) -> DataFrame:
    """Return the rows without hashes of contents, which are most of a row, for a run that keeps no evidence."""
    lean = F.col("asked").dropFields("want", "own_key")
    return rows.drop("got_low", "got_high", "returned_low", "returned_high").withColumn("asked", lean)


def is_receipt_only() -> Column:
    """Return a column over `outcomes`: True if only receipts name the origin. Such an origin gets no row."""
    found = [F.col(count) > 0 for count in ("deliveries", "rejections", "copies")]
    return ~reduce(or_, found, F.col("requested"))


def outcomes(chained: DataFrame) -> DataFrame:
    """Return the rows for the rules, from those of spark_jobs.audit_rules.id_chains."""
    counted = chained.withColumns({name: F.coalesce(name, F.lit(0)) for name in _COUNTS})
    requested = counted.select(
        "*", "asked.*", "place.*", F.col("asked").isNotNull().alias("requested"), _altered().alias("altered")
    )
    requested = requested.withColumn("due_ms", F.coalesce("scheduled_ms", "due_ms"))
    by_rule_ms = F.greatest("requested_ms", F.when(F.col("scheduled_ms").isNotNull(), F.col("due_ms")))
    requested = requested.withColumn(
        "expected_ms", F.when(F.col("scheduled_ms").isNull(), F.col("expected_ms")).otherwise(by_rule_ms)
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
            "moved_low_ms": F.when(is_moved, F.least(_own_ms(), "moved_low")),
        }
    )


def _altered() -> Column:
    """Return the names of the parts that differ; null if nothing can be compared."""
    with_due_time = F.concat("differs", F.array(F.lit(names.DELIVER_MS)))
    return F.when(_due_time_differs(_own_ms()), with_due_time).otherwise(F.col("differs"))


def _own_ms() -> Column:
    """Return the due time of the request; of an occurrence its time by the rule, which its copies give."""
    return F.coalesce("scheduled_ms", "asked.due_ms")


def _parts_that_differ() -> Column:
    """Return the parts in which a delivered or rejected record differs from its request; null if not comparable.

    The due time is compared elsewhere (`_due_time_differs`), as moves may change it.
    """
    asked, place = F.col("asked"), F.col("place")
    want = {part: asked["want"][part] for part in _PARTS}
    got = want | {"topic": asked["target"], "control": F.lit(True)}
    told = {"control": "control-headers"}
    parts = [_differs("got", part, wanted, told.get(part, part)) for part, wanted in got.items()]
    wanted_partition = F.coalesce(asked["want_partition"], place["key_partition"])
    parts.append(F.when(place["delivered_partition"] != wanted_partition, "partition"))
    traces = [F.col(f"got_{end}.trace") for end in ("low", "high")]
    others = [trace.isNotNull() & ~trace.eqNullSafe(asked["trace"]) for trace in traces]
    parts.append(F.when(reduce(or_, others), TRACE))
    parts.append(_differs("got", "occurrence", asked["occurrence"], names.OCCURRENCE))
    # A delivery may come from an earlier copy than the last one, but not from a copy that does not exist.
    fits = F.coalesce(place["delivered_rolls"] <= F.coalesce("rolls", F.lit(0)), F.lit(False))
    parts.append(F.when(place.isNotNull() & F.col("got_low")["control"] & ~fits, names.ROLLS))
    parts.append(_differs("returned", "value", want["value"], "value"))
    kept_headers = F.col("returned_low.headers").isNotNull()
    parts.append(F.when(kept_headers, _differs("returned", "headers", want["headers"], "headers")))
    # The rejected record has the request's own key if it was refused at intake, the delivery's key if it was parked.
    other_key = asked["own_key"] != F.col("returned_low.key")
    parts.append(F.when(other_key, _differs("returned", "key", want["key"], "key")))
    is_timer = ~asked["kind"].isin("cancel", "move", "pause", "resume")
    return F.when(asked.isNotNull() & ~asked["malformed"] & is_timer, distinct_non_null(parts))


def _due_time_differs(own_ms: Column) -> Column:
    """Return True if the delivered due time is neither the request's own nor within its moves."""
    low, high = F.col("told_low_ms"), F.col("told_high_ms")
    fits = (low >= F.least(own_ms, "moved_low")) & (high <= F.greatest(own_ms, "moved_high"))
    return (F.col("deliveries") > 0) & ~F.coalesce(fits, F.lit(False))


def _differs(record: str, part: str, want: Column, name: str) -> Column:
    low, high = F.col(f"{record}_low"), F.col(f"{record}_high")
    return F.when(low.isNotNull() & ~(low[part].eqNullSafe(want) & high[part].eqNullSafe(want)), name)
