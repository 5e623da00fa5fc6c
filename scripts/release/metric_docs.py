"""docs/metrics.md, written from the help texts of the metrics: `make docs`."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from bridge.observe.metrics import Metrics
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.observe.status import Status

_OPENING = Path(__file__).with_name("metrics_opening.md")
_CHAPTERS = {
    "requests": "Work done",
    "rebalances": "Rebalances, recoveries and pauses",
    "topic_partitions": "Topics",
    "pending_timers": "Stores",
    "last_transaction_timestamp_seconds": "State",
}
"""First metric of each chapter, and its title."""
_UNITS = ("timestamp_seconds", "seconds", "bytes")


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _OPENING.read_text().rstrip()
    for metric in Exposition(Metrics(), Status(), AlertLimits("", 0, 0)).collect():
        if title := _CHAPTERS.get(metric.name.removeprefix("timer_bridge_")):
            yield f"\n## {title}\n"
            yield "| metric | type, unit | meaning, and what to do |"
            yield "|---|---|---|"
        yield _row(metric)


def _row(metric: Metric) -> str:
    unit = next((unit.replace("_", " ") for unit in _UNITS if metric.name.endswith(unit)), "")
    kind = f"{metric.type}, {unit}" if unit else metric.type
    name = metric.name + ("_total" if metric.type == "counter" else "")
    return f"| `{name}` | {kind} | {metric.documentation} |"


if __name__ == "__main__":
    print(page(), end="")
