"""The report of a bench."""

from collections.abc import Mapping

from scripts.bench.page import page
from scripts.bench.topic_fixture import OTHER

TRY: Mapping[str, float] = {
    f"{side}{name}": value
    for side, value in (("", 3.0), (OTHER, 2.0))
    for name in ("burst.drain_per_s", "rocketmq.burst.drain_per_s", "idle.cpu_percent", "burst.account.requested")
}


def report(*, quick: bool) -> list[str]:
    settings = {"messages": "20", "body_bytes": "256", "partitions": "4", "tries": "1", "quick": str(quick)}
    results = {"rounds": [TRY], "settings": settings, "machine": "m", "versions": "v", "failed": {}}
    return page(results).split("## Scenarios")[0].splitlines()


def test_a_whole_run_shows_ratios_and_missed_goals() -> None:
    lines = report(quick=False)
    assert "| figure | median | unit | goal | the other bridge | this to the other |" in lines
    assert "| `drain_to_rocketmq` | 1 |  | >= 1.2 **missed** | 1 | 1 |" in lines
    assert "| `drain_per_s` | 3 | msg/s |  | 2 | 1.50 |" in lines


def test_a_quick_run_shows_no_ratio_and_no_goal() -> None:
    lines = report(quick=True)
    assert "| figure | median | unit | the other bridge |" in lines
    assert "| `drain_per_s` | 3 | msg/s | 2 |" in lines
    assert not any("_to_" in line for line in lines)
