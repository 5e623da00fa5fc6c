"""Source over a consumer group. librdkafka's rebalance callbacks run inside `poll` and `close` only.

group assigns p0   ->  incremental_assign([])            owned, but nothing is fetched
start(p0, 40)      ->  incremental_assign([p0 @ 40])     polls return its records from here on
group revokes p0   ->  incremental_unassign([p0])        its fetched records are dropped
"""

import math
import time
from collections.abc import Set
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import (
    SAME_INSTANCE,
    BridgeError,
    InstanceIdInUseError,
    MemberFencedError,
    truncated_partition_message,
)
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.errors import OFFSET_GONE, UNDECODABLE, explained, is_denied, is_fatal, unwrapped
from bridge.kafka.group import MembershipGuard, member_id
from bridge.kafka.retry import CALL_S, Retrier, log
from bridge.partition.request import MAX_HEADERS
from bridge.ports import Membership, Ownership, Polled, Record
from kafka_timer.headers import decoded_headers
from kafka_timer.origin import TimerPartition

Message = Any
"""confluent_kafka.Message. Its type hints say that every field may be None, which is true of errors alone."""

_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001
"""The reason of an error that tells of a reset."""
_SLICE_S, _IDLE_SLICE_S = 0.02, 0.1
"""A wake-up or a rebalance without records ends a poll within this; the longer one after a second without events."""
BUSY_INTERVAL_S = 0.008
"""Shortest time between the ends of two polls while work waits for the next turn."""
READ_S = 0.02
MOST_HELD_BYTES = 16 << 20
"""Time and memory for the records of one poll; the rest stays in librdkafka's queue, which has a bound of its own."""
HEADER_BYTES = 200
"""A header in Python: a tuple, a string and bytes."""
GROUP = 16


def _is(code: int, error: KafkaError) -> bool:
    """Return True if the error has this code. A fatal error names its cause only in its text."""
    is_fatal = error.code() == KafkaError._FATAL  # noqa: SLF001
    return error.code() == code or (is_fatal and KafkaError(code).str() in error.str())


def record_of(message: Message) -> Record:
    fields = (message.offset(), message.timestamp()[1], message.key(), message.value(), decoded_headers(message))
    return tuple.__new__(Record, fields)  # as Record(...), but that is a Python function


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


class ConfluentSource:
    """Implements bridge.ports.Source."""

    def __init__(self, connection: Connection, topics: list[str], retrier: Retrier, pace_s: float = 0) -> None:
        """pace_s: shortest time between the ends of two polls, if no work waits."""
        self._retrier = retrier
        self._pace_s, self._ended_s = pace_s, -math.inf
        self._ownership = Ownership()
        self._owned: set[TimerPartition] = set()
        self._membership_guard = MembershipGuard()
        self._next: dict[TimerPartition, int] = {}
        """Next offset of each started partition."""
        self._undecodable: dict[TimerPartition, int] = {}
        """Started partitions whose next record cannot be decoded, with its offset."""
        self._paused: Set[TimerPartition] = frozenset()
        """Partitions that are paused at the client, as of the last poll."""
        self._is_woken = self._is_closed = False
        self._has_unread = False
        """True if the last read had no time or room for all that has arrived."""
        self._slice_s = _SLICE_S
        self._group = GROUP
        """Messages that are fetched from librdkafka at a time."""
        self.membership = Membership()
        self._consumer: Any = make(Consumer, clients.group_member(connection), retrier)
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(
        self, timeout_ms: int, max_records: int, paused: Set[TimerPartition] = frozenset(), *, is_busy: bool = False
    ) -> Polled:
        self._apply_pauses(paused)
        pace_s = min(self._pace_s, BUSY_INTERVAL_S) if is_busy or self._has_unread or self._is_woken else self._pace_s
        if not max_records:
            _sleep(timeout_ms / 1000)
            self._wait(pace_s)
            return self._polled({}, has_read=False)
        first = self._first(timeout_ms / 1000)
        self._wait(pace_s)
        records, is_all = self._read(first, max_records)
        self._has_unread = not is_all
        # Callbacks were served: the group metadata stays valid until they are served again.
        group_metadata = self._consumer.consumer_group_metadata()
        now = member_id(group_metadata)
        self._membership_guard.require_membership(now, self._owned)
        self.membership.refresh(group_metadata, is_member=now.is_known)
        return self._polled(records)

    def start(self, partition: TimerPartition, offset: int) -> None:
        if partition not in self._owned:
            return  # it was revoked meanwhile; the next poll reports that
        place = TopicPartition(*partition, offset)
        if partition in self._next:
            self._consumer.seek(place)
            self._apply_pauses(self._paused - {partition})
        else:
            self._consumer.incremental_assign([place])
            # librdkafka remembers a pause from before a revocation.
            self._consumer.resume([place])
        self._next[partition] = offset
        self._undecodable.pop(partition, None)

    rewind = start

    def wake(self) -> None:
        self._is_woken = True

    def close(self) -> None:
        self._is_closed = True
        self._consumer.close()

    # -- reading

    def _wait(self, pace_s: float) -> None:
        """Wait until this has passed since the last turn's poll, so that what comes meanwhile shares a transaction."""
        _sleep(self._ended_s + pace_s - time.monotonic())
        self._ended_s = time.monotonic()

    def _apply_pauses(self, paused: Set[TimerPartition]) -> None:
        paused = paused & self._next.keys()
        if newly := paused - self._paused:
            self._consumer.pause([TopicPartition(*partition) for partition in newly])
        if ended := self._paused - paused:
            self._consumer.resume([TopicPartition(*partition) for partition in ended])
        self._paused = paused

    def _polled(self, records: dict[TimerPartition, list[Record]], *, has_read: bool = True) -> Polled:
        ownership, self._ownership = self._ownership, Ownership()
        return Polled(ownership, records, self._undecodable.copy(), has_read)

    def _first(self, timeout_s: float) -> Message | None:
        """Return the first message, or None at the timeout, after `wake` or after a rebalance."""
        poll = self._consumer.poll
        end_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            message = poll(max(0.0, min(left_s, self._slice_s)))
            left_s = end_s - time.monotonic()
            if message is not None or self._is_woken or self._ownership:
                self._slice_s = _SLICE_S
                self._is_woken = False
                return message
            self._slice_s = min(_IDLE_SLICE_S, self._slice_s * 1.1)
            if left_s <= 0:
                return None

    def _read(self, first: Message | None, most: int) -> tuple[dict[TimerPartition, list[Record]], bool]:
        """Read what is there, grouped by partition, in order, as far as a turn has time and memory for it.

        Return True if nothing is left. Messages come in small groups: librdkafka parses all headers of a group before
        the first message can be examined.
        """
        records: dict[TimerPartition, list[Record]] = {}
        messages, count, size = [] if first is None else [first], 0, 0
        until_s = time.monotonic() + READ_S
        while messages:
            size += self._sort(messages, records)
            count += len(messages)
            if count >= most or size > MOST_HELD_BYTES or time.monotonic() > until_s:
                return self._advanced(records), False
            messages = self._consumer.consume(min(self._group, most - count), 0)
        return self._advanced(records), True

    def _sort(self, messages: list[Message], records: dict[TimerPartition, list[Record]]) -> int:
        """Add messages to `records`, and return their size in memory. The loop does little, as it sees each message.

        A message with too many headers ends the read: its partition is fetched again from the next offset, so that
        messages of others come first.
        """
        new, following = tuple.__new__, self._next
        place, partition = ("", -1), TimerPartition("", -1)
        append: Any = None
        least = size = 0
        costly: dict[TimerPartition, int] = {}
        for message in messages:
            if message.error() is not None:
                if (message.topic(), message.partition()) not in costly:
                    self._handle_error(message)
                continue
            here = (message.topic(), message.partition())
            if here != place:
                place = here
                partition = TimerPartition(*here)
                least = following.get(partition, -1)
                append = records.setdefault(partition, []).append
            offset = message.offset()
            if 0 <= least <= offset and partition not in costly:
                headers, value = decoded_headers(message), message.value()
                append(new(Record, (offset, message.timestamp()[1], message.key(), value, headers)))
                size += len(headers) * HEADER_BYTES + (0 if value is None else len(value))
                if len(headers) > MAX_HEADERS:
                    costly[partition] = offset + 1
        self._group = 1 if costly else min(2 * self._group, GROUP)
        for partition, offset in costly.items():
            self._consumer.seek(TopicPartition(*partition, offset))
            size = MOST_HELD_BYTES + 1
        return size

    def _advanced(self, records: dict[TimerPartition, list[Record]]) -> dict[TimerPartition, list[Record]]:
        """Note the next offsets; drop partitions without new records and those that were revoked while we read."""
        for partition in list(records):
            if records[partition] and partition in self._next:
                self._next[partition] = records[partition][-1].offset + 1
                if self._undecodable.get(partition, self._next[partition]) < self._next[partition]:
                    del self._undecodable[partition]
            else:
                del records[partition]
        return records

    def _handle_error(self, message: Message) -> None:
        error: KafkaError = message.error()
        partition = TimerPartition(message.topic(), message.partition())
        if error.code() in OFFSET_GONE:
            raise BridgeError(self._unreadable_message(partition, message.offset(), error))
        if error.code() in UNDECODABLE and message.offset() >= 0:
            if partition in self._next:  # after a seek into a batch, the error names its first offset
                self._undecodable[partition] = max(self._next[partition], message.offset())
            return
        if _is(KafkaError.FENCED_INSTANCE_ID, error):
            raise MemberFencedError(f"{SAME_INSTANCE}; or give each its own kafka.group.instance.id, if you set it")
        if _is(KafkaError.UNRELEASED_INSTANCE_ID, error):
            told = "a member of our instance id was killed, or still runs: waiting for its session's end"
            raise InstanceIdInUseError(told)
        if is_fatal(error) or is_denied(error):
            raise explained("reading the timer topic", error)
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
            log.warning("a turn took longer than max.poll.interval.ms: the group gave our partitions away (%s)", error)
        else:
            self._retrier.hear(error)

    def _unreadable_message(self, partition: TimerPartition, offset: int, error: KafkaError) -> str:
        try:
            with unwrapped():
                first, end = self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=CALL_S)
        except KafkaException:
            first, end = 0, offset
        if offset > end or _TRUNCATED in error.str():
            return truncated_partition_message(*partition, end, offset)
        if offset < first:
            return (
                f"{partition}: requests {offset} to {first - 1} were not read yet and are gone: retention has taken"
                f" them. Raise retention.ms, and start again: the bridge goes on with what is left"
            )
        return f"{partition}: requests from offset {offset} on are not there ({error.str()}): start again"

    # -- ownership

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        # Without this call, librdkafka would assign them from the committed offset on.
        consumer.incremental_assign([])
        if self._is_closed:  # the close serves callbacks, and there is no group metadata any more
            return
        timer_partitions = [TimerPartition(each.topic, each.partition) for each in partitions]
        if not self._owned:
            self._membership_guard.note_first_assignment(consumer.consumer_group_metadata())
        self._owned.update(timer_partitions)
        self._ownership.assigned += timer_partitions

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._ownership.revoked += self._drop(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._ownership.lost += self._drop(consumer, partitions)

    def _drop(self, consumer: Any, partitions: list[TopicPartition]) -> list[TimerPartition]:
        """Drop partitions; return those whose assignment was already returned by a poll."""
        dropped = [TimerPartition(each.topic, each.partition) for each in partitions]
        consumer.incremental_unassign([TopicPartition(*partition) for partition in dropped if partition in self._next])
        self._owned.difference_update(dropped)
        self._paused -= set(dropped)
        for partition in dropped:
            self._next.pop(partition, None)
            self._undecodable.pop(partition, None)
        assigned = self._ownership.assigned
        self._ownership.assigned = [partition for partition in assigned if partition not in dropped]
        return [partition for partition in dropped if partition not in assigned]
