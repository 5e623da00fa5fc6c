"""Where a daily run begins and what it reads: OUT/spans tells how far the last one came.

spans/day=2026-01-04   timer.requests/0 first 0 end 9800      orders/0 first 310 end 7431
run of 2026-01-05      timer.requests/0 [9800, now)           orders/0 [7431, now)       returns/0: new, from then on
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from schemas.audit_state import DAYS, SPANS
from schemas.tables import AuditClass, Table
from spark_jobs.audit_rules.classes import AuditLimits
from spark_jobs.audit_rules.judgement import Observations
from spark_jobs.audit_run import incremental as daily
from spark_jobs.audit_run import read_plan as reading
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.errors import AuditTroubleError, UsageError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform.tables import folder
from spark_jobs.report.summary import AuditVerdict, Past

MOST_DAYS = 60
"""What the report shows of the past."""


@dataclass(frozen=True)
class Reached:
    """How far one partition has been read."""

    first: int
    end: int
    from_log_start: bool


def done_days(out: Path) -> list[str]:
    """Those whose audit came to its end, oldest first: one that was killed has the folder at most."""
    return sorted(path.parent.name.removeprefix("day=") for path in (out / SPANS.name).glob("day=*/part.parquet"))


class Diary:
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

    def past(self) -> list[Past]:
        """The last days before this one, oldest first."""
        found = []
        for path in sorted((self.out / DAYS.name).glob("day=*/part.parquet")):
            day = path.parent.name.removeprefix("day=")
            if day < self.day:
                (row,) = pq.read_table(path).to_pylist()
                counts = (row["requests"], row["faults"], row["delivered"] + row["late"], row["pending"])
                found.append(Past(day, *counts, row["lateness_p50_ms"], row["lateness_p99_ms"], row["lateness_max_ms"]))
        return found[-MOST_DAYS:]


def reached_in(out: Path, part: str | None) -> dict[tuple[str, int], Reached]:
    """How far the part came; None: nothing has been read yet."""
    if part is None:
        return {}
    rows = pq.read_table(folder(out, SPANS, part) / "part.parquet").to_pylist()
    return {(r["topic"], r["partition"]): Reached(r["first"], r["end"], r["from_log_start"]) for r in rows}


def write_rows(out: Path, table: Table, part: str, rows: Sequence[dict[str, object]]) -> None:
    """Whole or not at all. SPANS comes last: it says that the part is done."""
    target = folder(out, table, part)
    target.mkdir(parents=True, exist_ok=True)
    draft = target / "part.parquet.new"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=table.arrow()), draft)
    draft.replace(target / "part.parquet")


def undo(out: Path, part: str) -> None:
    """Before a part is written over: killed amid that it is not whole, and no later one may go on from it."""
    for table in (SPANS, DAYS):
        (folder(out, table, part) / "part.parquet").unlink(missing_ok=True)


def read_on(
    cluster: Cluster,
    topics: Iterable[str],
    reached: Mapping[tuple[str, int], Reached],
    *,
    new_from_ms: int | None,
    to_ms: int | None,
) -> list[Span]:
    """From where each partition was left; one that is new from a time on, or from its start.

    Raises AuditTroubleError where a topic ends before that: whatever it holds, it is not what was read.
    """
    asked = set(topics)
    now = {(span.topic, span.partition): span for span in cluster.spans(asked)}
    for place, known in reached.items():
        end = now[place].end if place in now else 0
        if place[0] in asked and end < known.end:
            raise AuditTroubleError(
                f"{place[0]}/{place[1]} ends at {end}, but an earlier run has read up to {known.end}: the topic was"
                " made anew, or lost its end (another cluster, an unclean election): look what is lost, then give a"
                " new --out"
            )
    spans = []
    for span in cluster.spans(asked, from_ms=new_from_ms, to_ms=to_ms):
        place = span.topic, span.partition
        start = max(reached[place].end, now[place].start) if place in reached else span.start
        spans.append(span._replace(start=start, end=max(start, span.end)))
    return spans


def never_read(spans: Iterable[Span], reached: Mapping[tuple[str, int], Reached]) -> list[str]:
    """What retention took before any run came: where `read_on` does not begin where the last run ended."""
    gone: Counter[str] = Counter()
    for topic, partition, start, _ in spans:
        known = reached.get((topic, partition))
        gone[topic] += 0 if known is None else start - known.end
    return [
        f"Never read: {count:,} offsets of {topic} were deleted since the last run. Run more often."
        for topic, count in gone.items()
        if count
    ]


@dataclass(frozen=True, kw_only=True)
class New:
    """What a part reads of the timer topic, `parsed`, and where it goes on. `since_ms`: of topics that are new."""

    part: str
    previous: str | None
    reached: Mapping[tuple[str, int], Reached]
    read: Sequence[Span]
    parsed: DataFrame
    since_ms: int | None


@dataclass(frozen=True)
class Done:
    """A part that is judged. `spans`: of all that was read; `rows`: of SPANS, to be written when all else is."""

    notes: tuple[str, ...]
    gaps: tuple[str, ...]
    spans: Sequence[Span]
    rows: Sequence[dict[str, object]]


def run_day(
    spark: SparkSession, cluster: Cluster, arguments: AuditArguments, limits: AuditLimits, diary: Diary
) -> Done:
    """Writes the day's `requests`, and what the next run needs but for `days` and `spans`."""
    reached, before_ms = reached_in(arguments.out, diary.previous), diary.previous_as_of_ms()
    read = read_on(cluster, [arguments.timer_topic], reached, new_from_ms=arguments.from_ms, to_ms=arguments.as_of_ms)
    parsed = reading.parsed(spark, read, arguments).persist(StorageLevel.DISK_ONLY)
    new = New(
        part=diary.part,
        previous=diary.previous,
        reached=reached,
        read=read,
        parsed=parsed,
        since_ms=before_ms if before_ms is not None else arguments.from_ms,
    )
    undo(arguments.out, diary.part)
    try:
        return judge_new(spark, cluster, arguments, limits, new)
    finally:
        parsed.unpersist()


def judge_new(
    spark: SparkSession,
    cluster: Cluster,
    arguments: AuditArguments,
    limits: AuditLimits,
    new: New,
    tell: Callable[[DataFrame], None] | None = None,
) -> Done:
    """Reads the other topics on, and judges. `tell`: see daily.judge."""
    timer, reached = arguments.timer_topic, new.reached
    firsts = {s.partition: reached.get((timer, s.partition)) for s in new.read}
    earlier, whole = [], []
    gone: list[Span] = []
    unread: list[Span] = []
    for span in new.read:
        known = firsts[span.partition]
        first = known.first if known is not None else span.start
        earlier.append(span._replace(start=first, end=span.start))
        whole.append(span._replace(start=first))
        from_log_start = known.from_log_start if known is not None else arguments.from_ms is None
        (gone if from_log_start else unread).append(span._replace(start=first))
    part = daily.Part(arguments.out, new.part, new.previous, timer, earlier, whole)
    evidence, claims = daily.carried(spark, part)
    asked = new.parsed.select("asked")
    if evidence is not None:
        asked = asked.unionByName(evidence.select("asked"))
    census = reading.census(asked, cluster, arguments)
    others = {*census.topics, arguments.rejected_topic, arguments.receipts_topic, *(t for t, _ in reached)}
    ends = reading.ends(
        spark,
        arguments,
        cluster,
        read_on(
            cluster,
            (others - {timer}) & cluster.partitions.keys(),
            reached,
            new_from_ms=new.since_ms - reading.CLOCK_SKEW_MS if new.since_ms is not None else None,
            # To their ends: others who send there may say any time, and one from tomorrow would hide what is behind.
            to_ms=None,
        ),
    )
    seen = Observations(
        parsed=new.parsed,
        rejections=ends.rejections,
        ends=ends.others,
        undecided=ends.undecided,
        carried=evidence,
        carried_claims=claims,
        gone=gone,
        unread=unread,
        has_claims=census.has_claims or part.has_claims,
        has_ids=census.has_ids,
        has_moves=census.has_moves,
    )
    unjudged = daily.judge(spark, seen, part, limits, tell)
    notes = reading.notes(cluster, arguments, census.unknown)
    if not reached:
        notes += reading.truncated(cluster, arguments, census.topics)
    notes += unjudged.notes("before the first day")
    spans = (*new.read, *ends.spans)
    # What was not to be seen now, as an access was taken away for a while, stays: else it would be new.
    now = {(span.topic, span.partition): _up_to(span, reached, arguments) for span in spans}
    rows = [{"topic": topic, "partition": at, **asdict(known)} for (topic, at), known in ({**reached, **now}).items()]
    return Done(tuple(notes), tuple(never_read(spans, reached)), spans, rows)


def finish(diary: Diary, done: Done, verdict: AuditVerdict) -> None:
    """The day's line in the trend, and where the next run begins."""
    row: dict[str, object] = {c.column: verdict.counts[c.value] for c in AuditClass}
    late = verdict.lateness
    row |= {"as_of_ms": verdict.as_of_ms, "requests": verdict.requests, "faults": sum(verdict.faults.values())}
    row |= {"lateness_p50_ms": late.p50_ms, "lateness_p99_ms": late.p99_ms, "lateness_max_ms": late.max_ms}
    write_rows(diary.out, DAYS, diary.part, [row])
    write_rows(diary.out, SPANS, diary.part, done.rows)


def _up_to(span: Span, reached: Mapping[tuple[str, int], Reached], arguments: AuditArguments) -> Reached:
    known = reached.get((span.topic, span.partition))
    return Reached(span.start, span.end, arguments.from_ms is None) if known is None else replace(known, end=span.end)
