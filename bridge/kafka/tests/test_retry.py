"""Retries while no broker answers: without end or up to a limit, with few log lines. What errors mean."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bridge.config.kafka_config import Connection
from bridge.dev.embedded_kafka import free_port
from bridge.errors import BrokerUnavailableError
from bridge.kafka import ConfluentTopics, Retrier
from bridge.kafka.client_config import make
from bridge.kafka.errors import answered, error_of, explained, is_passing, reason
from bridge.kafka.retry import serve_idle
from bridge.kafka.tests.fake_clients import ALL_DOWN, PASSING, SSL, Timekeeper

GONE = KafkaException(KafkaError(ALL_DOWN.code(), "all brokers are down"))


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Timekeeper:
    return Timekeeper(monkeypatch)


def test_a_call_is_retried_without_end_and_logged_at_the_first_failure_and_each_minute(
    keeper: Timekeeper, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Mock(side_effect=[*[GONE] * 150, "here"])
    assert Retrier().retry_until_success("committing", broker, is_passing) == "here"
    assert 1120 < keeper.now_s < 1180
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "committing: all brokers are down; trying again"
    assert len(said) == 3
    assert all("times so far" in each for each in said[1:])


def test_a_certificate_error_has_a_remedy_under_each_error_code() -> None:
    told = "ssl/statem/statem_clnt.c:2124: error:0A000086:SSL routines::certificate verify failed"
    for error in (SSL, PASSING):
        assert "look at security.protocol and ssl.ca.location" in reason(KafkaError(error.code(), told))
    assert reason(KafkaError(PASSING.code(), "Connection refused")) == "Connection refused"


def test_a_permanent_error_is_not_retried() -> None:
    denied = Mock(side_effect=KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(KafkaException):
        Retrier().retry_until_success("committing", denied, is_passing)


def test_after_give_up_in_a_call_raises_with_the_reason(keeper: Timekeeper) -> None:
    retrier = Retrier()
    retrier.give_up_in(5)
    with pytest.raises(BrokerUnavailableError, match="committing: all brokers are down"):
        Retrier(retrier).retry_until_success("committing", Mock(side_effect=GONE), is_passing)
    assert keeper.now_s < 1006


@pytest.mark.thorough
@pytest.mark.parametrize(
    "call", [lambda topics: topics.create("timers", 1, 1, {}), lambda topics: topics.grow("timers", 2)]
)
def test_a_call_without_an_answer_takes_seconds(call: Callable[[ConfluentTopics], object]) -> None:
    retrier = Retrier()
    topics = ConfluentTopics(Connection(f"127.0.0.1:{free_port()}"), retrier)
    retrier.give_up_in(0.2)
    began_s = time.monotonic()
    with pytest.raises(BrokerUnavailableError):
        call(topics)
    assert time.monotonic() - began_s < 20


def test_an_answer_that_never_comes_is_a_passing_error() -> None:
    with pytest.raises(KafkaException) as failed:
        answered(Future[int](), 0)
    error = error_of(failed.value)
    assert (error.str(), is_passing(error)) == ("no answer in 0 s", True)


def test_errors_name_the_setting_of_the_brokers() -> None:
    told = str(explained("starting the producer", KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT)))
    remedy = "set the brokers' transaction.max.timeout.ms, which is below the bridge's 10 s, to 10000 or more"
    assert (told.startswith("starting the producer: "), told.endswith(remedy)) == (True, True)
    told = reason(KafkaError(KafkaError._RESOLVE, "Failed to resolve 'kafka-1:9092'"))  # noqa: SLF001
    assert told == "Failed to resolve 'kafka-1:9092': check bootstrap_servers and the brokers' advertised.listeners"


@pytest.mark.parametrize("kind", [AdminClient, Producer])
def test_what_an_idle_client_has_heard_is_no_log_line(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its events wait for a poll, and come minutes late, when the broker may be back. A real client, without broker."""
    heard: list[str] = []

    class Listening(Retrier):
        def hear(self, error: KafkaError) -> None:
            super().hear(error)
            heard.append(error.str())

    retrier = Listening()
    client = make(kind, {"bootstrap.servers": "127.0.0.1:1"}, retrier)
    until_s = time.monotonic() + 30
    while not any("127.0.0.1:1" in each for each in heard) and time.monotonic() < until_s:
        time.sleep(0.01)
        serve_idle(client)
    assert caplog.records == []
    retrier.give_up_in(0)
    with pytest.raises(BrokerUnavailableError, match=r"committing: .*127\.0\.0\.1:1"):
        Retrier(retrier).retry_until_success("committing", Mock(side_effect=GONE), is_passing)


def test_an_outage_after_a_recovery_is_counted_from_one(keeper: Timekeeper, caplog: pytest.LogCaptureFixture) -> None:
    retrier = Retrier()
    for pause_s in (0, 30, 30, 61):
        time.sleep(pause_s)
        retrier.hear(ALL_DOWN)
    said = [record.getMessage().removeprefix(f"Kafka: {reason(ALL_DOWN)}") for record in caplog.records]
    assert (keeper.now_s, said) == (1121, ["", " (3 times so far)", ""])
