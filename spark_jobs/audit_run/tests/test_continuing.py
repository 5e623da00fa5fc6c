"""Where a daily run goes on, or an archive ends, and the topic is not what it was."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.audit_state import DAYS, SPANS
from spark_jobs.archive import demand_no_hole
from spark_jobs.audit_rules.classes import FAULTS
from spark_jobs.audit_run import read_plan as reading
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.daily_spans import Diary, Reached, never_read, read_on
from spark_jobs.errors import AuditTroubleError, UsageError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.lock import alone
from spark_jobs.report.summary import AuditVerdict, LatenessSummary

TIMERS = "timer.requests"
REACHED = {(TIMERS, 0): Reached(0, 9_800, True)}


class Now(Cluster):
    """A cluster whose topics hold just these spans."""

    def __init__(self, *spans: Span) -> None:
        self._spans = spans
        self.partitions = {topic: sum(s.topic == topic for s in spans) for topic, *_ in spans}

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        asked = set(topics)
        return [span for span in self._spans if span.topic in asked]


def read_further(*spans: Span, to_ms: int | None = None) -> list[Span]:
    return read_on(Now(*spans), [TIMERS], REACHED, new_from_ms=None, to_ms=to_ms)


def test_a_day_whose_audit_was_killed_keeps_no_later_one_from_being_made(tmp_path: Path) -> None:
    for table in (SPANS, DAYS):
        (tmp_path / table.name / "day=1970-01-01").mkdir(parents=True)
    diary = Diary(tmp_path, 86_400_000)
    assert (diary.day, diary.previous, diary.previous_as_of_ms(), diary.past()) == ("1970-01-02", None, None, [])


@pytest.mark.parametrize("spans", [[Span(TIMERS, 0, 0, 5_000)], []])
def test_a_topic_that_ends_before_what_was_read_is_told(spans: list[Span]) -> None:
    with pytest.raises(AuditTroubleError, match=r"timer.requests/0 ends at \d+, .* 9800:.* give a new --out"):
        read_further(*spans)


def test_what_retention_took_since_the_last_run_is_a_gap() -> None:
    spans = read_further(Span(TIMERS, 0, 20_000, 30_000))
    assert spans == [Span(TIMERS, 0, 20_000, 30_000)]
    (told,) = never_read(spans, REACHED)
    assert "10,200 offsets of timer.requests" in told


def test_nothing_new_and_a_new_partition_are_no_gap() -> None:
    spans = read_further(Span(TIMERS, 0, 0, 9_800), Span(TIMERS, 1, 0, 7))
    assert spans == [Span(TIMERS, 0, 9_800, 9_800), Span(TIMERS, 1, 0, 7)]
    assert never_read(spans, REACHED) == []


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """One partition, up to 100."""
    (tmp_path / "records").mkdir()
    for folder in ("commits", "offsets"):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True)
        for batch, end in enumerate((50, 100)):
            text = "v1\n{}\n" + json.dumps({TIMERS: {"0": end}})
            (tmp_path / "checkpoint" / folder / str(batch)).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("span", "told"),
    [
        (Span(TIMERS, 0, 107, 200), r"timer.requests/0: 7 offsets .* are gone \(retention\).* give a new --out"),
        (Span(TIMERS, 0, 0, 99), r"timer.requests/0 ends at 99, but .* up to 100: .* give a new --out"),
        (Span(TIMERS, 1, 0, 99), r"timer.requests/0 ends at 0, but .* up to 100: .* give a new --out"),
    ],
)
def test_an_archive_gets_no_hole(archive: Path, span: Span, told: str) -> None:
    with pytest.raises(AuditTroubleError, match=told):
        demand_no_hole(Now(span), archive, TIMERS)


def test_a_partition_that_is_new_has_its_beginning_in_an_archive(archive: Path) -> None:
    known = Span(TIMERS, 0, 0, 100)
    demand_no_hole(Now(known, Span(TIMERS, 1, 0, 5)), archive, TIMERS)
    with pytest.raises(AuditTroubleError, match=r"timer.requests/1: 3 offsets .* are gone"):
        demand_no_hole(Now(known, Span(TIMERS, 1, 3, 99)), archive, TIMERS)


@pytest.mark.parametrize("span", [Span(TIMERS, 0, 100, 100), Span(TIMERS, 0, 7, 900)])
def test_an_archive_goes_on_where_nothing_is_gone(archive: Path, tmp_path: Path, span: Span) -> None:
    demand_no_hole(Now(span), archive, TIMERS)
    demand_no_hole(Now(span._replace(start=5)), tmp_path / "new", TIMERS)


def test_the_archive_of_another_topic_of_that_name_is_refused(archive: Path) -> None:
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=archive / "out", archive=archive)
    with pytest.raises(UsageError, match=r"has partition 1 of timer\.requests, and that has 1 partitions"):
        reading.once(Now(Span(TIMERS, 0, 0, 200)), arguments, {1: reading.Old(0, 98, None)})


@pytest.mark.parametrize(("log_start", "gaps"), [(100, 0), (101, 1)])
def test_what_lies_between_an_archive_and_the_log_is_a_gap(archive: Path, log_start: int, gaps: int) -> None:
    """The archive's last record is at 97; behind it came what is no record."""
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=archive / "out", archive=archive)
    plan = reading.once(Now(Span(TIMERS, 0, log_start, 200)), arguments, {0: reading.Old(0, 98, None)})
    assert len(plan.gaps) == gaps


def test_what_stands_before_a_range_is_not_gone_but_was_not_asked_for(tmp_path: Path) -> None:
    everything = AuditArguments(access=KafkaAccess("localhost:9092"), out=tmp_path)
    cluster, whole, part = Now(Span(TIMERS, 0, 3, 30)), [Span(TIMERS, 0, 3, 30)], [Span(TIMERS, 0, 5, 20)]
    found = [reading.once(cluster, asked, {}) for asked in (everything, replace(everything, offsets={0: (5, 20)}))]
    assert [(plan.gone, plan.unread) for plan in found] == [(whole, ()), ((), part)]


class Compacted(Now):
    def compacted(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if topic == "latest"]


def test_what_topics_can_no_longer_show_is_noted(tmp_path: Path) -> None:
    whole = AuditArguments(access=KafkaAccess("localhost:9092"), out=tmp_path)
    kept = Compacted(Span("orders", 0, 0, 9), Span(whole.rejected_topic, 0, 0, 9))
    assert reading.truncated(kept, whole, ["orders"]) == []
    gone = Compacted(Span("orders", 0, 3, 9), Span("latest", 0, 0, 9), Span(whole.rejected_topic, 0, 4, 9))
    assert reading.truncated(gone, whole, ["orders", "latest"]) == [
        "The beginning of orders is gone (retention): what was delivered there counts as missing.",
        "The beginning of timer.rejected is gone (retention): what it held counts as missing.",
        "Compacted: latest. A delivery there that a later record of its key has replaced counts as missing.",
    ]
    assert reading.truncated(Compacted(Span("orders", 0, 0, 9)), whole, ["orders"]) == []


def test_of_two_audits_in_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    told = pytest.raises(AuditTroubleError, match=f"another audit is at work in --out {tmp_path}")
    with alone(tmp_path), told, alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


def test_a_gap_is_not_clean(tmp_path: Path) -> None:
    late = LatenessSummary(None, None, None, None)
    verdict = AuditVerdict(tmp_path, 0, dict.fromkeys(FAULTS, 0), late, (), 0, 7, (), ("a gap",))
    assert (verdict.clean, verdict.exit_code) == (False, 1)
    assert verdict.headline == "Not all could be read: 7 requests, no fault among them"
