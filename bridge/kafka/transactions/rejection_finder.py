"""Who made a transaction fail. A verdict needs proof; without one nobody is refused, and the transaction is repeated.

    before it is sent   a topic never seen: its metadata      a target that refused lately: asked apart
    when it failed      named unknown or denied: metadata     named too large: its smallest and largest, then halving
                        denied, nobody named: halving over the topics
                        named for another lasting reason: halving over those named

Halving costs O(log n) transactions for each culprit. They are always aborted, so that nothing of them is ever seen.
A refusal is remembered for `MEMORY_S`, so that a stream of bad records does not make every transaction fail.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.transactions.produce import size_of
from bridge.kafka.transactions.producer import Failed
from bridge.ports import Outgoing

MEMORY_S = 10.0
"""Then a target that refused is asked again."""

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

Probe = Callable[[Sequence[Outgoing]], Failed | None]
PartitionsOf = Callable[[str], "int | KafkaError"]
Refused = dict[int, str]


@dataclass(slots=True)
class _Memory:
    """What a target refused: everything, or records of `least_size` bytes and more."""

    code: str
    until_s: float
    least_size: int = 0


class _InconclusiveError(Exception):
    """The broker does not answer, or fails for another reason: no proof to be had now."""


class Culprits:
    """Knows what targets are like, by asking. `probe` and `partitions_of` are those of a producer.

    `compresses`: it does, so that of two records the larger may be taken and the smaller not.
    """

    def __init__(self, probe: Probe, partitions_of: PartitionsOf, *, compresses: bool = False) -> None:
        self._probe = probe
        self._partitions_of = partitions_of
        self._compresses = compresses
        self._partitions: dict[str, int] = {}
        self._memories: dict[str, _Memory] = {}
        self._next_grace_s = 0.0
        self.narrow: dict[str, int] = {}
        """Topics that take the records, but not in batches as large as ours: topic -> bytes at a time."""

    def needs_check(self, outgoing: Sequence[Outgoing]) -> bool:
        """Whether `known` has something to ask or to refuse, or care is to be taken in sending."""
        partitions = self._partitions
        topics = {record.topic for record in outgoing}
        return (
            not topics <= partitions.keys()
            or not topics.isdisjoint(self._memories)
            or not topics.isdisjoint(self.narrow)
            or any(record.partition >= partitions[record.topic] for record in outgoing)
        )

    def known(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Those whose refusal is certain before they are sent."""
        topics = {record.topic for record in outgoing}
        refused: Refused = {}
        with suppress(_InconclusiveError):
            if not topics <= self._partitions.keys():
                refused |= self._by_metadata(outgoing, topics - self._partitions.keys())
            refused |= self._by_partition(outgoing)
            for topic in topics & self._memories.keys():
                refused |= self._by_memory(outgoing, topic)
        return refused

    def find(self, outgoing: Sequence[Outgoing], failed: Failed) -> Refused:
        """Those that made it fail, as far as there is proof."""
        refused: Refused = {}
        with suppress(_InconclusiveError):
            refused |= self._by_metadata(outgoing, _topics(outgoing, failed, _OF_METADATA | OF_DENIAL))
            for topic in _topics(outgoing, failed, _OF_SIZE):
                named = [i for i, code in failed.named.items() if code in _OF_SIZE and outgoing[i].topic == topic]
                refused |= self._by_size(outgoing, topic, named)
            lasting = [[index] for index, code in sorted(failed.named.items()) if code in _LASTING]
            refused |= dict.fromkeys(self._halved(lasting, outgoing, _LASTING), _BAD_TARGET)
            if not failed.named and failed.codes & OF_DENIAL:
                refused |= self._by_denial(outgoing)
        return refused

    # -- metadata

    def _by_metadata(self, outgoing: Sequence[Outgoing], topics: Iterable[str]) -> Refused:
        """What the cluster says of `topics`. A topic that is unknown may be in the making, so it is asked again."""
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
        """Once a second: a stream of unknown names may not slow everybody down."""
        now_s = time.monotonic()
        if now_s < self._next_grace_s:
            return False
        self._next_grace_s = now_s + 1.0
        return True

    def _describe(self, topic: str) -> str | None:
        """Why nothing can be sent there; None where it can."""
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
        """Records for a partition that is not there, by metadata that is asked for again."""
        partitions = self._partitions

        def beyond(indices: Iterable[int]) -> list[int]:
            """A topic whose metadata is not known has all partitions."""
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
        """Which records of `topic` are too large by themselves: all from a certain size on. None: it was the batch.

        Where it compresses, this is proved of one record alone, the smallest that was asked about. Should a larger one
        be taken, it was the batch: a narrower one names fewer, in the end that record alone.
        """
        all_: Sequence[int] = named if self._compresses else [i for i, r in enumerate(outgoing) if r.topic == topic]
        indices = sorted(all_, key=lambda i: size_of(outgoing[i]))
        taken, refused = -1, len(indices)  # positions: this one and those below are taken, this and above refused
        looks = [len(indices) - 1, 0]
        while taken + 1 < refused:
            look = looks.pop(0) if looks and taken < looks[0] < refused else (taken + refused) // 2
            if self._is_refused(outgoing[indices[look]], _OF_SIZE):
                refused = look
            else:
                taken = look
        if refused == len(indices):
            was_alone = self.narrow.get(topic) == 1  # each was sent by itself, and these were named
            if was_alone and (proved := [i for i in named if self._is_refused(outgoing[i], _OF_SIZE)]):
                return dict.fromkeys(proved, _TOO_LARGE)
            self._make_narrow(topic, sum(size_of(outgoing[i]) for i in indices))
            return {}
        if self._compresses:
            return {indices[refused]: _TOO_LARGE}
        self._remember(topic, _TOO_LARGE, size_of(outgoing[indices[refused]]))
        return dict.fromkeys(indices[refused:], _TOO_LARGE)

    def _make_narrow(self, topic: str, total_bytes: int) -> None:
        """Half of what just failed; it halves again until it fits."""
        self.narrow[topic] = max(1, min(total_bytes, self.narrow.get(topic, total_bytes)) // 2)

    def _is_refused(self, record: Outgoing, codes: frozenset[int]) -> bool:
        """Whether it fails by itself, with one of `codes`."""
        failed = self._probe([record])
        if failed is None:
            return False
        if not failed.codes & codes:
            raise _InconclusiveError
        return True

    # -- denial, and whatever else lasts

    def _by_denial(self, outgoing: Sequence[Outgoing]) -> Refused:
        """All records to topics that we may not write to; the broker names none."""
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for index, record in enumerate(outgoing):
            by_topic[record.topic].append(index)
        groups = [[min(indices, key=lambda i: size_of(outgoing[i]))] for indices in by_topic.values()]
        denied = {outgoing[i].topic for i in self._halved(groups, outgoing, OF_DENIAL)}
        for topic in denied:
            self._remember(topic, _DENIED)
        return {index: _DENIED for topic in denied for index in by_topic[topic]}

    def _halved(self, groups: list[list[int]], outgoing: Sequence[Outgoing], codes: frozenset[int]) -> list[int]:
        """The indices of those groups that fail by themselves, with one of `codes`."""
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
        return self._halved(groups[:half], outgoing, codes) + self._halved(groups[half:], outgoing, codes)


def _topics(outgoing: Sequence[Outgoing], failed: Failed, codes: frozenset[int]) -> set[str]:
    """The topics of records that failed with one of `codes`."""
    return {outgoing[index].topic for index, code in failed.named.items() if code in codes}
