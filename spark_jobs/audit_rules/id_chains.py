"""The one rule for ids, replayed from the timer topic: a request with an id ends what is pending under it.

    partition 0, id x:   t/0/3 schedule   t/0/9 schedule   t/0/12 cancel        (t/0/10, refused, changes nothing)
    next of t/0/3 is t/0/9, next of t/0/9 is t/0/12; whether each came in time, spark_jobs.audit_rules.classes judges

Per partition and id, in order of offsets, by window functions: an id that is used a million times is one task's work,
sorted on disk; all others are spread. Copies are in no line, as they end nothing. A move ends nothing either: it counts
for the request that it follows, whatever had become of that by then.

A refusal at intake takes a request out of its line. One that was taken and refused by its target later (its time had
come, or its code is such) stays in: it had ended what came before.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

_WHEN_DUE = ("unknown-topic", "unknown-partition", "not-authorized", "expired")
"""Codes that only a timer gets whose time has come."""
_EITHER = ("too-large", "bad-target")
"""Codes of intake and of targets: the time of the refusal tells which."""


def in_line(folded: DataFrame, *, has_moves: bool = True) -> DataFrame:
    """`folded` (spark_jobs.audit_rules.evidence) with `next` and, for cancels, `previous`: kind, expected_ms, left."""
    asked = F.col("asked")
    stands = asked["id"].isNotNull() & ~asked["malformed"] & ~_refused_at_intake() & (asked["kind"] != "copy")
    line = F.concat_ws("/", asked["topic"], asked["partition"], F.hex(asked["id"]))
    lined = folded.withColumn("line", F.when(F.coalesce(stands, F.lit(False)), line).otherwise(F.col("origin")))
    order = _in_order()
    if has_moves:
        is_move = F.coalesce(asked["kind"] == "move", F.lit(False))
        lined, order = _moved(lined, is_move), _lines(is_move).orderBy("asked.offset")
    left = (F.coalesce("deliveries", F.lit(0)) > 0) | (F.coalesce("rejections", F.lit(0)) > 0)
    me = F.struct(
        asked["kind"].alias("kind"),
        F.col("origin").alias("origin"),
        asked["requested_ms"].alias("ms"),
        F.col("answered_ms").alias("answered_ms"),
        left.alias("left"),
    )
    expected_ms = F.greatest(asked["expected_ms"], "moved_high").alias("expected_ms")
    before = F.struct(asked["kind"].alias("kind"), expected_ms, left.alias("left"))
    found = lined.select("*", F.lead(me).over(order).alias("follower"), F.lag(before).over(order).alias("previous"))
    # What decided its class in an earlier run stays, unless the same request is in sight again and says more.
    kept = F.col("next").isNotNull() & ~F.col("next.origin").eqNullSafe(F.col("follower.origin"))
    return found.withColumn("next", F.when(kept, F.col("next")).otherwise(F.col("follower"))).drop("follower", "line")


def _moved(lined: DataFrame, is_move: Column) -> DataFrame:
    """`moved_low` and `moved_high` of timers, also by the moves that follow them here."""
    counted = lined.withColumn("turn", F.count_if(~is_move).over(_in_order()))
    of_turn = _lines("turn")
    time_ms = F.when(is_move & F.col("told_missed").isNull(), F.col("asked.due_ms"))  # else it moved nothing
    is_timer = F.col("asked.kind").isin("schedule", "replace")
    low = F.when(is_timer, F.least("moved_low", F.min(time_ms).over(of_turn)))
    high = F.when(is_timer, F.greatest("moved_high", F.max(time_ms).over(of_turn)))
    return counted.withColumns({"moved_low": low, "moved_high": high}).drop("turn")


def _in_order() -> WindowSpec:
    return _lines().orderBy("asked.offset")


def _lines(*more: Column | str) -> WindowSpec:
    """Lines begin alike, and a sort looks at the first 8 bytes first: so a hash goes before them."""
    return Window.partitionBy(F.xxhash64("line"), "line", *more)


def _refused_at_intake() -> Column:
    code, asked = F.col("error"), F.col("asked")
    overdue = (F.col("rejected_ms") >= asked["expected_ms"]) & (asked["kind"] != "move")
    # The bridge has topics of its own that the audit does not know: a request for one, due at once, is refused at once.
    overdue &= (code != "bad-target") | (asked["expected_ms"] > asked["requested_ms"])
    refused = F.when(code.isin(*_WHEN_DUE), F.lit(False)).when(code.isin(*_EITHER), ~overdue).otherwise(F.lit(True))
    return F.coalesce(F.when(code.isNotNull(), refused), F.lit(False))
