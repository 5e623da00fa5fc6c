"""One day of a daily audit: undo what a killed run has left, then judge one part, day=D. Its steps: observe.py."""

from datetime import UTC, date, datetime

from pyspark.sql import SparkSession

from schemas.audit_state import DAYS
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.audit_folder import begin_part, done_parts, end_part, open_folder, undo_part
from spark_jobs.audit_run.incremental import PartPlan
from spark_jobs.audit_run.observe import JudgedPart, judge_part
from spark_jobs.errors import UsageError
from spark_jobs.kafka.admin import Cluster
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
        self._arguments, self._out = arguments, arguments.out
        open_folder(self._out, "daily")
        day = day_of(as_of_ms)
        self.part, days = f"day={day.isoformat()}", done_parts(self._out)
        if days and days[-1] > self.part:
            last = days[-1].removeprefix("day=")
            raise UsageError(f"--as-of lies on {day}, but {last} has been audited already: give a later time")
        self._earlier = [part for part in days if part < self.part]
        self._plan = PartPlan(self.part, date.toordinal(day), self._earlier[-1] if self._earlier else None, as_of_ms)

    def judge(self, spark: SparkSession, cluster: Cluster) -> JudgedPart:
        undo_part(self._out)
        begin_part(self._out, self.part)
        return judge_part(spark, cluster, self._arguments, self._plan)

    def commit(self, done: JudgedPart, verdict: AuditVerdict) -> None:
        """Write the day's row of the trend, then commit it."""
        write_rows(self._out, DAYS, self.part, [verdict.day_row])
        done.commit()
        end_part(self._out)

    def trend(self) -> list[DaySummary]:
        """Return the last days before this one, oldest first."""
        rows = {part: read_rows(self._out, DAYS, part)[0] for part in self._earlier[-MOST_DAYS:]}
        return [DaySummary.of(part.removeprefix("day="), row) for part, row in rows.items()]
