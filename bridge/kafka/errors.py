"""Say what an error of librdkafka means: passing, denied, or a record that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from bridge.errors import BridgeError

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_PERMANENT = DENIED | {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError._INVALID_ARG,  # noqa: SLF001  (librdkafka's own errors are spelled so)
    KafkaError._FENCED,  # noqa: SLF001
}
OFFSET_GONE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})  # noqa: SLF001
UNDECODABLE = frozenset(
    {
        *(KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED),  # noqa: SLF001
        *(KafkaError.INVALID_MSG, KafkaError.MSG_SIZE_TOO_LARGE),
    }
)
"""librdkafka's errors for a fetched record that it cannot decode. It retries forever, with an error each time."""

_REMEDIES = {
    KafkaError._AUTHENTICATION: "look at sasl.mechanism, sasl.username and sasl.password",  # noqa: SLF001
    # A broker that expects TLS closes the connection without a reason.
    KafkaError._ALL_BROKERS_DOWN: "check that they run, and bootstrap_servers and security.protocol",  # noqa: SLF001
    KafkaError._SSL: "look at security.protocol and ssl.ca.location, and at the broker's certificate",  # noqa: SLF001
}
_OPENSSL = "SSL routines:"


def error_of(failure: KafkaException) -> KafkaError:
    error: KafkaError = failure.args[0]
    return error


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


def is_passing(error: KafkaError) -> bool:
    """Return True if a retry may succeed. Unknown errors count as passing: waiting loses nothing."""
    return not error.fatal() and error.code() not in _PERMANENT


def explained(what: str, error: KafkaError) -> BridgeError:
    """Return a BridgeError for an error that is not passing."""
    if is_denied(error):
        return BridgeError(f"{what}: {error.str()}: give the bridge's user the right (an ACL) to do this")
    return BridgeError(f"{what}: {error.str()}")


def reason(error: KafkaError, before: str | None = None) -> str:
    """Return the error's text, with a remedy. before: an earlier reason, as "all brokers are down" explains nothing."""
    if before is not None and error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
        return before
    is_tls = _OPENSSL in error.str()  # a failed handshake may be reported as a transport failure too
    remedy = _REMEDIES.get(KafkaError._SSL if is_tls else error.code())  # noqa: SLF001
    return error.str() if remedy is None else f"{error.str()}: {remedy}"
