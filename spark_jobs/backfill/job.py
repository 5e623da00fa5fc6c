"""Deliver missing timers: each once, and none that a bridge will still deliver.

    AUDIT/requests, missing or unread --1--> settled by progress and journal? --2--> not delivered or marked since?
      --3--> body from the timer topic, or an archive --4--> target topic + mark on timer.resent, one transaction

1. A timer that waits in a store, is held, is a copy in flight, or was cancelled, is skipped (undeliverable.py).
2. Read after step 1, to the ends of the topics: a bridge commits a delivery and its progress in one transaction.
   What may have been delivered already is sent only with --although-unknown and the topic's name (outcomes.py).
3. Key, value and foreign headers as they were sent; a request that is deleted is reported.
4. By the transactional id `<group>-backfill-<timer topic>-<partition>`: it fences an older run, then reads the marks.

Without --apply nothing is sent. OUT/backfill has the outcome of each timer (schemas.tables.BACKFILL).
Exit codes: 0 done, 1 failed, or some could not be sent, 2 wrong arguments.
"""

import sys
import time
from collections.abc import Sequence
from uuid import uuid4

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from kafka_timer import headers as names
from schemas.audit_state import OPEN_VERDICTS
from schemas.journal import writer_key
from schemas.tables import BACKFILL, REQUESTS, AuditClass
from spark_jobs.archive import require_same_topic
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.profiles import translated
from spark_jobs.audit_rules.verdicts import UNREAD_OUTCOME
from spark_jobs.audit_run.audit_folder import all_parts, kind_of
from spark_jobs.backfill.arguments import BackfillArguments, parse
from spark_jobs.backfill.outcomes import timer_records, with_archive_gaps, with_later_outcomes, with_superseding
from spark_jobs.backfill.publish import BODIES, MOST_RECORDS, SENT, PublishTask
from spark_jobs.backfill.undeliverable import SKEW_MS, with_reasons
from spark_jobs.errors import JobFailedError, command
from spark_jobs.kafka.admin import Cluster, Span, committed_progress
from spark_jobs.platform import files
from spark_jobs.platform.session import job_session
from spark_jobs.platform.tables import folder, read_records, read_table, read_tables, write_table, written

_DAY_MS = 86_400_000


def run_backfill(arguments: BackfillArguments) -> dict[str, int]:
    """Run a backfill; return the number of missing and unread timers by outcome.

    Raises JobFailedError if it must stop; timers sent by then are marked.
    """
    cluster = Cluster(arguments.access)
    cluster.require_topic(arguments.timer_topic)
    cluster.require_topic(arguments.journal_topic, flag="--journal-topic")
    cluster.require_topic(arguments.rejected_topic, flag="--rejected-topic")
    if arguments.apply:
        cluster.ensure_marks(arguments.resent_topic)
    with job_session("backfill", arguments.out, arguments):
        arguments.demand_fitting_folders()
        if arguments.archive is not None:
            require_same_topic(cluster, arguments.archive, arguments.timer_topic)
        return _backfill(cluster, arguments)


def _backfill(cluster: Cluster, arguments: BackfillArguments) -> dict[str, int]:
    """Run the steps, and write each one's result before the next reads the cluster (see 2).

    A result that Spark only caches is computed again if an executor is lost, from another progress.
    """
    for name, changed_ms in files.changed_ms(arguments.out, "backfill-steps-*").items():
        if time.time() * 1000 - changed_ms > _DAY_MS:  # younger ones may belong to another run
            files.delete(arguments.out / name)
    # Bodies and records of the journal may be large.
    SparkSession.active().conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", MOST_RECORDS)
    with written(arguments.out / f"backfill-steps-{uuid4().hex[:8]}") as keep:
        asked = keep(missing(arguments))
        judged = keep(_with_reasons(asked, cluster, arguments))
        topics = {arguments.marks.topic, arguments.marks.former}
        marks = cluster.stable_spans(topics & cluster.partitions.keys())
        came = keep(with_later_outcomes(judged, cluster, arguments, marks))
        ended = with_superseding(came, cluster, arguments, keep)
        looked = keep(with_archive_gaps(ended, cluster, arguments))
        chosen = looked.where(F.col("outcome").isNull())
        if arguments.limit is not None:
            chosen = chosen.orderBy("due_ms", "origin").limit(arguments.limit)
        chosen = keep(chosen)
        bounds = chosen.groupBy("partition").agg(F.min("offset").alias("low"), F.max("offset").alias("high")).collect()
        bodies = _bodies(chosen, bounds, cluster, arguments)
        sent = keep(_sent(bodies, len(bounds), cluster, arguments, marks))
        write_table(_outcome_rows(looked, chosen, sent), arguments.out, BACKFILL)
    counts = read_table(arguments.out, BACKFILL).groupBy("outcome").count().collect()
    return {row["outcome"]: row["count"] for row in sorted(counts)}


def missing(arguments: BackfillArguments) -> DataFrame:
    """Return the timers that are missing, or unjudged only as their outcome may be unread. `is_unread`: it may be.

    The last day of a daily audit, or the open verdicts of a stream, repeat the missing ones. A later part repeats an
    unjudged one only if it knows more of it.
    """
    audit, parts = arguments.audit, all_parts(arguments.audit)
    last = read_table(audit, OPEN_VERDICTS if kind_of(audit) == "stream" else REQUESTS, parts[-1] if parts else None)
    is_unread, is_missing = F.col("proof").eqNullSafe(UNREAD_OUTCOME), F.col("class") == AuditClass.MISSING.value
    rows = read_tables(REQUESTS, [folder(audit, REQUESTS, part) for part in (parts or (None,))])
    rows = rows.withColumn("file", F.col("_metadata.file_path"))  # in order of the parts
    is_known = F.expr("known.origin = unread.origin AND known.file > unread.file")
    unread = rows.where(is_unread & ~is_missing).alias("unread")
    unjudged = unread.join(rows.alias("known"), is_known, "left_anti").drop("file")
    lost = last.where(is_missing).unionByName(unjudged).where(F.col("topic") == arguments.timer_topic)
    timers = lost.where((F.col("kind") != "copy") & F.col("due_ms").isNotNull() & F.col("target").isNotNull())
    told = ("origin", "partition", "offset", "requested_ms", "due_ms", "expire_ms", "target", "ended_by")
    return timers.select(*told, is_unread.alias("is_unread"))


def _with_reasons(asked: DataFrame, cluster: Cluster, arguments: BackfillArguments) -> DataFrame:
    """Return `asked` with `waits`. Progress before the journal: a newer journal record can only make a timer wait."""
    timer_topic, journal_topic = arguments.timer_topic, arguments.journal_topic
    partitions = cluster.partitions[timer_topic]
    if cluster.partitions[journal_topic] < partitions:
        raise JobFailedError(f"{journal_topic} has fewer partitions than {timer_topic}: check --journal-topic")
    progress = committed_progress(arguments.access, arguments.group, timer_topic, partitions)
    since_ms = asked.agg(F.min("requested_ms")).collect()[0][0]
    spans = cluster.stable_spans([journal_topic], from_ms=max(0, (since_ms or 0) - SKEW_MS))
    journal = read_records(arguments.access, spans if since_ms is not None else [])
    is_own = F.col("key").isNull() | (F.col("key") == F.lit(writer_key(arguments.group, timer_topic)))
    return with_reasons(asked, journal.where(is_own), progress)


def _bodies(chosen: DataFrame, bounds: Sequence[Row], cluster: Cluster, arguments: BackfillArguments) -> DataFrame:
    """Return the rows of `chosen` whose request still exists, as BODIES. bounds: their offsets by partition."""
    kept = {span.partition: span for span in cluster.spans([arguments.timer_topic])}
    spans = [kept[row.partition].within(row.low, row.high + 1) for row in bounds]
    records = translated(timer_records(spans, arguments), arguments.profiles)
    h = F.col("headers")
    asked = records.select(
        "partition",
        "offset",
        F.col("timestamp_ms").alias("requested_ms"),  # another topic of that name has other times
        F.when(c.has(h, names.KEY), c.value_of(h, names.KEY)).otherwise(F.col("key")).alias("key"),
        "value",
        c.foreign(h).alias("headers"),
        c.partition_number(c.value_of(h, names.PARTITION)).alias("want_partition"),
        F.when(series.rule_of(h).isNotNull(), 1).alias("occurrence"),
    ).dropDuplicates(["partition", "offset", "requested_ms"])
    return chosen.join(asked, ["partition", "offset", "requested_ms"]).select(BODIES.names)


def _sent(
    bodies: DataFrame, partitions: int, cluster: Cluster, arguments: BackfillArguments, marks: Sequence[Span]
) -> DataFrame:
    """Return `origin`, `outcome`, `detail`. Evaluation sends the records, so evaluate the result once.

    partitions: number of those that have a row. They share the rate.
    """
    if not arguments.apply:
        return bodies.selectExpr("origin", "'would-be-sent' AS outcome", "CAST(NULL AS STRING) AS detail")
    topic, counts = arguments.timer_topic, cluster.partitions
    id_ = f"{arguments.group}-backfill-{topic}"
    share = None if arguments.per_s is None else arguments.per_s / max(1, partitions)
    ends = {(span.topic, span.partition): span.end for span in marks}
    publish = PublishTask(arguments.access, id_, topic, arguments.marks, counts[arguments.resent_topic], share, ends)
    # One task, and so one producer, for each partition of the timer topic.
    in_order = bodies.repartition(counts[topic], "partition").sortWithinPartitions("partition", "due_ms", "offset")
    return in_order.mapInArrow(publish, from_arrow_schema(SENT))


def _outcome_rows(looked: DataFrame, chosen: DataFrame, sent: DataFrame) -> DataFrame:
    done = sent.select("origin", F.col("outcome").alias("became"), F.col("detail").alias("said"))
    was_chosen = chosen.select("origin").withColumn("is_chosen", F.lit(True))
    joined = looked.join(was_chosen, "origin", "left").join(done, "origin", "left")
    left_over = F.when(F.col("is_chosen"), "gone").otherwise("beyond-limit")
    outcome = F.coalesce("outcome", "became", left_over)
    return joined.withColumns({"outcome": outcome, "detail": F.coalesce("detail", "said")})


@command("backfill")
def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    counts = run_backfill(arguments)
    print("\n".join(f"{name}: {count:,}" for name, count in counts.items()) or "nothing is missing")
    print(f"Outcome of each: {arguments.out / BACKFILL.name}")
    return 1 if any(name.startswith("failed") for name in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
