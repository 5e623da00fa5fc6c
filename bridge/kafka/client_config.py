"""What every librdkafka client is told, and why.

    our defaults (measured)  <  named settings  <  kafka.* of the operator  <  our musts (exactly-once rests on them)

bridge.config.kafka_config.RESERVED lists the musts, for the operator to be told that they are not theirs to set.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, SettingsError
from bridge.kafka.retry import Patience, error_of

Client = TypeVar("Client")
Config = dict[str, Any]

TRANSACTION_TIMEOUT_MS = 10_000
"""A dead instance's open transaction holds readers back for no longer, unless the broker is slow."""
LONGEST_TRANSACTION_MS = 240_000
"""Below max.poll.interval.ms, 300 s by default: who waits for one does not poll."""

REPLACED_AFTER_S = 30.0
"""A client without an answer for so long is replaced: see "A client that has lost all brokers" (kafka-reads.md)."""

READER = {
    # One record ends a fetch, so waiting long costs nothing but idle requests.
    "fetch.wait.max.ms": 500,
    # The queue is refilled before it is empty: with the default of 1 s every burst stalls.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.error.backoff.ms": 100,
    "reconnect.backoff.max.ms": 1000,
}
_MEMBER = {
    # New partitions of a timer topic are read after this, not after 5 minutes.
    "topic.metadata.refresh.interval.ms": 10_000,
}
_BALANCE = {
    # A dead instance's shards are taken over after this.
    "session.timeout.ms": 10_000,
    # A change of hands is heard of with the next heartbeat.
    "heartbeat.interval.ms": 1000,
}
READER_MUSTS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # Requests that retention took away are no reason to go on as if nothing had happened.
    "auto.offset.reset": "error",
}
# librdkafka's producers and admins make a broker create what they ask for, where that is allowed: a misspelt topic
# would take what nobody reads.
NO_NEW_TOPICS = {"allow.auto.create.topics": False}
PRODUCER = {
    "linger.ms": 1,
    "batch.num.messages": 10_000,
    # A transaction begins while the last one completes: the broker says so, and this is how long to wait for it.
    "retry.backoff.ms": 2,
    "socket.nagle.disable": True,
    # A turn is limited in bytes; these are only not to be in its way.
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
    # Whether a record is too large is the topic's to say.
    "message.max.bytes": 1_000_000_000,
    "reconnect.backoff.max.ms": 1000,
    # To start from the bootstrap servers again, whenever none answers, makes send_offsets hang (see timely.py).
    "metadata.recovery.strategy": "none",
}
PRODUCER_MUSTS = {
    "enable.idempotence": True,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    # An unknown topic is told at once instead of blocking everybody until the message time-out.
    "topic.metadata.propagation.max.ms": 0,
    "delivery.report.only.error": True,
    **NO_NEW_TOPICS,
    # Kafka's own for keys: whoever computes where an id lives meets it.
    "partitioner": "murmur2_random",
}

_AT = "@"

_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_PERMANENT_ERRORS = _DENIED | {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError._INVALID_ARG,  # noqa: SLF001  (librdkafka's own errors are spelled so)
    KafkaError._FENCED,  # noqa: SLF001
}


def member(connection: Connection) -> Config:
    """A consumer that belongs to the group. Its client.id tells the others where we are asked (`address_in`)."""
    return _announced(connection, _member(connection))


def _announced(connection: Connection, config: Config) -> Config:
    if not connection.address:
        return config
    return {**config, "client.id": f"{config['client.id']}{_AT}{connection.address}"}


def address_in(client_id: str) -> str:
    """host:port that a member tells, or empty."""
    return client_id.rpartition(_AT)[2] if _AT in client_id else ""


def _member(connection: Connection) -> Config:
    usual = {**READER, **connection.fetched}
    if connection.kafka.get("group.protocol") == "consumer":  # there, the broker settles both
        return _reading(connection, {**usual, **_MEMBER}, {"group.id": connection.group})
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    return _reading(connection, {**usual, **_MEMBER, **_BALANCE}, strategy | {"group.id": connection.group})


def reader(connection: Connection, *, is_bounded: bool = False) -> Config:
    """A consumer that reads what stands, outside the group's balance, and sees where a partition ends.

    is_bounded: True if it reads timer topics beside the loop's own store, and may hold no more than `fetched` says.
    """
    outside = {"group.protocol": "classic", "group.id": connection.group, "enable.partition.eof": True}
    # The end of a partition is seen only when a fetch comes back empty.
    limits = connection.fetched if is_bounded else {}
    config = _reading(connection, {**READER, "fetch.wait.max.ms": 10, **limits}, outside)
    config.pop("group.instance.id", None)  # that is the member's
    return config


def _reading(connection: Connection, defaults: Mapping[str, Any], musts: Mapping[str, Any]) -> Config:
    config = _config(connection, defaults, {**READER_MUSTS, **musts})
    config.pop("message.max.bytes", None)  # a producer's; librdkafka demands that fetch.max.bytes is no smaller
    return config


def control(connection: Connection) -> Config:
    """A reader of the control topic: it starts again if the topic is made anew; no open transaction holds it up."""
    musts = {"auto.offset.reset": "earliest", "isolation.level": "read_uncommitted"}
    return {**reader(connection), "fetch.wait.max.ms": 500, **musts}


def transactional_id(connection: Connection, number: int, generation: int) -> str:
    """`number`: which of the producers that take turns. `generation`: 0, or more if Kafka holds the ids before."""
    return f"{connection.group}-{connection.instance}-{number}" + (f"-{generation}" if generation else "")


def producer(connection: Connection, number: int, generation: int = 0) -> Config:
    """See `transactional_id`."""
    identity = {"transactional.id": transactional_id(connection, number, generation)}
    return _config(connection, {**PRODUCER, **connection.published}, PRODUCER_MUSTS | identity)


def compresses(connection: Connection) -> bool:
    """What the bridge publishes."""
    config = producer(connection, 0)
    return str(config.get("compression.codec", config.get("compression.type", "none"))) != "none"


def ahead(connection: Connection) -> Config:
    """A producer without transactions. A record that it gives up is sent again with its transaction."""
    musts = {name: value for name, value in PRODUCER_MUSTS.items() if name != "transaction.timeout.ms"}
    musts["message.timeout.ms"] = TRANSACTION_TIMEOUT_MS
    return _config(connection, {**PRODUCER, **connection.published}, musts)


def patient(config: Config) -> Config:
    """A producer whose transactions may take twice as long."""
    timeout_ms = min(2 * config["transaction.timeout.ms"], LONGEST_TRANSACTION_MS)
    return {**config, "transaction.timeout.ms": timeout_ms}


def plain(connection: Connection) -> Config:
    """An admin, or a producer without transactions."""
    return _config(connection, {"reconnect.backoff.max.ms": 1000}, NO_NEW_TOPICS)


def _config(connection: Connection, defaults: Mapping[str, Any], musts: Mapping[str, Any]) -> Config:
    where = {"bootstrap.servers": connection.bootstrap_servers}
    return {"client.id": "timer-bridge", **defaults, **connection.kafka, **where, **musts}


# librdkafka's own lines say in its words what exceptions and error_cb tell us: off, unless somebody asks for them.
LIBRDKAFKA_LOG = logging.getLogger("librdkafka")
LIBRDKAFKA_LOG.setLevel(logging.CRITICAL + 1)


def make(client: Callable[[Config], Client], config: Config, patience: Patience) -> Client:
    """Raises SettingsError where librdkafka does not take the configuration."""
    try:
        told = {"error_cb": patience.hear, "throttle_cb": patience.be_throttled, "logger": LIBRDKAFKA_LOG}
        return client({**config, **told})
    except KafkaException as failure:
        raise not_taken(failure) from failure
    except (AttributeError, TypeError, ValueError) as wrong:  # a name that is Python's own, such as stats_cb
        raise SettingsError(f"kafka settings: {wrong}: leave it out") from wrong


def not_taken(failure: KafkaException) -> SettingsError:
    """librdkafka repeats a value that it does not take, and that may be a secret beside the wrong name."""
    told = re.sub('Invalid value ".*" for', "Invalid value for", error_of(failure).str(), flags=re.DOTALL)
    return SettingsError(f"kafka settings: {told}: mend it under `kafka`")


def is_passing(error: KafkaError) -> bool:
    """Whether to try again. What we do not know passes: to wait is never wrong, to lose is."""
    return not error.fatal() and error.code() not in _PERMANENT_ERRORS


def explained(what: str, error: KafkaError) -> BridgeError:
    """The error of ours for one that does not pass."""
    if error.code() in _DENIED:
        return BridgeError(f"{what}: {error.str()}: give the bridge's user the right (an ACL) to do this")
    return BridgeError(f"{what}: {error.str()}")


def is_denied(error: KafkaError) -> bool:
    return error.code() in _DENIED
