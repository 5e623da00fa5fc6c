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

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.headers import lookup
from spark_jobs.kafka.admin import FOREVER_MS, Span


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
    return _any((topic == s.topic) & (partition == s.partition) & at.between(s.start, s.end - 1) for s in spans)


def is_before_end(spans: Sequence[Span], topic: Column, partition: Column, at: Column) -> Column:
    """Return a column: True if the offset precedes the end of a span of its partition."""
    ends = {(s.topic, s.partition): s for s in spans}
    return _any((topic == s.topic) & (partition == s.partition) & (at < s.end) for s in ends.values())


def unread_margin_ms(since_ms: Mapping[str, int] | None, rejected_since_ms: int, rejected_gap_ms: int) -> Column:
    """Return a column: for how long after a request its delivery or rejected record may be gone, or was never read.

    The parameters are those of Observations. A target without `since_ms` may have existed before. 0 or less, in ms: its
    outcome would have been read.
    """
    if since_ms is None:
        return F.lit(-FOREVER_MS)
    left_ms = F.least("expected_ms", "moved_low_ms")
    place, default = F.concat("target", F.lit("/"), F.col("want_partition").cast("string")), F.lit(FOREVER_MS)
    complete_ms = F.coalesce(lookup(since_ms, place), lookup(since_ms, F.col("target")), default)
    return F.greatest(
        F.when(~F.col("malformed") & F.col("target").isNotNull(), complete_ms - left_ms),
        rejected_since_ms - F.col("requested_ms"),
        rejected_gap_ms - left_ms,
    )


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(or_, (F.coalesce(each, F.lit(False)) for each in conditions), F.lit(False))


def _is_malformed() -> Column:
    return F.col("origin").startswith("?")


def parse_origin() -> tuple[Column, Column, Column]:
    origin = series.of(F.col("origin"))
    partition = F.substring_index(F.substring_index(origin, "/", 2), "/", -1)
    topic, offset = (F.substring_index(origin, "/", at) for at in (1, -1))
    return topic, partition.try_cast("int"), offset.try_cast("bigint")
