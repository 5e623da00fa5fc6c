"""Whether a topic is there, asked by a client that remembers nothing of it.

A producer that is asked makes a topic of its own of the name, keeps it until the process ends, and while the cluster
does not know it asks for it again each second. Senders choose names, so that would have no bound.
"""

from threading import Lock
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from bridge.confluent import clients
from bridge.confluent.waiting import CALL_S, Patience, error_of, serve
from bridge.connection import Connection


class Existence:
    """For any thread, one at a time."""

    def __init__(self, connection: Connection, patience: Patience) -> None:
        self._connection = connection
        self._patience = patience
        self._asking = Lock()
        self._admin: Any = None

    def partitions_of(self, topic: str) -> int | KafkaError:
        """How many, or why not, by a broker's word. Raises KafkaException where none answers."""
        with self._asking:
            if self._admin is None:
                self._admin = clients.make(AdminClient, clients.plain(self._connection), self._patience)
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=CALL_S)
            try:
                return len(asked[topic].result().partitions)
            except KafkaException as failure:
                if error_of(failure).code() > 0:
                    return error_of(failure)
                raise
            finally:
                serve(self._admin)
