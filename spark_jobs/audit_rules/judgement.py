"""The audit without its ways in and out: what was seen -> one row per origin, ready for the rules.

parsed timer topic --+--> requests ------------------------------+
                     +--> claims -> copies (not refused, fitting)-+--> fold by origin --> ids --> outcomes
real, rejected, receipts topics, the last run's evidence ---------+
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules import roll_copies as copies
from spark_jobs.audit_rules.classes import AuditLimits
from spark_jobs.audit_rules.id_chains import in_line
from spark_jobs.audit_rules.outcomes import compared, is_only_told, outcomes, without_contents
from spark_jobs.kafka.admin import Span

_ASKED = ("origin", "asked", "rolls", "moved_low", "moved_high")


@dataclass(frozen=True, kw_only=True)
class Observations:
    """`ends`: evidence of every other topic. `has_...`: where false, a step is left out."""

    parsed: DataFrame
    rejections: DataFrame
    ends: Sequence[DataFrame] = ()
    carried: DataFrame | None = None
    """Evidence of the last run."""
    carried_claims: DataFrame | None = None
    closed: DataFrame | None = None
    """Evidence of what earlier runs closed, and something new names; its copies are counted there."""
    undecided: DataFrame | None = None
    """Origins that stand behind the end of what could be read of the real topics and the rejected one."""
    gone: Sequence[Span] = ()
    """Before these spans the timer topic holds nothing any more."""
    unread: Sequence[Span] = ()
    """What stands before these was not asked for."""
    has_claims: bool = True
    has_ids: bool = True
    has_moves: bool = True


class Unjudged(NamedTuple):
    """How many could not be. `elsewhere`: origins outside what was asked for; `hidden`: see there."""

    elsewhere: int
    hidden: int

    def notes(self, outside: str) -> list[str]:
        """`outside`: where the requests of those elsewhere lie."""
        told = []
        if self.hidden:
            told.append(
                f"Pending, though due: {self.hidden:,} timers. Something of each stands behind a transaction"
                " (anybody's) that is still open on its topic, where no consumer reads it yet."
            )
        if self.elsewhere:
            told.append(f"Not judged, as their requests lie {outside}: {self.elsewhere:,} origins.")
        return told


def hidden(limits: AuditLimits) -> Column:
    """Of what `judged` gives: an open transaction alone keeps it from being missing."""
    left = F.expr("is_undecided AND requested AND deliveries = 0 AND rejections = 0 AND told_ended = 0")
    return left & (F.col("expected_ms") <= limits.as_of_ms - limits.settle_ms)


def claims_of(seen: Observations) -> DataFrame:
    """Every record in sight that says it is a copy, with `is_copy`."""
    claimed, asked = copies.claims(seen.parsed), evidence.requests(seen.parsed).select(*_ASKED)
    if seen.carried_claims is not None:
        claimed = claimed.unionByName(seen.carried_claims)
    refused = seen.rejections.select(F.col("origin").alias("place"))
    for kept in _kept(seen):
        # A refusal may be read a run before what it refuses.
        refused = refused.unionByName(kept.where("rejections > 0").select(F.col("origin").alias("place")))
        asked = asked.unionByName(kept.where(F.col("asked").isNotNull()).select(*_ASKED))
    return copies.judged(claimed, asked, refused, seen.gone, seen.unread, seen.parsed)


def judged(seen: Observations, *, as_evidence: bool = True, with_told: bool = False) -> DataFrame:
    """For classes.py. `as_evidence`: with all that a later run has to know. `with_told`: also those of which
    receipts alone are known, with `is_only_told`."""
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
        found = outcomes(folded.withColumn("previous", F.expr(empty)))
    else:
        found = outcomes(in_line(folded, has_moves=seen.has_moves))
    told = found.withColumn("is_only_told", is_only_told()) if with_told else found.where(~is_only_told())
    return _marked(told, seen.undecided)


def _marked(found: DataFrame, undecided: DataFrame | None) -> DataFrame:
    """With `is_undecided`."""
    if undecided is None:
        return found.withColumn("is_undecided", F.lit(False))
    marked = undecided.withColumn("is_undecided", F.lit(True))
    return found.join(marked, "origin", "left").withColumn("is_undecided", F.coalesce("is_undecided", F.lit(False)))


def _kept(seen: Observations) -> list[DataFrame]:
    """Evidence of earlier runs."""
    return [kept for kept in (seen.carried, seen.closed) if kept is not None]
