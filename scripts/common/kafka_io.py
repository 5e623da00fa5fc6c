"""Kafka clients of the scripts.

TimerSender -> any topic            idempotent, not transactional: a usual producer
Receiver    <- target topics        read_committed
Admin       <- topics, ends, progress
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self, TypeVar
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from bridge.errors import BridgeError
from bridge.kafka.client_config import REPLACED_AFTER_S
from kafka_timer import Headers
from kafka_timer import headers as names
from kafka_timer.kafka_client import reported

BROKER_CLOCK = {"message.timestamp.type": "LogAppendTime"}
_TIMEOUT_S = 60.0
T = TypeVar("T")
QUIET = {"log_level": 2}  # without messages about brokers that the scripts stop


class TimerRequest(NamedTuple):
    """A record for the timer topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Delivery(NamedTuple):
    """A delivered record. `appended_ms`: by the broker's clock."""

    topic: str
    origin: bytes
    due_ms: int
    appended_ms: int


class OffsetRange(NamedTuple):
    """Offsets [begin, end) of one partition."""

    topic: str
    partition: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def timer(target: str, due_ms: int, value: bytes, key: bytes | None = None) -> TimerRequest:
    return TimerRequest(key, value, [(names.TOPIC, target.encode()), (names.DELIVER_MS, b"%d" % due_ms)])


def named_timer(target: str, due_ms: int, value: bytes, id_: bytes) -> TimerRequest:
    """Return a request with an id that is its key, too, so that a cancel reaches its partition."""
    unnamed = timer(target, due_ms, value, id_)
    return unnamed._replace(headers=[*unnamed.headers, (names.ID, id_)])


class Admin:
    """Admin client. Methods raise BridgeError if the broker does not answer."""

    def __init__(self, bootstrap_servers: str, security: Mapping[str, str] = {}) -> None:
        self._address: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, **QUIET, **security}
        self._client = AdminClient(self._address)
        self._consumers: dict[str, Consumer] = {}

    def create_topics(
        self, topics: Iterable[str], *, partitions: int, settings: Mapping[str, str] = BROKER_CLOCK, copies: int = 1
    ) -> None:
        asked = [NewTopic(topic, partitions, copies, config=dict(settings)) for topic in topics]
        with kafka_errors("topics could not be created"):
            for created in self._client.create_topics(asked, request_timeout=_TIMEOUT_S).values():
                created.result(_TIMEOUT_S)

    def ends(self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[int, int]:
        def look() -> dict[int, int]:
            asked = {place: OffsetSpec.latest() for place in self._partitions(topic)}  # type: ignore[no-untyped-call]
            found = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_S)
            return {place.partition: reported(answer.result(_TIMEOUT_S)).offset for place, answer in found.items()}

        return _repeated(f"the ends of {topic} could not be read", look)

    def await_quiet(
        self, topics: Sequence[str], quiet_s: float, give_up_s: float, demand_alive: Callable[[], None]
    ) -> bool:
        """Wait until these topics have records, and no more have been committed for a while. False if it gives up."""
        seen, since_s, until_s = list[dict[int, int]](), time.monotonic(), time.monotonic() + give_up_s
        while time.monotonic() < until_s:
            demand_alive()
            found = [self.ends(topic) for topic in topics]
            if found != seen or not any(sum(ends.values()) for ends in found):
                seen, since_s = found, time.monotonic()
            elif time.monotonic() >= since_s + quiet_s:
                return True
            time.sleep(0.2)
        return False

    def ranges_since(self, topic: str, begins: Mapping[int, int]) -> list[OffsetRange]:
        return [OffsetRange(topic, number, begins[number], end) for number, end in self.ends(topic).items()]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets; partitions without one are left out.

        By a consumer, not the admin client: librdkafka 2.16 crashes (SIGSEGV) if the coordinator has just moved.
        """

        def look() -> dict[int, int]:
            places = self._consumers[group].committed(self._partitions(topic), _TIMEOUT_S)
            return {place.partition: place.offset for place in places if place.offset >= 0}

        if group not in self._consumers:
            self._consumers[group] = Consumer({**self._address, "group.id": group})
        return _repeated(f"the offsets of group {group} could not be read", look)

    def _partitions(self, topic: str) -> list[TopicPartition]:
        described = self._client.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        return [TopicPartition(topic, number) for number in described.partitions]


class TimerSender:
    """Sends without waiting; `flush` waits, and raises BridgeError if a record was not acknowledged."""

    def __init__(self, bootstrap_servers: str) -> None:
        sizes = {"linger.ms": 5, "batch.num.messages": 10_000, "queue.buffering.max.messages": 1_000_000, **QUIET}
        self._producer: Any = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, **sizes})
        self._failed: object = None

    def send(self, topic: str, request: TimerRequest) -> None:
        """Send to the key's partition. Waits while the queue is full."""
        key, value, headers = request
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=self._acknowledged)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def send_all(self, topic: str, requests: Iterable[TimerRequest], per_s: float = 0) -> None:
        """Send all and wait for them. per_s: the pace; without one or behind it, as fast as possible."""
        begin_s = time.monotonic()
        for count, request in enumerate(requests):
            if per_s and (early_s := begin_s + count / per_s - time.monotonic()) > 0:
                self.serve()
                time.sleep(max(early_s, 0.002))
            self.send(topic, request)
            if count % 200 == 0:
                self.serve()
        self.flush()

    def serve(self) -> None:
        self._producer.poll(0)
        if self._failed is not None:
            raise BridgeError(f"a request could not be sent: {self._failed}")

    def flush(self) -> None:
        left = self._producer.flush(_TIMEOUT_S)
        self.serve()
        if left:
            raise BridgeError(f"{left} requests were not acknowledged within {_TIMEOUT_S:.0f} s")

    def _acknowledged(self, error: object, _message: Message) -> None:
        if error is not None:
            self._failed = error


def send_all(bootstrap_servers: str, topic: str, requests: Iterable[TimerRequest]) -> list[OffsetRange]:
    """Send the requests and return their offsets. There must be no other producer to `topic`."""
    admin = Admin(bootstrap_servers)
    begins = admin.ends(topic)
    TimerSender(bootstrap_servers).send_all(topic, requests)
    return admin.ranges_since(topic, begins)


class Receiver:
    """Reads target topics from their beginning, read_committed. Its group never commits offsets."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-{uuid4().hex[:8]}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # a new leader may not know yet where its log begins
            "queued.min.messages": 50_000,
            **QUIET,
        }
        self._consumer = Consumer(self._settings)
        with kafka_errors("the target topics could not be listed"):
            described, end_s = dict[str, Any](), time.monotonic() + _TIMEOUT_S
            while not described.keys() >= set(topics) and time.monotonic() < end_s:  # not every broker knows a new one
                described = self._consumer.list_topics(timeout=_TIMEOUT_S).topics
        self._next = {(t, number): OFFSET_BEGINNING for t in topics for number in described[t].partitions}
        self._assign()

    def _assign(self) -> None:
        self._quiet_s = time.monotonic()
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in self._next.items()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self, timeout_s: float) -> list[Delivery]:
        """Return `messages` as deliveries."""
        return [_delivery(message) for message in self.messages(timeout_s)]

    def messages(self, timeout_s: float) -> list[Message]:
        """Wait for one record, then return all that have arrived. Raises BridgeError."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            if time.monotonic() - self._quiet_s > REPLACED_AFTER_S:  # as the bridge does with its clients
                self._consumer.close()
                self._consumer = Consumer(self._settings)
                self._assign()
            return []
        messages: list[Any] = [first, *self._consumer.consume(10_000, 0)]
        for message in messages:
            if message.error() is not None:
                raise BridgeError(f"a topic could not be read: {message.error()}")
        self._quiet_s = time.monotonic()
        self._next |= {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
        return messages


def _delivery(message: Message) -> Delivery:
    headers: dict[str, Any] = dict(message.headers() or [])
    _, appended_ms = message.timestamp()
    origin, due_ms = headers.get(names.ORIGIN, b""), int(headers.get(names.DELIVER_MS, 0))
    return Delivery(str(message.topic()), origin, due_ms, appended_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _repeated(what: str, look: Callable[[], T]) -> T:
    """Retry `look`: a broker cannot answer for a new topic or group at once."""
    until_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until_s:
        with suppress(KafkaException):
            return look()
        time.sleep(0.05)
    with kafka_errors(what):
        return look()


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as wrong:
        raise BridgeError(f"{what}: {wrong.args[0]}") from wrong
