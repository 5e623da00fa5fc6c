"""Conditions for origins inside the range of requests that an audit covers.

range   timer.requests/0 [1200, 9800) and, as retention deleted the others, [9900, 20000)
origin  timer.requests/0/1199   before the range                   not judged
        timer.requests/0/20000  after the range                    not judged; kept for the next run, if there is one
        other.timers/0/1500     another bridge's                   not judged
        timer.requests/0/1500   inside, and no such request        unexplained
        timer.requests/0/9850   in a hole, as are perhaps cancels  unjudged
        nonsense                no origin at all                   unexplained

A partition has one span, or several in order: then there are holes between them.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.headers import lookup
from spark_jobs.kafka.admin import Span

Place = TypeVar("Place")


class OutcomeGap(NamedTuple):
    """Records of a partition that were never read, all written until `until_ms`. `topic` None: the rejected topic."""

    topic: str | None
    partition: int
    until_ms: int


def is_before(timer_topic: str, spans: Sequence[Span]) -> Column:
    """Return a column: True if `origin` precedes the spans of its partition, or names another timer topic."""
    topic, partition, at = parse_origin()
    starts = {span.partition: span.start for span in reversed(spans)}
    return ~_is_malformed() & F.coalesce((topic != timer_topic) | (at < lookup(starts, partition)), F.lit(False))


def is_after(timer_topic: str, spans: Sequence[Span]) -> Column:
    """Return a column: True if `origin` follows the spans of its partition."""
    topic, partition, at = parse_origin()
    ends = {span.partition: span.end for span in spans}
    return ~_is_malformed() & F.coalesce((topic == timer_topic) & (at >= lookup(ends, partition)), F.lit(False))


def is_ahead(as_of_ms: int, skew_ms: int) -> Column:
    """Return a column: True if only the delivery of an occurrence was read, and its copy may follow what was read."""
    is_occurrence = ~_is_malformed() & F.col("origin").contains("#")
    came_ms = F.coalesce("delivered_ms", "rejected_ms") + skew_ms
    return is_occurrence & ~F.col("requested") & F.coalesce(came_ms >= as_of_ms, F.lit(False))


def is_outside(timer_topic: str, spans: Sequence[Span]) -> Column:
    return is_before(timer_topic, spans) | is_after(timer_topic, spans)


def holes(spans: Sequence[Span]) -> list[Span]:
    return [a._replace(start=a.end, end=b.start) for a, b in pairwise(spans) if a[:2] == b[:2] and a.end < b.start]


def is_in(spans: Sequence[Span], topic: Column, partition: Column, at: Column) -> Column:
    """Return a column: True if the offset is in one of the spans. There are few spans: a regular audit has none."""
    return _any(spans, lambda s: (topic == s.topic) & (partition == s.partition) & at.between(s.start, s.end - 1))


def is_before_end(spans: Sequence[Span], topic: Column, partition: Column, at: Column) -> Column:
    """Return a column: True if the offset precedes the end of a span of its partition."""
    ends = {(s.topic, s.partition): s for s in spans}
    return _any(ends.values(), lambda s: (topic == s.topic) & (partition == s.partition) & (at < s.end))


def may_have_left_in(gaps: Sequence[OutcomeGap]) -> Column:
    """Return a column: True if the delivery or the rejected record of a request may be in one of the gaps."""

    def may_be_in(gap: OutcomeGap) -> Column:
        was_due = F.least("expected_ms", "moved_low_ms") <= gap.until_ms
        if gap.topic is None:
            return was_due
        is_partition = F.coalesce(F.col("want_partition") == gap.partition, F.lit(True))
        return was_due & (F.col("target") == gap.topic) & is_partition & ~F.col("malformed")

    return _any(gaps, may_be_in)


def _any(places: Iterable[Place], condition: Callable[[Place], Column]) -> Column:
    found = F.lit(False)
    for place in places:
        found |= F.coalesce(condition(place), F.lit(False))
    return found


def _is_malformed() -> Column:
    return F.col("origin").startswith("?")


def parse_origin() -> tuple[Column, Column, Column]:
    origin = series.of(F.col("origin"))
    partition = F.substring_index(F.substring_index(origin, "/", 2), "/", -1)
    return (
        F.substring_index(origin, "/", 1),
        partition.try_cast("int"),
        F.substring_index(origin, "/", -1).try_cast("bigint"),
    )
