"""Read committed records of one partition, in order, with a consumer of its own."""

import math
import time
from collections.abc import Callable, Container, Iterator
from contextlib import closing
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from bridge.errors import BridgeError, PartitionUnreadableError
from bridge.kafka.client_config import REPLACED_AFTER_S
from bridge.kafka.consumer import Message
from bridge.kafka.errors import OFFSET_GONE, UNDECODABLE, explained, is_passing
from bridge.kafka.retry import Retrier
from schemas.origin import Shard

_BATCH = 2000
WAIT_S = 0.1
_UNKNOWN = frozenset(
    {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001
)


class PartitionReader:
    """Reads the committed messages of [position, end) that are still kept. For one read.

    skipped: offsets to leave out if they cannot be decoded. limit_s: None: waits for as long as it takes.
    """

    def __init__(
        self,
        place: Shard,
        start: int,
        end: int,
        skipped: Container[int],
        *,
        make_consumer: Callable[[], Any],
        first_kept: Callable[[], int],
        retrier: Retrier,
        limit_s: float | None,
    ) -> None:
        self._place = place
        self._position = start
        self._end = end
        self._skipped = skipped
        self._make_consumer = make_consumer
        self._first_kept = first_kept
        self._retrier = retrier
        self._limit_s = limit_s
        self._tries = 0
        """Consecutive polls without messages."""
        self._until_s = math.inf if limit_s is None else time.monotonic() + limit_s

    def batches(self) -> Iterator[list[Message]]:
        """Yield messages until all below `end` are decided. Raises PartitionUnreadableError."""
        # Retention goes on while we read.
        while self._is_open() and self._skip_deleted():
            with closing(self._make_consumer()) as consumer:
                consumer.assign([TopicPartition(*self._place, self._position)])
                yield from self._read(consumer)

    def _is_open(self) -> bool:
        return self._position < self._end

    def _skip_deleted(self) -> bool:
        """Go to the first kept offset. Return True if records are left to read."""
        self._position = max(self._position, self._first_kept())
        return self._is_open()

    def _read(self, consumer: Any) -> Iterator[list[Message]]:
        """Yield messages to the end, or until a new consumer is needed."""
        while self._is_open():
            if time.monotonic() >= self._until_s:
                raise PartitionUnreadableError(
                    f"{self._place}: reading: at {self._position} of {self._end} after {self._limit_s} s: much to read,"
                    f" an open transaction, or no broker"
                )
            messages, is_kept = self._next_batch(consumer)
            if messages:
                self._tries = 0
                yield messages
            elif self._is_open():
                self._tries += 1
                if self._tries > 1 / WAIT_S:
                    why = f"at {self._position} of {self._end}: an open transaction, or no broker"
                    self._retrier.wait(f"{self._place}: reading", why, 0)
            if self._tries > REPLACED_AFTER_S / WAIT_S:
                self._tries = 0
                return
            if not is_kept:
                return

    def _next_batch(self, consumer: Any) -> tuple[list[Message], bool]:
        """Return messages, and True if the position after them is still kept."""
        is_kept = True
        first = consumer.poll(WAIT_S)
        messages = []
        for message in [] if first is None else [first, *consumer.consume(_BATCH, 0)]:
            error = message.error()
            if error is None and message.offset() < self._end:
                messages.append(message)
                self._position = message.offset() + 1
            elif error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                self._position = max(self._position, message.offset())
            elif error.code() in OFFSET_GONE:
                is_kept = False
            elif error.code() in UNDECODABLE:
                if messages:
                    break  # yield these first; librdkafka repeats the error
                self._position = max(self._position, message.offset())  # earlier offsets are markers or aborted records
                if self._is_open():
                    self._seek_past(consumer, error)
            else:
                note_error(self._place, error, self._retrier)
        return messages, is_kept

    def _seek_past(self, consumer: Any, error: KafkaError) -> None:
        """Seek to the record after the position, which cannot be decoded. Raises PartitionUnreadableError."""
        offset = self._position
        if offset not in self._skipped:
            raise PartitionUnreadableError(f"{self._place}: offset {offset} cannot be decoded: {error.str()}", offset)
        self._position = offset + 1
        consumer.seek(TopicPartition(*self._place, self._position))


def note_error(place: Shard, error: KafkaError, retrier: Retrier) -> None:
    """Pass an error on to `retrier`. Raises BridgeError if it is not passing."""
    if error.code() in _UNKNOWN:
        raise BridgeError(f"{place} does not exist any more: start again, which creates missing topics")
    if not is_passing(error):
        raise explained(f"{place}: reading", error)
    retrier.hear(error)
