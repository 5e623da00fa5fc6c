"""Which origins an audit judges: those of the requests that it was asked to.

asked   timer.requests/0 [1200, 9800)
origin  timer.requests/0/1199   before: of another time            not judged
        timer.requests/0/9800   behind: to be judged next time     not judged; kept, where there is a next time
        other.timers/0/1500     another bridge's                   not judged
        timer.requests/0/1500   inside, and no such request        unexplained
        nonsense                no origin at all                   unexplained
"""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.kafka.admin import Span


def before(timer_topic: str, spans: Sequence[Span]) -> Column:
    """True where `origin` stands before the span of its partition, or belongs to another timer topic."""
    topic, at, bound = _read(spans)
    return ~_is_none() & F.coalesce((topic != timer_topic) | (at < bound[0]), F.lit(False))


def behind(timer_topic: str, spans: Sequence[Span]) -> Column:
    """True where `origin` stands behind the span of its partition."""
    topic, at, bound = _read(spans)
    return ~_is_none() & F.coalesce((topic == timer_topic) & (at >= bound[1]), F.lit(False))


def outside(timer_topic: str, spans: Sequence[Span]) -> Column:
    return before(timer_topic, spans) | behind(timer_topic, spans)


def _is_none() -> Column:
    return F.col("origin").startswith("?")


def _read(spans: Sequence[Span]) -> tuple[Column, Column, Column]:
    parts = F.split("origin", "/")
    partition, offset = (F.get(parts, F.lit(at)) for at in (1, 2))
    bounds = F.create_map(
        *(column for s in spans for column in (F.lit(s.partition), F.array(F.lit(s.start), F.lit(s.end))))
    )
    return parts[0], offset.try_cast("bigint"), F.try_element_at(bounds, partition.try_cast("int"))
