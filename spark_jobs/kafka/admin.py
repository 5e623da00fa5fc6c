"""Which offsets a job reads, and what a bridge has committed.

The offsets that an audit reads are fixed before it reads them:

    timer.requests/0    [1200, 9800)      looked up first
    orders/0            [ 310, 7431)      looked up after it: a delivery of any request above is in here, or is missing

Spark resolves "latest" again for each action, so two actions on a growing topic would disagree. The spans are looked up
here, once, up to the last stable offset (read_committed), and those of the requests before the others.
"""

import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from kafka_timer.kafka_client import answered, reported
from schemas import resent
from schemas.progress import ForeignProgressError, Progress
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.security import KafkaAccess

TIMEOUT_S = 30.0
POLL_S = 3.0
OPEN_TRANSACTION_S = 120.0
_RETRY_INTERVAL_S = 0.2
FOREVER_MS = 2**62
_REMEDIES = {
    KafkaError._AUTHENTICATION: "check sasl.mechanism, sasl.username, sasl.password in [kafka]",  # noqa: SLF001
    KafkaError._SSL: "check security.protocol, ssl.ca.location in [kafka]",  # noqa: SLF001
}
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
_NETWORK_ERRORS = frozenset({KafkaError._RESOLVE, KafkaError._TRANSPORT})  # noqa: SLF001
_PERMANENT_ERRORS = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART})


Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Span(NamedTuple):
    """The records [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def within(self, first: int, end: int) -> "Span":
        """Return the part of it in [first, end)."""
        start = min(max(self.start, first), self.end)
        return self._replace(start=start, end=max(start, min(self.end, end)))


class Cluster:
    """Topics of a cluster. Methods raise JobFailedError, with a remedy, if no broker answers."""

    def __init__(self, access: KafkaAccess) -> None:
        self.access, self._servers = access, access.bootstrap_servers
        self._remedy: str | None = None
        self._unreachable = "no broker answers in time"
        try:
            self._admin = AdminClient({**access.for_librdkafka(), "error_cb": self._on_error})  # type: ignore[dict-item]
        except KafkaException as wrong:
            raise JobFailedError(_reason_of_refused_settings(wrong)) from wrong
        self.partitions = self._partitions()

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        """Return the spans of these topics by timestamp, everything by default. Topics must exist."""
        places = self._places(topics)
        ends = self._offsets(places, _LATEST)
        starts = self._bounds(places, from_ms, ends) if from_ms is not None else self._offsets(places, _EARLIEST)
        stops = self._bounds(places, to_ms, ends) if to_ms is not None else ends
        return [Span(*place, starts[place], max(starts[place], stops[place])) for place in places]

    def _places(self, topics: Iterable[str]) -> list[Place]:
        return [(topic, partition) for topic in sorted(topics) for partition in range(self.partitions[topic])]

    def _bounds(self, places: list[Place], at_ms: int, ends: dict[Place, int]) -> dict[Place, int]:
        """Return the offsets of the first records at or after a time; the end if there is none."""
        found = self._offsets(places, OffsetSpec.for_timestamp(at_ms))
        return {place: offset if 0 <= offset <= ends[place] else ends[place] for place, offset in found.items()}

    def stable_spans(self, topics: Iterable[str], *, from_ms: int | None = None) -> list[Span]:
        """Return `spans` up to the current ends, after the open transactions before them have ended.

        A known commit does not mean that its marker has reached every partition.
        """
        ends = self._offsets(self._places(topics), _LATEST, _UNCOMMITTED)
        until_s = time.monotonic() + OPEN_TRANSACTION_S
        while True:
            found = self.spans(topics, from_ms=from_ms)
            late = [span for span in found if span.end < ends[span.topic, span.partition]]
            if not late:
                return found
            if time.monotonic() > until_s:
                raise JobFailedError(f"{late[0].topic}/{late[0].partition}: a transaction stays open: run it again")
            time.sleep(_RETRY_INTERVAL_S)

    def unstable_spans(self, spans: Iterable[Span]) -> list[Span]:
        """Return the spans after these, which end at the last stable offset: open transactions hide them.

        Some of the records are committed by now, and others may be aborted.
        """
        ended = {(span.topic, span.partition): span.end for span in spans}
        ends = self._offsets([*ended], _LATEST, _UNCOMMITTED)
        return [Span(*place, end, ends[place]) for place, end in ended.items() if end < ends[place]]

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return Kafka's id of each topic: one that is created again has another. Absent if unknown."""
        named = sorted(topics)
        asked = self._admin.describe_topics(TopicCollection(named), request_timeout=TIMEOUT_S) if named else {}
        return {topic: str(told.topic_id) for topic, told in self._known(asked, "id").items()}

    def _known(self, asked: Mapping[str, Future[Any]], what: str) -> dict[str, Any]:
        """Return the answers about topics, without those that do not exist or that we may not see."""
        found = {}
        for topic, answer in asked.items():
            try:
                found[topic] = self._answer(answer)
            except KafkaException as wrong:
                if wrong.args[0].code() not in _PERMANENT_ERRORS:
                    raise JobFailedError(f"{topic}: its {what} could not be read: {wrong.args[0].str()}") from wrong
        return found

    def _answer(self, asked: Future[Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Return the answer of an admin request. Raises KafkaException, JobFailedError if none comes in time."""
        try:
            return answered(asked, timeout_s)
        except KafkaException as wrong:
            if wrong.args[0].code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                raise
            raise self._silent() from wrong

    def _silent(self) -> JobFailedError:
        self._admin.poll(0)  # calls error_cb
        return JobFailedError(
            f"{self._servers} answers, but a broker that it names does not ({self._unreachable}): correct"
            " advertised.listeners of the broker, or the name service of this machine"
        )

    def require_topic(self, topic: str, *, flag: str = "--timer-topic") -> None:
        """Raise JobFailedError if there is no such topic; `flag`: the flag that names it."""
        if topic not in self.partitions:
            raise JobFailedError(f"there is no topic {topic} on this cluster: check {flag}")

    def ensure_marks(self, topic: str) -> None:
        """Create the topic of marks if it is missing. Raises JobFailedError if it is not compacted."""
        if topic not in self.partitions:
            made = NewTopic(topic, resent.PARTITIONS, config=resent.CONFIG)
            try:
                self._answer(self._admin.create_topics([made], request_timeout=TIMEOUT_S)[topic])
            except KafkaException as wrong:
                raise JobFailedError(f"{topic} could not be created ({wrong.args[0].str()}): create it") from wrong
            self.partitions[topic] = resent.PARTITIONS
            return
        try:
            policy = self._answer(self._configs([topic])[topic])["cleanup.policy"].value
        except KafkaException as wrong:
            raise JobFailedError(f"{topic}: its settings could not be read: {wrong}") from wrong
        if (fault := resent.policy_fault(topic, policy)) is not None:
            raise JobFailedError(fault)

    def last_partition_since_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the time of the first record in each topic's last partition.

        Absent: topics with one partition, with an empty last one, or that have grown since this object was made.
        """
        several = {topic: count for topic in topics if (count := self.partitions[topic]) > 1}
        now = self._partitions() if several else {}
        lasts = [(topic, count - 1) for topic, count in sorted(several.items()) if count == now.get(topic)]
        firsts = self._listed(lasts, OffsetSpec.for_timestamp(0))
        return {topic: first.timestamp for (topic, _), first in firsts.items() if first.offset >= 0}

    def compacted(self, topics: Collection[str], *, if_unknown: bool = False) -> list[str]:
        """Return the topics that are compacted; `if_unknown`: also those whose settings we may not read."""
        known = self._known(self._configs(topics), "settings")
        policies = {topic: told["cleanup.policy"].value for topic, told in known.items()}
        return [topic for topic in topics if "compact" in policies.get(topic, "compact" if if_unknown else "")]

    def _configs(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        answers = self._admin.describe_configs(asked, request_timeout=TIMEOUT_S) if asked else {}
        return {resource.name: answer for resource, answer in answers.items()}

    def _offsets(self, places: list[Place], spec: OffsetSpec, level: IsolationLevel = _COMMITTED) -> dict[Place, int]:
        return {place: found.offset for place, found in self._listed(places, spec, level).items()}

    def _listed(self, places: list[Place], spec: OffsetSpec, level: IsolationLevel = _COMMITTED) -> dict[Place, Any]:
        """Return the listed offsets. Retries: a leader may have changed."""
        end_s = time.monotonic() + TIMEOUT_S
        while places:
            left_s = max(POLL_S, end_s - time.monotonic())
            try:
                asked = {TopicPartition(*place): spec for place in places}
                answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=left_s)
                return {
                    (at.topic, at.partition): reported(self._answer(answer, left_s)) for at, answer in answers.items()
                }
            except KafkaException as wrong:
                if wrong.args[0].code() in _PERMANENT_ERRORS:
                    raise JobFailedError(f"the broker did not list offsets: {wrong.args[0].str()}") from wrong
                if time.monotonic() + POLL_S > end_s:  # the client's time-out ends a little before ours
                    raise self._silent() from wrong
                time.sleep(_RETRY_INTERVAL_S)
                self._partitions()  # makes the client look up leaders again
        return {}

    def _on_error(self, error: KafkaError) -> None:
        """Keep the remedy by code; librdkafka's text may quote a setting, except if it is about the network."""
        self._remedy = _REMEDIES.get(error.code(), self._remedy)
        if error.code() in _NETWORK_ERRORS:
            self._unreachable = error.str()

    def _partitions(self) -> dict[str, int]:
        end_s, is_first = time.monotonic() + TIMEOUT_S, True
        while True:
            try:
                topics = self._admin.list_topics(timeout=min(POLL_S, TIMEOUT_S)).topics
                return {name: len(topic.partitions) for name, topic in topics.items()}
            except KafkaException as wrong:
                self._admin.poll(0)  # calls error_cb
                if self._remedy is not None:
                    raise JobFailedError(f"{self._servers} refuses the login: {self._remedy}") from wrong
                if is_first:
                    print(f"waiting for broker at {self._servers}", file=sys.stderr)
                is_first = False
                if time.monotonic() > end_s:
                    why = f"no broker answers at {self._servers} ({wrong.args[0].str()})"
                    raise JobFailedError(f"{why}: check --bootstrap-servers") from wrong


def _reason_of_refused_settings(wrong: KafkaException) -> str:
    """Return librdkafka's text, which names the setting, without the value, and with the remedy."""
    why = re.sub(r'value "[^"]*"', "value", wrong.args[0].str())
    if "GSSAPI" in why:
        return (
            "kafka: this confluent-kafka has no Kerberos, as those on PyPI: build it against a librdkafka with libsasl2"
            " (pip install --no-binary confluent-kafka confluent-kafka), or use a listener with SCRAM or OAUTHBEARER"
        )
    return f"kafka: librdkafka refuses its settings ({why}): correct [kafka] or --kafka"


def committed_progress(access: KafkaAccess, group: str, topic: str, partitions: int) -> dict[int, Progress | None]:
    """Return the progress of each partition that a bridge has committed; None: none. Raises JobFailedError."""
    consumer: Any = Consumer({**access.for_librdkafka(), **READER, "group.id": group})
    try:
        asked = [TopicPartition(topic, partition) for partition in range(partitions)]
        found = consumer.committed(asked, timeout=OPEN_TRANSACTION_S)
        for at in found:
            if at.error is not None:
                raise KafkaException(at.error)
        return {at.partition: None if at.offset < 0 else Progress.committed(at.offset, at.metadata) for at in found}
    except KafkaException as wrong:
        raise JobFailedError(f"{group}: no progress of {topic}: {wrong.args[0].str()}") from wrong
    except ForeignProgressError as wrong:
        raise JobFailedError(f"{topic}: {wrong}: name the bridge's group with --group") from wrong
    finally:
        consumer.close()


READER: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}
