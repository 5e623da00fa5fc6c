"""charts/timer-bridge/dashboards: each panel follows the variables, and the JSON is what Grafana imports.

Checked by structure, as neither Debian nor npm has a Grafana to load them into. Prometheus answers their queries in
integration_tests/bridge/test_prometheus.py.
"""

import json
import re
from typing import Any

import pytest

from integration_tests.support.prometheus import BOARDS

EACH = pytest.mark.parametrize("board", [json.loads(file.read_text()) for file in BOARDS], ids=lambda each: each["uid"])
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHAIN = ["cluster", "namespace", "job"]
COLUMNS = 24


def variables_of(board: dict[str, Any]) -> list[dict[str, Any]]:
    return list(board["templating"]["list"])


def labels_of(expression: str) -> list[dict[str, str]]:
    """Return the matchers of each metric in the expression; none if it has no braces."""
    found = re.findall(r"\b(?:timer_(?:audit|bridge|canary)|process)_\w+(\{[^}]*\})?|(\{__name__[^}]*\})", expression)
    return [dict(re.findall(r'(\w+)=~"(\$\w+)"', metric or selector)) for metric, selector in found]


def test_there_are_three() -> None:
    assert [file.stem for file in BOARDS] == ["audit", "store", "traffic"]


@EACH
def test_a_user_chooses_data_source_cluster_namespace_and_job(board: dict[str, Any]) -> None:
    source, *others = variables_of(board)
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert [each["name"] for each in others] == CHAIN + ["timer_topic"] * ("audit" in board["uid"])
    for number, each in enumerate(others):
        assert each["datasource"] == DATASOURCE
        assert each["multi"] is each["includeAll"] is True
        assert each["allValue"] == ".*", "a Prometheus that sets no cluster or namespace shows everything"
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]).groups()  # type: ignore[union-attr]
        assert label == each["name"]
        former = [variable["name"] for variable in others[:number]]
        (matchers,) = labels_of(re.sub(r'(__name__=~)"[^"]*"', r'\1""', selector))
        assert matchers == {name: f"${name}" for name in former}, "what was chosen before narrows it"


@EACH
def test_every_query_has_every_variable(board: dict[str, Any]) -> None:
    names = [each["name"] for each in variables_of(board)][1:]
    for panel in board["panels"]:
        assert panel["datasource"] == DATASOURCE, panel["title"]
        for target in panel["targets"]:
            assert "datasource" not in target
            metrics = labels_of(target["expr"])
            assert metrics, target["expr"]
            for matchers in metrics:
                assert matchers == {name: f"${name}" for name in names}, target["expr"]


@EACH
def test_the_json_is_that_of_a_dashboard(board: dict[str, Any]) -> None:
    assert board["schemaVersion"] >= 39
    assert re.fullmatch(r"[\w-]{1,40}", board["uid"])
    assert board.keys() >= {"title", "tags", "time", "timezone", "refresh", "templating", "links", "panels"}
    assert "id" not in board, "a number of one Grafana's database"
    assert all(link["includeVars"] and link["keepTime"] for link in board["links"])
    panels = board["panels"]
    assert [panel["id"] for panel in panels] == [*range(1, len(panels) + 1)]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < COLUMNS
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
        assert panel["type"] in {"stat", "timeseries", "heatmap", "table"}
        assert panel["title"]
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references)) != []
