"""Source over a consumer group. Shards move only inside `poll`, `check` and `close`, where librdkafka calls us back.

group assigns p0   ->  incremental_assign([])            ours, but nothing is fetched
start(p0, 40)      ->  incremental_assign([p0 @ 40])     from here on it yields
group takes p0     ->  incremental_unassign([p0])        what was fetched of it is dropped
"""

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, FencedError, MembershipLostError, NameTakenError, lost_end
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import explained, is_denied, make
from bridge.kafka.group_metadata import Membership, membership
from bridge.kafka.poll_pacing import Pace
from bridge.kafka.retry import CALL_S, Patience, log, unwrapped
from bridge.ports import Ownership, Polled, Record
from schemas.headers import Headers
from schemas.origin import Shard

Message = Any
"""confluent_kafka's own: its hints say that every field may be None, which is true of errors alone."""

UNREADABLE: Headers = (("timer-deliver-ms", b"a header's name is no UTF-8"),)
"""Stands for headers that the client library cannot read; whoever parses it finds a bad header and this reason."""

GONE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})  # noqa: SLF001
UNDECODABLE = frozenset(
    {
        *(KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED),  # noqa: SLF001
        *(KafkaError.INVALID_MSG, KafkaError.MSG_SIZE_TOO_LARGE),
    }
)
"""librdkafka's errors for a record that it fetched and cannot decode. It retries for ever, with an error each time."""
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001
"""The reason of an error that tells of a reset."""
_SLICE_S = 0.02
"""A wake is seen within this, so who asks waits no longer; so is a change of hands without a record."""


def _is(code: int, error: KafkaError) -> bool:
    """Of a fatal error only the text says which it is."""
    is_fatal = error.code() == KafkaError._FATAL  # noqa: SLF001
    return error.code() == code or (is_fatal and KafkaError(code).str() in error.str())


def headers_of(message: Message) -> Headers:
    try:
        return message.headers() or ()
    except (SystemError, UnicodeDecodeError):
        return UNREADABLE


def record_of(message: Message) -> Record:
    fields = (message.offset(), message.timestamp()[1], message.key(), message.value(), headers_of(message))
    return tuple.__new__(Record, fields)  # as Record(...), but that is a Python function


class ConfluentSource:
    """One member of the group. `pace_s`: a poll returns no sooner than so long after the one before."""

    def __init__(self, connection: Connection, topics: list[str], patience: Patience, pace_s: float = 0.0) -> None:
        self._patience = patience
        self._pace = Pace(pace_s)
        self._ownership = Ownership()
        self._ours: set[Shard] = set()
        self._held_as = Membership(-1, b"")
        """Who we are to the group, as long as something is ours."""
        self._member_s = time.monotonic()
        """When the group last had us as a member, or this client was made."""
        self._next: dict[Shard, int] = {}
        """Of each started shard the offset that comes next."""
        self._undecodable: dict[Shard, int] = {}
        """Started shards whose next record cannot be decoded, with the offset of that record."""
        self._paused: set[Shard] = set()
        self._is_woken = False
        self._consumer: Any = make(Consumer, clients.member(connection), patience)
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, timeout_ms: int, max_records: int) -> Polled:
        first = self._first(timeout_ms / 1000)
        self._pace.wait()
        messages = [] if first is None else [first]
        if max_records > len(messages):
            messages += self._consumer.consume(max_records - len(messages), 0)
        return self._polled(self._sorted(messages))

    def check(self) -> Polled:
        # A change of hands may stand behind records: these are put back, which also empties the queue of them.
        for _ in range(len(self._next) + 1):
            message = self._consumer.poll(0)
            if message is None:
                break
            if message.error() is not None:
                self._judge(message)
            elif Shard(message.topic(), message.partition()) in self._next:
                self._consumer.seek(TopicPartition(message.topic(), message.partition(), message.offset()))
        return self._polled({})

    def start(self, shard: Shard, offset: int) -> None:
        if shard not in self._ours:
            return  # it was taken away meanwhile; the next poll tells
        place = TopicPartition(*shard, offset)
        if shard in self._next:
            self._consumer.seek(place)
            self.resume(shard)
        else:
            self._consumer.incremental_assign([place])
            # Where it was paused as it was taken away, librdkafka has not forgotten.
            self._consumer.resume([place])
        self._next[shard] = offset
        self._undecodable.pop(shard, None)

    def rewind(self, shard: Shard, offset: int) -> None:
        self.start(shard, offset)

    def pause(self, shard: Shard) -> None:
        if shard in self._next and shard not in self._paused:
            self._consumer.pause([TopicPartition(*shard)])
            self._paused.add(shard)

    def resume(self, shard: Shard) -> None:
        if shard in self._paused:
            self._consumer.resume([TopicPartition(*shard)])
            self._paused.discard(shard)

    def wake(self) -> None:
        self._is_woken = True

    def close(self) -> None:
        self._consumer.close()

    # -- reading

    def _polled(self, records: dict[Shard, list[Record]]) -> Polled:
        fence = self._consumer.consumer_group_metadata()
        now = membership(fence)
        self._demand_same_member(now)
        self._demand_member(now)
        return Polled(self._take_ownership(), records, fence, now.is_known, self._undecodable.copy())

    def _demand_same_member(self, now: Membership) -> None:
        """Raises MembershipLostError where what we hold was given to a member that the group has put out since.

        Mostly a loss is told before the group takes us in again. But where a static member wakes with an answer unread
        that the group is rebalancing, librdkafka 2.16 learns amid its joining that it is unknown, joins by another id,
        and keeps what it is given anew without a word, whoever had it in between.
        """
        if not self._ours or now.id == self._held_as.id:
            self._held_as = now
        elif now.generation not in (-1, self._held_as.generation):
            held = ", ".join(map(str, sorted(self._ours)))
            raise MembershipLostError(
                f"the group had put us out and took us in anew: {held} may have been another's meanwhile"
            )

    def _demand_member(self, now: Membership) -> None:
        """Raise MembershipLostError if we are no member for REPLACED_AFTER_S. We own nothing, so a new run is cheap."""
        if self._ours or now.is_known:
            self._member_s = time.monotonic()
        elif time.monotonic() - self._member_s >= clients.REPLACED_AFTER_S:
            told = f"no member of the group for {clients.REPLACED_AFTER_S:.0f} s"
            raise MembershipLostError(f"{told}: the Kafka client may have lost all brokers; going on with new clients")

    def _first(self, timeout_s: float) -> Message | None:
        """The first message, or None at the time-out, at a wake or at a change of hands."""
        poll = self._consumer.poll
        end_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            message = poll(max(0.0, min(left_s, _SLICE_S)))
            left_s = end_s - time.monotonic()
            if message is not None or left_s <= 0 or self._is_woken or self._ownership:
                self._is_woken = False
                return message

    def _sorted(self, messages: list[Message]) -> dict[Shard, list[Record]]:
        """By shard, in order. A message costs one pass of this loop, so it does little."""
        records: dict[Shard, list[Record]] = {}
        new, following = tuple.__new__, self._next
        place: tuple[str, int] | None = None
        append: Any = None
        least = 0
        for message in messages:
            if message.error() is not None:
                self._judge(message)
                continue
            here = (message.topic(), message.partition())
            if here != place:
                place = here
                shard = Shard(*here)
                least = following.get(shard, -1)
                append = records.setdefault(shard, []).append
            offset = message.offset()
            if 0 <= least <= offset:
                try:
                    headers = message.headers() or ()
                except (SystemError, UnicodeDecodeError):
                    headers = UNREADABLE
                append(new(Record, (offset, message.timestamp()[1], message.key(), message.value(), headers)))
        return self._moved_on(records)

    def _moved_on(self, records: dict[Shard, list[Record]]) -> dict[Shard, list[Record]]:
        """Without shards of which nothing counts; a shard that was taken away while we read is one of them."""
        for shard in list(records):
            if records[shard] and shard in self._next:
                self._next[shard] = records[shard][-1].offset + 1
                if self._undecodable.get(shard, self._next[shard]) < self._next[shard]:
                    del self._undecodable[shard]
            else:
                del records[shard]
        return records

    def _judge(self, message: Message) -> None:
        error: KafkaError = message.error()
        if error.code() in GONE:
            raise BridgeError(self._gone(Shard(message.topic(), message.partition()), message.offset(), error))
        if error.code() in UNDECODABLE and message.offset() >= 0:
            shard = Shard(message.topic(), message.partition())
            if shard in self._next:  # after a seek into a batch, the error names its first offset
                self._undecodable[shard] = max(self._next[shard], message.offset())
            return
        if _is(KafkaError.FENCED_INSTANCE_ID, error):
            raise FencedError(f"{error.str()}: another process is this member of the group; this one ends")
        if _is(KafkaError.UNRELEASED_INSTANCE_ID, error):
            raise NameTakenError("a member of our instance id was killed, or still runs: waiting for its session's end")
        if error.fatal() or error.code() == KafkaError._FATAL or is_denied(error):  # noqa: SLF001
            raise explained("reading the timer topic", error)
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
            log.warning("a turn took longer than max.poll.interval.ms: the group gave our shards away (%s)", error)
        else:
            self._patience.hear(error)

    def _gone(self, shard: Shard, offset: int, error: KafkaError) -> str:
        try:
            with unwrapped():
                first, end = self._consumer.get_watermark_offsets(TopicPartition(*shard), timeout=CALL_S)
        except KafkaException:
            first, end = 0, offset
        if offset > end or _TRUNCATED in error.str():
            return lost_end(*shard, end, offset)
        if offset < first:
            return (
                f"{shard}: requests {offset} to {first - 1} were not read yet and are gone: retention has taken them."
                f" Raise retention.ms, and start again: it goes on with what is left"
            )
        return f"{shard}: requests from offset {offset} on are not there ({error.str()}): start again"

    # -- ownership

    def _take_ownership(self) -> Ownership:
        taken, self._ownership = self._ownership, Ownership()
        return taken

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        # To leave this out would assign them, from the committed offset on.
        consumer.incremental_assign([])
        shards = [Shard(each.topic, each.partition) for each in partitions]
        if not self._ours:
            self._held_as = membership(consumer.consumer_group_metadata())
        self._ours.update(shards)
        self._ownership.assigned += shards

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._ownership.revoked += self._let_go(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._ownership.lost += self._let_go(consumer, partitions)

    def _let_go(self, consumer: Any, partitions: list[TopicPartition]) -> list[Shard]:
        """Those of which somebody was told that they are ours."""
        shards = [Shard(each.topic, each.partition) for each in partitions]
        consumer.incremental_unassign([TopicPartition(*shard) for shard in shards if shard in self._next])
        for shard in shards:
            self._ours.discard(shard)
            self._next.pop(shard, None)
            self._undecodable.pop(shard, None)
            self._paused.discard(shard)
        told = [shard for shard in shards if shard not in self._ownership.assigned]
        self._ownership.assigned = [shard for shard in self._ownership.assigned if shard not in shards]
        return told
