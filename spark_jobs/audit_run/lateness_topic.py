"""Lateness per target topic and minute: each delivery counts in one row, and each row is on the topic once.

    batch 7   deliveries 12:00:58 ... 12:01:07   untold of 6 + these -> 12:00 is over: a row; 12:01 goes to untold of 7
    batch 8   a delivery of 12:00, read late                         -> a row of its own for 12:00

Rows of a batch are sent after the batch is committed, so they never change: in order, 1,000 per transaction, by one
transactional id per audit. The start of that producer fences the one before, so no row of an earlier run can follow.
The rows that the topic already has are then read from it and skipped. A read_committed reader gets each record once,
however often the audit is killed. If the audit is down for longer than the topic's retention, the topic no longer
shows the last batch's records, and they are sent again.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import OPEN_VERDICTS, UNFINISHED_MINUTES
from schemas.lateness import MinuteLateness
from schemas.tables import MINUTES, REQUESTS, AuditClass
from spark_jobs.audit_rules.percentiles import MINUTE_MS, interval_start, lateness_counts, lateness_percentiles
from spark_jobs.audit_run.read_plan import CLOCK_SKEW_MS
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import (
    Cluster,
    OutgoingRecord,
    Span,
    TransactionAbortedError,
    TransactionalSender,
    read_committed,
)
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.tables import folder, read_table, write_table

_STARTS = pa.schema([("t", pa.string()), ("p", pa.int32()), ("start", pa.int64())])
_CHUNK = 1_000


def write_minutes(
    spark: SparkSession, out: Location, part: str, previous: str | None, read_now: Sequence[Span], over_ms: int
) -> None:
    """Write `minutes` and `untold` of a part, from its `requests`. A minute is complete if it ends by `over_ms`."""
    rows = read_table(spark, out, REQUESTS, part)
    if previous is None:
        counted = _uncounted_deliveries(spark, rows.withColumn("waited", F.lit(False)), read_now)
    else:
        waited = read_table(spark, out, OPEN_VERDICTS, previous).where(F.col("class") == AuditClass.PENDING.value)
        told = rows.join(waited.select("origin", F.lit(True).alias("waited")), "origin", "left")
        counted = _uncounted_deliveries(spark, told, read_now).unionByName(
            read_table(spark, out, UNFINISHED_MINUTES, previous)
        )
    timed = counted.withColumn("minute_ms", interval_start("delivered_ms", MINUTE_MS))
    is_over = F.col("minute_ms") + MINUTE_MS <= over_ms
    write_table(timed.where(~is_over), out, UNFINISHED_MINUTES, part)
    keys = ("topic", "minute_ms")
    found = lateness_percentiles(lateness_counts(timed.where(is_over), *keys), *keys, percentiles=(50, 90, 99))
    write_table(found.repartition(1).sortWithinPartitions("minute_ms", "topic"), out, MINUTES, part)


def _uncounted_deliveries(spark: SparkSession, rows: DataFrame, read_now: Sequence[Span]) -> DataFrame:
    """Return the deliveries that no earlier part counted.

    These are the ones whose record or request this part has read, and those that `waited` for their request.
    """
    places = [{"t": span.topic, "p": span.partition, "start": span.start} for span in read_now]
    starts = spark.createDataFrame(pa.Table.from_pylist(places, schema=_STARTS))
    delivered = rows.where(F.col("lateness_ms").isNotNull())

    def is_new(topic: str, partition: str, offset: str, start: str) -> DataFrame:
        place = (F.col(topic) == F.col("t")) & (F.col(partition) == F.col("p"))
        looked = delivered.join(F.broadcast(starts), place, "left")
        return looked.withColumn(start, F.coalesce(F.col(offset) >= F.col("start"), F.lit(False))).drop(
            "t", "p", "start"
        )

    delivered = is_new("topic", "partition", "offset", "new_request")
    delivered = is_new("delivered_topic", "delivered_partition", "delivered_offset", "new_delivery")
    new = delivered.where(F.col("new_request") | F.col("new_delivery") | F.coalesce("waited", F.lit(False)))
    return new.select(F.coalesce("target", "delivered_topic").alias("topic"), "delivered_ms", "lateness_ms", "clock")


class LatenessTopic:
    """Sends the minutes of one audit. `audit`: its unique name."""

    def __init__(self, access: KafkaAccess, topic: str, audit: str) -> None:
        self._access, self._topic, self._audit = access, topic, audit
        self._sender: TransactionalSender | None = None

    def send(self, out: Location, part: str, batch: int, as_of_ms: int) -> None:
        """Send the rows of a part that the topic does not have yet. Raises JobFailedError."""
        found = enumerate(_rows(folder(out, MINUTES, part)))
        chunk: list[OutgoingRecord] = []
        first = None
        for number, row in found:
            if first is None:
                first = self._first_unsent_row(batch, as_of_ms)
            if number >= first:
                chunk.append(self._record(row, batch, number))
            if len(chunk) == _CHUNK:
                self._commit(chunk)
                chunk = []
        if chunk:
            self._commit(chunk)

    def _first_unsent_row(self, batch: int, as_of_ms: int) -> int:
        """Return the first row of the batch that is not on the topic. Only the first batch of a process reads it."""
        if self._sender is not None:
            return 0
        Cluster(self._access).ensure_topic(self._topic, 1)
        self._sender = TransactionalSender(self._access, f"timer-bridge-audit-{self._audit}", "run of this audit")
        since_ms = max(0, as_of_ms - CLOCK_SKEW_MS)
        partitions = range(Cluster(self._access).partitions[self._topic])
        told = (
            _parse(kept.value)
            for p in partitions
            for kept in read_committed(self._access, self._topic, p, from_ms=since_ms)
        )
        mine = (it.row for it in told if it is not None and (it.audit, it.batch) == (self._audit, batch))
        return max(mine, default=-1) + 1

    def _record(self, row: dict[str, Any], batch: int, number: int) -> OutgoingRecord:
        lateness = {f"{name}_ms": row[f"lateness_{name}_ms"] for name in ("p50", "p90", "p99", "max")}
        same = {name: row[name] for name in ("topic", "minute_ms", "deliveries", "clock")}
        told = MinuteLateness(**same, **lateness, audit=self._audit, batch=batch, row=number)
        return OutgoingRecord(self._topic, -1, told.key, told.to_bytes(), [])

    def _commit(self, records: Sequence[OutgoingRecord]) -> None:
        assert self._sender is not None
        try:
            self._sender.send(records)
        except TransactionAbortedError as refused:
            raise JobFailedError(f"{self._topic} takes no record ({refused}): start the audit again") from None


def _parse(value: bytes | None) -> MinuteLateness | None:
    """Return the record's value; None for other traffic on the topic."""
    try:
        return MinuteLateness.model_validate_json(value or b"")
    except ValidationError:
        return None


def _rows(of: Location) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, in the order of its files."""
    for name in files.found(of, "*.parquet"):
        data = io.BytesIO(files.read(of / name) or b"")
        for some in pq.ParquetFile(data).iter_batches(_CHUNK):
            yield from some.to_pylist()
