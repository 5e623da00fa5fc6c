"""Settings, log and error texts that all clients of librdkafka share."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.serialization import MessageField, SerializationContext

from kafka_timer.errors import BridgeError, BrokerUnavailableError, SettingsError

T = TypeVar("T")
Serializer: TypeAlias = Callable[[Any, SerializationContext], "bytes | str | None"]
"""As confluent_kafka's serializers."""
_ENDS_S = 10.0
CALL_S = 2.0
"""Longest blocking call of librdkafka. A shutdown waits for one call at most."""

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
