"""Read the control topic from its beginning, with a consumer outside the group."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BrokerUnavailableError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.consumer import record_of
from bridge.kafka.errors import error_of, explained, is_passing
from bridge.kafka.retry import Retrier
from bridge.ports import Record

_BATCH = 500
_WAIT_S = 0.1
_LIMIT_S, _CALL_S = 3.0, 1.0  # for one `catch_up`, on the loop's thread; for one call in it


class ConfluentControl:
    """Implements `bridge.ports.Control`. Not thread-safe."""

    def __init__(self, connection: Connection, topic: str, retrier: Retrier) -> None:
        self._make: Callable[[], Any] = lambda: make(Consumer, clients.control_reader(connection), retrier)
        self._retrier = Retrier(retrier)
        self._place = TopicPartition(topic, 0, OFFSET_BEGINNING)
        self._position = 0
        self._make_consumer()

    def poll(self) -> Iterator[Record]:
        # A client that has lost all brokers for good looks like one without new records.
        if time.monotonic() - self._made_s >= clients.REPLACED_AFTER_S:
            self._replace_consumer()
        return self._next(0)

    def catch_up(self) -> Iterator[Record]:
        what = f"{self._place.topic}: reading"
        self._retrier.give_up_in(_LIMIT_S)
        try:
            _, end = self._retrier.retry_until_success(
                what, lambda: self._consumer.get_watermark_offsets(self._place, timeout=_CALL_S), is_passing
            )
            while self._position < end:
                self._retrier.demand_time(what, f"at {self._position} of {end}")
                yield from self._next(_WAIT_S)
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure
        except BrokerUnavailableError:
            self._retrier.status.broker_wait_ended()  # the waiting partitions have a status of their own
            self._replace_consumer()
            raise

    def close(self) -> None:
        self._consumer.close()

    def _make_consumer(self) -> None:
        self._made_s = time.monotonic()
        self._consumer = self._make()
        self._place.offset = self._position or OFFSET_BEGINNING
        self._consumer.assign([self._place])

    def _replace_consumer(self) -> None:
        self._consumer.close()
        self._make_consumer()

    def _next(self, timeout_s: float) -> Iterator[Record]:
        for message in consumed(self._consumer, self._place.topic, timeout_s, self._retrier):
            if message.error() is not None:
                self._position = message.offset()
                continue
            self._position = message.offset() + 1
            yield record_of(message)


def consumed(consumer: Any, topic: str, timeout_s: float, retrier: Retrier) -> Iterator[Any]:
    """Yield records, and messages with the error _PARTITION_EOF, which have the offset of a partition's end.

    Waits for the first one at most `timeout_s`. Raises BridgeError for an error that does not pass.
    """
    for message in consumer.consume(_BATCH, timeout_s):
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            yield message
        elif is_passing(error):
            retrier.hear(error)
        else:
            raise explained(f"{topic}: reading", error)
