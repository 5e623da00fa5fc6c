"""What one run reads: the timer topic first, then, when its end is fixed, the other ends of its requests.

    timer.requests   [asked ............)[context ...)   behind what is asked for: copies, and what ends an id
    orders           [from - 10 min ........ end)        looked up later: a delivery of any request above is in here

Everything is read to its end, as a copy, a cancel or a delivery may come at any time later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.archive import reached
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules.requests import requests
from spark_jobs.audit_run.arguments import AuditArguments, shown
from spark_jobs.errors import AuditTroubleError, UsageError
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.platform.tables import read_records

CLOCK_SKEW_MS = 600_000
"""A delivery's clock may be behind its request's by so much when a range of time is read."""


@dataclass(frozen=True)
class Reading:
    """`asked`: the requests to be judged. `read`: those, and what stands behind them.

    `gone`, `unread`: see judgement.Seen.
    """

    asked: Sequence[Span]
    read: Sequence[Span]
    gone: Sequence[Span]
    unread: Sequence[Span]
    gaps: Sequence[str] = ()
    """What neither archive nor topic has."""


class Old(NamedTuple):
    """What an archive has of one partition: [first, behind). `until`: where the range that was asked for ends."""

    first: int
    behind: int
    until: int | None


def own_topics(arguments: AuditArguments) -> set[str]:
    return {arguments.timer_topic, arguments.rejected_topic, arguments.receipts_topic}


def once(cluster: Cluster, arguments: AuditArguments, archived: Mapping[int, Old]) -> Reading:
    """For an audit of a range, by time or by offsets; of all by default. `archived`: see `in_archive`."""
    topic = arguments.timer_topic
    everything = cluster.spans([topic], from_ms=arguments.from_ms)
    asked = cluster.spans([topic], from_ms=arguments.from_ms, to_ms=arguments.to_ms)
    if arguments.offsets is not None:
        bounds = {span.partition: arguments.offsets.get(span.partition, (0, 0)) for span in everything}
        asked = [_within(span, *bounds[span.partition]) for span in everything]
    read = [Span(a.topic, a.partition, a.start, e.end) for a, e in zip(asked, everything, strict=True)]
    asked = [a._replace(end=min(a.end, r.end)) for a, r in zip(asked, read, strict=True)]
    log = {span.partition: span for span in cluster.spans([topic])} if arguments.archive is not None else {}
    strange = max(archived, default=-1)
    if strange >= len(asked):
        raise UsageError(
            f"--archive {arguments.archive} has partition {strange} of {topic}, and that has {len(asked)} partitions:"
            " it is the archive of another topic of that name"
        )
    for at, old in archived.items():
        if log[at].end < old.behind:
            raise AuditTroubleError(
                f"{topic}/{at} ends at {log[at].end}, but {arguments.archive} holds it up to {old.behind}: the topic"
                " was made anew, or lost its end: audit it without this archive, and give the archive a new --out"
            )
        end = asked[at].end if old.until is None else min(asked[at].end, old.until)
        asked[at] = asked[at]._replace(start=min(old.first, asked[at].start), end=end)
        read[at] = read[at]._replace(start=min(max(old.behind, read[at].start), read[at].end))
    starts_with_log = arguments.from_ms is None and arguments.offsets is None
    gaps = _between([*log.values()], arguments, archived, everything) if arguments.archive is not None else ()
    return Reading(asked, read, asked if starts_with_log else (), () if starts_with_log else asked, gaps)


def _between(
    logs: Sequence[Span], arguments: AuditArguments, archived: Mapping[int, Old], kept: Sequence[Span]
) -> Sequence[str]:
    """`kept`: of the topic, from the range's begin on. Where `logs`, all of it, have what is older, nothing is gone."""
    assert arguments.archive is not None
    ends = reached(arguments.archive, arguments.timer_topic)
    gone = 0
    for log, span in zip(logs, kept, strict=True):
        old = archived.get(log.partition)
        end = max(ends.get(log.partition, 0), old.behind if old is not None else 0)
        gone += max(0, log.start - end) if span.start <= log.start else 0
    told = f"Never read: {gone:,} offsets of {arguments.timer_topic} lie between the archive's end and the log's start."
    return (f"{told} Archive more often.",) if gone else ()


def in_archive(old: DataFrame | None, arguments: AuditArguments) -> dict[int, Old]:
    """By partition."""
    if old is None:
        return {}
    later = F.col("timestamp_ms") >= (2**62 if arguments.to_ms is None else arguments.to_ms)
    bounds = old.groupBy("partition").agg(F.min("offset"), F.max("offset"), F.min(F.when(later, F.col("offset"))))
    return {partition: Old(first, last + 1, until) for partition, first, last, until in bounds.collect()}


def _within(span: Span, first: int, behind: int) -> Span:
    start = min(max(span.start, first), span.end)
    return span._replace(start=start, end=max(start, min(span.end, behind)))


def parsed(
    spark: SparkSession, spans: Sequence[Span], arguments: AuditArguments, old: DataFrame | None = None
) -> DataFrame:
    """`old`: records of an archive, none of which lies in `spans`."""
    records = read_records(spark, arguments.access, spans)
    if old is not None:
        records = records.unionByName(old.select(records.columns))
    return requests(records, levels_ms=arguments.levels_ms, own_topics=own_topics(arguments))


@dataclass(frozen=True)
class Census:
    """Of the requests that were read: which real topics they name, and which steps they need."""

    topics: tuple[str, ...]
    unknown: tuple[str, ...]
    """Some, at most 100, of those that no broker has."""
    has_ids: bool
    has_claims: bool
    has_moves: bool


def census(asked: DataFrame, cluster: Cluster, arguments: AuditArguments) -> Census:
    """`asked`: rows with `asked`. What comes to the driver is bounded by the topics of the cluster.

    The bridge's own topics are never real ones, whatever a request says: what lies there is no delivery.
    """
    exists = F.col("target").isin(*(cluster.partitions.keys() - own_topics(arguments)))
    named = asked.groupBy(F.col("asked.target").alias("target")).agg(
        F.count_if(F.col("asked.id").isNotNull()).alias("ids"),
        F.count_if(F.col("asked.kind") == "copy").alias("claims"),
        F.count_if(F.col("asked.kind") == "move").alias("moves"),
    )
    found = (
        named.groupBy(F.when(exists, F.col("target")).alias("topic"))
        .agg(*(F.max(name).alias(name) for name in ("ids", "claims", "moves")), F.count_if(~exists).alias("unknown"))
        .collect()
    )
    unknown: list[str] = []
    if any(row.unknown for row in found):
        unknown = [row.target for row in named.where(~exists).orderBy("target").limit(100).collect()]
    return Census(
        tuple(sorted(row.topic for row in found if row.topic is not None)),
        tuple(unknown),
        any(row.ids for row in found),
        any(row.claims for row in found),
        any(row.moves for row in found),
    )


@dataclass(frozen=True)
class Ends:
    """Evidence from the topics where requests end."""

    rejections: DataFrame
    others: tuple[DataFrame, ...]
    spans: tuple[Span, ...]
    undecided: DataFrame | None
    """See judgement.Seen."""


def ends(spark: SparkSession, arguments: AuditArguments, cluster: Cluster, spans: Iterable[Span]) -> Ends:
    """`spans`: of the real topics, the rejected topic and the receipts topic, up to their last stable offsets."""
    by_kind: dict[str, list[Span]] = {arguments.rejected_topic: [], arguments.receipts_topic: [], "": []}
    everything = tuple(spans)
    for span in everything:
        by_kind[span.topic if span.topic in by_kind else ""].append(span)
    rejected, told, real = (read_records(spark, arguments.access, found) for found in by_kind.values())
    others = (evidence.deliveries(real), evidence.receipts(told))
    hidden = cluster.undecided(span for span in everything if span.topic != arguments.receipts_topic)
    behind = read_records(spark, arguments.access, hidden, committed=False)
    undecided = evidence.origins(behind) if hidden else None
    return Ends(evidence.rejections(rejected), others, everything, undecided)


def notes(cluster: Cluster, arguments: AuditArguments, unknown: Sequence[str]) -> list[str]:
    found = []
    if unknown:
        found.append(f"Requests name real topics that do not exist: {shown(unknown)}. They cannot be delivered.")
    if arguments.rejected_topic not in cluster.partitions:
        found.append(f"There is no topic {arguments.rejected_topic}: nothing counts as rejected.")
    if arguments.receipts_topic not in cluster.partitions:
        found.append(f"There is no topic {arguments.receipts_topic}: ids are judged by order and time alone.")
    return found


def truncated(cluster: Cluster, arguments: AuditArguments, topics: Sequence[str]) -> list[str]:
    """Notes on what is gone of these real topics, and of the rejected one."""
    found = []
    gone = {span.topic for span in cluster.spans(topics) if span.start > 0}
    if gone:
        found.append(
            f"The beginning of {shown(sorted(gone))} is gone (retention): what was delivered there counts as missing."
        )
    rejected = {arguments.rejected_topic} & cluster.partitions.keys()
    if any(span.start > 0 for span in cluster.spans(rejected)):
        found.append(
            f"The beginning of {arguments.rejected_topic} is gone (retention): what it held counts as missing."
        )
    compacted = cluster.compacted(topics)
    if compacted:
        found.append(
            f"Compacted: {shown(sorted(compacted))}. A delivery there that a later record of its key has replaced"
            " counts as missing."
        )
    return found
