"""The broker of the tests, which use only `kafka.bootstrap_servers`.

    KAFKA_BOOTSTRAP given     -> that broker, as it is
    a Docker engine answers   -> testcontainers with the official image (or its stand-in, see compose/kafka)
    neither                   -> an embedded broker; not in CI, which has to test against the image

If Java, the jars or, in CI, Docker are missing, the test is skipped; in CI it fails.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from bridge.dev.embedded_kafka import HOST, PROPERTIES, EmbeddedKafka, find_java, free_port
from bridge.dev.kafka_jars import JARS, KAFKA_VERSION
from bridge.errors import BridgeError
from integration_tests.support.bridge_command import Names
from integration_tests.support.patience import PATIENCE_S
from schemas.maven_jars import ensure

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / ".run" / "integration" / os.environ.get("PYTEST_XDIST_WORKER", "")
"""Folder of this process of pytest-xdist."""
JARS_CACHE = ROOT / ".run" / "kafka-jars"
IMAGE = f"apache/kafka:{KAFKA_VERSION}"

# After a kill -9 the broker has to wait until its former session has expired: 9 s by default.
FAST_RESTART = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@dataclass(frozen=True)
class Broker:
    """A running broker of the whole session. Each test uses its own topics and groups."""

    bootstrap_servers: str


def missing(what: str) -> NoReturn:
    """Skip the test; in CI, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """Return the broker for tests that do not stop it."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield Broker(given)
    elif docker_answers():
        yield from containered()
    elif os.environ.get("CI") == "true":
        missing("CI tests against the container image, and no Docker engine answers: scripts/start-docker.sh")
    else:
        with started("session", {}) as broker:
            yield Broker(broker.bootstrap_servers)


@pytest.fixture
def names() -> Names:
    """Return names of topics and a group of the test's own."""
    return Names()


@pytest.fixture
def own_kafka(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    """Return a running broker that the test alone uses, and may stop, kill and start again."""
    name = re.sub(r"\W+", "-", request.node.name)
    with started(name, FAST_RESTART) as broker:
        yield broker


@pytest.fixture
def make_kafka(request: pytest.FixtureRequest) -> Iterator[Callable[[dict[str, str]], EmbeddedKafka]]:
    """Return a function that makes brokers as `own_kafka`, with more broker properties."""
    brokers: list[EmbeddedKafka] = []

    def make(properties: dict[str, str]) -> EmbeddedKafka:
        name = re.sub(r"\W+", "-", f"{request.node.name}-{len(brokers)}")
        brokers.append(started(name, FAST_RESTART | properties))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.stop()


def kafka_jars() -> Path:
    """Return the folder of Kafka's jars. Skip the test if they or Java are missing."""
    try:
        return ensure(JARS, JARS_CACHE, java=find_java())
    except BridgeError as error:
        missing(f"no embedded broker: {error}")


def started(name: str, properties: dict[str, str]) -> EmbeddedKafka:
    """Start a broker on an empty folder, which is kept after the test."""
    folder = RUN / f"kafka-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    broker = EmbeddedKafka(folder, properties=properties, jars_cache=JARS_CACHE)
    try:
        broker.start(timeout_s=PATIENCE_S)
    except BridgeError as error:
        missing(f"no embedded broker: {error}")
    return broker


def docker_answers() -> bool:
    import docker  # only here: without it the other two ways still work
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=PATIENCE_S)  # fails at once without an engine
    except DockerException:
        return False
    client.close()
    return True


def containered() -> Iterator[Broker]:
    """Start the official image by testcontainers, its port bound to loopback alone.

    Clients and the broker itself reach it under different addresses, hence two listeners.
    """
    ensure_image()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the container is taken down before we end
    os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"  # read at import; its reaper is one more image to pull
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = free_port()
    listeners = {
        "listeners": "PLAINTEXT://0.0.0.0:9092,BROKER://127.0.0.1:29092,CONTROLLER://127.0.0.1:29093",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port},BROKER://127.0.0.1:29092",
        "inter.broker.listener.name": "BROKER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": "1@127.0.0.1:29093",
    }
    container = DockerContainer(IMAGE)
    # with_bind_ports() would open it on every address; the Docker client below takes more than the type says.
    container.ports["9092/tcp"] = (HOST, port)  # type: ignore[assignment]
    container.with_env("KAFKA_HEAP_OPTS", f"-Xmx512m {os.environ['JDK_JAVA_OPTIONS']}")
    for name, value in (PROPERTIES | listeners).items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    container.waiting_for(LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(int(PATIENCE_S)))
    with container:
        yield Broker(f"{HOST}:{port}")


def ensure_image() -> None:
    script = ROOT / "compose" / "kafka" / "ensure-image.sh"
    done = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"{IMAGE} could be neither pulled nor built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
