"""List the members of the consumer group and their partitions. Asks once; callers repeat."""

from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.errors import error_of, explained
from bridge.kafka.retry import CALL_S, Retrier, serve
from bridge.ports import Member
from schemas.origin import Shard


class ConfluentGroup:
    """Thread-safe."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._group = connection.group
        self._make_admin: Callable[[], Any] = lambda: make(AdminClient, clients.admin(connection), retrier)
        self._admin = self._make_admin()

    def members(self) -> list[Member]:
        """Return the members of the group. Raises BridgeError."""
        serve(self._admin)
        try:
            answer = self._admin.describe_consumer_groups([self._group], request_timeout=CALL_S)
            members = answer[self._group].result().members
        except KafkaException as failure:
            raise self._failed(f"looking at group {self._group}", failure) from failure
        return [
            Member(f"{each.client_id} ({each.host.lstrip('/')})", clients.address_in(each.client_id), _shards(each))
            for each in members
        ]

    def shards(self, topics: Iterable[str]) -> set[Shard]:
        """Return all partitions of the topics. Raises BridgeError."""
        serve(self._admin)
        try:
            found = self._admin.list_topics(timeout=CALL_S).topics
        except KafkaException as failure:
            raise self._failed("looking at the timer topics", failure) from failure
        return {Shard(topic, number) for topic in topics if topic in found for number in found[topic].partitions}

    def _failed(self, what: str, failure: KafkaException) -> BridgeError:
        if error_of(failure).code() < 0:  # no broker has answered: the client may have lost all brokers for good
            self._admin = self._make_admin()
        return explained(what, error_of(failure))


def _shards(member: Any) -> frozenset[Shard]:
    return frozenset(Shard(each.topic, each.partition) for each in member.assignment.topic_partitions)
