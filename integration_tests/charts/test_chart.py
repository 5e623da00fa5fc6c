"""charts/timer-bridge: its objects are valid, the bridge takes its settings, and what it repeats is the same there."""

import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bridge.child_process import kill_with_parent
from bridge.config.settings import Settings, load
from bridge.dev.embedded_kafka import HOST, free_port
from integration_tests.conftest import ROOT
from integration_tests.support.helm import CHART, HelmError, lint, render
from integration_tests.support.patience import PATIENCE_S, until
from integration_tests.support.prometheus import RULES

pytestmark = pytest.mark.thorough

DIGEST = "sha256:" + "0" * 64
LEAST = {
    "image": f"registry.example/timer-bridge@{DIGEST}",
    "bootstrapServers": "kafka-0:9092,kafka-1:9092",
    "auth": {"secret": "tokens"},
}
ALL = LEAST | {
    "kafkaSecret": "login",
    "storage": {"className": "fast"},
    "pod": {"nodeSelector": {"disk": "ssd"}},
    "monitoring": {"serviceMonitor": True, "prometheusRule": True, "labels": {"release": "prometheus"}},
}
WITHOUT = LEAST | {"auth": {"enabled": False}, "networkPolicy": {"enabled": False}, "workers": 3}
OF_THE_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
KINDS = {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"}
EACH = pytest.mark.parametrize("values", [LEAST, ALL, WITHOUT], ids=["least", "all", "without"])


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return render(ALL)


@pytest.fixture(scope="module")
def pod(objects: dict[str, Any]) -> dict[str, Any]:
    return dict(objects["StatefulSet"]["spec"]["template"]["spec"])


def container_of(objects: dict[str, Any]) -> dict[str, Any]:
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment_of(objects: dict[str, Any], pod_name: str = "timers-0") -> dict[str, str]:
    """Return the variables of a pod's container."""
    found = {}
    for variable in container_of(objects)["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        assert field in (None, "metadata.name")
        found[variable["name"]] = pod_name if field else variable["value"]
    return found


def status_of(port: int, path: str) -> int:
    """Return the status of an answer; 0 if there is none."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


def settings_of(objects: dict[str, Any], folder: Path) -> Settings:
    """Return the settings that a pod's bridge reads from its variables and its file."""
    file = folder / "bridge.toml"
    file.write_text(objects["ConfigMap"]["data"]["bridge.toml"])
    return load({}, environment_of(objects), file)


@EACH
def test_helm_finds_no_fault(values: dict[str, Any]) -> None:
    assert lint(values) == []


@EACH
def test_kubernetes_takes_every_object(values: dict[str, Any]) -> None:
    """By its own schemas, which refuse a key that they do not know.

    Objects of the Prometheus operator were validated by hand against its CRDs (0.93.0), which are large.
    """
    found = render(values)
    added = OF_THE_OPERATOR if values is ALL else set()
    assert found.keys() == (KINDS | added) - ({"NetworkPolicy"} if values is WITHOUT else set())
    oldest = re.sub("[>=]|-0", "", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    for kind in found.keys() - OF_THE_OPERATOR:
        for version in (oldest, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found[kind], version, strict=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"image": "registry.example/timer-bridge:latest"}, "/image"),
        ({"bootstrapServers": ""}, "/bootstrapServers"),
        ({"auth": {}}, "/auth/secret"),
        ({"replica": 3}, "replica"),
        ({"monitoring": {"serviceMonitors": True}}, "serviceMonitors"),
        ({"workers": "auto"}, "/workers"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_wrong_values_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmError, match=re.escape(said)):
        render(LEAST | wrong)


def test_labels_select_the_pods(objects: dict[str, Any]) -> None:
    template = objects["StatefulSet"]["spec"]["template"]
    selector = template["metadata"]["labels"]
    policy = objects["NetworkPolicy"]["spec"]
    (spread,) = template["spec"]["topologySpreadConstraints"]
    for place in (
        objects["StatefulSet"]["spec"]["selector"],
        objects["PodDisruptionBudget"]["spec"]["selector"],
        spread["labelSelector"],
        policy["podSelector"],
        policy["ingress"][0]["from"][0]["podSelector"],
        policy["egress"][0]["to"][0]["podSelector"],
    ):
        assert place == {"matchLabels": selector}
    assert objects["Service"]["spec"]["selector"] == selector
    assert objects["StatefulSet"]["spec"]["serviceName"] == objects["Service"]["metadata"]["name"]


def test_the_bridge_reads_the_settings(objects: dict[str, Any], tmp_path: Path) -> None:
    found = settings_of(objects, tmp_path)
    assert found.bootstrap_servers == LEAST["bootstrapServers"]
    assert (found.partitions, found.replication_factor) == (16, 3), "docs/operations.md, Sizing"
    assert (found.http_host, found.http_port, found.workers) == ("0.0.0.0", 8321, 1)
    assert container_of(objects)["ports"] == [{"name": "http", "containerPort": found.http_port}]
    mounts = {each["name"]: Path(each["mountPath"]) for each in container_of(objects)["volumeMounts"]}
    (claim,) = objects["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert found.data_dir.parent == mounts[claim["metadata"]["name"]], "the volume's root is not the bridge's"


def test_the_member_of_the_group_is_the_ordinal(objects: dict[str, Any], tmp_path: Path) -> None:
    connection = settings_of(objects, tmp_path).connection("id-of-the-directory")
    assert connection.kafka["group.instance.id"] == "timers-0"
    assert environment_of(objects, "timers-1")["TIMER_BRIDGE_KAFKA_GROUP_INSTANCE_ID"] == "timers-1"


def test_workers_are_members_by_their_directories(tmp_path: Path) -> None:
    found = settings_of(render(WITHOUT), tmp_path)
    assert found.workers == 3
    assert found.connection("id-of-the-directory").kafka["group.instance.id"] == "id-of-the-directory"


def test_a_command_of_the_chart_runs_and_asks_for_a_token(objects: dict[str, Any], tmp_path: Path) -> None:
    """A pod's command with its variables, here and without a broker: a restart of the pod would not help."""
    container, port = container_of(objects), free_port()
    for mount in container["volumeMounts"]:
        (tmp_path / mount["mountPath"].strip("/")).mkdir(parents=True)
    etc = tmp_path / "etc" / "timer-bridge"
    (etc / "settings" / "bridge.toml").write_text(objects["ConfigMap"]["data"]["bridge.toml"])
    for name, text in {"operators": f"ada:sha256:{'0' * 64}", "page-secret": "f" * 64}.items():
        (etc / "tokens" / name).write_text(text)
        (etc / "tokens" / name).chmod(0o600)
    given = {name: re.sub("^/(?=etc|data)", f"{tmp_path}/", value) for name, value in environment_of(objects).items()}
    given |= {"TIMER_BRIDGE_HTTP_PORT": str(port), "TIMER_BRIDGE_BOOTSTRAP_SERVERS": f"{HOST}:{free_port()}"}
    words = [re.sub("^/(?=etc)", f"{tmp_path}/", word) for word in container["args"]]
    command = [str(Path(sys.executable).parent / "timer-bridge"), *words]
    live, ready = (container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("liveness", "readiness"))
    with (tmp_path / "log").open("w") as log:
        bridge = subprocess.Popen(kill_with_parent(command), env=os.environ | given, cwd=tmp_path, stderr=log)

    def lives() -> bool:
        assert bridge.poll() is None, (tmp_path / "log").read_text()
        return status_of(port, live) == 200

    try:
        until(lives, "a bridge that lives without a broker")
        found = [status_of(port, path) for path in (ready, "/metrics", "/pending?id=7")]
        assert found == [503, 200, 401]
    finally:
        bridge.terminate()
        bridge.wait(PATIENCE_S)
    assert (tmp_path / "data" / "timers").stat().st_mode & 0o777 == 0o700


def test_secrets_are_files_that_the_bridge_may_read(objects: dict[str, Any], pod: dict[str, Any]) -> None:
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    assert secrets == {
        "kafka": {"secretName": "login", "defaultMode": 0o440},
        "tokens": {"secretName": "tokens", "defaultMode": 0o440},
    }
    mounts = {each["name"]: each["mountPath"] for each in container_of(objects)["volumeMounts"]}
    named = re.findall(r"/etc/timer-bridge/\w+", (CHART / "values.yaml").read_text())
    named += [str(Path(value).parent) for value in environment_of(objects).values() if value.startswith("/etc")]
    assert set(named) == {mounts[name] for name in secrets}
    assert not any(name.startswith("TIMER_BRIDGE_PAGE") for name in environment_of(render(WITHOUT)))


def test_a_pod_has_no_rights(objects: dict[str, Any], pod: dict[str, Any]) -> None:
    (user,) = set(re.findall(r"^USER (\d+):\1$", (ROOT / "compose/bridge/Dockerfile").read_text(), re.MULTILINE))
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": int(user),
        "fsGroup": int(user),
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container_of(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["nodeSelector"] == {"disk": "ssd"}


def test_only_prometheus_and_other_bridges_may_ask(objects: dict[str, Any]) -> None:
    (ingress,) = objects["NetworkPolicy"]["spec"]["ingress"]
    assert ingress["ports"] == [{"port": "http", "protocol": "TCP"}]
    _, *others = ingress["from"]
    assert others == yaml.safe_load((CHART / "values.yaml").read_text())["networkPolicy"]["ingressFrom"]
    none = render(LEAST | {"networkPolicy": {"ingressFrom": [], "egress": []}})["NetworkPolicy"]["spec"]
    assert [len(rule["from"]) for rule in none["ingress"]] == [1], "without a peer, the rule would let everyone in"
    assert [len(rule["to"]) for rule in none["egress"]] == [1]
    ports = [port["port"] for rule in objects["NetworkPolicy"]["spec"]["egress"] for port in rule["ports"]]
    assert ports == [8321, 53, 53, 9092, 9093]


def test_the_alerts_are_those_of_compose(objects: dict[str, Any]) -> None:
    rules = yaml.safe_load(RULES.read_text())
    assert objects["PrometheusRule"]["spec"] == rules
    jobs = set(re.findall(r'up\{job="([\w-]+)"\}', RULES.read_text())) - {"timer-canary"}
    monitor, service = objects["ServiceMonitor"]["spec"], objects["Service"]
    assert {service["metadata"]["labels"][monitor["jobLabel"]]} == jobs
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["endpoints"]] == [each["name"] for each in service["spec"]["ports"]]
    for kind in OF_THE_OPERATOR:
        assert objects[kind]["metadata"]["labels"]["release"] == "prometheus"


def test_other_settings_start_the_pods_again() -> None:
    def template(settings: str) -> Any:
        return render(LEAST | {"settings": settings})["StatefulSet"]["spec"]["template"]

    assert template('receipts = "all"') == template('receipts = "all"') != template('receipts = "none"')


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
