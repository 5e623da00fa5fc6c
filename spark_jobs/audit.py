"""Audit from Kafka's topics alone that every timer was delivered once, when due, and unchanged.

    timer.requests --+                                       +--> OUT/requests     one row per request, with its class
    target topics ---+-- joined on timer-origin, by rules ---+--> OUT/topics       counts and lateness per target topic
    timer.rejected --+   (audit_rules.verdicts)              +--> OUT/hours        lateness per target topic and hour
    timer.receipts --+                                       +--> OUT/report.html  verdict first

Limits of the proof: docs/audit.md.

Exit codes: 0 clean, 1 the audit failed or is incomplete, 2 wrong arguments, 3 a fault was found.

    python -m spark_jobs.audit --bootstrap-servers localhost:9092 --out audit
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import DAYS, SPANS
from schemas.tables import HOURS, LATENESS, REQUESTS, TOPICS
from spark_jobs.archive import archived, require_same_topic
from spark_jobs.audit_rules import coverage, judgement
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.audit_run import audit_folder, read_plan, requests_table
from spark_jobs.audit_run.arguments import AuditArguments, iso, parse
from spark_jobs.audit_run.batches import run_batches
from spark_jobs.audit_run.observe import JudgedPart, begin_day, day_of, judge_part, observe
from spark_jobs.audit_run.open_timers import OpenTimers
from spark_jobs.audit_run.positions import position_rows
from spark_jobs.errors import UsageError, command, exit_code_of, reason_of
from spark_jobs.kafka.admin import Cluster
from spark_jobs.platform import files
from spark_jobs.platform.lock import DemandHeld, folder_lock
from spark_jobs.platform.session import fit_plans, job_session
from spark_jobs.platform.tables import Keep, read_rows, read_table, write_rows, write_table, written
from spark_jobs.report import summary
from spark_jobs.report.metrics import AuditMetrics
from spark_jobs.report.report import render
from spark_jobs.report.summary import AuditVerdict, Remarks

MOST_DAYS = 60
"""Most days in the report's trend."""


def run_audit(arguments: AuditArguments) -> AuditVerdict:
    """Run a batch or daily audit, and write its tables and report. The verdict has the faults in the data.

    Raises JobFailedError if it cannot audit, UsageError if `out` cannot be made.
    """
    cluster = Cluster(arguments.access)
    cluster.require_topic(arguments.timer_topic)
    records = None  # unknown: it may read others from files
    if not arguments.daily and arguments.archive is None:
        records = read_plan.records_in(cluster.spans([arguments.timer_topic]))
    with job_session("audit", arguments.out, arguments, records), _locked(arguments) as demand_held:
        # Before any end is looked up: what was on the topics by then is read.
        now_ms = int(time.time() * 1000) - arguments.skew_ms
        as_of_ms = now_ms if arguments.as_of_ms is None else arguments.as_of_ms
        merge = requests_table.opened(arguments)
        if arguments.daily:
            verdict = _day(cluster, demand_held, arguments, as_of_ms)
        else:
            with written(arguments.out / audit_folder.SCRATCH) as keep:
                verdict = _once(cluster, arguments, as_of_ms, keep)
        part = f"day={day_of(as_of_ms)}"
        try:
            merge(part, part if arguments.daily else None)
        except PySparkException as wrong:  # the verdict's faults stay told
            told = f"--table {arguments.table} lacks this audit's rows: {reason_of(wrong)}; run the audit again"
            return replace(verdict, unproved=(*verdict.unproved, told))
        return verdict


def run_streams(audits: Sequence[AuditArguments]) -> int:
    """Audit batch by batch until a signal, or with `available_now` what is there now. Return the exit code."""
    first = audits[0]
    for audit in audits:
        Cluster(audit.access).require_topic(audit.timer_topic)
    with job_session("audit", first.out, first), ExitStack() as locks:
        return run_batches([(audit, locks.enter_context(_locked(audit))) for audit in audits])


@contextmanager
def _locked(arguments: AuditArguments) -> Iterator[DemandHeld]:
    files.make_folder(arguments.out)
    with folder_lock(arguments.out) as demand_held:
        arguments.demand_fitting_folder()
        yield demand_held


def _day(cluster: Cluster, demand_held: DemandHeld, arguments: AuditArguments, as_of_ms: int) -> AuditVerdict:
    out = arguments.out
    plan, earlier = begin_day(arguments, as_of_ms)
    done = judge_part(cluster, arguments, plan)
    rows = {part: read_rows(out, DAYS, part)[0] for part in earlier[-MOST_DAYS:]}
    trend = [Row(day=part.removeprefix("day="), **row) for part, row in rows.items()]
    verdict = conclude(arguments, as_of_ms, done.remarks, done, trend)
    demand_held()
    write_rows(out, DAYS, plan.name, [verdict.day_row])
    done.commit()
    audit_folder.end_part(out)
    return verdict


def _once(cluster: Cluster, arguments: AuditArguments, as_of_ms: int, keep: Keep) -> AuditVerdict:
    old, out, limits = None, arguments.out, arguments.limits(as_of_ms)
    if arguments.archive is not None:
        require_same_topic(cluster, arguments.archive, arguments.timer_topic)
        since = F.col("timestamp_ms") >= (arguments.from_ms or 0)
        old = archived(arguments.archive, arguments.timer_topic).where(since)
    plan = read_plan.plan_once(cluster, arguments, read_plan.archived_ranges(old, arguments))
    fit_plans(read_plan.records_in([*plan.asked, *plan.read]))
    seen, spans, reached, _, remarks = observe(cluster, arguments, as_of_ms, plan.read, {}, OpenTimers(out), keep, old)
    fit_plans(read_plan.records_in([*plan.asked, *spans]))
    seen = replace(seen, deleted_before=plan.deleted_before, excluded_before=plan.excluded_before)
    write_rows(out, SPANS, None, [])  # a backfill takes no table without the spans that belong to it
    outcomes = judgement.build_outcomes(seen).where(~judgement.is_receipt_only())
    unjudged = _write_requests(outcomes, plan, arguments, limits)
    write_rows(out, SPANS, None, position_rows(reached))
    notes = [*remarks.notes, *unjudged]
    return conclude(arguments, as_of_ms, remarks._replace(notes=notes, gaps=plan.gaps))


def _write_requests(
    outcomes: DataFrame, plan: read_plan.ReadPlan, arguments: AuditArguments, limits: AuditLimits
) -> list[str]:
    outside = coverage.is_outside(arguments.timer_topic, plan.asked)
    # A request that retention deleted is outside the log, but its copy was read and stands in for it.
    if plan.deleted_before and [a.end for a in plan.asked] == [r.end for r in plan.read]:  # all that is read is asked
        outside = F.when(~F.col("requested"), outside).otherwise(F.lit(False))  # spares most origins being parsed
    elif plan.deleted_before:
        outside &= ~(F.col("requested") & coverage.is_before(arguments.timer_topic, plan.deleted_before))
    outside |= coverage.is_ahead(limits.as_of_ms, limits.skew_ms)
    marks = {"outside": outside, "elsewhere": outside & ~F.col("requested")}
    marks["hidden"] = ~outside & judgement.hidden_by_transaction(limits)
    judged, counter = judgement.counted(classify(outcomes.withColumns(marks), limits))
    write_table(judged.where(~F.col("outside")), arguments.out, REQUESTS)
    return judgement.unjudged_notes(counter, "outside the range")


def conclude(
    arguments: AuditArguments, as_of_ms: int, remarks: Remarks, day: JudgedPart | None = None, trend: Sequence[Row] = ()
) -> AuditVerdict:
    """Write summary and report. They are read from the written table, so that they agree with it."""
    part, open_timers = (None, None) if day is None else (day.plan.name, day.state.open)
    table = read_table(arguments.out, REQUESTS, part)
    write_table(summary.latenesses(table), arguments.out, LATENESS, part)
    counts = read_table(arguments.out, LATENESS, part)
    write_table(summary.topics(table, counts), arguments.out, TOPICS, part)
    write_table(summary.hours(counts), arguments.out, HOURS, part)
    topics = read_table(arguments.out, TOPICS, part)
    hours = read_table(arguments.out, HOURS, part)
    verdict = summary.verdict(table, counts, topics, arguments, as_of_ms, remarks, open_timers)
    details = summary.details(table, counts, hours, verdict)
    files.write(verdict.report, render(verdict, details, arguments, trend).encode())
    return verdict


@command("audit")
def main(argv: Sequence[str] | None = None) -> int:
    """Audit each timer topic; several in one Spark session, each in its folder. Return the worst exit code."""
    first, *others = audits = parse(argv)
    if not others:
        return _run(first)
    out = first.out.parent
    with job_session("audit", out, first):
        if audit_folder.kind_of(out) is not None:
            raise UsageError(f"--out {out} holds the audit of one timer topic: give --timer-topic, or a new folder")
        if first.stream and not first.available_now:
            return run_streams(audits)
        return max(_run_one_of_several(audit) for audit in audits)


def _run_one_of_several(audit: AuditArguments) -> int:
    print(f"{audit.timer_topic}:", flush=True)
    return exit_code_of(f"audit: {audit.timer_topic}", lambda: _run(audit))


def _run(arguments: AuditArguments) -> int:
    if arguments.stream:
        return run_streams([arguments])
    started_s = time.monotonic()
    verdict = run_audit(arguments)
    AuditMetrics(arguments).audited(verdict, time.monotonic() - started_s)
    print(f"{verdict.headline} as of {iso(verdict.as_of_ms)}")
    print("".join(f"  {why}\n" for why in (*verdict.gaps, *verdict.unproved)), end="")
    print("\n".join(f"  {name}: {count:,}" for name, count in verdict.counts.items() if count))
    print(f"Report: {verdict.report}")
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main())
