"""charts/timer-bridge/README.md, written from the comments of values.yaml: `make docs`."""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import yaml

CHART = Path(__file__).parents[2] / "charts" / "timer-bridge"
_OPENING = """\
# Helm chart of the timer bridge

Install, upgrade, scale: docs/kubernetes.md. It needs Helm 3.17 or later and Kubernetes 1.27 or later.

    helm upgrade --install timers charts/timer-bridge --namespace timers --values values.yaml
    helm test timers --namespace timers

`make docs` writes this page from the comments of values.yaml.

| value | default | |
|---|---|---|"""


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


def page() -> str:
    return "\n".join([_OPENING, *(f"| `{name}` | {default} | {text} |" for name, default, text in values())]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
