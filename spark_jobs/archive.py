"""Keep the timer topic as Parquet by day, so that audit and backfill outlive the topic's retention.

    timer.requests --> OUT/records/day=2026-01-31/*.parquet      committed records as they are, each once
                       OUT/checkpoint                            its offsets; the next run continues there

A run archives up to the current end and stops; with --follow it never stops. A killed run repeats nothing: Spark reads
only the files that its log names (`records/_spark_metadata`). Other readers may find a second file of a killed run:
(topic, partition, offset) identifies a record.

Exit codes: 0 done, 1 failed, 2 wrong arguments.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_run.positions import ReadPosition, spans_since
from spark_jobs.errors import JobFailedError, command
from spark_jobs.kafka.admin import Cluster
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.flags import JobArguments, JobParser, location, switch
from spark_jobs.platform.session import job_session
from spark_jobs.platform.tables import RECORDS_DDL, follow_records

RECORDS, _CHECKPOINT, _TOPIC_ID = "records", "checkpoint", "topic_id"
_LOOK_S = 60
_MOST_PER_BATCH = 2_000_000


@dataclass(frozen=True, kw_only=True)
class ArchiveArguments(JobArguments):
    out: Annotated[Location, location()]
    follow: Annotated[bool, switch("run until it is stopped, a batch a minute")] = False


def run_archive(arguments: ArchiveArguments) -> int:
    """Archive, and return the number of new records. Raises JobFailedError, UsageError."""
    cluster, topic = Cluster(arguments.access), arguments.timer_topic
    cluster.require_topic(topic)
    with job_session("archive", arguments.out, arguments) as spark:
        require_no_gap(cluster, arguments.out, topic)
        require_same_topic(cluster, arguments.out, topic)
        records = follow_records(arguments.access, topic, _MOST_PER_BATCH)
        trigger: dict[str, Any] = {"processingTime": "60 seconds"} if arguments.follow else {"availableNow": True}
        if not arguments.follow:
            spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 100_000)  # all are counted at the end
        query = (
            records.withColumn("day", F.to_date(F.timestamp_millis("timestamp_ms")))
            .writeStream.format("parquet")
            .partitionBy("day")
            .option("path", str(arguments.out / RECORDS))
            .option("checkpointLocation", str(arguments.out / _CHECKPOINT))
            .trigger(**trigger)
            .start()
        )
        try:
            while not query.awaitTermination(_LOOK_S):
                pass
        finally:
            query.stop()
        return sum(int(batch["numInputRows"]) for batch in query.recentProgress)


def require_no_gap(cluster: Cluster, out: Location, timer_topic: str) -> None:
    """Raise JobFailedError if retention has deleted the archive's next records, or it is another topic."""
    done = archive_ends(out, timer_topic)
    reached = {(timer_topic, partition): ReadPosition(((0, end),), True) for partition, end in done.items()}
    for span in spans_since(cluster, [timer_topic], reached, new_from_ms=None, to_ms=None) if done else ():
        end = done.get(span.partition, 0)
        if span.start > end:
            raise JobFailedError(
                f"{timer_topic}/{span.partition}: {span.start - end:,} offsets after those in {out} were deleted"
                " (retention), and an archive has no holes: give a new --out, and let it run more often"
            )


def require_same_topic(cluster: Cluster, out: Location, timer_topic: str) -> None:
    """Raise JobFailedError if the archive is of an earlier topic of that name. Note the topic's id in a new archive."""
    known, now = files.read(out / _TOPIC_ID), cluster.topic_ids([timer_topic]).get(timer_topic)
    if known is None and now is not None:
        if archive_ends(out, timer_topic):
            raise JobFailedError(
                f"{out} does not say which {timer_topic} it holds (an older version began it): if the topic was not"
                f" created again since then, write {now} to {out / _TOPIC_ID}; else give a new --out, or no --archive"
            )
        files.write(out / _TOPIC_ID, now.encode())
    elif known is not None and now not in (None, known.decode().strip()):
        raise JobFailedError(
            f"{timer_topic} was created again since {out} was begun: give a new --out, or no --archive"
        )


def archived(out: Location, timer_topic: str) -> DataFrame:
    """Return the archive's records of this topic, each once."""
    records = SparkSession.active().read.schema(f"{RECORDS_DDL}, `day` DATE").parquet(str(out / RECORDS))
    return records.where(F.col("topic") == timer_topic).dropDuplicates(["partition", "offset", "timestamp_ms"])


def archive_ends(out: Location, timer_topic: str) -> dict[int, int]:
    """Return the end offset of each partition in the archive, by its committed batches."""
    done = [int(name) for name in files.found(out / _CHECKPOINT / "commits", "[0-9]*")]
    told = files.read(out / _CHECKPOINT / "offsets" / str(max(done))) if done else None
    if told is None:
        return {}
    ends = json.loads(told.decode().splitlines()[-1]).get(timer_topic, {})
    return {int(partition): end for partition, end in ends.items()}


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> ArchiveArguments:
    parser = JobParser("archive", "Keep the timer topic as Parquet by day.", ArchiveArguments, "--out archive")
    return ArchiveArguments(**parser.resolved(argv, environment))


@command("archive")
def main(argv: Sequence[str] | None = None) -> int:
    print(f"{run_archive(parse(argv)):,} records archived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
