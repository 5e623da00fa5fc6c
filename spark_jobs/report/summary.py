"""Summary of the table of requests: by class, by topic, by lateness, over time.

Each function is at most one pass of Spark over the written table. Functions about lateness read its counts (LATENESS)
instead, which are few. The size of a result has a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from schemas.tables import HOURS, TOPICS, AuditClass
from spark_jobs.audit_rules.judgement import OUT_OF_ORDER, out_of_order
from spark_jobs.audit_rules.percentiles import HOUR_MS, MINUTE_MS, interval_start, lateness_counts, lateness_percentiles
from spark_jobs.audit_rules.verdicts import FAULTS, UNPROVED_CODES, UNREAD_OUTCOME, is_fault
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.platform.files import Location

MOST_TOPICS = 200
MOST_EXAMPLES = 20
MOST_CODES = 50
MOST_HOURS = 24
MOST_POINTS = 300
EDGES_MS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 600_000, 3_600_000)
_DAY_MS = 86_400_000
_WIDTHS_MS = (1_000, 10_000, MINUTE_MS, 600_000, HOUR_MS, _DAY_MS)


class LatenessSummary(NamedTuple):
    """Lateness of first deliveries in ms; all None if nothing was delivered."""

    min_ms: int | None
    p50_ms: int | None
    p99_ms: int | None
    max_ms: int | None


class Remarks(NamedTuple):
    """Messages of a run for its report. An audit with gaps, or with something unproved, is not clean.

    gaps: records that retention deleted before an audit read them. unproved: other reasons, such as too many refusals
    that it cannot check, or a transaction that hides records for too long.
    """

    notes: Sequence[str] = ()
    gaps: Sequence[str] = ()
    unproved: Sequence[str] = ()


@dataclass(frozen=True)
class AuditVerdict:
    """Result of an audit. `counts`: of every class, also 0; `topics`: rows of TOPICS, the worst and largest 200."""

    out: Location
    as_of_ms: int
    counts: dict[str, int]
    lateness: LatenessSummary
    topics: tuple[Row, ...]
    topics_in_all: int
    requests: int
    notes: tuple[str, ...]
    gaps: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    out_of_order: int = 0
    open_timers: int = 0
    """Of a daily audit also those that it had no reason to judge."""

    @property
    def fault_counts(self) -> dict[str, int]:
        """Return the count of every kind of fault, also 0."""
        return {name.value: self.counts[name.value] for name in FAULTS} | {OUT_OF_ORDER: self.out_of_order}

    @property
    def faults(self) -> dict[str, int]:
        return {name: count for name, count in self.fault_counts.items() if count}

    @property
    def clean(self) -> bool:
        return not self.faults and not self.gaps and not self.unproved

    @property
    def exit_code(self) -> int:
        return 3 if self.faults else 0 if self.clean else 1

    @property
    def report(self) -> Location:
        return self.out / "report.html"

    @property
    def day_row(self) -> dict[str, Any]:
        """Return the row of DAYS."""
        row = {c.column: self.counts[c.value] for c in AuditClass} | {"as_of_ms": self.as_of_ms}
        row |= {"requests": self.requests, "faults": sum(self.faults.values())}
        return row | {f"lateness_{name}": value for name, value in self.lateness._asdict().items() if name != "min_ms"}

    @property
    def headline(self) -> str:
        """Return "Clean: 880 requests, ..." or "3 faults: 2 missing, 1 early"."""
        if self.clean:
            return f"Clean: {self.requests:,} requests, no fault" if self.requests else "Nothing to audit: no request"
        if not self.faults:
            return f"Not all is proved: {self.requests:,} requests, no fault among them"
        found = ", ".join(f"{count:,} {name}" for name, count in self.faults.items())
        total = sum(self.faults.values())
        return f"{total:,} {'fault' if total == 1 else 'faults'}: {found}"


class Bin(NamedTuple):
    """Deliveries with low_ms <= lateness < high_ms; None: no bound."""

    low_ms: int | None
    high_ms: int | None
    deliveries: int


@dataclass(frozen=True)
class Details:
    histogram: tuple[Bin, ...]
    timeline: tuple[Row, ...]
    """Intervals with deliveries; rows of HOURS, but for `at_ms`, their start."""
    timeline_width_ms: int
    faults: tuple[Row, ...]
    latest: tuple[Row, ...]
    codes: tuple[tuple[str, int], ...]
    hours: tuple[Row, ...] = ()
    """The hours with the worst p99, of all topics; rows of HOURS."""
    by_order: int = 0
    """Rows whose class has no receipt as proof, only the order of the timer topic and time."""


def latenesses(table: DataFrame) -> DataFrame:
    """Return the rows of LATENESS."""
    keys = {"topic": F.coalesce("target", "delivered_topic"), "minute_ms": interval_start("delivered_ms", MINUTE_MS)}
    return lateness_counts(table.where("lateness_ms IS NOT NULL").withColumns(keys), *keys)


def topics(table: DataFrame, counts: DataFrame) -> DataFrame:
    """Return the rows of TOPICS. counts: rows of LATENESS."""
    named = table.withColumn("real", F.coalesce("target", "delivered_topic"))
    by_class = named.groupBy("real", "class").agg(F.count("topic").alias("requests"), F.count("*").alias("rows"))
    classes = [_rows_if(F.col("class") == c.value).alias(c.column) for c in AuditClass]
    counted = by_class.groupBy(F.col("real").alias("topic")).agg(
        F.sum("requests").alias("requests"), _rows_if(is_fault()).alias("faults"), *classes
    )
    lateness = lateness_percentiles(counts.withColumnRenamed("topic", "real"), "real")
    found = counted.join(lateness, counted["topic"].eqNullSafe(lateness["real"]), "left")
    return found.select(*TOPICS.arrow().names)


def _rows_if(condition: Column) -> Column:
    return F.sum(F.when(condition, F.col("rows")).otherwise(0))


def hours(counts: DataFrame) -> DataFrame:
    """Return the rows of HOURS. counts: rows of LATENESS."""
    timed = counts.withColumn("hour_ms", interval_start("minute_ms", HOUR_MS))
    return lateness_percentiles(timed, "topic", "hour_ms").select(*HOURS.arrow().names)


def verdict(
    table: DataFrame,
    counts: DataFrame,
    by_topic: DataFrame,
    arguments: AuditArguments,
    as_of_ms: int,
    remarks: Remarks,
    open_timers: int | None = None,
) -> AuditVerdict:
    classes = [F.coalesce(F.sum(c.column), F.lit(0)).alias(c.value) for c in AuditClass]
    requests = F.coalesce(F.sum("requests"), F.lit(0)).alias("requests")
    sums = by_topic.agg(F.count("*").alias("topics"), requests, *classes).collect()[0]
    of_class: dict[str, int] = {c.value: sums[c.value] for c in AuditClass}
    unproved, most_percent = [*remarks.unproved], arguments.max_refused_percent
    if sums[AuditClass.REJECTED] * 100 > sums.requests * most_percent:
        unproved += _unproved_refusals(table, sums.requests, most_percent)
    if sums[AuditClass.UNJUDGED]:
        unproved += unread_outcomes(table)
    out_of_order, disorder = _disorder(table, arguments)
    lateness = lateness_percentiles(counts).collect()[0]
    return AuditVerdict(
        out=arguments.out,
        as_of_ms=as_of_ms,
        counts=of_class,
        lateness=LatenessSummary(*(lateness[f"lateness_{name}"] for name in LatenessSummary._fields)),
        topics=tuple(by_topic.orderBy(F.desc("faults"), F.desc("requests"), "topic").limit(MOST_TOPICS).collect()),
        topics_in_all=sums.topics,
        requests=sums.requests,
        notes=(*remarks.notes, *disorder),
        gaps=tuple(remarks.gaps),
        unproved=tuple(unproved),
        out_of_order=out_of_order,
        open_timers=of_class[AuditClass.PENDING] + of_class[AuditClass.HELD] if open_timers is None else open_timers,
    )


def unread_outcomes(table: DataFrame) -> list[str]:
    """Return messages about timers that may have been delivered before all records of their target were read."""
    is_unread = (F.col("class") == AuditClass.UNJUDGED.value) & (F.col("proof") == UNREAD_OUTCOME)
    rows = table.where(is_unread).groupBy("target").count().orderBy(F.desc("count"), "target")
    return [
        f"Not judged: {count:,} due timers for {target}. Nothing proves that it existed when they were due, or that it"
        " or the rejected topic still had all records when it was read: they may have been delivered. Look at the"
        f" consumers, then send what is missing with: backfill --although-unknown {target}."
        for target, count in rows.limit(MOST_EXAMPLES).collect()
    ]


def _unproved_refusals(table: DataFrame, requests: int, most_percent: int) -> list[str]:
    """Return a message if more than `most_percent` of the requests are refused well-formed, with unproved codes."""
    is_well_formed = F.col("due_ms").isNotNull() | (F.col("kind") == "cancel")
    is_unproved = (F.col("class") == AuditClass.REJECTED.value) & F.col("error").isin(*UNPROVED_CODES)
    found = table.where(is_unproved & is_well_formed).count()
    if found * 100 <= requests * most_percent:
        return []
    return [
        f"Refused for reasons that the audit cannot check: {found:,} of {requests:,} requests, more than"
        f" {most_percent} % (--max-refused-percent). Compare their codes with the bridge's settings and the topics."
    ]


def _disorder(table: DataFrame, arguments: AuditArguments) -> tuple[int, list[str]]:
    """Return the number of deliveries out of order, and a note with examples."""
    found = out_of_order(table, tolerance_ms=arguments.tolerance_ms, skew_ms=arguments.skew_ms).select("origin")
    count = found.count()
    if not count:
        return 0, []
    examples = ", ".join(row.origin for row in found.orderBy("origin").limit(MOST_EXAMPLES).collect())
    return count, [f"Out of order: {count:,} deliveries, such as those of {examples}."]


def details(table: DataFrame, counts: DataFrame, by_hour: DataFrame, found: AuditVerdict) -> Details:
    delivered = table.where("lateness_ms IS NOT NULL")
    bins, width_ms = histogram(counts)
    # Only what the report shows: a pass over all columns would take longer.
    place = ("delivered_topic", "delivered_partition", "delivered_offset")
    latest = delivered.select("lateness_ms", "origin", *place, "due_ms", "released_ms", "class")
    return Details(
        histogram=bins,
        timeline=timeline(delivered, counts, width_ms),
        timeline_width_ms=width_ms,
        faults=_examples(table) if found.faults else (),
        latest=tuple(latest.orderBy(F.desc("lateness_ms"), "origin").limit(MOST_EXAMPLES).collect()),
        codes=_codes(table) if found.counts[AuditClass.REJECTED] + found.counts[AuditClass.EXPIRED] else (),
        hours=tuple(by_hour.orderBy(F.desc("lateness_p99_ms"), "hour_ms", "topic").limit(MOST_HOURS).collect()),
        by_order=table.where(F.col("proof") == "order").count(),
    )


def histogram(counts: DataFrame) -> tuple[tuple[Bin, ...], int]:
    """Return every bin from the first to the last that is not empty, and the width of an interval of the timeline.

    With this width, in ms, at most MOST_POINTS are drawn.
    """
    bounds = (None, *EDGES_MS, None)
    # A rounded lateness is on the same side of each edge.
    place = sum(((F.col("value_ms") >= edge).cast("int") for edge in EDGES_MS), F.lit(0))
    sums = F.sum("deliveries").alias("deliveries"), F.min("minute_ms").alias("low"), F.max("minute_ms").alias("high")
    rows = counts.groupBy(place.alias("place")).agg(*sums).collect()
    if not rows:
        return (), _WIDTHS_MS[0]
    found = {row.place: row.deliveries for row in rows}
    span = max(row.high for row in rows) - min(row.low for row in rows) + MINUTE_MS
    days = -(-span // (MOST_POINTS * _DAY_MS))
    width_ms = next((width for width in _WIDTHS_MS if span // width < MOST_POINTS), days * _DAY_MS)
    bins = (Bin(bounds[i], bounds[i + 1], found.get(i, 0)) for i in range(min(found), max(found) + 1))
    return tuple(bins), width_ms


def timeline(delivered: DataFrame, by_minute: DataFrame, width_ms: int) -> tuple[Row, ...]:
    """Return Details.timeline. by_minute: rows of LATENESS, enough for whole minutes."""
    if width_ms % MINUTE_MS:
        counts = lateness_counts(delivered.withColumn("at_ms", interval_start("delivered_ms", width_ms)), "at_ms")
    else:
        counts = by_minute.withColumn("at_ms", interval_start("minute_ms", width_ms))
    return tuple(lateness_percentiles(counts, "at_ms").orderBy("at_ms").collect())


def _examples(table: DataFrame) -> tuple[Row, ...]:
    """Return examples of faults, about the same number of each class; worst class first."""
    order = F.array_position(F.lit([name.value for name in FAULTS]), F.col("class"))
    each = Window.partitionBy("class").orderBy("due_ms", "origin")
    ranked = table.where(is_fault()).withColumn("nth", F.row_number().over(each)).where(F.col("nth") <= MOST_EXAMPLES)
    chosen = ranked.orderBy("nth", order).limit(MOST_EXAMPLES).collect()
    return tuple(sorted(chosen, key=lambda row: FAULTS.index(row["class"])))


def _codes(table: DataFrame) -> tuple[tuple[str, int], ...]:
    rejected = table.where(F.col("error").isNotNull()).groupBy("error").count()
    found = rejected.orderBy(F.desc("count"), "error").limit(MOST_CODES).collect()
    return tuple((row.error, row["count"]) for row in found)
