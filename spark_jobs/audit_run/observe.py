"""The steps of a run: fix its time, then the ends of the topics, read and judge. A part is committed last.

Why in this order: docs/design/audit.md#by-day-and-by-batch-one-driver
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import SPANS
from spark_jobs.audit_rules.coverage import holes
from spark_jobs.audit_rules.evidence import Observations
from spark_jobs.audit_rules.requests import RECORD
from spark_jobs.audit_run import audit_folder, incremental, positions, read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.incremental import Part, PartPlan
from spark_jobs.audit_run.open_timers import OpenTimers
from spark_jobs.audit_run.positions import Positions, ReadPosition, intervals, spans_since
from spark_jobs.errors import UsageError
from spark_jobs.kafka.admin import Cluster, Place, Span
from spark_jobs.platform.session import fit_plans
from spark_jobs.platform.tables import Keep, write_rows, written
from spark_jobs.report.summary import Remarks


def observe(
    cluster: Cluster,
    arguments: AuditArguments,
    as_of_ms: int,
    requested: Sequence[Span],
    reached: Positions,
    state: OpenTimers,
    keep: Keep,
    archive: DataFrame | None = None,
) -> tuple[Observations, list[Span], dict[Place, ReadPosition], DataFrame | None, Remarks]:
    """Read the requests of these spans, and everything about them and the open timers.

    Return that, all spans that were read, the positions after it, and the open timers that are due (OPEN): None if the
    part is the first.

    reached, state: after the part before; empty for a first one. archive: requests that are in none of the spans.
    """
    parsed = keep(read_plan.read_requests(requested, arguments, archive), apart=RECORD)
    due = None if state.part is None else keep(state.due(as_of_ms))
    asked = parsed.select("asked")
    asked = asked if due is None else asked.unionByName(due.select("asked"))
    targets, unknown, has = read_plan.census(asked, cluster, arguments)
    # Look up the ends of the other topics only now, so that they include all deliveries before as_of_ms.
    others = {*targets, arguments.rejected_topic, arguments.receipts_topic, *(topic for topic, _ in reached)}
    others = (others - {arguments.timer_topic}) & cluster.partitions.keys()
    ids = cluster.topic_ids({*others, arguments.timer_topic})  # before the spans: a topic may be created again
    spans = _outcome_spans(cluster, reached, arguments.from_ms if due is None else state.as_of_ms, others, due)
    read = [*requested, *spans]
    fit_plans(read_plan.records_in(read) + state.open // 10)
    seen, hanging = read_plan.read_outcomes(arguments, cluster, spans, parsed, has, as_of_ms)
    seen, since_ms = read_plan.with_completeness(cluster, arguments, seen, spans, reached, as_of_ms)
    begins = arguments.from_ms is None and arguments.offsets is None
    after = positions.advanced(reached, read, ids, since_ms, from_log_start=begins)
    notes = read_plan.notes(cluster, arguments, unknown)
    return seen, read, after, due, Remarks(notes, positions.loss_notes(read, reached), hanging)


@dataclass(frozen=True)
class JudgedPart:
    """A part that is judged and not committed. `spans`: all that was read."""

    plan: PartPlan
    remarks: Remarks
    spans: Sequence[Span]
    before: OpenTimers
    state: OpenTimers
    positions: Positions

    def commit(self) -> None:
        """Commit the part; then delete the state that neither it nor the part before it needs."""
        self.state.commit()
        write_rows(self.state.out, SPANS, self.plan.name, positions.position_rows(self.positions))
        self.state.delete_unused(self.before)


def judge_part(cluster: Cluster, arguments: AuditArguments, plan: PartPlan) -> JudgedPart:
    """Read what is new, judge it with the open timers that it concerns, and write the part's tables but SPANS."""
    out, topic, from_ms = arguments.out, arguments.timer_topic, arguments.from_ms
    state = OpenTimers.after(out, plan.previous)
    reached = {} if plan.previous is None else positions.read_positions(out, plan.previous)
    # By a time only if one is given: other senders set any timestamp, and one from tomorrow would end the span.
    requested = spans_since(cluster, [topic], reached, new_from_ms=from_ms, to_ms=arguments.as_of_ms)
    fit_plans(2 * read_plan.records_in(requested) + state.open // 10)
    with written(out / audit_folder.SCRATCH) as keep:
        seen, spans, read_to, due, remarks = observe(cluster, arguments, plan.as_of_ms, requested, reached, state, keep)
        timers = {place[1]: at for place, at in read_to.items() if place[0] == topic}
        whole = [Span(topic, at, p.intervals[0][0], p.end) for at, p in timers.items()]
        # A partition that is new to the audit has an empty span in `earlier`.
        new = [span._replace(end=span.start) for span in whole if span[:2] not in reached]
        so_far = intervals(read_to, topic)
        seen = replace(seen, rejections=keep(seen.rejections), ends=[keep(rows) for rows in seen.ends])
        deleted = [span for span in whole if timers[span.partition].from_log_start]
        excluded = [span for span in whole if not timers[span.partition].from_log_start]
        seen = replace(seen, deleted_before=deleted, excluded_before=excluded, holes=holes(so_far))
        part = Part(plan, state, topic, [*intervals(reached, topic), *new], so_far, changes_only=arguments.stream)
        unjudged, after = incremental.judge(seen, part, arguments.limits(plan.as_of_ms), due, keep)
    remarks = remarks._replace(notes=[*remarks.notes, *unjudged])
    return JudgedPart(plan, remarks, spans, state, after, read_to)


def _outcome_spans(
    cluster: Cluster, reached: Positions, since_ms: int | None, others: set[str], due: DataFrame | None
) -> list[Span]:
    """Return the spans of the target topics, the rejected and the receipts topic (`others`), up to their ends now.

    A topic that is new to the audit is read from shortly before the part, which begins at `since_ms`. If a timer of an
    earlier part names it, it did not exist then: it is read from its start.
    """
    late: set[str] = set()
    fresh = others - {topic for topic, _ in reached}
    if due is not None and fresh:
        named = due.select(F.col("asked.target").alias("target")).where(F.col("target").isin(*fresh)).distinct()
        late = {row.target for row in named.collect()}
    new_from_ms = since_ms - read_plan.CLOCK_SKEW_MS if since_ms is not None else None
    spans = spans_since(cluster, others - late, reached, new_from_ms=new_from_ms, to_ms=None)
    return spans + spans_since(cluster, late, reached, new_from_ms=None, to_ms=None)


def day_of(as_of_ms: int) -> date:
    """Return the date (UTC) that names a part."""
    return datetime.fromtimestamp(as_of_ms / 1000, UTC).date()


def begin_day(arguments: AuditArguments, as_of_ms: int) -> tuple[PartPlan, list[str]]:
    """Begin the day of a daily audit, after what a killed run has left is undone. Return it, and the days before."""
    out, day = arguments.out, day_of(as_of_ms)
    audit_folder.open_folder(out, "daily")
    name, days = f"day={day.isoformat()}", audit_folder.done_parts(out)
    if days and days[-1] > name:
        last = days[-1].removeprefix("day=")
        raise UsageError(f"--as-of lies on {day}, but {last} has been audited already: give a later time")
    earlier = [part for part in days if part < name]
    audit_folder.undo_part(out)
    audit_folder.begin_part(out, name)
    return PartPlan(name, date.toordinal(day), earlier[-1] if earlier else None, as_of_ms), earlier
