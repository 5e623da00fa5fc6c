"""Fakes of confluent_kafka's clients that return what a broker rarely does: an error in the place of a record."""

import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from bridge.kafka import consumer, group, history, topics

TOPIC = "timer.requests"

# librdkafka's own errors begin with an underscore.
FATAL, PASSING, TIMED_OUT, AT_THE_END, BAD_COMPRESSION, NO_OFFSET, TOO_LONG, ALL_DOWN, SSL, LOG_TRUNCATION, STATE = (
    KafkaError(getattr(KafkaError, f"_{name}"))
    for name in (
        *("FATAL", "TRANSPORT", "TIMED_OUT", "PARTITION_EOF", "BAD_COMPRESSION", "AUTO_OFFSET_RESET"),
        *("MAX_POLL_EXCEEDED", "ALL_BROKERS_DOWN", "SSL", "LOG_TRUNCATION", "STATE"),
    )
)


def as_fatal(error: KafkaError) -> KafkaError:
    """Return a fatal error as librdkafka does, with its cause in the text alone."""
    return KafkaError(FATAL.code(), error.str())


def replace_clients(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], admin: Any = None) -> None:
    """Let every client that is made from now on be `admin`, if it is an admin client, else what `make` returns."""
    for module in (consumer, group, history, topics):
        monkeypatch.setattr(module, "make", lambda client, *_: admin if client is AdminClient else make())


class Timekeeper:
    """A clock that a sleep or the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self.pass_time)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds


def message(**fields: object) -> Any:
    """Return a message as confluent_kafka does: each field is a method."""

    def method(value: object) -> Callable[[], object]:
        return lambda: value

    return SimpleNamespace(**{name: method(value) for name, value in fields.items()})


def fetched(offset: int, error: KafkaError | None = None, headers: list[tuple[str, bytes | None]] | None = None) -> Any:
    """Return a record at an offset of the partition 0, or an error in the place of one."""
    place = {"topic": TOPIC, "partition": 0, "offset": offset, "timestamp": (2, 1_000)}
    return message(**place, key=None, value=b"%d" % offset, headers=headers, error=error)


class FakeConsumer:
    """Polls return `batches`, and `consume` the rest of the batch that a poll has begun."""

    def __init__(self, *batches: list[Any]) -> None:
        self.batches = list(batches)
        self.waits_s: list[float] = []
        self.pass_time: Callable[[float], object] = lambda seconds: None
        """Is called by a poll that has nothing to return."""
        self.begun: list[int] = []
        """Start offsets of the reads."""
        self.is_open = True
        self.bounds: tuple[int, int] | None = (0, 9)
        self.commits: list[Any] = []
        self.events = 0
        self.on_assign: Any = None
        self.on_lost: Any = None
        self._rest: list[Any] = []
        self.be(1, b"member")

    def be(self, generation: int, member: bytes) -> None:
        """Set generation and member id in the group metadata."""
        self._group_metadata = b"CGMDv2:" + struct.pack("=i", generation) + b"group\0" + member + b"\0\1"

    def consumer_group_metadata(self) -> bytes:
        return self._group_metadata

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        assert topics == [TOPIC]
        self.on_assign, self.on_lost = on_assign, on_lost

    def poll(self, timeout_s: float) -> Any:
        self.events = 0
        if not self.batches:
            self.waits_s.append(timeout_s)
            self.pass_time(timeout_s)
            return None
        first, *self._rest = self.batches.pop(0)
        return first

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        assert timeout_s == 0
        taken, self._rest = self._rest[:count], self._rest[count:]
        if self._rest:
            self.batches.insert(0, self._rest)
        return taken

    def committed(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        self.events += 1
        answer = self.commits.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, list) else [answer]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        if self.bounds is None:
            raise KafkaException(PASSING)
        return self.bounds

    def assign(self, places: list[TopicPartition]) -> None:
        self.begun += [place.offset for place in places]

    def seek(self, place: TopicPartition) -> None:
        self.begun.append(place.offset)

    def pause(self, places: list[TopicPartition]) -> None: ...

    incremental_assign = incremental_unassign = resume = pause

    def close(self) -> None:
        self.is_open = False


def future_of(what: object) -> "Future[Any]":
    """Return an answer of an admin client: a value or an error."""
    future: Future[Any] = Future()
    if isinstance(what, Exception):
        future.set_exception(what)
    else:
        future.set_result(what)
    return future


class FakeAdmin:
    """An admin client. As in librdkafka, one request has one answer, whose event waits for a poll.

    ends: by partition, the end as of now, or an error; other partitions get no answer. first: where all logs begin.
    The partitions with an even number have one leader, those with an odd number another.
    """

    def __init__(self, ends: dict[int, int | KafkaException] | None = None, first: int | None = 0) -> None:
        self.ends = ends or {}
        self.first = first
        self.answer: Any = SimpleNamespace(members=[])
        """To questions about groups and settings."""
        self.asked = self.events = 0
        self.requests: list[set[int]] = []
        """The partitions of each request for offsets."""

    def poll(self, timeout_s: float) -> int:
        self.events = 0
        failed = SystemError("returned a result with an exception set")  # an error of a callback as it leaves a poll
        failed.__cause__ = KafkaException(FATAL)
        raise failed

    def list_offsets(self, asked: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, Any]:
        self.events += 1
        answers: dict[TopicPartition, Any] = {place: Future() for place in asked}
        self.requests.append({place.partition for place in asked})
        for place, spec in asked.items() if self.requests[-1] <= self.ends.keys() else ():
            end = self.ends[place.partition]
            is_first = spec is OffsetSpec.earliest() and self.first is not None  # type: ignore[no-untyped-call]
            found = SimpleNamespace(offset=self.first if is_first else end, timestamp=end)
            answers[place] = future_of(end if isinstance(end, KafkaException) else found)
        return answers

    def list_topics(self, topic: str = "timers", timeout: float = 0) -> Any:
        self.events += 1
        numbers = range(2) if topic == "timers" else range(128)
        found = {number: SimpleNamespace(leader=number % 2) for number in numbers}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=found)})

    def describe_consumer_groups(self, names: Iterable[Any], request_timeout: float) -> dict[Any, Any]:
        self.asked += 1
        self.events += 1
        return dict.fromkeys(names, future_of(self.answer))

    describe_configs = describe_consumer_groups
