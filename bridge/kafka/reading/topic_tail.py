"""Read what is committed to a topic from now on, with a consumer outside the group."""

from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.consumer import record_of
from bridge.kafka.errors import error_of, explained, is_passing
from bridge.kafka.reading.control_reader import consumed
from bridge.kafka.retry import CALL_S, Retrier
from bridge.ports import Record


class TopicTail:
    """Begins at the present ends of all partitions. Not thread-safe. Raises BridgeError."""

    def __init__(self, connection: Connection, topic: str, partitions: int, retrier: Retrier) -> None:
        self._topic, self._retrier = topic, retrier
        config = {**clients.reader(connection), "auto.offset.reset": "latest"}
        self._consumer: Any = make(Consumer, config, retrier)
        self._consumer.assign([self._end_of(number) for number in range(partitions)])

    def poll(self, timeout_s: float) -> list[Record]:
        """Return new records; waits for the first one at most this long."""
        messages = consumed(self._consumer, self._topic, timeout_s, self._retrier)
        return [record_of(message) for message in messages if message.error() is None]

    def close(self) -> None:
        self._consumer.close()

    def _end_of(self, partition: int) -> TopicPartition:
        what, place = f"{self._topic}/{partition}: reading", TopicPartition(self._topic, partition)
        try:
            _, end = self._retrier.retry_until_success(
                what, lambda: self._consumer.get_watermark_offsets(place, timeout=CALL_S), is_passing
            )
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure
        return TopicPartition(self._topic, partition, end)
