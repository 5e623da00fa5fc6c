"""docs/metrics.md, written from the help texts of the metrics: `make docs`."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from bridge.observe.metrics import Metrics
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.observe.status import Status

_OPENING = """\
# Metrics

`timer-bridge run --http-port 8321` answers `/metrics` for Prometheus (text format or OpenMetrics). `make docs` writes
this page from the help texts. Counters count committed work. While the bridge waits for a broker
(`timer_bridge_silence_seconds`), metrics of the stores keep their last values. With [workers](operations.md#workers)
each has the label `worker`, and "this instance" means that worker.

Alerts and what to do: [Operations](operations.md#at-3-am). `timer_canary_*`: [the canary](operations.md#canary).
`process_*` are those of every Prometheus client."""
_CHAPTERS = {
    "requests": "Work done",
    "rebalances": "Rebalances, recoveries and pauses",
    "topic_partitions": "Topics",
    "pending_timers": "Stores",
    "last_transaction_timestamp_seconds": "State",
}
"""First metric of each chapter, and its title."""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _OPENING
    for metric in Exposition(Metrics(), Status(), AlertLimits("", 0, 0)).collect():
        if title := _CHAPTERS.get(metric.name.removeprefix("timer_bridge_")):
            yield f"\n## {title}\n"
        yield _row(metric)


def _row(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    return f"- `{name}` ({metric.type}): {metric.documentation}"


if __name__ == "__main__":
    print(page(), end="")
