"""Kafka clients that lose all brokers for good while the only broker starts (see starting_broker.py).

The bridge runs with `metadata.recovery.strategy=none`: then each of its clients loses them for certain, not by a race.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.dev.embedded_kafka import HOST, EmbeddedKafka, free_port
from integration_tests.support.instances import Field
from integration_tests.support.starting_broker import StartingBroker
from scripts.chaos.three_brokers import running

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def behind() -> Iterator[StartingBroker]:
    front = free_port()
    behind = free_port()
    with running([broker := StartingBroker(front, behind)]):
        yield broker


@pytest.fixture
def kafka_behind(behind: StartingBroker, make_kafka: Callable[[dict[str, str]], EmbeddedKafka]) -> EmbeddedKafka:
    """The test's own clients reach the broker directly, the bridge through the proxy."""
    direct = free_port()
    controller = free_port()
    ports = {"PLAINTEXT": direct, "PROXIED": behind.target_port, "CONTROLLER": controller}
    advertised = {"PLAINTEXT": direct, "PROXIED": behind.port}
    kafka = make_kafka(
        {
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ports),
            "controller.quorum.voters": f"1@{HOST}:{controller}",
        }
    )
    kafka.port = direct
    return kafka


def test_a_bridge_whose_clients_have_lost_all_brokers_goes_on_with_new_ones(
    behind: StartingBroker, kafka_behind: EmbeddedKafka, tmp_path: Path
) -> None:
    arguments = ("--kafka", "metadata.recovery.strategy=none")
    with closing(Field(kafka_behind.bootstrap_servers, tmp_path, 2, *arguments)) as field:
        field.bridge_servers = f"{HOST}:{behind.port}"
        (instance,) = field.start("one")
        for partition in range(field.partitions):
            field.send(partition, 0)
        field.until_delivered(field.partitions)
        behind.hides_brokers = True
        field.until(lambda: "the group has removed us" in instance.log, "the loss of all brokers")
        assert behind.hidden > 0
        behind.hides_brokers = False
        for partition in range(field.partitions):
            field.send(partition, 0)
        field.demand_each_once()
        assert "going on with new clients" in instance.log
