"""Retries while no broker answers: without end or up to a limit, with few log lines."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bridge.errors import BrokerUnavailableError
from bridge.kafka import Retrier
from bridge.kafka.client_config import make
from bridge.kafka.errors import is_passing, reason
from bridge.kafka.retry import serve_idle
from bridge.kafka.tests.fake_clients import ALL_DOWN, PASSING, SSL

GONE = KafkaException(KafkaError(ALL_DOWN.code(), "all brokers are down"))


class Broker:
    """Fails for the first `gone` calls."""

    def __init__(self, gone: int) -> None:
        self.calls = 0
        self._gone = gone

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._gone:
            raise GONE
        return "here"


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace clock and sleep; return the sleeps in seconds."""
    now_s, naps = [1000.0], []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now_s[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return naps


def test_a_call_is_retried_without_end_and_logged_at_the_first_failure_and_each_minute(
    no_naps: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(gone=150)
    assert Retrier().retry_until_success("committing", broker, is_passing) == "here"
    assert 120 < sum(no_naps) < 180
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
    denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def call() -> None:
        raise denied

    with pytest.raises(KafkaException):
        Retrier().retry_until_success("committing", call, is_passing)


def test_after_give_up_in_a_call_raises_with_the_reason(no_naps: list[float]) -> None:
    retrier = Retrier()
    retrier.give_up_in(5)
    with pytest.raises(BrokerUnavailableError, match="committing: all brokers are down"):
        Retrier(retrier).retry_until_success("committing", Broker(gone=10_000), is_passing)
    assert sum(no_naps) < 6


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
        Retrier(retrier).retry_until_success("committing", Broker(gone=1), is_passing)


def test_an_outage_after_a_recovery_is_counted_from_one(no_naps: list[float], caplog: pytest.LogCaptureFixture) -> None:
    retrier = Retrier()
    for pause_s in (0, 30, 30, 61):
        time.sleep(pause_s)
        retrier.hear(ALL_DOWN)
    said = [record.getMessage().removeprefix(f"Kafka: {reason(ALL_DOWN)}") for record in caplog.records]
    assert (sum(no_naps), said) == (121, ["", " (3 times so far)", ""])
