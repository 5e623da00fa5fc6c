"""Chart of when timers are due: columns of minutes, hours or days, each a stack of topics.

    Pending.topics (by hour or day), Listing.topics (by minute) -> timeline() -> overview.html draws it as SVG

Lengths are percent of the picture. Times are epoch ms, columns are in UTC.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bridge.partition.options import instant_text
from bridge.query.summary import Bucket
from timer.index.due_counts import HOUR_MS

MINUTE_MS = 60_000
_DAY_MS = 24 * HOUR_MS
_TOPICS = 5
"""Topics with a colour of their own; page.css has one more, for the others."""
_TOP, _HEIGHT, _LEAST = 10.0, 78.0, 0.6


class Span(NamedTuple):
    """A zoom level. bucket_ms: width of the counts that are searched for the times of the links Earlier and Later."""

    label: str
    step_ms: int
    columns: int
    bucket_ms: int
    columns_per_label: int
    label_part: slice
    """The part of an ISO 8601 instant that is a column's label."""

    @property
    def length_ms(self) -> int:
        return self.step_ms * self.columns


SPANS = {
    "hour": Span("next hour", MINUTE_MS, 60, HOUR_MS, 15, slice(11, 16)),
    "day": Span("by the hour", HOUR_MS, 24, HOUR_MS, 6, slice(11, 16)),
    "month": Span("by the day", _DAY_MS, 31, _DAY_MS, 7, slice(5, 10)),
}


class Part(NamedTuple):
    """Timers of one topic in a column. `number`: of the colour. `topic` None: the other topics together."""

    number: int
    topic: str | None
    timers: int
    top: float
    height: float


class Column(NamedTuple):
    from_ms: int
    to_ms: int
    left: float
    label: str
    timers: int
    parts: list[Part]


class Timeline(NamedTuple):
    """A chart. earlier_ms, later_ms: start of the nearest charts before and after it with timers; None: none exists."""

    from_ms: int
    to_ms: int
    most: int
    column_width: float
    columns: list[Column]
    legend: list[Part]
    earlier_ms: int | None
    later_ms: int | None


def timeline(
    topics: Mapping[str, list[Bucket]], total: Iterable[Bucket], pending: Iterable[Bucket], span: Span, from_ms: int
) -> Timeline:
    """Return the chart from `from_ms` on.

    topics, total: counts of steps, by topic and together. pending: all counts, by the span's buckets.
    """
    to_ms = from_ms + span.length_ms
    inside = {topic: _inside(buckets, from_ms, to_ms) for topic, buckets in topics.items()}
    all_ = _inside(total, from_ms, to_ms)
    largest = sorted(inside, key=lambda topic: -inside[topic].total())[:_TOPICS]
    shown = {topic: inside[topic] for topic in sorted(largest) if inside[topic]}
    most = max(all_.values(), default=1)

    def stack(counts: Mapping[str, int], all_timers: int) -> list[Part]:
        """Return the parts from below."""
        rest = all_timers - sum(counts.values())
        timers = [*enumerate(counts.items()), (_TOPICS, (None, rest))]
        parts, top = [], _TOP + _HEIGHT
        for number, (topic, count) in timers:
            if count > 0:
                height = max(_LEAST, count * _HEIGHT / most)
                top -= height
                parts.append(Part(number, topic, count, round(top, 2), round(height, 2)))
        return parts

    columns = []
    for number in range(span.columns):
        at_ms = from_ms + number * span.step_ms
        counts = {topic: own[at_ms] for topic, own in shown.items()}
        label = "" if number % span.columns_per_label else instant_text(at_ms)[span.label_part]
        left = round(number * 100 / span.columns, 2)
        parts = stack(counts, all_[at_ms])
        columns.append(Column(at_ms, at_ms + span.step_ms, left, label, all_[at_ms], parts))
    starts = [each.from_ms for each in pending]
    before = [start + span.bucket_ms - span.length_ms for start in starts if start < from_ms]
    after = [start for start in starts if start + span.bucket_ms > to_ms]
    legend = stack({topic: own.total() for topic, own in shown.items()}, all_.total())
    earlier_ms, later_ms = max(before, default=None), min(after, default=None)
    return Timeline(from_ms, to_ms, most, round(100 / span.columns, 2), columns, legend, earlier_ms, later_ms)


def _inside(buckets: Iterable[Bucket], from_ms: int, to_ms: int) -> Counter[int]:
    return Counter({each.from_ms: each.timers for each in buckets if from_ms <= each.from_ms < to_ms})
