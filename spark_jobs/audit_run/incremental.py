"""An audit in parts, by day or by batch: each reads new records and the open timers of the part before.

    day 1   new records                      -> judged -> requests/day=1   evidence/day=1/open=true|false   claims/day=1
    day 2   new records + open=true of day 1 -> judged -> requests/day=2   ...

Closed timers are read again only if a new record names them: a delivery of a timer that was delivered, cancelled or
rejected on an earlier day. A clean run has none, so a run reads only its day. In `requests`, a row of a later day
replaces a row of the same origin of an earlier day. A day may be repeated; it begins where the day before ended.
A streaming audit does the same by batch (spark_jobs.audit_run.stream).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import CLAIMS, EVIDENCE
from schemas.tables import REQUESTS
from spark_jobs.audit_rules import roll_copies
from spark_jobs.audit_rules.classes import AuditLimits, classify
from spark_jobs.audit_rules.evidence import to_evidence
from spark_jobs.audit_rules.judgement import (
    Observations,
    UnjudgedCounts,
    build_outcomes,
    claims_of,
    hidden_by_transaction,
)
from spark_jobs.audit_run import coverage
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.tables import empty_table, folder, read_table, rows_in, write_table


@dataclass(frozen=True)
class Part:
    """One part of an incremental audit.

    name: of its folders, such as day=2026-01-31; names sort by time. previous: name of the part before.
    earlier: requests of the parts before; so_far: those and this part's.
    """

    out: Path
    name: str
    previous: str | None
    timer_topic: str
    earlier: Sequence[Span]
    so_far: Sequence[Span]

    @property
    def has_claims(self) -> bool:
        """True if the part before kept any claims."""
        return self.previous is not None and rows_in(folder(self.out, CLAIMS, self.previous)) > 0


def carried(spark: SparkSession, part: Part) -> tuple[DataFrame | None, DataFrame | None]:
    """Return the evidence of open timers and the claims to be copies of them; None in the first run."""
    if part.previous is None:
        return None, None
    kept = spark.read.schema(EVIDENCE.spark_ddl()).parquet(str(open_folder(part.out, part.previous)))
    # Recompute copies, from the claims, and `next` if that request is still open.
    is_open = kept.select(F.col("origin").alias("again"))
    joined = kept.join(is_open, F.col("next.origin") == F.col("again"), "left")
    reset = {"copies": F.lit(None).cast("bigint"), "rolls": F.lit(None).cast("int")}
    reset["next"] = F.when(F.col("again").isNull(), F.col("next"))
    counted = joined.withColumns(reset).drop("again")
    if not part.has_claims:
        return counted, empty_table(spark, CLAIMS.spark_ddl())
    return counted, read_table(spark, part.out, CLAIMS, part.previous)


def open_folder(out: Path, part: str) -> Path:
    """Return the folder with the evidence of timers that were open after this part."""
    return folder(out, EVIDENCE, part) / "open=true"


def judge(
    spark: SparkSession,
    new: Observations,
    part: Part,
    limits: AuditLimits,
    write_requests: Callable[[DataFrame], None] | None = None,
) -> UnjudgedCounts:
    """Judge a part and write its `requests`, `evidence` and `claims`.

    new: new records, and the results of `carried`. write_requests: replaces the default writer.
    """
    again = _closed_ones_named(spark, new, part)
    seen = replace(new, closed=again)
    outcomes = build_outcomes(seen, with_receipt_only=True)
    before = coverage.is_before(part.timer_topic, part.so_far) & ~F.col("requested")
    # A claim that was taken for a copy when it was new, refused now, and whose timer has ended since: ignore it.
    refused_late = F.expr("NOT requested AND deliveries = 0 AND error = 'not-ours'") & ~coverage.is_outside(
        part.timer_topic, part.earlier
    )
    marked = outcomes.withColumns({"before": before, "ahead": coverage.is_after(part.timer_topic, part.so_far)})
    # Keep a receipt that was read before its request: the next run does not read it again.
    known = marked.where(~F.col("is_receipt_only") | F.col("ahead")).drop("is_receipt_only")
    counter = Observation("before")
    is_hidden = ~F.col("ahead") & hidden_by_transaction(limits)
    observed = known.observe(counter, F.count_if("before").alias("elsewhere"), F.count_if(is_hidden).alias("hidden"))
    kept = classify(observed.where(~F.col("before") & ~refused_late), limits).persist(StorageLevel.DISK_ONLY)
    try:
        rows = kept.where(~F.col("ahead"))
        if write_requests is None:
            write_table(rows, part.out, REQUESTS, part.name)
        else:
            write_requests(rows)
        _keep(kept, seen, part)
    finally:
        kept.unpersist()
    return UnjudgedCounts(**counter.get)


def _keep(kept: DataFrame, seen: Observations, part: Part) -> None:
    """Write evidence and claims: for the next run, and for a later run that finds a closed timer named again."""
    stays = F.col("open") | F.col("ahead")
    rows = kept.withColumn("open", stays)
    # An open claim is kept as a claim: the next run verifies it again, with more evidence.
    is_open_claim = stays & (F.coalesce(F.col("kind"), F.lit("")) == "copy")
    columns = [*EVIDENCE.arrow().names, "open"]
    target = str(folder(part.out, EVIDENCE, part.name))
    rows.where(~is_open_claim).select(columns).write.mode("overwrite").partitionBy("open").parquet(target)
    for kind in ("open=true", "open=false"):  # readers expect both folders
        (folder(part.out, EVIDENCE, part.name) / kind).mkdir(exist_ok=True)
    still_open = kept.where("open").select(F.col("origin").alias("still_open"))
    if not seen.has_claims:
        write_table(empty_table(kept.sparkSession, CLAIMS.spark_ddl()), part.out, CLAIMS, part.name)
        return
    # Keep copies of open timers, and claims that are open themselves. A refusal is final.
    told = claims_of(seen)
    claims, taken = (rows.select(CLAIMS.arrow().names) for rows in (told, told.where("is_copy")))
    by_origin = taken.join(still_open, F.col("origin") == F.col("still_open"), "left_semi")
    by_place = claims.join(still_open, F.col("place") == F.col("still_open"), "left_semi")
    write_table(by_origin.unionByName(by_place).dropDuplicates(["place"]), part.out, CLAIMS, part.name)


def _closed_ones_named(spark: SparkSession, new: Observations, part: Part) -> DataFrame | None:
    """Return the evidence of closed timers of earlier parts that a new record names; None if there are none."""
    if part.previous is None or new.carried is None or new.carried_claims is None:
        return None
    named = new.rejections.select("origin")
    for more in (*new.ends, *((roll_copies.claims(new.parsed),) if new.has_claims else ())):
        named = named.unionByName(more.select("origin"))
    known = new.carried.select("origin").unionByName(new.carried_claims.select(F.col("place").alias("origin")))
    is_earlier = ~coverage.is_outside(part.timer_topic, part.earlier) & ~F.col("origin").startswith("?")
    strays = named.where(is_earlier).join(known, "origin", "left_anti").distinct()
    if strays.isEmpty():
        return None
    *days, (order, last_name) = [level.split("=") for level in part.previous.split("/")]
    levels = ", ".join(f"`{level}` STRING" for level, _ in (*days, (order, last_name)))
    history = spark.read.schema(f"{EVIDENCE.spark_ddl()}, `open` STRING, {levels}").parquet(
        str(folder(part.out, EVIDENCE))
    )
    is_closed = (F.col("open") == "false") & (F.col(order) <= last_name)
    closed = history.where(is_closed).join(strays, "origin", "left_semi")
    last = closed.groupBy("origin").agg(F.max_by(F.struct(*EVIDENCE.arrow().names[1:]), order).alias("last"))
    return to_evidence(last.select("origin", "last.*"))
