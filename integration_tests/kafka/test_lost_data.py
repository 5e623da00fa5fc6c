"""Brokers that are down, and progress that is reset: from outside."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from integration_tests.conftest import Broker
from integration_tests.support.instances import Field
from scripts.common.kafka_io import Admin

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


@pytest.fixture
def field(kafka: Broker, tmp_path: Path) -> Iterator[Field]:
    # The group has no member after a stop: another instance takes over at once, and offsets may be reset.
    with closing(Field(kafka.bootstrap_servers, tmp_path, 2, "--no-static-membership")) as field:
        yield field


def deliver(field: Field, count: int) -> None:
    """Deliver `count` timers on each partition, and wait until their transactions can be read."""
    for partition in range(field.partitions):
        for _ in range(count):
            field.send(partition, 0)
    field.cluster.flush()
    field.until_delivered(count * field.partitions)
    settle(field)


def settle(field: Field) -> None:
    """Wait until every request is stored and the markers of its transaction are written."""
    admin = Admin(field.cluster.bootstrap_servers)
    field.until(lambda: admin.committed(field.group, field.timers) == admin.ends(field.timers), "a quiet moment")
    field.cluster.read(field.target, field.journal)


@pytest.mark.parametrize("gone_s", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_case_26_timers_due_without_a_broker_are_delivered_once(
    own_kafka: EmbeddedKafka, tmp_path: Path, gone_s: int
) -> None:
    """No timer is due before the broker stops, as a lone broker may forget markers. Under load: make chaos."""
    with closing(Field(own_kafka.bootstrap_servers, tmp_path, 2)) as field:
        (instance,) = field.start("one")
        deliver(field, 50)
        for head_start_ms in (10_000, 30_000, 120_000):
            first_ms = time.time_ns() // 1_000_000 + head_start_ms
            for number in range(10 * gone_s + 20):
                field.send(number % 2, head_start_ms + 100 * number)
            field.cluster.flush()
            settle(field)
            if time.time_ns() // 1_000_000 < first_ms - head_start_ms / 2:
                break
        else:
            raise AssertionError("no quiet moment: this machine needs a longer head start")
        down_ms = time.time_ns() // 1_000_000
        own_kafka.stop()
        assert time.time_ns() // 1_000_000 < first_ms, "the broker took too long to stop"
        time.sleep(first_ms / 1000 - time.time() + gone_s)
        own_kafka.start()
        back_ms = time.time_ns() // 1_000_000
        field.send(0, 0)
        field.cluster.flush()
        field.demand_each_once()
        assert instance.log.count("trying again") <= 5 * (1 + (back_ms - down_ms) // 60_000)


def to_earliest(field: Field) -> None:
    places = [TopicPartition(field.timers, partition, 0) for partition in range(field.partitions)]
    asked = [ConsumerGroupTopicPartitions(field.group, places)]
    for answer in field.cluster.admin.alter_consumer_group_offsets(asked).values():
        answer.result()


def expired(field: Field) -> None:
    for answer in field.cluster.admin.delete_consumer_groups([field.group]).values():
        answer.result()


@pytest.mark.parametrize("reset", [to_earliest, pytest.param(expired, marks=pytest.mark.slow)])
def test_case_37_reset_progress_is_refused_until_adopt_progress_is_given(
    field: Field, reset: Callable[[Field], None]
) -> None:
    (instance,) = field.start("one")
    deliver(field, 5)
    instance.stop()
    reset(field)
    for name in ("one", "another"):
        refused = field.launch(name)
        with pytest.raises(BridgeError, match="ended before it was ready"):
            refused.await_ready()
        assert "progress is lost" in refused.log
        assert "--adopt-progress earliest" in refused.log
        assert "Traceback" not in refused.log
        refused.kill()
    (adopted,) = field.start("one", arguments=["--adopt-progress", "latest"])
    deliver(field, 5)
    adopted.stop()
    field.start("one")
    deliver(field, 1)
    field.demand_each_once()
