"""The streaming audit: the rules of the batch audit, applied to each batch of a Structured Streaming query.

    timer.requests --+-- Spark's query, a batch each 10 s --> stream_batches.py --> OUT/requests, OUT/minutes, ...
    ticks -----------+   OUT/checkpoint                          |                     timer.lateness
    real topics, rejected, receipts ---- resume at OUT/spans ----+

Spark plans each batch: it writes the end offsets of the timer topic (read_committed) to its checkpoint before it reads
anything. The other topics are read from where the batch before ended to their ends, looked up after that; a real topic
is read as soon as a request names it. Ticks, one per second, cause batches while no request arrives, as pending timers
become due.

The watermark is the time at which Spark planned the batch, less --skew-ms: every record of before has been read.
(Spark's own watermark is the newest timestamp on the timer topic, and stops if no request arrives.) A request without
an outcome is pending until its due time plus --settle-ms is before the watermark, then missing. Closed timers leave the
state; the audit reads them from OUT/evidence again only if a new record names them. So the cost of a batch depends on
new records and open timers.

SIGTERM and Ctrl-C end the query after the current batch; kill -9 may end it anywhere.
"""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.audit_run.arguments import CHECKPOINT, AuditArguments, iso, make_folder
from spark_jobs.audit_run.lateness_topic import LatenessTopic
from spark_jobs.audit_run.stream_batches import PlannedBatch, StreamBatches, batch_row, last_committed_part
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform.lock import folder_lock
from spark_jobs.platform.session import job_session
from spark_jobs.platform.tables import follow_records, offsets_option


def run_stream(arguments: AuditArguments) -> int:
    """Audit until a signal, or with `available_now` until the current ends of the topics. Return the exit code.

    Raises JobFailedError, UsageError.
    """
    make_folder(arguments.out)
    with folder_lock(arguments.out):
        return _stream(arguments)


def _stream(arguments: AuditArguments) -> int:
    cluster = Cluster(arguments.access)
    cluster.require_topic(arguments.timer_topic)
    starts = cluster.spans([arguments.timer_topic], from_ms=arguments.from_ms)
    stream_run = _StreamRun(arguments)
    with job_session("audit --stream", arguments.out, arguments.master) as spark:
        stream_run.run(spark, starts)
    return stream_run.conclude()


class _StreamRun:
    """One run of the query."""

    def __init__(self, arguments: AuditArguments) -> None:
        self._arguments = arguments
        self._checkpoint = arguments.out / CHECKPOINT
        self._batches: StreamBatches | None = None
        self._batch_lock = threading.Lock()
        self._stop_requested = threading.Event()

    def run(self, spark: SparkSession, starts: list[Span]) -> None:
        asked = self._arguments
        each = {"processingTime": f"{asked.every_s} seconds"}
        trigger: dict[str, Any] = {"availableNow": True} if asked.available_now else each
        query = (
            _records(spark, asked, starts)
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )
        with self._stop_on_signals():
            try:
                self._wait(query)
            finally:
                query.stop()

    def conclude(self) -> int:
        part = last_committed_part(self._arguments.out)
        if part is None:
            print("No batch is done yet")
            return 0
        row, batches = batch_row(self._arguments.out, part), self._batches
        told, gaps = (batches.faults, batches.gaps) if batches is not None else (0, [])
        print(
            f"Audited as of {iso(row['as_of_ms'])}, batch {row['batch']}: {told:,} faults told by this run,"
            f" {row['standing_faults']:,} stand, {row['open']:,} timers open"
        )
        return 3 if told or row["standing_faults"] else 1 if gaps else 0

    def _batch(self, records: DataFrame, number: int) -> None:
        """Process a batch; called by Spark. A stop holds the lock, so that no batch begins."""
        if not self._batch_lock.acquire(blocking=False):
            raise JobFailedError("ending")
        try:
            if self._batches is None:
                topic = LatenessTopic(self._arguments.access, self._arguments.lateness_topic, self._name())
                self._batches = StreamBatches(self._arguments, topic)
            spark = records.sparkSession
            spark.conf.set("spark.sql.adaptive.enabled", "true")  # a stream has it off; small batches need it
            self._batches.process(spark, records, self._planned(number))
        finally:
            self._batch_lock.release()

    def _wait(self, query: StreamingQuery) -> None:
        while not query.awaitTermination(1):
            if self._stop_requested.is_set():
                with self._batch_lock:
                    query.stop()
                return

    @contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        def end(_: int, __: FrameType | None) -> None:
            self._stop_requested.set()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _name(self) -> str:
        """Return the query's id, which its checkpoint keeps."""
        return str(json.loads((self._checkpoint / "metadata").read_text())["id"])

    def _planned(self, number: int) -> PlannedBatch:
        """Read the plan from Spark's offset log: a version, the time, and a line for each source."""
        _, told, *sources = (self._checkpoint / "offsets" / str(number)).read_text().splitlines()
        topic = self._arguments.timer_topic
        found = [json.loads(line) for line in sources if line != "-"]  # a source that has given nothing yet
        ends: dict[str, int] = next((of[topic] for of in found if isinstance(of, dict) and topic in of), {})
        as_of_ms = json.loads(told)["batchTimestampMs"] - self._arguments.skew_ms
        return PlannedBatch(number, as_of_ms, {int(partition): end for partition, end in ends.items()})


def _records(spark: SparkSession, arguments: AuditArguments, starts: list[Span]) -> DataFrame:
    """Return the stream of the timer topic.

    daily_spans reports what retention has deleted; with failOnDataLoss, Spark would only stop.
    """
    records = follow_records(
        spark,
        arguments.access,
        arguments.timer_topic,
        startingOffsets=offsets_option(starts, lambda span: span.start),
        failOnDataLoss="false",
    )
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load().where(F.lit(False))
    nothing = ticks.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in records.schema))
    return nothing.unionByName(records)
