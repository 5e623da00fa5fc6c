"""Kafka clients that lose all brokers for good while the only broker starts (see starting_broker.py).

The bridge runs with `metadata.recovery.strategy=none`: then each of its clients loses them for certain, not by a race.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bridge.dev.embedded_kafka import HOST, EmbeddedKafka, free_port
from integration_tests.support.instances import Field
from integration_tests.support.starting_broker import StartingBroker
from scripts.chaos.three_brokers import running

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_bridge_whose_clients_have_lost_all_brokers_goes_on_with_new_ones(
    make_kafka: Callable[[dict[str, str]], EmbeddedKafka], tmp_path: Path
) -> None:
    """The test's own clients reach the broker directly, the bridge through the proxy."""
    front, proxied, direct, controller = (free_port() for _ in range(4))
    ports = {"PLAINTEXT": direct, "PROXIED": proxied, "CONTROLLER": controller}
    advertised = {"PLAINTEXT": direct, "PROXIED": front}
    kafka = make_kafka(
        {
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ports),
            "controller.quorum.voters": f"1@{HOST}:{controller}",
        }
    )
    kafka.port = direct
    arguments = ("--kafka", "metadata.recovery.strategy=none")
    with (
        running([behind := StartingBroker(front, proxied)]),
        closing(Field(kafka.bootstrap_servers, tmp_path, 2, *arguments)) as field,
    ):
        field.bridge_servers = f"{HOST}:{front}"
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
