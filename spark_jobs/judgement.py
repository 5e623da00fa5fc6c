"""The audit without its ways in and out: what was seen -> one row per origin, ready for the rules.

parsed timer topic --+--> requests ------------------------------+
                     +--> claims -> copies (not refused, fitting)-+--> fold by origin --> ids --> outcomes
real, rejected, receipts topics, the last run's evidence ---------+
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs import copies, evidence
from spark_jobs.brokers import Span
from spark_jobs.outcomes import compared, outcomes, without_contents
from spark_jobs.succession import in_line

_ASKED = ("origin", "asked", "rolls", "moved_low", "moved_high")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """`ends`: evidence of every other topic. `has_...`: where false, a step is left out."""

    parsed: DataFrame
    rejections: DataFrame
    ends: Sequence[DataFrame] = ()
    carried: DataFrame | None = None
    """Evidence of the last run."""
    carried_claims: DataFrame | None = None
    closed: DataFrame | None = None
    """Evidence of what earlier runs closed, and something new names; its copies are counted there."""
    gone: Sequence[Span] = ()
    """Before these spans the timer topic holds nothing any more."""
    unread: Sequence[Span] = ()
    """What stands before these was not asked for."""
    has_claims: bool = True
    has_ids: bool = True
    has_moves: bool = True


def claims_of(seen: Seen) -> DataFrame:
    """Every record in sight that says it is a copy, with `is_copy`."""
    claimed, asked = copies.claims(seen.parsed), evidence.requests(seen.parsed).select(*_ASKED)
    if seen.carried_claims is not None:
        claimed = claimed.unionByName(seen.carried_claims)
    for kept in _kept(seen):
        asked = asked.unionByName(kept.where(F.col("asked").isNotNull()).select(*_ASKED))
    refused = seen.rejections.select(F.col("origin").alias("place"))
    return copies.judged(claimed, asked, refused, seen.gone, seen.unread, seen.parsed)


def judged(seen: Seen, *, as_evidence: bool = True) -> DataFrame:
    """For spark_jobs.classes. `as_evidence`: with all that a later run has to know."""
    rows = evidence.requests(seen.parsed)
    for more in (seen.rejections, *seen.ends, *_kept(seen)):
        rows = rows.unionByName(more)
    if seen.has_claims:
        rows = rows.unionByName(evidence.evidence(copies.evidence(claims_of(seen))))
    folded = compared(evidence.fold(rows))
    if not as_evidence:
        folded = without_contents(folded)
    if not seen.has_ids:
        empty = "CAST(NULL AS STRUCT<kind: STRING, expected_ms: BIGINT, left: BOOLEAN>)"
        return outcomes(folded.withColumn("previous", F.expr(empty)))
    return outcomes(in_line(folded, has_moves=seen.has_moves))


def _kept(seen: Seen) -> list[DataFrame]:
    """Evidence of earlier runs."""
    return [kept for kept in (seen.carried, seen.closed) if kept is not None]
