"""The one rule for ids, replayed from the timer topic: a request with an id ends what is pending under it.

    partition 0, id x:   t/0/3 schedule   t/0/9 schedule   t/0/12 cancel        (t/0/10, refused, changes nothing)
    next of t/0/3 is t/0/9, next of t/0/9 is t/0/12; spark_jobs.audit_rules.verdicts judges whether each came in time

A chain is the requests of one partition and id, in order of offsets, by window functions: an id that is used a million
times is one task's work, sorted on disk; the other ids are distributed. Copies are in no chain, as they end nothing. A
move ends nothing either: it counts for the request before it, even if that had ended by then. The same holds for a
pause and a resume, which of a recurring timer count for all occurrences.

A cancel for RocketMQ's `topic+id` is in the chain of the whole text if a timer before it has that as its id; else in
the chain of the id, and only if the timer before it there waits for that topic.

A cancel, move, pause or resume by origin is in the chain of that timer if the timer is the last one before it there;
else in none. The chain of a timer without an id has no other requests.

The occurrences of a recurring timer (spark_jobs.audit_rules.series) have its place in the chain, in the order of their
numbers: the next request is the next of each, and the last occurrence is the one before that request.

A request that was refused at intake is in no chain. One that was accepted, and refused by its target later (it was due,
or only a target gives its code), is in its chain: it had ended the request before it.
"""

from collections.abc import Set

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.evidence import AMBIGUOUS_CODES, DELIVERY_CODES, REFUSED
from spark_jobs.audit_rules.requests import EVERY_FEATURE, MOVES, Feature
from spark_jobs.kafka.admin import FOREVER_MS

NO_PREVIOUS = "CAST(NULL AS STRUCT<kind: STRING, expected_ms: BIGINT, left: BOOLEAN, origin: STRING>)"
"""`previous` of a request that is in no chain."""
_IN_ORDER = ("at", "asked.occurrence")


def link_ids(folded: DataFrame, has: Set[Feature] = EVERY_FEATURE) -> DataFrame:
    """Return `folded` (spark_jobs.audit_rules.evidence) with `next` and `previous`: kind, expected_ms, left, origin."""
    asked = F.col("asked")
    is_taken = F.coalesce(~asked["malformed"] & ~_refused_at_intake() & (asked["kind"] != "copy"), F.lit(False))
    stands = is_taken & asked["id"].isNotNull()
    chain = F.when(stands, _chain_of(asked["id"])).otherwise(series.of(F.col("origin")))
    at = asked["offset"]
    if Feature.SERIES in has:  # a later occurrence is at the place of the request
        number = F.get(F.split(series.of(F.col("origin")), "/"), F.lit(2)).try_cast("bigint")
        at = F.when(F.coalesce(asked["occurrence"] >= 2, F.lit(False)), number).otherwise(at)
    chained = folded.withColumns({"chain": chain, "at": at})
    if Feature.WHOLE_IDS in has:
        chained = _with_whole_ids(chained, stands)
    if Feature.BY_ORIGIN in has:
        chained = _with_origins(chained, is_taken)
    apart: list[Column] = []
    if Feature.MOVES in has:
        is_move = F.coalesce(asked["kind"].isin(*MOVES), F.lit(False))
        chained, apart = _moved(chained, is_move), [is_move]
        chained = _paused(chained, is_move) if Feature.PAUSES in has else chained
    order = _chain(*apart).orderBy(*_IN_ORDER)
    left = (F.coalesce("deliveries", F.lit(0)) > 0) | (F.coalesce("rejections", F.lit(0)) > 0)
    held_ms = F.when(F.col("pause.ms").isNotNull(), F.coalesce("pause.ended_ms", F.lit(FOREVER_MS)))
    expected_ms = F.greatest("asked.expected_ms", "moved_high", held_ms).alias("expected_ms")
    requested_ms = asked["requested_ms"].alias("ms")
    me = F.struct("asked.kind", "origin", requested_ms, "answered_ms", left.alias("left"), expected_ms)
    follower = F.lead(me).over(order)
    if Feature.SERIES in has:  # the next one at another place: from the end of the chain, the last first one of a place
        is_first = F.coalesce(F.lag("at").over(order) != F.col("at"), F.lit(True))
        chained = chained.withColumn("is_first", is_first)
        from_end = _chain(*apart).orderBy(*map(F.desc, _IN_ORDER))
        later = from_end.rowsBetween(Window.unboundedPreceding, -1)
        follower = F.last(F.when(F.col("is_first"), me), ignorenulls=True).over(later)
    found = chained.select("*", follower.alias("follower"), F.lag(me).over(order).alias("previous"))
    # Keep the `next` of an earlier run, unless this run reads the same request again and knows more of it.
    kept = F.col("next").isNotNull() & ~F.col("next.origin").eqNullSafe(F.col("follower.origin"))
    follower = F.when(kept, F.col("next")).otherwise(F.col("follower").dropFields("expected_ms"))
    linked = found.withColumns({"next": follower, "follows": F.coalesce("previous.origin", "follows")})
    return linked.drop("follower", "chain", "at", "is_first", "turn")


def _with_whole_ids(chained: DataFrame, stands: Column) -> DataFrame:
    """Return `chained` with the chain of each cancel that has a `whole_id`: its origin if it ends nothing."""
    asked, is_timer = F.col("asked"), stands & F.col("asked.kind").isin("schedule", "replace")
    has_two = stands & asked["whole_id"].isNotNull()
    whole = F.when(has_two, _chain_of(asked["whole_id"])).otherwise(F.col("chain"))
    is_whole = has_two & F.coalesce(F.max(is_timer).over(_before("whole")), F.lit(False))
    chain = F.when(is_whole, F.col("whole")).otherwise(F.col("chain"))
    found = chained.withColumn("whole", whole).withColumn("chain", chain)
    waits_for = F.last(F.when(is_timer, asked["target"]), ignorenulls=True).over(_before("chain"))
    misses = has_two & (F.col("chain") != F.col("whole")) & ~waits_for.eqNullSafe(asked["target"])
    return found.withColumn("chain", F.when(misses, F.col("origin")).otherwise(F.col("chain"))).drop("whole")


def _with_origins(chained: DataFrame, is_taken: Column) -> DataFrame:
    """Return `chained` with the chain of each request by origin."""
    asked, is_timer = F.col("asked"), is_taken & F.col("asked.kind").isin("schedule", "replace")
    names_one = is_taken & asked["of_origin"].isNotNull()
    family = F.when(names_one, asked["of_origin"]).otherwise(F.col("origin"))
    found = chained.withColumn("family", family).withColumn("names_one", names_one)
    of_timer = F.max(F.when(is_timer, F.col("chain"))).over(_chain(by="family"))
    chain = F.when(F.col("names_one"), F.coalesce(of_timer, "origin")).otherwise(F.col("chain"))
    found = found.withColumn("chain", chain)
    last_timer = F.last(F.when(is_timer, F.col("origin")), ignorenulls=True).over(_before("chain"))
    misses = F.col("names_one") & ~series.of(last_timer).eqNullSafe(asked["of_origin"])
    found = found.withColumn("chain", F.when(misses, F.col("origin")).otherwise(F.col("chain")))
    return found.drop("family", "names_one")


def _moved(chained: DataFrame, is_move: Column) -> DataFrame:
    """Return `chained` with the moves that follow each timer counted in `moved_low` and `moved_high`."""
    counted = chained.withColumn("turn", F.max(F.when(~is_move, F.col("at"))).over(_chain().orderBy(*_IN_ORDER)))
    of_turn = _chain("turn")
    time_ms = F.when(is_move & F.col("told_missed").isNull(), F.col("asked.due_ms"))  # a missed move moves nothing
    # The copies of a recurring timer say which of its occurrences was moved, and to which time.
    is_timer = F.col("asked.kind").isin("schedule", "replace") & F.col("asked.rule").isNull()
    low = F.when(is_timer, F.least("moved_low", F.min(time_ms).over(of_turn))).otherwise(F.col("moved_low"))
    high = F.when(is_timer, F.greatest("moved_high", F.max(time_ms).over(of_turn))).otherwise(F.col("moved_high"))
    return counted.withColumns({"moved_low": low, "moved_high": high})


def _paused(turns: DataFrame, is_move: Column) -> DataFrame:
    """Return `turns` with `pause`: the last pause of each timer that began before it was delivered.

        pause 10:00, resume 10:05, pause 10:20, pause 10:30    rounds (10:00, ended 10:05) and (10:20, since 10:05)

    A request that found nothing to pause, resume or move ends a pause, too: the timer is not there any more.
    A pause that an earlier run has seen precedes all requests of this run, but for those that this run reads again.
    One that only a copy tells of has its own time as `since_ms`.
    """
    asked, seen = F.col("asked"), F.col("pause")
    at_ms, requested = asked["requested_ms"], ~seen["since_ms"].eqNullSafe(seen["ms"])
    is_new = at_ms >= F.coalesce(F.max(F.when(requested, seen["ms"])).over(_chain("turn")), F.lit(0))
    turns = turns.withColumn("counts", is_move & ~F.col("told_missed").eqNullSafe(REFUSED) & is_new)
    counts, missed = F.col("counts"), F.col("told_missed").isNotNull()
    is_end, is_open = counts & ((asked["kind"] != "pause") | missed), seen["ms"].isNotNull() & seen["ended_ms"].isNull()
    begun = F.when(counts & ~is_end, F.struct(at_ms.alias("ms"), F.col("answered_ms")))
    begun = begun.when(is_open, F.struct(seen["ms"], seen["answered_ms"]))
    left_ms, ended_ms = F.coalesce("place.delivered_ms", F.lit(FOREVER_MS)), F.when(is_end, at_ms)
    earlier = _chain("turn").orderBy(*_IN_ORDER).rowsBetween(Window.unboundedPreceding, -1)
    rows = turns.withColumns({"begun": begun, "round": F.count_if(is_end).over(earlier)})
    rows = rows.withColumn("began_ms", F.min("begun.ms").over(_chain("turn", "round")))
    since_ms = F.max(F.when(F.col("began_ms").isNotNull(), ended_ms)).over(earlier)
    parts = {
        "ms": F.col("began_ms"),
        "ended_ms": F.max(ended_ms).over(_chain("turn", "round")),
        "answered_ms": F.min("begun.answered_ms").over(_chain("turn", "round")),
        "since_ms": F.coalesce("pause.since_ms", since_ms),
    }
    whole = F.struct(*(part.alias(name) for name, part in parts.items()))
    rows = rows.withColumn("whole", F.when(F.col("begun").isNotNull(), whole))
    by_time = _chain("turn").orderBy(F.when(is_move, at_ms).otherwise(left_ms), *_IN_ORDER)
    last = F.last("whole", ignorenulls=True).over(by_time.rowsBetween(Window.unboundedPreceding, -1))
    own, is_timer = F.coalesce("whole", "pause"), asked["kind"].isin("schedule", "replace")
    pause = F.when(is_timer, F.greatest(last, F.when(own["ms"] <= left_ms, own)))
    return rows.withColumn("pause", pause).drop("counts", "begun", "round", "began_ms", "whole")


def _chain_of(id_: Column) -> Column:
    return F.concat_ws("/", F.col("asked.topic"), F.col("asked.partition"), F.hex(id_))


def _before(chain: str) -> WindowSpec:
    return _chain(by=chain).orderBy(*_IN_ORDER).rowsBetween(Window.unboundedPreceding, -1)


def _chain(*more: Column | str, by: str = "chain") -> WindowSpec:
    """Return a window by chain. A hash goes first: a sort compares 8 bytes first, which most chains share."""
    return Window.partitionBy(F.xxhash64(by), by, *more)


def _refused_at_intake() -> Column:
    code, asked = F.col("error"), F.col("asked")
    overdue = (F.col("rejected_ms") >= asked["expected_ms"]) & ~asked["kind"].isin(*MOVES)
    # The audit does not know all of the bridge's own topics: a request for one that is due at once is refused at once.
    overdue &= (code != "bad-target") | (asked["expected_ms"] > asked["requested_ms"])
    # A recurring timer is refused at intake if its copy would be too large, also if it is due at once.
    overdue &= asked["rule"].isNull() | F.coalesce(F.col("copies") > 0, F.lit(False))
    overdue &= ~F.col("told_missed").eqNullSafe(REFUSED)
    may_be_intake = ~code.isin(*AMBIGUOUS_CODES) | (~overdue & F.col("answered_ms").isNull())
    return F.coalesce(~code.isin(*DELIVERY_CODES) & may_be_intake, F.lit(False))
