"""Clients over librdkafka: settings, log and error texts that all share; consumers; the sender of `TimerProducer`."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.serialization import MessageField, SerializationContext

from kafka_timer.errors import BridgeError, BrokerUnavailableError, SettingsError
from kafka_timer.requests import Headers, Sent

log = logging.getLogger(__name__)

T = TypeVar("T")
Serializer: TypeAlias = Callable[[Any, SerializationContext], "bytes | str | None"]
"""As confluent_kafka's serializers."""
_ENDS_S = 10.0
CALL_S = 2.0  # longest blocking call of librdkafka. A shutdown waits for one call at most.

# If brokers allow it, librdkafka's producers and admins create topics by asking for them. A misspelt topic would then
# accept records that no program reads.
NO_NEW_TOPICS = {"allow.auto.create.topics": False}
# Off by default: librdkafka's log lines repeat the errors of exceptions and error_cb.
LIBRDKAFKA_LOG = logging.getLogger("librdkafka")
LIBRDKAFKA_LOG.setLevel(logging.CRITICAL + 1)

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_REMEDIES = {
    KafkaError._AUTHENTICATION: "look at sasl.mechanism, sasl.username and sasl.password",  # noqa: SLF001
    # A broker that expects TLS closes the connection without a reason.
    KafkaError._ALL_BROKERS_DOWN: "check that they run, and bootstrap_servers and security.protocol",  # noqa: SLF001
    KafkaError._SSL: "look at security.protocol and ssl.ca.location, and at the broker's certificate",  # noqa: SLF001
    KafkaError._RESOLVE: "check bootstrap_servers and the brokers' advertised.listeners",  # noqa: SLF001
}
_OPENSSL = "SSL routines:"


def error_of(failure: KafkaException) -> KafkaError:
    error: KafkaError = failure.args[0]
    return error


def answered(answer: "Future[T]", limit_s: float = 2 * CALL_S) -> T:
    """Return an admin client's answer. Raises KafkaException, also after `limit_s`.

    `request_timeout` alone does not end a call for a broker whose advertised name does not resolve (librdkafka 2.16).
    """
    try:
        return answer.result(limit_s)
    except NoAnswerError:  # not TimeoutError before Python 3.11
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer in {limit_s:g} s")) from None  # noqa: SLF001


def reported(listed: Any) -> Any:
    """Return an answer of list_offsets; its offset is -1 for a time without one. Raises KafkaException.

    During leader changes, and if a leader cannot be reached, librdkafka may answer without an offset.
    """
    if listed.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no leader has reported an offset"))
    return listed


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise a KafkaException that is the cause of a SystemError: a fatal error found while callbacks are served."""
    try:
        yield
    except SystemError as wrapped:
        if isinstance(wrapped.__cause__, KafkaException):
            raise wrapped.__cause__ from None
        raise


def is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001


def is_denied(error: KafkaError) -> bool:
    return error.code() in DENIED


def reason(error: KafkaError, before: str | None = None) -> str:
    """Return the error's text, with a remedy. before: an earlier reason, as "all brokers are down" explains nothing."""
    if before is not None and error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
        return before
    is_tls = _OPENSSL in error.str()  # a failed handshake may be reported as a transport failure too
    remedy = _REMEDIES.get(KafkaError._SSL if is_tls else error.code())  # noqa: SLF001
    return error.str() if remedy is None else f"{error.str()}: {remedy}"


def with_token_function(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the function that `oauth_cb` names as text. Raises SettingsError.

    The function is confluent-kafka's: it takes the value of `sasl.oauthbearer.config`, and returns a token and its end
    in epoch seconds. A function that raises makes the client log in again later.
    """
    name = config.get("oauth_cb")
    if not isinstance(name, str):
        return dict(config)
    module, _, function = name.partition(":")
    try:
        return {**config, "oauth_cb": getattr(import_module(module), function)}
    except (ImportError, AttributeError, ValueError) as wrong:
        raise SettingsError(f"kafka.oauth_cb: {wrong}: give package.module:function of an installed package") from wrong


def invalid_settings(failure: KafkaException) -> SettingsError:
    """Return the error without the refused value, which librdkafka quotes and which may be a secret."""
    text = re.sub('Invalid value ".*" for', "Invalid value for", error_of(failure).str(), flags=re.DOTALL)
    return SettingsError(f"kafka settings: {text}: fix it in the config of the client, for the bridge under `kafka`")


def new_client(kind: Callable[[dict[str, Any]], Any], config: Mapping[str, Any]) -> Any:
    """Return a Producer or Consumer. Raises SettingsError."""
    if not config.get("bootstrap.servers"):
        raise SettingsError("bootstrap.servers: missing; give the brokers, such as host:port,host:port")
    try:
        return kind({"client.id": "timer-client", **with_token_function(config), "logger": LIBRDKAFKA_LOG})
    except KafkaException as failure:
        raise invalid_settings(failure) from failure


def serialized(serializers: Sequence["Serializer | None"], topic: str, key: Any, value: Any, headers: Any) -> list[Any]:
    """Return key and value, each by its serializer if it has one. Serializers may add to `headers`."""
    contexts = (SerializationContext(topic, field, headers) for field in (MessageField.KEY, MessageField.VALUE))
    fields = zip(serializers, (key, value), contexts, strict=True)
    return [given if by is None else by(given, context) for by, given, context in fields]


def topic_consumer(config: Mapping[str, Any], topics: Sequence[str], *, from_beginning: bool = False) -> Any:
    """Return a consumer of what is committed to these topics, by default from now on. Commits nothing.

    Waits for a broker at most 10 s. Raises BridgeError if a topic cannot be read.
    """
    group = {"group.id": "timer-client", "group.protocol": "classic"}  # never joined
    own = {"isolation.level": "read_committed", "enable.auto.commit": False, **group, **NO_NEW_TOPICS}
    consumer = new_client(Consumer, {**config, **own})
    consumer.assign([place for topic in topics for place in _places(consumer, topic, from_beginning=from_beginning)])
    return consumer


def _places(consumer: Any, topic: str, *, from_beginning: bool) -> list[TopicPartition]:
    try:
        found = consumer.list_topics(topic, timeout=_ENDS_S).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        places = [TopicPartition(topic, number) for number in found.partitions]
        for place in places:
            first, end = consumer.get_watermark_offsets(place, timeout=_ENDS_S)
            place.offset = first if from_beginning else end
    except KafkaException as failure:
        raise _unreadable(topic, error_of(failure)) from failure
    return places


def polled(consumer: Any, timeout_s: float) -> Any:
    """Return the next message, or None. Raises BridgeError if the right to read its topic is missing."""
    message = consumer.poll(timeout_s)
    error = None if message is None else message.error()
    # Not is_denied: librdkafka looks for the coordinator of the group, on which a sender needs no right.
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise _unreadable(message.topic(), error)
    return message if error is None else None


def _unreadable(topic: str, error: KafkaError) -> BridgeError:
    is_local = error.code() < 0  # no broker has said so
    kind = BrokerUnavailableError if is_local else BridgeError
    remedy = "" if is_local else ": name an existing topic that you may read"
    return kind(f"{topic}: cannot be read: {reason(error)}{remedy}", code=error.name())


UNKNOWN_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_CUT_OFF = _PURGED | {KafkaError._FATAL, KafkaError._STATE}  # noqa: SLF001
"""Errors of records after a fatal error of the producer."""
_POLL_S = 0.1
_FLUSH_S = 0.5  # one wait inside librdkafka, during which Python handles no Ctrl-C
_CLOSED = "this client is closed: make a new one"
_METADATA_AGE_S = 300.0
"""A topic's number of partitions is fetched again after this, as by Java clients."""


class ConfluentOutbox:
    """Implements `kafka_timer.producer.Outbox`. A thread of its own serves delivery reports."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        if "transactional.id" in config:
            text = "keep your transactional producer, and give it kafka_timer.headers_for's headers"
            raise SettingsError(f"transactional.id: {text}")
        own = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "topic.metadata.propagation.max.ms": 5000,
            **NO_NEW_TOPICS,
            "error_cb": self._hear,
        }
        self._heard: str | None = None
        self._fatal: KafkaError | None = None
        self._producer = new_client(Producer, {**own, **config})
        self._partitions: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._count = self._failed = 0
        self._first_failure: BridgeError | None = None
        self._is_closed = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="timer-client", daemon=True)
        self._thread.start()

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        future: Future[Sent] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._count += 1
        reported = partial(self._reported, future, topic)
        while self._fatal is None:
            if self._is_closed:
                raise BridgeError(f"{topic}: {_CLOSED}")
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=reported, headers=list(headers))
            except BufferError:
                self._call(self._producer.poll, _POLL_S)
            except KafkaException as refused:
                self._fail(future, topic, error_of(refused))
                return future
            else:
                return future
        self._fail(future, topic, self._fatal)
        return future

    def partitions(self, topic: str) -> int:
        count, asked_s = self._partitions.get(topic, (0, 0.0))
        if count and time.monotonic() - asked_s < _METADATA_AGE_S:
            return count
        if self._is_closed:
            raise BridgeError(f"{topic}: {_CLOSED}")
        try:
            found = self._producer.list_topics(topic, timeout=CALL_S).topics[topic]
        except KafkaException as failure:
            why, code = self._heard or error_of(failure).str(), error_of(failure).name()
            raise BrokerUnavailableError(f"how many partitions {topic} has: {why}", code=code) from failure
        if found.error is not None:
            raise self._failure(topic, found.error)
        self._partitions[topic] = len(found.partitions), time.monotonic()
        return len(found.partitions)

    def flush(self, timeout_s: float | None) -> None:
        left = self._left(timeout_s)
        with self._lock:
            first, failed, count = self._first_failure, self._failed, self._count
            self._first_failure, self._failed, self._count = None, 0, 0
        if first is not None:
            raise BridgeError(f"{failed} of {count} were not taken: {first}", code=first.code) from first
        if self._fatal is not None:
            raise BridgeError(self._remedy(self._fatal), code=self._fatal.name())
        if left:
            text = f"{left} are not acknowledged after {timeout_s} s: flush again, or wait longer"
            raise BrokerUnavailableError(text)

    def close(self, timeout_s: float | None = None) -> None:
        self._is_closed = True
        self._left(timeout_s)
        self._producer.purge()  # also what another thread has sent meanwhile, which librdkafka would still deliver
        self._left(CALL_S)
        self._is_over.set()
        self._thread.join(2 * CALL_S)

    @property
    def is_broken(self) -> bool:
        return self._fatal is not None

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                self._call(self._producer.poll, _POLL_S)
            except Exception:  # noqa: PERF203  (raised by a callback of the sender; this thread completes the futures)
                log.exception("a callback in the producer's settings has failed: fix it")

    def _left(self, timeout_s: float | None) -> int:
        """Wait; return how many records are neither acknowledged nor refused after `timeout_s`."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _FLUSH_S if end_s is None else max(0.0, end_s - time.monotonic())
            left = self._call(self._producer.flush, min(left_s, _FLUSH_S))
            if left == 0 or (left is not None and left_s == 0):
                return left

    def _call(self, serve: Callable[[float], int], timeout_s: float) -> int | None:
        """Serve callbacks. Return None if an error ended the call early; delivery reports may follow after it.

        The first call that serves callbacks raises a fatal error, and errors of the sender's own callbacks.
        """
        try:
            with unwrapped():
                return serve(timeout_s)
        except KafkaException as failure:
            if is_fatal(error_of(failure)):
                self._fatal = error_of(failure)
            else:
                self._hear(error_of(failure))
            return None

    def _hear(self, error: KafkaError) -> None:
        """Receive an error of librdkafka's background threads, often the reason of a timeout."""
        self._heard = reason(error, self._heard)

    def _reported(self, future: "Future[Sent]", topic: str, error: KafkaError | None, message: Any) -> None:
        if error is None:
            future.set_result(Sent(topic, message.partition(), message.offset()))
        else:
            self._fail(future, topic, error)

    def _fail(self, future: "Future[Sent]", topic: str, error: KafkaError) -> None:
        failure = self._failure(topic, error)
        with self._lock:
            self._failed += 1
            self._first_failure = self._first_failure or failure
        future.set_exception(failure)

    def _failure(self, topic: str, error: KafkaError) -> BridgeError:
        kind, heard = BridgeError, "" if self._heard is None else f": {self._heard}"
        if self._is_closed and self._fatal is None and error.code() in _PURGED:
            kind, text = BrokerUnavailableError, f"not acknowledged when the client was closed{heard}"
        elif error is self._fatal or error.code() in _CUT_OFF:
            error = self._fatal or error
            text = self._remedy(error)
        elif error.code() in UNKNOWN_TOPIC:
            text = "there is no such topic: make it (timer-bridge run makes the timer topic)"
        elif is_denied(error):
            text = f"{error.str()}: give the sender the right (an ACL) to write to it"
        elif error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001
            kind, text = BrokerUnavailableError, f"no broker took it in time (message.timeout.ms){heard}"
        else:
            text = error.str()
        return kind(f"{topic}: {text}", code=error.name())

    def _remedy(self, fatal: KafkaError) -> str:
        first = "give the sender the right (an ACL), then " if is_denied(fatal) else ""
        return f"{fatal.str()}: nothing more is sent by this client: {first}make a new TimerProducer"
