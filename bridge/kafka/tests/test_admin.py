"""Questions about topics and the group, to an admin client whose answers are errors."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka.group import ConfluentGroup
from bridge.kafka.history import ConfluentHistory
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import ALL_DOWN, TIMED_OUT, FakeAdmin, FakeConsumer, replace_clients
from bridge.kafka.topics import ConfluentTopics
from bridge.kafka.transactions.rejection_finder import TopicProbe
from kafka_timer.origin import TimerPartition

DENIED = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    admin = FakeAdmin()
    replace_clients(monkeypatch, FakeConsumer, admin)
    return admin


def test_answers_about_a_group_and_its_topics(admin: FakeAdmin) -> None:
    group = ConfluentGroup(Connection("127.0.0.1:1"), Retrier())
    assert group.partitions(["timers", "others"]) == {TimerPartition("timers", 0), TimerPartition("timers", 1)}
    admin.answer = DENIED
    with pytest.raises(BridgeError, match=r"looking at group .*give the bridge's user the right"):
        group.members()


def test_a_question_asked_once_is_not_retried(admin: FakeAdmin) -> None:
    admin.answer = KafkaException(TIMED_OUT)
    topics = ConfluentTopics(Connection("127.0.0.1:1"), Retrier())
    with pytest.raises(BridgeError, match=r"looking at topic timer\.requests: Local: Timed out"):
        topics.config("timer.requests", once=True)
    assert (admin.asked, admin.events) == (1, 0)


class IdleAdmin(FakeAdmin):
    """Has heard minutes ago that the brokers were down."""

    def __init__(self, retrier: Retrier) -> None:
        super().__init__()
        self._hear, self._heard = retrier.hear, [ALL_DOWN]

    def poll(self, timeout_s: float) -> int:
        self.events = 0
        while self._heard:
            self._hear(self._heard.pop())
        return 0


ASK: dict[str, Callable[[Connection, Retrier], object]] = {
    "group": lambda *client: ConfluentGroup(*client).members(),
    "partitions": lambda *client: ConfluentGroup(*client).partitions(["timers"]),
    "config": lambda *client: ConfluentTopics(*client).config("timers", once=True),
    "ends": lambda connection, retrier: ConfluentHistory(connection, {}, retrier).bounds(TimerPartition("timers", 0)),
    "topic settings": lambda *client: TopicProbe(*client).settings(["timers"]),
}


@pytest.mark.parametrize("port", ASK)
def test_questions_after_a_recovery_log_no_outage_and_leave_no_events(
    port: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    retrier = Retrier()
    admin = IdleAdmin(retrier)
    admin.ends, admin.answer = {0: 7}, DENIED
    replace_clients(monkeypatch, FakeConsumer, admin)
    monkeypatch.setattr("bridge.kafka.client_config.make", lambda *_: admin)
    for _ in range(9):
        with suppress(BridgeError):
            ASK[port](Connection("127.0.0.1:1"), retrier)
        assert admin.events <= 2
    admin.poll(0)
    assert caplog.records == []
