"""Find the records that made a transaction fail. A record is rejected only with proof; without one, it is retried.

    before it is sent   a new topic: its metadata                 a target that refused lately: probed alone
    after it failed     unknown or denied topic named: metadata   too large: smallest and largest, then binary search
                        denied, no record named: binary search over the topics
                        another lasting reason: binary search over the named records

A binary search takes O(log n) transactions for each rejected record. They are always aborted, so no reader sees them.
A refusal is remembered for `MEMORY_S`, so that a stream of bad records does not make every transaction fail.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.transactions.produce import size_of
from bridge.kafka.transactions.producer import SendFailure
from bridge.ports import Outgoing

MEMORY_S = 10.0
"""Seconds after which a target that refused is probed again."""

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
OF_DENIAL = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})
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
_CODES_OF = {_DENIED: OF_DENIAL, _TOO_LARGE: _OF_SIZE}

_GRACE_TRIES = 3
_GRACE_S = 0.05

Probe = Callable[[Sequence[Outgoing]], SendFailure | None]
PartitionsOf = Callable[[str], "int | KafkaError"]
Refused = dict[int, str]


@dataclass(slots=True)
class _Memory:
    """A target's refusal: of everything, or of records of `least_size` bytes and more."""

    code: str
    until_s: float
    least_size: int = 0


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
        self._memories: dict[str, _Memory] = {}
        self._next_grace_s = 0.0
        self.max_batch_bytes: dict[str, int] = {}
        """Topics that accept the records, but not in batches as large as ours: topic -> bytes at a time."""

    def needs_check(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return True if `known` has to be called, or a topic of `max_batch_bytes` is among the records."""
        partitions = self._partitions
        topics = {record.topic for record in outgoing}
        return (
            not topics <= partitions.keys()
            or not topics.isdisjoint(self._memories)
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
            for topic in topics & self._memories.keys():
                refused |= self._by_memory(outgoing, topic)
        return refused

    def find(self, outgoing: Sequence[Outgoing], failed: SendFailure) -> Refused:
        """Return the records that made the transaction fail, as far as there is proof, with codes."""
        refused: Refused = {}
        with suppress(_InconclusiveError):
            refused |= self._by_metadata(outgoing, _topics(outgoing, failed, _OF_METADATA | OF_DENIAL))
            for topic in _topics(outgoing, failed, _OF_SIZE):
                named = [i for i, code in failed.named.items() if code in _OF_SIZE and outgoing[i].topic == topic]
                refused |= self._by_size(outgoing, topic, named)
            lasting = [[index] for index, code in sorted(failed.named.items()) if code in _LASTING]
            refused |= dict.fromkeys(self._search(lasting, outgoing, _LASTING), _BAD_TARGET)
            if not failed.named and failed.codes & OF_DENIAL:
                refused |= self._by_denial(outgoing)
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
        return {index: code for index, record in enumerate(outgoing) if (code := codes.get(record.topic))}

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
        if found.code() in OF_DENIAL:
            return _DENIED
        raise _InconclusiveError

    def _by_partition(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Refuse records to partitions that do not exist, by fresh metadata."""
        partitions = self._partitions

        def beyond(indices: Iterable[int]) -> list[int]:
            """Without metadata, assume that the partition exists."""
            records = ((i, outgoing[i]) for i in indices)
            return [i for i, r in records if r.partition >= partitions.get(r.topic, r.partition + 1)]

        suspects = beyond([i for i, r in enumerate(outgoing) if r.partition >= 0])
        for topic in {outgoing[index].topic for index in suspects}:
            self._describe(topic)
        return dict.fromkeys(beyond(suspects), _UNKNOWN_PARTITION)

    # -- memory

    def _remember(self, topic: str, code: str, least_size: int = 0) -> None:
        self._memories[topic] = _Memory(code, time.monotonic() + MEMORY_S, least_size)

    def _by_memory(self, outgoing: Sequence[Outgoing], topic: str) -> Refused:
        memory = self._memories[topic]
        suspects = [i for i, r in enumerate(outgoing) if r.topic == topic and size_of(r) >= memory.least_size]
        if not suspects:
            return {}
        if time.monotonic() >= memory.until_s:
            smallest = min(suspects, key=lambda i: size_of(outgoing[i]))
            if not self._is_refused(outgoing[smallest], _CODES_OF[memory.code]):
                del self._memories[topic]
                return {}
            self._remember(topic, memory.code, min(memory.least_size, size_of(outgoing[smallest])))
        return dict.fromkeys(suspects, memory.code)

    # -- size

    def _by_size(self, outgoing: Sequence[Outgoing], topic: str, named: Sequence[int]) -> Refused:
        """Refuse records of `topic` that are too large by themselves: all from a certain size on.

        If none is, the batch was too large, and `max_batch_bytes` is halved. With compression, only the smallest record
        that failed alone is proven. If the broker accepts a larger one, the batch was too large; with smaller batches
        fewer records are named, in the end that record alone.
        """
        candidates: Sequence[int] = (
            named if self._compresses else [i for i, r in enumerate(outgoing) if r.topic == topic]
        )
        indices = sorted(candidates, key=lambda i: size_of(outgoing[i]))
        refused = self._first_refused([outgoing[i] for i in indices])
        if refused == len(indices):
            was_alone = self.max_batch_bytes.get(topic) == 1  # each record was sent by itself
            if was_alone and (proved := [i for i in named if self._is_refused(outgoing[i], _OF_SIZE)]):
                return dict.fromkeys(proved, _TOO_LARGE)
            self._halve_batch_bytes(topic, sum(size_of(outgoing[i]) for i in indices))
            return {}
        if self._compresses:
            return {indices[refused]: _TOO_LARGE}
        self._remember(topic, _TOO_LARGE, size_of(outgoing[indices[refused]]))
        return dict.fromkeys(indices[refused:], _TOO_LARGE)

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

    def _is_refused(self, record: Outgoing, codes: frozenset[int]) -> bool:
        """Return True if the record fails by itself, with one of `codes`."""
        failed = self._probe([record])
        if failed is None:
            return False
        if not failed.codes & codes:
            raise _InconclusiveError
        return True

    # -- denial, and other lasting errors

    def _by_denial(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Refuse all records to topics that we may not write to. The broker names no topic."""
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for index, record in enumerate(outgoing):
            by_topic[record.topic].append(index)
        groups = [[min(indices, key=lambda i: size_of(outgoing[i]))] for indices in by_topic.values()]
        denied = {outgoing[i].topic for i in self._search(groups, outgoing, OF_DENIAL)}
        for topic in denied:
            self._remember(topic, _DENIED)
        return {index: _DENIED for topic in denied for index in by_topic[topic]}

    def _search(self, groups: list[list[int]], outgoing: Sequence[Outgoing], codes: frozenset[int]) -> list[int]:
        """Return the indices of all groups that fail by themselves with one of `codes`, by binary search."""
        if not groups:
            return []
        failed = self._probe([outgoing[index] for group in groups for index in group])
        if failed is None:
            return []
        if not failed.codes & codes:
            raise _InconclusiveError
        if len(groups) == 1:
            return groups[0]
        half = len(groups) // 2
        return self._search(groups[:half], outgoing, codes) + self._search(groups[half:], outgoing, codes)


def _topics(outgoing: Sequence[Outgoing], failed: SendFailure, codes: frozenset[int]) -> set[str]:
    """Return the topics of records that failed with one of `codes`."""
    return {outgoing[index].topic for index, code in failed.named.items() if code in codes}
