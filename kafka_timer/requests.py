"""Headers of requests that schedule or change a timer, and the partition of an id. No Kafka client."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from operator import index
from typing import Any, NamedTuple, TypeAlias, TypedDict

from kafka_timer import headers as names
from kafka_timer.durations import parse_duration_ms
from kafka_timer.instants import parse_instant_ms
from kafka_timer.murmur2 import partition_of
from kafka_timer.origin import TimerPartition, origin

Text: TypeAlias = bytes | str
"""A str is sent as UTF-8."""
Pairs: TypeAlias = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]
"""Headers as a dict, or as pairs, whose names may repeat."""
Headers: TypeAlias = list[tuple[str, bytes | None]]

_POSITION = re.compile(r"(.+)/([0-9]{1,18})/([0-9]{1,18})")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNLIMITED = names.FixedLimits()


class Sent(NamedTuple):
    """Position of an acknowledged record."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> "Sent":
        """Parse topic/partition/offset, as in `timer-origin`. Raises ValueError."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ValueError(f"origin: {text!r}: write topic/partition/offset of its request, as timer-origin has it")
        return cls(found[1], int(found[2]), int(found[3]))


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The rule of a recurring timer: `cron` (five fields) in `zone` (IANA; UTC), or `every` ('90s').

    until: none is due later (as `at`). count: deliveries at most. missed: after downtime, `one` (the default), `all` or
    `none`. The first is due at the time of the request if it has one, else at the next match or after one interval.
    """

    cron: str | None = None
    every: timedelta | str | None = None
    zone: str | None = None
    until: datetime | str | int | None = None
    count: int | None = None
    missed: str | None = None

    def headers(self) -> Headers:
        """Return the headers of the rule. Raises ValueError if a value does not parse."""
        texts = ((names.CRON, self.cron), (names.ZONE, self.zone), (names.MISSED_POLICY, self.missed))
        found: Headers = [(name, text.encode()) for name, text in texts if text is not None]
        if self.every is not None:
            found.append((names.EVERY_MS, _duration_ms("every", self.every)))
        if self.until is not None:
            found.append((names.UNTIL_MS, _epoch_ms("until", self.until)))
        if self.count is not None:
            found.append((names.COUNT, b"%d" % self.count))
        return found


class Delivery(TypedDict, total=False):
    """When and where a message is delivered: arguments of `headers_for`, which explains them."""

    at: datetime | str | int | None
    delay: timedelta | str | None
    level: int | None
    partition: int | None
    expire_at: datetime | str | int | None
    repeat: Repeat | None


def headers_for(
    topic: str,
    *,
    at: datetime | str | int | None = None,
    delay: timedelta | str | None = None,
    level: int | None = None,
    id: Text | None = None,  # noqa: A002  (the contract's word)
    replace: bool = False,
    partition: int | None = None,
    delivered_key: Text | None = None,
    expire_at: datetime | str | int | None = None,
    repeat: Repeat | None = None,
    headers: Pairs = (),
) -> Headers:
    """Return all headers of a request to deliver a record to `topic`. `headers` are delivered with the record.

    Exactly one of `at` (with a zone; ISO 8601; epoch ms), `delay` ('2h30m') and `level` (RocketMQ's 1 to 18).
    With an `id`, send the request to `partition_for(id, ...)`.

    partition, delivered_key: of the delivered record; by default the partitioner's choice and the key of the request.
    expire_at: a timer that could not be released before goes to the rejected topic, as `expired`.
    repeat: deliver again and again; then no time is needed.
    Raises ValueError for everything that the bridge would refuse.
    """
    ours: Headers = [(names.TOPIC, topic.encode())]
    if repeat is None or (at, delay, level) != (None, None, None):
        ours.append(_due_header(at, delay, level))
    if repeat is not None:
        ours += repeat.headers()
    if id is not None:
        ours.append((names.ID, to_bytes(id)))
    if replace:
        ours.append((names.ACTION, b"replace"))
    if partition is not None:
        ours.append((names.PARTITION, b"%d" % partition))
    if delivered_key is not None:
        ours.append((names.KEY, to_bytes(delivered_key)))
    if expire_at is not None:
        ours.append((names.EXPIRE_MS, _epoch_ms("expire_at", expire_at)))
    return _checked(ours) + _user_headers(headers)


def cancel_headers(id: Text | Sent) -> Headers:  # noqa: A002
    """Return all headers of a request to cancel `id`; send it to `partition_for(id, ...)`.

    id: or the position of the timer's request, for a timer without an id; send it to that partition then.
    """
    return _checked([(names.ACTION, b"cancel"), _name_header(id)])


def move_headers(
    id: Text | Sent,  # noqa: A002
    *,
    at: datetime | str | int | None = None,
    delay: timedelta | str | None = None,
    level: int | None = None,
) -> Headers:
    """Return all headers of a request to move `id` to another due time. See `cancel_headers`."""
    return _checked([(names.ACTION, names.MOVE), _name_header(id), _due_header(at, delay, level)])


def pause_timer_headers(id: Text | Sent) -> Headers:  # noqa: A002
    """Return all headers of a request to pause the timer `id` until it is resumed. See `cancel_headers`."""
    return _checked([(names.ACTION, b"pause"), _name_header(id)])


def resume_timer_headers(id: Text | Sent) -> Headers:  # noqa: A002
    """Return all headers of a request to resume the timer `id`. See `cancel_headers`."""
    return _checked([(names.ACTION, b"resume"), _name_header(id)])


def _name_header(name: Text | Sent) -> tuple[str, bytes | None]:
    if isinstance(name, Sent):
        return names.OF, origin(TimerPartition(name.topic, name.partition), name.offset)
    return names.ID, to_bytes(name)


def partition_for(id: Text, partitions: int) -> int:  # noqa: A002
    """Return the partition for all requests with this id, on a timer topic with `partitions` partitions."""
    return partition_of(to_bytes(id), partitions)


def _checked(ours: Headers) -> Headers:
    """Return the headers unchanged. Raises ValueError if the bridge would refuse them."""
    asked = names.parse(ours, 0, _UNLIMITED)
    if isinstance(asked, names.Refusal):
        raise ValueError(f"{asked.code}: {asked.detail}")
    return ours


def to_bytes(text: Text, name: str = "id") -> bytes:
    """Return the bytes. Raises TypeError, with the name, for another type."""
    if isinstance(text, str):
        return text.encode()
    if not isinstance(text, bytes | bytearray | memoryview):
        raise TypeError(f"{name}: {type(text).__name__} is neither bytes nor str: serialize it, or give a serializer")
    return bytes(text)


def pairs_of(headers: Pairs) -> list[tuple[str, Any]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def _user_headers(headers: Pairs) -> Headers:
    kept: Headers = []
    for name, value in pairs_of(headers):
        if name in names.CONTROL:
            raise ValueError(f"header {name} is the bridge's: use an argument, or another name")
        if "\0" in name:
            raise ValueError(f"header {name!r} has a NUL, where Kafka clients cut its name: leave the NUL out")
        kept.append((name, None if value is None else to_bytes(value, f"header {name}")))
    return kept


def _due_header(
    at: datetime | str | int | None, delay: timedelta | str | None, level: int | None
) -> tuple[str, bytes | None]:
    if [at, delay, level].count(None) != 2:
        raise ValueError("when: give one of at, delay and level")
    if at is not None:
        return names.DELIVER_MS, _epoch_ms("at", at)
    if delay is not None:
        return names.DELAY_MS, _duration_ms("delay", delay)
    return names.DELAY_LEVEL, b"%d" % (level or 0)


def _duration_ms(name: str, given: timedelta | str) -> bytes:
    """Return whole milliseconds, rounded up so that nothing is early. Raises ValueError, also for a number."""
    if isinstance(given, timedelta):
        return b"%d" % -(-given // timedelta(milliseconds=1))
    try:
        return b"%d" % parse_duration_ms(str(given))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _epoch_ms(name: str, given: datetime | str | int) -> bytes:
    """Return whole milliseconds, rounded up so that nothing is early. Raises ValueError."""
    try:
        if isinstance(given, datetime):
            if given.tzinfo is None:
                raise ValueError(f"{given} has no zone: give it one, such as datetime.UTC")
            return _duration_ms(name, given - _EPOCH)
        return b"%d" % (parse_instant_ms(given) if isinstance(given, str) else index(given))
    except TypeError:  # a float: it would be cut off, and so be early
        raise ValueError(f"{name}: {given!r} is no int: give whole milliseconds, rounded up") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
