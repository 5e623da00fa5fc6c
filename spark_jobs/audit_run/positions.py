"""Offsets at which a run begins and ends: OUT/spans has those that earlier parts have read.

spans of part 4   timer.requests/0 [0, 9800)           orders/0 [310, 7431)
part 5 reads      timer.requests/0 [9800, now)         orders/0 [7431, now)       returns/0: new, from then on
spans of part 5   timer.requests/0 [0, 9800) [9900, ...) if retention took 100 offsets between the two
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from schemas.audit_state import SPANS
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.kafka.admin import Cluster, Place, Span
from spark_jobs.platform.files import Location
from spark_jobs.platform.tables import read_rows


@dataclass(frozen=True)
class ReadPosition:
    """Intervals of offsets read of a partition, in order. topic_id None: unknown. since_ms: all since then was read."""

    intervals: tuple[tuple[int, int], ...]
    from_log_start: bool
    topic_id: str | None = None
    since_ms: int = 0

    @property
    def end(self) -> int:
        return self.intervals[-1][1]


Positions: TypeAlias = Mapping[Place, ReadPosition]


def read_positions(out: Location, part: str | None) -> dict[Place, ReadPosition]:
    """Return what has been read after `part`; None: by an audit in one run. Empty if it has not ended."""
    found: dict[Place, ReadPosition] = {}
    for row in read_rows(out, SPANS, part):
        place, interval = (row["topic"], row["partition"]), (row["first"], row["end"])
        before = found[place].intervals if place in found else ()
        found[place] = ReadPosition((*before, interval), row["from_log_start"], row["topic_id"], row["since_ms"])
    return found


def demand_own(positions: Positions, timer_topic: str, place: str) -> None:
    """Raise UsageError if they are of another timer topic, whose requests would count as deliveries."""
    if not any(topic == timer_topic for topic, _ in positions):
        raise UsageError(f"{place} holds no audit of {timer_topic}: give --timer-topic, or another folder")


def position_rows(positions: Positions) -> list[dict[str, object]]:
    """Return the rows of SPANS."""
    return [
        {"topic": topic, "partition": partition, "first": first, "end": end}
        | {"from_log_start": at.from_log_start, "topic_id": at.topic_id, "since_ms": at.since_ms}
        for (topic, partition), at in positions.items()
        for first, end in at.intervals
    ]


def advanced(
    reached: Positions, read: list[Span], ids: Mapping[str, str], since_ms: Mapping[Place, int], *, from_log_start: bool
) -> dict[Place, ReadPosition]:
    """Return the positions after these spans were read. `from_log_start`: no record precedes the new ones.

    since_ms: of each partition with outcomes (ReadPosition).

    Partitions that are invisible now, such as for a lost ACL, keep their position: they would count as new later.
    """
    positions = dict(reached)
    for topic, partition, start, end in read:
        known = positions.get((topic, partition), ReadPosition((), from_log_start))
        *before, last = known.intervals or ((start, start),)
        more = ((last[0], end),) if last[1] == start else (last, (start, end))  # it goes on at the end, or after a hole
        topic_id, since = ids.get(topic, known.topic_id), since_ms.get((topic, partition), 0)
        positions[topic, partition] = replace(known, intervals=(*before, *more), topic_id=topic_id, since_ms=since)
    return positions


def intervals(positions: Positions, topic: str) -> list[Span]:
    """Return what has been read of the topic; a partition with holes has several spans."""
    return [
        Span(*place, first, end)
        for place, at in sorted(positions.items())
        for first, end in at.intervals
        if place[0] == topic
    ]


def spans_since(
    cluster: Cluster, topics: Iterable[str], reached: Positions, *, new_from_ms: int | None, to_ms: int | None
) -> list[Span]:
    """Return the spans from where each partition was left; a new partition from `new_from_ms`, or from its start.

    Raises JobFailedError if a topic is not the one that was read: it has another id, or ends before that.
    """
    asked = set(topics)
    now = {(span.topic, span.partition): span for span in cluster.spans(asked)}
    ids = cluster.topic_ids({topic for topic, _ in reached} & asked & cluster.partitions.keys())
    for (topic, partition), known in reached.items():
        if topic not in asked:
            continue
        if topic in ids and known.topic_id not in (None, ids[topic]):
            what = f"{topic} was created again: its id is {ids[topic]}, and an earlier run has read {known.topic_id}"
            raise JobFailedError(f"{what}: check the loss, then give a new --out")
        end = now[topic, partition].end if (topic, partition) in now else 0
        if end < known.end:
            raise JobFailedError(
                f"{topic}/{partition} ends at {end}, but an earlier run has read up to {known.end}: the topic was"
                " created again, or lost its end (another cluster, an unclean election): check the loss, then give a"
                " new --out"
            )
    spans = []
    for span in cluster.spans(asked, from_ms=new_from_ms, to_ms=to_ms):
        place = span.topic, span.partition
        start = max(reached[place].end, now[place].start) if place in reached else span.start
        spans.append(span._replace(start=start, end=max(start, span.end)))
    return spans


def loss_notes(spans: Iterable[Span], reached: Positions) -> list[str]:
    """Return messages about what retention deleted between two runs."""
    counts: Counter[str] = Counter()
    for span in spans:
        end = reached[span[:2]].end if span[:2] in reached else span.start
        if end < span.start:
            counts[span.topic] += span.start - end
    return [
        f"Never read: {count:,} offsets of {topic} were deleted since the last run. Run more often."
        for topic, count in counts.items()
    ]
