"""compose/: the file is well made, and Kafka with two bridges runs in containers, on official images or ours."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from bridge.child_process import kill_with_parent
from bridge.dev.embedded_kafka import HOST, EmbeddedKafka, free_port
from integration_tests.conftest import IMAGE, ROOT, docker_answers, ensure_image, missing
from integration_tests.support.bridge_command import get
from integration_tests.support.images import build_arguments, run
from integration_tests.support.patience import PATIENCE_S, until
from integration_tests.support.prometheus import promtool
from kafka_timer import TimerProducer
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Receiver

COMPOSE = ROOT / "compose"
FILE = COMPOSE / "compose.yaml"
BRIDGES = ("bridge-1", "bridge-2")


def compose_command() -> list[str]:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose"]
    alone = shutil.which("docker-compose")
    return [alone] if alone else missing("Docker Compose is not installed; on Debian: apt-get install docker-compose")


def test_docker_compose_takes_the_file() -> None:
    run(*compose_command(), "--file", str(FILE), "config", "--quiet")


def images() -> dict[str, str]:
    lines = (COMPOSE / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_prometheus_takes_its_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", str(COMPOSE / "prometheus" / "prometheus.yaml"))


def service_command(name: str, replaced: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return command and variables of a service as Docker Compose reads them, with what differs outside a container."""

    def filled(text: str) -> str:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")
        return re.sub("|".join(map(re.escape, replaced)), lambda found: replaced[found[0]], text)

    service = yaml.safe_load(FILE.read_text())["services"][name]
    command = [filled(word) for word in [*service["entrypoint"], *service["command"]]]
    return command, {variable: filled(value) for variable, value in service["environment"].items()}


@pytest.mark.broker
def test_the_stack_shows_something(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Bridge, demo and canary by their commands, without containers: the page opens by the token, and timers leave."""
    port, canary_port = free_port(), free_port()
    replaced = {
        "kafka:29092": own_kafka.bootstrap_servers,
        "/tmp/tokens": f"{tmp_path}/tokens",
        "9109": str(canary_port),
        "0.0.0.0": HOST,
    }
    of_image = {"TIMER_BRIDGE_DATA_DIR": str(tmp_path / "data"), "TIMER_BRIDGE_HTTP_HOST": HOST}
    of_image |= {"TIMER_BRIDGE_HTTP_PORT": str(port), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (token,) = re.findall(r"token (timer-bridge-\w+)", FILE.read_text())

    def counted(at: int, sample: str) -> bool:
        _, text = get(at, "/metrics")
        return re.search(rf"^{re.escape(sample)} [1-9]", text or "", re.MULTILINE) is not None

    def pending_orders() -> bool:
        status, found = get(port, "/api/v1/timers?topic=orders", token=token)
        return status == 200 and len(found["timers"]) > 0

    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as started:
        for name in ("bridge-1", "demo", "canary"):
            command, environment = service_command(name, replaced)
            log = started.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                kill_with_parent(command), env=os.environ | of_image | environment, stdout=log, stderr=log
            )
            started.callback(process.wait)
            started.callback(process.terminate)
            processes.append(process)
            if name == "bridge-1":
                until(lambda: get(port, "/health/ready")[0] == 200, "a bridge that is ready")
        until(pending_orders, "pending orders in the API")
        assert get(port, "/api/v1/timers", token="not-the-token-of-the-demo")[0] == 401
        until(lambda: counted(port, 'timer_bridge_deliveries_total{target="orders"}'), "an order of the demo")
        until(lambda: counted(canary_port, "timer_canary_received_total"), "a timer of the canary")
        assert "timer_canary_lost_total 0.0" in get(canary_port, "/metrics")[1]
        processes[-1].terminate()
        assert processes[-1].wait(PATIENCE_S) == 0


class Stack:
    """Kafka and two bridges of compose.yaml, under a name and on ports of their own."""

    def __init__(self) -> None:
        self._name = f"timer-bridge-{uuid4().hex[:8]}"
        self.ports = {service: free_port() for service in ("kafka", *BRIDGES)}
        image = f"{self._name}:latest"
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self._name,
            "DOCKER_BUILDKIT": "0",  # the classic builder needs nothing that would have to be pulled
            "BRIDGE_IMAGE": image,
            "KAFKA_IMAGE": IMAGE,  # by its tag alone, as `ensure_image` has pulled or built it
            **{f"{name.upper().replace('-', '_')}_PORT": str(port) for name, port in self.ports.items()},
        }
        self.bootstrap_servers = f"{HOST}:{self.ports['kafka']}"

    def build(self) -> None:
        with build_arguments(images()["BASE"]) as arguments:
            self._environment |= arguments
            self.compose("build", "bridge-1")

    def compose(self, *arguments: str) -> str:
        return run(*compose_command(), "--file", str(FILE), *arguments, environment=self._environment)

    def container(self, service: str) -> str:
        return self.compose("ps", "--quiet", service).strip()

    def inspect(self, service: str) -> dict[str, Any]:
        (found,) = json.loads(run("docker", "inspect", self.container(service)))
        return dict(found)

    def close(self) -> None:
        self.compose("down", "--volumes", "--timeout", "10")
        subprocess.run(["docker", "rmi", self._environment["BRIDGE_IMAGE"]], capture_output=True, check=False)


@pytest.fixture
def stack() -> Iterator[Stack]:
    if not docker_answers():
        missing("no Docker engine answers: scripts/start-docker.sh")
    ensure_image()
    made = Stack()
    try:
        made.build()
        made.compose("up", "--detach", "--no-build", "kafka", *BRIDGES)
        yield made
    finally:
        made.close()


def demand_no_rights(stack: Stack, bridge: str) -> None:
    found = stack.inspect(bridge)
    host = found["HostConfig"]
    assert (host["ReadonlyRootfs"], host["CapDrop"], found["Config"]["User"]) == (True, ["ALL"], "10001:10001")
    told = run(
        "docker", "exec", stack.container(bridge), "sh", "-c", "id -u; stat -c '%a %U' /data; touch /x || echo no"
    )
    assert told.splitlines() == ["10001", "700 timer-bridge", "no"]


def is_healthy(stack: Stack, bridge: str) -> bool:
    return bool(stack.inspect(bridge)["State"]["Health"]["Status"] == "healthy")


@pytest.mark.broker
@pytest.mark.slow
def test_kafka_and_two_bridges_in_containers(stack: Stack) -> None:
    def timer_partitions() -> list[set[str]]:
        answers = [get(stack.ports[bridge], "/health/ready") for bridge in BRIDGES]
        found = [set(told["shards"]) for status, told in answers if status == 200]
        return found if [len(each) for each in found] == [2, 2] else []

    first, second = until(timer_partitions, "two bridges with two partitions each")
    assert first.isdisjoint(second)
    for bridge in BRIDGES:
        demand_no_rights(stack, bridge)
        until(partial(is_healthy, stack, bridge), "a healthy bridge")

    Admin(stack.bootstrap_servers).create_topics(["orders"], partitions=1, settings=BROKER_CLOCK)
    receiver = Receiver(stack.bootstrap_servers, ["orders"])
    with TimerProducer({"bootstrap.servers": stack.bootstrap_servers}) as timers:
        for number in range(20):
            timers.schedule("orders", b"v", key=b"%d" % number, delay="1s")
            timers.schedule("orders", b"later", id=f"id-{number}", delay="1h")
    origins: set[bytes] = set()

    def delivered() -> bool:
        origins.update(delivery.origin for delivery in receiver.poll(0.2))
        return len(origins) == 20

    until(delivered, "20 deliveries")

    stack.compose("restart", "bridge-1")
    until(timer_partitions, "both at work again")
    pending = [get(stack.ports[bridge], "/pending")[1]["pending"] for bridge in BRIDGES]
    assert sum(pending) == 20
    stack.compose("stop", "--timeout", "30", *BRIDGES)
    assert [stack.inspect(bridge)["State"]["ExitCode"] for bridge in BRIDGES] == [0, 0]
