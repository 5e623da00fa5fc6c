"""Two timer topics of one `timer-bridge run`: each with its own targets and rate, against a real broker."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from bridge.config.kafka_config import Connection
from bridge.kafka import ConfluentTopics, Retrier
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, read
from integration_tests.support.patience import PATIENCE_S
from scripts.common.processes import BridgeProcess

PER_S, COUNT = 10, 60


class Second:
    """A second timer topic, by a table of the config."""

    def __init__(self, folder: Path, target: str) -> None:
        self.timers = f"payments-{uuid4().hex[:8]}"
        self.config = folder / "bridge.toml"
        self.config.write_text(
            f'allow_targets = ["orders-*"]\n'
            f'[topics."{self.timers}"]\nallow = ["{target}"]\nmax_requests_per_s = {PER_S}\n'
        )


def send(broker: Broker, timers: str, target: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(timers, value, headers=[("timer-topic", target.encode()), ("timer-delay-ms", b"0")])
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.broker
def test_two_timer_topics_with_their_own_targets_and_a_limited_one_delays_not_the_other(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    paid = f"paid-{uuid4().hex[:8]}"
    names.create_target(kafka, paid)
    second = Second(tmp_path, paid)
    arguments = [*names.arguments, "--config", str(second.config)]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        pass
    topics = ConfluentTopics(Connection(kafka.bootstrap_servers), Retrier())
    for made in (second.timers, f"{second.timers}.journal"):
        assert topics.partitions(made) == 2
        assert topics.config(made)["message.timestamp.type"] == "LogAppendTime"
    send(kafka, second.timers, paid, [b"%d" % number for number in range(COUNT)])
    send(kafka, second.timers, names.target, [b"payments to orders"])
    send(kafka, names.timers, paid, [b"orders to payments"])
    send(kafka, names.timers, second.timers, [b"orders to the timer topic"])
    send(kafka, names.timers, names.target, [b"%d" % number for number in range(COUNT)])
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        at_once = [int(dict(each.headers())["timer-released-ms"]) for each in read(kafka, names.target, COUNT)]
        slowly = [int(dict(each.headers())["timer-released-ms"]) for each in read(kafka, paid, COUNT)]
        rejected = {each.value(): dict(each.headers())["timer-error"] for each in read(kafka, names.rejected, 3)}
    assert rejected == {
        b"payments to orders": b"denied-target",
        b"orders to payments": b"denied-target",
        b"orders to the timer topic": b"bad-target",
    }
    assert slowly[-1] - slowly[0] >= 1000 * (COUNT - 4 * PER_S) // PER_S
    assert max(at_once) < slowly[-1]
