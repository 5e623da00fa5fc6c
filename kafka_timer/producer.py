"""Send requests to a timer topic, and retries of consumed messages."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from kafka_timer.control import DEFAULT_TOPIC as DEFAULT_CONTROL_TOPIC
from kafka_timer.control import Key, Paused, Skipped, control_record
from kafka_timer.errors import SettingsError
from kafka_timer.origin import TimerPartition
from kafka_timer.outcomes import Outcome, Outcomes
from kafka_timer.requests import (
    Delivery,
    Headers,
    Pairs,
    Sent,
    Text,
    cancel_headers,
    headers_for,
    move_headers,
    pairs_of,
    partition_for,
    pause_timer_headers,
    resume_timer_headers,
    to_bytes,
)
from kafka_timer.retry import DEFAULT_POLICY, Message, RetryPolicy, belongs_to, retry_of

if TYPE_CHECKING:
    from typing import Self, Unpack  # new in Python 3.11

    from kafka_timer.kafka_client import Serializer

M = TypeVar("M")


class Outbox(Protocol):
    """Sends records. kafka_timer.kafka_client.ConfluentOutbox implements it."""

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        """Send a record; partition -1: chosen by the key. The future raises BridgeError if the broker refuses it.

        Raises BridgeError if it is closed.
        """

    def partitions(self, topic: str) -> int:
        """Return the number of partitions. Raises BridgeError if there is no such topic, or no broker answers."""

    def flush(self, timeout_s: float | None) -> None:
        """Wait for all acknowledgements. Raises BridgeError if a record since the last flush was refused."""

    @property
    def is_broken(self) -> bool:
        """True if it can send nothing more."""

    def close(self, timeout_s: float | None = None) -> None:
        """Send what is queued, as far as it is acknowledged in time, and close. Futures of the rest raise."""


class TimerProducer:
    """Sends requests to one timer topic. Safe to use from several threads.

    config: that of confluent_kafka, at least `bootstrap.servers`; idempotent unless it says otherwise. Methods return
    at once; the future returns the position of the acknowledged request, or raises kafka_timer.BridgeError. The
    receipts topic says what the bridge did with the request. After `close`, methods raise BridgeError.

    While a timer topic grows (docs/timer-topics.md): `partitions` is the number that ids are placed by, by default the
    topic's. `other_partitions` is the number that other producers place the same ids by: a request with an id then
    also ends what is pending in that partition.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timer_topic: str = "timer.requests",
        retry_secret: Text = b"",
        trace_header: str | None = None,
        partitions: int | None = None,
        other_partitions: int | None = None,
        key_serializer: "Serializer | None" = None,
        value_serializer: "Serializer | None" = None,
        error_close_s: float = 5.0,
        outcomes: Outcomes | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`retry_secret`: for `retry_later`, see `retry_of`.

        key_serializer, value_serializer: as confluent_kafka's; `schedule` and `replace` call them with the target.
        error_close_s: `with`, if left by an error, waits this long for acknowledgements.
        trace_header: such as `timer-trace-id`; each message of `schedule` and `replace` without this header gets a
        random id in it, by which the audit follows the message.
        outcomes: follows what becomes of requests, for `outcome` and `answer`. It is closed with this object.
        outbox: replaces Kafka in tests. Raises SettingsError if `config` is invalid.
        """
        if any(count is not None and count < 1 for count in (partitions, other_partitions)):
            text = f"partitions {partitions}, other_partitions {other_partitions}"
            raise SettingsError(f"{text}: give 1 or more, or None")
        self._timer_topic, self._retry_secret, self._trace_header = timer_topic, retry_secret, trace_header
        self._partitions, self._other_partitions = partitions, other_partitions
        self._serializers = key_serializer, value_serializer
        self.error_close_s = error_close_s
        self._outcomes = outcomes
        if outbox is None:
            from kafka_timer.kafka_client import ConfluentOutbox  # only here: headers alone need no librdkafka

            outbox = ConfluentOutbox(config)
        self._outbox = outbox

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            moved = "pause, resume, skip: use kafka_timer.TimerOperator, or pause_timer and resume_timer for one timer"
            raise AttributeError(f"{type(self).__name__} has no {name}; {moved}", name=name, obj=self)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close(self.error_close_s)

    def schedule(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Pairs = (),
        id: Text | None = None,  # noqa: A002
        **delivery: "Unpack[Delivery]",
    ) -> "Future[Sent]":
        """Deliver `value` to `topic` at that time. An `id` replaces what is pending under it. See `headers_for`.

        key, value: bytes, str (sent as UTF-8) or None; or whatever their serializer takes.
        """
        key, value, pairs = self._message(topic, key, value, headers)
        return self._send(id, key, value, headers_for(topic, id=id, headers=pairs, **delivery))

    def replace(
        self,
        id: Text,  # noqa: A002
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Pairs = (),
        **delivery: "Unpack[Delivery]",
    ) -> "Future[Sent]":
        """As `schedule` with an id, but the receipt says if nothing was pending."""
        key, value, pairs = self._message(topic, key, value, headers)
        return self._send(id, key, value, headers_for(topic, id=id, replace=True, headers=pairs, **delivery))

    def replace_everywhere(self, /, id: Text, topic: str, value: Any, **asked: Any) -> "list[Future[Sent]]":  # noqa: A002
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
        return self._send_about(id, partition, cancel_headers(id))

    def partition_of(self, id: Text) -> int:  # noqa: A002
        """Return the partition for this id. Raises BridgeError if no broker answers."""
        return partition_for(id, self._partitions or self._outbox.partitions(self._timer_topic))

    def move(
        self,
        id: Text | Sent,  # noqa: A002
        *,
        at: datetime | str | int | None = None,
        delay: timedelta | str | None = None,
        level: int | None = None,
        partition: int | None = None,
    ) -> "Future[Sent]":
        """Move what is pending under `id` to another due time, earlier or later. The receipt says if something was.

        id, partition: see `cancel`.
        """
        return self._send_about(id, partition, move_headers(id, at=at, delay=delay, level=level))

    def release(self, id: Text | Sent, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """Make what is pending under `id` due now. See `cancel`."""
        return self.move(id, delay="0", partition=partition)

    def pause_timer(self, id: Text | Sent, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """Pause what is pending under `id` until `resume_timer`, a move or a replacement. See `cancel`."""
        return self._send_about(id, partition, pause_timer_headers(id))

    def resume_timer(self, id: Text | Sent, *, partition: int | None = None) -> "Future[Sent]":  # noqa: A002
        """Resume what is paused under `id`: it keeps its due time, so it is released at once if that has passed."""
        return self._send_about(id, partition, resume_timer_headers(id))

    def cancel_everywhere(self, id: Text, *, but: int | None = None) -> "list[Future[Sent]]":  # noqa: A002
        """Cancel in each partition `but` one, for timers that were not placed by id. Most receipts are `not-found`."""
        numbers = (number for number in range(self._outbox.partitions(self._timer_topic)) if number != but)
        return [self._send_empty(number, id, cancel_headers(id)) for number in numbers]

    def handle(
        self,
        message: M,
        work: Callable[[M], object],
        *,
        group: str,
        topic: str | None = None,
        policy: RetryPolicy = DEFAULT_POLICY,
        timeout_s: float = 30.0,
    ) -> Sent | None:
        """Call `work(message)`; if it raises, send the message again later. Leave out retries of other groups.

        Returns the position of the retry, None if there is none; then commit the message's offset. Raises BridgeError
        if the retry is refused, TimeoutError if it is not acknowledged in time: do not commit then. See `retry_later`.
        """
        if not belongs_to(message, group):
            return None
        try:
            work(message)
        except Exception as error:  # noqa: BLE001  (after any error, the message must not be lost)
            return self.retry_later(message, group=group, topic=topic, policy=policy, error=error).result(timeout_s)
        return None

    def retry_later(
        self,
        message: Message,
        *,
        group: str,
        topic: str | None = None,
        policy: RetryPolicy = DEFAULT_POLICY,
        error: BaseException | None = None,
    ) -> "Future[Sent]":
        """Send a message again after 10 s, 30 s, ... 2 h, at most 16 times; then to `DLQ.<group>`: see RetryPolicy.

        Commit the message's offset when the future is done. The message returns to its own topic, where every group
        reads it: `handle` and `belongs_to` leave out those of other groups. Or give the group a `topic` of its own.
        """
        retry = retry_of(message, group=group, topic=topic, secret=self._retry_secret, policy=policy, error=error)
        if retry.topic is not None:
            return self._outbox.send(retry.topic, -1, retry.key, retry.value, retry.headers)
        return self._send(retry.id, retry.key, retry.value, retry.headers)

    def outcome(self, request: Sent) -> "Future[Outcome]":
        """Return what became of a request: see `Outcomes.outcome`. Raises SettingsError without `outcomes`."""
        return self._followed().outcome(request)

    def answer(self, request: Sent) -> "Future[Outcome]":
        """Return what a request did at once: see `Outcomes.answer`. Raises SettingsError without `outcomes`."""
        return self._followed().answer(request)

    def _followed(self) -> Outcomes:
        if self._outcomes is None:
            raise SettingsError("outcomes: not followed; create TimerProducer(config, outcomes=Outcomes(config))")
        return self._outcomes

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all is acknowledged. Raises BridgeError if a request since the last flush was refused."""
        self._outbox.flush(timeout_s)

    @property
    def is_broken(self) -> bool:
        """True after a fatal error of its Kafka client: all futures raise, so create a new producer."""
        return self._outbox.is_broken

    def close(self, timeout_s: float | None = None) -> None:
        """Close it, without errors for unacknowledged requests: call `flush` first.

        timeout_s: the longest wait for acknowledgements; None: message.timeout.ms. The rest is not sent, and its
        futures raise BrokerUnavailableError, though a broker may have taken some of it.
        """
        self._outbox.close(timeout_s)
        if self._outcomes is not None:
            self._outcomes.close()

    def _message(self, topic: str, key: Any, value: Any, headers: Pairs) -> "tuple[Any, Any, Pairs]":
        """Return key and value, serialized, and the headers with a trace id."""
        pairs = pairs_of(headers)
        if self._trace_header is not None and all(name != self._trace_header for name, _ in pairs):
            pairs.append((self._trace_header, uuid4().hex))
        if any(self._serializers):
            from kafka_timer.kafka_client import serialized  # only here: as in `__init__`

            key, value = serialized(self._serializers, topic, key, value, pairs)
        return key, value, pairs

    def _send_empty(self, partition: int, id_: Text, headers: Headers) -> "Future[Sent]":
        return self._outbox.send(self._timer_topic, partition, to_bytes(id_), None, headers)

    def _send_about(self, timer: Text | Sent, partition: int | None, headers: Headers) -> "Future[Sent]":
        """Send a request about a timer to the partition of its request, to `partition`, or to those of its id."""
        if isinstance(timer, Sent):
            if timer.topic != self._timer_topic:
                raise ValueError(f"{timer}: no request on {self._timer_topic}: use a producer for {timer.topic}")
            return self._outbox.send(self._timer_topic, timer.partition, None, None, headers)
        if partition is not None:
            return self._send_empty(partition, timer, headers)
        first = self.partition_of(timer)
        return _all_acknowledged(self._send_empty(first, timer, headers), self._send_elsewhere(timer, first, headers))

    def _send(self, id_: Text | None, key: Text | None, value: Text | None, headers: Headers) -> "Future[Sent]":
        raw_key = None if key is None else to_bytes(key, "key")
        raw_value = None if value is None else to_bytes(value, "value")
        partition = -1 if id_ is None else self.partition_of(id_)
        # First the cancel: a sender that repeats an unacknowledged request must not leave two timers.
        ended = [] if id_ is None else self._send_elsewhere(id_, partition, cancel_headers(id_))
        return _all_acknowledged(self._outbox.send(self._timer_topic, partition, raw_key, raw_value, headers), ended)

    def _send_elsewhere(self, id_: Text, partition: int, headers: Headers) -> "list[Future[Sent]]":
        """Send it to the partition by the other count too, if that differs and exists."""
        if self._other_partitions is None:
            return []
        other = partition_for(id_, self._other_partitions)
        is_there = other != partition and other < self._outbox.partitions(self._timer_topic)
        return [self._send_empty(other, id_, headers)] if is_there else []


class TimerOperator(TimerProducer):
    """A TimerProducer that also writes to the control topic, on which it needs Write."""

    def __init__(
        self, config: Mapping[str, Any], *, control_topic: str = DEFAULT_CONTROL_TOPIC, **options: Any
    ) -> None:
        """`options`: those of TimerProducer."""
        super().__init__(config, **options)
        self._control_topic = control_topic

    def pause(self, topic: str) -> "list[Future[Sent]]":
        """Let timers of this timer topic for `topic` wait until `resume`."""
        return [self._control(Paused(self._timer_topic, topic))]

    def resume(self, topic: str) -> "list[Future[Sent]]":
        """Release what waits for `topic`, within its rate limit."""
        return [self._control(Paused(self._timer_topic, topic), on=False)]

    def skip(self, partition: int, offset: int) -> "Future[Sent]":
        """Let the bridge reject the record at this offset of the timer topic, which it cannot decode, and go on.

        Raises ValueError if there is no such partition.
        """
        count = self._outbox.partitions(self._timer_topic)
        if not 0 <= partition < count:
            raise ValueError(f"{self._timer_topic}/{partition}: no such partition: it has {count}, from 0 on")
        return self._control(Skipped(TimerPartition(self._timer_topic, partition), offset))

    def _control(self, wanted: Key, *, on: bool = True) -> "Future[Sent]":
        key, value = control_record(wanted, on=on)
        return self._outbox.send(self._control_topic, 0, key, value, [])


def _all_acknowledged(sent: "Future[Sent]", others: "Sequence[Future[Sent]]") -> "Future[Sent]":
    """Return a future for `sent` that is done once all are acknowledged, or with the first failure."""
    if not others:
        return sent
    whole: Future[Sent] = Future()
    whole.set_running_or_notify_cancel()

    def on_done(_: "Future[Sent]") -> None:
        waiting = next((each for each in (*others, sent) if not each.done()), None)
        if waiting is not None:
            waiting.add_done_callback(on_done)
        elif failure := next(filter(None, (each.exception() for each in (*others, sent))), None):
            whole.set_exception(failure)
        else:
            whole.set_result(sent.result())

    on_done(sent)
    return whole
