"""Unavailable topics, by the answers of a fake admin client."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import TIMED_OUT
from bridge.kafka.transactions.rejection_finder import TopicProbe, TopicSettings

DENIED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
SILENT = KafkaException(TIMED_OUT)


def told(what: object) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(what, Exception):
        future.set_exception(what)
    else:
        future.set_result(what)
    return future


class Admin:
    """A fake admin client that has two answers, each a value or an error."""

    def __init__(self, topics: object, configs: object) -> None:
        self._topics, self._configs = topics, configs

    def poll(self, timeout_s: float) -> None: ...

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, "Future[Any]"]:
        return {"bills": told(self._topics)}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        return dict.fromkeys(resources, told(self._configs))


Make = Callable[..., tuple[TopicProbe, list[Admin]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a probe, and the list of the clients that it makes.

    in_sync: of three replicas, or an error. min_in_sync: min.insync.replicas, or an error.
    """

    def make(in_sync: int | Exception, min_in_sync: int | Exception = 2) -> tuple[TopicProbe, list[Admin]]:
        topics: object = in_sync
        if isinstance(in_sync, int):
            partition = SimpleNamespace(isr=range(in_sync), replicas=range(3), leader=SimpleNamespace(id=1))
            topics = SimpleNamespace(partitions=[partition])
        configs = entries(min_insync_replicas=str(min_in_sync)) if isinstance(min_in_sync, int) else min_in_sync
        made: list[Admin] = []

        def client(*_: object) -> Admin:
            made.append(Admin(topics, configs))
            return made[-1]

        monkeypatch.setattr(client_config, "make", client)
        return TopicProbe(Connection("127.0.0.1:1"), Retrier()), made

    return make


@pytest.mark.parametrize(
    ("in_sync", "min_in_sync", "is_unavailable"),
    [(3, 2, False), (2, 2, False), (1, 2, True), (3, DENIED, False), (2, DENIED, True)],
    ids=["all", "enough", "too few", "all, limit unknown", "not all, limit unknown"],
)
def test_a_topic_with_too_few_in_sync_replicas_is_unavailable(
    in_sync: int, min_in_sync: int | Exception, make: Make, *, is_unavailable: bool
) -> None:
    assert (make(in_sync, min_in_sync)[0].unavailable(["bills"]) == {"bills"}) is is_unavailable


def test_an_unanswered_topic_is_unavailable_only_if_asked_so_and_the_client_is_made_again(make: Make) -> None:
    asked, made = make(SILENT)
    assert [asked.unavailable(["bills"]) for _ in range(2)] == [frozenset()] * 2
    assert len(made) == 2
    assert asked.unavailable(["bills"], include_unanswered=True) == {"bills"}


def entries(**settings: str) -> dict[str, Any]:
    return {name.replace("_", "."): SimpleNamespace(value=value) for name, value in settings.items()}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (entries(), TopicSettings(None, needs_key=False, is_strict=False)),
        (
            entries(
                max_message_bytes="100",
                cleanup_policy="compact,delete",
                message_timestamp_type="CreateTime",
                message_timestamp_before_max_ms="0",
            ),
            TopicSettings(100, needs_key=True, is_strict=True),
        ),
        (
            entries(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="0"),
            TopicSettings(None, needs_key=False, is_strict=False),
        ),
    ],
    ids=["unknown to the broker", "strict", "by the broker's clock"],
)
def test_settings_that_a_broker_does_not_know_refuse_nothing(settings: dict[str, Any], found: TopicSettings) -> None:
    assert TopicSettings.of(settings) == found
