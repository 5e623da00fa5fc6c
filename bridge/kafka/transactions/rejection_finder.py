"""Find the records that their target never accepts, without a record or a transaction sent for that.

    before a transaction   new names of topics are looked up together     unknown topic or partition, denied topic, one
                                                                          that may refuse the end of a transaction
                           settings are compared with the records         without a key for a compacted topic; too large
    after a failed one     the broker's answers name the records (KIP-467)
                           one record was alone in its batch

librdkafka 2.16 names no record if a single one of a batch is invalid, and a broker refuses a batch that is too large as
a whole. If the topic's settings do not tell, the topic gets smaller batches, until a record is alone in its batch.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.errors import UNKNOWN, answered, error_of
from bridge.kafka.retry import CALL_S, Retrier, serve, serve_idle
from bridge.kafka.transactions.record_sender import SendFailure, limited, size_of
from bridge.ports import Outgoing

MEMORY_S = 10.0
"""Seconds after which the limits of a topic are forgotten: records and batches of any size are tried again."""
MOST_TOPICS = 10_000
"""Topics whose look-ups are kept at the start of a transaction: senders name topics."""
MOST_CHUNKS = 64
"""Small batches of one topic in a transaction. Each is waited for, and all other records wait meanwhile."""

_UNKNOWN_TOPIC = "unknown-topic"
_UNKNOWN_PARTITION = "unknown-partition"
_DENIED = "not-authorized"
_TOO_LARGE = "too-large"
_BAD_TARGET = "bad-target"

OF_METADATA = UNKNOWN | {KafkaError.TOPIC_EXCEPTION}
TOPIC_DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})
_OF_SIZE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_LASTING = frozenset(
    {
        KafkaError.INVALID_RECORD,  # without a key for a compacted topic, or a timestamp that the topic does not take
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Codes of records. Valid records of the same batch get _INVALID_DIFFERENT_RECORD."""
OF_RECORDS = _LASTING | _OF_SIZE | {KafkaError._INVALID_DIFFERENT_RECORD}  # noqa: SLF001

_GRACE_TRIES = 3
_GRACE_S = 0.05
_GRACE_TOPICS = 20

LEAST_OLDEST_MS = 1000
"""Longer than a broker takes to append a marker with its own time, except for a pause of its garbage collector."""

Refused = dict[Outgoing, str]


class FoundTopic(NamedTuple):
    """A topic that exists. `id` is another one after the topic was deleted and created again."""

    partitions: int
    id: str


class TopicSettings(NamedTuple):
    """Settings of a topic that refuse records.

    most_batch_bytes: None if the broker does not report it. needs_key: True if the topic is compacted.
    is_strict: True if it may refuse the marker that ends a transaction, as it takes no timestamp older than a moment.
    Kafka 4.3 never sends a refused marker again, so that no producer can go on with that transactional.id.
    min_in_sync: min.insync.replicas; infinite if the broker does not report it.
    """

    most_batch_bytes: int | None
    needs_key: bool
    is_strict: bool
    min_in_sync: float = math.inf

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "TopicSettings":
        """Settings that a broker does not know (Kafka before 3.6, other products) refuse nothing."""
        known = {name: entry.value for name, entry in entries.items()}
        by_sender = known.get("message.timestamp.type", "CreateTime") == "CreateTime"
        return cls(
            int(known["max.message.bytes"]) if "max.message.bytes" in known else None,
            "compact" in known.get("cleanup.policy", ""),
            by_sender and int(known.get("message.timestamp.before.max.ms", LEAST_OLDEST_MS)) < LEAST_OLDEST_MS,
            float(known.get("min.insync.replicas", math.inf)),
        )


class TopicProbe:
    """Asks the cluster about many topics in one request, with a client that caches no names. Thread-safe.

    A producer that is asked for a topic caches the name until the process ends, and asks for it again each second while
    the cluster does not know it. Senders choose names, so that cache would grow without bound.
    """

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._admin: Any = None

    def describe(self, topics: Collection[str]) -> dict[str, FoundTopic | KafkaError]:
        """Return the topics, or the errors that records to them get. Topics without an answer are left out.

        A broker that does not report what our user may do counts as one that lets it write.
        """
        found: dict[str, FoundTopic | KafkaError] = {}
        for topic, answer in self._described(topics, include_authorized_operations=True):
            if isinstance(answer, KafkaError):
                found[topic] = answer
            elif (may := answer.authorized_operations) is not None and AclOperation.WRITE not in may:
                found[topic] = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            else:
                found[topic] = FoundTopic(len(answer.partitions), str(answer.topic_id))
        return {topic: answer for topic, answer in found.items() if not _is_unanswered(answer)}

    def unavailable(self, topics: Collection[str], *, include_unanswered: bool = False) -> frozenset[str]:
        """Return the topics with a partition that has no leader, or fewer in-sync replicas than min.insync.replicas.

        If our user may not see min.insync.replicas, all replicas have to be in sync.

        include_unanswered: True if topics about which no broker answers within 2 s are returned too.
        """
        in_sync: dict[str, int] = {}
        for topic, answer in self._described(topics):
            if isinstance(answer, KafkaError):
                if include_unanswered and _is_unanswered(answer):
                    in_sync[topic] = 0
            elif any(len(each.isr) < len(each.replicas) or not _has_leader(each) for each in answer.partitions):
                in_sync[topic] = min(len(each.isr) if _has_leader(each) else 0 for each in answer.partitions)
        found = self.settings([topic for topic, least in in_sync.items() if least > 0])
        needed = {topic: each.min_in_sync for topic, each in found.items()}
        return frozenset(topic for topic, replicas in in_sync.items() if replicas < needed.get(topic, math.inf))

    def settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        """Return the settings of the topics whose configuration our user may see."""
        found: dict[str, TopicSettings] = {}
        if not topics:
            return found
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        client = self._client()  # kept until all have answered: another thread may replace it
        asked = client.describe_configs(resources, request_timeout=CALL_S)
        for resource, answer in asked.items():
            with suppress(KafkaException):
                found[resource.name] = TopicSettings.of(answered(answer))
        return found

    def _described(self, topics: Collection[str], **options: Any) -> Iterator[tuple[str, Any]]:
        if not topics:
            return
        client = self._client()
        asked = client.describe_topics(TopicCollection([*topics]), request_timeout=CALL_S, **options)
        for topic, answer in asked.items():
            try:
                yield topic, answered(answer)
            except KafkaException as failure:
                if _is_unanswered(error := error_of(failure)):
                    self._admin = None
                yield topic, error
        serve(client)

    def _client(self) -> Any:
        """Return a new client if the last one got no answer: it may have lost all brokers for good."""
        client = self._admin = self._admin or clients.make(AdminClient, clients.admin(self._connection), self._retrier)
        serve_idle(client)
        return client


def _is_unanswered(answer: object) -> bool:
    """True for an error of librdkafka: no broker has answered."""
    return isinstance(answer, KafkaError) and answer.code() < 0


def _has_leader(partition: Any) -> bool:
    return partition.leader is not None and partition.leader.id >= 0


class RejectionFinder:
    """Finds rejected records, and remembers what targets refuse. Thread-safe.

    compresses: True if the producer compresses. A broker may then accept the larger of two records and not the smaller.
    """

    def __init__(self, probe: TopicProbe, *, compresses: bool = False) -> None:
        self._probe = probe
        self._compresses = compresses
        self._lock = Lock()
        self._topics: dict[str, FoundTopic] = {}
        """Topics that exist and that we may write to, as of their last look-up."""
        self._needs_key: set[str] = set()
        self._record_limits: dict[str, int] = {}
        """Topics that accept no larger records: topic -> bytes."""
        self.max_batch_bytes: dict[str, int] = {}
        """Topics that accept the records, but not in batches as large as ours: topic -> bytes at a time."""
        self._until_s: dict[str, float] = {}
        """When limits are forgotten, by topic."""
        self._next_grace_s = 0.0

    def needs_check(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return True if `known` has to be called, or a topic of `max_batch_bytes` is among the records."""
        topics = {record.topic for record in outgoing}
        found = {topic: known for topic in topics if (known := self._topics.get(topic)) is not None}
        limits, batches = self._record_limits, self.max_batch_bytes
        if len(found) < len(topics) or any(topic in limits or topic in batches for topic in topics):
            return True
        return bool(_beyond(outgoing, found) or self._without_key(outgoing, topics & self._needs_key))

    def known(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Return the records that will certainly be refused, with codes, before they are sent."""
        topics = {record.topic for record in outgoing}
        with self._lock:
            self._make_room(topics)
            self._forget_limits(topics)
            refused = self._by_metadata(outgoing, topics - self._topics.keys())
            refused |= self._by_partition(outgoing)
            refused |= dict.fromkeys(self._without_key(outgoing, topics & self._needs_key), _BAD_TARGET)
            if topics & self._record_limits.keys():
                refused |= _larger(outgoing, self._record_limits)
        return refused

    def crowded(self, outgoing: Sequence[Outgoing], max_batch_bytes: Mapping[str, int]) -> frozenset[str]:
        """Return the topics whose records would take more than MOST_CHUNKS small batches: fewer have to be sent."""
        counts = Counter(chunk[0].topic for chunk in limited(outgoing, max_batch_bytes))
        return frozenset(topic for topic, count in counts.items() if count > MOST_CHUNKS)

    def find(self, outgoing: Sequence[Outgoing], failed: SendFailure) -> Refused:
        """Return the records that made the transaction fail, as far as there is proof, with codes."""
        is_denied = failed.cause is not None and failed.cause.code() in TOPIC_DENIED  # the broker names no topic
        of_topic = OF_METADATA | TOPIC_DENIED | _LASTING
        failing = outgoing if is_denied else [record for record, code in failed.named.items() if code in of_topic]
        with self._lock:
            refused = self._by_metadata(outgoing, {record.topic for record in failing})
            by_topic: defaultdict[str, dict[Outgoing, int]] = defaultdict(dict)
            for record, code in failed.named.items():
                if code in OF_RECORDS and record not in refused:
                    by_topic[record.topic][record] = code
            settings = self._probe.settings(by_topic)
            for topic, named in by_topic.items():
                if _OF_SIZE.isdisjoint(named.values()):
                    refused |= self._by_validity(outgoing, topic, named, failed.cause)
                else:
                    limit = settings[topic].most_batch_bytes if topic in settings else None
                    refused |= self._by_size(outgoing, topic, list(named), limit)
        return refused

    def unavailable(self, topics: Collection[str], *, is_early: bool) -> frozenset[str]:
        """Return the topics that take no records now. is_early: only those that were deleted or created again.

        A producer waits for records to a topic that was deleted, or created again, until its transaction times out.
        """
        found = self._probe.describe(topics)
        with self._lock:
            known = {topic: self._topics[topic].id for topic in found.keys() & self._topics.keys()}
            existing = {topic: answer.id for topic, answer in found.items() if isinstance(answer, FoundTopic)}
            gone = {topic for topic, before in known.items() if existing.get(topic) != before}
            for topic in gone:
                del self._topics[topic]
        return frozenset(gone) if gone or is_early else self._probe.unavailable(topics)

    # -- metadata

    def _by_metadata(self, outgoing: Sequence[Outgoing], topics: Collection[str]) -> Refused:
        """Refuse records by their topics' metadata. An unknown topic may be about to be created, so ask again."""
        codes = self._look_up(topics)
        missing = [topic for topic, code in codes.items() if code == _UNKNOWN_TOPIC]
        tries = _GRACE_TRIES if missing and self._may_wait(missing) else 0
        while missing and tries:
            time.sleep(_GRACE_S)
            codes |= self._look_up(missing)
            missing = [topic for topic in missing if codes[topic] == _UNKNOWN_TOPIC]
            tries -= 1
        return {record: code for record in outgoing if (code := codes.get(record.topic))}

    def _may_wait(self, topics: Collection[str]) -> bool:
        """Return True once a second, so that a stream of unknown topics does not slow down all others."""
        now_s = time.monotonic()
        if now_s < self._next_grace_s or len(topics) > _GRACE_TOPICS:
            return False
        self._next_grace_s = now_s + 1.0
        return True

    def _look_up(self, topics: Collection[str]) -> dict[str, str | None]:
        """Return the code by which records to each topic are refused, or None. Leaves out topics without an answer."""
        codes: dict[str, str | None] = {}
        answers = self._probe.describe(topics)
        settings = self._probe.settings([topic for topic, found in answers.items() if isinstance(found, FoundTopic)])
        self._needs_key -= answers.keys()
        for topic, found in answers.items():
            self._topics.pop(topic, None)
            if topic in settings and settings[topic].is_strict:
                codes[topic] = _BAD_TARGET
            elif isinstance(found, FoundTopic):
                self._topics[topic], codes[topic] = found, None
                if topic in settings and settings[topic].needs_key:
                    self._needs_key.add(topic)
            elif found.code() in OF_METADATA:
                codes[topic] = _UNKNOWN_TOPIC
            elif found.code() in TOPIC_DENIED:
                codes[topic] = _DENIED
        return codes

    def _by_partition(self, outgoing: Sequence[Outgoing]) -> Refused:
        """Refuse records to partitions that do not exist, by fresh metadata. Without metadata, they may exist."""
        suspects = _beyond(outgoing, self._topics)
        self._look_up({record.topic for record in suspects})
        return dict.fromkeys(_beyond(suspects, self._topics), _UNKNOWN_PARTITION)

    # -- validity

    def _without_key(self, outgoing: Iterable[Outgoing], topics: Collection[str]) -> list[Outgoing]:
        return [each for each in outgoing if each.key is None and each.topic in topics] if topics else []

    def _by_validity(
        self, outgoing: Sequence[Outgoing], topic: str, named: Mapping[Outgoing, int], cause: KafkaError | None
    ) -> Refused:
        """Refuse the invalid records among those that the broker has named."""
        invalid = [record for record, code in named.items() if code in _LASTING]
        is_exact = len(invalid) == 1 or len(invalid) < len(named) or KafkaError.INVALID_RECORD not in named.values()
        if is_exact or (cause is not None and cause.code() == KafkaError.INVALID_TIMESTAMP):  # all have the same time
            return dict.fromkeys(invalid, _BAD_TARGET)
        if without_key := self._without_key(outgoing, {topic} & self._needs_key):
            return dict.fromkeys(without_key, _BAD_TARGET)
        self._use_small_batches(topic, 1)
        return {}

    # -- size

    def _by_size(
        self, outgoing: Sequence[Outgoing], topic: str, named: Sequence[Outgoing], limit: int | None
    ) -> Refused:
        """Refuse records of `topic` that are too large by themselves. If none is known, make its batches smaller.

        limit: the topic's max.message.bytes, None if it is unknown.
        """
        records = [each for each in outgoing if each.topic == topic]
        if limit is None and len(named) == 1:  # it was alone in its batch
            limit = size_of(named[0]) - 1
        if limit is not None and not self._compresses and (larger := _larger(records, {topic: limit})):
            self._record_limits[topic], self._until_s[topic] = limit, time.monotonic() + MEMORY_S
            return larger
        if len(named) == 1:
            return {named[0]: _TOO_LARGE}
        most = sum(map(size_of, records))
        half = min(most, self.max_batch_bytes.get(topic, most)) // 2
        self._use_small_batches(topic, half if limit is None else min(half, limit))
        return {}

    def _use_small_batches(self, topic: str, size_bytes: int) -> None:
        self.max_batch_bytes[topic], self._until_s[topic] = max(1, size_bytes), time.monotonic() + MEMORY_S

    def _make_room(self, topics: set[str]) -> None:
        """Forget all topics but these once there are more than MOST_TOPICS; they are looked up again."""
        if len(self._topics) > MOST_TOPICS:
            self._needs_key &= topics
            for known in (self._topics, self._record_limits, self.max_batch_bytes, self._until_s):
                for topic in known.keys() - topics:
                    del known[topic]

    def _forget_limits(self, topics: Collection[str]) -> None:
        now_s = time.monotonic()
        for topic in topics & self._until_s.keys():
            if now_s >= self._until_s[topic]:
                for limits in (self._record_limits, self.max_batch_bytes, self._until_s):
                    limits.pop(topic, None)


def _beyond(records: Iterable[Outgoing], known: Mapping[str, FoundTopic]) -> list[Outgoing]:
    return [each for each in records if each.topic in known and each.partition >= known[each.topic].partitions]


def _larger(records: Iterable[Outgoing], limits: Mapping[str, int]) -> Refused:
    return {each: _TOO_LARGE for each in records if each.topic in limits and size_of(each) > limits[each.topic]}
