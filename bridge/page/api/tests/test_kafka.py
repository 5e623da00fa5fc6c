"""ConfluentKafkaPort against a fake broker."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from bridge.config.settings import Settings, load
from bridge.errors import BrokerUnavailableError
from bridge.kafka import Retrier
from bridge.kafka.transactions.record_sender import TransactionContents
from bridge.page.api import kafka as real_kafka
from bridge.page.api.kafka import ConfluentKafkaPort
from bridge.ports import Outgoing, Record
from bridge.redrive.rules import Parked, RedriveFilter, RedrivePlan
from bridge.redrive.sender import ConfluentRedrive
from kafka_timer import kafka_client
from kafka_timer.origin import TimerPartition
from kafka_timer.tests.test_kafka_client import FATAL, Producer, failure, producers


def settings() -> Settings:
    return load({"bootstrap_servers": "127.0.0.1:1", "topics": {"timer.payments": {}}}, {}, None)


MARKS, RESENT = "timer.redriven", "timer.resent"


class Log:
    """Reader of the topics of marks; `asked`: the ranges that were read of the former one."""

    def __init__(self) -> None:
        self.resent: list[tuple[bytes, bytes]] = []
        self.firsts = [0, 0]
        self.marks: list[list[bytes | None]] = [[], []]
        self.is_there = True
        self.asked: list[tuple[int, int, int]] = []

    def partitions(self, topic: str) -> int | None:
        if topic == RESENT:
            return 9 if self.resent else None
        assert topic == MARKS
        return len(self.marks) if self.is_there else None

    def bounds(self, partition: TimerPartition) -> tuple[int, int]:
        if partition.topic == RESENT:
            assert partition.partition == 0
            return 0, len(self.resent)
        return self.firsts[partition.partition], len(self.marks[partition.partition])

    def requests(self, partition: TimerPartition, from_offset: int, to_offset: int) -> Iterator[list[Record]]:
        if partition.topic == RESENT:
            pairs = enumerate(self.resent[from_offset:to_offset], from_offset)
            yield [Record(number, 1_000, *pair, []) for number, pair in pairs]
            return
        values = self.marks[partition.partition]
        self.asked.append((partition.partition, from_offset, to_offset))
        for at in range(from_offset, to_offset, 100):
            numbers = range(at, min(at + 100, to_offset))
            yield [Record(number, 1_000, b"", values[number], []) for number in numbers]

    def read(self) -> list[tuple[int, int, int]]:
        asked, self.asked = self.asked, []
        return [each for each in asked if each[1] < each[2]]

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(real_kafka, "TopicHistory", lambda *_: made)
    return made


def test_markers_are_read_once(log: Log) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.marks = [[b"a%d" % number for number in range(1_000)], [b"b%d" % number for number in range(250)]]
    found = kafka.redriven()
    assert log.read() == [(0, 0, 1_000), (1, 0, 250)]
    assert all(mark in found for mark in (b"a0", b"a999", b"b0", b"b249"))
    assert not any(mark in found for mark in (b"a1000", b"b250", b""))
    assert b"a7" in kafka.redriven()
    assert log.read() == []
    log.marks[0] += [None, b"a1000"]
    found = kafka.redriven()
    assert log.read() == [(0, 1_000, 1_002)]
    assert all(mark in found for mark in (b"a0", b"a999", b"a1000", b"b249"))
    log.marks.append([b"c0"])
    log.firsts.append(0)
    assert b"c0" in kafka.redriven()
    assert log.read() == [(2, 0, 1)]


def test_marks_of_this_and_of_former_versions_count_but_those_of_other_jobs_do_not(log: Log) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.marks = [[b"old"], []]
    assert b"old" in kafka.redriven()
    log.resent = [(b"redrive/timer.rejected/0/1", b"new"), (b"backfill/t/0/1", b"other")]
    found = kafka.redriven()
    assert (b"old" in found, b"new" in found, b"other" in found) == (True, True, False)


def test_markers_of_a_recreated_topic_are_read_again(log: Log) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.marks, log.firsts = [[b"x"] * 20, [b"y"] * 5], [10, 0]
    assert b"x" in kafka.redriven()
    assert log.read() == [(0, 10, 20), (1, 0, 5)]
    log.marks = [[b"z"] * 3, [b"y"] * 5]  # its end went back
    log.firsts = [0, 0]
    found = kafka.redriven()
    assert (b"x" in found, b"y" in found, b"z" in found) == (False, True, True)
    assert log.read() == [(0, 0, 3), (1, 0, 5)]
    log.firsts = [2, 0]  # after retention alone no marker is read again
    assert b"z" in kafka.redriven()
    assert log.read() == []
    log.marks[0], log.firsts = [b"w"] * 9, [0, 0]  # its first offset went back
    assert b"w" in kafka.redriven()
    assert log.read() == [(0, 0, 9), (1, 0, 5)]
    log.is_there = False
    assert b"w" not in kafka.redriven()


def test_markers_that_were_not_read_to_the_end_are_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = ConfluentKafkaPort(settings())
    log.marks = [[b"a%d" % number for number in range(300)], []]

    def broken(partition: TimerPartition, from_offset: int, to_offset: int) -> Iterator[list[Record]]:
        yield [Record(0, 1_000, b"", b"a0", [])]
        raise BrokerUnavailableError("gone")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(log, "requests", broken)
        with pytest.raises(BrokerUnavailableError):
            kafka.redriven()
    assert b"a299" in kafka.redriven()
    assert log.read() == [(0, 0, 300)]


class Unfilled:
    """A redrive that no broker answers until it ends."""

    is_broken = False

    def __init__(self, retrier: Retrier) -> None:
        self._retrier = retrier
        self.is_asked, self.is_over = Event(), Event()

    def await_acknowledgements(self, batch: TransactionContents) -> None:
        del batch
        while not self.is_over.is_set():
            self.is_asked.set()
            self._retrier.wait("publishing", "nobody answers", 0)

    def settle(self, batch: TransactionContents) -> None:
        del batch

    def close(self) -> None:
        """Nothing is open."""


def test_a_redrive_that_waits_for_a_broker_ends_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = TimerPartition("timer.requests", 0)
    record = Parked(TimerPartition("timer.rejected", 0), 0, 1_000, "unknown-topic", origin, 0, "orders", None, 10)
    made: list[Unfilled] = []

    class Waiting(ConfluentRedrive):
        def begin(self) -> None:
            made.append(Unfilled(self._retrier))
            self._producer = made[0]  # type: ignore[assignment]
            begun.set()

        def look(self, selection: RedriveFilter) -> RedrivePlan:
            found = RedrivePlan(selection, ())
            found.add(record)
            return found

        def _requests(self, chunk: Sequence[Parked]) -> dict[Parked, Outgoing]:
            return {each: Outgoing(*each.partition, None, b"v", [], 0) for each in chunk}

    begun = Event()
    monkeypatch.setattr(real_kafka, "ConfluentRedrive", Waiting)
    kafka = ConfluentKafkaPort(settings())
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(kafka.redrive, {(record.place, record.offset)}, lambda _: None)
        assert begun.wait(30)
        try:
            assert made[0].is_asked.wait(30)
            kafka.close()
            with pytest.raises(BrokerUnavailableError, match="publishing"):
                sending.result(5)
        finally:
            made[0].is_over.set()


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
