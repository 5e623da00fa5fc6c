"""Calls of the admin client end in time if no broker answers, so that a start keeps `startup_timeout`."""

import time
from collections.abc import Callable

import pytest

from bridge.config.kafka_config import Connection
from bridge.dev.embedded_kafka import free_port
from bridge.errors import BrokerUnavailableError
from bridge.kafka.retry import Retrier
from bridge.kafka.topics import ConfluentTopics

CALLS: dict[str, Callable[[ConfluentTopics], object]] = {
    "create": lambda topics: topics.create("timers", 1, 1, {}),
    "grow": lambda topics: topics.grow("timers", 2),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_without_an_answer_takes_seconds(call: str) -> None:
    retrier = Retrier()
    topics = ConfluentTopics(Connection(f"127.0.0.1:{free_port()}", "group", "", {}, {}), retrier)
    retrier.give_up_in(1)
    began_s = time.monotonic()
    with pytest.raises(BrokerUnavailableError):
        CALLS[call](topics)
    assert time.monotonic() - began_s < 20
