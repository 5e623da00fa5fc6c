"""A batch of the streaming audit: a part of an audit (observe.py) that reports what has changed.

    1 judge      requests, open, evidence, standing, untold, minutes of day=D/batch=N     undone, if the run is killed
    2 commit     batches, then state and spans                                            the batch is done: it stays
    3 tell       faults on standard error, requests in --table
    4 forget     the tables that only the next batch needs, of batch N - 2

After a kill between 2 and 4, the next run does 3 and 4 again. Parquet and table repeat nothing; faults are printed at
least once. A pending request has no row in `requests`; any other class has one, and one more at each change.

Each delivery counts in one row of `minutes`:

    batch 7   deliveries 12:00:58 ... 12:01:07   untold of 6 + these -> 12:00 is over: a row; 12:01 goes to untold of 7
    batch 8   a delivery of 12:00, read late                         -> a row of its own for 12:00
"""

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import BATCHES, OPEN_VERDICTS, UNFINISHED_MINUTES
from schemas.tables import MINUTES, REQUESTS, AuditClass
from spark_jobs.audit_rules.percentiles import MINUTE_MS, interval_start, lateness_counts, lateness_percentiles
from spark_jobs.audit_rules.verdicts import FAULTS, is_fault
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.audit_run.audit_folder import AuditFolder, done_parts
from spark_jobs.audit_run.observe import JudgedPart, PartPlan, judge_part
from spark_jobs.audit_run.open_timers import STATE
from spark_jobs.audit_run.requests_table import Merge
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.tables import folder, read_rows, read_table, write_rows, write_table
from spark_jobs.report.metrics import AuditMetrics
from spark_jobs.report.summary import unread_outcomes

_STARTS = pa.schema([("t", pa.string()), ("p", pa.int32()), ("start", pa.int64())])
_MOST_PRINTED = 20
_KEPT = 2
"""Batches whose state is kept: the last one, and the one that it began with."""


class Batches:
    def __init__(self, arguments: AuditArguments, at: AuditFolder, merge: Merge) -> None:
        self._arguments, self._at, self._out, self._merge = arguments, at, arguments.out, merge
        self.faults = 0
        """Faults that this process has printed."""
        self.gaps: list[str] = []
        self._printed_notes: set[str] = set()
        self._metrics = AuditMetrics(arguments)

    def next_batch(self, spark: SparkSession, now_ms: int) -> None:
        """Finish the batch that a killed run has begun, if it was committed; then make the next one."""
        self._at.undo()
        done = done_parts(self._out)
        if self._at.begun() is not None:
            self._finish(spark, done)
        previous = done[-1] if done else None
        before = batch_row(self._out, previous) if previous is not None else {"batch": -1, "as_of_ms": -(2**62)}
        as_of_ms, number = max(now_ms - self._arguments.skew_ms, before["as_of_ms"] + 1), before["batch"] + 1
        name = f"day={datetime.fromtimestamp(as_of_ms / 1000, UTC).date()}/batch={number:09d}"
        self._at.begin(name)
        self._make(spark, PartPlan(name, number, previous, as_of_ms))
        self._finish(spark, [*done, name])

    def _make(self, spark: SparkSession, plan: PartPlan) -> None:
        def write(rows: DataFrame, taken: DataFrame | None) -> None:
            write_changed(spark, self._arguments, rows, taken, plan)

        done = judge_part(spark, Cluster(self._arguments.access), self._arguments, plan, write)
        for note in sorted({*done.remarks.notes} - self._printed_notes):
            print(f"{self._named(plan.number)}: {note}", file=sys.stderr)
        self._printed_notes.update(done.remarks.notes)
        over_ms = plan.as_of_ms - self._arguments.settle_ms
        write_minutes(spark, self._out, plan.name, plan.previous, done.spans, over_ms)
        self._write_row(spark, done)
        done.commit()

    def _write_row(self, spark: SparkSession, done: JudgedPart) -> None:
        part = done.plan.name
        rows = read_table(spark, self._out, REQUESTS, part)
        told = _counts(rows)
        gaps = [*done.remarks.gaps, *(unread_outcomes(rows) if told.get(AuditClass.UNJUDGED) else ())]
        standing = _counts(read_table(spark, self._out, OPEN_VERDICTS, part).where(is_fault()))
        row: dict[str, object] = {c.column: told.get(c.value, 0) for c in AuditClass}
        row |= {"batch": done.plan.number, "as_of_ms": done.plan.as_of_ms, "written_ms": time.time_ns() // 1_000_000}
        row |= {"rows": sum(told.values()), "faults": sum(told.get(name.value, 0) for name in FAULTS)}
        row |= {"standing_faults": sum(standing.values()), "open": done.state.open, "gaps": gaps}
        write_rows(self._out, BATCHES, part, [row])

    def _finish(self, spark: SparkSession, done: list[str]) -> None:
        """Do steps 3 and 4 of the last batch that is done."""
        row = batch_row(self._out, done[-1])
        self._print_faults(spark, done[-1], row)
        self._metrics.batch(row)
        self._merge(done[-1], done[-1])
        self._forget(row["batch"] - _KEPT)
        self._at.end()

    def _print_faults(self, spark: SparkSession, part: str, row: Mapping[str, Any]) -> None:
        self.gaps += row["gaps"]
        for gap in row["gaps"]:
            print(f"{self._named(row['batch'])}: {gap}", file=sys.stderr)
        if not row["faults"]:
            return
        self.faults += row["faults"]
        counts = ", ".join(f"{row[name.column]:,} {name}" for name in FAULTS if row[name.column])
        print(f"{self._named(row['batch'])} as of {iso(row['as_of_ms'])}: {counts}", file=sys.stderr)
        bad = read_table(spark, self._out, REQUESTS, part).where(is_fault())
        for fault in bad.select("origin", "class", "target", "due_ms").limit(_MOST_PRINTED).collect():
            due = iso(fault["due_ms"]) if fault["due_ms"] is not None else "never"
            print(f"  {fault['class']} {fault['origin']} for {fault['target']}, due {due}", file=sys.stderr)
        if row["faults"] > _MOST_PRINTED:
            where = folder(self._out, REQUESTS, part)
            print(f"  and {row['faults'] - _MOST_PRINTED:,} more, in {where}", file=sys.stderr)

    def _named(self, number: int) -> str:
        return f"{self._arguments.timer_topic}: batch {number}"

    def _forget(self, number: int) -> None:
        """Delete the tables of a batch that only the next one needs. Its results stay."""
        for part in files.found(self._out / STATE, f"day=*/batch={max(0, number):09d}") if number >= 0 else ():
            tables = (folder(self._out, table, part) for table in (OPEN_VERDICTS, UNFINISHED_MINUTES))
            files.delete(self._out / STATE / part, *tables)


def write_changed(
    spark: SparkSession, arguments: AuditArguments, rows: DataFrame, taken: DataFrame | None, plan: PartPlan
) -> None:
    """Write `requests`: rows that differ from those written before; and `standing`: open verdicts and pending
    deliveries, also those that were not judged now."""
    out, is_told = arguments.out, F.col("class") != AuditClass.PENDING.value
    changed, still = rows.where(is_told), rows.where((is_told | (F.col("deliveries") > 0)) & F.col("open"))
    if plan.previous is not None:
        stood = read_table(spark, out, OPEN_VERDICTS, plan.previous)
        before = stood.select("origin", F.col("class").alias("was"), F.col("faults").alias("were"))
        was = F.coalesce("was", F.lit(AuditClass.PENDING.value))
        differs = (was != F.col("class")) | (F.coalesce("were", F.array()) != F.col("faults"))
        changed = rows.join(before, "origin", "left").where(differs)
        asleep = stood if taken is None else stood.join(taken.select("origin"), "origin", "left_anti")
        columns = REQUESTS.arrow().names
        still = still.select(*columns).unionByName(asleep.select(*columns))
    write_table(changed, out, REQUESTS, plan.name)
    write_table(still, out, OPEN_VERDICTS, plan.name)


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


def batch_row(out: Location, part: str) -> dict[str, Any]:
    (row,) = read_rows(out, BATCHES, part)
    return row


def _counts(rows: DataFrame) -> dict[str, int]:
    return {row["class"]: row["count"] for row in rows.groupBy("class").count().collect()}
