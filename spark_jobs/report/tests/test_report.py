"""What a person reads: the verdict first, the numbers of the table, and nothing that is loaded from elsewhere."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from schemas.tables import HOURS, LATENESS, REQUESTS, TOPICS, AuditClass
from schemas.units import span_text
from spark_jobs.audit import conclude
from spark_jobs.audit_rules.judgement import out_of_order
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import read_table, spark_schema, write_table
from spark_jobs.report import summary
from spark_jobs.report.report import lateness_svg
from spark_jobs.report.summary import EDGES_MS, AuditVerdict, Bin, LatenessSummary, Remarks
from spark_jobs.tests.one_run import Found, Judging, one_run
from spark_jobs.tests.records import AS_OF_MS, History, copy, delivery, rejection, request

pytestmark = pytest.mark.spark


def lateness_history(lateness_ms: list[int]) -> History:
    asked = [request(n, due_ms=5_000 + 100 * n) for n in range(len(lateness_ms))]
    late = [
        delivery(a, at_ms=5_000 + 100 * n + late) for n, (a, late) in enumerate(zip(asked, lateness_ms, strict=True))
    ]
    return History(asked, late)


def faulty() -> History:
    history, nasty = lateness_history([3, 4, -2]), request(7, due_ms=None, target="orders")
    history.requests += [nasty, request(8, target="bills")]
    history.rejections.append(rejection(nasty, "<script>alert(1)</script>"))
    return history


def refused() -> History:
    """Two requests are refused for reasons that only settings explain, a third one is malformed."""
    history = lateness_history([3] * 8)
    full, bad, denied = request(8), request(9, target="timer.requests"), request(10)
    history.requests += [full, bad, denied]
    codes = (full, "quota-exceeded"), (bad, "bad-target"), (denied, "denied-target")
    history.rejections += [rejection(each, code) for each, code in codes]
    return history


def disordered() -> History:
    """Return timers of one due time. The third is delivered first; the last three were rolled, late and overdue."""
    asked = [request(n, due_ms=5_000) for n in range(4)]
    came = [delivery(each, offset=place) for each, place in zip(asked, (10, 12, 9, 13), strict=True)]
    rolled, late, overdue = request(4, due_ms=5_000), request(5, due_ms=5_000), request(6, due_ms=5_000, at_ms=5_000)
    came += [delivery(rolled, offset=3, rolls=1), delivery(late, offset=2, at_ms=15_001), delivery(overdue, offset=1)]
    return History([*asked, rolled, late, overdue, copy(rolled, 7)], came)


def without_target() -> History:
    history = lateness_history([1, 2])
    history.requests.append(request(7, due_ms=None, target=None))
    return history


HISTORIES = {
    "disordered": disordered(),
    "faulty": faulty(),
    "clean": lateness_history([0, 3, 700]),
    "refused": refused(),
    "empty": History(),
    "without a target": without_target(),
    "early to late": lateness_history([-5, 0, 0, 1, 4, 5_000_000]),
}

WriteRequests: TypeAlias = Callable[[str], DataFrame]


JUDGED: dict[str, Found] = {}


@one_run()
def keep_judged() -> Judging:
    """Keep what is found in each history."""
    found = yield list(HISTORIES.values())
    JUDGED.update(zip(HISTORIES, found.parts, strict=True))


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Found]:
    keep_judged(spark)
    return JUDGED


@pytest.fixture
def write_requests(spark: SparkSession, judged: dict[str, Found], tmp_path: Path) -> WriteRequests:
    """Return a function that writes a history's table of requests to `tmp_path`, and returns it as read from there."""

    def write(name: str) -> DataFrame:
        rows = [row.asDict() for row in judged[name].rows]
        write_table(spark.createDataFrame(rows, spark_schema(REQUESTS)), tmp_path, REQUESTS)
        return read_table(tmp_path, REQUESTS)

    return write


def arguments(out: Path, **more: Any) -> AuditArguments:
    return AuditArguments(access=KafkaAccess("localhost:9092"), out=out, **more)


def concluded(out: Path) -> AuditVerdict:
    return conclude(arguments(out), AS_OF_MS, Remarks(["a note <b>"]))


def test_a_faulty_report_says_so_first(write_requests: WriteRequests, tmp_path: Path) -> None:
    write_requests("faulty")
    verdict = concluded(tmp_path)

    assert (verdict.exit_code, verdict.faults) == (3, {"early": 1, "missing": 1})
    assert verdict.headline == "2 faults: 1 early, 1 missing"
    page = (tmp_path / "report.html").read_text()
    assert page.index(verdict.headline) < page.index("Target topics")
    assert page.index("Requests by class") < page.index("Worst hours") < page.index("Rejected by code")
    assert "timer.<wbr>requests/<wbr>0/<wbr>8" in page
    assert "<script" not in page
    assert "a note &lt;b&gt;" in page
    assert [t.topic for t in verdict.topics] == ["orders", "bills"]
    assert verdict.lateness == LatenessSummary(-2, 3, 4, 4)
    assert verdict.topics[0].lateness_p99_ms == 4
    assert verdict.topics[0].clock == "LogAppendTime"


def test_deliveries_out_of_order_are_a_fault(write_requests: WriteRequests, tmp_path: Path) -> None:
    table = write_requests("disordered")
    found = out_of_order(table, tolerance_ms=10_000, skew_ms=1_000)
    assert [row.origin for row in found.collect()] == ["timer.requests/0/2"]
    verdict = concluded(tmp_path)
    assert (verdict.exit_code, verdict.faults) == (3, {"out-of-order": 1})
    assert verdict.headline == "1 fault: 1 out-of-order"
    page = (tmp_path / "report.html").read_text()
    assert "Out of order: 1 deliveries, such as those of timer.requests/0/2." in page
    assert "with the same due time" in page


def test_a_clean_report_needs_nothing_else(write_requests: WriteRequests, tmp_path: Path) -> None:
    write_requests("clean")
    verdict = concluded(tmp_path)
    assert (verdict.exit_code, verdict.headline) == (0, "Clean: 3 requests, no fault")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert not re.search(r"https?:|<script|<link|<img|@import|<iframe|src=", page)
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert not list(tmp_path.glob("*.new"))


def test_many_refusals_that_only_settings_explain_are_not_clean(write_requests: WriteRequests, tmp_path: Path) -> None:
    table = write_requests("refused")
    counts = summary.latenesses(table)
    by_topic = summary.topics(table, counts)
    asked = (arguments(tmp_path, max_refused_percent=percent) for percent in (19, 18))
    few, many = (summary.verdict(table, counts, by_topic, each, AS_OF_MS, Remarks()) for each in asked)
    assert (few.exit_code, few.unproved) == (0, ())
    assert (many.exit_code, many.headline) == (1, "Not all is proved: 11 requests, no fault among them")
    assert "2 of 11 requests, more than 18 % (--max-refused-percent)" in many.unproved[0]


def test_the_report_says_that_there_was_nothing_to_audit(write_requests: WriteRequests, tmp_path: Path) -> None:
    write_requests("empty")
    verdict = concluded(tmp_path)
    assert (verdict.exit_code, verdict.headline) == (0, "Nothing to audit: no request")
    assert verdict.counts == {c.value: 0 for c in AuditClass}
    assert verdict.lateness == LatenessSummary(None, None, None, None)
    assert "<svg" not in (tmp_path / "report.html").read_text()


def test_the_tables_are_as_they_are_documented(write_requests: WriteRequests, tmp_path: Path) -> None:
    write_requests("without a target")
    concluded(tmp_path)
    for table in (REQUESTS, LATENESS, TOPICS, HOURS):
        written = pq.read_table(tmp_path / table.name).schema
        # Spark says "not null" wherever it can prove it; no reader may rely on that.
        types = [(f.name, str(f.type).replace(" not null", "")) for f in written]
        assert types == [(f.name, str(f.type)) for f in table.arrow()]
    by_topic = {row["topic"]: row for row in pq.read_table(tmp_path / "topics").to_pylist()}
    assert by_topic["orders"]["delivered"] == 2
    assert by_topic["orders"]["faults"] == 0
    assert by_topic[None]["missing"] == 1
    assert by_topic[None]["clock"] is None


@pytest.mark.slow
def test_a_table_with_a_column_missing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="lateness_ms"):
        write_table(History().judged(spark).drop("lateness_ms"), tmp_path, REQUESTS)


def test_histogram_and_time_line(write_requests: WriteRequests) -> None:
    delivered = write_requests("early to late")
    counts = summary.latenesses(delivered)
    bins, _ = summary.histogram(counts)
    assert bins[:4] == (Bin(None, 0, 1), Bin(0, 1, 2), Bin(1, 2, 1), Bin(2, 5, 1))
    assert bins[-1] == Bin(EDGES_MS[-1], None, 1)
    assert sum(b.deliveries for b in bins) == 6
    moments = summary.timeline(delivered, counts, 1_000)
    assert [(m.at_ms, m.deliveries, m.lateness_max_ms) for m in moments] == [
        (4_000, 1, -5),
        (5_000, 4, 4),
        (5_005_000, 1, 5_000_000),
    ]
    moments = summary.timeline(delivered, counts, 600_000)
    assert [(m.at_ms, m.deliveries, m.lateness_max_ms) for m in moments] == [(0, 5, 4), (4_800_000, 1, 5_000_000)]


def late(*values_ms: int | None) -> dict[str, int | None]:
    return dict(zip(("lateness_p50_ms", "lateness_p99_ms", "lateness_max_ms"), values_ms, strict=True))


def test_a_trend_may_have_days_without_deliveries() -> None:
    none, some = late(None, None, None), late(1, 2, 3)
    for places in ((some, none), (none, none)):
        days = [Row(as_of_ms=n * 86_400_000, faults=n, **place) for n, place in enumerate(places)]
        assert "Lateness over time, and faults" in lateness_svg(days, "as_of_ms", "faults", "faults")


def test_times_without_a_calendar_date_are_not_drawn() -> None:
    odd = [Row(at_ms=at_ms, deliveries=1, **late(2, 3, 4)) for at_ms in (-1_000, 5_000, 2**62)]
    assert "<svg" in lateness_svg(odd, "at_ms", "deliveries", "deliveries")
    assert lateness_svg([odd[0]], "at_ms", "deliveries", "deliveries") == ""


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0 ms"), (250, "250 ms"), (-2, "-2 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (86_400_000, "1 d")],
)
def test_a_span_is_short(span_ms: int, text: str) -> None:
    assert span_text(span_ms) == text


def test_a_span_of_any_length_has_its_ticks() -> None:
    """Matplotlib warns, which is an error here, where it finds none."""
    for minutes in (0.05, 2.6, 2.9, 155, 175, 65 * 60, 71 * 60, 92 * 1440, 1000 * 1440):
        ends = (0, round(minutes * 60_000))
        moments = [Row(at_ms=at_ms, deliveries=1, **late(1, 1, 1)) for at_ms in ends]
        assert "<svg" in lateness_svg(moments, "at_ms", "deliveries", "deliveries")
