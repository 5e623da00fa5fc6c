"""The bridge's metrics in Prometheus: its linter, rules, dashboards, and a server that scrapes two bridges."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bridge.cli.canary_command import Canary
from bridge.dev.embedded_kafka import HOST, free_port
from integration_tests.conftest import ROOT, Broker
from integration_tests.support.bridge_command import Names, get
from integration_tests.support.patience import PATIENCE_S, until
from integration_tests.support.prometheus import BOARDS, RULES, Prometheus, promtool
from kafka_timer import TimerOperator
from schemas.tables import AuditClass
from scripts.common.processes import BridgeProcess
from spark_jobs.audit_run.arguments import parse
from spark_jobs.report.metrics import AuditMetrics
from spark_jobs.report.summary import AuditVerdict, LatenessSummary

TIMERS = 20
LATE_HERE = {"TimerBridgeSomeLate", "TimerBridgeLate"}
"""Alerts that a busy machine may raise here."""


class Seen(NamedTuple):
    """Two bridges that share one partition, so that one is a spare, and the Prometheus that asks them."""

    prometheus: Prometheus
    names: Names
    texts: dict[str, str]
    """Last metrics of each bridge, by its address."""
    spare: str

    @property
    def families(self) -> set[str]:
        """Names of samples as rules and dashboards write them."""
        found = {"up"}
        for family in text_string_to_metric_families("".join(self.texts.values())):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            found |= {family.name + suffix for suffix in suffixes}
        return found


@pytest.fixture(scope="module")
def seen(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    names, folder = Names(), tmp_path_factory.mktemp("prometheus")
    arguments = [*names.arguments, "--partitions", "1"]
    ports = [free_port(), free_port()]
    names.create_target(kafka)
    bridges = [
        BridgeProcess(folder / str(port), kafka.bootstrap_servers, [*arguments, "--http-port", str(port)])
        for port in ports
    ]
    try:
        bridges[0].launch()
        bridges[0].await_ready()
        bridges[1].launch()
        with Prometheus(folder, [f"{HOST}:{port}" for port in ports]) as prometheus:
            until(lambda: all(get(port, "/health/ready")[0] == 200 for port in ports), "two bridges that are ready")
            send(kafka, names)
            until(lambda: prometheus.query("sum(timer_bridge_clock_skew_seconds)"), "a look at the clocks")
            until(lambda: prometheus.query("sum(timer_bridge_parked_total) > 0"), "a timer that is parked")
            for told in (
                f"sum(timer_bridge_deliveries_total) == {TIMERS}",
                f"sum(timer_bridge_requests_total) == {2 * TIMERS + 2}",
                f'sum(timer_bridge_pending_timers{{target="{names.target}"}}) == {TIMERS}',
                'sum(timer_bridge_waiting_timers{reason="paused"}) == 1',
                "sum(timer_bridge_lag_offsets) <= 2",  # looked at each 15 s, perhaps before the requests were read
            ):
                until(lambda told=told: prometheus.query(told), told)  # type: ignore[misc]
            texts = {f"{HOST}:{port}": get(port, "/metrics")[1] for port in ports}
            prometheus.hold(len(ports))
            (spare,) = (f"{HOST}:{port}" for port in ports if get(port, "/health/ready")[1]["shards"] == {})
            yield Seen(prometheus, names, texts, spare)
        for bridge in bridges:
            bridge.stop()
    finally:
        for bridge in bridges:
            bridge.kill()


def send(kafka: Broker, names: Names) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    with TimerOperator(config, timer_topic=names.timers, control_topic=names.control) as timers:
        for each in timers.pause(f"{names.target}-paused"):
            each.result(PATIENCE_S)
        for number in range(TIMERS):
            timers.schedule(names.target, b"v", delay="50ms")
            timers.schedule(names.target, b"v", delay="3h", id=f"id-{number}")
        timers.schedule(f"{names.target}-nowhere", b"v", delay="50ms")
        timers.schedule(f"{names.target}-paused", b"v", delay="50ms")


def named_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:timer_bridge|process)_\w+", expression))


def expressions(board: Path) -> list[tuple[str, str]]:
    """Title and expression of each panel and variable, with Grafana's variables as it fills them in."""
    told: dict[str, Any] = json.loads(board.read_text())
    queries = [(panel["title"], target["expr"]) for panel in told["panels"] for target in panel["targets"]]
    queries += [
        (each["name"], re.sub(r"label_values\((.+), \w+\)", r"\1", each["query"]))
        for each in told["templating"]["list"]
        if each["type"] == "query"
    ]
    filled = {"$__rate_interval": "1m"} | {f"${name}": ".*" for name in ("cluster", "namespace", "job", "timer_topic")}
    return [
        (title, re.sub("|".join(map(re.escape, filled)), lambda at: filled[at[0]], expr)) for title, expr in queries
    ]


def test_the_rules_are_well_made() -> None:
    rules = RULES.read_text().count("- alert: ")
    assert f"{rules} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


@pytest.mark.thorough
def test_each_rule_wakes_somebody_when_it_should_and_nobody_else() -> None:
    history = RULES.with_name("alerts.test.yaml")
    assert "SUCCESS" in promtool("test", "rules", str(history))
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert alerts == set(re.findall(r"Timer(?:Bridge|Audit|Canary)\w+", history.read_text()))


BASE = "{{ $externalLabels.runbook_base }}"


def test_each_alert_has_a_row_which_links_to_its_section_if_there_is_one() -> None:
    rules, operations = RULES.read_text(), (ROOT / "docs" / "operations.md").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    urls = re.findall(r'runbook_url: "(.+)"', rules)
    assert urls == [f"{BASE}/operations.md#alert-{alert.lower()}" for alert in alerts]
    assert len(re.findall(r"^          do: ", rules, re.MULTILINE)) == len(alerts)
    rows = re.findall(r'^\| <a id="alert-(\w+)"></a>(.+?)(?: \| [^|]+){3} \|$', operations, re.MULTILINE)
    sections = re.findall(r"^### (\w+)$", operations, re.MULTILINE)
    names = {alert: f"[{alert}](#{alert.lower()})" if alert in sections else alert for alert in alerts}
    assert dict(rows) == {a.lower(): name for a, name in names.items()}
    assert set(sections) <= set(alerts)


def test_metrics_of_the_audit_in_rules_and_dashboards_exist_and_the_linter_finds_nothing_to_say(tmp_path: Path) -> None:
    file, given = tmp_path / "audit.prom", ["--bootstrap-servers", "b:1", "--out", str(tmp_path)]
    metrics = AuditMetrics(*parse([*given, "--metrics-file", str(file)], {}))
    every = {name.value: 0 for name in AuditClass}
    metrics.audited(AuditVerdict(tmp_path, 1, every, LatenessSummary(0, 0, 0, 0), (), 0, 0, ()), 1)
    assert promtool("check", "metrics", told=file.read_text()) == ""
    told = {family.name for family in text_string_to_metric_families(file.read_text())}
    texts = [RULES.read_text(), *(board.read_text() for board in BOARDS)]
    assert {name for text in texts for name in re.findall(r"\btimer_audit_\w+", text)} == told


def test_metrics_of_the_canary_in_rules_and_dashboards_exist_and_the_linter_finds_nothing_to_say() -> None:
    text = generate_latest(Canary(None, "timer-canary", 0, 0).registry).decode()  # type: ignore[arg-type]
    assert promtool("check", "metrics", told=text) == ""
    texts = [RULES.read_text(), *(board.read_text() for board in BOARDS)]
    named = {name for each in texts for name in re.findall(r"\btimer_canary_\w+", each)}
    assert named
    assert named <= {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
EACH_BOARD = pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.stem)


def labels_of(expression: str) -> list[dict[str, str]]:
    """Return the matchers of each metric in the expression; none if it has no braces."""
    found = re.findall(r"\b(?:timer_(?:audit|bridge|canary)|process)_\w+(\{[^}]*\})?|(\{__name__[^}]*\})", expression)
    return [dict(re.findall(r'(\w+)=~"(\$\w+)"', metric or selector)) for metric, selector in found]


@EACH_BOARD
def test_a_user_chooses_data_source_cluster_namespace_and_job(file: Path) -> None:
    board = json.loads(file.read_text())
    source, *others = board["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    chain = ["cluster", "namespace", "job"] + ["timer_topic"] * ("audit" in board["uid"])
    assert [each["name"] for each in others] == chain
    for number, each in enumerate(others):
        assert each["datasource"] == DATASOURCE
        assert each["multi"] is each["includeAll"] is True
        assert each["allValue"] == ".*", "a Prometheus that sets no cluster or namespace shows everything"
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]).groups()  # type: ignore[union-attr]
        assert label == each["name"]
        (matchers,) = labels_of(re.sub(r'(__name__=~)"[^"]*"', r'\1""', selector))
        assert matchers == {name: f"${name}" for name in chain[:number]}, "what was chosen before narrows it"
    for panel in board["panels"]:
        assert panel["datasource"] == DATASOURCE, panel["title"]
        for target in panel["targets"]:
            assert "datasource" not in target
            metrics = labels_of(target["expr"])
            assert metrics, target["expr"]
            assert all(matchers == {name: f"${name}" for name in chain} for matchers in metrics), target["expr"]


@pytest.mark.broker
def test_what_real_bridges_tell(seen: Seen) -> None:
    """Beside the figures that `seen` waits for."""
    for text in seen.texts.values():
        assert promtool("check", "metrics", told=text) == ""
    target, told = f'target="{seen.names.target}"', seen.prometheus.query
    assert told(f"sum(timer_bridge_deliveries_total{{{target}}})") == [({}, TIMERS)]
    assert told('sum(timer_bridge_parked_total{code="unknown-topic"})') == [({}, 1)]
    assert told("max(timer_bridge_paused_targets)") == [({}, 1)]
    assert told("sum(timer_bridge_lateness_seconds_count)") == [({}, TIMERS)]
    assert told("max(abs(timer_bridge_clock_skew_seconds)) < 60") != []
    assert told("min(timer_bridge_retention_seconds) >= max(timer_bridge_needed_retention_seconds)") != []
    assert told("sum(timer_bridge_partition_owned)") == told("max(timer_bridge_topic_partitions)") == [({}, 1)]
    assert told("sum(timer_bridge_ready)") == [({}, 2)]
    ((labels, count),) = told("sum by (instance) (timer_bridge_partitions) == 0")
    assert (labels["instance"], count) == (seen.spare, 0)


@pytest.mark.broker
@EACH_BOARD
def test_prometheus_answers_every_question_of_the_dashboards(seen: Seen, file: Path) -> None:
    asked = expressions(file)
    assert asked
    for title, expression in asked:
        assert named_in(expression) <= seen.families, title
        seen.prometheus.query(expression)


@pytest.mark.broker
def test_prometheus_evaluates_every_rule_and_none_wakes_anybody(seen: Seen) -> None:
    def rules() -> list[dict[str, Any]]:
        found = [rule for group in seen.prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else []

    found = until(rules, "an evaluation")
    assert [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"] == []
    for rule in found:
        assert named_in(rule["query"]) <= seen.families, rule["name"]
    firing = {rule["name"] for rule in found if rule["state"] == "firing"}
    assert firing - LATE_HERE <= {"TimerBridgeParked"}
