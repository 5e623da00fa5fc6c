"""Questions about topics and the group, to an admin client whose answers are errors."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka.group import ConfluentGroup
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import TIMED_OUT, FakeAdmin, FakeConsumer, replace_clients
from bridge.kafka.topics import ConfluentTopics
from kafka_timer.origin import TimerPartition


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    admin = FakeAdmin()
    replace_clients(monkeypatch, FakeConsumer, admin)
    return admin


def test_events_that_wait_for_a_poll_do_not_accumulate(admin: FakeAdmin) -> None:
    group = ConfluentGroup(Connection("127.0.0.1:1"), Retrier())
    for _ in range(1000):
        assert group.members() == []
        assert group.partitions(["timers", "others"]) == {TimerPartition("timers", 0), TimerPartition("timers", 1)}
        assert admin.events <= 1
    admin.answer = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BridgeError, match=r"looking at group .*give the bridge's user the right"):
        group.members()


def test_a_question_asked_once_is_not_retried(admin: FakeAdmin) -> None:
    admin.answer = KafkaException(TIMED_OUT)
    topics = ConfluentTopics(Connection("127.0.0.1:1"), Retrier())
    with pytest.raises(BridgeError, match=r"looking at topic timer\.requests: Local: Timed out"):
        topics.config("timer.requests", once=True)
    assert (admin.asked, admin.events) == (1, 0)
