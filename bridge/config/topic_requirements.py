"""Requirements on the configuration of the bridge's topics, so that no timer is lost. Checked at start.

timer topic   cleanup.policy=delete   message.timestamp.type=LogAppendTime   retention.bytes=-1
              retention.ms >= 3 x roll window: a rebuild finds the request of every pending timer
              compression.type=uncompressed: the broker measures a record as its readers will see it
journal       as many partitions, the same retention (a new one: as its topic), records for one transaction's decisions
rejected      records as large as a request with its reason; LogAppendTime, as for receipts
control       one partition, compacted: the newest record of each key is the state that operators want

The ACLs of the bridge's user are checked too. Otherwise a journal that may be written but not read would be noticed
only at the first rebuild, and a timer topic that may not be written at the first roll.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bridge.partition.options import MAX_DUE_RECORDS, MAX_POLL_RECORDS

# Operations that the bridge's user needs:
LOGGED = frozenset({"READ", "WRITE", "DESCRIBE_CONFIGS"})  # on a timer or journal topic
FILLED = frozenset({"WRITE"})  # on the rejected and the receipts topic
FOLLOWED = frozenset({"READ"})  # on the control topic
DELIVERED = FILLED | {"DESCRIBE_CONFIGS"}  # on a target topic
# To create a topic, to add partitions to a journal, on the group, and on transactional ids:
MADE, GROWN, JOINED, PUBLISHED = (frozenset({each}) for each in ("CREATE", "ALTER", "READ", "WRITE"))
REASON_BYTES = 64 << 10
RETENTION_WINDOWS = 3
_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
"""The broker's clock orders records of all instances, even if an instance's own clock is wrong."""
_JOURNAL_BYTES = 8 << 20
_FLIGHT_BYTES = 450
"""Bytes in a journal record for a copy in flight: the name of its target has at most 249 characters."""
_DECISION_BYTES = 100  # bytes in a journal record for the decisions on one request
_WAIT_BYTES = 450  # bytes for a waiting target. Each journal record lists all of them.
CONTROL_TOPIC = {"cleanup.policy": "compact", **_BROKERS_TIME}
RECEIPTS_TOPIC = {**_BROKERS_TIME, "retention.ms": "604800000"}
_KEPT = {"cleanup.policy": "delete", **_BROKERS_TIME, "retention.bytes": "-1"}
"""Configuration of timer topics and journals, beside `retention.ms`."""
_UNCOMPRESSED = {"compression.type": "uncompressed"}
"""The broker decompresses what senders compress, and max.message.bytes then limits what a reader has to hold. With any
other value a record of 3 KB may become 100 MB in each reader. A journal needs no such value: only bridges write to it.
"""
_LEAST_READ_BYTES = 16 << 20
_LARGER_WHEN_READ = 4
"""Factor of max.message.bytes that a compressed batch may grow to: a sender limits a batch by its size before
compression, and the topic's limit may be raised while the bridge runs."""
_ANSWER_BYTES = 1 << 20  # room around the records in an answer of a broker, and for other answers


class TopicState(NamedTuple):
    """State of a timer topic on this cluster. `max_message_bytes`: its max.message.bytes."""

    partitions: int
    max_message_bytes: int


FETCH_SIZES = ("fetch.max.bytes", "fetch.message.max.bytes", "max.partition.fetch.bytes", "receive.message.max.bytes")
"""librdkafka's sizes of a fetch; two of them are names of one."""


def fetch_limits(max_message_bytes: int, *, is_compressed: bool) -> dict[str, str]:
    """Return librdkafka settings that bound what a reader of timer topics holds, decompressed.

    max_message_bytes: the largest that a timer topic takes. is_compressed: True if records may be compressed. Then a
    fetch asks for one byte of a partition, for which a broker sends one batch: many small ones could become gigabytes
    together. librdkafka decompresses a zstd batch to at most receive.message.max.bytes; gzip and lz4 have no limit.
    """
    most = max(_LEAST_READ_BYTES, _LARGER_WHEN_READ * max_message_bytes)
    limits = {"fetch.max.bytes": str(most), "receive.message.max.bytes": str(most + _ANSWER_BYTES)}
    return limits | ({"fetch.message.max.bytes": "1", "fetch.min.bytes": "1"} if is_compressed else {})


def timer_topic(roll_window_ms: int, *, is_compressed: bool = False) -> dict[str, str]:
    """Return the configuration of a new timer topic. is_compressed: True if records may be compressed."""
    return _kept(roll_window_ms) | ({} if is_compressed else _UNCOMPRESSED)


def _kept(roll_window_ms: int) -> dict[str, str]:
    return _KEPT | {"retention.ms": str(max(RETENTION_WINDOWS * roll_window_ms, 604_800_000))}


def journal_bytes(most_waits: int) -> int:
    """Return the most bytes of one journal record. most_waits: waiting targets."""
    decisions = 2 * MAX_POLL_RECORDS * _DECISION_BYTES + MAX_DUE_RECORDS * _FLIGHT_BYTES
    return (64 << 10) + decisions + most_waits * _WAIT_BYTES


def journal_topic(roll_window_ms: int, least_bytes: int, retention_ms: str) -> dict[str, str]:
    """Return the configuration of a new journal. retention_ms: of its timer topic; -1 is unlimited."""
    kept = _kept(roll_window_ms)
    longest = max(kept["retention.ms"], retention_ms, key=lambda each: int(each) % 2**64)
    return {**kept, "retention.ms": longest, "max.message.bytes": str(max(_JOURNAL_BYTES, least_bytes))}


def journal_faults(topic: str, config: Mapping[str, str], roll_window_ms: int, least_bytes: int) -> list[str]:
    """Return the faults of a journal topic, each with its remedy."""
    found = _retention_faults(topic, config, roll_window_ms)
    if int(config["max.message.bytes"]) < least_bytes:
        text = f"{topic}: max.message.bytes is {config['max.message.bytes']}, but one transaction may need"
        found.append(f"{text} {least_bytes} bytes: set it to that or more")
    return found


def rejected_topic(max_message_bytes: int) -> dict[str, str]:
    return {**_BROKERS_TIME, "max.message.bytes": str(max_message_bytes + REASON_BYTES), "retention.ms": "-1"}


def rejected_faults(topic: str, config: Mapping[str, str], max_message_bytes: int) -> list[str]:
    """Return the faults of the rejected topic. max_message_bytes: of the timer topics."""
    found, least = int(config["max.message.bytes"]), max_message_bytes + REASON_BYTES
    text = f"{topic}: max.message.bytes is {found}, too few for the largest request and its reason: set it to {least}"
    return [f"{text}; a larger one is rejected without its key, value and headers"] if found < least else []


def clock_faults(topic: str, config: Mapping[str, str]) -> list[str]:
    """Return the faults of a receipts or rejected topic that was made by hand or by an older bridge."""
    wrong = _other_values(topic, config, _BROKERS_TIME)
    return [f"{each}, as the audit compares its times with the brokers'" for each in wrong]


def faults(topic: str, config: Mapping[str, str], roll_window_ms: int, bootstrap_servers: str | None) -> list[str]:
    """Return the faults of a timer topic, each with its remedy. bootstrap_servers: None if it may be compressed."""
    found = _retention_faults(topic, config, roll_window_ms)
    if bootstrap_servers is not None and (kind := config["compression.type"]) != _UNCOMPRESSED["compression.type"]:
        found.append(
            f"{topic}: compression.type is {kind}, so a record of 3 KB may become 100 MB when it is read; run"
            f" kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter --entity-type topics --entity-name"
            f" {topic} --add-config compression.type=uncompressed; if your brokers do not allow that, set"
            f" compressed_requests = allow"
        )
    return found


def _retention_faults(topic: str, config: Mapping[str, str], roll_window_ms: int) -> list[str]:
    found = _other_values(topic, config, _KEPT)
    least_ms = RETENTION_WINDOWS * roll_window_ms
    if 0 <= int(config["retention.ms"]) < least_ms:
        found.append(
            f"{topic}: retention.ms is {config['retention.ms']}, but a roll window of {roll_window_ms} ms needs"
            f" {least_ms}: set retention.ms to that or more, or a shorter roll_window"
        )
    return found


def _other_values(topic: str, config: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    wrong = [(name, value) for name, value in wanted.items() if config[name] != value]
    return [f"{topic}: {name} is {config[name]}: set it to {value}" for name, value in wrong]


def missing_right(topic: str, needed: frozenset[str], allowed: frozenset[str]) -> str | None:
    """Return the missing operations with the remedy, or None."""
    missing = sorted(needed - allowed)
    if not missing:
        return None
    return (
        f"{topic}: the bridge's user may not {' and '.join(missing)}: give it the right (an ACL), such as"
        f" {acl_command(f'--topic {topic}', missing)}"
    )


def acl_command(resource: str, operations: Iterable[str], servers: str = "HOST:PORT", user: str = "NAME") -> str:
    """Return the command that grants operations on a resource, such as `--topic orders`."""
    granted = " ".join(f"--operation {each.title().replace('_', '')}" for each in sorted(operations))
    principal = shlex.quote(f"User:{user}")
    return f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal {principal} {granted} {resource}"
