"""The bridge in a container, beside testcontainers' Kafka. Needs a Docker engine and `kafka-timer-client[testing]`.

    with ApacheKafkaContainer() as kafka, TimerBridgeContainer(kafka, receipts="all") as bridge:
        with bridge.producer() as timers:
            timers.schedule("orders", b"remind", delay="2s")

`kafka_timer.pytest_plugin` has fixtures of both. Without an engine, use `bridge.testing.TimerWorld`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from docker.errors import DockerException
from testcontainers.community.kafka import KafkaContainer
from testcontainers.core.config import ConnectionMode
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from kafka_timer.errors import BridgeError
from kafka_timer.producer import TimerProducer

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

KAFKA_IMAGE = os.environ.get("KAFKA_IMAGE", "apache/kafka:4.3.0")
BRIDGE_IMAGE = os.environ.get("BRIDGE_IMAGE", "timer-bridge:latest")
"""Default images, and their variables, as in compose/compose.yaml."""

HTTP_PORT = 8321
BETWEEN_CONTAINERS = 9092
"""Port of KafkaContainer's listener BROKER, which advertises the container's own address."""
LAST_LINES = 30


class ApacheKafkaContainer(KafkaContainer):
    """A KafkaContainer of `apache/kafka`, which testcontainers' own cannot start: one broker, with transactions."""

    def __init__(self, image: str = KAFKA_IMAGE) -> None:
        """Raise BridgeError if no Docker engine answers."""
        with _engine():
            super().__init__(image)
        _bind(self, self.port)
        self.kraft_enabled = True  # with_kraft() compares the image's tag with Confluent's versions
        for topic in ("TRANSACTION_STATE_LOG", "SHARE_COORDINATOR_STATE_TOPIC"):  # three copies by default
            self.with_env(f"KAFKA_{topic}_REPLICATION_FACTOR", "1").with_env(f"KAFKA_{topic}_MIN_ISR", "1")

    def tc_start(self) -> None:
        """Write the script that the container waits for: its port on this machine is known only now."""
        outside = f"{self.listener_name}://{self.get_bootstrap_server()}"
        inside = f"BROKER://$(hostname -i):{BETWEEN_CONTAINERS}"
        script = f"export KAFKA_ADVERTISED_LISTENERS={outside},{inside}\nexec /etc/kafka/docker/run\n"
        self.create_file(script.encode(), self.TC_START_SCRIPT)


class TimerBridgeContainer(DockerContainer):
    """A container of `timer-bridge run`. `start`, or `with`, returns when it is ready."""

    def __init__(
        self, kafka: KafkaContainer | str, image: str = BRIDGE_IMAGE, *, timeout_s: int = 90, **settings: object
    ) -> None:
        """Raise BridgeError if no Docker engine answers.

        kafka: a started KafkaContainer, whose network the bridge joins; or the address of a listener that containers
        reach, with Kafka's network in `with_network`.
        timeout_s: of the start. The default is longer than the setting `startup_timeout`, whose error says more.
        settings: settings of `timer-bridge run`, such as `receipts="all"`, `partitions=1`.
        """
        with _engine():
            super().__init__(image)
        _bind(self, HTTP_PORT)
        self._kafka = kafka
        for name, value in settings.items():
            self.with_env(f"TIMER_BRIDGE_{name.upper()}", str(value))
        ready = LogMessageWaitStrategy("^timer-bridge is ready").with_poll_interval(0.2)
        self.waiting_for(ready.with_startup_timeout(timeout_s))

    def start(self) -> "Self":
        """Start it and wait until it is ready. Raise BridgeError with the end of its log if it is not."""
        try:
            return super().start()
        except (DockerException, TimeoutError, RuntimeError) as error:
            log = self._container.logs(tail=LAST_LINES).decode(errors="replace") if self._container else "no container"
            raise BridgeError(f"{self.image}: the bridge is not ready: {error}\nIts last log lines:\n{log}") from error

    def _configure(self) -> None:
        """Join Kafka's network. `start` calls it first."""
        address = self._kafka
        if isinstance(address, KafkaContainer):
            address.reload()
            networks = address.get_wrapped_container().attrs["NetworkSettings"]["Networks"]
            name = self._network.name if self._network else next(iter(networks))
            self._kwargs = {"network": name, **self._kwargs}
            address = f"{networks[name]['IPAddress']}:{BETWEEN_CONTAINERS}"
        self.with_env("TIMER_BRIDGE_BOOTSTRAP_SERVERS", address)

    @property
    def url(self) -> str:
        """Address of its HTTP port, such as http://localhost:49153."""
        return f"http://{self.get_container_host_ip()}:{self.get_exposed_port(HTTP_PORT)}"

    def producer(self, **options: Any) -> TimerProducer:
        """Return a producer for the KafkaContainer, with the options of TimerProducer, such as `timer_topic`."""
        if not isinstance(self._kafka, KafkaContainer):
            raise BridgeError(f"{self._kafka}: known to containers alone; give TimerProducer Kafka's outer address")
        return TimerProducer({"bootstrap.servers": self._kafka.get_bootstrap_server()}, **options)


@contextmanager
def _engine() -> Iterator[None]:
    try:
        yield
    except DockerException as error:
        raise BridgeError(f"no Docker engine answers: {error}; start one, or set DOCKER_HOST") from error


def _bind(container: DockerContainer, port: int) -> None:
    """Bind a free port of 127.0.0.1. Tests that reach the engine by another address need it on all addresses."""
    docker = container.get_docker_client()
    is_here = docker.host() in ("localhost", "127.0.0.1") and docker.get_connection_mode() == ConnectionMode.docker_host
    address: Any = ("127.0.0.1",)  # the Docker client takes more than the type of `ports` says
    container.ports[str(port)] = address if is_here else None
