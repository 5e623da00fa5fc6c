"""Find missing timers that a later request has ended, even since the audit: by the timer topic, as in the audit.

If a bridge has lost a timer, nothing is pending under its id: neither journal nor progress shows that a later cancel or
timer has ended it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules.evidence import to_evidence
from spark_jobs.audit_rules.id_chains import link_ids

_NEEDED = (
    "topic",
    "partition",
    "offset",
    "requested_ms",
    "kind",
    "id",
    "malformed",
    "expected_ms",
    "target",
    "whole_id",
    "of_origin",
)


def with_ids(parsed: DataFrame) -> DataFrame:
    """Return the columns of parsed requests with an id or `of_origin`, without copies and moves, which end nothing."""
    asked = F.col("asked")
    has_name = asked["id"].isNotNull() | asked["of_origin"].isNotNull()
    named = parsed.where(has_name & ~asked["kind"].isin("copy", "move"))
    return named.select("origin", *(asked[name].alias(name) for name in _NEEDED))


def superseded(named: DataFrame, rejections: DataFrame, rows: DataFrame) -> DataFrame:
    """Return `origin` and `ended_by` of the `rows` (origin, requested_ms) that a later accepted request has ended.

    named: `with_ids` of all requests from `rows` on. rejections: origin, error and rejected_ms of rejected records.
    """
    ids = named.join(rows.select("origin", "requested_ms"), ["origin", "requested_ms"]).select("partition", "id")
    refused = rejections.groupBy("origin").agg(F.min("error").alias("error"), F.min("rejected_ms").alias("rejected_ms"))
    by_whole_id = ids.select("partition", F.col("id").alias("whole_id")).distinct()
    same_id = named.where(F.col("id").isNotNull()).join(ids.distinct(), ["partition", "id"], "left_semi")
    whole = named.where(F.col("whole_id").isNotNull())
    same_whole_id = whole.join(by_whole_id, ["partition", "whole_id"], "left_semi")
    of_them = same_id.unionByName(same_whole_id).dropDuplicates(["origin"])
    told = of_them.select("origin", F.struct(*_NEEDED).alias("asked")).join(refused, "origin", "left")
    linked = link_ids(to_evidence(told), has_moves=False)
    found = linked.where(F.col("next").isNotNull()).select("origin", F.col("next.origin").alias("ended_by"))
    by_origin = named.where(F.col("of_origin").isNotNull() & ~F.col("malformed")).join(refused, "origin", "left_anti")
    cancelled = by_origin.groupBy(F.col("of_origin").alias("origin")).agg(F.min("origin").alias("ended_by"))
    ended = found.unionByName(cancelled).dropDuplicates(["origin"])
    return ended.join(rows.select("origin"), "origin", "left_semi")
