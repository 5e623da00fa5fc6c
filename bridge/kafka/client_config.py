"""Configuration of every librdkafka client, with reasons.

    our defaults (measured)  <  named settings  <  kafka.* of the operator  <  our musts (needed for exactly-once)

bridge.config.kafka_config.RESERVED lists the musts: the operator may not set them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import SettingsError
from bridge.kafka.retry import Retrier
from kafka_timer.kafka_client import LIBRDKAFKA_LOG, NO_NEW_TOPICS, invalid_settings, with_token_function

Client = TypeVar("Client")
Config = dict[str, Any]

TRANSACTION_TIMEOUT_MS = 10_000
"""Longest time for which a dead instance's open transaction blocks readers, unless the broker is slow."""
LONGEST_TRANSACTION_MS = 240_000
"""Below max.poll.interval.ms (300 s by default): the loop does not poll while it waits for a transaction."""

REPLACED_AFTER_S = 30.0
"""A client is replaced after this time without an answer: see "A client that has lost all brokers" (kafka-reads.md)."""

READER = {
    # The queue is refilled before it is empty: with the default of 1 s every burst stalls.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.error.backoff.ms": 100,
    "reconnect.backoff.max.ms": 1000,
}
_MEMBER = {
    # One queue holds the records of all partitions, in order of arrival: a flood of one goes before requests of others.
    "queued.min.messages": 2_000,
    "fetch.message.max.bytes": 256 << 10,
    # Else each batch of a sender ends a fetch, which costs CPU here and in brokers. One partition can fill a fetch.
    "fetch.min.bytes": 128 << 10,
    "fetch.wait.max.ms": 50,
    # New partitions of a timer topic are read after this, not after 5 minutes.
    "topic.metadata.refresh.interval.ms": 10_000,
}
_STATIC = {
    # A dead instance's partitions are reassigned after this. One that is restarted in time keeps them.
    "session.timeout.ms": 10_000,
    # A member learns of a rebalance with the next heartbeat.
    "heartbeat.interval.ms": 1000,
}
_DYNAMIC = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
"""A restart moves partitions anyway, so that less has to be waited for. Brokers refuse a shorter time-out."""
READER_MUSTS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # Requests that retention deleted must not be skipped silently.
    "auto.offset.reset": "error",
}
PRODUCER = {
    # Larger batches cost brokers less. Records wait for the coordinator anyway, and a flush sends the rest.
    "linger.ms": 5,
    "batch.num.messages": 10_000,
    # The wait before a retry if the broker still completes the last transaction.
    "retry.backoff.ms": 2,
    "socket.nagle.disable": True,
    # A turn is limited in bytes. These limits must be above that.
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
    # The topic decides whether a record is too large.
    "message.max.bytes": 1_000_000_000,
    "reconnect.backoff.max.ms": 1000,
    # Starting from the bootstrap servers again, if no broker answers, makes send_offsets hang (producer.py, rule 6).
    "metadata.recovery.strategy": "none",
}
PRODUCER_MUSTS = {
    "enable.idempotence": True,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    # An unknown topic is reported at once, instead of blocking all records until the message timeout.
    "topic.metadata.propagation.max.ms": 0,
    "delivery.report.only.error": True,
    **NO_NEW_TOPICS,
    # The partitioner of Kafka's Java clients, so that programs can compute an id's partition.
    "partitioner": "murmur2_random",
}

_AT = "@"
_OF = "#"


def group_member(connection: Connection) -> Config:
    """Return the configuration of a group member.

    Its client.id holds the instance of a dynamic member (`instance_in`), and the address of our HTTP server
    (`address_in`).
    """
    usual, musts = {**READER, **_MEMBER, **connection.fetched}, {"group.id": connection.group}
    if connection.kafka.get("group.protocol") != "consumer":  # else the broker sets session timeout and assignor
        usual |= _STATIC if "group.instance.id" in connection.kafka else _DYNAMIC
        musts["partition.assignment.strategy"] = "cooperative-sticky"
    config = _reading(connection, usual, musts)
    if "group.instance.id" not in connection.kafka:
        config["client.id"] += _OF + connection.instance
    if connection.address:
        config["client.id"] += _AT + connection.address
    return config


def instance_in(client_id: str) -> str:
    """Return the instance of a dynamic member from its client.id, or an empty string."""
    return client_id.rpartition(_OF)[2].partition(_AT)[0] if _OF in client_id else ""


def address_in(client_id: str) -> str:
    """Return host:port from a member's client.id, or an empty string."""
    return client_id.rpartition(_AT)[2] if _AT in client_id else ""


def reader(connection: Connection, *, is_bounded: bool = False) -> Config:
    """Return the configuration of a read_committed consumer outside the group, with partition EOF events.

    is_bounded: True to limit its memory by `connection.fetched`, for reads of timer topics.
    """
    outside = {"group.protocol": "classic", "group.id": connection.group, "enable.partition.eof": True}
    # The end of a partition is seen only when a fetch comes back empty.
    limits = connection.fetched if is_bounded else {}
    config = _reading(connection, {**READER, "fetch.wait.max.ms": 10, **limits}, outside)
    config.pop("group.instance.id", None)  # only for the group member
    return config


def _reading(connection: Connection, defaults: Mapping[str, Any], musts: Mapping[str, Any]) -> Config:
    config = _config(connection, defaults, {**READER_MUSTS, **musts})
    config.pop("message.max.bytes", None)  # for producers; librdkafka would require fetch.max.bytes >= this
    return config


def control_reader(connection: Connection) -> Config:
    """Return the configuration of a reader of the control topic.

    It starts again if the topic is created again, and does not wait for open transactions.
    """
    musts = {"auto.offset.reset": "earliest", "isolation.level": "read_uncommitted"}
    return {**reader(connection), "fetch.wait.max.ms": 500, **musts}


def transactional_id(connection: Connection, number: int, generation: int) -> str:
    """Return an id. number: of the producer. generation: 0, or higher if Kafka holds the ids before it."""
    return f"{connection.group}-{connection.instance}-{number}" + (f"-{generation}" if generation else "")


def producer(connection: Connection, number: int, generation: int = 0) -> Config:
    """Return the configuration of a transactional producer; see `transactional_id`."""
    identity = {"transactional.id": transactional_id(connection, number, generation)}
    return _config(connection, {**PRODUCER, **connection.published}, PRODUCER_MUSTS | identity)


def compresses(connection: Connection) -> bool:
    """Return True if the bridge compresses the records that it publishes."""
    config = producer(connection, 0)
    return str(config.get("compression.codec", config.get("compression.type", "none"))) != "none"


def admin(connection: Connection) -> Config:
    return _config(connection, {"reconnect.backoff.max.ms": 1000}, NO_NEW_TOPICS)


def _config(connection: Connection, defaults: Mapping[str, Any], musts: Mapping[str, Any]) -> Config:
    where = {"bootstrap.servers": connection.bootstrap_servers}
    return {"client.id": "timer-bridge", **defaults, **connection.kafka, **where, **musts}


def make(client: Callable[[Config], Client], config: Config, retrier: Retrier) -> Client:
    """Make a client. Raises SettingsError if librdkafka refuses the configuration."""
    try:
        callbacks = {"error_cb": retrier.hear, "throttle_cb": retrier.be_throttled, "logger": LIBRDKAFKA_LOG}
        return client({**with_token_function(config), **callbacks})
    except KafkaException as failure:
        raise invalid_settings(failure) from failure
    except (AttributeError, TypeError, ValueError) as error:  # a name of the Python client, such as stats_cb
        raise SettingsError(f"kafka settings: {error}: leave it out") from error
