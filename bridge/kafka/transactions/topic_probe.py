"""Ask which topics exist, may be written to and take records, with a client that caches no topic names.

A producer that is asked for a topic caches the name until the process ends, and asks for it again each second while the
cluster does not know it. Senders choose names, so that cache would grow without bound.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.errors import answered, error_of
from bridge.kafka.retry import CALL_S, Retrier, serve, serve_idle

LEAST_OLDEST_MS = 1000
"""Longer than a broker takes to append a marker with its own time, except for a pause of its garbage collector."""


class FoundTopic(NamedTuple):
    """A topic that exists. `id` is another one after the topic was deleted and created again."""

    partitions: int
    id: str


class TopicSettings(NamedTuple):
    """Settings of a topic that refuse records.

    most_batch_bytes: None if the broker does not report it. needs_key: True if the topic is compacted.
    is_strict: True if it may refuse the marker that ends a transaction, as it takes no timestamp older than a moment.
    Kafka 4.3 never sends a refused marker again, so that no producer can go on with that transactional.id.
    """

    most_batch_bytes: int | None
    needs_key: bool
    is_strict: bool


def _parsed(entries: Mapping[str, Any]) -> TopicSettings:
    """Settings that a broker does not know (Kafka before 3.6, other products) refuse nothing."""
    known = {name: entry.value for name, entry in entries.items()}
    by_sender = known.get("message.timestamp.type", "CreateTime") == "CreateTime"
    return TopicSettings(
        int(known["max.message.bytes"]) if "max.message.bytes" in known else None,
        "compact" in known.get("cleanup.policy", ""),
        by_sender and int(known.get("message.timestamp.before.max.ms", LEAST_OLDEST_MS)) < LEAST_OLDEST_MS,
    )


class TopicProbe:
    """Asks the cluster about many topics in one request. Thread-safe."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._admin: Any = None

    def describe(self, topics: Collection[str]) -> dict[str, FoundTopic | KafkaError]:
        """Return the topics, or the errors that records to them get. Topics without an answer are left out.

        A broker that does not report what our user may do counts as one that lets it write.
        """
        found: dict[str, FoundTopic | KafkaError] = {}
        for topic, answer in self._described(topics, include_authorized_operations=True):
            if isinstance(answer, KafkaError):
                found[topic] = answer
            elif (may := answer.authorized_operations) is not None and AclOperation.WRITE not in may:
                found[topic] = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            else:
                found[topic] = FoundTopic(len(answer.partitions), str(answer.topic_id))
        return {topic: answer for topic, answer in found.items() if not _is_unanswered(answer)}

    def unavailable(self, topics: Collection[str], *, include_unanswered: bool = False) -> frozenset[str]:
        """Return the topics with a partition that has no leader, or fewer in-sync replicas than min.insync.replicas.

        If our user may not see min.insync.replicas, all replicas have to be in sync.

        include_unanswered: True if topics about which no broker answers within 2 s are returned too.
        """
        in_sync: dict[str, int] = {}
        for topic, answer in self._described(topics):
            if isinstance(answer, KafkaError):
                if include_unanswered and _is_unanswered(answer):
                    in_sync[topic] = 0
            elif any(len(each.isr) < len(each.replicas) or not _has_leader(each) for each in answer.partitions):
                in_sync[topic] = min(len(each.isr) if _has_leader(each) else 0 for each in answer.partitions)
        found = self._settings([topic for topic, least in in_sync.items() if least > 0])
        name = "min.insync.replicas"
        needed = {topic: int(entries[name].value) for topic, entries in found.items() if name in entries}
        return frozenset(topic for topic, replicas in in_sync.items() if replicas < needed.get(topic, math.inf))

    def settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        """Return the settings of the topics whose configuration our user may see."""
        return {topic: _parsed(entries) for topic, entries in self._settings(topics).items()}

    def _described(self, topics: Collection[str], **options: Any) -> Iterator[tuple[str, Any]]:
        if not topics:
            return
        client = self._client()
        asked = client.describe_topics(TopicCollection([*topics]), request_timeout=CALL_S, **options)
        for topic, answer in asked.items():
            try:
                yield topic, answered(answer)
            except KafkaException as failure:
                if _is_unanswered(error := error_of(failure)):
                    self._admin = None
                yield topic, error
        serve(client)

    def _settings(self, topics: Collection[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        asked = self._client().describe_configs(resources, request_timeout=CALL_S) if topics else {}
        for resource, answer in asked.items():
            with suppress(KafkaException):
                found[resource.name] = answered(answer)
        return found

    def _client(self) -> Any:
        """Return a new client if the last one got no answer: it may have lost all brokers for good."""
        client = self._admin = self._admin or clients.make(AdminClient, clients.admin(self._connection), self._retrier)
        serve_idle(client)
        return client


def _is_unanswered(answer: object) -> bool:
    """True for an error of librdkafka: no broker has answered."""
    return isinstance(answer, KafkaError) and answer.code() < 0


def _has_leader(partition: Any) -> bool:
    return partition.leader is not None and partition.leader.id >= 0
