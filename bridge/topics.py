"""What the bridge's topics have to be, so that nothing is lost: pure rules, applied at start.

timer topic   cleanup.policy=delete   message.timestamp.type=LogAppendTime   retention.bytes=-1
              retention.ms >= 3 x roll window: a rebuild finds every request that lives
journal       as many partitions, the same retention
rejected      takes what the timer topic takes, and the reason
redriven      what of it was sent again: kept for ever, by key

What the bridge's user has to be allowed on each (Kafka's ACLs) is looked at too: a journal that may be written but not
read would be noticed at the first rebuild, a timer topic that may not be written at the first roll.
"""

from collections.abc import Mapping
from typing import NamedTuple

LOGGED = frozenset({"READ", "WRITE", "DESCRIBE_CONFIGS"})
"""What is done with a timer or a journal topic, in Kafka's words."""
FILLED = frozenset({"WRITE"})
"""What is done with the others."""
REASON_BYTES = 64 << 10
RETENTION_WINDOWS = 3


class Found(NamedTuple):
    """What a timer topic is on this cluster. `max_message_bytes`: what it takes."""

    partitions: int
    max_message_bytes: int


def timer_topic(roll_window_ms: int) -> dict[str, str]:
    """Configuration of a timer or a journal topic that the bridge makes."""
    return {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(max(RETENTION_WINDOWS * roll_window_ms, 604_800_000)),
        "retention.bytes": "-1",
    }


def receipts_topic() -> dict[str, str]:
    return {"retention.ms": "604800000"}


def rejected_topic(max_message_bytes: int) -> dict[str, str]:
    return {"max.message.bytes": str(max_message_bytes + REASON_BYTES), "retention.ms": "-1"}


def rejected_faults(topic: str, config: Mapping[str, str], max_message_bytes: int) -> list[str]:
    """What is wrong with the rejected topic, where a timer topic takes messages of up to `max_message_bytes`."""
    found, least = int(config["max.message.bytes"]), max_message_bytes + REASON_BYTES
    if found >= least:
        return []
    return [f"{topic}: max.message.bytes is {found}, too few for the largest request and its reason: set it to {least}"]


def redriven_topic() -> dict[str, str]:
    return {"cleanup.policy": "compact"}


def faults(topic: str, config: Mapping[str, str], roll_window_ms: int) -> list[str]:
    """What is wrong with a timer or journal topic, each with what to set."""
    found = []
    if config["cleanup.policy"] != "delete":
        found.append(f"{topic}: cleanup.policy is {config['cleanup.policy']}: set it to delete")
    if config["message.timestamp.type"] != "LogAppendTime":
        found.append(f"{topic}: message.timestamp.type is {config['message.timestamp.type']}: set it to LogAppendTime")
    if int(config["retention.bytes"]) != -1:
        found.append(f"{topic}: retention.bytes is {config['retention.bytes']}: set it to -1")
    least_ms = RETENTION_WINDOWS * roll_window_ms
    if 0 <= int(config["retention.ms"]) < least_ms:
        found.append(
            f"{topic}: retention.ms is {config['retention.ms']}, but a roll window of {roll_window_ms} ms needs"
            f" {least_ms}: set retention.ms to that or more, or a shorter roll_window"
        )
    return found


def missing_right(topic: str, needed: frozenset[str], allowed: frozenset[str]) -> str | None:
    """What to grant."""
    missing = " and ".join(sorted(needed - allowed))
    return f"{topic}: the bridge's user may not {missing}: give it the right (an ACL)" if missing else None
