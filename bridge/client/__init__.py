"""Timers from Python: schedule, cancel, replace, and a consumer's retry.

    with TimerProducer({"bootstrap.servers": "localhost:9092"}) as timers:
        timers.schedule("orders", b"hello", key=b"7", delay="5s")
        timers.schedule("orders", b"remind", at=datetime(2026, 12, 24, 18, tzinfo=UTC), id="reminder-7")
        timers.cancel("reminder-7")
        timers.pause("orders")                         # what is due waits, until timers.resume("orders")
        timers.flush()                                 # raises if anything was not taken

    producer.begin_transaction()                       # with a (transactional) producer of your own:
    producer.produce("timer.requests", b"hello", headers=headers_for("orders", delay="5s"))

    except Exception:                                  # in a consumer: again in 10 s, 30 s, ... 2 h, then DLQ.<group>
        timers.retry_later(message, group="billing").result(30)

An id chooses the partition of the timer topic by murmur2, so that whatever has the same id meets there, from any
language. That holds for as long as the topic has as many partitions: docs/growing.md says how to add some.
"""

import hmac
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from operator import index
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from bridge.config.durations import parse_duration_ms, parse_instant_ms
from bridge.errors import SettingsError
from schemas.control import DEFAULT_TOPIC as DEFAULT_CONTROL_TOPIC
from schemas.control import Key, Paused, Skipped, control_record
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
    PARTITION,
    TOPIC,
    Refusal,
    Rules,
    legal_topic,
    parse,
)
from schemas.murmur2 import partition_of
from schemas.origin import Shard

Text: TypeAlias = bytes | str
"""A str is sent as UTF-8."""
Pairs: TypeAlias = Iterable[tuple[str, Text | None]]
Headers: TypeAlias = list[tuple[str, bytes | None]]

MAX_RETRIES = 16
FIRST_RETRY_LEVEL = 3
"""RocketMQ's: the first retry waits 10 s, the sixteenth 2 h."""
RETRIES = "timer-retries"
"""On a message that comes back: how often it did so."""
RETRY_GROUP = "timer-retry-group"
RETRY_OF = "timer-retry-of"
"""topic/partition/offset of the message as it failed first."""
_RETRY_HEADERS = frozenset({RETRIES, RETRY_GROUP, RETRY_OF})

_ANYTHING = Rules(max_delay_ms=MAX_INT64, roll_window_ms=1)


class Sent(NamedTuple):
    """Where a record was acknowledged."""

    topic: str
    partition: int
    offset: int


class Outbox(Protocol):
    """What sends. The real one: bridge.kafka.ConfluentOutbox."""

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        """`partition` -1: the key's. The future raises bridge.errors.BridgeError where the broker does not take it."""
        ...

    def partitions(self, topic: str) -> int:
        """How many the topic has. Raises BridgeError where there is no such topic, or no broker answers."""
        ...

    def flush(self, timeout_s: float | None) -> None:
        """Waits for all that was sent. Raises BridgeError if any of it since the last flush was not taken."""
        ...

    @property
    def is_broken(self) -> bool:
        """Nothing more can be sent by it."""
        ...

    def close(self) -> None:
        """Sends what is left, as far as it can, and ends."""
        ...


class Message(Protocol):
    """What a consumer was given; confluent_kafka's Message is one."""

    def topic(self) -> Any: ...
    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...


class Retry(NamedTuple):
    """A message on its way back: a request for the timer topic (`id` is not None), else a record for the DLQ."""

    topic: str | None
    """The DLQ; None: the timer topic."""
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
    """All headers of a request to deliver a record to `topic`; `headers` are the record's own, which arrive with it.

    Exactly one of `at` (with a zone; ISO 8601; epoch ms), `delay` ('2h30m'; ms) and `level` (RocketMQ's 1 to 18).
    With an `id`, send it to `partition_for(id, ...)`. `partition` and `delivered_key` are the delivered record's, where
    they are not to be the partitioner's choice and the key of the request. What could not be released before
    `expire_at` goes to the rejected topic instead, as `expired`. Raises ValueError, never later the bridge.
    """
    ours: Headers = [(TOPIC, topic.encode()), _time(at, delay, level)]
    if id is not None:
        ours.append((ID, _raw(id)))
    if replace:
        ours.append((ACTION, b"replace"))
    if partition is not None:
        ours.append((PARTITION, b"%d" % partition))
    if delivered_key is not None:
        ours.append((KEY, _raw(delivered_key)))
    if expire_at is not None:
        ours.append((EXPIRE_MS, b"%d" % _instant_ms("expire_at", expire_at)))
    return _checked(ours) + _foreign(headers)


def cancel_headers(id: Text) -> Headers:  # noqa: A002
    """All headers of a request to end what is pending under `id`; send it to `partition_for(id, ...)`."""
    ours: Headers = [(ACTION, b"cancel"), (ID, _raw(id))]
    return _checked(ours)


def move_headers(
    id: Text,  # noqa: A002
    *,
    at: datetime | str | int | None = None,
    delay: timedelta | str | int | None = None,
    level: int | None = None,
) -> Headers:
    """All headers of a request to give what is pending under `id` another time; send it to `partition_for(id, ...)`."""
    ours: Headers = [(ACTION, MOVE), (ID, _raw(id)), _time(at, delay, level)]
    return _checked(ours)


def partition_for(id: Text, partitions: int) -> int:  # noqa: A002
    """The partition of a timer topic with so many partitions where all that has this id meets."""
    return partition_of(_raw(id), partitions)


def retry_of(message: Message, *, group: str, topic: str | None = None, secret: Text = b"") -> Retry:
    """What brings `message` back to `topic` (its own if None), later each time; behind the last time, to `DLQ.<group>`.

    Its id is made of the group, the message's place and an HMAC of all that the message holds, so a second retry after
    a crash replaces the first one. A sender that wants to cancel the retry has to know the `secret`, or the message if
    the secret is empty. All consumers of a group need the same secret.
    """
    dead = legal_topic(f"DLQ.{group}".encode())
    if dead is None or not group:
        raise ValueError(f"group {group!r}: DLQ.{group} has to be a legal topic: use letters, digits, . _ and -")
    place = f"{message.topic()}/{message.partition()}/{message.offset()}"
    sent: dict[str, bytes | None] = dict(message.headers() or ())
    is_ours = sent.get(RETRY_GROUP) == group.encode()
    times = _count(sent.get(RETRIES)) if is_ours else 0
    first = (sent.get(RETRY_OF) or place.encode()) if is_ours else place.encode()
    kept: Headers = [pair for pair in message.headers() or () if pair[0] not in CONTROL | _RETRY_HEADERS]
    if times >= MAX_RETRIES:
        told: Headers = [(RETRIES, b"%d" % times), (RETRY_GROUP, group.encode()), (RETRY_OF, first)]
        return Retry(dead, None, message.key(), message.value(), kept + told)
    told = [(RETRIES, b"%d" % (times + 1)), (RETRY_GROUP, group.encode()), (RETRY_OF, first)]
    id_ = f"retry/{group}/{place}/{_tag(message, f'{group}/{place}', _raw(secret))}".encode()
    asked = headers_for(topic or message.topic(), level=FIRST_RETRY_LEVEL + times, id=id_, headers=kept + told)
    return Retry(None, id_, message.key(), message.value(), asked)


def _tag(message: Message, place: str, secret: bytes) -> str:
    made = hmac.new(secret, digestmod="sha256")
    pairs = [part for pair in message.headers() or () for part in pair]
    for part in (place, message.key(), message.value(), *pairs):
        raw = None if part is None else _raw(part)
        made.update(b"-" if raw is None else b"%d:%b" % (len(raw), raw))
    return made.hexdigest()[:32]


class TimerProducer:
    """Sends requests to one timer topic. Safe to use from several threads.

    `config`: confluent_kafka's, at least `bootstrap.servers`; idempotent unless it says otherwise. Methods return at
    once; the future tells where the request was acknowledged, or raises bridge.errors.BridgeError. What the bridge then
    makes of it stands on the receipts topic.

    While a timer topic grows (docs/growing.md): `partitions` is by how many ids are placed, as many as there are if
    None; by `other_partitions` somebody else has placed, or will place, what has the same ids. What this one sends with
    an id then ends what is pending there too.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timer_topic: str = "timer.requests",
        control_topic: str = DEFAULT_CONTROL_TOPIC,
        retry_secret: Text = b"",
        partitions: int | None = None,
        other_partitions: int | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`control_topic`: for `pause`, `resume` and `skip`. `retry_secret`: for `retry_later`, see `retry_of`.

        `outbox` instead of Kafka is for tests. Raises SettingsError where `config` is not taken.
        """
        if any(count is not None and count < 1 for count in (partitions, other_partitions)):
            raise SettingsError(
                f"partitions {partitions}, other_partitions {other_partitions}: give 1 or more, or None"
            )
        self._timer_topic = timer_topic
        self._control_topic = control_topic
        self._retry_secret = retry_secret
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
        """Deliver `value` to `topic` then. An `id` ends what is pending under it. See `headers_for`."""
        when: dict[str, Any] = {"at": at, "delay": delay, "level": level, "expire_at": expire_at}
        asked = headers_for(topic, **when, id=id, partition=partition, headers=headers)
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
        """As `schedule` with an id; differs in the receipt alone, which tells where nothing was pending."""
        when: dict[str, Any] = {"at": at, "delay": delay, "level": level, "expire_at": expire_at}
        asked = headers_for(topic, **when, id=id, replace=True, partition=partition, headers=headers)
        return self._send(id, key, value, asked)

    def replace_everywhere(self, id: Text, topic: str, value: Text | None, **asked: Any) -> "list[Future[Sent]]":  # noqa: A002
        """As `replace`, which comes first, and a cancel to every other partition: see `cancel_everywhere`.

        Waits until the replacement is acknowledged. Raises BridgeError where it is not, and ends nothing then.
        """
        replaced = self.replace(id, topic, value, **asked)
        return [replaced, *self.cancel_everywhere(id, but=replaced.result().partition)]

    def cancel(self, id: Text, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """End what is pending under `id`. Whether something was, its receipt tells.

        `partition`: of the timer topic, for a timer that was placed otherwise than by its id; there alone.
        """
        if partition is not None:
            return self._ask(partition, id, cancel_headers(id))
        return self._send(id, id, None, cancel_headers(id))

    def partition_of(self, id: Text) -> int:  # noqa: A002
        """Where all that has this id meets. Raises BridgeError where no broker answers."""
        return partition_for(id, self._partitions or self._outbox.partitions(self._timer_topic))

    def move(
        self,
        id: Text,  # noqa: A002
        *,
        at: datetime | str | int | None = None,
        delay: timedelta | str | int | None = None,
        level: int | None = None,
        partition: int | None = None,
    ) -> "Future[Sent]":
        """What is pending under `id` becomes due then, earlier or later. Whether something was, its receipt tells.

        `partition`: of the timer topic, for a timer that was placed otherwise than by its id.
        """
        headers = move_headers(id, at=at, delay=delay, level=level)
        if partition is not None:
            return self._ask(partition, id, headers)
        first = self.partition_of(id)
        return _joined(self._ask(first, id, headers), self._ask_elsewhere(id, first, headers))

    def release(self, id: Text, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """What is pending under `id` becomes due now."""
        return self.move(id, delay=0, partition=partition)

    def cancel_everywhere(self, id: Text, *, but: int | None = None) -> "list[Future[Sent]]":  # noqa: A002
        """A cancel to each partition `but` one: for timers that were placed otherwise. Most receipts: `not-found`."""
        numbers = (number for number in range(self._outbox.partitions(self._timer_topic)) if number != but)
        return [self._ask(number, id, cancel_headers(id)) for number in numbers]

    def pause(self, topic: str) -> "list[Future[Sent]]":
        """Timers of this timer topic for `topic` wait until `resume`. Needs Write on the control topic."""
        return [self._control(Paused(self._timer_topic, topic))]

    def resume(self, topic: str) -> "list[Future[Sent]]":
        """What waits for `topic` goes on, as fast as its limit lets it. Needs Write on the control topic."""
        return [self._control(Paused(self._timer_topic, topic), on=False)]

    def skip(self, partition: int, offset: int) -> "Future[Sent]":
        """Ask the bridge to reject the record at this place of the timer topic, which it cannot decode, and to go on.

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
        """Brings a message that could not be handled back, 16 times at most: 10 s, 30 s, ... 2 h; then `DLQ.<group>`.

        Levels 3 to 18, as RocketMQ's consumers do. Commit the message's offset when the future is done. It returns to
        its own topic, where every group sees it: `timer-retry-group` tells for whom; or give the group a `topic`.
        """
        retry = retry_of(message, group=group, topic=topic, secret=self._retry_secret)
        if retry.topic is not None:
            return self._outbox.send(retry.topic, -1, retry.key, retry.value, retry.headers)
        return self._send(retry.id, retry.key, retry.value, retry.headers)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all is acknowledged. Raises BridgeError if any since the last flush was not taken."""
        self._outbox.flush(timeout_s)

    @property
    def is_broken(self) -> bool:
        """Behind a fatal error of its Kafka client nothing more is sent, and all futures raise: make a new one."""
        return self._outbox.is_broken

    def close(self) -> None:
        """Ends it, without a word about what was not taken: `flush` first."""
        self._outbox.close()

    def _ask(self, partition: int, id_: Text, headers: Headers) -> "Future[Sent]":
        """Send a request that has no value to a partition of the timer topic."""
        return self._outbox.send(self._timer_topic, partition, _raw(id_), None, headers)

    def _send(self, id_: Text | None, key: Text | None, value: Text | None, headers: Headers) -> "Future[Sent]":
        topic, raw_key = self._timer_topic, None if key is None else _raw(key)
        partition = -1 if id_ is None else self.partition_of(id_)
        # Before it: whoever sends again what was not acknowledged must not leave two.
        ended = [] if id_ is None else self._ask_elsewhere(id_, partition, cancel_headers(id_))
        raw_value = None if value is None else _raw(value)
        return _joined(self._outbox.send(topic, partition, raw_key, raw_value, headers), ended)

    def _ask_elsewhere(self, id_: Text, partition: int, headers: Headers) -> "list[Future[Sent]]":
        """Send it to where this id stands by the other count, if that is not `partition` and is there yet."""
        if self._other_partitions is None:
            return []
        other = partition_for(id_, self._other_partitions)
        is_there = other != partition and other < self._outbox.partitions(self._timer_topic)
        return [self._ask(other, id_, headers)] if is_there else []


def _joined(sent: "Future[Sent]", others: "Sequence[Future[Sent]]") -> "Future[Sent]":
    """Where `sent` was acknowledged, once all are; the first failure where one is not."""
    if not others:
        return sent
    whole: Future[Sent] = Future()
    whole.set_running_or_notify_cancel()
    waiting, lock = {sent, *others}, threading.Lock()

    def told(future: "Future[Sent]") -> None:
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
        each.add_done_callback(told)
    return whole


def _kafka(config: Mapping[str, Any]) -> Outbox:
    from bridge.kafka import ConfluentOutbox  # only here: headers alone need no librdkafka

    return ConfluentOutbox(config)


def _checked(ours: Headers) -> Headers:
    """As they are. Raises ValueError where the bridge would refuse them."""
    asked = parse(ours, 0, _ANYTHING)
    if isinstance(asked, Refusal):
        raise ValueError(f"{asked.code}: {asked.detail}")
    return ours


def _raw(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _foreign(headers: Pairs) -> Headers:
    kept: Headers = []
    for name, value in headers:
        if name in CONTROL:
            raise ValueError(f"header {name} is the bridge's: say it with an argument, or name yours otherwise")
        kept.append((name, None if value is None else _raw(value)))
    return kept


def _time(
    at: datetime | str | int | None, delay: timedelta | str | int | None, level: int | None
) -> tuple[str, bytes | None]:
    if (at is not None) + (delay is not None) + (level is not None) != 1:
        raise ValueError("when: give one of at, delay and level")
    if at is not None:
        return DELIVER_MS, b"%d" % _instant_ms("at", at)
    if delay is None:
        return DELAY_LEVEL, b"%d" % (level or 0)
    try:
        return DELAY_MS, b"%d" % _delay_ms(delay)
    except ValueError as wrong:
        raise ValueError(f"delay: {wrong}") from wrong


def _instant_ms(name: str, at: datetime | str | int) -> int:
    try:
        return _at_ms(at)
    except ValueError as wrong:
        raise ValueError(f"{name}: {wrong}") from wrong


def _at_ms(at: datetime | str | int) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{at} has no zone: give it one, such as datetime.UTC")
        return _whole_ms(at - datetime(1970, 1, 1, tzinfo=UTC))
    return parse_instant_ms(at) if isinstance(at, str) else _whole(at)


def _delay_ms(delay: timedelta | str | int) -> int:
    if isinstance(delay, timedelta):
        return _whole_ms(delay)
    return parse_duration_ms(delay) if isinstance(delay, str) else _whole(delay)


def _whole(ms: int) -> int:
    """Of a float the part behind the point would be cut off, which is early."""
    try:
        return index(ms)
    except TypeError:
        raise ValueError(f"{ms!r} is no int: give whole milliseconds, rounded up") from None


def _whole_ms(span: timedelta) -> int:
    """Rounded up, as a part of a millisecond less would be early."""
    return -(-span // timedelta(milliseconds=1))


def _count(value: bytes | None) -> int:
    """0 where it is no number: somebody else's header, or none."""
    return int(value) if value is not None and value.isdigit() and len(value) <= 9 else 0
