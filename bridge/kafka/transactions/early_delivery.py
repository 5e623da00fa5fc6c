"""At-least-once: deliveries are sent and acknowledged ahead of the transaction that holds all else of their turn.

    deliveries -> acknowledged -> journal, copies, rejected, receipts, progress: one transaction

So a reader has a delivery as soon as the broker does, and what is decided is as safe as ever: only a delivery whose
transaction never stands is made again, by whoever reads what Kafka holds then. Who repeats the transaction knows what
stands (`Aborted.standing`), and does not ask for that again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.retry import Patience, error_of, unwrapped
from bridge.kafka.transactions.produce import SLICE_S, PendingSends
from bridge.kafka.transactions.producer import Failed, Unavailable, UnavailableError
from bridge.ports import Outgoing

_FATAL = frozenset({KafkaError._FATAL, KafkaError._STATE})  # noqa: SLF001
_LATE = KafkaError._MSG_TIMED_OUT  # noqa: SLF001
_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class EarlyResult(NamedTuple):
    """`standing`: deliveries that are acknowledged, by index; `failed`: the others, None where there are none."""

    standing: list[int]
    failed: Failed | None


class Ahead:
    """`own_topics`: of the bridge; what goes elsewhere is a delivery. One batch at a time, and in order."""

    def __init__(
        self,
        connection: Connection,
        own_topics: frozenset[str],
        patience: Patience,
        unavailable: Unavailable,
    ) -> None:
        """`unavailable`: asks the cluster which of some topics take no records."""
        self._unavailable = unavailable
        self._own_topics = own_topics
        self._config = clients.ahead(connection)
        self._patience = patience
        self._loaded: Sequence[Outgoing] | None = None
        self._deliveries: list[tuple[int, Outgoing]] = []
        self._fatal: KafkaError | None = None
        self._make()

    def left(self, outgoing: Sequence[Outgoing]) -> list[int]:
        """By index: all that is not sent ahead."""
        return [index for index, record in enumerate(outgoing) if record.topic in self._own_topics]

    def load(self, outgoing: Sequence[Outgoing]) -> None:
        """What of `fill` takes no waiting, for another thread to do. What goes wrong, `fill` tells."""
        self._loaded = outgoing
        self._begin(outgoing)
        self._try(lambda: self._sending.send(self._deliveries))

    def fill(self, outgoing: Sequence[Outgoing], narrow: Mapping[str, int]) -> EarlyResult:
        if outgoing is not self._loaded:
            self._begin(outgoing)
            self._try(lambda: self._send_narrowly(outgoing, narrow))
        self._loaded = None
        try:
            self._try(lambda: self._await(outgoing))
        except UnavailableError as found:
            return self._without(found.topics)
        if self._fatal is not None:  # whose fate is not told may stand: it is sent again
            self._begin_anew()
            return EarlyResult([], Failed(cause=self._fatal))
        named = self._sending.failures
        standing = [index for index, _ in self._deliveries if index not in named]
        if not _FATAL.isdisjoint(named.values()) or (_LATE in named.values() and not standing):
            self._begin_anew()
        if _DENIED in named.values():  # told as a transaction tells it, which names nobody
            return EarlyResult(standing, Failed(cause=KafkaError(_DENIED)))
        taken = {record.topic for index, record in self._deliveries if index not in named}
        late = {record.topic for index, record in self._deliveries if named.get(index) == _LATE}
        unavailable = frozenset(late - taken) if taken else frozenset()
        return EarlyResult(standing, Failed(dict(named), unavailable=unavailable) if named else None)

    def look_at(self, topic: str) -> None:
        """Makes the producer forget that it did not know the topic."""
        self._sending.partitions_of(topic)

    def close(self, flush_s: float = 0) -> None:
        self._producer.purge()
        with suppress(KafkaException, SystemError):  # a fatal error was told before
            self._producer.flush(flush_s)

    def _without(self, unavailable: frozenset[str]) -> EarlyResult:
        """Give up what is not acknowledged. Some of it may stand after all: it is sent again, at least once."""
        self.close(SLICE_S)
        standing = [index for index, _ in self._deliveries if index not in self._sending.failures]
        self._make()
        return EarlyResult(standing, Failed(unavailable=unavailable))

    def _begin_anew(self) -> None:
        self.close()
        self._make()

    def _make(self) -> None:
        self._producer: Any = make(Producer, self._config, self._patience)
        self._sending = PendingSends(self._producer, self._patience)

    def _begin(self, outgoing: Sequence[Outgoing]) -> None:
        own = self._own_topics
        self._deliveries = [(index, record) for index, record in enumerate(outgoing) if record.topic not in own]
        self._fatal = None
        self._sending.begin()

    def _send_narrowly(self, outgoing: Sequence[Outgoing], narrow: Mapping[str, int]) -> None:
        for _ in self._sending.send_narrowly(self._deliveries, narrow):
            self._await(outgoing)

    def _await(self, outgoing: Sequence[Outgoing]) -> None:
        self._sending.await_acknowledgements(outgoing, beyond_failures=True, on_stall=self._demand_available)

    def _demand_available(self) -> None:
        """Raises UnavailableError."""
        if found := self._unavailable({record.topic for _, record in self._deliveries}):
            raise UnavailableError(found)

    def _try(self, step: Callable[[], None]) -> None:
        """Unless the producer is of no use any more; notes the error by which it becomes so."""
        if self._fatal is None:
            try:
                with unwrapped():
                    step()
            except KafkaException as failure:
                self._fatal = error_of(failure)
