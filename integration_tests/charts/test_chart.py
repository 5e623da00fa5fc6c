"""charts/timer-bridge: its objects are valid, the bridge takes its settings, and what it repeats is the same there."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from bridge.child_process import kill_with_parent
from bridge.cli.canary_command import commands as canary_commands
from bridge.config.settings import Settings, load
from bridge.dev.embedded_kafka import HOST, free_port
from integration_tests.conftest import ROOT
from integration_tests.support.bridge_command import get
from integration_tests.support.helm import CHART, HelmError, lint, notes, render
from integration_tests.support.patience import PATIENCE_S, until
from integration_tests.support.prometheus import BOARDS, RULES
from scripts.release import reference_docs
from spark_jobs.audit_run.arguments import parse as parse_audit

pytestmark = pytest.mark.thorough

SIZING = ROOT / "docs" / "operations.md"
DIGEST = "sha256:" + "0" * 64
LEAST = {
    "image": f"registry.example/timer-bridge@{DIGEST}",
    "bootstrapServers": "kafka-0:9092,kafka-1:9092",
    "auth": {"secret": "tokens"},
}
ALL: dict[str, Any] = LEAST | {
    "kafkaSecret": "login",
    "storage": {"className": "fast"},
    "settings": "page = true",
    "pod": {"nodeSelector": {"disk": "ssd"}},
    "monitoring": {
        "serviceMonitor": True,
        "prometheusRule": True,
        "labels": {"release": "prometheus"},
        "dashboards": True,
    },
    "serviceAccount": {"create": True, "annotations": {"cloud.example/role": "timers"}},
    "service": {"type": "LoadBalancer"},
    "ingress": {
        "enabled": True,
        "host": "timers.example",
        "tls": [{"secretName": "cert", "hosts": ["timers.example"]}],
    },
    "audit": {"enabled": True, "image": f"registry.example/timer-bridge-audit@{DIGEST}"},
}
WITHOUT = LEAST | {"auth": {"enabled": False}, "networkPolicy": {"enabled": False}, "workers": 3}
OF_THE_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
KINDS = {"ConfigMap", "NetworkPolicy", "Pod/test", "PodDisruptionBudget", "Service", "StatefulSet"}
ADDED = OF_THE_OPERATOR | {"ConfigMap/dashboards", "ServiceAccount", "Service/page", "Ingress/page"}
ADDED |= {"CronJob/audit", "PersistentVolumeClaim/audit"}
EACH = pytest.mark.parametrize("values", [LEAST, ALL, WITHOUT], ids=["least", "all", "without"])


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """Return the objects of ALL with the chart's own settings, which is without the Ingress."""
    return render({name: value for name, value in ALL.items() if name not in ("settings", "ingress")})


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return render(ALL)


def specs_of(objects: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pods' specs of bridge, test and audit, by the object that has them."""
    found = {"StatefulSet": objects["StatefulSet"]["spec"]["template"], "Pod/test": objects["Pod/test"]}
    if "CronJob/audit" in objects:
        found["CronJob/audit"] = objects["CronJob/audit"]["spec"]["jobTemplate"]["spec"]["template"]
    return {name: each["spec"] | {"metadata": each["metadata"]} for name, each in found.items()}


def container_of(objects: dict[str, Any], owner: str = "StatefulSet") -> dict[str, Any]:
    (container,) = specs_of(objects)[owner]["containers"]
    return dict(container)


def environment_of(objects: dict[str, Any], pod_name: str = "timers-0", owner: str = "StatefulSet") -> dict[str, str]:
    """Return the variables of a pod's container."""
    found = {}
    for variable in container_of(objects, owner)["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        assert field in (None, "metadata.name")
        found[variable["name"]] = pod_name if field else variable["value"]
    return found


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
    added = ADDED if values is ALL else set()
    assert found.keys() == (KINDS | added) - ({"NetworkPolicy"} if values is WITHOUT else set())
    oldest = re.sub("[>=]|-0", "", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    for kind in found.keys() - OF_THE_OPERATOR:
        for version in (oldest, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found[kind], version, strict=True)


def changed(wanted: dict[str, Any], least: dict[str, Any] = LEAST) -> dict[str, Any]:
    """Return the least values with others, whose dotted names lead into tables."""
    found = json.loads(json.dumps(least))
    for name, value in wanted.items():
        *tables, key = name.split(".")
        table = found
        for each in tables:
            table = table.setdefault(each, {})
        table[key] = value
    return dict(found)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"image": "registry.example/timer-bridge"}, "/image"),
        ({"image": "registry.example:5000/timer-bridge"}, "/image"),
        ({"bootstrapServers": ""}, "/bootstrapServers"),
        ({"auth.secret": ""}, "/auth/secret"),
        ({"replica": 3}, "replica"),
        ({"monitoring.serviceMonitors": True}, "serviceMonitors"),
        ({"workers": "auto"}, "/workers"),
        ({"pod": {"nodeSelectr": {"disk": "ssd"}}}, "nodeSelectr"),
        ({"resources": {"request": {"cpu": 1}}}, "request"),
        ({"resources.requests": {"cpus": 1}}, "cpus"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "app.kubernetes.io/name"),
        ({"podAnnotations": {"checksum/settings": "mine"}}, "checksum/settings"),
        ({"extraEnv": [{"value": "of what"}]}, "name"),
        ({"service.type": "ExternalName"}, "/service/type"),
        ({"settings": "partitions = ["}, "settings: not TOML"),
        ({"settings": "standby = true"}, "use the value standby.enabled"),
        ({"settings": "http_port = 80"}, "http_port is set by the chart"),
        ({"ingress.enabled": True}, "/ingress/host"),
        ({"ingress.enabled": True, "ingress.host": "timers.example"}, "put page = true into settings"),
        ({"settings": "page = true", "auth.enabled": False}, "page = true needs tokens"),
        ({"audit.enabled": True}, "/audit/image"),
    ],
    ids=lambda each: ",".join(f"{name}={value}" for name, value in each.items()) if isinstance(each, dict) else "",
)
def test_wrong_values_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmError, match=re.escape(said)):
        render(changed(wrong))


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
        return get(port, live)[0] == 200

    try:
        until(lives, "a bridge that lives without a broker")
        found = [get(port, path)[0] for path in (ready, "/metrics", "/pending?id=7")]
        assert found == [503, 200, 401]
    finally:
        bridge.terminate()
        bridge.wait(PATIENCE_S)
    assert (tmp_path / "data" / "timers").stat().st_mode & 0o777 == 0o700


def test_secrets_are_files_that_the_bridge_may_read(objects: dict[str, Any]) -> None:
    secrets = {each["name"]: each["secret"] for each in specs_of(objects)["StatefulSet"]["volumes"] if "secret" in each}
    assert secrets == {
        "kafka": {"secretName": "login", "defaultMode": 0o440},
        "tokens": {"secretName": "tokens", "defaultMode": 0o440},
    }
    mounts = {each["name"]: each["mountPath"] for each in container_of(objects)["volumeMounts"]}
    named = re.findall(r"/etc/timer-bridge/\w+", (CHART / "values.yaml").read_text())
    named += [str(Path(value).parent) for value in environment_of(objects).values() if value.startswith("/etc")]
    assert set(named) == {mounts[name] for name in secrets}
    assert not any(name.startswith("TIMER_BRIDGE_PAGE") for name in environment_of(render(WITHOUT)))


def test_the_test_and_the_audit_are_no_bridges(objects: dict[str, Any], tmp_path: Path) -> None:
    """They read the bridge's settings, the Service does not select them, and none is a member of its group."""
    selector = objects["Service"]["spec"]["selector"].items()
    specs = specs_of(objects)
    assert [name for name, each in specs.items() if selector <= each["metadata"]["labels"].items()] == ["StatefulSet"]
    bridge, test, audit = (environment_of(objects, owner=name) for name in specs)
    assert test == audit == {name: value for name, value in bridge.items() if "GROUP_INSTANCE_ID" not in name}
    settings_of(render(ALL), tmp_path)
    command, *arguments = container_of(objects, "Pod/test")["args"]
    wanted = [str(tmp_path / "bridge.toml") if each.endswith("bridge.toml") else each for each in arguments]
    context = get_command(canary_commands).make_context(command, wanted)
    assert context.params["once"] is True
    assert objects["Pod/test"]["metadata"]["annotations"]["helm.sh/hook"] == "test"
    command, *arguments = container_of(objects, "CronJob/audit")["args"]
    wanted = [each.replace("/etc/timer-bridge/settings", str(tmp_path)) for each in arguments]
    (options,) = parse_audit(wanted, audit)
    assert (command, str(options.out)) == ("audit", "/audit")
    assert options.access.bootstrap_servers == LEAST["bootstrapServers"]
    mounts = {each["mountPath"] for each in container_of(objects, "CronJob/audit")["volumeMounts"]}
    assert mounts >= {"/audit", "/tmp", "/home/timer-bridge"}, "what Spark writes to, as the root is read-only"


def test_a_pod_has_no_rights(objects: dict[str, Any]) -> None:
    pod = specs_of(objects)["StatefulSet"]
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
    for name, each in specs_of(objects).items():
        assert each["securityContext"] == pod["securityContext"]
        assert container_of(objects, name)["securityContext"] == container_of(objects)["securityContext"]


def test_only_prometheus_and_other_bridges_may_ask(objects: dict[str, Any]) -> None:
    (ingress,) = objects["NetworkPolicy"]["spec"]["ingress"]
    assert ingress["ports"] == [{"port": "http", "protocol": "TCP"}]
    _, *others = ingress["from"]
    assert others == yaml.safe_load((CHART / "values.yaml").read_text())["networkPolicy"]["ingressFrom"]
    none = render(LEAST | {"networkPolicy": {"ingressFrom": []}})["NetworkPolicy"]["spec"]
    assert [len(rule["from"]) for rule in none["ingress"]] == [1], "without a peer, the rule would let everyone in"


def test_the_alerts_are_those_of_compose(objects: dict[str, Any]) -> None:
    rules = yaml.safe_load(RULES.read_text())
    assert objects["PrometheusRule"]["spec"] == rules
    jobs = set(re.findall(r'up\{job="([\w-]+)"\}', RULES.read_text())) - {"timer-canary"}
    monitor, service = objects["ServiceMonitor"]["spec"], objects["Service"]
    assert {service["metadata"]["labels"][monitor["jobLabel"]]} == jobs
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,) = (each["port"] for each in monitor["endpoints"])
    assert [each["name"] for each in service["spec"]["ports"]] == [port]
    assert objects["Service/page"]["spec"]["ports"][0]["name"] != port, "it has the labels too: no pod is scraped twice"
    for kind in OF_THE_OPERATOR:
        assert objects[kind]["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboards_are_the_files(objects: dict[str, Any]) -> None:
    assert objects["ConfigMap/dashboards"]["data"] == {file.name: file.read_text() for file in BOARDS}


OTHER = "registry.example/other:0.2.0"
SPREAD = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
MOUNT = {"name": "jars", "mountPath": "/jars"}
NETWORK = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
DYNAMIC = "static_membership = false"
RULE = {"ports": [{"port": 443, "protocol": "TCP"}]}
NEEDS: dict[str, dict[str, Any]] = {
    "auth.enabled": {"settings": "", "ingress.enabled": False},
    "serviceAccount.name": {"serviceAccount.create": False},
    "standby.cpuPercent": {"standby.enabled": True},
}
"""Other values that have to be given with a value."""
EFFECTS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "image": (OTHER, {"[PS]*.containers.*.image": [OTHER] * 2}),
    "imagePullSecrets": ([{"name": "pull"}], {"*.imagePullSecrets.*.name": ["pull"] * 3}),
    "bootstrapServers": ("a:9094,b:9096,c:9094", {"NetworkPolicy.spec.egress.*.port": [8321, 53, 53, 9094, 9096]}),
    "replicas": (5, {"StatefulSet.spec.replicas": [5]}),
    "workers": (4, {"StatefulSet.*.env.TIMER_BRIDGE_WORKERS.value": ["4"]}),
    "settings": (
        f"page = true\n{DYNAMIC}",
        {"ConfigMap.data.bridge.toml": [f"page = true\n{DYNAMIC}\n"], "StatefulSet.*.env.*_INSTANCE_ID.name": []},
    ),
    "standby.enabled": (True, {"StatefulSet.*.env.TIMER_BRIDGE_STANDBY.value": ["true"]}),
    "standby.cpuPercent": (50, {"StatefulSet.*.env.TIMER_BRIDGE_STANDBY_CPU_PERCENT.value": ["50"]}),
    "kafkaSecret": ("", {"*.volumes.kafka.secret.secretName": []}),
    "auth.enabled": (False, {"StatefulSet.*.env.TIMER_BRIDGE_PAGE_SECRET.value": []}),
    "auth.secret": ("mine", {"*.volumes.tokens.secret.secretName": ["mine"]}),
    "resources": (
        {"limits": {"memory": "2Gi"}},
        {
            "StatefulSet.spec.template.*.resources.limits.*": ["2Gi"],
            "StatefulSet.spec.template.*.resources.requests.*": ["1", "512Mi"],
        },
    ),
    "storage.size": ("1Ti", {"StatefulSet.spec.volumeClaimTemplates.*.storage": ["1Ti"]}),
    "storage.className": ("slow", {"StatefulSet.*.storageClassName": ["slow"]}),
    "extraEnv": ([{"name": "A", "value": "b"}], {"*.env.A.value": ["b"] * 3}),
    "extraVolumes": ([{"name": "jars", "emptyDir": {}}], {"*.volumes.jars.name": ["jars"] * 3}),
    "extraVolumeMounts": ([MOUNT], {"*.volumeMounts.jars.mountPath": ["/jars"] * 3}),
    "podAnnotations": ({"mesh.example/inject": "true"}, {"*.annotations.mesh.example/inject": ["true"] * 3}),
    "podLabels": ({"team": "a"}, {"*.labels.team": ["a"] * 3}),
    "pod": ({"nodeSelector": {"disk": "hdd"}}, {"*.nodeSelector.disk": ["hdd"] * 3}),
    "topologySpreadConstraints": ([SPREAD], {"*.topologySpreadConstraints.*.topologyKey": [SPREAD["topologyKey"]]}),
    "serviceAccount.create": (False, {"*.serviceAccountName": [], "ServiceAccount.kind": []}),
    "serviceAccount.name": ("mine", {"*.serviceAccountName": ["mine"] * 3, "ServiceAccount.kind": []}),
    "serviceAccount.annotations": ({"a.example/b": "other"}, {"ServiceAccount.metadata.annotations.*": ["other"]}),
    "service.type": ("NodePort", {"Service*.spec.type": ["NodePort"]}),
    "service.annotations": ({"lb.example/in": "true"}, {"Service/page.metadata.annotations.*": ["true"]}),
    "ingress.enabled": (False, {"Ingress/page.kind": []}),
    "ingress.className": ("nginx", {"Ingress/page.spec.ingressClassName": ["nginx"]}),
    "ingress.host": (
        "b.example",
        {
            "Ingress/page.spec.rules.*.host": ["b.example"],
            "StatefulSet.*.env.TIMER_BRIDGE_HTTP_HOSTS.value": ["b.example"],
        },
    ),
    "ingress.annotations": ({"nginx.example/a": "b"}, {"Ingress/page.metadata.annotations.*": ["b"]}),
    "ingress.tls": ([{"secretName": "other"}], {"Ingress/page.spec.tls.*.secretName": ["other"]}),
    "networkPolicy.enabled": (False, {"NetworkPolicy.kind": []}),
    "networkPolicy.ingressFrom": ([NETWORK], {"NetworkPolicy.*.namespaceSelector.*": ["ingress"]}),
    "networkPolicy.egress": ([RULE], {"NetworkPolicy.spec.egress.*.port": [8321, 443]}),
    "monitoring.serviceMonitor": (False, {"ServiceMonitor.kind": []}),
    "monitoring.prometheusRule": (False, {"PrometheusRule.kind": []}),
    "monitoring.labels": ({"release": "other"}, {"*.labels.release": ["other"] * 2}),
    "monitoring.dashboards": (False, {"ConfigMap/dashboards.*.grafana_dashboard": []}),
    "monitoring.dashboardLabels": ({"boards": "yes"}, {"ConfigMap/dashboards.*.labels.boards": ["yes"]}),
    "audit.enabled": (False, {"*/audit.kind": []}),
    "audit.image": (OTHER, {"CronJob/audit.*.image": [OTHER]}),
    "audit.schedule": ("0 3 * * *", {"CronJob/audit.spec.schedule": ["0 3 * * *"]}),
    "audit.arguments": (["--jars", "/jars"], {"CronJob/audit.*.args.[456789]": ["--jars", "/jars"]}),
    "audit.resources": ({"limits": {"memory": "8Gi"}}, {"CronJob/audit.*.limits.memory": ["8Gi"]}),
    "audit.storage.size": ("1Ti", {"PersistentVolumeClaim/audit.*.storage": ["1Ti"]}),
    "audit.storage.className": ("fast", {"PersistentVolumeClaim/audit.*.storageClassName": ["fast"]}),
}
"""By documented value: another value than in ALL, and the fields of objects that it then leads to."""


def fields(each: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Return place and content of each field; an item of a list is at its name, or else at its number."""
    if isinstance(each, dict):
        for name, value in each.items():
            yield from fields(value, f"{place}.{name}" if place else name)
    elif isinstance(each, list):
        for number, value in enumerate(each):
            yield from fields(value, f"{place}.{value.get('name', number) if isinstance(value, dict) else number}")
    else:
        yield place, each


def found_at(pattern: str, objects: dict[str, Any]) -> list[Any]:
    return [value for place, value in fields(objects) if fnmatchcase(place, pattern)]


def test_every_documented_value_is_rendered_below() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    documented = {each.name: each.description for each in reference_docs.values()}
    assert documented.keys() == EFFECTS.keys()
    assert {name.split(".")[0] for name in documented} == schema["properties"].keys()
    assert (
        set(re.findall(r"\w+(?=[,.])", documented["pod"].split(":")[1]))
        == schema["properties"]["pod"]["properties"].keys()
    )


@pytest.mark.parametrize("name", EFFECTS)
def test_a_value_changes_what_it_says(everything: dict[str, Any], name: str) -> None:
    value, wanted = EFFECTS[name]
    objects = render(changed({name: value} | NEEDS.get(name, {}), ALL))
    assert {pattern: found_at(pattern, objects) for pattern in wanted} == wanted
    assert {pattern: found_at(pattern, everything) for pattern in wanted} != wanted


def test_the_readme_is_made_from_the_values() -> None:
    assert (CHART / "README.md").read_text() == reference_docs.page("charts/timer-bridge/README.md"), "run `make docs`"


def test_http_hosts_of_the_settings_win() -> None:
    found = render(ALL | {"settings": 'page = true\nhttp_hosts = ["*.example"]'})
    assert "TIMER_BRIDGE_HTTP_HOSTS" not in environment_of(found)


def test_standbys_are_dynamic_members(tmp_path: Path) -> None:
    found = settings_of(render(changed({"standby.enabled": True})), tmp_path)
    assert (found.standby, found.standby_cpu_percent) == (True, 25)
    assert "group.instance.id" not in found.connection("id-of-the-directory").kafka


def test_the_notes_say_what_is_next_and_warn() -> None:
    assert "helm test timers --namespace timers" in notes(LEAST)
    assert "digest" not in notes(LEAST)
    by_tag = notes(changed({"image": "registry.example/timer-bridge:0.2.0", "auth.enabled": False}))
    assert "WARNING: image registry.example/timer-bridge:0.2.0 is a tag" in by_tag
    assert "WARNING: auth.enabled is false" in by_tag
    assert "https://timers.example/" in notes(ALL)
    assert "port-forward pod/timers-0 8321" in notes(changed({"settings": "page = true"}))


def test_presets_are_the_sizes_of_the_docs() -> None:
    """values.yaml itself is the medium one."""
    rows = re.findall(r"^\| \w+ \| .* \| (\d) \| .* \| `(values.*\.yaml)` \|$", SIZING.read_text(), re.MULTILINE)
    sizes = {file: int(bridges) for bridges, file in rows}
    assert sizes.keys() == {file.name for file in CHART.glob("values*.yaml")}
    for file, bridges in sizes.items():
        found = render(LEAST | (yaml.safe_load((CHART / file).read_text()) if file != "values.yaml" else {}))
        assert found["StatefulSet"]["spec"]["replicas"] == bridges + 1, "one to spare"


def test_other_settings_start_the_pods_again() -> None:
    def template(settings: str) -> Any:
        return render(LEAST | {"settings": settings})["StatefulSet"]["spec"]["template"]

    assert template('receipts = "all"') == template('receipts = "all"') != template('receipts = "none"')


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
