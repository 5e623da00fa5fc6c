"""Which origins are inside the range of requests that an audit covers.

range   timer.requests/0 [1200, 9800)
origin  timer.requests/0/1199   before the range                   not judged
        timer.requests/0/9800   after the range                    not judged; kept for the next run, if there is one
        other.timers/0/1500     another bridge's                   not judged
        timer.requests/0/1500   inside, and no such request        unexplained
        nonsense                no origin at all                   unexplained
"""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.kafka.admin import Span


def is_before(timer_topic: str, spans: Sequence[Span]) -> Column:
    """Return a column: True if `origin` precedes the span of its partition, or names another timer topic."""
    topic, at, bounds = _parse_origin(spans)
    return ~_is_malformed() & F.coalesce((topic != timer_topic) | (at < bounds[0]), F.lit(False))


def is_after(timer_topic: str, spans: Sequence[Span]) -> Column:
    """Return a column: True if `origin` follows the span of its partition."""
    topic, at, bounds = _parse_origin(spans)
    return ~_is_malformed() & F.coalesce((topic == timer_topic) & (at >= bounds[1]), F.lit(False))


def is_outside(timer_topic: str, spans: Sequence[Span]) -> Column:
    return is_before(timer_topic, spans) | is_after(timer_topic, spans)


def _is_malformed() -> Column:
    return F.col("origin").startswith("?")


def _parse_origin(spans: Sequence[Span]) -> tuple[Column, Column, Column]:
    parts = F.split("origin", "/")
    partition, offset = (F.get(parts, F.lit(at)) for at in (1, 2))
    bounds = F.create_map(
        *(column for s in spans for column in (F.lit(s.partition), F.array(F.lit(s.start), F.lit(s.end))))
    )
    return parts[0], offset.try_cast("bigint"), F.try_element_at(bounds, partition.try_cast("int"))
