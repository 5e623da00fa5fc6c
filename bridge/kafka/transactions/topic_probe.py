"""Ask whether a topic exists, may be written to and takes records, with a client that caches no topic names.

A producer that is asked for a topic caches the name until the process ends, and asks for it again each second while the
cluster does not know it. Senders choose names, so that cache would grow without bound.
"""

import math
from collections.abc import Collection
from contextlib import suppress
from threading import Lock
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.errors import error_of
from bridge.kafka.retry import CALL_S, Retrier, serve


class TopicProbe:
    """Asks the cluster about topics. Thread-safe: one call runs at a time."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._asking = Lock()
        self._admin: Any = None

    def partitions_of(self, topic: str) -> int | KafkaError:
        """Return the number of partitions, or the error that records to the topic get.

        A broker that does not report what our user may do counts as one that lets it write. Raises KafkaException
        if no broker answers.
        """
        with self._asking:
            client = self._client()
            asked = client.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=CALL_S
            )
            try:
                found = asked[topic].result()
                allowed = found.authorized_operations
                if allowed is not None and AclOperation.WRITE not in allowed:
                    return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                return len(found.partitions)
            except KafkaException as failure:
                if error_of(failure).code() > 0:
                    return error_of(failure)
                self._admin = None
                raise
            finally:
                serve(client)

    def unavailable(self, topics: Collection[str], *, include_unanswered: bool = False) -> frozenset[str]:
        """Return the topics with a partition that has no leader, or fewer in-sync replicas than min.insync.replicas.

        If our user may not see min.insync.replicas, all replicas have to be in sync.

        include_unanswered: True if topics about which no broker answers within 2 s are returned too.
        """
        with self._asking:
            client = self._client()
            asked = client.describe_topics(TopicCollection([*topics]), request_timeout=CALL_S)
            in_sync: dict[str, int] = {}
            for topic, answer in asked.items():
                try:
                    partitions = answer.result().partitions
                except KafkaException as failure:
                    if error_of(failure).code() < 0:  # an error of librdkafka: no broker answered
                        self._admin = None
                        if include_unanswered:
                            in_sync[topic] = 0
                else:
                    if any(len(each.isr) < len(each.replicas) or not _has_leader(each) for each in partitions):
                        in_sync[topic] = min(len(each.isr) if _has_leader(each) else 0 for each in partitions)
            min_in_sync = self._needed_in_sync([topic for topic, replicas in in_sync.items() if replicas > 0])
            serve(client)
        return frozenset(topic for topic, replicas in in_sync.items() if replicas < min_in_sync.get(topic, math.inf))

    def _needed_in_sync(self, topics: Collection[str]) -> dict[str, int]:
        """Return min.insync.replicas of those topics whose configuration our user may see."""
        found: dict[str, int] = {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        for resource, answer in (
            self._client().describe_configs(resources, request_timeout=CALL_S).items() if topics else ()
        ):
            with suppress(KafkaException):
                found[resource.name] = int(answer.result()["min.insync.replicas"].value)
        return found

    def _client(self) -> Any:
        """Return a new client if the last one got no answer: it may have lost all brokers for good."""
        if self._admin is None:
            self._admin = clients.make(AdminClient, clients.admin(self._connection), self._retrier)
        return self._admin


def _has_leader(partition: Any) -> bool:
    return partition.leader is not None and partition.leader.id >= 0
