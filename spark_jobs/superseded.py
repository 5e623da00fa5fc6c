"""Which missing timers a later request has ended, also since the audit: by the timer topic, as the audit would tell it.

To a bridge that has lost a timer nothing is pending under its id. So neither its journal nor its progress says that a
cancel, or a newer timer, came behind it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs import evidence
from spark_jobs.succession import in_line


def superseded(parsed: DataFrame, rejections: DataFrame, rows: DataFrame) -> DataFrame:
    """`origin` and `ended_by` of those of `rows` (origin, requested_ms) whose id a later request has that was taken.

    `parsed`: spark_jobs.requests of all from `rows` on. `rejections`: evidence of those that were refused.
    """
    asked = F.col("asked")
    # A copy is in no line, and a move ends nothing.
    named = parsed.where(asked["id"].isNotNull() & ~asked["kind"].isin("copy", "move")).select("origin", "asked")
    ids = named.withColumns({"requested_ms": asked["requested_ms"], "line": F.struct(asked["partition"], asked["id"])})
    wanted = ids.join(rows.select("origin", "requested_ms"), ["origin", "requested_ms"]).select("line").distinct()
    of_them = evidence.requests(ids.join(wanted, "line", "left_semi"))
    lined = in_line(evidence.fold(of_them.unionByName(rejections)), has_moves=False)
    found = lined.where(F.col("next").isNotNull()).select("origin", F.col("next.origin").alias("ended_by"))
    return found.join(rows.select("origin"), "origin", "left_semi")
