"""ConfluentKafkaPort against a fake broker."""

from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from bridge.config.settings import Settings, load
from bridge.errors import BrokerUnavailableError
from bridge.page.api import kafka as real_kafka
from bridge.page.api.kafka import ConfluentKafkaPort
from bridge.ports import Record
from bridge.redrive.rules import Parked, RedriveFilter, RedrivePlan
from bridge.redrive.sender import ConfluentRedrive, RedriveResult
from bridge.testing import FakeHistory
from bridge.testing.fake_kafka import FakeGroup, FakeKafka, Timeline
from kafka_timer import kafka_client
from kafka_timer.origin import TimerPartition
from kafka_timer.tests.test_kafka_client import FATAL, Producer, failure, producers


def settings() -> Settings:
    return load({"bootstrap_servers": "127.0.0.1:1", "topics": {"timer.payments": {}}}, {}, None)


MARKS = "timer.redriven"


class Log(FakeHistory):
    """Reader of the topics of marks; `asked`: the ranges that were read of the former one."""

    def __init__(self) -> None:
        super().__init__(FakeKafka(Timeline()), FakeGroup("group", []), MARKS)
        self.kafka.create(MARKS, 2)
        self.asked: list[tuple[int, int, int]] = []

    def mark(self, partition: int, *values: bytes | None) -> None:
        for value in values:
            self.kafka.produce(MARKS, value, key=b"", partition=partition)

    def partitions(self, topic: str) -> int | None:
        return len(self.kafka.topics[topic].partitions) if topic in self.kafka.topics else None

    def requests(
        self, partition: TimerPartition, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        if partition.topic == MARKS and from_offset < to_offset:
            self.asked.append((partition.partition, from_offset, to_offset))
        return super().requests(partition, from_offset, to_offset, skipped)

    def read(self) -> list[tuple[int, int, int]]:
        asked, self.asked = self.asked, []
        return asked

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(real_kafka, "TopicHistory", lambda *_: made)
    return made


def test_markers_are_read_once(log: Log) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.mark(0, *(b"a%d" % number for number in range(1_000)))
    log.mark(1, *(b"b%d" % number for number in range(250)))
    found = kafka.redriven()
    assert log.read() == [(0, 0, 1_000), (1, 0, 250)]
    assert all(mark in found for mark in (b"a0", b"a999", b"b0", b"b249"))
    assert not any(mark in found for mark in (b"a1000", b"b250", b""))
    assert b"a7" in kafka.redriven()
    assert log.read() == []
    log.mark(0, None, b"a1000")
    found = kafka.redriven()
    assert log.read() == [(0, 1_000, 1_002)]
    assert all(mark in found for mark in (b"a0", b"a999", b"a1000", b"b249"))
    log.kafka.grow(MARKS, 3)
    log.mark(2, b"c0")
    assert b"c0" in kafka.redriven()
    assert log.read() == [(2, 0, 1)]


def test_marks_of_this_and_of_former_versions_count_but_those_of_other_jobs_do_not(log: Log) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.mark(0, b"old")
    assert b"old" in kafka.redriven()
    log.kafka.create("timer.resent", 9)
    for key, value in ((b"redrive/timer.rejected/0/1", b"new"), (b"backfill/t/0/1", b"other")):
        log.kafka.produce("timer.resent", value, key=key, partition=0)
    found = kafka.redriven()
    assert (b"old" in found, b"new" in found, b"other" in found) == (True, True, False)


def test_markers_of_a_recreated_topic_are_read_again(log: Log) -> None:
    kafka, first = ConfluentKafkaPort(settings()), TimerPartition(MARKS, 0)
    log.mark(0, *[b"x"] * 20)
    log.mark(1, *[b"y"] * 5)
    log.kafka.partition(first).delete_before(10)
    assert b"x" in kafka.redriven()
    assert log.read() == [(0, 10, 20), (1, 0, 5)]
    log.kafka.create(MARKS, 2)  # its end went back
    log.mark(0, *[b"z"] * 3)
    log.mark(1, *[b"y"] * 5)
    found = kafka.redriven()
    assert (b"x" in found, b"y" in found, b"z" in found) == (False, True, True)
    assert log.read() == [(0, 0, 3), (1, 0, 5)]
    log.kafka.partition(first).delete_before(2)  # after retention alone no marker is read again
    assert b"z" in kafka.redriven()
    assert log.read() == []
    log.kafka.create(MARKS, 2)  # its first offset went back
    log.mark(0, *[b"w"] * 9)
    log.mark(1, *[b"y"] * 5)
    assert b"w" in kafka.redriven()
    assert log.read() == [(0, 0, 9), (1, 0, 5)]
    del log.kafka.topics[MARKS]
    assert b"w" not in kafka.redriven()


def test_markers_that_were_not_read_to_the_end_are_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.mark(0, *(b"a%d" % number for number in range(300)))

    def broken(partition: TimerPartition, from_offset: int, to_offset: int) -> Iterator[list[Record]]:
        yield [Record(0, 1_000, b"", b"a0", [])]
        raise BrokerUnavailableError("gone")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(log, "requests", broken)
        with pytest.raises(BrokerUnavailableError):
            kafka.redriven()
    assert b"a299" in kafka.redriven()
    assert log.read() == [(0, 0, 300)]


def test_a_redrive_that_waits_for_a_broker_ends_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    origin, begun, over = TimerPartition("timer.requests", 0), Event(), Event()
    record = Parked(TimerPartition("timer.rejected", 0), 0, 1_000, "unknown-topic", origin, 0, "orders", None, 10)

    class Waiting(ConfluentRedrive):
        def begin(self) -> None:
            begun.set()

        def look(self, selection: RedriveFilter) -> RedrivePlan:
            found = RedrivePlan(selection, ())
            found.add(record)
            return found

        def apply(
            self, records: Sequence[Parked], on_sent: Callable[[Sequence[Parked]], None] = lambda _: None
        ) -> RedriveResult:
            while not over.is_set():
                self._retrier.wait("publishing", "nobody answers", 0)
            return RedriveResult()

    monkeypatch.setattr(real_kafka, "ConfluentRedrive", Waiting)
    kafka = ConfluentKafkaPort(settings())
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(kafka.redrive, {(record.place, record.offset)}, lambda _: None)
        assert begun.wait(30)
        try:
            kafka.close()
            with pytest.raises(BrokerUnavailableError, match="publishing"):
                sending.result(5)
        finally:
            over.set()


def test_the_page_makes_another_client_after_a_fatal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "Producer", Producer)
    kafka = ConfluentKafkaPort(settings())
    first = kafka.producer("timer.requests")
    assert kafka.producer("timer.requests") is first
    producers[-1].fail(FATAL)
    failure(first.schedule("orders", b"v", delay="1h"))
    second = kafka.producer("timer.requests")
    assert second is not first
    assert not second.is_broken
    kafka.close()
