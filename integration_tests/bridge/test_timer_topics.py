"""Two timer topics of one `timer-bridge run`: each with its own targets and rate, against a real broker."""

from pathlib import Path
from uuid import uuid4

import pytest

from bridge.config.kafka_config import Connection
from bridge.kafka import ConfluentTopics, Retrier
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, read
from integration_tests.support.cluster import Cluster
from scripts.common.processes import BridgeProcess

PER_S, COUNT = 10, 60


@pytest.mark.broker
def test_two_timer_topics_with_their_own_targets_and_a_limited_one_delays_not_the_other(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    paid, payments, config = f"paid-{uuid4().hex[:8]}", f"payments-{uuid4().hex[:8]}", tmp_path / "bridge.toml"
    names.create_target(kafka, paid)
    of_payments = f'[topics."{payments}"]\nallow = ["{paid}"]\nmax_requests_per_s = {PER_S}\n'
    config.write_text(f'allow_targets = ["orders-*"]\n{of_payments}')
    arguments = [*names.arguments, "--config", str(config)]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        pass
    topics = ConfluentTopics(Connection(kafka.bootstrap_servers), Retrier())
    for made in (payments, f"{payments}.journal"):
        assert topics.partitions(made) == 2
        assert topics.config(made)["message.timestamp.type"] == "LogAppendTime"
    numbers = [b"%d" % number for number in range(COUNT)]
    cluster = Cluster(kafka.bootstrap_servers)
    for timers, target, values in (
        (payments, paid, numbers),
        (payments, names.target, [b"payments to orders"]),
        (names.timers, paid, [b"orders to payments"]),
        (names.timers, payments, [b"orders to the timer topic"]),
        (names.timers, names.target, numbers),
    ):
        for value in values:
            cluster.send(timers, value, headers=[("timer-topic", target.encode()), ("timer-delay-ms", b"0")])
    cluster.flush()
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
