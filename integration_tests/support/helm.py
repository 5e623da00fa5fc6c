"""Helm's engine from a wheel: renders and lints charts/timer-bridge without a cluster and without an installed helm.

Each call is a process of its own, as the engine's threads would stay in the process of the tests.
"""

import json
import subprocess
import sys
from typing import Any

import yaml

from integration_tests.conftest import ROOT
from integration_tests.support.patience import PATIENCE_S

CHART = ROOT / "charts" / "timer-bridge"
WARNING = 2
"""Severity of a finding of `helm lint` from which on `--strict` fails."""
_PROGRAM = """
import json, sys, helm_python
asked = json.load(sys.stdin)
if asked["lint"]:
    found = helm_python.lint(asked["chart"], asked["values"], strict=True)
else:
    with helm_python.Chart.load(asked["chart"]) as chart:
        found = chart.render(asked["values"], name="timers", namespace="timers")
json.dump(found, sys.stdout)
"""


class HelmError(Exception):
    """Helm refuses the chart or its values. The message is helm's."""


def lint(values: dict[str, Any]) -> list[str]:
    """Return the findings at which `helm lint --strict` fails."""
    found = _helm(values, lint=True)
    return [*found["errors"], *(each["error"] for each in found["messages"] if each["severity"] >= WARNING)]


def render(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the objects as `helm template timers`: by kind, and those named timers-audit as `CronJob/audit`.

    Raises HelmError, also if a key occurs twice, which YAML forbids and most parsers accept.
    """
    texts = [text for file, text in _helm(values, lint=False).items() if file.endswith(".yaml")]
    documents = [each for text in texts for each in yaml.load_all(text, _UniqueKeys) if each]
    names = [each["kind"] + each["metadata"]["name"].removeprefix("timers").replace("-", "/", 1) for each in documents]
    found = dict(zip(names, documents, strict=True))
    assert len(found) == len(documents), "one object of each kind and name"
    return found


def notes(values: dict[str, Any]) -> str:
    """Return what helm prints after an install."""
    (text,) = (text for file, text in _helm(values, lint=False).items() if file.endswith("NOTES.txt"))
    return str(text)


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:  # noqa: FBT001
        keys = [key.value for key, _ in node.value]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise HelmError(f"{node.start_mark}: {', '.join(twice)} occurs twice")
        return dict(super().construct_mapping(node, deep))


def _helm(values: dict[str, Any], *, lint: bool) -> Any:
    asked = {"lint": lint, "chart": str(CHART), "values": values}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return json.loads(done.stdout)
