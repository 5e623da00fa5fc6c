"""The streaming audit, batch by batch: each is a part of an audit (observe.py) that reports what has changed.

    1 judge      requests, open, evidence, standing, untold, minutes of day=D/batch=N     undone, if the run is killed
    2 commit     batches, then state and spans                                            the batch is done: it stays
    3 tell       faults on standard error, requests in --table
    4 forget     the tables that only the next batch needs, of batch N - 2

After a kill between 2 and 4, the next run does 3 and 4 again: faults are printed at least once. A pending request has
no row in `requests`; any other class has one, and one more at each change.

Each delivery counts in one row of `minutes`:

    batch 7   deliveries 12:00:58 ... 12:01:07   untold of 6 + these -> 12:00 is over: a row; 12:01 goes to untold of 7
    batch 8   a delivery of 12:00, read late                         -> a row of its own for 12:00
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import BATCHES, OPEN_VERDICTS, UNFINISHED_MINUTES
from schemas.tables import MINUTES, REQUESTS, AuditClass
from spark_jobs.audit_rules.percentiles import MINUTE_MS, interval_start, lateness_counts, lateness_percentiles
from spark_jobs.audit_rules.verdicts import FAULTS, is_fault
from spark_jobs.audit_run import requests_table
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.audit_run.audit_folder import begin_part, begun_part, done_parts, end_part, open_folder, undo_part
from spark_jobs.audit_run.incremental import PartPlan
from spark_jobs.audit_run.observe import day_of, judge_part
from spark_jobs.audit_run.open_timers import STATE
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.lock import DemandHeld
from spark_jobs.platform.tables import folder, read_rows, read_table, write_rows, write_table
from spark_jobs.report.metrics import AuditMetrics
from spark_jobs.report.summary import unread_outcomes

_MOST_PRINTED = 20
_KEPT = 2
"""Batches whose state is kept: the last one, and the one that it began with."""


def run_batches(audits: Sequence[tuple[AuditArguments, DemandHeld]]) -> int:
    """Make batches of each timer topic in turn until a signal, or one with `available_now`. Return the highest code."""
    opened = [(demand_held, Batches(arguments)) for arguments, demand_held in audits]
    first = audits[0][0]
    with _stop_on_signals() as stop:
        while not stop.is_set():
            started_s = time.monotonic()
            for demand_held, batches in opened:
                if not stop.is_set():
                    demand_held()
                    batches.next_batch(time.time_ns() // 1_000_000)
            if first.available_now:
                break
            stop.wait(max(0.0, started_s + first.every_s - time.monotonic()))
    return max(batches.conclude() for _, batches in opened)


class Batches:
    def __init__(self, arguments: AuditArguments) -> None:
        self._arguments, self._out = arguments, arguments.out
        open_folder(self._out, "stream")
        self._merge = requests_table.opened(arguments)
        self._faults = 0
        """Faults that this process has printed."""
        self._gaps: list[str] = []
        self._printed_notes: set[str] = set()
        self._metrics = AuditMetrics(arguments)

    def next_batch(self, now_ms: int) -> None:
        """Finish the batch that a killed run has begun, if it was committed; then make the next one."""
        undo_part(self._out)
        done = done_parts(self._out)
        if begun_part(self._out) is not None:
            self._finish(done)
        previous = done[-1] if done else None
        before = batch_row(self._out, previous) if previous is not None else {"batch": -1, "as_of_ms": -(2**62)}
        as_of_ms, number = max(now_ms - self._arguments.skew_ms, before["as_of_ms"] + 1), before["batch"] + 1
        name = f"day={day_of(as_of_ms)}/batch={number:09d}"
        begin_part(self._out, name)
        self._make(PartPlan(name, number, previous, as_of_ms))
        self._finish([*done, name])

    def conclude(self) -> int:
        """Print what this run and all have found, and return the exit code."""
        done, topic = done_parts(self._out), self._arguments.timer_topic
        if not done:
            print(f"{topic}: no batch is done yet")
            return 0
        row = batch_row(self._out, done[-1])
        print(
            f"{topic}: audited as of {iso(row['as_of_ms'])}, batch {row['batch']}: {self._faults:,} faults reported by"
            f" this run, {row['standing_faults']:,} in all, {row['open']:,} timers open"
        )
        return 3 if self._faults or row["standing_faults"] else 1 if self._gaps else 0

    def _make(self, plan: PartPlan) -> None:
        done = judge_part(Cluster(self._arguments.access), self._arguments, plan)
        for note in sorted({*done.remarks.notes} - self._printed_notes):
            print(f"{self._named(plan.number)}: {note}", file=sys.stderr)
        self._printed_notes.update(done.remarks.notes)
        write_minutes(self._out, plan.name, plan.previous, done.spans, plan.as_of_ms - self._arguments.settle_ms)
        rows = read_table(self._out, REQUESTS, plan.name)
        told = _counts(rows)
        gaps = [*done.remarks.gaps, *(unread_outcomes(rows) if told.get(AuditClass.UNJUDGED) else ())]
        standing = _counts(read_table(self._out, OPEN_VERDICTS, plan.name).where(is_fault()))
        row: dict[str, object] = {c.column: told.get(c.value, 0) for c in AuditClass}
        row |= {"batch": plan.number, "as_of_ms": plan.as_of_ms, "written_ms": time.time_ns() // 1_000_000}
        row |= {"rows": sum(told.values()), "faults": sum(told.get(name.value, 0) for name in FAULTS)}
        row |= {"standing_faults": sum(standing.values()), "open": done.state.open, "gaps": gaps}
        write_rows(self._out, BATCHES, plan.name, [row])
        done.commit()

    def _finish(self, done: list[str]) -> None:
        """Do steps 3 and 4 of the last batch that is done."""
        row = batch_row(self._out, done[-1])
        self._print_faults(done[-1], row)
        self._metrics.batch(row)
        self._merge(done[-1], done[-1])
        old = row["batch"] - _KEPT
        for part in files.found(self._out / STATE, f"day=*/batch={old:09d}") if old >= 0 else ():
            tables = (folder(self._out, table, part) for table in (OPEN_VERDICTS, UNFINISHED_MINUTES))
            files.delete(self._out / STATE / part, *tables)
        end_part(self._out)

    def _print_faults(self, part: str, row: Mapping[str, Any]) -> None:
        self._gaps += row["gaps"]
        for gap in row["gaps"]:
            print(f"{self._named(row['batch'])}: {gap}", file=sys.stderr)
        if not row["faults"]:
            return
        self._faults += row["faults"]
        counts = ", ".join(f"{row[name.column]:,} {name}" for name in FAULTS if row[name.column])
        print(f"{self._named(row['batch'])} as of {iso(row['as_of_ms'])}: {counts}", file=sys.stderr)
        bad = read_table(self._out, REQUESTS, part).where(is_fault())
        for fault in bad.select("origin", "class", "target", "due_ms").limit(_MOST_PRINTED).collect():
            due = iso(fault["due_ms"]) if fault["due_ms"] is not None else "never"
            print(f"  {fault['class']} {fault['origin']} for {fault['target']}, due {due}", file=sys.stderr)
        if row["faults"] > _MOST_PRINTED:
            where = folder(self._out, REQUESTS, part)
            print(f"  and {row['faults'] - _MOST_PRINTED:,} more, in {where}", file=sys.stderr)

    def _named(self, number: int) -> str:
        return f"{self._arguments.timer_topic}: batch {number}"


def write_minutes(out: Location, part: str, previous: str | None, read_now: Sequence[Span], over_ms: int) -> None:
    """Write `minutes` and `untold` of a part, from its `requests`. A minute is complete if it ends by `over_ms`."""
    rows = read_table(out, REQUESTS, part)
    if previous is None:
        counted = _uncounted_deliveries(rows.withColumn("waited", F.lit(False)), read_now)
    else:
        waited = read_table(out, OPEN_VERDICTS, previous).where(F.col("class") == AuditClass.PENDING.value)
        told = rows.join(waited.select("origin", F.lit(True).alias("waited")), "origin", "left")
        untold = read_table(out, UNFINISHED_MINUTES, previous)
        counted = _uncounted_deliveries(told, read_now).unionByName(untold)
    timed = counted.withColumn("minute_ms", interval_start("delivered_ms", MINUTE_MS))
    is_over = F.col("minute_ms") + MINUTE_MS <= over_ms
    write_table(timed.where(~is_over), out, UNFINISHED_MINUTES, part)
    keys = ("topic", "minute_ms")
    found = lateness_percentiles(lateness_counts(timed.where(is_over), *keys), *keys, percentiles=(50, 90, 99))
    write_table(found.repartition(1).sortWithinPartitions("minute_ms", "topic"), out, MINUTES, part)


def _uncounted_deliveries(rows: DataFrame, read_now: Sequence[Span]) -> DataFrame:
    """Return the deliveries whose record or request this part has read, and those that `waited` for their request."""
    places = [{"t": span.topic, "p": span.partition, "start": span.start} for span in read_now]
    starts = rows.sparkSession.createDataFrame(pa.Table.from_pylist(places))
    delivered = rows.where(F.col("lateness_ms").isNotNull())

    def is_new(topic: str, partition: str, offset: str, start: str) -> DataFrame:
        place = (F.col(topic) == F.col("t")) & (F.col(partition) == F.col("p"))
        looked = delivered.join(F.broadcast(starts), place, "left")
        return looked.withColumn(start, F.coalesce(F.col(offset) >= F.col("start"), F.lit(False))).drop(*starts.columns)

    delivered = is_new("topic", "partition", "offset", "new_request")
    delivered = is_new("delivered_topic", "delivered_partition", "delivered_offset", "new_delivery")
    new = delivered.where(F.col("new_request") | F.col("new_delivery") | F.coalesce("waited", F.lit(False)))
    return new.select(F.coalesce("target", "delivered_topic").alias("topic"), "delivered_ms", "lateness_ms", "clock")


def batch_row(out: Location, part: str) -> dict[str, Any]:
    (row,) = read_rows(out, BATCHES, part)
    return row


def _counts(rows: DataFrame) -> dict[str, int]:
    return {row["class"]: row["count"] for row in rows.groupBy("class").count().collect()}


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
