"""Where a daily run begins and what it reads: OUT/spans has the end offsets of the last run.

spans/day=2026-01-04   timer.requests/0 first 0 end 9800      orders/0 first 310 end 7431
run of 2026-01-05      timer.requests/0 [9800, now)           orders/0 [7431, now)       returns/0: new, from then on
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from schemas.audit_state import DAYS, SPANS
from schemas.tables import AuditClass, Table
from spark_jobs.audit_rules.classes import AuditLimits
from spark_jobs.audit_rules.judgement import Observations
from spark_jobs.audit_run import incremental, read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform.tables import folder
from spark_jobs.report.summary import AuditVerdict, DaySummary

MOST_DAYS = 60
"""Most days in the report's trend."""


@dataclass(frozen=True)
class ReadPosition:
    """How far one partition has been read."""

    first: int
    end: int
    from_log_start: bool


def done_days(out: Path) -> list[str]:
    """Return the days whose audit is complete, oldest first. A killed run leaves at most an empty folder."""
    return sorted(path.parent.name.removeprefix("day=") for path in (out / SPANS.name).glob("day=*/part.parquet"))


class DayLog:
    """The days that have been audited in one folder."""

    def __init__(self, out: Path, as_of_ms: int) -> None:
        self.out = out
        self.day = datetime.fromtimestamp(as_of_ms / 1000, UTC).date().isoformat()
        days = done_days(out)
        later = [day for day in days if day > self.day]
        if later:
            raise UsageError(f"--as-of lies on {self.day}, but {later[-1]} has been audited already: give a later time")
        self.part = f"day={self.day}"
        self.previous = max((f"day={day}" for day in days if day < self.day), default=None)

    def previous_as_of_ms(self) -> int | None:
        if self.previous is None:
            return None
        return int(pq.read_table(folder(self.out, DAYS, self.previous) / "part.parquet").column("as_of_ms")[0].as_py())

    def earlier_days(self) -> list[DaySummary]:
        """Return the last days before this one, oldest first."""
        found = []
        for path in sorted((self.out / DAYS.name).glob("day=*/part.parquet")):
            day = path.parent.name.removeprefix("day=")
            if day < self.day:
                (row,) = pq.read_table(path).to_pylist()
                counts = (row["requests"], row["faults"], row["delivered"] + row["late"], row["pending"])
                found.append(
                    DaySummary(day, *counts, row["lateness_p50_ms"], row["lateness_p99_ms"], row["lateness_max_ms"])
                )
        return found[-MOST_DAYS:]


def read_positions(out: Path, part: str | None) -> dict[tuple[str, int], ReadPosition]:
    """Return how far each partition has been read after `part`; empty for None."""
    if part is None:
        return {}
    rows = pq.read_table(folder(out, SPANS, part) / "part.parquet").to_pylist()
    return {(r["topic"], r["partition"]): ReadPosition(r["first"], r["end"], r["from_log_start"]) for r in rows}


def write_rows(out: Path, table: Table, part: str, rows: Sequence[dict[str, object]]) -> None:
    """Write the rows atomically. SPANS is written last: it commits the part."""
    target = folder(out, table, part)
    target.mkdir(parents=True, exist_ok=True)
    draft = target / "part.parquet.new"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=table.arrow()), draft)
    draft.replace(target / "part.parquet")


def uncommit(out: Path, part: str) -> None:
    """Uncommit a part before it is overwritten: if the run is killed, no later run may continue from it."""
    for table in (SPANS, DAYS):
        (folder(out, table, part) / "part.parquet").unlink(missing_ok=True)


def spans_since(
    cluster: Cluster,
    topics: Iterable[str],
    reached: Mapping[tuple[str, int], ReadPosition],
    *,
    new_from_ms: int | None,
    to_ms: int | None,
) -> list[Span]:
    """Return the spans from where each partition was left; a new partition from `new_from_ms`, or from its start.

    Raises JobFailedError if a topic ends before that: it is not the topic that was read.
    """
    asked = set(topics)
    now = {(span.topic, span.partition): span for span in cluster.spans(asked)}
    for place, known in reached.items():
        end = now[place].end if place in now else 0
        if place[0] in asked and end < known.end:
            raise JobFailedError(
                f"{place[0]}/{place[1]} ends at {end}, but an earlier run has read up to {known.end}: the topic was"
                " created again, or lost its end (another cluster, an unclean election): look what is lost, then give a"
                " new --out"
            )
    spans = []
    for span in cluster.spans(asked, from_ms=new_from_ms, to_ms=to_ms):
        place = span.topic, span.partition
        start = max(reached[place].end, now[place].start) if place in reached else span.start
        spans.append(span._replace(start=start, end=max(start, span.end)))
    return spans


def loss_since(spans: Iterable[Span], reached: Mapping[tuple[str, int], ReadPosition]) -> list[str]:
    """Return messages about offsets that retention deleted between two runs."""
    lost: Counter[str] = Counter()
    for topic, partition, start, _ in spans:
        known = reached.get((topic, partition))
        lost[topic] += 0 if known is None else start - known.end
    return [
        f"Never read: {count:,} offsets of {topic} were deleted since the last run. Run more often."
        for topic, count in lost.items()
        if count
    ]


@dataclass(frozen=True, kw_only=True)
class NewPart:
    """A part to judge: its requests, and where it continues. `since_ms`: start of topics that are new."""

    part: str
    previous: str | None
    reached: Mapping[tuple[str, int], ReadPosition]
    read: Sequence[Span]
    parsed: DataFrame
    since_ms: int | None


@dataclass(frozen=True)
class JudgedPart:
    """A part that is judged. `spans`: all that was read; `rows`: of SPANS, to be written last."""

    notes: tuple[str, ...]
    gaps: tuple[str, ...]
    unproved: tuple[str, ...]
    spans: Sequence[Span]
    rows: Sequence[dict[str, object]]


def run_day(
    spark: SparkSession, cluster: Cluster, arguments: AuditArguments, limits: AuditLimits, day_log: DayLog
) -> JudgedPart:
    """Judge a day and write its tables, except `days` and `spans`."""
    reached, before_ms = read_positions(arguments.out, day_log.previous), day_log.previous_as_of_ms()
    read = spans_since(
        cluster, [arguments.timer_topic], reached, new_from_ms=arguments.from_ms, to_ms=arguments.as_of_ms
    )
    parsed = read_plan.read_requests(spark, read, arguments).persist(StorageLevel.DISK_ONLY)
    new = NewPart(
        part=day_log.part,
        previous=day_log.previous,
        reached=reached,
        read=read,
        parsed=parsed,
        since_ms=before_ms if before_ms is not None else arguments.from_ms,
    )
    uncommit(arguments.out, day_log.part)
    try:
        return judge_part(spark, cluster, arguments, limits, new)
    finally:
        parsed.unpersist()


def judge_part(
    spark: SparkSession,
    cluster: Cluster,
    arguments: AuditArguments,
    limits: AuditLimits,
    new: NewPart,
    write_requests: Callable[[DataFrame], None] | None = None,
) -> JudgedPart:
    """Read the new records of the other topics, and judge the part. `write_requests`: see incremental.judge."""
    timer, reached = arguments.timer_topic, new.reached
    read = _timer_topic_spans(arguments, new)
    part = incremental.Part(arguments.out, new.part, new.previous, timer, read.earlier, read.so_far)
    evidence, claims = incremental.carried(spark, part)
    asked = new.parsed.select("asked")
    if evidence is not None:
        asked = asked.unionByName(evidence.select("asked"))
    census = read_plan.census(asked, cluster, arguments)
    others = {*census.topics, arguments.rejected_topic, arguments.receipts_topic, *(t for t, _ in reached)}
    ends = read_plan.read_outcomes(
        spark,
        arguments,
        cluster,
        spans_since(
            cluster,
            (others - {timer}) & cluster.partitions.keys(),
            reached,
            new_from_ms=new.since_ms - read_plan.CLOCK_SKEW_MS if new.since_ms is not None else None,
            # To their ends, not to a time: other senders set any timestamp, and one from tomorrow would end the span.
            to_ms=None,
        ),
    )
    seen = Observations(
        parsed=new.parsed,
        rejections=ends.rejections,
        ends=ends.others,
        undecided=ends.undecided,
        pauses=ends.pauses,
        carried=evidence,
        carried_claims=claims,
        deleted_before=read.deleted_before,
        excluded_before=read.excluded_before,
        has_claims=census.has_claims or part.has_claims,
        has_ids=census.has_ids,
        has_moves=census.has_moves,
        has_whole_ids=census.has_whole_ids,
        has_traces=census.has_traces,
    )
    unjudged = incremental.judge(spark, seen, part, limits, write_requests)
    notes = read_plan.notes(cluster, arguments, census.unknown)
    if not reached:
        notes += read_plan.loss_notes(cluster, arguments, census.topics)
    notes += unjudged.notes("before the first day")
    spans = (*new.read, *ends.spans)
    gaps = tuple(loss_since(spans, reached))
    return JudgedPart(tuple(notes), gaps, ends.hanging, spans, _position_rows(arguments, new, spans))


class _TimerTopicSpans(NamedTuple):
    """Requests of the earlier parts, of these and this one, and what precedes them (see Observations)."""

    earlier: Sequence[Span]
    so_far: Sequence[Span]
    deleted_before: Sequence[Span]
    excluded_before: Sequence[Span]


def _timer_topic_spans(arguments: AuditArguments, new: NewPart) -> _TimerTopicSpans:
    earlier: list[Span] = []
    so_far: list[Span] = []
    from_log_start: list[Span] = []
    from_later: list[Span] = []
    for span in new.read:
        known = new.reached.get((span.topic, span.partition))
        whole = span if known is None else span._replace(start=known.first)
        earlier.append(whole._replace(end=span.start))
        so_far.append(whole)
        is_from_start = arguments.from_ms is None if known is None else known.from_log_start
        (from_log_start if is_from_start else from_later).append(whole)
    return _TimerTopicSpans(earlier, so_far, from_log_start, from_later)


def _position_rows(arguments: AuditArguments, new: NewPart, spans: Iterable[Span]) -> list[dict[str, object]]:
    """Return the rows of SPANS: positions after this part.

    Partitions that are invisible now, such as for a lost ACL, keep their position: they would count as new later.
    """
    now = {(span.topic, span.partition): _up_to(span, new.reached, arguments) for span in spans}
    positions = {**new.reached, **now}
    return [{"topic": topic, "partition": at, **asdict(known)} for (topic, at), known in positions.items()]


def commit_day(day_log: DayLog, done: JudgedPart, verdict: AuditVerdict) -> None:
    """Commit the day: write its row of the trend, then where the next run begins."""
    row: dict[str, object] = {c.column: verdict.counts[c.value] for c in AuditClass}
    late = verdict.lateness
    row |= {"as_of_ms": verdict.as_of_ms, "requests": verdict.requests, "faults": sum(verdict.faults.values())}
    row |= {"lateness_p50_ms": late.p50_ms, "lateness_p99_ms": late.p99_ms, "lateness_max_ms": late.max_ms}
    write_rows(day_log.out, DAYS, day_log.part, [row])
    write_rows(day_log.out, SPANS, day_log.part, done.rows)


def _up_to(span: Span, reached: Mapping[tuple[str, int], ReadPosition], arguments: AuditArguments) -> ReadPosition:
    known = reached.get((span.topic, span.partition))
    return (
        ReadPosition(span.start, span.end, arguments.from_ms is None) if known is None else replace(known, end=span.end)
    )
