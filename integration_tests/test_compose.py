"""compose/: the file is well made, and Kafka with two bridges runs in containers, on official images or ours."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from bridge.client import TimerProducer
from bridge.embedded import HOST, free_port
from bridge.kafka_jars import KAFKA_VERSION
from integration_tests.conftest import ROOT, docker_answers, ensure_image, missing
from integration_tests.patience import until
from integration_tests.prometheus import promtool
from integration_tests.test_health import get
from scripts.kafka_io import BROKER_CLOCK, Admin, Receiver

COMPOSE = ROOT / "compose"
FILE = COMPOSE / "compose.yaml"
DOCKERFILE = COMPOSE / "bridge" / "Dockerfile"
WHEELS = COMPOSE / "bridge" / "wheels"
BRIDGES = ("bridge-1", "bridge-2")


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Its standard output. It ends with 0."""
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def compose_command() -> list[str]:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose"]
    alone = shutil.which("docker-compose")
    return [alone] if alone else missing("Docker Compose is not installed; on Debian: apt-get install docker-compose")


def test_docker_compose_takes_the_file() -> None:
    run(*compose_command(), "--file", str(FILE), "config", "--quiet")
    assert f"apache/kafka:{KAFKA_VERSION}}}" in FILE.read_text()


def test_the_image_s_user_is_told_by_number() -> None:
    """Of a name Kubernetes cannot tell whether it is root, so with `runAsNonRoot` it would start nothing."""
    users = re.findall(r"^USER (.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert users == ["10001:10001", "root", "10001:10001"]


def test_prometheus_takes_its_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", str(COMPOSE / "prometheus" / "prometheus.yaml"))


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
            **{f"{name.upper().replace('-', '_')}_PORT": str(port) for name, port in self.ports.items()},
        }
        self.bootstrap_servers = f"{HOST}:{self.ports['kafka']}"

    def build(self) -> None:
        official = DOCKERFILE.read_text().partition("ARG BASE=")[2].split()[0]
        if subprocess.run(["docker", "pull", "--quiet", official], capture_output=True, check=False).returncode != 0:
            self._environment |= {"BASE": run(str(COMPOSE / "ensure-base.sh")).strip(), "PIP_NO_INDEX": "1"}
            self._make_wheels()
        try:
            self.compose("build", "bridge-1")
        finally:
            for wheel in WHEELS.glob("*.whl"):
                wheel.unlink()

    def _make_wheels(self) -> None:
        """All that the image needs, by this machine's package index. They fit a base with this Python."""
        constrained = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
        wanted = [str(ROOT), "setuptools"]
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(WHEELS), *wanted]
        run(*command, environment=constrained)
        for ours in WHEELS.glob("kafka_timer_bridge-*.whl"):
            ours.unlink()

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
    assert (host["ReadonlyRootfs"], host["CapDrop"], found["Config"]["User"]) == (True, ["ALL"], "timer-bridge")
    told = run(
        "docker", "exec", stack.container(bridge), "sh", "-c", "id -u; stat -c '%a %U' /data; touch /x || echo no"
    )
    assert told.splitlines() == ["10001", "700 timer-bridge", "no"]


def is_healthy(stack: Stack, bridge: str) -> bool:
    return bool(stack.inspect(bridge)["State"]["Health"]["Status"] == "healthy")


@pytest.mark.broker
@pytest.mark.slow
def test_kafka_and_two_bridges_in_containers(stack: Stack) -> None:
    def shards() -> list[set[str]]:
        answers = [get(stack.ports[bridge], "/health/ready") for bridge in BRIDGES]
        found = [set(told["shards"]) for status, told in answers if status == 200]
        return found if [len(each) for each in found] == [2, 2] else []

    first, second = until(shards, "two bridges with two partitions each")
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
    until(shards, "both at work again")
    pending = [get(stack.ports[bridge], "/pending")[1]["pending"] for bridge in BRIDGES]
    assert sum(pending) == 20
    stack.compose("stop", "--timeout", "30", *BRIDGES)
    assert [stack.inspect(bridge)["State"]["ExitCode"] for bridge in BRIDGES] == [0, 0]
