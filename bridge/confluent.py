"""The ports over librdkafka. The only module of this package that imports confluent_kafka.

    ConfluentSource   a member of the group; shards are assigned to nothing until `start` says from where
    ConfluentSink     one transactional producer; what it can never send is told by index, the rest is repeated
    ConfluentTopics   makes what is missing at start, and tells what topics are like
    ConfluentHistory  a consumer outside the group's balance, which reads what stands
    ConfluentOutbox   what the client sends by

Passing faults are waited out here, with one log line when they begin and one each minute.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from bridge.client import Sent
from bridge.complaints import Complaints
from bridge.errors import BridgeError, BrokerUnavailableError, FencedError, SettingsError
from bridge.ports import Aborted, Committed, Outgoing, Ownership, Polled, Record, Transaction
from bridge.rdlog import logger
from schemas.origin import Shard
from schemas.progress import Progress

log = logging.getLogger(__name__)

Config = dict[str, Any]
Message = Any
"""confluent_kafka's: its type hints say of every field that it may be None, which is true of errors alone."""

TRANSACTION_TIMEOUT_MS = 10_000
SESSION_TIMEOUT_MS = 10_000
"""How long the shards of an instance that died belong to nobody."""
_CALL_S = 10.0
_READ_RECORDS = 5000
_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Patience:
    """Waits between tries, longer each time, and tells the log. `is_over` ends it: the process is to stop."""

    def __init__(self, what: str, is_over: Callable[[], bool]) -> None:
        self._what = what
        self._is_over = is_over
        self._tries = 0
        self._complaints = Complaints(log)

    def wait(self, error: object) -> None:
        """Raises BrokerUnavailableError where there is no point in waiting any longer."""
        if self._is_over():
            raise BrokerUnavailableError(f"{self._what}: {error}")
        self._complaints.say(time.monotonic_ns() // 1_000_000, self._what, f"{self._what}: {error}; trying again")
        time.sleep(_BACKOFF_S[min(self._tries, len(_BACKOFF_S) - 1)])
        self._tries += 1


def _error_of(failure: KafkaException) -> KafkaError:
    error: KafkaError = failure.args[0]
    return error


def _shard_of(partition: TopicPartition) -> Shard:
    return Shard(partition.topic, partition.partition)


class ConfluentSource:
    """`config`: connection and group settings."""

    def __init__(self, config: Config, topics: list[str]) -> None:
        self._consumer = Consumer(
            {
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "fetch.wait.max.ms": 100,
                "queued.min.messages": 50_000,
                **config,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            },
            logger=logger(),
        )
        self._ownership = Ownership()
        self._held: set[Shard] = set()
        self._paused: set[Shard] = set()
        self._complaints = Complaints(log)
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, timeout_ms: int, max_records: int) -> Polled:
        first: Message = self._consumer.poll(timeout_ms / 1000)
        messages: list[Message] = [first] if first is not None else []
        if messages and max_records > 1:
            messages += self._consumer.consume(max_records - 1, 0)
        records: dict[Shard, list[Record]] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_error(error, message)
                continue
            shard = Shard(message.topic(), message.partition())
            if shard in self._held:
                records.setdefault(shard, []).append(_record(message))
        return Polled(self._taken_ownership(), records, self._consumer.consumer_group_metadata())

    def check(self) -> Polled:
        self._consumer.pause([TopicPartition(*shard) for shard in self._held])
        message: Message = self._consumer.poll(0)
        if message is not None and message.error() is None:
            self._consumer.seek(TopicPartition(message.topic(), message.partition(), message.offset()))
        elif message is not None:
            self._on_error(message.error(), message)
        ownership = self._taken_ownership()
        self._consumer.resume([TopicPartition(*shard) for shard in self._held - self._paused])
        return Polled(ownership, {}, self._consumer.consumer_group_metadata())

    def start(self, shard: Shard, offset: int) -> None:
        if shard in self._held:
            self._consumer.incremental_unassign([TopicPartition(*shard)])
        self._held.add(shard)
        self._paused.discard(shard)
        self._consumer.incremental_assign([TopicPartition(*shard, offset)])

    def pause(self, shard: Shard) -> None:
        self._paused.add(shard)
        self._consumer.pause([TopicPartition(*shard)])

    def resume(self, shard: Shard) -> None:
        self._paused.discard(shard)
        self._consumer.resume([TopicPartition(*shard)])

    def wake(self) -> None:
        """A poll waits for `max_wait_ms` at most: that is soon enough."""

    def close(self) -> None:
        self._consumer.close()

    def _taken_ownership(self) -> Ownership:
        taken, self._ownership = self._ownership, Ownership()
        return taken

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign([])
        self._ownership.assigned += map(_shard_of, partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._ownership.revoked += self._let_go(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._ownership.lost += self._let_go(consumer, partitions)

    def _let_go(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[Shard]:
        shards = [_shard_of(partition) for partition in partitions]
        consumer.incremental_unassign([TopicPartition(*shard) for shard in shards if shard in self._held])
        self._held.difference_update(shards)
        self._paused.difference_update(shards)
        self._ownership.assigned = [shard for shard in self._ownership.assigned if shard not in shards]
        return shards

    def _on_error(self, error: KafkaError, message: Message) -> None:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            raise BridgeError(
                f"{message.topic()}/{message.partition()}: requests that were not read yet are gone from the topic"
                f" ({error.str()}): raise its retention.ms, then start once with --adopt-progress"
            )
        if error.fatal() or error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.FENCED_INSTANCE_ID):
            raise BridgeError(f"reading the timer topic: {error.str()}")
        self._complaints.say(time.monotonic_ns() // 1_000_000, str(error.code()), f"reading: {error.str()}")


def _record(message: Message) -> Record:
    return Record(message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers() or ())


class ConfluentHistory:
    """`config`: connection and group settings. `journal_topics`: timer topic to its journal topic."""

    def __init__(self, config: Config, journal_topics: dict[str, str], is_over: Callable[[], bool]) -> None:
        self._journal_topics = journal_topics
        self._is_over = is_over
        reading = {
            **config,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
        self._consumer = Consumer({**reading, "isolation.level": "read_committed"}, logger=logger())
        self._all = Consumer({**reading, "isolation.level": "read_uncommitted"}, logger=logger())
        """Sees the end also where a transaction hangs before it."""

    def progress(self, shard: Shard) -> Progress | None:
        def committed() -> TopicPartition:
            (found,) = self._consumer.committed([TopicPartition(*shard)], timeout=_CALL_S)
            if found.error is not None:
                raise KafkaException(found.error)
            return found

        found = self._until_answered(f"{shard}: reading progress", committed)
        return None if found.offset < 0 else Progress.committed(found.offset, found.metadata)

    def bounds(self, shard: Shard) -> tuple[int, int]:
        return self._watermarks(TopicPartition(*shard), self._consumer)

    def offset_at(self, shard: Shard, timestamp_ms: int) -> int:
        offset = self._offset_at(TopicPartition(*shard), timestamp_ms)
        return self.bounds(shard)[1] if offset is None else offset

    def requests(self, shard: Shard, from_offset: int, to_offset: int) -> Iterator[list[Record]]:
        if from_offset < to_offset:
            for messages in self._read(TopicPartition(*shard, from_offset), to_offset):
                yield [_record(message) for message in messages]

    def journal_end(self, shard: Shard) -> int:
        return self.journal_bounds(shard)[1]

    def journal_bounds(self, shard: Shard) -> tuple[int, int]:
        return self._watermarks(self._journal(shard), self._all)

    def journal(self, shard: Shard, *, from_offset: int | None, since_ms: int | None) -> Iterator[bytes]:
        partition = self._journal(shard)
        end = self._watermarks(partition, self._all)[1]
        start: int | None = from_offset
        if start is None and since_ms is not None:
            start = self._offset_at(partition, since_ms)
            if start is None:
                return
        partition.offset = OFFSET_BEGINNING if start is None else start
        if start is None or start < end:
            for messages in self._read(partition, end):
                yield from (message.value() for message in messages)

    def close(self) -> None:
        self._consumer.close()
        self._all.close()

    def _journal(self, shard: Shard) -> TopicPartition:
        return TopicPartition(self._journal_topics[shard.topic], shard.partition)

    def _watermarks(self, partition: TopicPartition, consumer: Consumer) -> tuple[int, int]:
        first, end = self._until_answered(
            f"{partition.topic}/{partition.partition}: looking for its ends",
            lambda: consumer.get_watermark_offsets(partition, timeout=_CALL_S, cached=False),
        )
        return first, end

    def _offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        asked = TopicPartition(partition.topic, partition.partition, timestamp_ms)
        (found,) = self._until_answered(
            f"{partition.topic}/{partition.partition}: looking for a time",
            lambda: self._consumer.offsets_for_times([asked], timeout=_CALL_S),
        )
        return found.offset if found.offset >= 0 else None

    def _until_answered(self, what: str, call: Callable[[], Any]) -> Any:
        patience = Patience(what, self._is_over)
        while True:
            try:
                answer = call()
            except KafkaException as failure:
                if _error_of(failure).fatal():
                    raise BridgeError(f"{what}: {failure}") from failure
                patience.wait(failure)
            else:
                if answer is not None:
                    return answer
                patience.wait("no answer in time")

    def _read(self, start: TopicPartition, end: int) -> Iterator[list[Message]]:
        """Committed messages from `start` up to the offset `end`; waits while a transaction hangs before it."""
        patience = Patience(f"{start.topic}/{start.partition}: reading", self._is_over)
        self._consumer.assign([start])
        is_over = False
        while not is_over:
            messages: list[Message] = []
            read: list[Message] = self._consumer.consume(_READ_RECORDS, 0.2)
            for message in read:
                error = message.error()
                if error is None and message.offset() < end:
                    messages.append(message)
                elif error is None:
                    is_over = True
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    is_over = is_over or message.offset() >= end
                else:
                    patience.wait(error.str())
            is_over = is_over or (bool(messages) and messages[-1].offset() + 1 >= end)
            if messages:
                yield messages
        self._consumer.unassign()


_CODES = {
    KafkaError._UNKNOWN_TOPIC: "unknown-topic",  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown-topic",
    KafkaError.TOPIC_EXCEPTION: "unknown-topic",
    KafkaError._UNKNOWN_PARTITION: "unknown-partition",  # noqa: SLF001
    KafkaError.MSG_SIZE_TOO_LARGE: "too-large",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not-authorized",
    KafkaError.RECORD_LIST_TOO_LARGE: "too-large",
    KafkaError.INVALID_RECORD: "bad-target",
}
_STALE = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}  # noqa: SLF001
)
_CAREFUL_TRANSACTIONS = 50


class ConfluentSink:
    """`config`: connection settings. The same `transactional_id` in another process fences this one.

    A record that fails makes the whole transaction fail. Where the broker names it, it is told by index. Where it names
    none (a batch that is too large, a denied topic behind which everything is purged), the next transactions are sent
    carefully, each record in a batch of its own, and topics are tried one by one.
    """

    def __init__(
        self, config: Config, transactional_id: str, journal_topics: dict[str, str], is_over: Callable[[], bool]
    ) -> None:
        self._config = {
            "linger.ms": 2,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "retry.backoff.ms": 2,
            "socket.nagle.disable": True,
            **config,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "enable.idempotence": True,
            "topic.metadata.propagation.max.ms": 0,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
        }
        self._journal_topics = journal_topics
        self._is_over = is_over
        self._careful = 0
        self._failed: dict[int, KafkaError] = {}
        self._producer = self._made()

    def publish(self, transaction: Transaction) -> Committed | Aborted:
        outcome = self._try(transaction)
        if self._careful:
            self._careful -= 1
            if not self._careful:
                self._renew()
        return outcome

    def close(self) -> None:
        """What is open is left to the next producer of this id, or to the time-out."""
        del self._producer

    def _try(self, transaction: Transaction) -> Committed | Aborted:
        self._failed = {}
        try:
            self._producer.begin_transaction()
            self._produce(transaction)
            self._producer.flush()
            if self._failed:
                return self._abort(transaction)
            offsets = [
                TopicPartition(shard.topic, shard.partition, reached.next_offset, reached.metadata())
                for shard, reached in transaction.progress.items()
            ]
            self._insist("sending offsets", lambda: self._send_offsets(offsets, transaction.fence))
            self._insist("committing", lambda: self._producer.commit_transaction(_CALL_S))
        except KafkaException as failure:
            self._judge(failure)
            return self._abort(transaction)
        except SystemError as wrapped:
            # A fatal error that comes to light while delivery reports are served arrives like this.
            if not isinstance(wrapped.__cause__, KafkaException):
                raise
            self._judge(wrapped.__cause__)
            return self._abort(transaction)
        return Committed()

    def _send_offsets(self, offsets: list[TopicPartition], fence: object) -> None:
        self._producer.send_offsets_to_transaction(offsets, fence, _CALL_S)

    def _produce(self, transaction: Transaction) -> None:
        produce: Any = self._producer.produce
        failed = self._on_failure
        for index, record in enumerate(transaction.outgoing):
            topic, partition, key, value, headers, timestamp_ms = record
            while True:
                try:
                    produce(
                        topic,
                        value,
                        key,
                        partition,
                        partial(failed, index),
                        timestamp=timestamp_ms,
                        headers=headers,
                    )
                except BufferError:
                    self._producer.poll(0.05)
                except KafkaException as refused:
                    failed(index, _error_of(refused), None)
                    break
                else:
                    break
        for shard, value in transaction.journal.items():
            produce(
                self._journal_topics[shard.topic],
                value,
                None,
                shard.partition,
                partial(failed, -1),
            )

    def _on_failure(self, index: int, error: KafkaError | None, _message: Message | None) -> None:
        if error is not None:
            self._failed[index] = error

    def _insist(self, what: str, call: Callable[[], None]) -> None:
        """Repeats a call that librdkafka says may be repeated."""
        patience = Patience(what, self._is_over)
        while True:
            try:
                return call()
            except KafkaException as failure:
                if not _error_of(failure).retriable():
                    raise
                patience.wait(failure)

    def _judge(self, failure: KafkaException) -> None:
        error = _error_of(failure)
        if error.code() in _FENCED:
            raise FencedError(
                "another process runs with this data directory's instance id: one of the two has to go"
            ) from failure
        if error.code() not in _STALE:
            log.info("transaction aborted: %s", error.str())

    def _abort(self, transaction: Transaction) -> Aborted:
        """Ends it; tells what can never be sent, as far as it is known."""
        failed = dict(self._failed)
        try:
            self._insist("aborting", lambda: self._producer.abort_transaction(_CALL_S))
        except KafkaException as failure:
            self._judge(failure)
            self._renew()
        return Aborted(self._refused(transaction.outgoing, failed))

    def _refused(self, outgoing: list[Outgoing], failed: dict[int, KafkaError]) -> dict[int, str]:
        codes = {index: error.code() for index, error in failed.items() if index >= 0}
        named = {index: _CODES[code] for index, code in codes.items() if code in _CODES}
        suspects = codes.keys() - named.keys()
        if any(code == "too-large" for code in named.values()) and not self._careful:
            self._careful = _CAREFUL_TRANSACTIONS  # perhaps it is the batch that was too large, not the record
            self._renew()
            return {index: code for index, code in named.items() if code != "too-large"}
        if suspects and not named:
            denied = self._denied({outgoing[index].topic for index in suspects})
            return {index: "not-authorized" for index in suspects if outgoing[index].topic in denied}
        return named

    def _denied(self, topics: Iterable[str]) -> set[str]:
        """Those of `topics` that we may not write to; each is tried in a transaction of its own that is aborted."""
        found = set()
        for topic in sorted(topics):
            self._failed = {}
            try:
                self._producer.begin_transaction()
                self._producer.produce(topic, None, on_delivery=partial(self._on_failure, 0))
                self._producer.flush()
            except KafkaException as failure:
                self._judge(failure)
                found.add(topic)
            if self._failed:
                found.add(topic)
            try:
                self._insist("aborting", lambda: self._producer.abort_transaction(_CALL_S))
            except KafkaException as failure:
                self._judge(failure)
                self._renew()
        return found

    def _renew(self) -> None:
        """A new producer of the same id, which ends whatever the old one had open."""
        self._producer = self._made()

    def _made(self) -> Producer:
        careful = {"batch.num.messages": 1, "linger.ms": 0} if self._careful else {}
        producer = Producer({**self._config, **careful}, logger=logger())
        patience = Patience("starting the producer", self._is_over)
        while True:
            try:
                producer.init_transactions(_CALL_S)
            except KafkaException as failure:
                if not _error_of(failure).retriable() and _error_of(failure).fatal():
                    raise BridgeError(f"starting the producer: {failure}") from failure
                patience.wait(failure)
            else:
                return producer


class ConfluentTopics:
    """The admin's view of the cluster."""

    def __init__(self, config: Config, startup_timeout_s: float) -> None:
        self._admin = AdminClient(config, logger=logger())
        self._deadline_s = time.monotonic() + startup_timeout_s

    def partitions(self) -> dict[str, int]:
        """Of every topic. Raises BrokerUnavailableError when no broker answers in time."""
        patience = Patience("waiting for a broker", lambda: time.monotonic() >= self._deadline_s)
        while True:
            try:
                found = self._admin.list_topics(timeout=5)
            except KafkaException as failure:
                patience.wait(_error_of(failure).str())
            else:
                return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def create(self, name: str, partitions: int, replication_factor: int, config: dict[str, str]) -> None:
        """Does nothing where another instance was faster. Raises BridgeError."""
        asked = NewTopic(name, partitions, replication_factor, config=config)
        try:
            self._admin.create_topics([asked], operation_timeout=30)[name].result()
        except KafkaException as failure:
            if _error_of(failure).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BridgeError(
                    f"topic {name} is missing and cannot be made: {_error_of(failure).str()}"
                ) from failure

    def config(self, name: str) -> dict[str, str]:
        """The topic's configuration. Raises BridgeError."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            found = self._admin.describe_configs([resource])[resource].result()
        except KafkaException as failure:
            raise BridgeError(f"topic {name} cannot be looked at: {_error_of(failure).str()}") from failure
        return {key: entry.value for key, entry in found.items()}


def send_all(
    config: Config, topic: str, key: bytes | None, values: Iterable[bytes], headers: list[tuple[str, bytes | None]]
) -> int:
    """Produces `values` with one key and the same headers; returns how many. Raises BridgeError if one is refused."""
    producer = Producer({**config, "enable.idempotence": True, "message.timeout.ms": 30_000}, logger=logger())
    refused: list[KafkaError] = []

    def told(error: KafkaError | None, _message: Message | None) -> None:
        if error is not None:
            refused.append(error)

    count = 0
    for value in values:
        count += 1
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=told, headers=list(headers))
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()
    if refused:
        raise BridgeError(f"{len(refused)} of {count} were not taken by {topic}: {refused[0].str()}")
    return count


_METADATA_AGE_S = 300.0
"""After this it is asked again how many partitions a topic has: as often as Java's clients do."""


class ConfluentOutbox:
    """bridge.client's Outbox: a producer without transactions, whose answers are served by a thread of its own."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        if "transactional.id" in config:
            raise SettingsError(
                "transactional.id: keep your transactional producer, and give it bridge.client.headers_for's headers"
            )
        own = {
            "client.id": "timer-client",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "topic.metadata.propagation.max.ms": 5000,
        }
        try:
            self._producer = Producer({**own, **config}, logger=logger())
        except KafkaException as failure:
            raise SettingsError(f"kafka settings: {_error_of(failure).str()}: mend them") from failure
        self._partitions: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._failures: list[BridgeError] = []
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="timer-client", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> "Future[Sent]":
        future: Future[Sent] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._count += 1
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=partial(self._told, future, topic), headers=list(headers)
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as refused:
                self._fail(future, topic, _error_of(refused))
                return future
            else:
                return future

    def partitions(self, topic: str) -> int:
        count, asked_s = self._partitions.get(topic, (0, 0.0))
        if not count or time.monotonic() - asked_s >= _METADATA_AGE_S:
            count = self._asked_partitions(topic)
            self._partitions[topic] = count, time.monotonic()
        return count

    def flush(self, timeout_s: float | None) -> None:
        left = self._producer.flush() if timeout_s is None else self._producer.flush(timeout_s)
        with self._lock:
            failures, count = self._failures, self._count
            self._failures, self._count = [], 0
        if failures:
            raise BridgeError(f"{len(failures)} of {count} were not taken: {failures[0]}") from failures[0]
        if left:
            raise BrokerUnavailableError(
                f"{left} are not acknowledged after {timeout_s} s: flush again, or wait longer"
            )

    def close(self) -> None:
        self._producer.flush()
        self._is_closing.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_closing.is_set():
            self._producer.poll(0.1)

    def _told(self, future: "Future[Sent]", topic: str, error: KafkaError | None, message: Message) -> None:
        if error is None:
            future.set_result(Sent(topic, message.partition(), message.offset()))
        else:
            self._fail(future, topic, error)

    def _fail(self, future: "Future[Sent]", topic: str, error: KafkaError) -> None:
        failure = _not_taken(topic, error)
        with self._lock:
            self._failures.append(failure)
        future.set_exception(failure)

    def _asked_partitions(self, topic: str) -> int:
        try:
            found = self._producer.list_topics(topic, timeout=_CALL_S).topics[topic]
        except KafkaException as failure:
            raise BrokerUnavailableError(f"how many partitions {topic} has: {_error_of(failure).str()}") from failure
        if found.error is not None:
            raise _not_taken(topic, found.error)
        return len(found.partitions)


def _not_taken(topic: str, error: KafkaError) -> BridgeError:
    if _CODES.get(error.code()) == "unknown-topic":
        return BridgeError(f"{topic}: there is no such topic: make it (timer-bridge run makes the timer topic)")
    if error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001
        return BrokerUnavailableError(f"{topic}: no broker took it in time (message.timeout.ms)")
    return BridgeError(f"{topic}: {error.str()}")
