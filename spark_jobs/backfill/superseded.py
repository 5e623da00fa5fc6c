"""Which missing timers a later request has ended, also since the audit: by the timer topic, as the audit would tell it.

To a bridge that has lost a timer nothing is pending under its id. So neither its journal nor its progress says that a
cancel, or a newer timer, came behind it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules.evidence import evidence
from spark_jobs.audit_rules.id_chains import in_line

_NEEDED = ("topic", "partition", "offset", "requested_ms", "kind", "id", "malformed", "expected_ms")


def with_ids(parsed: DataFrame) -> DataFrame:
    """Of spark_jobs.audit_rules.requests what is needed here. A copy is in no line, and a move ends nothing."""
    asked = F.col("asked")
    named = parsed.where(asked["id"].isNotNull() & ~asked["kind"].isin("copy", "move"))
    return named.select("origin", *(asked[name].alias(name) for name in _NEEDED))


def superseded(named: DataFrame, rejections: DataFrame, rows: DataFrame) -> DataFrame:
    """`origin` and `ended_by` of those of `rows` (origin, requested_ms) whose id a later request has that was taken.

    `named`: see `with_ids`, of all from `rows` on. `rejections`: origin, error and rejected_ms of those refused.
    """
    ids = named.join(rows.select("origin", "requested_ms"), ["origin", "requested_ms"]).select("partition", "id")
    refused = rejections.groupBy("origin").agg(F.min("error").alias("error"), F.min("rejected_ms").alias("rejected_ms"))
    of_them = named.join(ids.distinct(), ["partition", "id"], "left_semi").dropDuplicates(["origin"])
    told = of_them.select("origin", F.struct(*_NEEDED).alias("asked")).join(refused, "origin", "left")
    lined = in_line(evidence(told), has_moves=False)
    found = lined.where(F.col("next").isNotNull()).select("origin", F.col("next.origin").alias("ended_by"))
    return found.join(rows.select("origin"), "origin", "left_semi")
