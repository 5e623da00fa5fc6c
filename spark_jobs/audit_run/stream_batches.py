"""A batch of the streaming audit: a part of an audit (incremental.py) that reports what has changed.

    1 judge      requests, evidence, claims, standing, untold, minutes of day=D/batch=N   overwritten, if they are there
    2 commit     batches, then spans                                                      the batch is done: it stays
    3 tell       faults on standard error, minutes on timer.lateness (spark_jobs.audit_run.lateness_topic)
    4 forget     the state behind batch N - 2
    5 Spark writes checkpoint/commits/N

If the process is killed, Spark's checkpoint gives the next one batch N again, with the same requests. Before step 2 it
is judged again; after step 2 only steps 3 and 4 are done. So Parquet and topic repeat nothing; faults are printed at
least once. A pending request has no row in `requests`; any other class has one, and one more when it changes.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import BATCHES, CLAIMS, OPEN_VERDICTS, SPANS, UNFINISHED_MINUTES
from schemas.tables import REQUESTS, AuditClass
from spark_jobs.audit_rules.classes import FAULTS, is_fault
from spark_jobs.audit_run import daily_spans, read_plan
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.audit_run.incremental import open_folder
from spark_jobs.audit_run.lateness_topic import LatenessTopic, write_minutes
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import Cluster
from spark_jobs.platform.tables import folder, read_table, rows_in, write_table
from spark_jobs.report.metrics import AuditMetrics

_MOST_PRINTED = 20


@dataclass(frozen=True)
class PlannedBatch:
    """Spark's plan of a batch. `ends`: of the timer topic's partitions, looked up after `as_of_ms`."""

    number: int
    as_of_ms: int
    ends: Mapping[int, int]


class StreamBatches:
    """The batches in one folder."""

    def __init__(self, arguments: AuditArguments, lateness: LatenessTopic) -> None:
        self._arguments, self._out, self._lateness = arguments, arguments.out, lateness
        self.faults = 0
        """Faults that this process has printed."""
        self.gaps: list[str] = []
        self._printed_notes: set[str] = set()
        self._metrics = AuditMetrics(arguments)

    def process(self, spark: SparkSession, records: DataFrame, planned: PlannedBatch) -> None:
        """Do steps 1 to 4. `records`: of the timer topic. Raises JobFailedError."""
        part = committed_part(self._out, planned.number)
        if part is None:
            part = self._judge(spark, records, planned)
        row = batch_row(self._out, part)
        self._print_faults(part, row)
        self._metrics.batch(row)
        self._lateness.send(self._out, part, planned.number, row["as_of_ms"])
        self._delete_state(planned.number - 2)

    def _judge(self, spark: SparkSession, records: DataFrame, planned: PlannedBatch) -> str:
        previous = committed_part(self._out, planned.number - 1)
        if previous is None and planned.number > 0:
            raise JobFailedError(
                f"--out {self._out} does not hold batch {planned.number - 1}, but its checkpoint does: give a new --out"
            )
        before_ms = None if previous is None else batch_row(self._out, previous)["as_of_ms"]
        as_of_ms = max(planned.as_of_ms, before_ms or 0)
        part = f"day={datetime.fromtimestamp(as_of_ms / 1000, UTC).date()}/batch={planned.number:09d}"
        asked, reached = self._arguments, daily_spans.read_positions(self._out, previous)
        cluster = Cluster(asked.access)
        read = [
            span._replace(end=max(span.start, planned.ends.get(span.partition, span.start)))
            for span in daily_spans.spans_since(
                cluster, [asked.timer_topic], reached, new_from_ms=asked.from_ms, to_ms=None
            )
        ]
        limits = asked.limits(as_of_ms)
        parsed = read_plan.parsed(records, asked)
        new = daily_spans.NewPart(
            part=part,
            previous=previous,
            reached=reached,
            read=read,
            parsed=parsed.persist(StorageLevel.DISK_ONLY),
            since_ms=before_ms if before_ms is not None else asked.from_ms,
        )
        try:
            done = daily_spans.judge_part(
                spark, cluster, asked, limits, new, lambda rows: self._write_changed(spark, rows, part, previous)
            )
        finally:
            new.parsed.unpersist()
        for note in sorted({*done.notes} - self._printed_notes):
            print(f"batch {planned.number}: {note}", file=sys.stderr)
        self._printed_notes.update(done.notes)
        write_minutes(spark, self._out, part, previous, done.spans, as_of_ms - asked.settle_ms)
        self._commit(spark, part, planned.number, as_of_ms, done)
        return part

    def _write_changed(self, spark: SparkSession, rows: DataFrame, part: str, previous: str | None) -> None:
        """Write `requests`: rows that differ from those written before; and `standing`: open verdicts and pending
        deliveries."""
        is_told = F.col("class") != AuditClass.PENDING.value
        changed = rows.where(is_told)
        if previous is not None:
            before = read_table(spark, self._out, OPEN_VERDICTS, previous).select(
                "origin", F.col("class").alias("was"), F.col("faults").alias("were")
            )
            was = F.coalesce("was", F.lit(AuditClass.PENDING.value))
            differs = (was != F.col("class")) | (F.coalesce("were", F.array()) != F.col("faults"))
            changed = rows.join(before, "origin", "left").where(differs)
        write_table(changed, self._out, REQUESTS, part)
        came = F.col("deliveries") > 0
        write_table(rows.where((is_told | came) & F.col("open")), self._out, OPEN_VERDICTS, part)

    def _commit(self, spark: SparkSession, part: str, number: int, as_of_ms: int, done: daily_spans.JudgedPart) -> None:
        told = _counts(read_table(spark, self._out, REQUESTS, part))
        standing = _counts(read_table(spark, self._out, OPEN_VERDICTS, part).where(is_fault()))
        row: dict[str, object] = {c.column: told.get(c.value, 0) for c in AuditClass}
        row |= {"batch": number, "as_of_ms": as_of_ms, "written_ms": time.time_ns() // 1_000_000}
        row |= {"rows": sum(told.values()), "faults": sum(told.get(name.value, 0) for name in FAULTS)}
        row |= {"standing_faults": sum(standing.values()), "open": rows_in(open_folder(self._out, part))}
        daily_spans.write_rows(self._out, BATCHES, part, [{**row, "gaps": list(done.gaps)}])
        daily_spans.write_rows(self._out, SPANS, part, done.rows)

    def _print_faults(self, part: str, row: Mapping[str, Any]) -> None:
        self.gaps += row["gaps"]
        for gap in row["gaps"]:
            print(f"batch {row['batch']}: {gap}", file=sys.stderr)
        if not row["faults"]:
            return
        self.faults += row["faults"]
        counts = ", ".join(f"{row[name.column]:,} {name}" for name in FAULTS if row[name.column])
        print(f"batch {row['batch']} as of {iso(row['as_of_ms'])}: {counts}", file=sys.stderr)
        wanted = ["origin", "class", "target", "due_ms"]
        is_bad = [("class", "in", [name.value for name in FAULTS])]
        shown = pq.read_table(folder(self._out, REQUESTS, part), columns=wanted, filters=is_bad, partitioning=None)
        for fault in shown.slice(0, _MOST_PRINTED).to_pylist():
            due = iso(fault["due_ms"]) if fault["due_ms"] is not None else "never"
            print(f"  {fault['class']} {fault['origin']} for {fault['target']}, due {due}", file=sys.stderr)
        if shown.num_rows > _MOST_PRINTED:
            print(
                f"  and {shown.num_rows - _MOST_PRINTED:,} more, in {folder(self._out, REQUESTS, part)}",
                file=sys.stderr,
            )

    def _delete_state(self, number: int) -> None:
        """Delete the state of a batch, which only the next batch needs. Its results stay."""
        part = committed_part(self._out, number)
        if part is not None:
            state = (
                open_folder(self._out, part),
                *(folder(self._out, t, part) for t in (CLAIMS, OPEN_VERDICTS, UNFINISHED_MINUTES)),
            )
            for old in state:
                shutil.rmtree(old, ignore_errors=True)


def committed_part(out: Path, number: int) -> str | None:
    """Return the part of a batch if it is committed."""
    found = [*(out / SPANS.name).glob(f"day=*/batch={number:09d}/part.parquet")]
    return None if not found else str(found[0].parent.relative_to(out / SPANS.name))


def last_committed_part(out: Path) -> str | None:
    """Return the part of the last committed batch."""
    days = sorted((out / SPANS.name).glob("day=*"))[::-1]
    done = (max(day.glob("batch=*/part.parquet"), default=None) for day in days)
    last = next((path for path in done if path is not None), None)
    return None if last is None else str(last.parent.relative_to(out / SPANS.name))


def batch_row(out: Path, part: str) -> dict[str, Any]:
    """Return a batch's row of BATCHES."""
    (row,) = pq.ParquetFile(folder(out, BATCHES, part) / "part.parquet").read().to_pylist()
    return dict(row)


def _counts(rows: DataFrame) -> dict[str, int]:
    return {row["class"]: row["count"] for row in rows.groupBy("class").count().collect()}
