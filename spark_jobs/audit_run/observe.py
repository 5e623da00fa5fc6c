"""One part of an audit by day or batch: fix its time, then the ends of the topics, read and judge, commit last.

    as_of_ms = now - skew  ->  plan  ->  ends of the timer topic  ->  ends of the others  ->  judge  ->  state, spans

The time is fixed before any end is looked up: every record that a topic had by then is read, so that no timer counts as
missing only because it was not read. The timer topic's end comes before the others': an outcome of each request that is
read lies before theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import SPANS
from spark_jobs.audit_rules.coverage import holes
from spark_jobs.audit_rules.requests import RECORD
from spark_jobs.audit_run import audit_folder, incremental, read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.incremental import Part, PartPlan
from spark_jobs.audit_run.open_timers import OpenTimers
from spark_jobs.audit_run.positions import (
    Positions,
    advanced,
    intervals,
    loss_notes,
    position_rows,
    read_positions,
    spans_since,
)
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform.session import fit_plans
from spark_jobs.platform.tables import write_rows, written
from spark_jobs.report.summary import Remarks


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
        write_rows(self.state.out, SPANS, self.plan.name, position_rows(self.positions))
        self.state.delete_unused(self.before)


def judge_part(
    spark: SparkSession,
    cluster: Cluster,
    arguments: AuditArguments,
    plan: PartPlan,
    write_requests: incremental.WriteRequests | None = None,
) -> JudgedPart:
    """Read what is new, judge it with the open timers that it concerns, and write the part's tables but SPANS."""
    state = OpenTimers.after(arguments.out, plan.previous)
    if state is None:
        raise JobFailedError(f"--out {arguments.out}: {plan.previous} has no state: give a new --out")
    reached = {} if plan.previous is None else read_positions(arguments.out, plan.previous)
    # By a time only if one is given: other senders set any timestamp, and one from tomorrow would end the span.
    to_ms, from_ms = arguments.as_of_ms, arguments.from_ms
    requested = spans_since(cluster, [arguments.timer_topic], reached, new_from_ms=from_ms, to_ms=to_ms)
    fit_plans(spark, 2 * read_plan.records_in(requested) + state.open // 10)
    with written(arguments.out / audit_folder.SCRATCH) as keep:
        parsed = keep(read_plan.read_requests(spark, requested, arguments), apart=RECORD)
        due = None if plan.previous is None else keep(state.due(spark, plan.as_of_ms))
        asked = parsed.select("asked")
        census = read_plan.census(asked if due is None else asked.unionByName(due.select("asked")), cluster, arguments)
        spans = _outcome_spans(cluster, arguments, reached, state, census, due)
        fit_plans(spark, read_plan.records_in([*requested, *spans]) + state.open // 10)
        seen, hanging = read_plan.read_outcomes(spark, arguments, cluster, spans, parsed, census, plan.as_of_ms)
        read = [*requested, *spans]
        ids = cluster.topic_ids({span.topic for span in read})
        seen, since_ms = read_plan.with_completeness(spark, cluster, arguments, seen, spans, reached, plan.as_of_ms)
        positions = advanced(reached, read, ids, since_ms, from_log_start=from_ms is None)
        topic = arguments.timer_topic
        timers = {place[1]: at for place, at in positions.items() if place[0] == topic}
        whole = [Span(topic, at, p.intervals[0][0], p.end) for at, p in timers.items()]
        # A partition that is new to the audit has an empty span in `earlier`.
        new = [span._replace(end=span.start) for span in whole if span[:2] not in reached]
        so_far = intervals(positions, topic)
        part = Part(plan, state, topic, [*intervals(reached, topic), *new], so_far)
        seen = replace(
            seen,
            rejections=keep(seen.rejections),
            ends=[keep(rows) for rows in seen.ends],
            deleted_before=[span for span in whole if timers[span.partition].from_log_start],
            excluded_before=[span for span in whole if not timers[span.partition].from_log_start],
            holes=holes(so_far),
        )
        limits = arguments.limits(plan.as_of_ms)
        unjudged, after = incremental.judge(spark, seen, part, limits, due, keep, write_requests)
    notes = read_plan.notes(cluster, arguments, census.unknown)
    notes += unjudged.notes("before the first day")
    return JudgedPart(plan, Remarks(notes, loss_notes(read, reached), hanging), read, state, after, positions)


def _outcome_spans(
    cluster: Cluster,
    arguments: AuditArguments,
    reached: Positions,
    state: OpenTimers,
    census: read_plan.Census,
    due: DataFrame | None,
) -> list[Span]:
    """Return the spans of the target topics, the rejected and the receipts topic, up to their ends now.

    A topic that is new to the audit is read from shortly before the part. If a timer of an earlier part names it, it
    did not exist then: it is read from its start.
    """
    others = {*census.topics, arguments.rejected_topic, arguments.receipts_topic, *(topic for topic, _ in reached)}
    others = (others - {arguments.timer_topic}) & cluster.partitions.keys()
    since_ms = arguments.from_ms if due is None else state.as_of_ms
    late: set[str] = set()
    fresh = others - {topic for topic, _ in reached}
    if due is not None and fresh:
        named = due.select(F.col("asked.target").alias("target")).where(F.col("target").isin(*fresh)).distinct()
        late = {row.target for row in named.collect()}
    new_from_ms = since_ms - read_plan.CLOCK_SKEW_MS if since_ms is not None else None
    spans = spans_since(cluster, others - late, reached, new_from_ms=new_from_ms, to_ms=None)
    return spans + (spans_since(cluster, late, reached, new_from_ms=None, to_ms=None) if late else [])
