"""Chart of the lateness of the last minutes: a column for each 10 s, p50 in front of p99.

    Overview.lateness -> lateness_chart() -> overview.html draws it as SVG

Lengths are percent of the picture. Times are epoch ms.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bridge.http.api.responses import Lateness
from bridge.observe.recent_traffic import SLOT_MS, SLOTS

_TOP, _BOTTOM = 12.0, 84.0
_COLUMNS_PER_LABEL = 6


class LatenessColumn(NamedTuple):
    """bars: name, top and height, the one behind first."""

    left: float
    of: Lateness
    bars: list[tuple[str, float, float]]


class LatenessChart(NamedTuple):
    """labels: where each begins, and its time."""

    most_ms: int
    labels: list[tuple[float, int]]
    columns: list[LatenessColumn]
    column_width: float = round(100 / SLOTS, 2)
    lines: tuple[float, float] = (_TOP, _BOTTOM)


def lateness_chart(slots: Sequence[Lateness], at_ms: int) -> LatenessChart:
    """Return the chart up to `at_ms`. slots: those with deliveries; one whose timers all had to wait has no bar."""
    start_ms = (at_ms // SLOT_MS - SLOTS + 1) * SLOT_MS
    most_ms = max((each.p99_ms for each in slots if each.p99_ms is not None), default=0)

    def bar(name: str, late_ms: int) -> tuple[str, float, float]:
        height = round(late_ms * (_BOTTOM - _TOP) / max(1, most_ms), 2)
        return name, round(_BOTTOM - height, 2), height

    def left(slot_ms: int) -> float:
        return round((slot_ms - start_ms) / SLOT_MS * 100 / SLOTS, 2)

    columns = [
        LatenessColumn(left(each.from_ms), each, [bar("p99", each.p99_ms), bar("p50", each.p50_ms)])
        for each in slots
        if each.p50_ms is not None and each.p99_ms is not None
    ]
    times = range(start_ms, start_ms + SLOTS * SLOT_MS, _COLUMNS_PER_LABEL * SLOT_MS)
    return LatenessChart(most_ms, [(left(time_ms), time_ms) for time_ms in times], columns)
