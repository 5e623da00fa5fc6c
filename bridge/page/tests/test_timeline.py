"""The chart of due times: columns, colours, and the way to timers outside of it."""

import pytest

from bridge.page.rendering import SPANS, Timeline, timeline
from bridge.query.summary import Bucket, merge_buckets
from timer.index.due_counts import HOUR_MS

DAY_MS = 24 * HOUR_MS
BASE_MS = 20_000 * DAY_MS


def hours(**topics: dict[int, int]) -> dict[str, list[Bucket]]:
    """Return counts by topic and hour after BASE_MS."""
    return {
        name: [Bucket(from_ms=BASE_MS + hour * HOUR_MS, timers=count) for hour, count in counts.items()]
        for name, counts in topics.items()
    }


def drawn(topics: dict[str, list[Bucket]], from_ms: int = BASE_MS) -> Timeline:
    total = merge_buckets(bucket for own in topics.values() for bucket in own)
    return timeline(topics, total, total, SPANS["day"], from_ms)


def test_each_hour_is_a_stack_of_its_topics() -> None:
    chart = drawn(hours(b={0: 30, 7: 1}, a={7: 99}))
    assert (len(chart.columns), chart.most, chart.to_ms) == (24, 100, BASE_MS + DAY_MS)
    assert [(each.timers, len(each.parts)) for each in chart.columns if each.timers] == [(30, 1), (100, 2)]
    below, above = chart.columns[7].parts
    assert (below.topic, below.number, below.timers, below.top + below.height) == ("a", 0, 99, 88)
    assert (above.topic, above.number) == ("b", 1)
    assert above.top + above.height == pytest.approx(below.top)
    assert above.top == pytest.approx(10)
    assert [each.label for each in chart.columns if each.label] == ["00:00", "06:00", "12:00", "18:00"]


def test_the_largest_topics_have_a_colour_and_the_others_share_one() -> None:
    chart = drawn(hours(**{f"t{number}": {0: number + 1} for number in range(8)}))
    assert [(each.topic, each.number, each.timers) for each in chart.legend] == [
        *((f"t{number}", number - 3, number + 1) for number in range(3, 8)),
        (None, 5, 1 + 2 + 3),
    ]


def test_timers_of_a_topic_without_a_name_are_counted_among_the_others() -> None:
    known = hours(a={0: 2})
    total = [Bucket(from_ms=BASE_MS, timers=5)]
    chart = timeline(known, total, total, SPANS["day"], BASE_MS)
    assert [(each.topic, each.timers) for each in chart.columns[0].parts] == [("a", 2), (None, 3)]


def test_earlier_and_later_lead_to_the_next_timers_outside() -> None:
    counts = hours(a={-90: 1, -30: 1, 0: 1, 24: 1, 300: 1})
    chart = drawn(counts)
    assert chart.earlier_ms is not None
    assert drawn(counts, chart.earlier_ms).columns[-1].timers == 1
    assert chart.later_ms == BASE_MS + 24 * HOUR_MS
    alone = drawn(hours(a={0: 1}))
    assert (alone.earlier_ms, alone.later_ms) == (None, None)
    empty = drawn({})
    assert (empty.legend, empty.earlier_ms, empty.later_ms) == ([], None, None)


def test_an_hour_that_begins_amid_another_leads_to_the_rest_of_it() -> None:
    total = hours(a={0: 1, 1: 1})["a"]
    chart = timeline({}, [], total, SPANS["hour"], BASE_MS + 600_000)
    assert (chart.earlier_ms, chart.later_ms) == (BASE_MS, BASE_MS + HOUR_MS)
