"""The records that one run reads: the timer topic first, then, once its end is fixed, the topics with the outcomes.

    timer.requests   [range ............)[context ...)   after the range: copies, and requests that end an id
    orders           [from - 10 min ........ end)        looked up later: a delivery of any request above is in here

Every topic is read to its end, as a copy, a cancel or a delivery may come at any later time.
"""

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from spark_jobs.archive import archive_ends
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules.evidence import Observations, PartitionCount, pauses
from spark_jobs.audit_rules.requests import MOVES, Feature, requests
from spark_jobs.audit_rules.verdicts import GRACE_MS
from spark_jobs.audit_run.arguments import EVERYTHING, AuditArguments, iso
from spark_jobs.audit_run.positions import Positions
from spark_jobs.audit_run.waivers import waived
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.kafka.admin import Cluster, Place, Span
from spark_jobs.platform.tables import read_records

CLOCK_SKEW_MS = 600_000
"""How far a delivery's timestamp may precede its request's, when a range of time is read."""
_ALL_KEYS, _ONE_KEY_IN = 1_000_000, 16
"""Up to a million records all keys are hashed, of more one in 16: it takes Spark ten times as long as a SHA-256."""
_MOST_SHOWN = 5
_HEAD = 1_000
"""Records at the beginning of a partition among which one with a time is looked for."""
_METADATA_AGE_MS = 900_000
"""Time for which a producer may not know that a topic has grown: librdkafka's metadata.max.age.ms."""


@dataclass(frozen=True)
class ReadPlan:
    """Spans of the timer topic. `asked`: the requests to judge; `read`: those, and the records after them.

    `deleted_before`, `excluded_before`: see Observations.
    """

    asked: Sequence[Span]
    read: Sequence[Span]
    deleted_before: Sequence[Span]
    excluded_before: Sequence[Span]
    gaps: Sequence[str] = ()
    """Messages about requests that neither archive nor topic has."""


class ArchivedRange(NamedTuple):
    """Offsets of one partition in an archive: [first, behind). `until`: end of the requested range, None: no end."""

    first: int
    behind: int
    until: int | None


def records_in(spans: Iterable[Span]) -> int:
    """Return the number of offsets: at least as many as records."""
    return sum(span.end - span.start for span in spans)


def own_topics(arguments: AuditArguments) -> set[str]:
    return {arguments.timer_topic, arguments.rejected_topic, arguments.receipts_topic, arguments.control_topic}


def plan_once(cluster: Cluster, arguments: AuditArguments, archived: Mapping[int, ArchivedRange]) -> ReadPlan:
    """Plan an audit of a range, by time or by offsets; of everything by default. `archived`: see `archived_ranges`."""
    topic = arguments.timer_topic
    everything = cluster.spans([topic], from_ms=arguments.from_ms)
    asked = cluster.spans([topic], from_ms=arguments.from_ms, to_ms=arguments.to_ms)
    if arguments.offsets is not None:
        bounds = {span.partition: arguments.offsets.get(span.partition, (0, 0)) for span in everything}
        asked = [span.within(*bounds[span.partition]) for span in everything]
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
            raise JobFailedError(
                f"{topic}/{at} ends at {log[at].end}, but {arguments.archive} holds it up to {old.behind}: the topic"
                " was created again, or lost its end: audit it without this archive, and give the archive a new --out"
            )
        end = asked[at].end if old.until is None else min(asked[at].end, old.until)
        asked[at] = asked[at]._replace(start=min(old.first, asked[at].start), end=end)
        read[at] = read[at]._replace(start=min(max(old.behind, read[at].start), read[at].end))
    starts_with_log = arguments.from_ms is None and arguments.offsets is None
    ends = {} if arguments.archive is None else archive_ends(arguments.archive, topic)
    lost = 0
    for at, span in log.items():
        end = max(ends.get(at, 0), archived[at].behind if at in archived else 0)
        lost += max(0, span.start - end) if everything[at].start <= span.start else 0  # none if the range begins later
    told = f"Never read: {lost:,} offsets of {topic} lie between the archive's end and the log's start."
    gaps = (f"{told} Archive more often.",) if lost else ()
    return ReadPlan(asked, read, asked if starts_with_log else (), () if starts_with_log else asked, gaps)


def archived_ranges(old: DataFrame | None, arguments: AuditArguments) -> dict[int, ArchivedRange]:
    if old is None:
        return {}
    later = F.col("timestamp_ms") >= (2**62 if arguments.to_ms is None else arguments.to_ms)
    bounds = old.groupBy("partition").agg(F.min("offset"), F.max("offset"), F.min(F.when(later, F.col("offset"))))
    return {partition: ArchivedRange(first, last + 1, until) for partition, first, last, until in bounds.collect()}


def read_requests(spans: Sequence[Span], arguments: AuditArguments, old: DataFrame | None = None) -> DataFrame:
    """Return the parsed requests of the spans. `old`: records of an archive, none of which is in `spans`."""
    records = read_records(arguments.access, spans)
    if old is not None:
        records = records.unionByName(old.select(records.columns))
    return requests(
        records,
        levels_ms=arguments.levels_ms,
        own_topics=own_topics(arguments),
        profiles=arguments.profiles,
        trace_header=arguments.trace_header,
    )


def census(
    asked: DataFrame, cluster: Cluster, arguments: AuditArguments
) -> tuple[set[str], list[str], frozenset[Feature]]:
    """Return the target topics to read, at most 100 that do not exist, and the features of rows with `asked`.

    The driver gets at most one row per topic of the cluster. The bridge's own topics are never target topics, even if a
    request names one: no record there is a delivery.
    """
    others = cluster.partitions.keys() - own_topics(arguments)
    exists = F.col("target").isin(*others)
    names_one, kind = F.col("asked.id").isNotNull() | F.col("asked.of_origin").isNotNull(), F.col("asked.kind")
    counts = {
        Feature.IDS: F.count_if(names_one),
        Feature.CLAIMS: F.count_if(kind == "copy"),
        Feature.MOVES: F.count_if(names_one & kind.isin(*MOVES)),
        Feature.PAUSES: F.count_if(names_one & kind.isin("pause", "resume")),
        Feature.WHOLE_IDS: F.count("asked.whole_id"),
        Feature.BY_ORIGIN: F.count("asked.of_origin"),
        Feature.TRACES: F.count("asked.trace"),
        Feature.SERIES: F.count("asked.rule"),
    }
    named = asked.groupBy(F.col("asked.target").alias("target")).agg(*(c.alias(name) for name, c in counts.items()))
    by_topic = named.groupBy(F.when(exists, F.col("target")).alias("topic"))
    most = (F.max(name).alias(name) for name in counts)
    found = by_topic.agg(*most, F.count_if(~exists).alias("unknown")).collect()
    unknown: list[str] = []
    if any(row.unknown for row in found):
        unknown = [row.target for row in named.where(~exists).orderBy("target").limit(100).collect()]
    allowed = allowed_topics(others, arguments.allow_targets, arguments.deny_targets)
    topics = allowed.union(row.topic for row in found if row.topic is not None)
    return topics, unknown, frozenset(feature for feature in Feature if any(row[feature] for row in found))


def read_outcomes(
    arguments: AuditArguments, cluster: Cluster, spans: list[Span], parsed: DataFrame, has: Set[Feature], as_of_ms: int
) -> tuple[Observations, tuple[str, ...]]:
    """Return what a run has read, without what lies outside its range; and messages about hanging transactions.

    spans: what to read of target, rejected and receipts topics, up to their last stable offsets. parsed: the requests.
    has: their features.
    """
    by_kind: dict[str, list[Span]] = {arguments.rejected_topic: [], arguments.receipts_topic: [], "": []}
    for span in spans:
        by_kind[span.topic if span.topic in by_kind else ""].append(span)
    rejected, told, real = (read_records(arguments.access, found) for found in by_kind.values())
    counts = _partition_counts(cluster, by_kind[""])
    unstable = cluster.unstable_spans([*spans, *cluster.spans([arguments.timer_topic])])
    hidden = [span for span in unstable if span.topic not in (arguments.timer_topic, arguments.receipts_topic)]
    unread = [span for span in unstable if span.topic == arguments.timer_topic]
    undecided = None
    if hidden or unread:  # a copy for the next occurrence may be among the unread
        behind, copies = (read_records(arguments.access, found, committed=False) for found in (hidden, unread))
        undecided = evidence.origins(behind).unionByName(evidence.origins_before(copies)).distinct()
    is_controlled = arguments.control_topic in cluster.partitions  # the topic is small, as it is compacted
    control = read_records(arguments.access, cluster.spans([arguments.control_topic])) if is_controlled else None
    seen = Observations(
        parsed=parsed,
        rejections=evidence.rejections(rejected, arguments.profiles),
        ends=[evidence.deliveries(real, arguments.trace_header, counts), evidence.receipts(told)],
        undecided=undecided,
        pauses=None if control is None else pauses(control, arguments.timer_topic),
        waived=waived(arguments.waivers, as_of_ms),
        has=has,
        skew_ms=arguments.skew_ms,
    )
    return seen, _hanging(arguments, unstable)


def _partition_counts(cluster: Cluster, spans: Sequence[Span]) -> list[PartitionCount]:
    """Return the counts of topics with several partitions, and the time from which every producer knows them."""
    topics, every = {span.topic for span in spans}, 1 if records_in(spans) <= _ALL_KEYS else _ONE_KEY_IN
    return [
        PartitionCount(topic, cluster.partitions[topic], first_ms + _METADATA_AGE_MS, every)
        for topic, first_ms in cluster.last_partition_since_ms(topics).items()
    ]


def with_completeness(
    cluster: Cluster, arguments: AuditArguments, seen: Observations, read: list[Span], reached: Positions, as_of_ms: int
) -> tuple[Observations, dict[Place, int]]:
    """Return the observations with, and by partition, since when all records of topics with outcomes were read.

    A log that begins at offset 0 proves nothing: the topic may have been created again, and Kafka has no time of
    creation. Its id does: topics that earlier runs have `reached` are complete but for what retention took since then.
    Others are complete since their first records (`_complete_since`). read: by this run.
    """
    own, rejected = {arguments.timer_topic, arguments.receipts_topic}, arguments.rejected_topic
    logs, known = cluster.spans({span.topic for span in read} - own), {topic for topic, _ in reached}
    # Only bridges create and write the rejected topic: it counts as whole if its log begins at 0.
    fresh = [log for log in logs if log.topic not in known and (log.start or log.topic != rejected)]
    ends = {place: at.end for place, at in reached.items()}
    lost = [log for log in logs if log.topic in known and log.start > ends.get(log[:2], 0)]
    found = _complete_since(cluster, arguments, [*fresh, *lost], as_of_ms)
    gap_ms = max((found.pop(log[:2]) for log in lost if log.topic == rejected), default=0)
    since_ms = {place: at.since_ms for place, at in reached.items()} | found
    by_topic = dict.fromkeys(own_topics(arguments), 0)
    for (topic, _), ms in since_ms.items():
        by_topic[topic] = max(ms, by_topic.get(topic, 0))
    others = {f"{topic}/{at}": ms for (topic, at), ms in since_ms.items() if ms != by_topic[topic]}
    seen = replace(seen, since_ms=by_topic | others, rejected_since_ms=by_topic[rejected], rejected_gap_ms=gap_ms)
    return seen, since_ms


def _complete_since(cluster: Cluster, arguments: AuditArguments, logs: list[Span], as_of_ms: int) -> dict[Place, int]:
    """Return since when each of these logs is complete: at most `as_of_ms`, as it exists and is read by then.

        log begins at 0    GRACE_MS before the topic's first record: the topic may have been created again before it
        log begins later   its own first record
        compacted          `as_of_ms`

    First is the first record with a time that senders do not choose. It may be aborted: it was written all the same.
    """
    heads = [log._replace(end=min(log.end, log.start + _HEAD)) for log in logs]
    h = F.col("headers")
    is_clock_ours = (F.col("clock") == "LogAppendTime") | (F.col("topic") == arguments.rejected_topic)
    released_ms = F.when(c.has(h, names.ORIGIN), c.decimal(c.value_of(h, names.RELEASED_MS)))
    at_ms = F.when(is_clock_ours, F.col("timestamp_ms")).otherwise(released_ms)
    records = read_records(arguments.access, heads, committed=False)
    timed = records.withColumn("at_ms", at_ms).where("at_ms IS NOT NULL")
    rows = timed.groupBy("topic", "partition").agg(F.min_by("at_ms", "offset")).collect() if heads else []
    first_ms = {(topic, partition): ms for topic, partition, ms in rows}
    exists_ms: dict[str, int] = {}
    for (topic, _), ms in first_ms.items():
        exists_ms[topic] = min(ms, exists_ms.get(topic, ms))
    compacted = {*cluster.compacted({log.topic for log in logs})}
    found = {}
    for log in logs:
        cut_ms = first_ms.get(log[:2], as_of_ms) + arguments.skew_ms
        since_ms = cut_ms if log.start else exists_ms.get(log.topic, as_of_ms + GRACE_MS) - GRACE_MS
        found[log[:2]] = as_of_ms if log.topic in compacted else min(since_ms, as_of_ms)
    return found


def _hanging(arguments: AuditArguments, unstable: Sequence[Span]) -> tuple[str, ...]:
    """Return messages about transactions that have been open for longer than `--hanging-ms`.

    unstable: the spans after last stable offsets. The first record there belongs to the oldest open transaction, and
    its timestamp is the begin of that.
    """
    firsts = [span._replace(end=span.start + 1) for span in unstable]
    if not firsts:
        return ()
    since_ms = int(time.time() * 1000) - arguments.hanging_ms
    records = read_records(arguments.access, firsts, committed=False).where(F.col("timestamp_ms") < since_ms)
    found = records.select("topic", "partition", "offset", "timestamp_ms").orderBy("topic", "partition").collect()
    return tuple(
        f"A transaction on {row.topic}/{row.partition} has been open since {iso(row.timestamp_ms)}, longer than"
        f" --hanging-ms: no consumer reads beyond offset {row.offset}. End it with kafka-transactions.sh abort."
        for row in found
    )


def notes(cluster: Cluster, arguments: AuditArguments, unknown: Sequence[str]) -> list[str]:
    found = []
    if unknown:
        rest = len(unknown) - _MOST_SHOWN
        named = ", ".join(unknown[:_MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        found.append(f"Requests name target topics that do not exist: {named}. They cannot be delivered.")
    if arguments.rejected_topic not in cluster.partitions:
        found.append(f"There is no topic {arguments.rejected_topic}: nothing counts as rejected.")
    if arguments.receipts_topic not in cluster.partitions:
        found.append(f"There is no topic {arguments.receipts_topic}: ids are judged by order and time alone.")
    return found


_INTERNAL = ("_*", "connect-*", "timer.*", "*.journal")
"""Patterns for topics that `allow` has to name exactly."""


def allowed_topics(topics: Iterable[str], allow: Sequence[str], deny: Sequence[str]) -> set[str]:
    """Return the target topics to read even if no request names them.

        allow orders.*,bills   deny *.secret      of orders.eu, orders.secret, bills, refunds  ->  orders.eu, bills

    A delivery that no request asked for is on one of these, or on a topic to which the bridge must not send. The
    pattern `*`, the bridge's default, selects none: to read every topic of a cluster, give `?*`. The same rules as
    bridge.partition.options, written a second time on purpose.
    """
    if tuple(allow) == EVERYTHING:
        return set()
    found = {topic for topic in topics if _fits(topic, allow) and not _fits(topic, deny)}
    return {topic for topic in found if topic in allow or not _fits(topic, _INTERNAL)}


def _fits(topic: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)
