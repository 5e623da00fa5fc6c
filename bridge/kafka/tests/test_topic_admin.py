"""Questions about topics, to a fake admin client."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka.retry import Retrier
from bridge.kafka.topic_admin import ConfluentTopics

TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))


class Admin:
    """A fake admin client whose answers time out."""

    def __init__(self) -> None:
        self.asked = self.events = 0

    def poll(self, timeout_s: float) -> int:
        del timeout_s
        self.events = 0
        return 0

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        del request_timeout
        self.asked += 1
        self.events += 1
        answer: Future[Any] = Future()
        answer.set_exception(TIMED_OUT)
        return dict.fromkeys(resources, answer)


def test_a_question_asked_once_is_not_retried() -> None:
    topics: Any = ConfluentTopics(Connection("127.0.0.1:1"), Retrier())
    topics._admin = admin = Admin()
    with pytest.raises(BridgeError, match=r"looking at topic timer\.requests: no answer in time"):
        topics.config("timer.requests", once=True)
    assert (admin.asked, admin.events) == (1, 0)
