"""Verify which of the records that claim to be roll copies are copies, from the topics alone.

    origin t/0/7 asks for X   claim says X, rolls 1, not refused       a copy
                              claim says X, rolls 1, on timer.rejected a forgery that was refused: a request of its own
                              claim says Y, or rolls 3 before 2        no copy: must be refused, or counts as missing
                              claim says X, rolls 1, a second time     no copy: the same

A copy equals its request, follows it in its partition, and its `timer-rolls` is the next number. Its due time may
differ if a move with its id says so. That of a paused timer is PAUSED_MS later, which counts for nothing: whether the
timer was paused, its requests say, or the copies if retention has deleted these.
A forgery with the exact bytes of the awaited copy counts as that copy: the bridge accepts it, and nothing differs.
A copy of a recurring timer may be of a later occurrence, which is asked for by the first copy with its number, and has
the time that the rule gives (spark_jobs.audit_rules.series judges it). Else it equals its request, too.
If retention has deleted the request (before the log's start, or between two runs), its earliest copy is taken for it.
If the audit begins later, a claim to copy an earlier request is outside the range: it makes no row.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer.headers import PAUSED_MS
from spark_jobs.audit_rules import coverage, evidence, series
from spark_jobs.audit_rules.evidence import Observations
from spark_jobs.audit_rules.headers import lookup
from spark_jobs.audit_rules.requests import ASKED, CLAIM, RECORD, SAID, Feature, copy_claim_of
from spark_jobs.kafka.admin import Span

_OF_RULE = ("action", "due_ms", "occurrence", "scheduled_ms")
"""Fields of a recurring timer's copy that are judged by themselves."""
_MOVED = ("is_moved", "moved_low", "moved_high")
_KNOWN = ("origin", "asked", "rolls", "moved_low", "moved_high")


def claims(parsed: DataFrame) -> DataFrame:
    """Return the records of `parsed` (spark_jobs.audit_rules.requests) that claim to be copies."""
    return parsed.where(F.col(RECORD) == CLAIM).select(
        F.col("origin").alias("place"),
        *(F.col(f"asked.{name}") for name in ("topic", "partition", "offset", "requested_ms")),
        series.occurrence_origin(F.col("claimed"), F.col("says.occurrence")).alias("origin"),
        F.get(F.split("claimed", "/"), F.lit(2)).try_cast("bigint").alias("origin_offset"),
        "rolls",
        (F.col("says.due_ms") >= PAUSED_MS).alias("paused"),
        F.col("says").withField("due_ms", F.col("says.due_ms") % PAUSED_MS).alias("says"),
        "asked",
    )


def verified_claims(seen: Observations) -> DataFrame:
    """Return every record that claims to be a copy, with `is_copy`.

    is_witness: True if retention has deleted the request itself. is_held: True if it is a witness, and the last copy of
    a paused timer.
    """
    claimed, asked = claims(seen.parsed), evidence.requests(seen.parsed).select(*_KNOWN)
    if seen.carried_claims is not None:
        claimed = claimed.unionByName(seen.carried_claims)
    refused = seen.rejections.select(F.col("origin").alias("place"))
    for kept in seen.kept:
        # A refusal may be read one run before the refused record.
        refused = refused.unionByName(kept.where("rejections > 0").select(F.col("origin").alias("place")))
        asked = asked.unionByName(kept.where(F.col("asked").isNotNull()).select(*_KNOWN))
    columns = {"wanted": copy_claim_of(F.col("asked")), "is_known": F.lit(True), "before": F.col("rolls")}
    columns |= {"base": F.col("origin"), "moved_low": F.col("moved_low"), "moved_high": F.col("moved_high")}
    known = asked.select(*(column.alias(name) for name, column in columns.items()))
    rejected = refused.select("place").distinct().withColumn("is_refused", F.lit(True))
    based = claimed.withColumn("base", series.of(F.col("origin")))
    joined = based.join(known, "base", "left").join(rejected, "place", "left")
    has_moves = Feature.MOVES in seen.has
    joined = _with_moves(joined, seen.parsed) if has_moves else joined.withColumn("is_moved", F.lit(False))
    in_hole = coverage.is_in(seen.holes, F.col("topic"), F.col("partition"), F.col("origin_offset"))
    witness = _is_before(seen.deleted_before) | in_hole
    is_open = F.col("is_refused").isNull() & F.col("origin").isNotNull()
    agrees = F.when(F.col("is_known").isNull(), witness).otherwise(_equals_request())
    flagged = joined.withColumns({"is_witness": witness, "may_be": F.coalesce(is_open & agrees, F.lit(False))})
    # A claim that cannot be a copy is a group of its own, so that a flood of forgeries makes no long partition.
    group = F.when(F.col("may_be"), F.col("origin")).otherwise(F.col("place"))
    is_copy = (F.col("may_be") & _is_next_number()) | (is_open & _is_before(seen.excluded_before))
    is_last = F.lead("rolls").over(Window.partitionBy("group").orderBy("rolls", "offset")).isNull()
    is_held = F.col("is_witness") & F.col("paused") & is_last
    verified = flagged.withColumn("group", group).withColumns({"is_copy": is_copy, "is_held": is_held})
    return verified.drop("group", "may_be", "wanted", "is_known", "is_refused", "before", "base", *_MOVED)


def _with_moves(claimed: DataFrame, moves: DataFrame) -> DataFrame:
    """Return the claims with `is_moved`: True if a move names the claim's id or origin, and its due time."""
    says = F.col("says")
    # A claim without an id matches no move. It gets a key of its own, as Spark would send all nulls to one task.
    key = F.when(says["id"].isNotNull(), F.concat(F.lit(b"="), says["id"])).otherwise(F.col("place").cast("binary"))
    is_same = (F.col("partition") == F.col("move.partition")) & (says["due_ms"] == F.col("move.due_ms"))
    found = claimed.join(_times(moves, "id"), is_same & (key == F.concat(F.lit(b"="), F.col("move.id"))), "left")
    is_of = (F.col("base") == F.col("other.of_origin")) & (says["due_ms"] == F.col("other.due_ms"))
    by_origin = _times(moves, "of_origin").withColumnRenamed("move", "other")
    both = found.join(by_origin, is_of, "left")
    is_moved = F.col("move").isNotNull() | F.col("other").isNotNull()
    return both.withColumn("is_moved", is_moved).drop("move", "other")


def _equals_request() -> Column:
    """Return True if the claim equals its request, but for a due time that it was moved to."""
    says, wanted = F.col("says"), F.col("wanted")
    # A copy of a request in another scheduler's headers is native, and has no `timer-action`.
    is_plain = (wanted["action"] == "replace") & (says["action"] == "schedule")
    wanted = wanted.withField("action", F.when(is_plain, "schedule").otherwise(wanted["action"]))
    is_moved = F.col("is_moved") | says["due_ms"].between(F.col("moved_low"), F.col("moved_high"))
    as_moved = is_moved & says.eqNullSafe(wanted.withField("due_ms", says["due_ms"]))
    own = F.col("wanted")
    of_rule = F.struct(*(says[name].alias(name) if name in _OF_RULE else own[name].alias(name) for name in SAID))
    is_action = says["action"].eqNullSafe(wanted["action"])
    is_time = (says["occurrence"] >= 1) & ((says["due_ms"] == says["scheduled_ms"]) | is_moved)
    recurs = F.coalesce(says["rule"].isNotNull() & is_time & is_action & says.eqNullSafe(of_rule), F.lit(False))
    return says.eqNullSafe(wanted) | F.coalesce(as_moved, F.lit(False)) | recurs


def _is_next_number() -> Column:
    """Return True if `rolls` follows without a gap, and the claim is the first with this number in its group."""
    by_rolls = Window.partitionBy("group").orderBy("rolls", "offset")
    is_first = F.coalesce(F.lag("rolls").over(by_rolls) != F.col("rolls"), F.lit(True))
    earliest = F.first("rolls").over(by_rolls) - 1
    before = F.when(F.col("is_witness") | _is_later_occurrence(), earliest).otherwise(F.coalesce("before", F.lit(0)))
    rank = F.dense_rank().over(Window.partitionBy("group").orderBy("rolls"))
    return is_first & (F.col("rolls") - before == rank)


def _is_later_occurrence() -> Column:
    """Return True for a copy that asks for an occurrence, or copies such a one: its number is above 1."""
    return F.coalesce(F.col("says.occurrence") >= 2, F.lit(False))


def _times(moves: DataFrame, by: str) -> DataFrame:
    """Return the distinct times that each id (or origin) was moved to, as `move`."""
    asked = F.col("asked")
    times = moves.where((asked["kind"] == "move") & asked[by].isNotNull())
    move = F.struct(*(asked[name].alias(name) for name in ("partition", by, "due_ms"))).alias("move")
    return times.select(move).distinct()


def claim_evidence(told: DataFrame) -> DataFrame:
    """Return evidence of the verified claims: a copy counts for its request, another claim as a request."""
    # Built field by field: each withField of a chain would double the plan.
    own, said = F.col("asked"), F.col("says")
    fields = {name: own[name] for name in ASKED}
    is_later = _is_later_occurrence()
    offset = F.when(is_later, own["offset"]).otherwise(F.col("origin_offset"))
    fields |= {"offset": offset, "kind": said["action"], "malformed": F.lit(False), "occurrence": said["occurrence"]}
    by_rule_ms = F.coalesce(said["scheduled_ms"], said["due_ms"])
    fields |= {"id": said["id"], "due_ms": by_rule_ms, "expected_ms": F.greatest(by_rule_ms, own["requested_ms"])}
    stands_in = F.struct(*(column.alias(name) for name, column in fields.items()))
    is_copy = F.col("is_copy")
    at_ms, none = F.col("requested_ms"), F.lit(None).cast("bigint")
    held = F.struct(at_ms.alias("ms"), none.alias("ended_ms"), none.alias("answered_ms"), at_ms.alias("since_ms"))
    is_moved = said["scheduled_ms"] != said["due_ms"]  # of a recurring timer; of others, their moves say it
    # One pass, not one per kind: `told` depends on all requests.
    return told.select(
        F.when(is_copy, F.col("origin")).otherwise(F.col("place")).alias("origin"),
        F.when(~is_copy, own).when(F.col("is_witness") | is_later, stands_in).alias("asked"),
        F.when(is_copy, F.lit(1).cast("bigint")).alias("copies"),
        F.when(is_copy, F.col("rolls")).alias("rolls"),
        F.when(is_copy, said["scheduled_ms"]).alias("scheduled_ms"),
        F.when(is_copy & F.col("is_held"), held).alias("pause"),
        *(F.when(is_copy & is_moved, said["due_ms"]).alias(name) for name in ("moved_low", "moved_high")),
    )


def _is_before(spans: Sequence[Span]) -> Column:
    start = lookup({span.partition: span.start for span in reversed(spans)}, F.col("partition"))
    return F.coalesce(F.col("origin_offset") < start, F.lit(False))
