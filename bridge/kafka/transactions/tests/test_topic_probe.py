"""Which topics take no records, by what an admin client says that a test makes."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.kafka.retry import Patience
from bridge.kafka.transactions.topic_probe import Existence

DENIED, SILENT = (
    KafkaException(KafkaError(code)) for code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._TIMED_OUT)
)


def told(what: object) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(what, Exception):
        future.set_exception(what)
    else:
        future.set_result(what)
    return future


class Admin:
    """`in_sync` of three replicas, or an error; `needed`: min.insync.replicas, or an error."""

    def __init__(self, in_sync: int | Exception, needed: int | Exception) -> None:
        self._in_sync, self._needed = in_sync, needed

    def poll(self, timeout_s: float) -> None: ...

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, "Future[Any]"]:
        del topics, request_timeout
        if isinstance(self._in_sync, Exception):
            return {"bills": told(self._in_sync)}
        partition = SimpleNamespace(isr=range(self._in_sync), replicas=range(3), leader=SimpleNamespace(id=1))
        return {"bills": told(SimpleNamespace(partitions=[partition]))}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        del request_timeout
        needed = self._needed
        answer = (
            needed if isinstance(needed, Exception) else {"min.insync.replicas": SimpleNamespace(value=str(needed))}
        )
        return {resource: told(answer) for resource in resources}


def existence(in_sync: int | Exception, needed: int | Exception = 2) -> Any:
    made: Any = Existence(Connection("127.0.0.1:1"), Patience())
    made._admin = Admin(in_sync, needed)
    return made


@pytest.mark.parametrize(
    ("in_sync", "needed", "is_unavailable"),
    [(3, 2, False), (2, 2, False), (1, 2, True), (3, DENIED, False), (2, DENIED, True)],
    ids=["all", "enough", "too few", "all, limit unknown", "not all, limit unknown"],
)
def test_a_topic_with_too_few_in_sync_replicas_is_unavailable(
    in_sync: int, needed: int | Exception, *, is_unavailable: bool
) -> None:
    assert (existence(in_sync, needed).unavailable(["bills"]) == {"bills"}) is is_unavailable


def test_a_topic_of_which_no_broker_tells_is_unavailable_only_if_asked_so_and_the_client_is_made_again() -> None:
    asked = existence(SILENT)
    assert asked.unavailable(["bills"]) == frozenset()
    assert asked._admin is None
    assert existence(SILENT).unavailable(["bills"], unless_told=True) == {"bills"}
