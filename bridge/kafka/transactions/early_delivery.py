"""At-least-once: send deliveries before the transaction that holds all other records of their turn.

    deliveries -> acknowledged -> journal, copies, rejected, receipts, progress: one transaction

A reader sees a delivery as soon as the broker has it. Only a delivery whose transaction never commits is sent twice. A
retry of the transaction leaves out the deliveries that were acknowledged (`Aborted.acknowledged`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.errors import error_of, unwrapped
from bridge.kafka.retry import Retrier
from bridge.kafka.transactions.contents import FindUnavailable, SendFailure, TopicsUnavailableError
from bridge.kafka.transactions.record_sender import SLICE_S, RecordSender
from bridge.ports import Outgoing

_FATAL = frozenset({KafkaError._FATAL, KafkaError._STATE})  # noqa: SLF001
_LATE = KafkaError._MSG_TIMED_OUT  # noqa: SLF001
_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class EarlyResult(NamedTuple):
    """acknowledged: indices of deliveries. failed: the failure of the others, or None if all were acknowledged."""

    acknowledged: list[int]
    failed: SendFailure | None


class EarlyDeliverySender:
    """Sends deliveries, one batch at a time. own_topics: the bridge's; records to other topics are deliveries."""

    def __init__(
        self,
        connection: Connection,
        own_topics: frozenset[str],
        retrier: Retrier,
        find_unavailable: FindUnavailable,
    ) -> None:
        self._find_unavailable = find_unavailable
        self._own_topics = own_topics
        self._config = clients.early_delivery_producer(connection)
        self._retrier = retrier
        self._started: Sequence[Outgoing] | None = None
        self._deliveries: list[tuple[int, Outgoing]] = []
        self._fatal: KafkaError | None = None
        self._make_producer()

    def remaining(self, outgoing: Sequence[Outgoing]) -> list[int]:
        """Return the indices of all records that are not deliveries."""
        return [index for index, record in enumerate(outgoing) if record.topic in self._own_topics]

    def start_sending(self, outgoing: Sequence[Outgoing]) -> None:
        """Hand the deliveries to librdkafka, without waiting; `await_acknowledgements` reports errors."""
        self._started = outgoing
        self._begin(outgoing)
        self._unless_fatal(lambda: self._sending.send(self._deliveries))

    def await_acknowledgements(self, outgoing: Sequence[Outgoing], max_batch_bytes: Mapping[str, int]) -> EarlyResult:
        if outgoing is not self._started:
            self._begin(outgoing)
            self._unless_fatal(lambda: self._send_in_small_batches(outgoing, max_batch_bytes))
        self._started = None
        try:
            self._unless_fatal(lambda: self._await(outgoing))
        except TopicsUnavailableError as found:
            return self._abandon(found.topics)
        if self._fatal is not None:  # deliveries without a report are sent again, though they may have arrived
            self._replace_producer()
            return EarlyResult([], SendFailure(cause=self._fatal))
        named = self._sending.failures
        acknowledged = [index for index, _ in self._deliveries if index not in named]
        if not _FATAL.isdisjoint(named.values()) or (_LATE in named.values() and not acknowledged):
            self._replace_producer()
        if _DENIED in named.values():  # as a transaction reports it, which names no record
            return EarlyResult(acknowledged, SendFailure(cause=KafkaError(_DENIED)))
        taken = {record.topic for index, record in self._deliveries if index not in named}
        late = {record.topic for index, record in self._deliveries if named.get(index) == _LATE}
        unavailable = frozenset(late - taken) if taken else frozenset()
        return EarlyResult(acknowledged, SendFailure(dict(named), unavailable=unavailable) if named else None)

    def refresh_metadata(self, topic: str) -> None:
        """Make the producer forget that it did not know the topic."""
        self._sending.partitions_of(topic)

    def close(self, flush_s: float = 0) -> None:
        self._producer.purge()
        with suppress(KafkaException, SystemError):  # a fatal error that was reported before
            self._producer.flush(flush_s)

    def _abandon(self, unavailable: frozenset[str]) -> EarlyResult:
        """Give up deliveries that are not acknowledged. They are sent again, though some may have arrived."""
        self.close(SLICE_S)
        acknowledged = [index for index, _ in self._deliveries if index not in self._sending.failures]
        self._make_producer()
        return EarlyResult(acknowledged, SendFailure(unavailable=unavailable))

    def _replace_producer(self) -> None:
        self.close()
        self._make_producer()

    def _make_producer(self) -> None:
        self._producer: Any = make(Producer, self._config, self._retrier)
        self._sending = RecordSender(self._producer, self._retrier)

    def _begin(self, outgoing: Sequence[Outgoing]) -> None:
        own = self._own_topics
        self._deliveries = [(index, record) for index, record in enumerate(outgoing) if record.topic not in own]
        self._fatal = None
        self._sending.begin()

    def _send_in_small_batches(self, outgoing: Sequence[Outgoing], max_batch_bytes: Mapping[str, int]) -> None:
        for _ in self._sending.send_in_small_batches(self._deliveries, max_batch_bytes):
            self._await(outgoing)

    def _await(self, outgoing: Sequence[Outgoing]) -> None:
        self._sending.await_acknowledgements(outgoing, has_failed=lambda: False, on_stall=self._require_available)

    def _require_available(self) -> None:
        """Raise TopicsUnavailableError if a topic takes no records."""
        if found := self._find_unavailable({record.topic for _, record in self._deliveries}):
            raise TopicsUnavailableError(found)

    def _unless_fatal(self, step: Callable[[], None]) -> None:
        """Run `step` unless the producer has failed; keep the error with which `step` fails."""
        if self._fatal is None:
            try:
                with unwrapped():
                    step()
            except KafkaException as failure:
                self._fatal = error_of(failure)
