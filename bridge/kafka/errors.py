"""Say what an error of librdkafka means: passing, denied, or a record that cannot be read."""

from confluent_kafka import KafkaError

from bridge.errors import BridgeError
from kafka_timer.kafka_client import DENIED, UNKNOWN_TOPIC, answered, error_of, is_denied, is_fatal, reason, unwrapped

__all__ = ["answered", "error_of", "explained", "is_denied", "is_fatal", "is_passing", "reason", "unwrapped"]

_PERMANENT = DENIED | {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError._INVALID_ARG,  # noqa: SLF001  (librdkafka's own errors are spelled so)
    KafkaError._FENCED,  # noqa: SLF001
}
UNKNOWN = UNKNOWN_TOPIC | {KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
"""Errors for a topic or a partition that does not exist."""
OFFSET_GONE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})  # noqa: SLF001
UNDECODABLE = frozenset(
    {
        *(KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED),  # noqa: SLF001
        *(KafkaError.INVALID_MSG, KafkaError.MSG_SIZE_TOO_LARGE),
    }
)
"""librdkafka's errors for a fetched record that it cannot decode. It retries forever, with an error each time."""


def is_passing(error: KafkaError) -> bool:
    """Return True if a retry may succeed. Unknown errors count as passing: waiting loses nothing."""
    return not error.fatal() and error.code() not in _PERMANENT


def explained(what: str, error: KafkaError) -> BridgeError:
    """Return a BridgeError for an error that is not passing."""
    if is_denied(error):
        return BridgeError(f"{what}: {error.str()}: give the bridge's user the right (an ACL) to do this")
    if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        remedy = "set the brokers' transaction.max.timeout.ms, which is below the bridge's 10 s, to 10000 or more"
        return BridgeError(f"{what}: {error.str()}: {remedy}")
    return BridgeError(f"{what}: {error.str()}")
