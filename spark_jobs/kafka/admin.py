"""The one door to confluent_kafka: which offsets a job reads, what a bridge has committed, and transactions.

Which offsets an audit reads is fixed before it reads them:

    timer.requests/0    [1200, 9800)      looked up first
    orders/0            [ 310, 7431)      looked up after it: a delivery of any request above is in here, or is missing

Spark resolves "latest" anew for each action, and two looks at a growing topic would not agree. So ranges are taken
here, once, up to the last stable offset (read_committed), and the requests' before the rest.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from schemas.progress import ForeignProgressError, Progress
from spark_jobs.errors import AuditTroubleError
from spark_jobs.kafka.security import KafkaAccess

_TIMEOUT_S = 30.0
_EACH_S = 3.0
_UNDECIDED_S = 120.0
_NAP_S = 0.2
FOREVER_MS = 2**62
_REMEDIES = {
    KafkaError._AUTHENTICATION: "look at sasl.mechanism, sasl.username, sasl.password in [kafka]",  # noqa: SLF001
    KafkaError._SSL: "look at security.protocol, ssl.ca.location in [kafka]",  # noqa: SLF001
}
_FOR_GOOD = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART})


class Span(NamedTuple):
    """The records [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class Cluster:
    """What a broker says about its topics. Raises AuditTroubleError with a remedy when it says nothing."""

    def __init__(self, access: KafkaAccess) -> None:
        self._servers = access.bootstrap_servers
        self._trouble: str | None = None
        self._admin = AdminClient({**access.for_librdkafka(), "error_cb": self._told})  # type: ignore[dict-item]
        self.partitions = self._partitions()

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        """The records of these topics by their timestamps, all of them by default. Topics must exist."""
        places = self._places(topics)
        ends = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        starts = self._bounds(places, from_ms, ends) if from_ms is not None else self._starts(places)
        stops = self._bounds(places, to_ms, ends) if to_ms is not None else ends
        return [Span(*place, starts[place], max(starts[place], stops[place])) for place in places]

    def _places(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        return [(topic, partition) for topic in sorted(topics) for partition in range(self.partitions[topic])]

    def _starts(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _all_ends(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Behind what is undecided too."""
        return self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]

    def _bounds(
        self, places: list[tuple[str, int]], at_ms: int, ends: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """The first record at or after a time; the end where there is none."""
        found = self._offsets(places, OffsetSpec.for_timestamp(at_ms))
        return {place: offset if 0 <= offset <= ends[place] else ends[place] for place, offset in found.items()}

    def decided(self, topics: Iterable[str], *, from_ms: int | None = None) -> list[Span]:
        """As `spans`, but up to what stands now, decided or not: waits for transactions that are still open.

        That a commit is known does not mean that its marker has reached every topic.
        """
        ends = self._all_ends(self._places(topics))
        until_s = time.monotonic() + _UNDECIDED_S
        while True:
            found = self.spans(topics, from_ms=from_ms)
            late = [span for span in found if span.end < ends[span.topic, span.partition]]
            if not late:
                return found
            if time.monotonic() > until_s:
                raise AuditTroubleError(f"{late[0].topic}/{late[0].partition}: a transaction stays open: run it again")
            time.sleep(_NAP_S)

    def undecided(self, spans: Iterable[Span]) -> list[Span]:
        """What stands behind these, each of which ends with the last stable offset: others' open transactions hide it.

        Some of it has been decided by now, and the rest may be aborted.
        """
        ended = {(span.topic, span.partition): span.end for span in spans}
        ends = self._all_ends([*ended])
        return [Span(*place, end, ends[place]) for place, end in ended.items() if end < ends[place]]

    def demand_existing(self, topic: str, *, flag: str = "--timer-topic") -> None:
        """Raises AuditTroubleError where there is none of that name; `flag` is what names it."""
        if topic not in self.partitions:
            raise AuditTroubleError(f"there is no topic {topic} on this cluster: check {flag}")

    def demand(self, topic: str, partitions: int, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """Makes the topic where it is missing."""
        if topic in self.partitions:
            return
        made = NewTopic(topic, partitions, config=dict(settings))
        try:
            self._admin.create_topics([made], request_timeout=_TIMEOUT_S)[topic].result()
        except KafkaException as wrong:
            raise AuditTroubleError(f"{topic} could not be made ({wrong.args[0].str()}): make it") from wrong
        self.partitions[topic] = partitions

    def demand_compacted(self, topic: str, partitions: int) -> None:
        """Makes the topic where it is missing. Raises AuditTroubleError where it would forget."""
        if topic not in self.partitions:
            self.demand(topic, partitions, {"cleanup.policy": "compact"})
            return
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            policy = self._admin.describe_configs([resource])[resource].result(_TIMEOUT_S)["cleanup.policy"].value
        except (KafkaException, TimeoutError) as wrong:
            raise AuditTroubleError(f"{topic}: its settings were not told: {wrong}") from wrong
        if policy != "compact":
            raise AuditTroubleError(
                f"{topic}: cleanup.policy is {policy}: set it to compact, else what was backfilled is forgotten"
            )

    def remembered_from_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """From when on nothing can be gone; without the topics that never lost a record, FOREVER_MS for compacted ones.

        A topic whose settings are not told to us is taken for compacted. Where senders say the time, others' may be
        far behind ours: then what retention has left to stay is what counts, and no first record.
        """
        told = self._settings(topics)
        kept_ms = {topic: _kept_ms(settings) for topic, settings in told.items()}
        found = {topic: FOREVER_MS for topic, settings in told.items() if _is_compacted(settings)}
        for topic, first_ms in self._firsts_behind_what_is_gone(told):
            since_ms = FOREVER_MS if first_ms is None else first_ms
            found[topic] = max(found.get(topic, 0), since_ms, kept_ms[topic])
        return found

    def refused_from_ms(self, topic: str) -> int:
        """From when on nothing can be gone of the rejected topic; 0: nothing is, FOREVER_MS: nobody can tell.

        A bridge alone writes it and makes it: so its first record tells, and settings that are not told to us are taken
        for those it was made with.
        """
        settings = self._settings([topic])[topic]
        if settings and _is_compacted(settings):
            return FOREVER_MS
        empty_ms = _by_retention_ms(settings)
        firsts = self._firsts_behind_what_is_gone([topic])
        return max((empty_ms if first_ms is None else first_ms for _, first_ms in firsts), default=0)

    def _firsts_behind_what_is_gone(self, topics: Iterable[str]) -> Iterator[tuple[str, int | None]]:
        """The time of the first record of each partition that has lost its beginning; None: it has no record."""
        gone = [place for place, start in self._starts(self._places(topics)).items() if start > 0]
        for (topic, _), first in self._listed(gone, OffsetSpec.for_timestamp(0)).items():
            yield topic, first.timestamp if first.offset >= 0 else None

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """Those that are, as far as we may know."""
        return [topic for topic, settings in self._settings(topics).items() if settings and _is_compacted(settings)]

    def _settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Of each; none where they are not told to us."""
        resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
        answers = self._admin.describe_configs([*resources.values()]) if resources else {}
        found: dict[str, dict[str, str]] = {}
        for topic, resource in resources.items():
            try:
                found[topic] = {name: entry.value for name, entry in answers[resource].result(_TIMEOUT_S).items()}
            except (KafkaException, TimeoutError):
                found[topic] = {}
        return found

    def _offsets(
        self,
        places: list[tuple[str, int]],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], int]:
        return {place: found.offset for place, found in self._listed(places, spec, level).items()}

    def _listed(
        self,
        places: list[tuple[str, int]],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], Any]:
        """A leader that has changed makes an answer wrong."""
        end_s = time.monotonic() + _TIMEOUT_S
        while places:
            try:
                answers = self._admin.list_offsets(
                    {TopicPartition(*place): spec for place in places},
                    isolation_level=level,
                    request_timeout=_TIMEOUT_S,
                )
                return {(at.topic, at.partition): answer.result() for at, answer in answers.items()}
            except KafkaException as wrong:
                if wrong.args[0].code() in _FOR_GOOD or time.monotonic() > end_s:
                    raise AuditTroubleError(f"the broker did not tell offsets: {wrong.args[0].str()}") from wrong
                time.sleep(_NAP_S)
                self._look_up_leaders()
        return {}

    def _look_up_leaders(self) -> None:
        """The client learns them with any list of the topics."""
        self._partitions()

    def _told(self, error: KafkaError) -> None:
        """By code alone: librdkafka's text may quote a setting."""
        self._trouble = _REMEDIES.get(error.code(), self._trouble)

    def _partitions(self) -> dict[str, int]:
        end_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                topics = self._admin.list_topics(timeout=min(_EACH_S, _TIMEOUT_S)).topics
            except KafkaException as wrong:
                self._admin.poll(0)  # it has told of what is wrong with us by then
                if self._trouble is not None:
                    raise AuditTroubleError(f"{self._servers} does not let us in: {self._trouble}") from wrong
                if time.monotonic() > end_s:
                    raise AuditTroubleError(
                        f"no broker answers at {self._servers} ({wrong.args[0].str()}): check --bootstrap-servers"
                    ) from wrong
            else:
                return {name: len(topic.partitions) for name, topic in topics.items()}


_END = KafkaError._PARTITION_EOF  # noqa: SLF001


class Kept(NamedTuple):
    """A committed record, as far as its reader needs it."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def progress(access: KafkaAccess, group: str, topic: str, partition: int) -> Progress | None:
    """What a bridge has committed, when it can change no more. Raises AuditTroubleError."""
    consumer: Any = Consumer({**access.for_librdkafka(), **_READER, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=_UNDECIDED_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset < 0 else Progress.committed(found.offset, found.metadata)
    except KafkaException as wrong:
        raise AuditTroubleError(f"{group}: no progress of {topic}/{partition}: {wrong.args[0].str()}") from wrong
    except ForeignProgressError as wrong:
        raise AuditTroubleError(f"{topic}/{partition}: {wrong}: name the bridge's group with --group") from wrong
    finally:
        consumer.close()


def read(access: KafkaAccess, topic: str, partition: int, *, from_ms: int | None = None) -> Iterator[Kept]:
    """Committed records up to what stands now, decided or not: waits for transactions that are still open."""
    spans = [s for s in Cluster(access).decided([topic], from_ms=from_ms) if s.partition == partition]
    if not spans:
        raise AuditTroubleError(f"{topic} has no partition {partition}: it needs as many as the timer topic")
    span = spans[0]
    consumer: Any = Consumer({**access.for_librdkafka(), **_READER, "group.id": "timer-bridge-backfill"})
    consumer.assign([TopicPartition(topic, partition, span.start)])
    position, until_s = span.start, time.monotonic() + _UNDECIDED_S
    try:
        while position < span.end:
            message = consumer.poll(_EACH_S)
            if message is None:
                if time.monotonic() > until_s:
                    raise AuditTroubleError(f"{topic}/{partition}: nothing comes at {position}: run it again")
                continue
            error = message.error()
            if error is None:
                position, until_s = message.offset() + 1, time.monotonic() + _UNDECIDED_S
                yield Kept(message.timestamp()[1], message.key(), message.value())
            elif error.code() == _END:
                position = max(position, message.offset())
            # librdkafka wants a group, and we commit nothing to it; such an error has no offset.
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise AuditTroubleError(f"{topic}/{partition}: {error.str()}")
    finally:
        consumer.close()


class OutgoingRecord(NamedTuple):
    """`partition` -1: the partitioner's choice, as Kafka's own clients have it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def _is_compacted(settings: Mapping[str, str]) -> bool:
    """Also where nobody tells."""
    return "compact" in settings.get("cleanup.policy", "compact")


def _kept_ms(settings: Mapping[str, str]) -> int:
    """From when on retention by time has left what the bridge delivered, by our clock; 0: its first record tells."""
    if _is_compacted(settings) or settings["message.timestamp.type"] == "LogAppendTime":
        return 0
    return _by_retention_ms(settings)


def _by_retention_ms(settings: Mapping[str, str]) -> int:
    """What was written since then is there, by our clock; FOREVER_MS where it is not time that takes it."""
    retention_ms = int(settings.get("retention.ms", "-1"))
    by_size = int(settings.get("retention.bytes", "-1")) >= 0
    return FOREVER_MS if by_size or retention_ms < 0 else int(time.time() * 1000) - retention_ms


ENDED_BY_ANOTHER = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
"""Codes that say that a newer Sender of the same name is at work: to begin again would only end that one."""

TAKES_NOTHING = ("TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION")
"""Codes that a topic answers whatever is sent to it."""


class RefusedError(Exception):
    """A transaction that does not stand; the message is the broker's code."""


class TransactionalSender:
    """One transaction at a time, by one producer of its name in the world: a newer one ends what this has open."""

    def __init__(self, access: KafkaAccess, transactional_id: str) -> None:
        own = {"transactional.id": transactional_id}
        self._producer: Any = Producer({**access.for_librdkafka(), **_WRITER, **own})
        try:
            self._producer.init_transactions(_TIMEOUT_S)
        except KafkaException as wrong:
            raise AuditTroubleError(
                f"the broker lets no transaction begin ({wrong.args[0].str()}): give the right (an ACL) to Write with"
                f" the transactional id {transactional_id}"
            ) from wrong

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """All of them, or none: RefusedError. After that another Sender has to be made."""
        failed: list[str] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error.name())

        try:
            self._producer.begin_transaction()
            for record in records:
                self._produce(record, told)
            self._producer.flush(_TIMEOUT_S)
            if not failed:
                self._producer.commit_transaction(_TIMEOUT_S)
                return
            self._producer.abort_transaction(_TIMEOUT_S)
        except (KafkaException, SystemError) as wrong:
            failed.append(_error_of(wrong).name())
        # What was purged only followed the one that failed.
        raise RefusedError(next((code for code in failed if not code.startswith("_PURGE")), failed[0]))

    def _produce(self, record: OutgoingRecord, told: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    headers=list(record.headers),
                    on_delivery=told,
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return


def _error_of(wrong: KafkaException | SystemError) -> KafkaError:
    """A fatal error that comes to light while callbacks are served arrives as the cause of a SystemError."""
    told = wrong.__cause__ if isinstance(wrong, SystemError) else wrong
    if not isinstance(told, KafkaException):
        raise wrong
    error: KafkaError = told.args[0]
    return error


_READER: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}
_WRITER: Mapping[str, Any] = {
    "transaction.timeout.ms": 30_000,
    # Whether a record is too large is the topic's to say.
    "message.max.bytes": 1_000_000_000,
    "partitioner": "murmur2_random",
    "topic.metadata.propagation.max.ms": 0,
}
