"""The streaming audit: the rules of the batch audit, asked again of each batch of a Structured Streaming query.

    timer.requests --+-- Spark's query, a batch each 10 s --> stream_batches.py --> OUT/requests, OUT/minutes, ...
    ticks -----------+   OUT/checkpoint                          |                     timer.lateness
    real topics, rejected, receipts ---- read on, from OUT/spans-+

Spark plans each batch: up to which offsets it reads the timer topic (read_committed), written to its checkpoint before
anything is read. The other topics are read on from where the batch before left them, to where they end behind that; a
real topic is read from when a request names it. Ticks, one a second, cause a batch where nobody sends: time passes for
what is pending.

The watermark is the time at which Spark planned the batch, less --skew-ms: what stood on the topics by then is read.
(Spark's own would be the newest timestamp on the timer topic, and stand still where nobody sends.) A request without an
outcome is pending until --settle-ms behind its due time is behind the watermark, then missing. What is closed leaves
the state; it is looked up again, in OUT/evidence, only where something new names it. So a batch costs what is new, and
what is open.

SIGTERM and Ctrl-C end it behind the batch at work; kill -9 may end it anywhere.
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
from spark_jobs.audit_run.stream_batches import Batches, Planned, last_part, row_of
from spark_jobs.errors import AuditTroubleError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform.lock import alone
from spark_jobs.platform.session import job_session
from spark_jobs.platform.tables import follow_records, offsets_option


def run_stream(arguments: AuditArguments) -> int:
    """Until it is ended, or with `available_now` until all is read that stands now. Returns the exit code.

    Raises AuditTroubleError, UsageError.
    """
    make_folder(arguments.out)
    with alone(arguments.out):
        return _stream(arguments)


def _stream(arguments: AuditArguments) -> int:
    cluster = Cluster(arguments.access)
    cluster.demand_existing(arguments.timer_topic)
    starts = cluster.spans([arguments.timer_topic], from_ms=arguments.from_ms)
    work = _Work(arguments)
    with job_session("audit --stream", arguments.out, arguments.master) as spark:
        work.run(spark, starts)
    return work.conclude()


class _Work:
    """One life of the query."""

    def __init__(self, arguments: AuditArguments) -> None:
        self._arguments = arguments
        self._checkpoint = arguments.out / CHECKPOINT
        self._batches: Batches | None = None
        self._at_work = threading.Lock()
        self._asked_to_end = threading.Event()

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
        with self._ended_by_signals():
            try:
                self._wait(query)
            finally:
                query.stop()

    def conclude(self) -> int:
        part = last_part(self._arguments.out)
        if part is None:
            print("No batch is done yet")
            return 0
        row, batches = row_of(self._arguments.out, part), self._batches
        told, gaps = (batches.faults, batches.gaps) if batches is not None else (0, [])
        print(
            f"Audited as of {iso(row['as_of_ms'])}, batch {row['batch']}: {told:,} faults told by this run,"
            f" {row['standing_faults']:,} stand, {row['open']:,} timers open"
        )
        return 3 if told or row["standing_faults"] else 1 if gaps else 0

    def _batch(self, records: DataFrame, number: int) -> None:
        """Called by Spark. Whoever ends the query holds the lock, and then no batch is begun."""
        if not self._at_work.acquire(blocking=False):
            raise AuditTroubleError("ending")
        try:
            if self._batches is None:
                topic = LatenessTopic(self._arguments.access, self._arguments.lateness_topic, self._name())
                self._batches = Batches(self._arguments, topic)
            spark = records.sparkSession
            spark.conf.set("spark.sql.adaptive.enabled", "true")  # a stream has it off; small batches need it
            self._batches.take(spark, records, self._planned(number))
        finally:
            self._at_work.release()

    def _wait(self, query: StreamingQuery) -> None:
        while not query.awaitTermination(1):
            if self._asked_to_end.is_set():
                with self._at_work:
                    query.stop()
                return

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        def end(_: int, __: FrameType | None) -> None:
            self._asked_to_end.set()

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
        """The query's, which its checkpoint keeps."""
        return str(json.loads((self._checkpoint / "metadata").read_text())["id"])

    def _planned(self, number: int) -> Planned:
        """From Spark's log of offsets: a version, the time, and a line for each source."""
        _, told, *sources = (self._checkpoint / "offsets" / str(number)).read_text().splitlines()
        topic = self._arguments.timer_topic
        found = [json.loads(line) for line in sources if line != "-"]  # a source that has given nothing yet
        ends: dict[str, int] = next((of[topic] for of in found if isinstance(of, dict) and topic in of), {})
        as_of_ms = json.loads(told)["batchTimestampMs"] - self._arguments.skew_ms
        return Planned(number, as_of_ms, {int(partition): end for partition, end in ends.items()})


def _records(spark: SparkSession, arguments: AuditArguments, starts: list[Span]) -> DataFrame:
    """Of the timer topic. What retention takes is told by spark_jobs.audit_run.daily_spans; Spark would only stop."""
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
