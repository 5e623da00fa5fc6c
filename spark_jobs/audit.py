"""Did every timer come out once, when due, as it was sent? Asked of Kafka's topics alone, never of the bridge.

    timer.requests --+                                       +--> OUT/requests     one row per request, with its class
    real topics -----+-- joined on timer-origin, by rules ---+--> OUT/topics       counts and lateness per real topic
    timer.rejected --+   (spark_jobs.classes)                +--> OUT/report.html  verdict first

Exit codes: 0 clean, 1 the audit could not be made, 2 wrong arguments, 3 a fault was found.

    python -m spark_jobs.audit --bootstrap-servers localhost:9092 --out audit
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 spark_jobs/audit.py --bootstrap-servers ...
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.tables import REQUESTS, TOPICS
from spark_jobs import rows, summary
from spark_jobs.arguments import SETTLE_MS, AuditArguments, iso, make_folder, shown, time_ms
from spark_jobs.brokers import Cluster, Span
from spark_jobs.classes import classify
from spark_jobs.errors import AuditTroubleError, UsageError
from spark_jobs.report import write_report
from spark_jobs.session import session
from spark_jobs.summary import Verdict
from spark_jobs.table_io import read_records, read_table, write_table

_CLOCK_SKEW_MS = 600_000
"""A delivery's clock may be behind its request's by so much when a range of time is read."""


def run_audit(arguments: AuditArguments) -> Verdict:
    """Reads, judges and writes. A fault in the data is in the Verdict.

    Raises AuditTroubleError where it cannot audit, UsageError where `out` cannot be made.
    """
    make_folder(arguments.out)
    log = arguments.out / "spark.log"
    cluster = Cluster(arguments.bootstrap_servers)
    if arguments.timer_topic not in cluster.partitions:
        raise AuditTroubleError(f"there is no topic {arguments.timer_topic} on this cluster: check --timer-topic")
    with session("timer-bridge audit", master=arguments.master, log=log) as spark:
        try:
            return _audit(spark, cluster, arguments)
        except (PySparkException, Py4JError) as wrong:
            first_line = str(wrong).strip().splitlines()[0]
            raise AuditTroubleError(f"Spark could not finish the audit: {first_line} (log: {log})") from wrong


def _audit(spark: SparkSession, cluster: Cluster, arguments: AuditArguments) -> Verdict:
    as_of_ms = arguments.as_of_ms if arguments.as_of_ms is not None else int(time.time() * 1000)
    servers, timer_topic = arguments.bootstrap_servers, arguments.timer_topic
    asked = cluster.spans([timer_topic], from_ms=arguments.from_ms, to_ms=arguments.to_ms)
    with _kept(rows.requests(read_records(spark, servers, asked))) as requested:
        # Only now the other ends: what was delivered before as_of_ms lies before them.
        own = {timer_topic, arguments.rejected_topic}
        targets, unknown = _targets(requested, exist=cluster.partitions.keys() - own, own=own)
        answers = arguments.from_ms - _CLOCK_SKEW_MS if arguments.from_ms is not None else None
        delivered = rows.deliveries(read_records(spark, servers, cluster.spans(targets, from_ms=answers)))
        refused = [arguments.rejected_topic] if arguments.rejected_topic in cluster.partitions else []
        rejected = rows.rejections(read_records(spark, servers, cluster.spans(refused, from_ms=answers)))
        outcomes = rows.outcomes(requested, delivered, rejected)
        elsewhere = _write_requests(outcomes, asked, arguments, as_of_ms)
    notes = _notes(arguments, unknown, elsewhere, has_rejected=bool(refused))
    return conclude(spark, arguments, as_of_ms, notes)


def _write_requests(outcomes: DataFrame, asked: Sequence[Span], arguments: AuditArguments, as_of_ms: int) -> int:
    """Returns how many origins lie outside the requests that were read; they are not judged."""
    marked = outcomes.withColumn("outside", ~F.col("requested") & rows.outside(arguments.timer_topic, asked))
    seen = Observation("outside")
    judged = marked.observe(seen, F.count_if("outside").alias("count")).where(~F.col("outside"))
    write_table(classify(judged, as_of_ms=as_of_ms, settle_ms=arguments.settle_ms), arguments.out, REQUESTS)
    return int(seen.get["count"])


def conclude(spark: SparkSession, arguments: AuditArguments, as_of_ms: int, notes: Sequence[str]) -> Verdict:
    """Everything else is told from the table that was written, so that it says what the table says."""
    table = read_table(spark, arguments.out, REQUESTS)
    write_table(summary.topics(table), arguments.out, TOPICS)
    topics = read_table(spark, arguments.out, TOPICS)
    verdict = summary.verdict(table, topics, out=arguments.out, as_of_ms=as_of_ms, notes=notes)
    write_report(verdict, summary.details(table, verdict), arguments)
    return verdict


@contextmanager
def _kept(rows_: DataFrame) -> Iterator[DataFrame]:
    """Read once from Kafka, kept on disk: memory does not grow with the requests."""
    kept = rows_.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()


def _targets(requested: DataFrame, *, exist: Set[str], own: Set[str]) -> tuple[list[str], list[str]]:
    """The real topics that exist, and some (at most 100) of those that requests name but no broker has.

    The bridge's own topics are never real ones, whatever a request says: what lies there is no delivery.
    """
    named = requested.select("target").where(F.col("target").isNotNull() & ~F.col("target").isin(*own)).distinct()
    exists = F.col("target").isin(*exist)
    known = [row.target for row in named.where(exists).collect()]
    unknown = [row.target for row in named.where(~exists).orderBy("target").limit(100).collect()]
    return sorted(known), unknown


def _notes(arguments: AuditArguments, unknown: Sequence[str], elsewhere: int, *, has_rejected: bool) -> list[str]:
    notes = []
    if unknown:
        notes.append(f"Requests name real topics that do not exist: {shown(unknown)}. They cannot be delivered.")
    if not has_rejected:
        notes.append(f"There is no topic {arguments.rejected_topic}: nothing counts as rejected.")
    if elsewhere:
        notes.append(
            f"Not judged, as their requests lie outside the range: {elsewhere:,} of the origins on these topics."
        )
    return notes


def main(argv: Sequence[str] | None = None) -> int:
    """The job as a command: prints the verdict, returns the exit code."""
    try:
        verdict = run_audit(_parse(argv))
    except UsageError as wrong:
        return _complain(wrong, 2)
    except AuditTroubleError as trouble:
        return _complain(trouble, 1)
    except SystemExit as asked:  # argparse: --help or a wrong flag, already explained
        return asked.code if isinstance(asked.code, int) else 2
    print(f"{verdict.headline} as of {iso(verdict.as_of_ms)}")
    print("\n".join(f"  {name}: {count:,}" for name, count in verdict.counts.items() if count))
    print(f"Report: {verdict.report}")
    return verdict.exit_code


def _complain(wrong: Exception, code: int) -> int:
    print(f"timer-bridge audit: {wrong}", file=sys.stderr)
    return code


def _parse(argv: Sequence[str] | None) -> AuditArguments:
    parser = argparse.ArgumentParser(
        prog="timer-bridge audit", description="Prove from Kafka's topics what became of every timer."
    )
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--timer-topic", default=AuditArguments.timer_topic)
    parser.add_argument("--rejected-topic", default=AuditArguments.rejected_topic)
    parser.add_argument("--from", dest="from_ms", metavar="TIME", help="requests since then: 2026-12-24T18:00:00Z")
    parser.add_argument("--to", dest="to_ms", metavar="TIME", help="requests before then")
    parser.add_argument("--as-of", dest="as_of_ms", metavar="TIME", help="judge what was due by then; default: now")
    parser.add_argument(
        "--settle-ms", type=int, default=SETTLE_MS, help="due so lately is pending; default %(default)s"
    )
    parser.add_argument("--master", help="Spark's master; default: local[*], or what spark-submit says")
    given = vars(parser.parse_args(argv))
    for flag in ("from", "to", "as_of"):
        text = given[f"{flag}_ms"]
        given[f"{flag}_ms"] = None if text is None else time_ms(f"--{flag.replace('_', '-')}", text)
    return AuditArguments(**given)


if __name__ == "__main__":
    sys.exit(main())
