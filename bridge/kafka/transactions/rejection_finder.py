"""Find the records that made a transaction fail. A record is rejected only with proof; without one, it is retried.

    unknown or denied topic, unknown partition    metadata; of a new topic before anything is sent
    another lasting reason                        each record that the broker has named is sent alone
    too large                                     smallest and largest are sent alone, then binary search by size

A record is sent alone in a transaction that is always aborted, so no reader sees it. Sizes are not compared with the
topic's max.message.bytes instead: the right to read it is optional, and the size after compression is unknown. A size
that was refused is remembered for `MEMORY_S`, so that a stream of large records does not make every transaction fail.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.transactions.contents import SendFailure
from bridge.kafka.transactions.record_sender import size_of
from bridge.ports import Outgoing

MEMORY_S = 10.0
"""Seconds after which a record of a size that was refused is sent alone again."""

_UNKNOWN_TOPIC = "unknown-topic"
_UNKNOWN_PARTITION = "unknown-partition"
_DENIED = "not-authorized"
_TOO_LARGE = "too-large"
_BAD_TARGET = "bad-target"

_OF_METADATA = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.TOPIC_EXCEPTION,
    }
)
TOPIC_DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})
_OF_SIZE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_LASTING = frozenset(
    {
        KafkaError.INVALID_RECORD,  # a compacted topic takes no record without a key
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)

_GRACE_TRIES = 3
_GRACE_S = 0.05

Probe = Callable[[Sequence[Outgoing]], SendFailure | None]
PartitionsOf = Callable[[str], "int | KafkaError"]
Refused = dict[Outgoing, str]


class _SizeLimit(NamedTuple):
    """A topic refuses records of `least_size` bytes and more."""

    least_size: int
    until_s: float


class _InconclusiveError(Exception):
    """The broker does not answer, or fails for another reason: there is no proof now."""


class RejectionFinder:
    """Finds rejected records by probing, and remembers what targets refuse.

    probe, partitions_of: see `TransactionalProducer`.
    compresses: True if the producer compresses. A broker may then accept the larger of two records and not the smaller.
    """

    def __init__(self, probe: Probe, partitions_of: PartitionsOf, *, compresses: bool = False) -> None:
        self._probe = probe
        self._partitions_of = partitions_of
        self._compresses = compresses
        self._partitions: dict[str, int] = {}
        self._size_limits: dict[str, _SizeLimit] = {}
        self._next_grace_s = 0.0
        self.max_batch_bytes: dict[str, int] = {}
        """Topics that accept the records, but not in batches as large as ours: topic -> bytes at a time."""

    def needs_check(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return True if `known` has to be called, or a topic of `max_batch_bytes` is among the records."""
        partitions = self._partitions
        topics = {record.topic for record in outgoing}
        return (
            not topics <= partitions.keys()
            or not topics.isdisjoint(self._size_limits)
            or not topics.isdisjoint(self.max_batch_bytes)
            or any(record.partition >= partitions[record.topic] for record in outgoing)
        )

    def known(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Return the records that will certainly be refused, with codes, before they are sent."""
        topics = {record.topic for record in outgoing}
        refused: Refused = {}
        with suppress(_InconclusiveError):
            if not topics <= self._partitions.keys():
                refused |= self._by_metadata(outgoing, topics - self._partitions.keys())
            refused |= self._by_partition(outgoing)
            for topic in topics & self._size_limits.keys():
                refused |= self._by_known_size(outgoing, topic)
        return refused

    def find(self, outgoing: Sequence[Outgoing], failed: SendFailure) -> Refused:
        """Return the records that made the transaction fail, as far as there is proof, with codes."""
        refused: Refused = {}
        with suppress(_InconclusiveError):
            topics = _topics(failed, _OF_METADATA | TOPIC_DENIED)
            is_denied = failed.cause is not None and failed.cause.code() in TOPIC_DENIED  # the broker names no topic
            refused |= self._by_metadata(outgoing, {record.topic for record in outgoing} if is_denied else topics)
            if is_denied and not refused:
                refused |= self._by_denial(outgoing)
            for topic in _topics(failed, _OF_SIZE):
                named = [each for each, code in failed.named.items() if code in _OF_SIZE and each.topic == topic]
                refused |= self._by_size(outgoing, topic, named)
            lasting = [record for record, code in failed.named.items() if code in _LASTING]
            refused |= dict.fromkeys(self._refused_alone(lasting, _LASTING), _BAD_TARGET)
        return refused

    # -- metadata

    def _by_metadata(self, outgoing: Sequence[Outgoing], topics: Iterable[str]) -> Refused:
        """Refuse records by their topics' metadata. An unknown topic may be about to be created, so ask again."""
        codes = {topic: self._describe(topic) for topic in topics}
        missing = {topic for topic, code in codes.items() if code == _UNKNOWN_TOPIC}
        for _ in range(_GRACE_TRIES if missing and self._may_wait() else 0):
            time.sleep(_GRACE_S)
            codes |= {topic: self._describe(topic) for topic in missing}
            missing = {topic for topic in missing if codes[topic] == _UNKNOWN_TOPIC}
            if not missing:
                break
        return {record: code for record in outgoing if (code := codes.get(record.topic))}

    def _may_wait(self) -> bool:
        """Return True once a second, so that a stream of unknown topics does not slow down all others."""
        now_s = time.monotonic()
        if now_s < self._next_grace_s:
            return False
        self._next_grace_s = now_s + 1.0
        return True

    def _describe(self, topic: str) -> str | None:
        """Return the code by which records to the topic are refused, or None."""
        self._partitions.pop(topic, None)
        try:
            found = self._partitions_of(topic)
        except KafkaException as failure:
            raise _InconclusiveError from failure
        if isinstance(found, int):
            self._partitions[topic] = found
            return None
        if found.code() in _OF_METADATA:
            return _UNKNOWN_TOPIC
        if found.code() in TOPIC_DENIED:
            return _DENIED
        raise _InconclusiveError

    def _by_partition(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Refuse records to partitions that do not exist, by fresh metadata."""
        partitions = self._partitions

        def beyond(records: Iterable[Outgoing]) -> list[Outgoing]:
            """Without metadata, assume that the partition exists."""
            return [each for each in records if each.partition >= partitions.get(each.topic, each.partition + 1)]

        suspects = beyond(record for record in outgoing if record.partition >= 0)
        for topic in {record.topic for record in suspects}:
            self._describe(topic)
        return dict.fromkeys(beyond(suspects), _UNKNOWN_PARTITION)

    # -- size

    def _by_known_size(self, outgoing: Sequence[Outgoing], topic: str) -> Refused:
        """Refuse records of a size that the topic refused lately."""
        limit = self._size_limits[topic]
        suspects = [each for each in outgoing if each.topic == topic and size_of(each) >= limit.least_size]
        if not suspects:
            return {}
        if time.monotonic() >= limit.until_s:
            smallest = min(suspects, key=size_of)
            if not self._is_refused(smallest, _OF_SIZE):
                del self._size_limits[topic]
                return {}
            self._remember(topic, min(limit.least_size, size_of(smallest)))
        return dict.fromkeys(suspects, _TOO_LARGE)

    def _remember(self, topic: str, least_size: int) -> None:
        self._size_limits[topic] = _SizeLimit(least_size, time.monotonic() + MEMORY_S)

    def _by_size(self, outgoing: Sequence[Outgoing], topic: str, named: Sequence[Outgoing]) -> Refused:
        """Refuse records of `topic` that are too large by themselves: all from a certain size on.

        If none is, the batch was too large, and `max_batch_bytes` is halved. With compression, only the smallest record
        that failed alone is proven. If the broker accepts a larger one, the batch was too large; with smaller batches
        fewer records are named, in the end that record alone.
        """
        candidates = named if self._compresses else [each for each in outgoing if each.topic == topic]
        by_size = sorted(candidates, key=size_of)
        refused = by_size[self._first_refused(by_size) :]
        if not refused:
            was_alone = self.max_batch_bytes.get(topic) == 1  # each record was sent by itself
            if was_alone and (proved := self._refused_alone(named, _OF_SIZE)):
                return dict.fromkeys(proved, _TOO_LARGE)
            self._halve_batch_bytes(topic, sum(map(size_of, by_size)))
            return {}
        if self._compresses:
            return {refused[0]: _TOO_LARGE}
        self._remember(topic, size_of(refused[0]))
        return dict.fromkeys(refused, _TOO_LARGE)

    def _halve_batch_bytes(self, topic: str, total_bytes: int) -> None:
        """Halve the bytes of the batch that failed."""
        self.max_batch_bytes[topic] = max(1, min(total_bytes, self.max_batch_bytes.get(topic, total_bytes)) // 2)

    def _first_refused(self, records: Sequence[Outgoing]) -> int:
        """Return the position of the first record that is too large. `records` are in ascending order of size."""
        accepted, refused = -1, len(records)
        ends = [len(records) - 1, 0]
        while accepted + 1 < refused:
            at = ends.pop(0) if ends and accepted < ends[0] < refused else (accepted + refused) // 2
            if self._is_refused(records[at], _OF_SIZE):
                refused = at
            else:
                accepted = at
        return refused

    # -- records sent alone

    def _by_denial(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Refuse records to denied topics if the broker does not report what our user may do."""
        smallest: dict[str, Outgoing] = {}
        for record in sorted(outgoing, key=size_of):
            smallest.setdefault(record.topic, record)
        denied = {record.topic for record in self._refused_alone(smallest.values(), TOPIC_DENIED)}
        return {record: _DENIED for record in outgoing if record.topic in denied}

    def _refused_alone(self, records: Iterable[Outgoing], codes: frozenset[int]) -> list[Outgoing]:
        return [record for record in records if self._is_refused(record, codes)]

    def _is_refused(self, record: Outgoing, codes: frozenset[int]) -> bool:
        """Return True if the record fails by itself, with one of `codes`."""
        failed = self._probe([record])
        if failed is None:
            return False
        if not failed.codes & codes:
            raise _InconclusiveError
        return True


def _topics(failed: SendFailure, codes: frozenset[int]) -> set[str]:
    """Return the topics of records that failed with one of `codes`."""
    return {record.topic for record, code in failed.named.items() if code in codes}
