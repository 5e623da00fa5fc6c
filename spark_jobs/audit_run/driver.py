"""Run an audit by day or batch: one day, or batch after batch. The steps of a part: observe.py.

    --daily                   undo what a killed run has left, then one part, day=D, and its report
    --stream                  the same forever: a part each --every-s seconds, until SIGTERM or Ctrl-C; several
                              timer topics in turn
    --stream --available-now  one part: it reads what is there at its start

A part that a killed run has not committed is thrown away: none of it was reported. The next part reads more than it
would have, and is judged as of its own time.
"""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from types import FrameType

from pyspark.sql import SparkSession

from schemas.audit_state import DAYS
from schemas.tables import AuditClass
from spark_jobs.audit_run import requests_table
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.audit_run.audit_folder import AuditFolder, done_parts
from spark_jobs.audit_run.batches import Batches, batch_row
from spark_jobs.audit_run.observe import JudgedPart, PartPlan, judge_part
from spark_jobs.errors import UsageError
from spark_jobs.kafka.admin import Cluster
from spark_jobs.platform.lock import DemandHeld
from spark_jobs.platform.tables import read_rows, write_rows
from spark_jobs.report.summary import AuditVerdict, DaySummary

MOST_DAYS = 60
"""Most days in the report's trend."""


def day_of(as_of_ms: int) -> date:
    """Return the date (UTC) that names a day's part."""
    return datetime.fromtimestamp(as_of_ms / 1000, UTC).date()


class Day:
    """One day of a daily audit: `day=2026-01-31`, after the last day that is done."""

    def __init__(self, arguments: AuditArguments, as_of_ms: int) -> None:
        self._arguments, self._at = arguments, AuditFolder.opened(arguments.out, "daily")
        day = day_of(as_of_ms)
        self.part, days = f"day={day.isoformat()}", done_parts(arguments.out)
        if days and days[-1] > self.part:
            last = days[-1].removeprefix("day=")
            raise UsageError(f"--as-of lies on {day}, but {last} has been audited already: give a later time")
        self._earlier = [part for part in days if part < self.part]
        self._plan = PartPlan(self.part, date.toordinal(day), self._earlier[-1] if self._earlier else None, as_of_ms)

    def judge(self, spark: SparkSession, cluster: Cluster) -> JudgedPart:
        self._at.undo()
        self._at.begin(self.part)
        return judge_part(spark, cluster, self._arguments, self._plan)

    def commit(self, done: JudgedPart, verdict: AuditVerdict) -> None:
        """Write the day's row of the trend, then commit it."""
        row: dict[str, object] = {c.column: verdict.counts[c.value] for c in AuditClass}
        late = verdict.lateness
        row |= {"as_of_ms": verdict.as_of_ms, "requests": verdict.requests, "faults": sum(verdict.faults.values())}
        row |= {"lateness_p50_ms": late.p50_ms, "lateness_p99_ms": late.p99_ms, "lateness_max_ms": late.max_ms}
        write_rows(self._arguments.out, DAYS, self.part, [row])
        done.commit()
        self._at.end()

    def trend(self) -> list[DaySummary]:
        """Return the last days before this one, oldest first."""
        found = []
        for part in self._earlier[-MOST_DAYS:]:
            (row,) = read_rows(self._arguments.out, DAYS, part)
            counts = (row["requests"], row["faults"], row["delivered"] + row["late"], row["pending"])
            late = (row["lateness_p50_ms"], row["lateness_p99_ms"], row["lateness_max_ms"])
            found.append(DaySummary(part.removeprefix("day="), *counts, *late))
        return found


def run_batches(spark: SparkSession, audits: Sequence[tuple[AuditArguments, DemandHeld]]) -> int:
    """Make batches until a signal, of each timer topic in turn; one of each with `available_now`.

    Returns the highest exit code.
    """
    opened = [(arguments, demand_held, _batches(spark, arguments)) for arguments, demand_held in audits]
    first = audits[0][0]
    with _stop_on_signals() as stop:
        while not stop.is_set():
            started_s = time.monotonic()
            for _, demand_held, batches in opened:
                if not stop.is_set():
                    demand_held()
                    batches.next_batch(spark, time.time_ns() // 1_000_000)
            if first.available_now:
                break
            stop.wait(max(0.0, started_s + first.every_s - time.monotonic()))
    return max(_conclude(arguments, batches) for arguments, _, batches in opened)


def _batches(spark: SparkSession, arguments: AuditArguments) -> Batches:
    return Batches(arguments, AuditFolder.opened(arguments.out, "stream"), requests_table.opened(spark, arguments))


def _conclude(arguments: AuditArguments, batches: Batches) -> int:
    done = done_parts(arguments.out)
    if not done:
        print(f"{arguments.timer_topic}: no batch is done yet")
        return 0
    row = batch_row(arguments.out, done[-1])
    print(
        f"{arguments.timer_topic}: audited as of {iso(row['as_of_ms'])}, batch {row['batch']}:"
        f" {batches.faults:,} faults reported by this run, {row['standing_faults']:,} in all,"
        f" {row['open']:,} timers open"
    )
    return 3 if batches.faults or row["standing_faults"] else 1 if batches.gaps else 0


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
