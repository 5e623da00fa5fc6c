"""Daily runs, one after the other: from records on topics to the day's table."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from schemas.tables import AuditClass
from spark_jobs.audit_rules.classes import AuditLimits
from spark_jobs.audit_run import daily_spans, read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.daily_spans import DayLog
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.report.summary import AuditVerdict, LatenessSummary
from spark_jobs.tests.records import History, Record, cancel, copy, delivery, receipt, rejection, request

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
TOPICS = ("timer.requests", "timer.rejected", "timer.receipts", "orders")


class Topics(Cluster):
    """A cluster that holds a history, which may grow."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.partitions = dict.fromkeys(TOPICS, 1)

    def records(self) -> Iterable[Record]:
        held = self._history
        return (*held.requests, *held.deliveries, *held.rejections, *held.receipts)

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        return [self._span(name, from_ms or 0) for name in sorted(topics)]

    def _span(self, topic: str, from_ms: int) -> Span:
        held = [record for record in self.records() if record.topic == topic]
        end = max((record.offset + 1 for record in held), default=0)
        later = [record.offset for record in held if record.timestamp_ms >= from_ms]
        return Span(topic, 0, min(later, default=end) if from_ms else 0, end)

    def unstable_spans(self, spans: Iterable[Span]) -> list[Span]:
        return []

    def compacted(self, topics: Iterable[str]) -> list[str]:
        return []

    def read(
        self, spark: SparkSession, access: KafkaAccess, spans: Sequence[Span], *, committed: bool = True
    ) -> DataFrame:
        """As `read_records` does."""
        assert committed or not spans
        bounds = {(span.topic, span.partition): range(span.start, span.end) for span in spans}
        found = [r for r in self.records() if r.offset in bounds.get((r.topic, r.partition), ())]
        return spark.createDataFrame(found, RECORDS_DDL)


class Runs:
    """`audit --daily` in one folder."""

    def __init__(self, spark: SparkSession, topics: Topics, out: Path, from_ms: int | None = None) -> None:
        self._spark, self._topics, self._out = spark, topics, out
        self._arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=out, daily=True, from_ms=from_ms)

    def run(self, as_of_ms: int, *, is_killed: bool = False) -> tuple[dict[int, str], Sequence[str]]:
        """The classes of the day, by offset, and the notes. One that is killed does not come to its end."""
        day_log = DayLog(self._out, as_of_ms)
        done = daily_spans.run_day(self._spark, self._topics, self._arguments, AuditLimits(as_of_ms=as_of_ms), day_log)
        if not is_killed:
            late = LatenessSummary(None, None, None, None)
            counts = {name.value: 0 for name in AuditClass}
            daily_spans.commit_day(day_log, done, AuditVerdict(self._out, as_of_ms, counts, late, (), 0, 0, ()))
        rows = pq.read_table(self._out / "requests" / day_log.part).to_pylist()
        return {row["offset"]: row["class"] for row in rows}, done.notes


def test_an_archive_of_another_topic_of_that_name_is_refused() -> None:
    """Else the new one's requests would be passed over as read, and the old ones be judged in their place."""
    history = History()
    history.requests.append(request(0, due_ms=2_000))
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=Path("nowhere"), archive=Path("old"))
    with pytest.raises(JobFailedError, match=r"timer.requests/0 ends at 1, but old holds it up to 500"):
        read_plan.plan_once(Topics(history), arguments, {0: read_plan.ArchivedRange(0, 500, None)})


def test_a_run_that_repeats_a_day_and_is_killed_leaves_the_next_day_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had closed is no duplicate then."""
    done, waits = request(0), request(80, due_ms=50_000)
    history = History([done, waits], [delivery(done, offset=49)])
    topics = Topics(history)
    monkeypatch.setattr(read_plan, "read_records", topics.read)
    runs = Runs(spark, topics, tmp_path)
    assert runs.run(40_000) == ({0: "delivered", 80: "pending"}, ())
    history.deliveries.append(delivery(waits, offset=70))
    assert runs.run(60_000, is_killed=True) == ({0: "delivered", 80: "delivered"}, ())
    assert runs.run(DAY_MS) == ({0: "delivered", 80: "delivered"}, ())


@pytest.mark.slow
def test_a_topic_that_one_day_does_not_see_is_read_on_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a new one, what it got meanwhile would be read twice, or never."""
    asked = request(0, due_ms=100_000)
    history = History([asked])
    topics = Topics(history)
    monkeypatch.setattr(read_plan, "read_records", topics.read)
    runs = Runs(spark, topics, tmp_path)
    assert runs.run(40_000)[0] == {0: "pending"}
    history.deliveries.append(delivery(asked, at_ms=100_001, offset=70))
    del topics.partitions["orders"]
    assert runs.run(DAY_MS)[0] == {0: "missing"}
    topics.partitions["orders"] = 1
    assert runs.run(2 * DAY_MS)[0] == {0: "delivered"}


@pytest.mark.slow
def test_copies_of_requests_before_the_first_day_are_not_judged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, inside = request(0, due_ms=50_000), request(12, at_ms=2_500)
    history = History([before, copy(before, 10, at_ms=3_000), inside, copy(inside, 14, at_ms=3_000)])
    history.deliveries.append(delivery(inside, rolls=1))
    topics = Topics(history)
    monkeypatch.setattr(read_plan, "read_records", topics.read)
    runs = Runs(spark, topics, tmp_path, from_ms=2_000)
    note = "Not judged, as their requests lie before the first day: 1 origins."
    assert runs.run(40_000) == ({12: "delivered"}, (note,))
    history.requests.append(copy(before, 20, rolls=2, at_ms=45_000))
    assert runs.run(DAY_MS) == ({}, (note,))


@pytest.mark.slow
def test_a_receipt_that_is_read_before_its_request_is_there_when_that_comes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer topic's end is looked up first. Without it, a cancel that found nothing would hide a lost timer."""
    lost = request(0, id=b"x", due_ms=50_000)
    stop = cancel(b"x", 1, at_ms=40_001)
    history = History([lost], [], [], [receipt("not-found", stop), receipt("replaced", request(5), request(6))])
    topics = Topics(history)
    monkeypatch.setattr(read_plan, "read_records", topics.read)
    runs = Runs(spark, topics, tmp_path)
    assert runs.run(40_000) == ({0: "pending"}, ())
    history.requests.append(stop)
    assert runs.run(DAY_MS) == ({0: "missing", 1: "cancel-not-found"}, ())


@pytest.mark.slow
def test_a_refusal_that_is_read_before_its_request_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged copy would be taken for one."""
    asked = request(0, due_ms=50_000)
    forged = copy(asked, 1, at_ms=40_001)
    history = History([asked], [], [rejection(forged, "not-ours")])
    topics = Topics(history)
    monkeypatch.setattr(read_plan, "read_records", topics.read)
    runs = Runs(spark, topics, tmp_path)
    assert runs.run(40_000) == ({0: "pending"}, ())
    history.requests.append(forged)
    history.deliveries.append(delivery(asked))
    assert runs.run(DAY_MS) == ({0: "delivered", 1: "rejected"}, ())
