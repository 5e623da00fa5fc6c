"""docs/metrics.md, written from the help texts of the metrics: `make docs`."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from bridge.observe.metrics import Metrics
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.observe.status import Status

_OPENING = """\
# Metrics

`timer-bridge run --http-port 8321` answers `/metrics` for Prometheus (text format or OpenMetrics). `make docs` writes
this page from the help texts. Counters count committed work: a transaction that is retried counts once. While the
bridge waits for a broker (`timer_bridge_silence_seconds`), metrics of the stores keep their last values. With
[workers](instances.md#workers) each has the label `worker`, and "this instance" means that worker.

Alert rules and dashboards: [compose/](../compose). What to do: [operations.md](operations.md). `timer_canary_*`: of
[the canary](operations.md#canary). `process_*` (memory:
`process_resident_memory_bytes`, CPU, open files, start) are those of every Prometheus client."""
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
    yield _OPENING
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
