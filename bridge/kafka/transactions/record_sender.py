"""Send records with one librdkafka producer, wait for acknowledgements, and collect failures."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.errors import error_of
from bridge.kafka.retry import Retrier
from bridge.ports import Outgoing
from schemas.chunks import chunks

SLICE_S = 0.1
EARLY_S = 0.15
"""Before a deleted topic makes timers of others late by half a second."""
STALL_S = 3.0
"""Longer than a broker takes to acknowledge under load, and well below the transaction timeout of 10 s."""

_BATCH_BYTES = 61
_FIXED_BYTES = 3
"""Attributes, time and offset within the batch."""


def _keep_waiting(_is_early: bool) -> None:  # noqa: FBT001
    pass


class RecordSender:
    """Records that were sent and may still fail. Not for use by two threads at a time.

    failures: error codes by record, if `send` names them.
    """

    def __init__(self, producer: Any, retrier: Retrier) -> None:
        self.failures: dict[Outgoing, int] = {}
        self._producer = producer
        self._retrier = retrier

    def begin(self) -> None:
        """Forget failures of records sent before."""
        self.failures = {}

    def send(self, records: Iterable[Outgoing], *, names_failures: bool = True) -> None:
        """Send without waiting.

        names_failures: False to send without callbacks, for a transaction that will be repeated if anything fails.
        confluent-kafka takes the interpreter's lock for each record with a callback, even if it is not called.
        """
        produce, fail, told = self._producer.produce, self._fail, None
        for record in records:
            topic, at_ms = record.topic, record.timestamp_ms
            if names_failures:
                told = partial(fail, record)
            while True:
                try:
                    produce(topic, record.value, record.key, record.partition, told, None, at_ms, record.headers)
                except BufferError:
                    self._producer.flush(SLICE_S)
                    continue
                except KafkaException as failure:
                    fail(record, error_of(failure), None)
                break

    def send_in_small_batches(self, records: Sequence[Outgoing], max_batch_bytes: Mapping[str, int]) -> Iterator[None]:
        """Send in batches of at most `max_batch_bytes` of a topic. At each yield the caller awaits acknowledgements."""
        self.send(record for record in records if record.topic not in max_batch_bytes)
        for chunk in limited(records, max_batch_bytes):
            yield
            self.send(chunk)

    def await_acknowledgements(
        self, *, has_failed: Callable[[], bool], on_stall: Callable[[bool], None] = _keep_waiting
    ) -> None:
        """Wait until all records are acknowledged or failed, or until `has_failed()`.

        on_stall: called with True when nothing was acknowledged for EARLY_S, and with False each time after STALL_S;
        an exception ends the wait.
        """
        most, begin_s, is_early = math.inf, time.monotonic(), True
        with self._retrier.long_wait() as still_waits:
            while (left := self._producer.flush(SLICE_S)) and not has_failed():
                still_waits("publishing", "records are not acknowledged")
                waited_s = time.monotonic() - begin_s
                if left < most:
                    most, begin_s, is_early = left, time.monotonic(), True
                elif waited_s > STALL_S:
                    begin_s = time.monotonic()
                    on_stall(False)
                elif is_early and waited_s > EARLY_S:
                    is_early = False
                    on_stall(True)

    def _fail(self, record: Outgoing, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.failures[record] = error.code()


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
