"""Settings, log and error texts that all clients of librdkafka share."""

import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.serialization import MessageField, SerializationContext

from kafka_timer.errors import SettingsError

T = TypeVar("T")
Serializer: TypeAlias = Callable[[Any, SerializationContext], "bytes | str | None"]
"""As confluent_kafka's serializers."""
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
