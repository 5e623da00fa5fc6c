"""Geometry of the chart of lateness, in percent of the picture."""

from bridge.page.api.responses import Lateness
from bridge.page.rendering import lateness_chart

NOW_MS = 1_000_000_000_000


def test_the_newest_ten_seconds_are_the_last_column_and_the_latest_reaches_the_top() -> None:
    slots = [
        Lateness(from_ms=NOW_MS - 150_000, timers=2, p50_ms=10, p99_ms=40),
        Lateness(from_ms=NOW_MS - 10_000, timers=1, p50_ms=None, p99_ms=None),
        Lateness(from_ms=NOW_MS, timers=2, p50_ms=80, p99_ms=80),
    ]
    chart = lateness_chart(slots, NOW_MS + 9_999)
    assert (chart.most_ms, chart.lines) == (80, (12.0, 84.0))
    assert chart.labels[0] == (0.0, NOW_MS - 290_000)
    assert [(column.left, column.bars) for column in chart.columns] == [
        (46.67, [("p99", 48.0, 36.0), ("p50", 75.0, 9.0)]),
        (96.67, [("p99", 12.0, 72.0), ("p50", 12.0, 72.0)]),
    ]


def test_timers_that_are_not_late_have_no_bar_and_no_division_by_zero() -> None:
    chart = lateness_chart([Lateness(from_ms=NOW_MS, timers=1, p50_ms=0, p99_ms=0)], NOW_MS)
    assert [bar[2] for bar in chart.columns[0].bars] == [0, 0]
    assert lateness_chart([], NOW_MS).columns == []
