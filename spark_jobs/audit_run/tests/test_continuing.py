"""Where a daily run goes on, or an archive ends, and the topic is not what it was."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from schemas.audit_state import DAYS, SPANS
from schemas.tables import REQUESTS
from spark_jobs.archive import require_no_gap, require_same_topic
from spark_jobs.audit_rules.verdicts import FAULTS
from spark_jobs.audit_run import read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.audit_folder import open_folder
from spark_jobs.audit_run.observe import begin_day
from spark_jobs.audit_run.positions import ReadPosition, advanced, intervals, loss_notes, spans_since
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.kafka.admin import Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.lock import LEASE_MS, folder_lock
from spark_jobs.platform.tables import as_table, write_rows, write_table
from spark_jobs.report.summary import AuditVerdict, LatenessSummary
from spark_jobs.tests.fake_cluster import FakeCluster

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

TIMERS = "timer.requests"
REACHED = {(TIMERS, 0): ReadPosition(((0, 9_800),), True, "first")}


def read_further(*spans: Span, to_ms: int | None = None) -> list[Span]:
    return spans_since(FakeCluster(*spans), [TIMERS], REACHED, new_from_ms=None, to_ms=to_ms)


def test_a_day_whose_audit_was_killed_keeps_no_later_one_from_being_made(tmp_path: Path) -> None:
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=tmp_path, daily=True)
    for table in (SPANS, DAYS):
        (tmp_path / table.name / "day=1970-01-01").mkdir(parents=True)
    (tmp_path / "audit.json").write_text('{"version": 5, "kind": "daily", "name": "a"}')
    plan, earlier = begin_day(arguments, 86_400_000)
    assert (plan.name, earlier) == ("day=1970-01-02", [])
    write_rows(tmp_path, SPANS, "day=1970-01-03", [])
    with pytest.raises(UsageError, match="lies on 1970-01-02, but 1970-01-03 has been audited already"):
        begin_day(arguments, 86_400_000)


@pytest.mark.parametrize("spans", [[Span(TIMERS, 0, 0, 5_000)], []])
def test_a_topic_that_ends_before_the_read_offset_is_an_error(spans: list[Span]) -> None:
    with pytest.raises(JobFailedError, match=r"timer.requests/0 ends at \d+, .* 9800:.* give a new --out"):
        read_further(*spans)


def test_a_topic_of_another_id_is_an_error_though_it_has_grown_past_the_read_offset() -> None:
    now = FakeCluster(Span(TIMERS, 0, 0, 10_000))
    now.topic_id = "second"
    with pytest.raises(
        JobFailedError, match=r"timer.requests was created again: its id is second, .* give a new --out"
    ):
        spans_since(now, [TIMERS], REACHED, new_from_ms=None, to_ms=None)
    unknown = {place: replace(at, topic_id=None) for place, at in REACHED.items()}
    assert spans_since(now, [TIMERS], unknown, new_from_ms=None, to_ms=None) == [Span(TIMERS, 0, 9_800, 10_000)]


def test_offsets_deleted_since_the_last_run_are_a_gap() -> None:
    spans = read_further(Span(TIMERS, 0, 20_000, 30_000))
    assert spans == [Span(TIMERS, 0, 20_000, 30_000)]
    (told,) = loss_notes(spans, REACHED)
    assert "10,200 offsets of timer.requests" in told
    positions = advanced(REACHED, spans, {TIMERS: "first"}, {}, from_log_start=True)
    assert intervals(positions, TIMERS) == [Span(TIMERS, 0, 0, 9_800), Span(TIMERS, 0, 20_000, 30_000)]
    again = advanced(positions, [Span(TIMERS, 0, 30_000, 30_001)], {}, {}, from_log_start=False)
    assert again[TIMERS, 0] == ReadPosition(((0, 9_800), (20_000, 30_001)), True, "first")


def test_nothing_new_and_a_new_partition_are_no_gap() -> None:
    spans = read_further(Span(TIMERS, 0, 0, 9_800), Span(TIMERS, 1, 0, 7))
    assert spans == [Span(TIMERS, 0, 9_800, 9_800), Span(TIMERS, 1, 0, 7)]
    assert loss_notes(spans, REACHED) == []


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


KNOWN = Span(TIMERS, 0, 0, 100)


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        ([Span(TIMERS, 0, 107, 200)], r"/0: 7 offsets .* were deleted \(retention\).* give a new --out"),
        ([Span(TIMERS, 0, 0, 99)], r"/0 ends at 99, but .* up to 100: .* give a new --out"),
        ([Span(TIMERS, 1, 0, 99)], r"/0 ends at 0, but .* up to 100: .* give a new --out"),
        ([KNOWN, Span(TIMERS, 1, 3, 99)], r"/1: 3 offsets .* were deleted"),
        ([KNOWN, Span(TIMERS, 1, 0, 5)], ""),
        ([Span(TIMERS, 0, 100, 100)], ""),
        ([Span(TIMERS, 0, 7, 900)], ""),
    ],
)
def test_an_archive_gets_no_hole(archive: Path, tmp_path: Path, spans: list[Span], told: str) -> None:
    """A partition that is new has its beginning in it, and a new archive begins where the topic does."""
    with pytest.raises(JobFailedError, match=TIMERS + told) if told else nullcontext():
        require_no_gap(FakeCluster(*spans), archive, TIMERS)
    require_no_gap(FakeCluster(spans[0]._replace(start=5)), tmp_path / "new", TIMERS)


def test_the_archive_of_another_topic_of_that_name_is_refused(archive: Path) -> None:
    """Else the new one's requests would be passed over as read, and the old ones be judged in their place."""
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=archive / "out", archive=archive)
    now = FakeCluster(Span(TIMERS, 0, 0, 200))
    with pytest.raises(UsageError, match=r"has partition 1 of timer\.requests, and that has 1 partitions"):
        read_plan.plan_once(now, arguments, {1: read_plan.ArchivedRange(0, 98, None)})
    with pytest.raises(JobFailedError, match=r"timer.requests/0 ends at 200, but .* holds it up to 500"):
        read_plan.plan_once(now, arguments, {0: read_plan.ArchivedRange(0, 500, None)})


@pytest.mark.parametrize(("log_start", "gaps"), [(100, 0), (101, 1)])
def test_offsets_between_archive_and_log_are_a_gap(archive: Path, log_start: int, gaps: int) -> None:
    """The archive's last record is at 97; behind it came what is no record."""
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=archive / "out", archive=archive)
    now = FakeCluster(Span(TIMERS, 0, log_start, 200))
    assert len(read_plan.plan_once(now, arguments, {0: read_plan.ArchivedRange(0, 98, None)}).gaps) == gaps


def test_requests_before_a_range_are_excluded_not_deleted(tmp_path: Path) -> None:
    everything = AuditArguments(access=KafkaAccess("localhost:9092"), out=tmp_path)
    cluster, whole, part = FakeCluster(Span(TIMERS, 0, 3, 30)), [Span(TIMERS, 0, 3, 30)], [Span(TIMERS, 0, 5, 20)]
    ranges = (everything, replace(everything, offsets={0: (5, 20)}))
    found = [read_plan.plan_once(cluster, asked, {}) for asked in ranges]
    assert [(plan.deleted_before, plan.excluded_before) for plan in found] == [(whole, ()), ((), part)]


def test_an_archive_of_a_topic_that_was_created_again_is_refused(archive: Path, tmp_path: Path) -> None:
    """Or of one that it does not name, until that is written."""
    now = FakeCluster(Span(TIMERS, 0, 0, 900))
    (tmp_path / "new").mkdir()
    for _ in range(2):
        require_same_topic(now, tmp_path / "new", TIMERS)
    now.topic_id = "second"
    with pytest.raises(JobFailedError, match=r"timer.requests was created again since .*: give a new --out"):
        require_same_topic(now, tmp_path / "new", TIMERS)
    with pytest.raises(JobFailedError, match=r"does not say which timer.requests .*, write second to .*/topic_id;"):
        require_same_topic(now, archive, TIMERS)
    assert not (archive / "topic_id").exists()
    (archive / "topic_id").write_text("second\n")
    require_same_topic(now, archive, TIMERS)


def test_the_second_of_two_audits_in_one_folder_is_refused(tmp_path: Path) -> None:
    told = pytest.raises(JobFailedError, match=f"another run is at work in --out {tmp_path}")
    with folder_lock(tmp_path), told, folder_lock(tmp_path):
        pass
    with folder_lock(tmp_path):
        pass
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    ("owner", "is_live"),
    [
        ({}, True),
        ({"process": "the container before"}, False),
        ({"pid": 2**22 + 1}, False),  # above Linux's highest: no such process
        ({"pid": 1}, True),
        ({"host": "another", "renewed_ms": 1_000}, True),
        ({"host": "another", "renewed_ms": 999}, False),
    ],
)
def test_a_lock_ends_with_its_process(owner: dict[str, object], is_live: object, tmp_path: Path) -> None:
    """At once on this machine; of another one, if it is not renewed."""
    with folder_lock(tmp_path):
        held = json.loads((tmp_path / "lock").read_bytes())
    (tmp_path / "lock").write_text(json.dumps(held | owner))
    told = pytest.raises(JobFailedError, match="is at work") if is_live else nullcontext()
    with told, folder_lock(tmp_path, now_ms=999 + LEASE_MS):
        pass


def test_a_lock_that_is_not_written_yet_is_held(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    now_ms = int((tmp_path / "lock").stat().st_mtime * 1000)
    with pytest.raises(JobFailedError, match="is at work"), folder_lock(tmp_path, now_ms=now_ms):
        pass
    with folder_lock(tmp_path, now_ms=now_ms + LEASE_MS):
        pass


def test_a_lock_that_another_audit_has_taken_over_is_told_and_stays(tmp_path: Path) -> None:
    other = b'{"lock": "other"}'
    with pytest.raises(JobFailedError, match="another run has taken over --out"), folder_lock(tmp_path):
        (tmp_path / "lock").write_bytes(other)
    assert (tmp_path / "lock").read_bytes() == other


def test_a_gap_is_not_clean(tmp_path: Path) -> None:
    late = LatenessSummary(None, None, None, None)
    verdict = AuditVerdict(tmp_path, 0, dict.fromkeys(FAULTS, 0), late, (), 0, 7, (), ("a gap",))
    assert (verdict.clean, verdict.exit_code) == (False, 1)
    assert verdict.headline == "Not all is proved: 7 requests, no fault among them"


@pytest.mark.parametrize(
    "parts", [["day=2026-01-01", "day=2026-01-02"], ["day=2026-01-01/batch=9", "day=2026-01-02/batch=10"]]
)
def test_the_view_of_a_folder_has_the_last_row_of_each_request(
    parts: tuple[str, ...], tmp_path: Path, spark: SparkSession
) -> None:
    """A part that is not done does not count."""
    open_folder(tmp_path, "stream" if "batch" in parts[0] else "daily")
    rows = [("a", "pending"), ("b", "missing")], [("a", "delivered")], [("b", "delivered")]
    undone = parts[-1].replace("02", "03")
    for part, classes in zip([*parts, undone], rows, strict=True):
        named = spark.createDataFrame(classes, "origin STRING, class STRING")
        write_table(as_table(named, REQUESTS), tmp_path, REQUESTS, part)
        if part != undone:
            write_rows(tmp_path, SPANS, part, [{"topic": TIMERS}])
    spark.sql((tmp_path / "current_requests.sql").read_text())
    found = spark.table("current_requests").select("origin", "class").collect()
    assert sorted(map(tuple, found)) == [("a", "delivered"), ("b", "missing")]
