"""The table at the end of the demo, from a verdict as the audit returns it."""

from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import Row
from rich.console import Console

from schemas.tables import TOPICS, AuditClass
from scripts.demo.run import conclude
from spark_jobs.report.summary import AuditVerdict, LatenessSummary

COLUMNS = [column.name for column in TOPICS.columns]


def verdict_of(**columns: object) -> AuditVerdict:
    """Return the verdict of one target topic; columns that are not given are 0, and times None."""
    values = {name: None if name.startswith("lateness") else 0 for name in COLUMNS} | columns
    assert values.keys() == set(COLUMNS)
    counts = {each.value: 0 for each in AuditClass} | {"delivered": 1004}
    late = LatenessSummary(None, None, None, None)
    return AuditVerdict(Path("out"), 0, counts, late, (Row(**values),), 1, 1004, ())


@pytest.mark.parametrize(("p50_ms", "shown"), [(5, "5"), (None, "-")])
def test_each_target_topic_has_a_row_with_its_counts_and_lateness(p50_ms: int | None, shown: str) -> None:
    verdict = verdict_of(
        topic="flights.jfk",
        requests=1004,
        delivered=1003,
        faults=2,
        lateness_p50_ms=p50_ms,
        lateness_p99_ms=17,
        lateness_max_ms=1021,
    )
    console = Console(file=StringIO(), width=200)
    assert conclude(1004, verdict, console) == 0
    assert isinstance(console.file, StringIO)
    row = next(line for line in console.file.getvalue().splitlines() if "flights.jfk" in line)
    assert row.replace("│", " ").split() == ["flights.jfk", "1,004", "1,003", "2", shown, "17", "1,021"]
