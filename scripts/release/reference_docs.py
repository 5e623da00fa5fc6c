"""Pages that are written from the code: `make docs`.

docs/metrics.md                  help texts of the metrics
docs/settings.md                 fields of `Settings`
charts/timer-bridge/README.md    comments of values.yaml
"""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import yaml

from bridge.cli.shared_options import GROUPS, default_of, kind_of
from bridge.config.settings import Settings
from bridge.observe.metrics import Metrics
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.observe.status import Status

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "timer-bridge"
_METRICS = """\
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
_SETTINGS = """\
# Settings

`timer-bridge run` and `check-config` read all settings, other commands those that they need. A setting is an option, a
variable or a line of `--config bridge.toml`; the first one wins: `--max-delay 30d`, `TIMER_BRIDGE_MAX_DELAY=30d`,
`max_delay = "30d"`. A switch is `--page` or `--no-page`, and `true` or `false` elsewhere. A list is `a,b`, in the file
`["a", "b"]`. A duration has a unit (`500ms`, `5s`, `2h30m`, `2d`). `make docs` writes this page from the code."""
_VALUES = """\
# Helm chart of the timer bridge

Install, upgrade, scale: docs/kubernetes.md. It needs Helm 3.17 or later and Kubernetes 1.27 or later.

    helm upgrade --install timers charts/timer-bridge --namespace timers --values values.yaml
    helm test timers --namespace timers

`make docs` writes this page from the comments of values.yaml.

| value | default | |
|---|---|---|"""


def metrics() -> Iterator[str]:
    yield _METRICS
    for metric in Exposition(Metrics(), Status(), AlertLimits("", 0, 0)).collect():
        if title := _CHAPTERS.get(metric.name.removeprefix("timer_bridge_")):
            yield f"\n## {title}\n"
        name = metric.name + ("_total" if metric.type == "counter" else "")
        yield f"- `{name}` ({metric.type}): {metric.documentation}"


def settings() -> Iterator[str]:
    yield _SETTINGS
    for name, field in Settings.model_fields.items():
        if title := GROUPS.get(name):
            yield f"\n## {title}\n"
        yield f"- `{name}` ({kind_of(name, field)}, `{default_of(field)}`): {field.description}"


def chart() -> Iterator[str]:
    yield _VALUES
    yield from (f"| `{name}` | {default} | {text} |" for name, default, text in values())


class Value(NamedTuple):
    name: str
    default: str
    description: str


def values() -> list[Value]:
    """Return the values that have a comment above them; those without one belong to the value that contains them."""
    text = (CHART / "values.yaml").read_text()
    return list(_values(yaml.compose(text), text.splitlines(), ""))


def _values(node: yaml.MappingNode, lines: list[str], above: str) -> Iterator[Value]:
    for key, value in node.value:
        comments = takewhile(lambda line: line.strip().startswith("#"), reversed(lines[: key.start_mark.line]))
        text = " ".join([line.strip("# ") for line in comments][::-1])
        is_block = isinstance(value, yaml.MappingNode) and not value.flow_style
        within = list(_values(value, lines, f"{above}{key.value}.")) if is_block else []
        if text and not within:
            default = json.dumps(yaml.SafeLoader("").construct_object(value, deep=True))
            yield Value(above + key.value, f"`{default}`" if "\\n" not in default else "values.yaml", text)
        yield from within


PAGES = {"docs/metrics.md": metrics, "docs/settings.md": settings, "charts/timer-bridge/README.md": chart}


def page(name: str) -> str:
    return "\n".join(PAGES[name]()) + "\n"


if __name__ == "__main__":
    for each in PAGES:
        (ROOT / each).write_text(page(each))
