"""The retry of a consumed message: later each time, and at last to the DLQ of its group."""

import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

from kafka_timer.durations import parse_duration_ms
from kafka_timer.headers import CONTROL, UNREADABLE_HEADERS, decoded_headers, legal_topic
from kafka_timer.requests import Headers, Text, headers_for, to_bytes

MAX_RETRIES = 16
FIRST_RETRY_LEVEL = 3
"""As in RocketMQ: the first retry waits 10 s, the sixteenth 2 h."""
RETRIES = "timer-retries"
"""Header of a retried message: the number of retries."""
RETRY_GROUP = "timer-retry-group"
RETRY_OF = "timer-retry-of"
"""Header: topic/partition/offset where the message failed first."""
_RETRY_HEADERS = frozenset({RETRIES, RETRY_GROUP, RETRY_OF})
_SPRING = "kafka_dlt-"
_SPRING_ORIGIN = tuple(f"{_SPRING}original-{name}" for name in ("topic", "partition", "offset", "timestamp"))
_LONGEST_ERROR = 1000
"""Characters: the DLQ has to take the record."""
_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value")


Message: TypeAlias = Any
"""A consumed message: confluent_kafka's, which has methods, or aiokafka's, with attributes. Not deserialized."""


def _read(message: Message) -> SimpleNamespace:
    fields = ((name, getattr(message, name)) for name in _FIELDS)
    read = SimpleNamespace(**{name: field() if callable(field) else field for name, field in fields})
    read.headers = decoded_headers(message) if callable(message.headers) else message.headers or ()
    read.timestamp = read.timestamp[1] if isinstance(read.timestamp, tuple) else read.timestamp
    return read


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a message that failed comes back, and where it goes at last.

    delays: such as ("10s", "5m"); the last one repeats. Default: the bridge's levels 3 to 18, 10 s to 2 h.
    most: number of retries; default: the number of `delays`, or 16.
    jitter: a delay is longer by up to this fraction of it, by a hash of the message; needs `delays`.
    dead_letters: name of the DLQ; default `DLQ.<group>`.
    spring_headers: True if the DLQ's record has the headers of Spring's DeadLetterPublishingRecoverer: the
    exception's class and message, and the original topic, partition, offset and timestamp (big-endian int, longs).
    Retries have the last four too. Raises ValueError if a value is wrong.
    """

    delays: Sequence[timedelta | str] = ()
    most: int | None = None
    jitter: float = 0.0
    dead_letters: str | None = None
    spring_headers: bool = False

    def __post_init__(self) -> None:
        waits = [self.when(times, 0.0)["delay"] for times in range(len(self.delays))]
        is_negative = (self.most or 0) < 0 or any(wait < timedelta(0) for wait in waits)
        if is_negative or not 0 <= self.jitter <= 1 or (self.jitter and not waits):
            raise ValueError("RetryPolicy: give delays and a number of 0 or more, and a jitter of 0 to 1 with delays")

    @property
    def retries(self) -> int:
        return (len(self.delays) or MAX_RETRIES) if self.most is None else self.most

    def when(self, times: int, luck: float) -> dict[str, Any]:
        """Return the time of the retry after `times` retries, as `headers_for` takes it. luck: 0 to 1."""
        if not self.delays:
            return {"level": FIRST_RETRY_LEVEL + times}
        delay = self.delays[min(times, len(self.delays) - 1)]
        if not isinstance(delay, timedelta):
            delay = timedelta(milliseconds=parse_duration_ms(str(delay)))  # refuses a number, as `headers_for` does
        return {"delay": delay * (1 + self.jitter * luck)}


DEFAULT_POLICY = RetryPolicy()


def belongs_to(message: Message, group: str) -> bool:
    """Return False if the message is a retry of another group, which this group has to leave out."""
    return dict(_read(message).headers).get(RETRY_GROUP) in (None, group.encode())


class Retry(NamedTuple):
    """A retry: a request for the timer topic (`id` is not None), or a record for the DLQ."""

    topic: str | None
    """The DLQ, or None for the timer topic."""
    id: bytes | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def retry_of(
    message: Message,
    *,
    group: str,
    topic: str | None = None,
    secret: Text = b"",
    policy: RetryPolicy = DEFAULT_POLICY,
    error: BaseException | None = None,
) -> Retry:
    """Return the retry of `message` to `topic` (its own if None), each time later, at last to the DLQ.

    The id is made of the group, the message's offset and an HMAC of its content, so a second retry after a crash
    replaces the first one. To cancel the retry one has to know the `secret`, or the message if the secret is empty. All
    consumers of a group need the same secret. error: why it failed, for Spring's headers.
    """
    name = policy.dead_letters or f"DLQ.{group}"
    dead = legal_topic(name.encode())
    if dead is None or not group:
        raise ValueError(f"group {group!r}: {name} has to be a legal topic: use letters, digits, . _ and -")
    read = _read(message)
    place = f"{read.topic}/{read.partition}/{read.offset}"
    if read.headers is UNREADABLE_HEADERS:
        raise ValueError(f"{place}: a header's name is no UTF-8, so a retry would lose the headers: handle it yourself")
    sent: dict[str, bytes | None] = dict(read.headers)
    is_ours = sent.get(RETRY_GROUP) == group.encode()
    count = sent.get(RETRIES) or b""
    times = int(count) if is_ours and count.isdigit() and len(count) <= 9 else 0
    first = (sent.get(RETRY_OF) or place.encode()) if is_ours else place.encode()
    kept: Headers = [pair for pair in read.headers if pair[0] not in CONTROL | _RETRY_HEADERS]
    is_dead = times >= policy.retries
    if policy.spring_headers:
        if not is_ours or _SPRING_ORIGIN[0] not in sent:
            longs = (struct.pack("!q", number) for number in (read.offset, read.timestamp))
            origin = zip(_SPRING_ORIGIN, (read.topic.encode(), struct.pack("!i", read.partition), *longs), strict=True)
            kept = [*(pair for pair in kept if not pair[0].startswith(_SPRING)), *origin]
        if is_dead and error is not None:
            name, text = f"{type(error).__module__}.{type(error).__qualname__}", str(error)[:_LONGEST_ERROR]
            raw = text.encode(errors="backslashreplace")
            kept += [(f"{_SPRING}exception-fqcn", name.encode()), (f"{_SPRING}exception-message", raw)]
    kept += [(RETRIES, b"%d" % (times + (not is_dead))), (RETRY_GROUP, group.encode()), (RETRY_OF, first)]
    if is_dead:
        return Retry(dead, None, read.key, read.value, kept)
    tag = _tag(read, f"{group}/{place}", to_bytes(secret))
    id_ = f"retry/{group}/{place}/{tag}".encode()
    when = policy.when(times, int(tag[:8], 16) / 0xFFFFFFFF)
    return Retry(None, id_, read.key, read.value, headers_for(topic or read.topic, id=id_, headers=kept, **when))


def _tag(read: SimpleNamespace, place: str, secret: bytes) -> str:
    mac = hmac.new(secret, digestmod="sha256")
    pairs = [part for pair in read.headers for part in pair]
    for part in (place, read.key, read.value, *pairs):
        raw = None if part is None else to_bytes(part, "consumed message")
        mac.update(b"-" if raw is None else b"%d:%b" % (len(raw), raw))
    return mac.hexdigest()[:32]
