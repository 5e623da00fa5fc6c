"""docs/metrics.md, written from bridge.observe.metric_definitions: `make docs`."""

from collections.abc import Iterator

from bridge.observe.metric_definitions import CHAPTERS, Metric

_OPENING = """\
# Metrics

`timer-bridge run --http-port 8321` answers `/metrics` for Prometheus (text format or OpenMetrics). This page is written
from the code by `make docs`. What is counted stands in Kafka: a transaction that is aborted and repeated counts once.
Names of topics that senders choose are labels for the first 100 of a process, the rest is `other`. Numbers of the store
are those of the last answer where the bridge waits for a broker (`timer_bridge_silence_seconds`).

Alert rules and dashboards: [compose/](../compose). What to do: [operations.md](operations.md). `process_*` (memory:
`process_resident_memory_bytes`, CPU, open files, start) are those of every Prometheus client.
"""


def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _OPENING
    for chapter in CHAPTERS:
        yield f"## {chapter.title}\n"
        yield "| metric | type, unit | labels | what it tells | what to do |"
        yield "|---|---|---|---|---|"
        yield from map(_row, chapter.metrics)
        yield ""


def _row(metric: Metric) -> str:
    kind = f"{metric.kind}, {metric.unit.replace('_', ' ')}" if metric.unit else metric.kind
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.full_name}` | {kind} | {labels} | {metric.tells} | {metric.do} |"


if __name__ == "__main__":
    print(page(), end="")
