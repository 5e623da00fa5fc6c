"""A source at errors that librdkafka returns instead of a record, at a lost membership, and the pace of its reads."""

import logging
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, FencedError, InstanceIdInUseError, MembershipLostError
from bridge.kafka.consumer import HEADER_BYTES, MOST_HELD_BYTES, ConfluentSource
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import (
    BAD_COMPRESSION,
    LOG_TRUNCATION,
    NO_OFFSET,
    PASSING,
    TOO_LONG,
    TOPIC,
    FakeConsumer,
    Timekeeper,
    as_fatal,
    fetched,
    replace_clients,
)
from bridge.partition.request import MAX_HEADERS
from bridge.ports import Polled
from kafka_timer.origin import TimerPartition

PARTITION = TimerPartition(TOPIC, 0)
MINE = [TopicPartition(TOPIC, number) for number in range(2)]
Made = tuple[ConfluentSource, FakeConsumer]
Make = Callable[..., Made]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a source whose consumer returns the errors that it is given."""

    def make(*errors: KafkaError, pace_s: float = 0.0) -> Made:
        consumer = FakeConsumer(*([fetched(7, error)] for error in errors))
        replace_clients(monkeypatch, lambda: consumer)
        connection = Connection("127.0.0.1:1")
        return ConfluentSource(connection, [TOPIC], Retrier(), pace_s), consumer

    return make


# -- errors

GONE, FENCED = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE), KafkaError(KafkaError.FENCED_INSTANCE_ID)
TRUNCATED = KafkaError(NO_OFFSET.code(), f"x: {LOG_TRUNCATION.str()} (broker 1)")
NOT_THERE = r"timer\.requests/0: requests from offset 7 on are not there.*: start again"
TAKEN = r"timer\.requests/0: requests 7 to 8 .* gone.* start again: the bridge goes on with what is left"
CUT = r"timer\.requests/0 has lost its end below offset 7, .* ends at {} now.*--delete-offsets .*--adopt-progress"


@pytest.mark.parametrize(
    ("error", "kind", "told", "bounds"),
    [
        (FENCED, FencedError, "another process runs with this instance's id", None),
        (as_fatal(FENCED), FencedError, "another process runs with this instance's id", None),
        (KafkaError(KafkaError.UNRELEASED_INSTANCE_ID), InstanceIdInUseError, "waiting for its session's end", None),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), BridgeError, "reading the timer topic", None),
        (GONE, BridgeError, NOT_THERE, None),
        (GONE, BridgeError, NOT_THERE, (0, 9)),
        (GONE, BridgeError, TAKEN, (9, 12)),
        (NO_OFFSET, BridgeError, TAKEN, (9, 12)),
        (GONE, BridgeError, CUT.format(5), (0, 5)),
        (TRUNCATED, BridgeError, CUT.format(50), (0, 50)),
    ],
)
def test_an_error_instead_of_a_record_ends_a_poll_with_the_remedy(
    error: KafkaError, kind: type[Exception], told: str, bounds: tuple[int, int] | None, make: Make
) -> None:
    source, consumer = make(error)
    consumer.bounds = bounds
    with pytest.raises(kind, match=told):
        source.poll(0, 10)


def test_a_passing_error_is_logged_and_is_no_record(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    source, _ = make(PASSING, TOO_LONG, PASSING)
    with caplog.at_level(logging.WARNING):
        told = [source.poll(0, 10) for _ in range(3)]
    assert [(polled.records, bool(polled.ownership)) for polled in told] == [({}, False)] * 3
    assert "a turn took longer than max.poll.interval.ms" in caplog.text


def test_a_record_that_cannot_be_decoded_is_returned_until_the_partition_moves_on(make: Make) -> None:
    source, consumer = make(*[BAD_COMPRESSION] * 3)
    assert source.poll(0, 1).undecodable == {}, "of a partition that was not started nothing is told"
    consumer.on_assign(consumer, MINE[:1])
    source.start(PARTITION, 5)
    assert source.poll(0, 1).undecodable == {PARTITION: 7}, "markers lie between 5 and 7"
    consumer.batches = [[fetched(7, BAD_COMPRESSION)]]
    source.rewind(PARTITION, 8)
    assert source.poll(0, 1).undecodable == {PARTITION: 8}, "a batch is told by its first offset"
    source.rewind(PARTITION, 9)
    assert source.poll(0, 1).undecodable == {}
    consumer.batches = [[fetched(7, BAD_COMPRESSION)]]
    assert source.poll(0, 1).undecodable == {PARTITION: 9}
    consumer.on_lost(consumer, MINE[:1])
    assert source.poll(0, 1).undecodable == {}


# -- membership


def test_all_partitions_are_lost_if_the_group_gave_a_new_member_id(make: Make) -> None:
    """librdkafka 2.16 may do this without a callback to a static member that was suspended past its session."""
    source, group = make()
    group.be(4, b"old")
    group.on_assign(group, MINE)
    assert [partition.partition for partition in source.poll(0, 10).ownership.assigned] == [0, 1]
    group.be(5, b"old")  # a rebalance
    source.poll(0, 10)
    states = [source.membership.is_member]
    group.be(5, b"")  # before it joins again
    source.poll(0, 10)
    group.be(-1, b"new")
    source.poll(0, 10)
    states.append(source.membership.is_member)
    assert states == [True, False]
    group.be(7, b"new")
    with pytest.raises(MembershipLostError, match=r"may have owned timer\.requests/0, timer\.requests/1"):
        source.poll(0, 10)


def test_a_new_member_id_after_a_reported_loss_is_no_error(make: Make) -> None:
    source, group = make()
    group.be(4, b"old")
    group.on_assign(group, MINE[:1])
    source.poll(0, 10)
    group.be(4, b"new")
    group.on_lost(group, MINE[:1])
    assert source.poll(0, 10).ownership.lost == [PARTITION]
    group.be(7, b"new")
    group.on_assign(group, MINE[:1])
    assert source.poll(0, 10).ownership.assigned == [PARTITION]


def test_an_assignment_that_a_close_reports_is_ignored(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source, group = make()

    def unavailable() -> bytes:
        raise RuntimeError("Consumer group metadata not available")

    monkeypatch.setattr(group, "consumer_group_metadata", unavailable)
    monkeypatch.setattr(group, "close", lambda: group.on_assign(group, MINE), raising=False)
    source.close()


# -- pace


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Timekeeper:
    return Timekeeper(monkeypatch)


def test_a_turn_that_comes_too_soon_waits_for_the_rest_of_the_interval(make: Make, keeper: Timekeeper) -> None:
    source, ends = make(pace_s=0.25)[0], []
    for later_s in (0.0, 0.25, 0.125, 0.0):
        keeper.pass_time(later_s)
        source.poll(0, 10)
        ends.append(keeper.now_s)
    assert ends == [1000.0, 1000.25, 1000.5, 1000.75]


def test_a_turn_waits_less_while_other_work_waits(make: Make, keeper: Timekeeper) -> None:
    source, consumer = make(pace_s=0.25)
    consumer.pass_time = keeper.pass_time
    ends = []
    for is_busy in (False, False, True, True, False):
        source.poll(0, 10, is_busy=is_busy)
        ends.append(round(keeper.now_s - 1000, 3))
    assert ends == [0, 0.25, 0.258, 0.266, 0.516]


def reading(make: Make, keeper: Timekeeper, count: int) -> Made:
    """Return a source with a pace of 0.25 s, at offset 0 of its partition, which has `count` records."""
    source, consumer = make(pace_s=0.25)
    consumer.pass_time = keeper.pass_time
    consumer.on_assign(consumer, MINE[:1])
    source.start(PARTITION, 0)
    source.poll(0, 0)
    consumer.waits_s.clear()
    consumer.batches = [[fetched(offset) for offset in range(count)]] if count else []
    return source, consumer


def offsets(polled: Polled) -> list[int]:
    return [record.offset for records in polled.records.values() for record in records]


def test_more_records_than_a_turn_takes_are_read_without_a_pause(make: Make, keeper: Timekeeper) -> None:
    source, _ = reading(make, keeper, 25)
    keeper.pass_time(1)
    began_s = keeper.now_s
    assert [len(offsets(source.poll(0, 10))) for _ in range(3)] == [10, 10, 5]
    assert keeper.now_s - began_s < 0.02
    assert source.poll(0, 10).has_read


def test_a_turn_without_room_reads_nothing_and_loses_nothing(make: Make, keeper: Timekeeper) -> None:
    source, _ = reading(make, keeper, 3)
    polled = source.poll(500, 0)
    assert (offsets(polled), polled.has_read) == ([], False)
    assert offsets(source.poll(0, 10)) == [0, 1, 2]


def test_a_record_of_many_headers_ends_a_read_and_its_partition_is_read_again_after_it(
    make: Make, keeper: Timekeeper
) -> None:
    """Its later messages may be as large, and messages of other partitions must not wait for them."""
    source, consumer = reading(make, keeper, 0)
    bomb = fetched(1, headers=[("a", None)] * (MAX_HEADERS + 1))
    consumer.batches = [[fetched(0), bomb, fetched(2)], [fetched(2), fetched(3)]]
    assert offsets(source.poll(0, 10)) == [0, 1]
    assert consumer.begun == [2], "later messages of its partition are fetched again"
    assert offsets(source.poll(0, 10)) == [2, 3]


def test_a_read_stops_when_a_turn_has_no_memory_for_more(make: Make, keeper: Timekeeper) -> None:
    source, consumer = reading(make, keeper, 0)
    many: list[tuple[str, bytes | None]] = [("a", None)] * MAX_HEADERS
    consumer.batches = [[fetched(offset, headers=many) for offset in range(1000)]]
    read = [len(offsets(source.poll(0, 2000))) for _ in range(20)]
    most = MOST_HELD_BYTES // (MAX_HEADERS * HEADER_BYTES)
    assert read[0] in range(most, most + 32)
    assert sum(read) == 1000


def test_an_idle_consumer_wakes_up_less_often_until_something_comes(make: Make, keeper: Timekeeper) -> None:
    source, consumer = reading(make, keeper, 0)
    source.poll(3000, 10)
    assert (consumer.waits_s[0], max(consumer.waits_s)) == (0.02, 0.1)
    before_s = keeper.now_s
    source.wake()
    source.poll(3000, 10)
    assert keeper.now_s - before_s < 0.25 + 0.101  # the pace, and one wait
    consumer.waits_s.clear()
    source.poll(500, 10)
    assert consumer.waits_s[0] == 0.02
