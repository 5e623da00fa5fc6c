"""Read committed records outside the consumer group: of one partition, or of the control topic."""

import math
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, BrokerUnavailableError, PartitionUnreadableError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import REPLACED_AFTER_S, make
from bridge.kafka.consumer import GROUP, HEADER_BYTES, Message, record_of
from bridge.kafka.errors import OFFSET_GONE, UNDECODABLE, UNKNOWN, error_of, explained, is_passing
from bridge.kafka.retry import Retrier
from bridge.partition.request import MAX_HEADERS
from bridge.ports import Record
from kafka_timer.headers import decoded_headers
from kafka_timer.origin import TimerPartition

_BATCH = 2000
_CONTROL_BATCH = 500
_WAIT_S = 0.1
LIMIT_S = 3.0
"""Seconds for one read on the loop's thread, as no timer leaves meanwhile. A background recovery has no limit."""
LIMITED_CALL_S = 1.0
"""Seconds for one call within such a read."""


@dataclass(eq=False)
class PartitionReader:
    """Reads the committed messages of [position, end) that are still kept. For one read, which begins at once.

    skipped: offsets to leave out if they cannot be decoded. limit_s: None: waits for as long as it takes.
    """

    _place: TimerPartition
    position: int
    _end: int
    _skipped: Container[int]
    _retrier: Retrier
    _limit_s: float | None
    _silent: int = field(default=0, init=False)
    """Consecutive polls without messages, also of consumers before."""

    def __post_init__(self) -> None:
        self._until_s = math.inf if self._limit_s is None else time.monotonic() + self._limit_s

    def read(self, consumer: Any) -> Iterator[list[Message]]:
        """Yield messages to the end, or until a new consumer is needed. Raises PartitionUnreadableError."""
        consumer.assign([TopicPartition(*self._place, self.position)])
        is_kept = True
        while self.position < self._end and is_kept:
            where = f"at {self.position} of {self._end}"
            if time.monotonic() >= self._until_s:
                why = f"{where} after {self._limit_s} s: much to read, an open transaction, or no broker"
                raise PartitionUnreadableError(f"{self._place}: reading: {why}")
            messages, is_kept = self._next_batch(consumer)
            if messages:
                self._silent = 0
                yield messages
            elif self.position < self._end:
                self._silent += 1
                if self._silent > 1 / _WAIT_S:
                    self._retrier.wait(f"{self._place}: reading", f"{where}: an open transaction, or no broker", 0)
                if self._silent > REPLACED_AFTER_S / _WAIT_S:
                    self._silent = 0
                    return

    def _next_batch(self, consumer: Any) -> tuple[list[Message], bool]:
        """Return messages, and True if the position after them is still kept."""
        is_kept = True
        messages: list[Message] = []
        for message in self._fetched(consumer):
            error = message.error()
            if error is None and message.offset() < self._end:
                messages.append(message)
                self.position = message.offset() + 1
                if len(decoded_headers(message)) > MAX_HEADERS:  # a batch of such would not fit into memory
                    consumer.seek(TopicPartition(*self._place, self.position))
                    break
            elif error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                self.position = max(self.position, message.offset())
            elif error.code() in OFFSET_GONE:
                is_kept = False
            elif error.code() in UNDECODABLE:
                if messages:
                    break  # yield these first; librdkafka repeats the error
                self.position = max(self.position, message.offset())  # earlier offsets are markers or aborted records
                if self.position < self._end:
                    self._seek_past(consumer, error)
            else:
                note_error(self._place, error, self._retrier)
        return messages, is_kept

    def _fetched(self, consumer: Any) -> Iterator[Message]:
        """Yield messages in small groups, see `ConfluentSource._read`. Waits for the first one."""
        messages, count = [consumer.poll(_WAIT_S)], 0
        while messages and messages[0] is not None:
            yield from messages
            count += len(messages)
            messages = consumer.consume(GROUP, 0) if count < _BATCH else []

    def _seek_past(self, consumer: Any, error: KafkaError) -> None:
        """Seek to the record after the position, which cannot be decoded. Raises PartitionUnreadableError."""
        offset = self.position
        if offset not in self._skipped:
            raise PartitionUnreadableError(f"{self._place}: offset {offset} cannot be decoded: {error.str()}", offset)
        self.position = offset + 1
        consumer.seek(TopicPartition(*self._place, self.position))


def read_together(
    make_consumer: Callable[[], Any],
    spans: Mapping[TimerPartition, range],
    retrier: Retrier,
    limit_s: float | None,
    size_bytes: float = math.inf,
) -> dict[TimerPartition, list[Message]]:
    """Return the committed messages in each span of offsets. One consumer reads all spans that are not empty.

    Leave out a partition if its span is not decided to the end within `limit_s`, if retention has deleted a part, or if
    a message cannot be decoded or has too many headers. Stop when the messages have `size_bytes`.
    """
    read: dict[TimerPartition, list[Message]] = {place: [] for place in spans}
    left = {place: span.stop for place, span in spans.items() if span}
    if not left:
        return read
    tries, until_s = 0, math.inf if limit_s is None else time.monotonic() + limit_s
    with closing(make_consumer()) as consumer:
        consumer.assign([TopicPartition(*place, spans[place].start) for place in left])
        while left and size_bytes > 0 and time.monotonic() < until_s:
            message = consumer.poll(_WAIT_S)
            if message is None:
                tries += 1
                if tries > 1 / _WAIT_S:
                    retrier.wait("reading several partitions", "an open transaction, or no broker", 0)
                continue
            tries, place = 0, TimerPartition(message.topic(), message.partition())
            is_whole = _is_whole(message, place, left.get(place, 0), retrier)
            if place not in left:
                continue
            if message.error() is None and message.offset() < left[place]:
                read[place].append(message)
                headers = decoded_headers(message)
                size_bytes -= len(message.key() or b"") + len(message.value() or b"") + HEADER_BYTES * len(headers)
                size_bytes -= sum(len(name) + len(value or b"") for name, value in headers)
            if is_whole is not None:
                del left[place]
                consumer.pause([TopicPartition(*place)])
            if is_whole is False:
                del read[place]
    return {place: messages for place, messages in read.items() if place not in left}


def _is_whole(message: Message, place: TimerPartition, end: int, retrier: Retrier) -> bool | None:
    """Return True if all offsets below `end` are decided, False if they have to be read alone, None if more follow.

    Raises BridgeError if the message is an error that does not pass.
    """
    error = message.error()
    if error is None:
        is_over = message.offset() + 1 >= end or None
        return False if message.offset() < end and len(decoded_headers(message)) > MAX_HEADERS else is_over
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
        return bool(message.offset() >= end)
    if error.code() in OFFSET_GONE | UNDECODABLE:
        return False
    note_error(place, error, retrier)
    return None


def note_error(place: TimerPartition, error: KafkaError, retrier: Retrier) -> None:
    """Pass an error on to `retrier`. Raises BridgeError if it is not passing."""
    if error.code() in UNKNOWN:
        raise BridgeError(f"{place} does not exist any more: start again, which creates missing topics")
    if not is_passing(error):
        raise explained(f"{place}: reading", error)
    retrier.hear(error)


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
        self._retrier.give_up_in(LIMIT_S)
        try:
            _, end = self._retrier.retry_until_success(
                what, lambda: self._asker.get_watermark_offsets(self._place, timeout=LIMITED_CALL_S), is_passing
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
        self._asker.close()

    def _make_consumer(self) -> None:
        self._made_s = time.monotonic()
        self._consumer, self._asker = self._make(), self._make()  # a broker answers the first after its fetch alone
        self._place.offset = self._position or OFFSET_BEGINNING
        self._consumer.assign([self._place])

    def _replace_consumer(self) -> None:
        self.close()
        self._make_consumer()

    def _next(self, timeout_s: float) -> Iterator[Record]:
        """Yield records. Waits for the first one. Raises BridgeError for an error that does not pass."""
        for message in self._consumer.consume(_CONTROL_BATCH, timeout_s):
            error = message.error()
            if error is None:
                self._position = message.offset() + 1
                yield record_of(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                self._position = message.offset()
            elif is_passing(error):
                self._retrier.hear(error)
            else:
                raise explained(f"{self._place.topic}: reading", error)
