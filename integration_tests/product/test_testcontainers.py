"""kafka_timer.testing with a Docker engine: the example project, and bridges that its users get wrong."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.network import Network

from integration_tests.conftest import IMAGE, ROOT, ensure_image
from integration_tests.product.test_compose import images
from integration_tests.support.images import build, docker_engine
from integration_tests.support.patience import PATIENCE_S
from kafka_timer import BridgeError, testing

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "testcontainers"
WITHOUT_PULLS = {
    "TESTCONTAINERS_RYUK_DISABLED": "true",  # its reaper is one more image to pull
    # The engine is on this machine, also if the tests run in a container of another one.
    "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
    "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
}


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """Return the tag of the bridge's image, built from this tree, and let the tests of this process use it."""
    tag = f"timer-bridge:test-{uuid4().hex[:8]}"
    with docker_engine(), pytest.MonkeyPatch.context() as patch:
        ensure_image()
        build(tag, images()["BASE"])
        patch.setattr(testcontainers_config, "_ryuk_disabled", True)
        patch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
        patch.setattr(testcontainers_config, "tc_host_override", "127.0.0.1")
        yield tag
        subprocess.run(["docker", "rmi", tag], capture_output=True, check=False)


def test_the_example_project_passes_its_test(image: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, **WITHOUT_PULLS, "BRIDGE_IMAGE": image, "KAFKA_IMAGE": IMAGE, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path / "shop", env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_settings_reach_the_bridge_and_ports_are_open_on_loopback_alone(image: str) -> None:
    with (
        Network() as network,
        testing.ApacheKafkaContainer(IMAGE).with_network(network).with_network_aliases("kafka") as kafka,
        testing.TimerBridgeContainer("kafka:9092", image, partitions=3).with_network(network) as bridge,
    ):
        with urlopen(f"{bridge.url}/health/ready") as answer:
            assert [name.partition("/")[0] for name in json.load(answer)["shards"]] == ["timer.requests"] * 3
        for container in (kafka, bridge):
            container.reload()
            ports = container.get_wrapped_container().attrs["NetworkSettings"]["Ports"]
            assert {bound["HostIp"] for each in ports.values() for bound in each or ()} == {"127.0.0.1"}
        with pytest.raises(BridgeError, match="give TimerProducer Kafka's outer address"):
            bridge.producer()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partitions": 0}, r"exit code: 2[\s\S]*last log lines:[\s\S]*partitions"),
        ({"startup_timeout": "1s"}, r"exit code: 1[\s\S]*last log lines:[\s\S]*127\.0\.0\.1:1"),
        ({"timeout_s": 3}, r"within 3\.000 seconds[\s\S]*last log lines:[\s\S]*answering on http"),
    ],
    ids=["wrong-setting", "no-broker", "too-slow"],
)
def test_a_bridge_that_does_not_become_ready_shows_its_log(image: str, settings: dict[str, Any], said: str) -> None:
    wrong = testing.TimerBridgeContainer("127.0.0.1:1", image, **settings)
    with pytest.raises(BridgeError, match=said), wrong:
        pass


def test_a_missing_image_is_named(image: str) -> None:
    absent = testing.TimerBridgeContainer("nowhere:9092", "timer-bridge:absent")
    with pytest.raises(BridgeError, match=r"^timer-bridge:absent: the bridge is not ready"), absent:
        pass
