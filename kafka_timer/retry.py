"""The retry of a consumed message: later each time, and at last to the DLQ of its group."""

import hmac
from typing import Any, NamedTuple, Protocol

from kafka_timer.headers import CONTROL, legal_topic
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


class Message(Protocol):
    """A consumed message, such as confluent_kafka.Message."""

    def topic(self) -> Any: ...
    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...


class Retry(NamedTuple):
    """A retry: a request for the timer topic (`id` is not None), or a record for the DLQ."""

    topic: str | None
    """The DLQ, or None for the timer topic."""
    id: bytes | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def retry_of(message: Message, *, group: str, topic: str | None = None, secret: Text = b"") -> Retry:
    """Return the retry of `message` to `topic` (its own if None), each time later, at last to `DLQ.<group>`.

    The id is made of the group, the message's offset and an HMAC of its content, so a second retry after a crash
    replaces the first one. To cancel the retry one has to know the `secret`, or the message if the secret is empty. All
    consumers of a group need the same secret.
    """
    dead = legal_topic(f"DLQ.{group}".encode())
    if dead is None or not group:
        raise ValueError(f"group {group!r}: DLQ.{group} has to be a legal topic: use letters, digits, . _ and -")
    place = f"{message.topic()}/{message.partition()}/{message.offset()}"
    sent: dict[str, bytes | None] = dict(message.headers() or ())
    is_ours = sent.get(RETRY_GROUP) == group.encode()
    times = _retry_count(sent.get(RETRIES)) if is_ours else 0
    first = (sent.get(RETRY_OF) or place.encode()) if is_ours else place.encode()
    kept: Headers = [pair for pair in message.headers() or () if pair[0] not in CONTROL | _RETRY_HEADERS]
    is_dead = times >= MAX_RETRIES
    kept += [(RETRIES, b"%d" % (times + (not is_dead))), (RETRY_GROUP, group.encode()), (RETRY_OF, first)]
    if is_dead:
        return Retry(dead, None, message.key(), message.value(), kept)
    id_ = f"retry/{group}/{place}/{_tag(message, f'{group}/{place}', to_bytes(secret))}".encode()
    asked = headers_for(topic or message.topic(), level=FIRST_RETRY_LEVEL + times, id=id_, headers=kept)
    return Retry(None, id_, message.key(), message.value(), asked)


def _tag(message: Message, place: str, secret: bytes) -> str:
    mac = hmac.new(secret, digestmod="sha256")
    pairs = [part for pair in message.headers() or () for part in pair]
    for part in (place, message.key(), message.value(), *pairs):
        raw = None if part is None else to_bytes(part)
        mac.update(b"-" if raw is None else b"%d:%b" % (len(raw), raw))
    return mac.hexdigest()[:32]


def _retry_count(value: bytes | None) -> int:
    """Parse the retry count; 0 if it is missing or not a number."""
    return int(value) if value is not None and value.isdigit() and len(value) <= 9 else 0
