"""At-least-once: deliveries are sent and acknowledged ahead of the transaction that holds all else of their turn.

    deliveries -> acknowledged -> journal, copies, rejected, receipts, progress: one transaction

So a reader has a delivery as soon as the broker does, and what is decided is as safe as ever: only a delivery whose
transaction never stands is made again, by whoever reads what Kafka holds then. While it is the same process that
repeats the transaction, what stands already is not sent again.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from bridge.confluent import clients
from bridge.confluent.clients import make
from bridge.confluent.producer import Failed
from bridge.confluent.sending import Sending
from bridge.confluent.waiting import Patience, unwrapped
from bridge.connection import Connection
from bridge.ports import Outgoing

MEMORY_S = 600.0
"""A transaction that is repeated is repeated sooner, or tells again what stands."""

_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
_FATAL = frozenset({KafkaError._FATAL, KafkaError._STATE})  # noqa: SLF001


class Ahead:
    """`own_topics`: of the bridge; what goes elsewhere is a delivery. One batch at a time, and in order."""

    def __init__(self, connection: Connection, own_topics: frozenset[str], patience: Patience) -> None:
        self._own_topics = own_topics
        self._config = clients.ahead(connection)
        self._patience = patience
        self._standing: dict[Hashable, float] = {}
        self._loaded: Sequence[Outgoing] | None = None
        self._begin_anew()

    def left(self, outgoing: Sequence[Outgoing]) -> list[int]:
        """By index: all that is not sent ahead."""
        return [index for index, record in enumerate(outgoing) if record.topic in self._own_topics]

    def load(self, outgoing: Sequence[Outgoing]) -> None:
        """What of `fill` takes no waiting, for another thread to do."""
        self._loaded = outgoing
        self._sending.begin()
        with suppress(KafkaException), unwrapped():  # what goes wrong, `fill` tells by the records that failed
            self._sending.send(self._missing(outgoing))

    def fill(self, outgoing: Sequence[Outgoing], narrow: Mapping[str, int]) -> Failed | None:
        """None: all deliveries of `outgoing` stand. Else those that have failed, by index; the others stand."""
        if outgoing is not self._loaded:
            self._sending.begin()
            for _ in self._sending.send_narrowly(self._missing(outgoing), narrow):
                self._await(outgoing)
        self._loaded = None
        self._await(outgoing)
        return self._failed(outgoing)

    def look_at(self, topic: str) -> None:
        """Makes the producer forget that it did not know the topic."""
        self._sending.partitions_of(topic)

    def keep(self, outgoing: Sequence[Outgoing]) -> None:
        """They stand, and their transaction does not."""
        now_s = time.monotonic()
        self._standing = {known: at_s for known, at_s in self._standing.items() if now_s - at_s < MEMORY_S}
        self._standing |= {_identity(record): now_s for record in outgoing if record.topic not in self._own_topics}

    def forget(self, outgoing: Sequence[Outgoing]) -> None:
        """Their transaction stands."""
        if self._standing:
            for record in outgoing:
                self._standing.pop(_identity(record), None)

    def close(self) -> None:
        self._producer.purge()
        with suppress(KafkaException, SystemError):  # a fatal error was told before
            self._producer.flush(0)

    def _begin_anew(self) -> None:
        self._producer: Any = make(Producer, self._config, self._patience)
        self._sending = Sending(self._producer, self._patience)

    def _missing(self, outgoing: Sequence[Outgoing]) -> list[tuple[int, Outgoing]]:
        deliveries = [(index, record) for index, record in enumerate(outgoing) if record.topic not in self._own_topics]
        if not self._standing:
            return deliveries
        return [(index, record) for index, record in deliveries if _identity(record) not in self._standing]

    def _await(self, outgoing: Sequence[Outgoing]) -> None:
        with suppress(KafkaException), unwrapped():  # a fatal error: every record tells of it
            self._sending.await_acknowledgements(outgoing, beyond_failures=True)

    def _failed(self, outgoing: Sequence[Outgoing]) -> Failed | None:
        named = self._sending.failures
        if not named:
            return None
        self.keep([record for index, record in enumerate(outgoing) if index not in named])
        if not _FATAL.isdisjoint(named.values()):
            self.close()
            self._begin_anew()
        if _DENIED in named.values():  # told as a transaction tells it, which names nobody
            return Failed(cause=KafkaError(_DENIED))
        return Failed(dict(named))


def _identity(record: Outgoing) -> Hashable:
    return record._replace(headers=tuple(record.headers))  # type: ignore[arg-type]
