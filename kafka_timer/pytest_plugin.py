"""Fixtures for pytest: in the conftest.py of your project's root, `pytest_plugins = ["kafka_timer.pytest_plugin"]`.

To give the bridge settings or to use another Kafka, define a fixture of the same name.
"""

from collections.abc import Iterator

import pytest
from testcontainers.community.kafka import KafkaContainer

from kafka_timer.testing import ApacheKafkaContainer, TimerBridgeContainer


@pytest.fixture(scope="session")
def kafka_container() -> Iterator[KafkaContainer]:
    """Return a Kafka in a container, of the whole session."""
    with ApacheKafkaContainer() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def timer_bridge(kafka_container: KafkaContainer) -> Iterator[TimerBridgeContainer]:
    """Return a bridge in a container beside it, of the whole session."""
    with TimerBridgeContainer(kafka_container) as bridge:
        yield bridge
