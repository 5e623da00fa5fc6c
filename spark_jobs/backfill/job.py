"""Deliver missing timers: each once, and none that a bridge will still deliver.

    AUDIT/requests, class missing --1--> settled by progress and journal? --2--> not delivered or marked since?
      --3--> body from the timer topic, or from an archive --4--> real topic + mark on timer.backfilled, one transaction

1. A timer that waits in a store, is held, is a copy in flight, or was cancelled, is skipped (undeliverable.py).
2. Read after step 1, to the ends of the topics: a bridge commits a delivery and its progress in one transaction.
   A timer whose id a later request has is never sent (superseded.py). If its real topic may have deleted its delivery,
   it is sent only with --although-unknown.
3. Key, value and foreign headers as they were sent; a request that is deleted is reported.
4. By the transactional id `<group>-backfill-<timer topic>-<partition>`: it fences an older run, then reads the marks.

Without --apply nothing is sent. OUT/backfill has the outcome of each timer (schemas.tables.BACKFILL).
Exit codes: 0 done, 1 trouble, or some could not be sent, 2 wrong arguments.
"""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas import headers as names
from schemas.audit_state import OPEN_VERDICTS
from schemas.profiles import DEFAULT_PROFILES
from schemas.tables import BACKFILL, REQUESTS, AuditClass
from spark_jobs.archive import archive_ends, archived, require_archive
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules.profiles import translated
from spark_jobs.audit_rules.requests import requests
from spark_jobs.audit_run.arguments import CHECKPOINT, make_folder
from spark_jobs.audit_run.daily_spans import done_days
from spark_jobs.audit_run.read_plan import CLOCK_SKEW_MS
from spark_jobs.audit_run.stream_batches import last_committed_part
from spark_jobs.backfill.publish import BODIES, SENT, WAITS, JudgeTask, PublishTask, ddl, now_ms
from spark_jobs.backfill.superseded import superseded, with_ids
from spark_jobs.backfill.undeliverable import SKEW_MS
from spark_jobs.errors import UsageError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.exit_codes import command
from spark_jobs.platform.flags import Option, Profiles, Setting, directory, job_parser, number, resolved, switch
from spark_jobs.platform.session import job_session
from spark_jobs.platform.tables import read_records, read_table, write_table

_NEVER_MS = 2**62
_DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class BackfillArguments:
    """Raises UsageError with the argument's name."""

    access: KafkaAccess
    audit: Annotated[Path, directory("the --out of the audit")]
    out: Annotated[Path, directory("where it tells of each; default: --audit", required=False)]
    timer_topic: Setting = "timer.requests"
    rejected_topic: Setting = "timer.rejected"
    journal_topic: Annotated[
        str, Option(is_setting=True, topic_key="journal_topic", metavar="NAME", help="default %(default)s")
    ] = "timer.journal"
    backfilled_topic: Setting = "timer.backfilled"
    group: Setting = "timer-bridge"
    profiles: Profiles = DEFAULT_PROFILES
    archive: Annotated[Path | None, directory("the --out of archive, for requests that are gone")] = None
    apply: Annotated[bool, switch("send; without it nothing is sent")] = False
    although_unknown: Annotated[
        bool,
        switch("also what its topic may have had and forgotten (cannot-tell): for those who have looked elsewhere"),
    ] = False
    limit: Annotated[int | None, number("no more than these, earliest due first", metavar="N")] = None
    per_s: Annotated[int | None, number("records a second; default: no limit", "--rate", metavar="N")] = None
    master: str | None = None
    jars: Path | None = None

    def __post_init__(self) -> None:
        is_begun = (self.audit / CHECKPOINT).exists() and last_committed_part(self.audit) is None
        if is_begun or not (self.audit / REQUESTS.name).is_dir():
            raise UsageError(f"--audit {self.audit} holds no audit: give the --out of `timer-bridge audit`")
        if self.archive is not None:
            require_archive(self.archive)
        for name in ("limit", "per_s"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}: give 1 or more")


@dataclass(frozen=True)
class BackfillResult:
    """Counts of missing timers by outcome."""

    out: Path
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 1 if any(name.startswith("failed") for name in self.counts) else 0


def run_backfill(arguments: BackfillArguments) -> BackfillResult:
    """Run a backfill. Raises JobFailedError if it must stop; timers sent by then are marked."""
    make_folder(arguments.out)
    cluster = Cluster(arguments.access)
    cluster.require_topic(arguments.timer_topic)
    cluster.require_topic(arguments.journal_topic, flag="--journal-topic")
    cluster.require_topic(arguments.rejected_topic, flag="--rejected-topic")
    if arguments.apply:
        cluster.ensure_compacted(arguments.backfilled_topic, cluster.partitions[arguments.timer_topic])
    with job_session("backfill", arguments.out, arguments.master, arguments.jars) as spark:
        return _backfill(spark, cluster, arguments)


def _backfill(spark: SparkSession, cluster: Cluster, arguments: BackfillArguments) -> BackfillResult:
    """Run the steps, and write each one's result before the next reads the cluster (see 2).

    A result that Spark only caches is computed again if an executor is lost, from another progress.
    """
    for old in arguments.out.glob("backfill-steps-*"):  # younger ones may belong to another run
        if time.time() - old.stat().st_mtime > _DAY_S:
            shutil.rmtree(old, ignore_errors=True)
    steps = arguments.out / f"backfill-steps-{uuid4().hex[:8]}"
    try:
        asked, partitions = missing(spark, arguments), cluster.partitions[arguments.timer_topic]
        wait = JudgeTask(arguments.access, arguments.group, arguments.journal_topic)
        judged = _materialized(_by_partition(asked, partitions).mapInArrow(wait, ddl(WAITS)), steps / "judged")
        came = _materialized(_with_later_outcomes(spark, judged, cluster, arguments), steps / "came")
        ended = _with_superseding(spark, came, cluster, arguments, steps)
        looked = _materialized(_with_archive_gaps(ended, cluster, arguments), steps / "looked")
        chosen = looked.where(F.col("outcome").isNull()).orderBy("due_ms", "origin")
        if arguments.limit is not None:
            chosen = chosen.limit(arguments.limit)
        chosen = chosen.persist(StorageLevel.DISK_ONLY)
        bodies = _bodies(spark, chosen, cluster, arguments)
        sent = _materialized(_sent(bodies, cluster, arguments), steps / "sent")
        write_table(_outcome_rows(looked, chosen, sent), arguments.out, BACKFILL)
    finally:
        spark.catalog.clearCache()
        shutil.rmtree(steps, ignore_errors=True)
    counts = read_table(spark, arguments.out, BACKFILL).groupBy("outcome").count().collect()
    return BackfillResult(arguments.out, {row["outcome"]: row["count"] for row in sorted(counts)})


def _materialized(rows: DataFrame, folder: Path) -> DataFrame:
    rows.write.parquet(str(folder))
    return rows.sparkSession.read.schema(rows.schema).parquet(str(folder))


def missing(spark: SparkSession, arguments: BackfillArguments) -> DataFrame:
    table = _latest_verdicts(spark, arguments.audit)
    lost = table.where((F.col("class") == AuditClass.MISSING.value) & (F.col("topic") == arguments.timer_topic))
    timers = lost.where((F.col("kind") != "copy") & F.col("due_ms").isNotNull() & F.col("target").isNotNull())
    earliest_ms = F.greatest("requested_ms", F.least("due_ms", "moved_low_ms")).alias("earliest_ms")
    told = ("origin", "partition", "offset", "requested_ms", "due_ms", "expire_ms", "target", "ended_by")
    return timers.select(*told, earliest_ms)


def _latest_verdicts(spark: SparkSession, audit: Path) -> DataFrame:
    """Return the last complete day of a daily audit, which repeats what is missing; of a stream the open verdicts."""
    if (audit / CHECKPOINT).exists():
        return read_table(spark, audit, OPEN_VERDICTS, last_committed_part(audit))
    part = next((f"day={day}" for day in reversed(done_days(audit))), None)
    if not (audit / REQUESTS.name / (part or "") / "_SUCCESS").exists():
        raise UsageError(f"--audit {audit}: its audit has not come to its end: let it, or make it again")
    return read_table(spark, audit, REQUESTS, part)


def _by_partition(rows: DataFrame, partitions: int) -> DataFrame:
    """Return the rows with one task per partition of the timer topic: one journal read, one producer."""
    return rows.repartition(partitions, "partition").sortWithinPartitions("partition", "due_ms", "offset")


def _with_later_outcomes(
    spark: SparkSession, judged: DataFrame, cluster: Cluster, arguments: BackfillArguments
) -> DataFrame:
    """Return `judged` with the outcome of timers that a bridge or an earlier run has settled since the audit."""
    # Senders choose topic names: keep only topics of the cluster, so that the driver's memory is bounded.
    known = F.when(F.col("target").isin(*cluster.partitions), F.col("target"))
    bounds = judged.agg(F.min("requested_ms"), F.collect_set(known)).collect()[0]
    since = max(0, (bounds[0] if bounds[0] is not None else _NEVER_MS) - CLOCK_SKEW_MS)
    targets = sorted(bounds[1])
    marks = sorted({arguments.backfilled_topic} & cluster.partitions.keys())
    real = read_records(spark, arguments.access, cluster.stable_spans(targets, from_ms=since))
    refused_spans = cluster.stable_spans([arguments.rejected_topic], from_ms=since)
    refused = read_records(spark, arguments.access, refused_spans)
    marked = read_records(spark, arguments.access, cluster.stable_spans(marks))
    came = evidence.deliveries(real).select("origin").unionByName(evidence.rejections(refused).select("origin"))
    sent = marked.select(F.col("key").cast("string").alias("origin")).distinct().withColumn("is_marked", F.lit(True))
    seen = came.distinct().withColumn("has_come", F.lit(True))
    found = judged.join(seen, "origin", "left").join(sent, "origin", "left")
    # After the spans are fixed: Spark fails if retention deletes any of them from now on.
    remembered, refused_ms = dict.fromkeys(targets, 0), 0
    if not arguments.although_unknown:
        remembered |= cluster.complete_since_ms(targets)
        refused_ms = cluster.rejected_complete_since_ms(arguments.rejected_topic)
    return with_outcomes(found, remembered, now_ms(), refused_ms)


def with_outcomes(found: DataFrame, targets: Mapping[str, int], now_ms: int, refused_ms: int = 0) -> DataFrame:
    """Return `found` with the outcome of timers that are not to be sent.

    found: has `is_marked`, `has_come`, `waits`, `ended_by`, and `earliest_ms`, the earliest possible delivery.
    targets: since when (epoch ms) each topic is complete; refused_ms: the same of the rejected topic.
    """
    remembered_ms = c.lookup(targets, F.col("target"))
    outcome = (
        F.when(F.col("is_marked"), "backfilled-before")
        .when(F.col("has_come"), "came")
        .when(F.col("waits").isNotNull(), F.col("waits"))
        .when(F.col("ended_by").isNotNull(), "superseded")
        .when(F.col("expire_ms") <= now_ms, "expired")
        .when(remembered_ms.isNull(), "no-topic")
        .when((remembered_ms > 0) & (F.col("earliest_ms") - SKEW_MS < remembered_ms), "cannot-tell")
        .when((F.lit(refused_ms) > 0) & (F.col("requested_ms") - SKEW_MS < refused_ms), "cannot-tell")
    )
    told = found.withColumn("outcome", outcome)
    detail = F.when(F.col("outcome") == "superseded", F.col("ended_by"))
    return told.withColumn("detail", detail).drop("is_marked", "has_come", "waits", "ended_by", "earliest_ms")


def _with_superseding(
    spark: SparkSession, came: DataFrame, cluster: Cluster, arguments: BackfillArguments, steps: Path
) -> DataFrame:
    """Return `came` with the outcome `superseded` for timers whose id a later request has, up to now."""
    is_open = F.col("outcome").isNull()
    bounds = came.where(is_open).groupBy("partition").agg(F.min("offset"), F.min("requested_ms")).collect()
    if not bounds:
        return came
    first = {row.partition: row[1] for row in bounds}
    spans = [
        span._replace(start=max(span.start, first[span.partition]))
        for span in cluster.stable_spans([arguments.timer_topic])
        if span.partition in first
    ]
    timers = _requests(spark, spans, arguments)
    own = {arguments.timer_topic, arguments.rejected_topic}
    since = max(0, min(row[2] for row in bounds) - CLOCK_SKEW_MS)
    refused_spans = cluster.stable_spans([arguments.rejected_topic], from_ms=since)
    refused = read_records(spark, arguments.access, refused_spans)
    # Persist first: Spark would repeat the whole parsing wherever one of its columns is used.
    parsed = requests(timers, own_topics=own, profiles=arguments.profiles).persist(StorageLevel.DISK_ONLY)
    named = _materialized(with_ids(parsed), steps / "named")
    parsed.unpersist()
    codes = _materialized(
        evidence.rejections(refused, arguments.profiles).select("origin", "error", "rejected_ms"), steps / "refused"
    )
    found = superseded(named, codes, came.where(is_open))
    joined = came.join(found, "origin", "left")
    outcome = F.when(F.col("ended_by").isNotNull(), "superseded").otherwise(F.col("outcome"))
    return joined.withColumns({"outcome": outcome, "detail": F.coalesce("ended_by", "detail")}).drop("ended_by")


def _with_archive_gaps(looked: DataFrame, cluster: Cluster, arguments: BackfillArguments) -> DataFrame:
    """Return `looked` with `cannot-tell` for timers before a gap between archive and log: it may hide a cancel."""
    if arguments.archive is None:
        return looked
    ends = archive_ends(arguments.archive, arguments.timer_topic)
    spans = cluster.spans([arguments.timer_topic])
    holes = {span.partition: span.start for span in spans if ends.get(span.partition, 0) < span.start}
    if not holes:
        return looked
    is_before = F.col("outcome").isNull() & (F.col("offset") < c.lookup(holes, F.col("partition")))
    told = "a cancel may lie between the archive's end and the log's start"
    return looked.withColumns(
        {
            "outcome": F.when(is_before, "cannot-tell").otherwise(F.col("outcome")),
            "detail": F.when(is_before, told).otherwise(F.col("detail")),
        }
    )


def _bodies(spark: SparkSession, chosen: DataFrame, cluster: Cluster, arguments: BackfillArguments) -> DataFrame:
    """Return the rows of `chosen` whose request still exists, as BODIES."""
    bounds = chosen.groupBy("partition").agg(F.min("offset").alias("low"), F.max("offset").alias("high")).collect()
    kept = {span.partition: span for span in cluster.spans([arguments.timer_topic])}
    spans = []
    for row in bounds:
        span = kept[row.partition]
        low = max(span.start, row.low)
        spans.append(span._replace(start=low, end=max(low, min(span.end, row.high + 1))))
    records = translated(_requests(spark, spans, arguments), arguments.profiles)
    h = F.col("headers")
    asked = records.select(
        "partition",
        "offset",
        F.col("timestamp_ms").alias("requested_ms"),  # another topic of that name has other times
        F.when(c.has(h, names.KEY), c.value_of(h, names.KEY)).otherwise(F.col("key")).alias("key"),
        "value",
        c.foreign(h).alias("headers"),
        c.partition_number(c.value_of(h, names.PARTITION)).alias("want_partition"),
    ).dropDuplicates(["partition", "offset", "requested_ms"])
    joined = chosen.join(asked, ["partition", "offset", "requested_ms"])
    return joined.select(BODIES.names)


def _requests(spark: SparkSession, spans: Sequence[Span], arguments: BackfillArguments) -> DataFrame:
    """Return the records of these spans of the timer topic, and those of the archive."""
    records = read_records(spark, arguments.access, spans)
    if arguments.archive is None:
        return records
    return records.unionByName(archived(spark, arguments.archive, arguments.timer_topic).select(records.columns))


def _sent(bodies: DataFrame, cluster: Cluster, arguments: BackfillArguments) -> DataFrame:
    """Return `origin`, `outcome`, `detail`. Evaluation sends the records, so evaluate the result once."""
    if not arguments.apply:
        return bodies.selectExpr("origin", "'would-be-sent' AS outcome", "CAST(NULL AS STRING) AS detail")
    partitions = cluster.partitions[arguments.timer_topic]
    publish = PublishTask(
        arguments.access,
        f"{arguments.group}-backfill-{arguments.timer_topic}",
        arguments.backfilled_topic,
        cluster.partitions[arguments.backfilled_topic],
        None if arguments.per_s is None else arguments.per_s / partitions,
    )
    return _by_partition(bodies, partitions).mapInArrow(publish, ddl(SENT))


def _outcome_rows(looked: DataFrame, chosen: DataFrame, sent: DataFrame) -> DataFrame:
    """Return a row of BACKFILL for each missing timer."""
    done = sent.select("origin", F.col("outcome").alias("became"), F.col("detail").alias("said"))
    was_chosen = chosen.select("origin").withColumn("is_chosen", F.lit(True))
    joined = looked.join(was_chosen, "origin", "left").join(done, "origin", "left")
    left_over = F.when(F.col("is_chosen"), "gone").otherwise("beyond-limit")
    outcome = F.coalesce("outcome", "became", left_over)
    return joined.withColumns({"outcome": outcome, "detail": F.coalesce("detail", "said")})


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> BackfillArguments:
    """Parse the flags. Raises UsageError, or argparse's SystemExit after --help or a wrong flag."""
    description = "Deliver what an audit found missing. Without --apply it only looks."
    parser = job_parser("backfill", description, BackfillArguments)
    given = resolved(parser, BackfillArguments, argv, environment)
    return BackfillArguments(**{"out": given["audit"], **given})


@command("backfill")
def main(argv: Sequence[str] | None = None) -> int:
    done = run_backfill(parse(argv))
    print("\n".join(f"{name}: {count:,}" for name, count in done.counts.items()) or "nothing is missing")
    print(f"Each of them: {done.out / BACKFILL.name}")
    return done.exit_code


if __name__ == "__main__":
    sys.exit(main())
