"""Send the records of a transaction with one librdkafka producer, wait for acknowledgements, and collect failures."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.errors import error_of
from bridge.kafka.retry import Retrier
from bridge.ports import Outgoing
from kafka_timer.origin import TimerPartition
from schemas.chunks import chunks
from schemas.progress import Progress

SLICE_S = 0.1
EARLY_S = 0.15
"""Before a deleted topic makes timers of others late by half a second."""
STALL_S = 3.0
"""Longer than a broker takes to acknowledge under load, and well below the transaction timeout of 10 s."""

_BATCH_BYTES = 61
_FIXED_BYTES = 3
"""Attributes, time and offset within the batch."""


def first_of(topics: Iterable[str]) -> str:
    """Return the names of at most three topics, for the log."""
    return ", ".join(sorted(topics)[:3])


@dataclass(slots=True)
class TransactionContents:
    """Contents of one transaction. max_batch_bytes: topic -> bytes that may be unacknowledged at a time."""

    records: Sequence[Outgoing]
    progress: Mapping[TimerPartition, Progress]
    group_metadata: object
    max_batch_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SendFailure:
    """Why a transaction was aborted. named: error codes by record. cause: error of the whole transaction."""

    named: dict[Outgoing, int] = field(default_factory=dict)
    cause: KafkaError | None = None
    unavailable: frozenset[str] = frozenset()
    """Topics that caused the failure by accepting no records in time."""
    is_slow: bool = False
    """True if the transaction timed out though the broker accepted a part (slow broker, or quota)."""

    @property
    def codes(self) -> set[int]:
        return set(self.named.values()) | ({self.cause.code()} if self.cause is not None else set())

    @property
    def is_followup_error(self) -> bool:
        """True if the transaction before it is the reason (rule 3 of producer.py)."""
        return not self.named and self.codes == {KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER}

    def __str__(self) -> str:
        if self.unavailable:
            return f"no records are taken by {first_of(self.unavailable)}"
        if self.cause is not None:
            return self.cause.str()
        return f"{len(self.named)} records failed" if self.named else "the broker did not answer in time"


def send_records(
    producer: Any, records: Iterable[Outgoing], failures: dict[Outgoing, int], *, names_failures: bool
) -> None:
    """Send without waiting. `failures` gets the error codes of records that fail, also later.

    names_failures: False to send without callbacks, for a transaction that will be repeated if anything fails.
    confluent-kafka takes the interpreter's lock for each record with a callback, even if it is not called.
    """

    def fail(record: Outgoing, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures[record] = error.code()

    produce, told = producer.produce, None
    for record in records:
        topic, at_ms = record.topic, record.timestamp_ms
        if names_failures:
            told = partial(fail, record)
        while True:
            try:
                produce(topic, record.value, record.key, record.partition, told, None, at_ms, record.headers)
            except BufferError:
                producer.flush(SLICE_S)
                continue
            except KafkaException as failure:
                fail(record, error_of(failure), None)
            break


def await_acknowledgements(
    producer: Any, retrier: Retrier, has_failed: Callable[[], bool], on_stall: Callable[[bool], None]
) -> None:
    """Wait until all records are acknowledged or failed, or until `has_failed()`.

    on_stall: called with True when nothing was acknowledged for EARLY_S, and with False each time after STALL_S;
    an exception ends the wait.
    """
    first_s = begin_s = time.monotonic()
    most, is_early, is_long = math.inf, True, False
    while (left := producer.flush(SLICE_S)) and not has_failed():
        is_long = retrier.is_long_wait(first_s, "publishing", "records are not acknowledged")
        waited_s = time.monotonic() - begin_s
        if left < most:
            most, begin_s, is_early = left, time.monotonic(), True
        elif waited_s > STALL_S:
            begin_s = time.monotonic()
            on_stall(False)
        elif is_early and waited_s > EARLY_S:
            is_early = False
            on_stall(True)
    if is_long:
        retrier.status.broker_wait_ended()


def limited(records: Iterable[Outgoing], max_batch_bytes: Mapping[str, int]) -> Iterator[list[Outgoing]]:
    """Yield the records to topics with a limit, in order, in chunks of one topic within its limit."""
    by_topic: defaultdict[str, list[Outgoing]] = defaultdict(list)
    for record in records:
        if record.topic in max_batch_bytes:
            by_topic[record.topic].append(record)
    for topic, own in by_topic.items():
        yield from chunks(own, size_of, most_bytes=max_batch_bytes[topic])


def size_of(record: Outgoing) -> int:
    """Return the record's bytes in a batch of its own, uncompressed. A broker that accepts it accepts smaller ones.

    Kafka's record format 2: lengths as zigzag varints, a null as length -1; times and offsets in a batch of one are 0.
    """
    size = _FIXED_BYTES + _field(record.key) + _field(record.value) + _varint(len(record.headers))
    for name, content in record.headers:
        size += _field(name.encode()) + _field(content)
    return _BATCH_BYTES + _varint(size) + size


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Return the bytes of a non-negative number."""
    return max(1, -(-(2 * number).bit_length() // 7))
