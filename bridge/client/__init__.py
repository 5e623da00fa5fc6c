"""Timers from Python: schedule, cancel, replace, move, and retry for consumers.

    with TimerProducer({"bootstrap.servers": "localhost:9092"}) as timers:
        timers.schedule("orders", b"hello", key=b"7", delay="5s")
        timers.schedule("orders", b"remind", at=datetime(2026, 12, 24, 18, tzinfo=UTC), id="reminder-7")
        timers.cancel("reminder-7")
        sent = timers.schedule("orders", b"later", delay="1h").result()
        timers.cancel(sent)                            # a timer without an id, by the position of its request
        timers.pause("orders")                         # due timers wait until timers.resume("orders")
        timers.flush()                                 # raises if a request was not acknowledged

    producer.begin_transaction()                       # with a (transactional) producer of your own:
    producer.produce("timer.requests", b"hello", headers=headers_for("orders", delay="5s"))

    except Exception:                                  # in a consumer: again in 10 s, 30 s, ... 2 h, then DLQ.<group>
        timers.retry_later(message, group="billing").result(30)

An id chooses the partition of the timer topic by murmur2, so all requests with the same id meet there, from any
language, as long as the number of partitions stays the same: docs/growing.md says how to add some.
"""

import hmac
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from operator import index
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias
from uuid import uuid4

from bridge.config.durations import parse_instant_ms
from bridge.errors import SettingsError
from schemas.control import DEFAULT_TOPIC as DEFAULT_CONTROL_TOPIC
from schemas.control import Key, Paused, Skipped, control_record
from schemas.durations import parse_duration_ms
from schemas.headers import (
    ACTION,
    CONTROL,
    DELAY_LEVEL,
    DELAY_MS,
    DELIVER_MS,
    EXPIRE_MS,
    ID,
    KEY,
    MAX_INT64,
    MOVE,
    OF,
    PARTITION,
    TOPIC,
    Refusal,
    Rules,
    legal_topic,
    parse,
)
from schemas.murmur2 import partition_of
from schemas.origin import Shard, origin

Text: TypeAlias = bytes | str
"""A str is sent as UTF-8."""
Pairs: TypeAlias = Iterable[tuple[str, Text | None]]
Headers: TypeAlias = list[tuple[str, bytes | None]]

MAX_RETRIES = 16
FIRST_RETRY_LEVEL = 3
"""As in RocketMQ: the first retry waits 10 s, the sixteenth 2 h."""
RETRIES = "timer-retries"
"""Header of a retried message: the number of retries."""
RETRY_GROUP = "timer-retry-group"
RETRY_OF = "timer-retry-of"
"""Header: topic/partition/offset where the message failed first."""
_RETRY_HEADERS = frozenset({RETRIES, RETRY_GROUP, RETRY_OF})

_POSITION = re.compile(r"(.+)/([0-9]{1,18})/([0-9]{1,18})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANYTHING = Rules(max_delay_ms=MAX_INT64, roll_window_ms=1)


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


class Outbox(Protocol):
    """Sends records. bridge.kafka.ConfluentOutbox implements it."""

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        """Send a record; partition -1: chosen by the key. The future raises BridgeError if the broker refuses it."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions. Raises BridgeError if there is no such topic, or no broker answers."""

    def flush(self, timeout_s: float | None) -> None:
        """Wait for all acknowledgements. Raises BridgeError if a record since the last flush was refused."""

    @property
    def is_broken(self) -> bool:
        """True if it can send nothing more."""

    def close(self) -> None:
        """Send what is queued, as far as possible, and close."""


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


def headers_for(
    topic: str,
    *,
    at: datetime | str | int | None = None,
    delay: timedelta | str | int | None = None,
    level: int | None = None,
    id: Text | None = None,  # noqa: A002  (the contract's word)
    replace: bool = False,
    partition: int | None = None,
    delivered_key: Text | None = None,
    expire_at: datetime | str | int | None = None,
    headers: Pairs = (),
) -> Headers:
    """Return all headers of a request to deliver a record to `topic`. `headers` are delivered with the record.

    Exactly one of `at` (with a zone; ISO 8601; epoch ms), `delay` ('2h30m'; ms) and `level` (RocketMQ's 1 to 18).
    With an `id`, send the request to `partition_for(id, ...)`.

    partition, delivered_key: of the delivered record; by default the partitioner's choice and the key of the request.
    expire_at: a timer that could not be released before goes to the rejected topic, as `expired`.
    Raises ValueError for everything that the bridge would refuse.
    """
    ours: Headers = [(TOPIC, topic.encode()), _due_header(at, delay, level)]
    if id is not None:
        ours.append((ID, _bytes(id)))
    if replace:
        ours.append((ACTION, b"replace"))
    if partition is not None:
        ours.append((PARTITION, b"%d" % partition))
    if delivered_key is not None:
        ours.append((KEY, _bytes(delivered_key)))
    if expire_at is not None:
        ours.append((EXPIRE_MS, _ms("expire_at", expire_at, parse_instant_ms)))
    return _checked(ours) + _user_headers(headers)


def cancel_headers(id: Text | Sent) -> Headers:  # noqa: A002
    """Return all headers of a request to cancel `id`; send it to `partition_for(id, ...)`.

    id: or the position of the timer's request, for a timer without an id; send it to that partition then.
    """
    return _checked([(ACTION, b"cancel"), _name_header(id)])


def move_headers(
    id: Text | Sent,  # noqa: A002
    *,
    at: datetime | str | int | None = None,
    delay: timedelta | str | int | None = None,
    level: int | None = None,
) -> Headers:
    """Return all headers of a request to move `id` to another due time. See `cancel_headers`."""
    return _checked([(ACTION, MOVE), _name_header(id), _due_header(at, delay, level)])


def _name_header(name: Text | Sent) -> tuple[str, bytes | None]:
    if isinstance(name, Sent):
        return OF, origin(Shard(name.topic, name.partition), name.offset)
    return ID, _bytes(name)


def partition_for(id: Text, partitions: int) -> int:  # noqa: A002
    """Return the partition for all requests with this id, on a timer topic with `partitions` partitions."""
    return partition_of(_bytes(id), partitions)


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
    id_ = f"retry/{group}/{place}/{_tag(message, f'{group}/{place}', _bytes(secret))}".encode()
    asked = headers_for(topic or message.topic(), level=FIRST_RETRY_LEVEL + times, id=id_, headers=kept)
    return Retry(None, id_, message.key(), message.value(), asked)


def _tag(message: Message, place: str, secret: bytes) -> str:
    mac = hmac.new(secret, digestmod="sha256")
    pairs = [part for pair in message.headers() or () for part in pair]
    for part in (place, message.key(), message.value(), *pairs):
        raw = None if part is None else _bytes(part)
        mac.update(b"-" if raw is None else b"%d:%b" % (len(raw), raw))
    return mac.hexdigest()[:32]


class TimerProducer:
    """Sends requests to one timer topic. Safe to use from several threads.

    config: that of confluent_kafka, at least `bootstrap.servers`; idempotent unless it says otherwise. Methods return
    at once; the future returns the position of the acknowledged request, or raises bridge.errors.BridgeError. The
    receipts topic says what the bridge did with the request.

    While a timer topic grows (docs/growing.md): `partitions` is the number that ids are placed by, by default that of
    the topic. `other_partitions` is the number that other producers place the same ids by: a request with an id then
    also ends what is pending in that partition.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timer_topic: str = "timer.requests",
        control_topic: str = DEFAULT_CONTROL_TOPIC,
        retry_secret: Text = b"",
        trace_header: str | None = None,
        partitions: int | None = None,
        other_partitions: int | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`control_topic`: for `pause`, `resume` and `skip`. `retry_secret`: for `retry_later`, see `retry_of`.

        trace_header: such as `timer-trace-id`; each message of `schedule` and `replace` without this header gets a
        random id in it, by which the audit follows the message.
        outbox: replaces Kafka in tests. Raises SettingsError if `config` is invalid.
        """
        if any(count is not None and count < 1 for count in (partitions, other_partitions)):
            raise SettingsError(
                f"partitions {partitions}, other_partitions {other_partitions}: give 1 or more, or None"
            )
        self._timer_topic = timer_topic
        self._control_topic = control_topic
        self._retry_secret = retry_secret
        self._trace_header = trace_header
        self._partitions = partitions
        self._other_partitions = other_partitions
        self._outbox = _kafka(config) if outbox is None else outbox

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def schedule(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Pairs = (),
        at: datetime | str | int | None = None,
        delay: timedelta | str | int | None = None,
        level: int | None = None,
        id: Text | None = None,  # noqa: A002
        partition: int | None = None,
        expire_at: datetime | str | int | None = None,
    ) -> "Future[Sent]":
        """Deliver `value` to `topic` at that time. An `id` replaces what is pending under it. See `headers_for`."""
        when: dict[str, Any] = {"at": at, "delay": delay, "level": level, "expire_at": expire_at}
        asked = headers_for(topic, **when, id=id, partition=partition, headers=self._traced(headers))
        return self._send(id, key, value, asked)

    def replace(
        self,
        id: Text,  # noqa: A002
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Pairs = (),
        at: datetime | str | int | None = None,
        delay: timedelta | str | int | None = None,
        level: int | None = None,
        partition: int | None = None,
        expire_at: datetime | str | int | None = None,
    ) -> "Future[Sent]":
        """As `schedule` with an id, but the receipt says if nothing was pending."""
        when: dict[str, Any] = {"at": at, "delay": delay, "level": level, "expire_at": expire_at}
        asked = headers_for(topic, **when, id=id, replace=True, partition=partition, headers=self._traced(headers))
        return self._send(id, key, value, asked)

    def replace_everywhere(self, id: Text, topic: str, value: Text | None, **asked: Any) -> "list[Future[Sent]]":  # noqa: A002
        """Replace, then cancel in every other partition: see `cancel_everywhere`.

        Waits until the replacement is acknowledged. If it is not, raises BridgeError and cancels nothing.
        """
        replaced = self.replace(id, topic, value, **asked)
        return [replaced, *self.cancel_everywhere(id, but=replaced.result().partition)]

    def cancel(self, id: Text | Sent, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """Cancel what is pending under `id`. The receipt says if something was.

        id: or the position of the timer's request, as `schedule` returns it: needed for a timer without an id.
        partition: of the timer topic, for a timer that was not placed by its id; the cancel goes only there.
        Raises ValueError if the request is on another timer topic.
        """
        if isinstance(id, Sent):
            return self._send_about(id, cancel_headers(id))
        if partition is not None:
            return self._send_empty(partition, id, cancel_headers(id))
        return self._send(id, id, None, cancel_headers(id))

    def partition_of(self, id: Text) -> int:  # noqa: A002
        """Return the partition for this id. Raises BridgeError if no broker answers."""
        return partition_for(id, self._partitions or self._outbox.partitions(self._timer_topic))

    def move(
        self,
        id: Text | Sent,  # noqa: A002
        *,
        at: datetime | str | int | None = None,
        delay: timedelta | str | int | None = None,
        level: int | None = None,
        partition: int | None = None,
    ) -> "Future[Sent]":
        """Move what is pending under `id` to another due time, earlier or later. The receipt says if something was.

        id, partition: see `cancel`.
        """
        headers = move_headers(id, at=at, delay=delay, level=level)
        if isinstance(id, Sent):
            return self._send_about(id, headers)
        if partition is not None:
            return self._send_empty(partition, id, headers)
        first = self.partition_of(id)
        return _all_acknowledged(self._send_empty(first, id, headers), self._send_elsewhere(id, first, headers))

    def release(self, id: Text | Sent, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """Make what is pending under `id` due now. See `cancel`."""
        return self.move(id, delay=0, partition=partition)

    def cancel_everywhere(self, id: Text, *, but: int | None = None) -> "list[Future[Sent]]":  # noqa: A002
        """Cancel in each partition `but` one, for timers that were not placed by id. Most receipts are `not-found`."""
        numbers = (number for number in range(self._outbox.partitions(self._timer_topic)) if number != but)
        return [self._send_empty(number, id, cancel_headers(id)) for number in numbers]

    def pause(self, topic: str) -> "list[Future[Sent]]":
        """Let timers of this timer topic for `topic` wait until `resume`. Needs Write on the control topic."""
        return [self._control(Paused(self._timer_topic, topic))]

    def resume(self, topic: str) -> "list[Future[Sent]]":
        """Release what waits for `topic`, within its rate limit. Needs Write on the control topic."""
        return [self._control(Paused(self._timer_topic, topic), on=False)]

    def skip(self, partition: int, offset: int) -> "Future[Sent]":
        """Let the bridge reject the record at this offset of the timer topic, which it cannot decode, and go on.

        Needs Write on the control topic. Raises ValueError if there is no such partition.
        """
        count = self._outbox.partitions(self._timer_topic)
        if not 0 <= partition < count:
            raise ValueError(f"{self._timer_topic}/{partition}: no such partition: it has {count}, from 0 on")
        return self._control(Skipped(Shard(self._timer_topic, partition), offset))

    def _control(self, wanted: Key, *, on: bool = True) -> "Future[Sent]":
        key, value = control_record(wanted, on=on)
        return self._outbox.send(self._control_topic, 0, key, value, [])

    def retry_later(self, message: Message, *, group: str, topic: str | None = None) -> "Future[Sent]":
        """Send a message again after 10 s, 30 s, ... 2 h, at most 16 times; then to `DLQ.<group>`.

        The delays are levels 3 to 18, as RocketMQ's consumers use. Commit the message's offset when the future is done.
        The message returns to its own topic, where every group reads it and `timer-retry-group` names the one that
        it is for; or give the group a `topic` of its own.
        """
        retry = retry_of(message, group=group, topic=topic, secret=self._retry_secret)
        if retry.topic is not None:
            return self._outbox.send(retry.topic, -1, retry.key, retry.value, retry.headers)
        return self._send(retry.id, retry.key, retry.value, retry.headers)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all is acknowledged. Raises BridgeError if a request since the last flush was refused."""
        self._outbox.flush(timeout_s)

    @property
    def is_broken(self) -> bool:
        """True after a fatal error of its Kafka client: all futures raise, so create a new producer."""
        return self._outbox.is_broken

    def close(self) -> None:
        """Close it, without errors for unacknowledged requests: call `flush` first."""
        self._outbox.close()

    def _traced(self, headers: Pairs) -> Pairs:
        """Return the headers with a trace id."""
        pairs = list(headers)
        if self._trace_header is not None and all(name != self._trace_header for name, _ in pairs):
            pairs.append((self._trace_header, uuid4().hex))
        return pairs

    def _send_empty(self, partition: int, id_: Text, headers: Headers) -> "Future[Sent]":
        """Send a request without a value to a partition of the timer topic."""
        return self._outbox.send(self._timer_topic, partition, _bytes(id_), None, headers)

    def _send_about(self, request: Sent, headers: Headers) -> "Future[Sent]":
        """Send a request by origin to the partition of the timer's request."""
        if request.topic != self._timer_topic:
            raise ValueError(f"{request}: no request on {self._timer_topic}: use a producer for {request.topic}")
        return self._outbox.send(self._timer_topic, request.partition, None, None, headers)

    def _send(self, id_: Text | None, key: Text | None, value: Text | None, headers: Headers) -> "Future[Sent]":
        topic, raw_key = self._timer_topic, None if key is None else _bytes(key)
        partition = -1 if id_ is None else self.partition_of(id_)
        # First the cancel: a sender that repeats an unacknowledged request must not leave two timers.
        ended = [] if id_ is None else self._send_elsewhere(id_, partition, cancel_headers(id_))
        raw_value = None if value is None else _bytes(value)
        return _all_acknowledged(self._outbox.send(topic, partition, raw_key, raw_value, headers), ended)

    def _send_elsewhere(self, id_: Text, partition: int, headers: Headers) -> "list[Future[Sent]]":
        """Send it to the partition by the other count too, if that differs and exists."""
        if self._other_partitions is None:
            return []
        other = partition_for(id_, self._other_partitions)
        is_there = other != partition and other < self._outbox.partitions(self._timer_topic)
        return [self._send_empty(other, id_, headers)] if is_there else []


def _all_acknowledged(sent: "Future[Sent]", others: "Sequence[Future[Sent]]") -> "Future[Sent]":
    """Return a future for `sent` that is done once all are acknowledged, or with the first failure."""
    if not others:
        return sent
    whole: Future[Sent] = Future()
    whole.set_running_or_notify_cancel()
    waiting, lock = {sent, *others}, threading.Lock()

    def on_done(future: "Future[Sent]") -> None:
        with lock:
            waiting.discard(future)
            is_last = not waiting
        if not is_last:
            return
        failure = next(filter(None, (each.exception() for each in (*others, sent))), None)
        if failure is None:
            whole.set_result(sent.result())
        else:
            whole.set_exception(failure)

    for each in (*others, sent):
        each.add_done_callback(on_done)
    return whole


def _kafka(config: Mapping[str, Any]) -> Outbox:
    from bridge.kafka import ConfluentOutbox  # only here: headers alone need no librdkafka

    return ConfluentOutbox(config)


def _checked(ours: Headers) -> Headers:
    """Return the headers unchanged. Raises ValueError if the bridge would refuse them."""
    asked = parse(ours, 0, _ANYTHING)
    if isinstance(asked, Refusal):
        raise ValueError(f"{asked.code}: {asked.detail}")
    return ours


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _user_headers(headers: Pairs) -> Headers:
    kept: Headers = []
    for name, value in headers:
        if name in CONTROL:
            raise ValueError(f"header {name} is the bridge's: use an argument, or another name")
        kept.append((name, None if value is None else _bytes(value)))
    return kept


def _due_header(
    at: datetime | str | int | None, delay: timedelta | str | int | None, level: int | None
) -> tuple[str, bytes | None]:
    if [at, delay, level].count(None) != 2:
        raise ValueError("when: give one of at, delay and level")
    if at is not None:
        return DELIVER_MS, _ms("at", at, parse_instant_ms)
    if delay is not None:
        return DELAY_MS, _ms("delay", delay, parse_duration_ms)
    return DELAY_LEVEL, b"%d" % (level or 0)


def _ms(name: str, given: datetime | timedelta | str | int, parse_text: Callable[[str], int]) -> bytes:
    """Return whole milliseconds, rounded up so that nothing is early. Raises ValueError."""
    try:
        if isinstance(given, datetime):
            if given.tzinfo is None:
                raise ValueError(f"{given} has no zone: give it one, such as datetime.UTC")
            given -= _EPOCH
        if isinstance(given, timedelta):
            return b"%d" % -(-given // timedelta(milliseconds=1))
        return b"%d" % (parse_text(given) if isinstance(given, str) else index(given))
    except TypeError:  # a float: it would be cut off, and so be early
        raise ValueError(f"{name}: {given!r} is no int: give whole milliseconds, rounded up") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _retry_count(value: bytes | None) -> int:
    """Parse the retry count; 0 if it is missing or not a number."""
    return int(value) if value is not None and value.isdigit() and len(value) <= 9 else 0
