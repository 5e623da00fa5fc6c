"""Send rows again, each once: a row and its mark (schemas.resent) are one transaction.

start the producer   it fences an earlier one with its transactional id: no other adds a mark of ours from now on
read the marks       rows with a mark are left out
send                 rows and marks; if that is aborted, start again: the marks show whether a commit took effect
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kafka_timer.kafka_client import error_of, unwrapped
from schemas.chunks import chunks
from schemas.resent import MarkTopics, Source
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import OPEN_TRANSACTION_S, POLL_S, READER, TIMEOUT_S, Cluster, Place
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import Row

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = [("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)]
"""Fields of a row to send: bytes, and headers in order."""
_MOST_BYTES = 8 << 20
_END = KafkaError._PARTITION_EOF  # noqa: SLF001


class CommittedRecord(NamedTuple):
    """A committed record: the fields that jobs need."""

    key: bytes | None
    value: bytes | None
    offset: int = 0


def read_committed(cluster: Cluster, topic: str, partition: int, from_offset: int = 0) -> Iterator[CommittedRecord]:
    """Return the committed records up to the current end, after the open transactions before it have ended."""
    (span,) = (span for span in cluster.stable_spans([topic]) if span.partition == partition)
    span = span._replace(start=max(span.start, from_offset))
    consumer: Any = Consumer({**cluster.access.for_librdkafka(), **READER, "group.id": "timer-bridge-backfill"})
    consumer.assign([TopicPartition(topic, partition, span.start)])
    position, until_s = span.start, time.monotonic() + OPEN_TRANSACTION_S
    try:
        while position < span.end:
            message = consumer.poll(POLL_S)
            if message is None:
                if time.monotonic() > until_s:
                    raise JobFailedError(f"{topic}/{partition}: no record arrives at offset {position}: run it again")
                continue
            error = message.error()
            if error is None:
                position, until_s = message.offset() + 1, time.monotonic() + OPEN_TRANSACTION_S
                yield CommittedRecord(message.key(), message.value(), message.offset())
            elif error.code() == _END:
                position = max(position, message.offset())
            # librdkafka needs a group, to which we commit nothing: access to it may be denied.
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise JobFailedError(f"{topic}/{partition}: {error.str()}")
    finally:
        consumer.close()


class OutgoingRecord(NamedTuple):
    """A record to send. `partition` -1: chosen by the partitioner of Kafka's own clients."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


_FENCED_CODES = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
"""Codes of a producer that a newer one with its transactional id has fenced. A retry would fence that one."""

TOPIC_REFUSAL_CODES = ("TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION")
"""Codes that a topic answers for every record."""


_WRITER: Mapping[str, Any] = {
    "transaction.timeout.ms": 30_000,
    # The topic's limit decides whether a record is too large.
    "message.max.bytes": 1_000_000_000,
    # A transaction fits.
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 2_000_000,
    "partitioner": "murmur2_random",
    "topic.metadata.propagation.max.ms": 0,
}


class MarkReader:
    """Reads the marks about one partition of the timer topic, each once."""

    def __init__(
        self, access: KafkaAccess, topics: MarkTopics, of: int = 0, read_to: Mapping[Place, int] | None = None
    ) -> None:
        """read_to: the offset by partition up to which they are known already."""
        self._access, self._topics, self._of, self._read_to = access, topics, of, read_to or {}
        self._ends: dict[Source, int] = {}

    def new(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and value of the marks since the last call."""
        cluster = Cluster(self._access)
        for source in self._topics.sources(cluster.partitions, self._of):
            place = source.topic, source.partition
            for mark in read_committed(cluster, *place, self._ends.get(source, self._read_to.get(place, 0))):
                self._ends[source] = mark.offset + 1
                key = mark.key or b""
                if mark.value is not None and key.startswith(source.prefix):
                    yield key.removeprefix(source.prefix).decode(errors="replace"), mark.value


def transactions(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Return the rows of RECORD in lists: at least one row, at most `most` rows, and 8 MiB if there are several."""
    return chunks(rows, _size_bytes, most_bytes=_MOST_BYTES, most=most)


def _size_bytes(row: Row) -> int:
    parts = (row["key"], row["value"], *(header["value"] for header in row["headers"]))
    return sum(len(part or b"") for part in parts)


class Marks(Protocol):
    """The marks that a job knows. `read` adds what was marked since the last read."""

    def read(self) -> None: ...
    def has(self, row: Row) -> bool: ...


class Resender:
    """The only producer of the marks of some rows; it sends one transaction at a time.

    A newer one with its transactional id fences it; `run`: the name of that one in errors. Methods raise
    JobFailedError.
    """

    def __init__(self, access: KafkaAccess, transactional_id: str, run: str, marks: Marks) -> None:
        self._settings = {**access.for_librdkafka(), **_WRITER, "transactional.id": transactional_id}
        self._run, self._marks = run, marks
        self._begin()

    def _begin(self) -> None:
        self._producer: Any = Producer(self._settings)
        try:
            self._producer.init_transactions(TIMEOUT_S)
        except KafkaException as wrong:
            raise JobFailedError(
                f"the broker refuses transactions ({error_of(wrong).str()}): give the right (an ACL) to Write with"
                f" the transactional id {self._settings['transactional.id']}"
            ) from wrong
        self._marks.read()

    def send(self, rows: Sequence[Row], records_of: Callable[[Sequence[Row]], Iterable[OutgoingRecord]]) -> str | None:
        """Send the rows without a mark in one transaction. Return None if all have a mark then, else the broker's code.

        records_of: the records of these rows, and their marks.
        """
        left = [row for row in rows if not self._marks.has(row)]
        code = self._commit(records_of(left)) if left else None
        if code is None:
            return None
        if code in _FENCED_CODES:
            raise JobFailedError(f"another {self._run} has begun meanwhile and continues from here")
        self._begin()
        return None if all(map(self._marks.has, left)) else code

    def _commit(self, records: Iterable[OutgoingRecord]) -> str | None:
        """Send all records in a transaction. Return the broker's code if it is aborted: then begin again."""
        failed: list[str] = []

        def on_delivery(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error.name())

        try:
            with unwrapped():
                self._producer.begin_transaction()
                for topic, partition, key, value, headers in records:
                    self._producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=on_delivery)
                self._producer.flush(TIMEOUT_S)
                if not failed:
                    self._producer.commit_transaction(TIMEOUT_S)
                    return None
                self._producer.abort_transaction(TIMEOUT_S)
        except KafkaException as wrong:
            failed.append(error_of(wrong).name())
        # Purged records are a consequence of the one that failed.
        return next((code for code in failed if not code.startswith("_PURGE")), failed[0])
