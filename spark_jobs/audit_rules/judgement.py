"""Observations of all topics -> one row per origin, ready for the rules. No input or output.

parsed timer topic --+--> requests ------------------------------+
                     +--> claims -> copies (not refused, fitting)-+--> fold by origin --> ids --> outcomes
target, rejected, receipts topics, the last run's evidence -------+
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from schemas.audit_state import EVIDENCE
from schemas.tables import AuditClass
from spark_jobs.audit_rules import coverage, evidence, roll_copies, series
from spark_jobs.audit_rules.evidence import Observations
from spark_jobs.audit_rules.headers import distinct_non_null
from spark_jobs.audit_rules.id_chains import NO_PREVIOUS, link_ids
from spark_jobs.audit_rules.requests import Feature
from spark_jobs.audit_rules.verdicts import TRACE, AuditLimits
from spark_jobs.platform.tables import as_table

_PARTS = ("key", "value", "headers")
_OWN_MS = "coalesce(scheduled_ms, asked.due_ms)"
"""The due time of the request; of an occurrence its time by the rule, which its copies give."""
_TIMES = (
    {"due_ms": "coalesce(scheduled_ms, due_ms)"},
    {"expected_ms": "IF(scheduled_ms IS NULL, expected_ms, greatest(requested_ms, due_ms))"},
    {"due_ms": "IF(moved_low IS NULL, due_ms, coalesce(told_low_ms, greatest(due_ms, moved_high)))"},
    {
        "expected_ms": "IF(moved_low IS NULL, expected_ms, greatest(requested_ms, due_ms))",
        "lateness_ms": "delivered_ms - due_ms",
        "ended_by": "next.origin",
        "ended_by_ms": "next.ms",
        "moved_low_ms": f"IF(moved_low IS NULL, NULL, least({_OWN_MS}, moved_low))",
    },
)
"""Columns of an outcome, in steps: the time by the rule counts before the request's, and a move before both."""
_UNJUDGED = ("elsewhere", "hidden")
"""Columns that mark origins without a verdict: outside the range, or hidden by an open transaction."""


def counted(judged: DataFrame) -> tuple[DataFrame, Observation]:
    """Return the rows, and the counter of their columns `_UNJUDGED`.

    It has to follow the rules: Spark compiles the steps before a counter apart from those behind it.
    """
    counter = Observation("unjudged")
    return judged.observe(counter, *(F.count_if(name).alias(name) for name in _UNJUDGED)), counter


def unjudged_notes(counter: Observation, outside: str) -> list[str]:
    """Return notes for the report, once the rows are written. `outside`: says where the requests of `elsewhere` are."""
    elsewhere, hidden = (counter.get[name] for name in _UNJUDGED)
    told = []
    if hidden:
        told.append(
            f"Pending, though due: {hidden:,} timers. A record of each follows a transaction that is"
            " still open on its topic, so no consumer reads it yet."
        )
    if elsewhere:
        told.append(f"Not judged, as their requests lie {outside}: {elsewhere:,} origins.")
    return told


def hidden_by_transaction(limits: AuditLimits) -> Column:
    """Return a column over `build_outcomes`: True if only an open transaction keeps the timer from being missing."""
    left = F.expr("is_undecided AND requested AND deliveries = 0 AND rejections = 0 AND told_ended = 0")
    return left & (F.col("expected_ms") <= limits.as_of_ms - limits.settle_ms)


def build_outcomes(seen: Observations) -> DataFrame:
    """Return the outcomes for `classify`, with a row for origins that only receipts name (`is_receipt_only`)."""
    rows = evidence.requests(seen.parsed)
    for more in (seen.rejections, *seen.ends, *seen.kept):
        rows = rows.unionByName(more)
    if Feature.CLAIMS in seen.has:
        claims = roll_copies.claim_evidence(roll_copies.verified_claims(seen))
        rows = rows.unionByName(as_table(claims, EVIDENCE))
    if Feature.TRACES in seen.has:
        for asked in (seen.parsed, *seen.kept):
            rows = rows.unionByName(evidence.traces(asked))
    # A trace id counts only if both a request and a record without origin have it.
    tells = ~F.col("origin").startswith(evidence.TRACE) | (F.col("asked").isNotNull() & (F.col("deliveries") > 0))
    whole = evidence.fold(rows).where(tells)
    whole = series.with_endings(whole) if Feature.SERIES in seen.has else whole
    told = {f"told_{end}_ms": F.col(f"got_{end}.deliver_ms") for end in ("low", "high")}
    folded = whole.withColumns({"differs": _parts_that_differ()} | told)  # no later step needs the contents
    has_ids = Feature.IDS in seen.has
    found = _outcomes(link_ids(folded, seen.has) if has_ids else folded.withColumn("previous", F.expr(NO_PREVIOUS)))
    found = series.judged(found, seen.skew_ms) if Feature.SERIES in seen.has else series.without_facts(found)
    for name, origins in {"is_undecided": seen.undecided, "is_waived": seen.waived}.items():
        if origins is None:
            found = found.withColumn(name, F.lit(False))
        else:
            marked = origins.select("origin", F.lit(True).alias(name))
            found = found.join(marked, "origin", "left").withColumn(name, F.coalesce(name, F.lit(False)))
    place = F.col("topic"), F.col("partition"), F.col("offset")
    marks = {"in_hole": coverage.is_in(seen.holes, *coverage.parse_origin())}
    marks["before_hole"] = coverage.is_before_end(seen.holes, *place)
    marks["unread_margin_ms"] = coverage.unread_margin_ms(seen.since_ms, seen.rejected_since_ms, seen.rejected_gap_ms)
    found = found.withColumns(marks)
    if seen.pauses is not None:
        return found.join(F.broadcast(seen.pauses), "target", "left")
    return found.withColumns({name: F.lit(None).cast("bigint") for name in ("paused_ms", "resumed_ms")})


# -- the request beside its outcome


def is_receipt_only() -> Column:
    """Return a column over `build_outcomes`: True if only receipts name the origin. Such an origin gets no row."""
    return F.expr("NOT (requested OR deliveries > 0 OR rejections > 0 OR copies > 0)")


def _outcomes(chained: DataFrame) -> DataFrame:
    """Return the rows for the rules, from those of spark_jobs.audit_rules.id_chains."""
    counted = chained.withColumns({name: F.coalesce(name, F.lit(0)) for name in evidence.SUMS})
    rows = counted.select(
        "*", "asked.*", "place.*", F.col("asked").isNotNull().alias("requested"), _altered().alias("altered")
    )
    for step in _TIMES:
        rows = rows.withColumns({name: F.expr(text) for name, text in step.items()})
    return rows


def _altered() -> Column:
    """Return the names of the parts that differ; null if nothing can be compared."""
    fits = F.expr(f"told_low_ms >= least({_OWN_MS}, moved_low) AND told_high_ms <= greatest({_OWN_MS}, moved_high)")
    differs = (F.col("deliveries") > 0) & ~F.coalesce(fits, F.lit(False))
    return F.when(differs, F.concat("differs", F.array(F.lit(names.DELIVER_MS)))).otherwise(F.col("differs"))


def _parts_that_differ() -> Column:
    """Return the parts in which a delivered or rejected record differs from its request; null if not comparable.

    Not the due time (`_altered`), as moves may change it.
    """
    asked, place = F.col("asked"), F.col("place")
    want = {part: asked["want"][part] for part in _PARTS}
    is_read_alike = want["headers"].isNotNull()
    got = want | {"headers": F.coalesce(want["headers"], F.col("got_low.headers"))}
    got |= {"topic": asked["target"], "control": F.lit(True)}
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
    kept_headers = F.col("returned_low.headers").isNotNull() & is_read_alike
    parts.append(F.when(kept_headers, _differs("returned", "headers", want["headers"], "headers")))
    # The rejected record has the request's own key if it was refused at intake, the delivery's key if it was parked.
    other_key = asked["own_key"] != F.col("returned_low.key")
    parts.append(F.when(other_key, _differs("returned", "key", want["key"], "key")))
    is_timer = ~asked["kind"].isin("cancel", "move", "pause", "resume")
    return F.when(asked.isNotNull() & ~asked["malformed"] & is_timer, distinct_non_null(parts))


def _differs(record: str, part: str, want: Column, name: str) -> Column:
    low, high = F.col(f"{record}_low"), F.col(f"{record}_high")
    return F.when(low.isNotNull() & ~(low[part].eqNullSafe(want) & high[part].eqNullSafe(want)), name)


# -- two deliveries

OUT_OF_ORDER = "out-of-order"
OUT_OF_ORDER_MEANING = "delivered before an earlier request of its partition with the same due time"


def out_of_order(table: DataFrame, *, tolerance_ms: int, skew_ms: int) -> DataFrame:
    """Return the rows of REQUESTS that were delivered before an earlier request of the same due time.

        t/0/7   due 5000   orders/1/31
        t/0/9   due 5000   orders/1/30     out of order: its request is later (ARCHITECTURE.md, invariant 10)

    It is a relation of two deliveries, so it is not a class of a request. Compared are timers whose requests came
    before they were due, and that left within the tolerance, once, neither rolled nor moved. Others may have been held
    back by a limit or a roll, or were sent by a backfill.
    """
    is_plain = F.expr("deliveries = 1 AND coalesce(copies, 0) = 0 AND moved_low_ms IS NULL")
    in_time = (F.col("requested_ms") + skew_ms <= F.col("due_ms")) & (F.col("lateness_ms") <= tolerance_ms)
    is_sound = F.col("class").isin(AuditClass.DELIVERED.value, AuditClass.LATE.value)
    same = Window.partitionBy("topic", "partition", "delivered_topic", "delivered_partition", "due_ms")
    earlier = same.orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    compared = table.where(is_sound & is_plain & in_time)
    placed = compared.withColumn("earlier_offset", F.max("delivered_offset").over(earlier))
    return placed.where(F.col("delivered_offset") < F.col("earlier_offset")).drop("earlier_offset")
