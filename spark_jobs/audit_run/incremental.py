"""An audit in parts, by day or by batch: each reads what is new, and the open timers that the one before it kept.

    day 1   new records                      -> judged -> requests/day=1   evidence/day=1/open=true|false   claims/day=1
    day 2   new records + open=true of day 1 -> judged -> requests/day=2   ...

Closed timers are read again only where something new names them: a delivery of what was delivered, cancelled or
rejected on an earlier day. In a clean run that is nothing, so a run reads its day. A row of a later day in `requests`
replaces one of the same origin of an earlier day. A day may be repeated; it begins where the day before ended.
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
from spark_jobs.audit_rules import roll_copies as copies
from spark_jobs.audit_rules.classes import AuditLimits, classify
from spark_jobs.audit_rules.evidence import evidence
from spark_jobs.audit_rules.judgement import Observations, Unjudged, claims_of, hidden, judged
from spark_jobs.audit_run import coverage as ranges
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.tables import folder, nothing, read_table, rows_in, write_table


@dataclass(frozen=True)
class Part:
    """`name`: of its folders, such as day=2026-01-31; names sort by time. `previous`: of the part before.

    `earlier`: requests of the parts before; `so_far`: those and this one's.
    """

    out: Path
    name: str
    previous: str | None
    timer_topic: str
    earlier: Sequence[Span]
    so_far: Sequence[Span]

    @property
    def has_claims(self) -> bool:
        """Whether any were carried."""
        return self.previous is not None and rows_in(folder(self.out, CLAIMS, self.previous)) > 0


def carried(spark: SparkSession, part: Part) -> tuple[DataFrame | None, DataFrame | None]:
    """Evidence of open timers, and the claims to be copies of them; None in the first run."""
    if part.previous is None:
        return None, None
    kept = spark.read.schema(EVIDENCE.spark_ddl()).parquet(str(open_folder(part.out, part.previous)))
    # Copies are counted anew, from the claims; the next of an id too, where that is still open.
    is_open = kept.select(F.col("origin").alias("again"))
    joined = kept.join(is_open, F.col("next.origin") == F.col("again"), "left")
    anew = {"copies": F.lit(None).cast("bigint"), "rolls": F.lit(None).cast("int")}
    anew["next"] = F.when(F.col("again").isNull(), F.col("next"))
    counted = joined.withColumns(anew).drop("again")
    if not part.has_claims:
        return counted, nothing(spark, CLAIMS.spark_ddl())
    return counted, read_table(spark, part.out, CLAIMS, part.previous)


def open_folder(out: Path, part: str) -> Path:
    """Evidence of what was open behind this part."""
    return folder(out, EVIDENCE, part) / "open=true"


def judge(
    spark: SparkSession,
    new: Observations,
    part: Part,
    limits: AuditLimits,
    tell: Callable[[DataFrame], None] | None = None,
) -> Unjudged:
    """Writes `requests`, `evidence` and `claims` of the part.

    `new` holds what is new, and what `carried` gave. `tell` writes `requests` in its own way.
    """
    again = _closed_ones_named(spark, new, part)
    seen = replace(new, closed=again)
    outcomes = judged(seen, with_told=True)
    before = ranges.before(part.timer_topic, part.so_far) & ~F.col("requested")
    # Refused today, but taken for a copy while it was new, of a timer that has ended since: nothing hangs on it.
    refused_late = F.expr("NOT requested AND deliveries = 0 AND error = 'not-ours'") & ~ranges.outside(
        part.timer_topic, part.earlier
    )
    marked = outcomes.withColumns({"before": before, "ahead": ranges.behind(part.timer_topic, part.so_far)})
    # A receipt that was read before its request: the next run has it no more.
    known = marked.where(~F.col("is_only_told") | F.col("ahead")).drop("is_only_told")
    counter = Observation("before")
    is_hidden = ~F.col("ahead") & hidden(limits)
    observed = known.observe(counter, F.count_if("before").alias("elsewhere"), F.count_if(is_hidden).alias("hidden"))
    kept = classify(observed.where(~F.col("before") & ~refused_late), limits).persist(StorageLevel.DISK_ONLY)
    try:
        rows = kept.where(~F.col("ahead"))
        if tell is None:
            write_table(rows, part.out, REQUESTS, part.name)
        else:
            tell(rows)
        _keep(kept, seen, part)
    finally:
        kept.unpersist()
    return Unjudged(**counter.get)


def _keep(kept: DataFrame, seen: Observations, part: Part) -> None:
    """What the next run needs, and what one needs that sees a closed timer named again."""
    stays = F.col("open") | F.col("ahead")
    rows = kept.withColumn("open", stays)
    # A record that says it is a copy is carried as a claim: it is decided anew, with what is known then.
    is_open_claim = stays & (F.coalesce(F.col("kind"), F.lit("")) == "copy")
    columns = [*EVIDENCE.arrow().names, "open"]
    target = str(folder(part.out, EVIDENCE, part.name))
    rows.where(~is_open_claim).select(columns).write.mode("overwrite").partitionBy("open").parquet(target)
    for kind in ("open=true", "open=false"):  # a reader asks for it also where nothing is
        (folder(part.out, EVIDENCE, part.name) / kind).mkdir(exist_ok=True)
    still_open = kept.where("open").select(F.col("origin").alias("still_open"))
    if not seen.has_claims:
        write_table(nothing(kept.sparkSession, CLAIMS.spark_ddl()), part.out, CLAIMS, part.name)
        return
    # Copies of what is open, and claims that are open themselves. What was refused is decided for ever.
    told = claims_of(seen)
    claims, taken = (rows.select(CLAIMS.arrow().names) for rows in (told, told.where("is_copy")))
    by_origin = taken.join(still_open, F.col("origin") == F.col("still_open"), "left_semi")
    by_place = claims.join(still_open, F.col("place") == F.col("still_open"), "left_semi")
    write_table(by_origin.unionByName(by_place).dropDuplicates(["place"]), part.out, CLAIMS, part.name)


def _closed_ones_named(spark: SparkSession, new: Observations, part: Part) -> DataFrame | None:
    """Evidence of the timers of earlier parts that were closed and are named by something new; None where none is."""
    if part.previous is None or new.carried is None or new.carried_claims is None:
        return None
    named = new.rejections.select("origin")
    for more in (*new.ends, *((copies.claims(new.parsed),) if new.has_claims else ())):
        named = named.unionByName(more.select("origin"))
    known = new.carried.select("origin").unionByName(new.carried_claims.select(F.col("place").alias("origin")))
    is_earlier = ~ranges.outside(part.timer_topic, part.earlier) & ~F.col("origin").startswith("?")
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
    return evidence(last.select("origin", "last.*"))
