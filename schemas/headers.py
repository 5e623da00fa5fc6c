"""Headers of a request -> what it asks for, or why it is refused.

    timer-topic: orders          \\
    timer-delay-ms: 5000          >  parse(...)  ->  Schedule(target="orders", due_ms=timestamp + 5000, ...)
    tenant: a  (foreign, kept)   /
    timer-delay-ms: -5           ->  Refusal("bad-header", "timer-delay-ms ...")

Rules, in the order in which they are looked at (design, "Headers"):
1. A header of ours that stands twice, is null where it may not be, or does not parse: `bad-header`, never "at once".
2. A record that says it is the bridge's own copy (`timer-origin`, `timer-rolls`) without being awaited: `not-ours`.
3. Exactly one time header, else `missing-time` or `ambiguous-time`; further away than `max_delay_ms`: `too-far`.
4. A target that is there (`missing-topic`) and may be one (`bad-target`).

The same bytes and the same `Rules` give the same answer for ever: a rebuild reads old requests again.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

TOPIC = "timer-topic"
DELIVER_MS = "timer-deliver-ms"
DELAY_MS = "timer-delay-ms"
KEY = "timer-key"
PARTITION = "timer-partition"
ORIGIN = "timer-origin"
ROLLS = "timer-rolls"
RELEASED_MS = "timer-released-ms"
ERROR = "timer-error"
ERROR_DETAIL = "timer-error-detail"

UNSERVED = frozenset({"timer-delay-level", "timer-id", "timer-action", "timer-expire-ms"})
"""Headers of the contract that this version does not serve. To ignore one would break its promise, so it is refused."""

CONTROL = frozenset({TOPIC, DELIVER_MS, DELAY_MS, KEY, PARTITION, ORIGIN, ROLLS, RELEASED_MS}) | UNSERVED
"""Taken off a delivered record; every other header is foreign and kept, in order, doubles too."""

MAX_INT64 = 2**63 - 1
MAX_INT32 = 2**31 - 1
_LEGAL_TOPIC = re.compile(rb"[A-Za-z0-9._-]{1,249}")


class Rules(BaseModel):
    """The settings that change how a request reads. Journalled by range, so that old requests keep their meaning."""

    model_config = ConfigDict(frozen=True)

    max_delay_ms: int
    roll_window_ms: int
    profiles: tuple[str, ...] = ("native",)
    own_topics: frozenset[str] = frozenset()
    """The bridge's own topics, which are never targets."""


class Schedule(NamedTuple):
    """Deliver the record to `target` at or after `due_ms` (epoch ms).

    `key` stands for the record's own where `has_key`; `partition` is -1 where the partitioner chooses.
    """

    target: str
    due_ms: int
    partition: int
    has_key: bool
    key: bytes | None


class Refusal(NamedTuple):
    """The sender's mistake: a stable `code` for programs and a `detail` for people."""

    code: str
    detail: str


class BadValueError(ValueError):
    """A number in a header that is no plain decimal in range."""


def parse(headers: Headers, timestamp_ms: int, rules: Rules) -> Schedule | Refusal:
    """What a record with these headers, appended at `timestamp_ms` (the broker's clock), asks for."""
    ours: dict[str, bytes | None] = {}
    for name, value in headers:
        if name in CONTROL:
            if name in ours:
                return Refusal("bad-header", f"{name} stands twice: send it once")
            ours[name] = value
    try:
        return _schedule(ours, timestamp_ms, rules)
    except BadValueError as wrong:
        return Refusal("bad-header", str(wrong))


def _schedule(ours: dict[str, bytes | None], timestamp_ms: int, rules: Rules) -> Schedule | Refusal:
    if not UNSERVED.isdisjoint(ours):
        return Refusal("bad-header", f"{min(UNSERVED & ours.keys())} is not served by this version: leave it out")
    partition = decimal(PARTITION, ours[PARTITION], MAX_INT32) if PARTITION in ours else -1
    has_key = KEY in ours
    if has_key and ours[KEY] is None:
        return Refusal("bad-header", f"{KEY} is null: give the delivered record's key, or leave the header out")
    deliver_ms = decimal(DELIVER_MS, ours[DELIVER_MS]) if DELIVER_MS in ours else None
    delay_ms = decimal(DELAY_MS, ours[DELAY_MS]) if DELAY_MS in ours else None
    if ORIGIN in ours or ROLLS in ours:
        return Refusal("not-ours", f"{ORIGIN} and {ROLLS} are written by the bridge alone: leave them out")
    if delay_ms is not None:
        if deliver_ms is not None:
            return Refusal("ambiguous-time", f"{DELIVER_MS} and {DELAY_MS} both stand: send one of them")
        due_ms = timestamp_ms + delay_ms
    elif deliver_ms is not None:
        due_ms = deliver_ms
    else:
        return Refusal("missing-time", f"send {DELIVER_MS} (epoch ms) or {DELAY_MS}")
    if due_ms - timestamp_ms > rules.max_delay_ms:
        return Refusal("too-far", f"due {due_ms - timestamp_ms} ms ahead; max_delay is {rules.max_delay_ms} ms")
    if TOPIC not in ours:
        return Refusal("missing-topic", f"send the real topic's name in {TOPIC}")
    target = _topic(ours[TOPIC])
    if target is None or target in rules.own_topics:
        return Refusal("bad-target", f"{ours[TOPIC]!r} may not be a target: an illegal, internal or bridge's own topic")
    return Schedule(target, due_ms, partition, has_key, ours[KEY] if has_key else None)


def decimal(name: str, value: bytes | None, largest: int = MAX_INT64) -> int:
    """ASCII digits only, 0..largest. Raises BadValueError with the header's name and the remedy."""
    if value is None or not value.isdigit() or len(value) > 19 or (number := int(value)) > largest:
        shown = "null" if value is None else repr(value[:40])
        raise BadValueError(f"{name} is {shown}: send plain decimal digits, 0 to {largest}")
    return number


@lru_cache(maxsize=65_536)
def _topic(raw: bytes | None) -> str | None:
    """A legal topic name that is not internal, else None (Kafka's own rule for names)."""
    if raw is None or not _LEGAL_TOPIC.fullmatch(raw) or raw in (b".", b"..") or raw.startswith(b"__"):
        return None
    return raw.decode("ascii")
