"""Records on their way by one librdkafka producer, and which of them have failed."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.retry import CALL_S, Patience, error_of
from bridge.kafka.transactions.record_size import batch_bytes
from bridge.ports import Outgoing

SLICE_S = 0.1
_SLOW_S = 0.5
STALL_S = 3.0
"""Longer than a broker takes to acknowledge under load, and well below a transaction's time-out of 10 s."""

Numbered = Iterable[tuple[int, Outgoing]]


def _wait_on() -> None:
    """Nothing is done about it."""


class PendingSends:
    """`failures`: error codes by the index under which a record was sent. Not for use by two threads at a time."""

    def __init__(self, producer: Any, patience: Patience) -> None:
        self.failures: dict[int, int] = {}
        self._producer = producer
        self._patience = patience

    def begin(self) -> None:
        """What was sent before is of no interest any more."""
        self.failures = {}

    def send(self, numbered: Numbered) -> None:
        produce, fail = self._producer.produce, self._fail
        for index, (topic, partition, key, value, headers, timestamp_ms) in numbered:
            told = partial(fail, index)
            while True:
                try:
                    produce(topic, value, key, partition, told, None, timestamp_ms, headers)
                except BufferError:
                    self._producer.flush(SLICE_S)
                    continue
                except KafkaException as failure:
                    fail(index, error_of(failure), None)
                break

    def send_narrowly(self, numbered: Sequence[tuple[int, Outgoing]], narrow: Mapping[str, int]) -> Iterator[None]:
        """Of a topic in `narrow`, at most so many bytes at a time: yields where acknowledgements are to be awaited."""
        self.send((index, record) for index, record in numbered if record.topic not in narrow)
        for chunk in _chunks(numbered, narrow):
            yield
            self.send(chunk)

    def await_acknowledgements(
        self, records: Sequence[Outgoing], *, beyond_failures: bool, on_stall: Callable[[], None] = _wait_on
    ) -> None:
        """Of all; else until one has failed. `records`: their topics are looked up when it takes long.

        `on_stall` is called each time nothing was acknowledged for STALL_S; what it raises ends the wait.
        """
        slow_s = time.monotonic() + _SLOW_S
        most, stalled_s = math.inf, time.monotonic() + STALL_S
        with self._patience.long_wait() as still_waits:
            while (left := self._producer.flush(SLICE_S)) and (beyond_failures or not self.failures):
                still_waits("publishing", "records are not acknowledged")
                if left < most or time.monotonic() > stalled_s:
                    if left == most:
                        on_stall()
                    most, stalled_s = left, time.monotonic() + STALL_S
                if time.monotonic() > slow_s:
                    slow_s = math.inf
                    self._look_at({record.topic for record in records})

    def partitions_of(self, topic: str) -> int | KafkaError:
        """How many there are, asked now; or why not. Also makes the producer forget that it did not know the topic."""
        described = self._producer.list_topics(topic, timeout=CALL_S).topics[topic]
        return described.error if described.error is not None else len(described.partitions)

    def _look_at(self, topics: Iterable[str]) -> None:
        """One that was deleted would be waited for until the time-out, unless its metadata say so."""
        with suppress(KafkaException):
            for topic in topics:
                self.partitions_of(topic)

    def _fail(self, index: int, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.failures[index] = error.code()


def size_of(record: Outgoing) -> int:
    """Bytes of the record in a batch of its own, uncompressed: where the larger of two is taken, both are."""
    return batch_bytes(record.key, record.value, record.headers)


def _chunks(numbered: Numbered, narrow: Mapping[str, int]) -> Iterator[list[tuple[int, Outgoing]]]:
    """Records to narrow topics, in order, in chunks of one topic that keep to its limit."""
    by_topic: defaultdict[str, list[tuple[int, Outgoing]]] = defaultdict(list)
    for index, record in numbered:
        if record.topic in narrow:
            by_topic[record.topic].append((index, record))
    for topic, records in by_topic.items():
        chunk: list[tuple[int, Outgoing]] = []
        room = narrow[topic]
        for index, record in records:
            size = size_of(record)
            if chunk and size > room:
                yield chunk
                chunk, room = [], narrow[topic]
            chunk.append((index, record))
            room -= size
        yield chunk
