"""Describe, create and change topics with an admin client."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.errors import error_of, explained, is_passing
from bridge.kafka.retry import CALL_S, Retrier, serve

T = TypeVar("T")
_MAKE_S = 30.0
_NOT_SEEN = "created, but not visible yet, or not to us: give the bridge's user the right (an ACL) to describe it"


class ConfluentTopics:
    """Every call waits for a broker, as long as `retrier` does, unless its docstring differs."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._make_admin()

    def _make_admin(self) -> None:
        """Make a client. Repeated if no broker answers for long: a client may lose all brokers for good."""
        self._admin: Any = make(AdminClient, clients.admin(self._connection), self._retrier)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions, or None if the topic does not exist."""

        def ask() -> int | None:
            topics = self._admin.list_topics(timeout=CALL_S).topics
            return len(topics[name].partitions) if name in topics else None

        return self._retry(f"waiting for a broker ({name})", ask)

    def counts(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic. Asks once; leaves out topics without an answer."""
        found: dict[str, int] = {}
        answers = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=CALL_S)
        for name, answer in answers.items():
            with suppress(KafkaException):
                found[name] = len(answer.result().partitions)
        serve(self._admin)
        if not found:
            self._make_admin()
        return found

    def config(self, name: str, *, once: bool = False) -> dict[str, str]:
        """Return a topic's configuration. once: True to raise BridgeError if no broker answers in time."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)

        def ask() -> dict[str, str]:
            answer = self._admin.describe_configs([resource], request_timeout=CALL_S)
            return {key: entry.value for key, entry in answer[resource].result().items()}

        return self._retry(f"looking at topic {name}", ask, once=once)

    def allowed(self, name: str) -> frozenset[str] | None:
        """Return the operations on an existing topic that our user is allowed, or None if the broker does not tell."""

        def ask() -> frozenset[str] | None:
            answer = self._admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=CALL_S
            )
            operations = answer[name].result().authorized_operations
            return None if operations is None else frozenset(operation.name for operation in operations)

        return self._retry(f"looking at topic {name}", ask)

    def create(self, name: str, partitions: int, replication_factor: int, config: dict[str, str]) -> None:
        """Create a topic, unless another instance was faster. Returns when the cluster knows it."""
        topic = NewTopic(name, partitions, replication_factor, config=config)

        def make_it() -> None:
            self._admin.create_topics([topic], operation_timeout=_MAKE_S)[name].result()

        self._make(f"making topic {name}", make_it, KafkaError.TOPIC_ALREADY_EXISTS)
        self._until(name, 1)

    def set_config(self, name: str, key: str, value: str) -> None:
        """Set one configuration of a topic and leave the others as they are. Raises BridgeError if it is refused."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])

        def alter() -> None:
            self._admin.incremental_alter_configs([resource], request_timeout=CALL_S)[resource].result()

        self._retry(f"setting {key} of topic {name}", alter)

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions, up to `partitions` in all."""

        def make_them() -> None:
            self._admin.create_partitions([NewPartitions(name, partitions)])[name].result()

        self._make(f"adding partitions to topic {name}", make_them, KafkaError.INVALID_PARTITIONS)
        self._until(name, partitions)

    def _make(self, what: str, call: Callable[[], None], done_already: int) -> None:
        def unless_done() -> None:
            try:
                call()
            except KafkaException as failure:
                if error_of(failure).code() != done_already:
                    raise

        self._retry(what, unless_done)

    def _until(self, name: str, partitions: int) -> None:
        tries = 0
        while (self.partitions(name) or 0) < partitions:
            self._retrier.wait(f"topic {name}", _NOT_SEEN, tries, quietly=True)
            tries += 1

    def _retry(self, what: str, call: Callable[[], T], *, once: bool = False) -> T:
        replace_s = time.monotonic() + clients.REPLACED_AFTER_S

        def is_asked_again(error: KafkaError) -> bool:
            nonlocal replace_s
            if time.monotonic() >= replace_s:
                self._make_admin()
                replace_s = time.monotonic() + clients.REPLACED_AFTER_S
            return not once and is_passing(error) and not _is_refusal(error)

        def served() -> T:
            try:
                return call()
            finally:
                serve(self._admin)  # error_cb gets the reason why no broker answers

        try:
            return self._retrier.retry_until_success(what, served, is_asked_again)
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure


def _is_refusal(error: KafkaError) -> bool:
    """Return True if a retry would not help."""
    return error.code() in (
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    )
