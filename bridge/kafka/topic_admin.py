"""The cluster's topics, looked at and made by an admin."""

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
from bridge.kafka.client_config import explained, is_passing, make
from bridge.kafka.retry import CALL_S, Patience, error_of, serve

T = TypeVar("T")
_MAKE_S = 30.0
_NOT_SEEN = "made, but not to be seen yet, or not by us: give the bridge's user the right (an ACL) to describe it"


class ConfluentTopics:
    """Every call waits for a broker, as long as `patience` does, unless it says otherwise."""

    def __init__(self, connection: Connection, patience: Patience) -> None:
        self._connection = connection
        self._patience = patience
        self._make_admin()

    def _make_admin(self) -> None:
        """Again if no broker has answered for long: a client may lose all brokers for good."""
        self._admin: Any = make(AdminClient, clients.plain(self._connection), self._patience)

    def partitions(self, name: str) -> int | None:
        """How many; None where the topic is not there."""

        def ask() -> int | None:
            topics = self._admin.list_topics(timeout=CALL_S).topics
            return len(topics[name].partitions) if name in topics else None

        return self._insist(f"waiting for a broker ({name})", ask)

    def counts(self, names: Collection[str]) -> dict[str, int]:
        """Return how many partitions each topic has. Asks once; leaves out topics that no broker tells of."""
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
        """`once`: BridgeError where no broker answers in time."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)

        def ask() -> dict[str, str]:
            answer = self._admin.describe_configs([resource], request_timeout=CALL_S)
            return {key: entry.value for key, entry in answer[resource].result().items()}

        return self._insist(f"looking at topic {name}", ask, once=once)

    def allowed(self, name: str) -> frozenset[str] | None:
        """What our user may do with a topic that is there, in Kafka's words; None where the broker does not say."""

        def ask() -> frozenset[str] | None:
            answer = self._admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=CALL_S
            )
            operations = answer[name].result().authorized_operations
            return None if operations is None else frozenset(operation.name for operation in operations)

        return self._insist(f"looking at topic {name}", ask)

    def create(self, name: str, partitions: int, replication_factor: int, config: dict[str, str]) -> None:
        """Nothing happens where another instance was faster. Returns when the cluster knows it."""
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

        self._insist(f"setting {key} of topic {name}", alter)

    def grow(self, name: str, partitions: int) -> None:
        """So many partitions in all."""

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

        self._insist(what, unless_done)

    def _until(self, name: str, partitions: int) -> None:
        tries = 0
        while (self.partitions(name) or 0) < partitions:
            self._patience.wait(f"topic {name}", _NOT_SEEN, tries, quietly=True)
            tries += 1

    def _insist(self, what: str, call: Callable[[], T], *, once: bool = False) -> T:
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
                serve(self._admin)  # error_cb tells the reason why nobody answers

        try:
            return self._patience.retry_until_success(what, served, is_asked_again)
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure


def _is_refusal(error: KafkaError) -> bool:
    """Asking again would not help."""
    return error.code() in (
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    )
