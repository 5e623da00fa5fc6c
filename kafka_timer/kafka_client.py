"""Settings, log and error texts that all clients of librdkafka share."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import contextmanager
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


def invalid_settings(failure: KafkaException, place: str = "under `kafka`") -> SettingsError:
    """Return the error without the refused value, which librdkafka quotes and which may be a secret."""
    text = re.sub('Invalid value ".*" for', "Invalid value for", error_of(failure).str(), flags=re.DOTALL)
    return SettingsError(f"kafka settings: {text}: fix it {place}")


def serialized(
    topic: str, key: Any, value: Any, headers: list[Any], serializers: tuple[Serializer | None, Serializer | None]
) -> tuple[Any, Any]:
    """Return key and value, each by its serializer if it has one. Serializers may add to `headers`."""
    by_key, by_value = serializers
    if by_key is not None:
        key = by_key(key, SerializationContext(topic, MessageField.KEY, headers))
    if by_value is not None:
        value = by_value(value, SerializationContext(topic, MessageField.VALUE, headers))
    return key, value


def consumer_at_ends(config: Mapping[str, Any], topics: Sequence[str]) -> Any:
    """Return a consumer of what is committed to these topics from now on. Commits nothing. Raises BridgeError."""
    if not config.get("bootstrap.servers"):
        raise SettingsError("bootstrap.servers: missing; give the brokers, such as host:port,host:port")
    own = {
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "group.id": "timer-client",
        **NO_NEW_TOPICS,
    }
    given = {name: value for name, value in config.items() if name not in ("on_delivery", "dr_cb")}
    try:
        consumer: Any = Consumer({"client.id": "timer-client", **given, **own, "logger": LIBRDKAFKA_LOG})
    except KafkaException as failure:
        raise invalid_settings(failure, "in the config of Outcomes") from failure
    try:
        consumer.assign([place for topic in topics for place in _ends(consumer, topic)])
    except KafkaException as failure:
        consumer.close()
        raise BrokerUnavailableError(f"reading {', '.join(topics)}: {reason(error_of(failure))}") from failure
    except BridgeError:
        consumer.close()
        raise
    return consumer


def _ends(consumer: Any, topic: str) -> list[TopicPartition]:
    found = consumer.list_topics(topic, timeout=_ENDS_S).topics[topic]
    if found.error is not None:
        raise BridgeError(f"{topic}: {found.error.str()}; name an existing topic", code=found.error.name())
    places = [TopicPartition(topic, number) for number in found.partitions]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, timeout=_ENDS_S)[1]
    return places
