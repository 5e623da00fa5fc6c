"""Members of the group, by a fake admin client."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka.group_members import ConfluentGroup
from bridge.kafka.retry import Retrier
from schemas.origin import Shard


class Admin:
    """A fake admin client: the event of each answer waits for a poll."""

    def __init__(self) -> None:
        self.events = 0
        self.wrong: KafkaException | None = None

    def poll(self, timeout_s: float) -> int:
        del timeout_s
        self.events = 0
        return 0

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> dict[str, Any]:
        del request_timeout
        self.events += 1
        answer: Future[Any] = Future()
        if self.wrong is None:
            answer.set_result(SimpleNamespace(members=[]))
        else:
            answer.set_exception(self.wrong)
        return dict.fromkeys(names, answer)

    def list_topics(self, timeout: float) -> Any:
        del timeout
        self.events += 1
        return SimpleNamespace(topics={"timers": SimpleNamespace(partitions={0: None, 1: None})})


def test_events_that_wait_for_a_poll_do_not_accumulate() -> None:
    group: Any = ConfluentGroup(Connection("127.0.0.1:1"), Retrier())
    group._admin = admin = Admin()
    for _ in range(1000):
        assert group.members() == []
        assert group.shards(["timers", "others"]) == {Shard("timers", 0), Shard("timers", 1)}
        assert admin.events <= 1
    admin.wrong = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BridgeError, match=r"looking at group .*give the bridge's user the right"):
        group.members()
    assert admin.events == 1
