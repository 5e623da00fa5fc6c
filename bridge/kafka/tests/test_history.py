"""Errors of librdkafka during a read of Kafka's topics. What a broker shows too is in the contract of the ports."""

import logging
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, BrokerUnavailableError, PartitionUnreadableError
from bridge.kafka import client_config as clients
from bridge.kafka.history import ConfluentHistory
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import (
    AT_THE_END,
    BAD_COMPRESSION,
    PASSING,
    TIMED_OUT,
    TOPIC,
    FakeAdmin,
    FakeConsumer,
    Timekeeper,
    fetched,
    replace_clients,
)
from bridge.ports import Record
from kafka_timer.origin import TimerPartition
from schemas.progress import Key, Progress

PLACE = TimerPartition(TOPIC, 0)
GONE, DELETED, DENIED = map(
    KafkaError,
    (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED),
)
UNSTABLE = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
Make = Callable[..., ConfluentHistory]


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin({0: 3})


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin) -> Make:
    """Return a function that makes a history. Its reads take the consumers one by one, then the last for all."""

    def make(
        *consumers: FakeConsumer, limit_s: float | None = None, retrier: Retrier | None = None
    ) -> ConfluentHistory:
        left = iter([consumers[0], *consumers])  # the first is for questions too
        replace_clients(monkeypatch, lambda: next(left, consumers[-1]), admin)
        return ConfluentHistory(Connection("127.0.0.1:1"), {TOPIC: "timer.journal"}, retrier or Retrier(), limit_s)

    return make


def refused(code: int) -> SimpleNamespace:
    """Return an answer with an error."""
    return SimpleNamespace(error=KafkaError(code), topic=TOPIC, partition=0)


def offsets(read: Iterable[list[Record]]) -> list[int]:
    return [record.offset for records in read for record in records]


# -- one read


def test_a_read_goes_on_after_offsets_that_retention_deletes_meanwhile(make: Make, admin: FakeAdmin) -> None:
    said = FakeConsumer([fetched(0)], [fetched(1, GONE)], [fetched(4), fetched(5)])
    history = make(said)
    found = history.requests(PLACE, 0, 6)
    assert [record.offset for record in next(found)] == [0]
    admin.first = 4
    assert offsets(found) == [4, 5]
    assert said.begun == [0, 4]
    assert offsets(history.requests(PLACE, 0, 4)) == []
    assert said.begun == [0, 4], "deleted offsets are not waited for"


def test_a_read_can_be_given_up_while_kafka_says_that_its_offset_is_gone(make: Make) -> None:
    retrier, said = Retrier(), FakeConsumer(*[[fetched(0, GONE)]] * 100)
    history = make(said, retrier=retrier)
    retrier.give_up_in(0)
    with pytest.raises(BrokerUnavailableError, match="reading"):
        offsets(history.requests(PLACE, 0, 2))
    assert 1 < len(said.begun) < 100


@pytest.mark.parametrize(
    ("error", "told"),
    [(DELETED, r"timer\.requests/0 does not exist any more: start again"), (DENIED, r"timer\.requests/0: reading")],
)
def test_an_error_that_stays_ends_a_read_with_the_remedy(error: KafkaError, told: str, make: Make) -> None:
    with pytest.raises(BridgeError, match=told):
        offsets(make(FakeConsumer([fetched(0)], [fetched(1, error)])).requests(PLACE, 0, 3))


def test_a_passing_error_is_logged_and_the_read_goes_on(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    said = FakeConsumer([fetched(0), fetched(0, PASSING)], [fetched(1)], [fetched(3, AT_THE_END)])
    with caplog.at_level(logging.WARNING):
        assert offsets(make(said).requests(PLACE, 0, 3)) == [0, 1]
    assert "Kafka: " in caplog.text


def test_each_read_is_a_consumer_of_its_own_and_closes_it(make: Make) -> None:
    """A consumer with a new assignment may leave out its first record."""
    first, second, third = (
        FakeConsumer([fetched(0)], [fetched(1, GONE)]),
        FakeConsumer([fetched(2)], [fetched(3)]),
        FakeConsumer([fetched(0), fetched(1)]),
    )
    history = make(first, second, third)
    found = history.requests(PLACE, 0, 4)
    assert [record.offset for record in next(found)] == [0]
    assert [record.offset for record in next(found)] == [2]
    assert offsets(history.requests(PLACE, 0, 2)) == [0, 1]
    assert offsets(found) == [3]
    assert [(each.begun, each.is_open) for each in (first, second, third)] == [([0], False), ([1], False), ([0], False)]


@pytest.mark.parametrize(
    ("batches", "end", "found", "begun"),
    [
        pytest.param([[fetched(0)], [fetched(2, BAD_COMPRESSION)]], 2, [0], [0], id="a marker is before it"),
        pytest.param(  # a seek into a batch of two returns the batch's first offset again
            [[fetched(0), fetched(3, BAD_COMPRESSION)], *[[fetched(3, BAD_COMPRESSION)]] * 2, [fetched(5)]],
            *(6, [0, 5], [0, 4, 5]),
            id="skipped one offset at a time",
        ),
    ],
)
def test_a_read_passes_records_that_cannot_be_decoded(
    batches: list[list[Any]], end: int, found: list[int], begun: list[int], make: Make
) -> None:
    said = FakeConsumer(*batches)
    assert offsets(make(said).requests(PLACE, 0, end, {3, 4})) == found
    assert said.begun == begun


def test_a_record_that_cannot_be_decoded_ends_a_read_after_what_lies_before_it(make: Make) -> None:
    bad = [fetched(1, BAD_COMPRESSION)]
    read = make(FakeConsumer([fetched(0), *bad], bad)).requests(PLACE, 0, 4)
    assert [record.offset for record in next(read)] == [0]
    with pytest.raises(PartitionUnreadableError, match=r"timer\.requests/0: offset 1 cannot be decoded") as wrong:
        next(read)
    assert wrong.value.undecodable == 1


def test_a_read_on_the_loops_thread_ends_in_time_and_names_its_offset(make: Make) -> None:
    silent = FakeConsumer([fetched(0)])
    silent.pass_time = time.sleep
    history = make(silent, limit_s=0.2)
    found = history.requests(PLACE, 0, 4)
    assert [record.offset for record in next(found)] == [0]
    with pytest.raises(PartitionUnreadableError, match=r"at 1 of 4 after 0\.2 s") as slow:
        next(found)
    assert (slow.value.undecodable, silent.is_open) == (None, False)
    silent.commits = [refused(KafkaError.UNSTABLE_OFFSET_COMMIT) for _ in range(100)]
    with pytest.raises(PartitionUnreadableError, match="waiting for stable progress"):
        history.progress(PLACE)


# -- questions


def test_progress_is_asked_for_until_it_is_stable(make: Make) -> None:
    stands, said = Progress(7, Key(12, 3), 1), FakeConsumer()
    history = make(said)
    said.commits = [refused(KafkaError.UNSTABLE_OFFSET_COMMIT), TopicPartition(*PLACE, 7, stands.metadata())]
    assert history.progress(PLACE) == stands
    said.commits = [refused(KafkaError.GROUP_AUTHORIZATION_FAILED)]
    with pytest.raises(BridgeError, match="waiting for stable progress"):
        history.progress(PLACE)


@pytest.mark.parametrize(("error", "open_ones"), [(PASSING, set()), (TIMED_OUT, {PLACE}), (UNSTABLE, {PLACE})], ids=str)
def test_a_broker_that_does_not_answer_is_not_an_open_transaction(
    error: KafkaError, open_ones: set[TimerPartition], make: Make
) -> None:
    said = FakeConsumer()
    said.commits = [KafkaException(error)] * 1000
    assert make(said).with_open_transactions([PLACE]) == open_ones


def test_a_leader_without_an_answer_hides_no_answer_of_the_others(make: Make, admin: FakeAdmin) -> None:
    history = make(FakeConsumer())
    partitions = [TimerPartition(TOPIC, number) for number in range(8)]
    admin.first, admin.ends = None, {0: 7, 2: KafkaException(PASSING), 4: 0, 6: OFFSET_INVALID}
    assert history.first_offsets(partitions) == {partitions[0]: 7, partitions[4]: 0}
    admin.ends = {0: 7, 2: 9, 4: 0, 6: 1}
    even = {partitions[number]: end for number, end in admin.ends.items() if isinstance(end, int)}
    assert history.stable_and_end_offsets(partitions) == {place: (end, end) for place, end in even.items()}
    assert history.newest_journal_times(partitions) == even


def test_a_question_about_all_partitions_is_one_request_for_each_leader(make: Make, admin: FakeAdmin) -> None:
    history = make(FakeConsumer())
    partitions = [TimerPartition(TOPIC, number) for number in range(128)]
    admin.ends = dict.fromkeys(range(128), 5)
    leaders = [set(range(0, 128, 2)), set(range(1, 128, 2))]
    assert history.journal_ends(partitions) == dict.fromkeys(partitions, 5)
    assert admin.requests == leaders
    assert history.first_offsets(partitions) == dict.fromkeys(partitions, 0)
    assert history.newest_journal_times(partitions) == dict.fromkeys(partitions, 5)
    assert history.stable_and_end_offsets(partitions) == dict.fromkeys(partitions, (5, 5))
    assert admin.requests == 5 * leaders


def test_an_assignment_is_asked_about_in_requests_for_all_of_its_partitions(make: Make, admin: FakeAdmin) -> None:
    """One for the progress, and two for each leader. An answer is used once: a second question goes to Kafka."""
    consumer, progress = FakeConsumer(), Progress(7, Key(12, 3), 1)
    history = make(consumer)
    partitions = [TimerPartition(TOPIC, number) for number in range(128)]
    admin.ends = dict.fromkeys(range(128), 5)
    consumer.commits = [[TopicPartition(*place, 7, progress.metadata()) for place in partitions]]
    history.ask_ahead(partitions)
    for place in partitions:
        found = history.progress(place), history.bounds(place), history.journal_bounds(place)
        assert found == (progress, (0, 5), (0, 5))
    assert (len(admin.requests), consumer.commits) == (4, [])
    admin.ends[3] = 6
    assert history.bounds(partitions[3]) == (0, 6)
    history.ask_ahead([])
    consumer.commits = [TopicPartition(*partitions[3], -1)]
    assert history.progress(partitions[3]) is None


Ahead = Callable[..., tuple[ConfluentHistory, FakeConsumer]]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin) -> Ahead:
    """Return a function that makes a history that has read ahead `records`, up to offset 6, and its reader."""
    Timekeeper(monkeypatch)

    def ahead(records: list[Any], starts: tuple[int, int] = (3, 6)) -> tuple[ConfluentHistory, FakeConsumer]:
        asker = FakeConsumer()
        reader = FakeConsumer(*([each] for each in records), [fetched(offset) for offset in range(3, 6)])
        made = iter([asker])
        replace_clients(monkeypatch, lambda: next(made, reader), admin)
        history = ConfluentHistory(Connection("127.0.0.1:1"), {TOPIC: "timer.journal"}, Retrier())
        admin.ends = {0: 6}
        asker.commits = [[TopicPartition(*PLACE, 6, Progress(6, Key(1, 1), 1).metadata())]]
        history.ask_ahead([PLACE], lambda _: starts)
        return history, reader

    return ahead


@pytest.mark.parametrize("end", [fetched(6, AT_THE_END), fetched(6)])
def test_what_an_opening_reads_is_read_ahead(ahead: Ahead, admin: FakeAdmin, end: Any) -> None:
    """Of all partitions by one consumer. Markers are never polled: the end, or the next record, shows them."""
    history, consumer = ahead([fetched(3), fetched(4), end])
    asked, begun = len(admin.requests), len(consumer.begun)
    assert offsets(history.requests(PLACE, 3, 6)) == [3, 4]
    assert list(history.journal(PLACE, from_offset=6, since_ms=None)) == []
    assert (len(admin.requests), len(consumer.begun)) == (asked, begun)
    assert offsets(history.requests(PLACE, 3, 6)) == [3, 4, 5], "used once"


@pytest.mark.parametrize(
    "records",
    [
        [fetched(3), fetched(4, GONE)],
        [fetched(3), fetched(4, BAD_COMPRESSION)],
        [fetched(3), fetched(5, AT_THE_END)],
        [fetched(3), fetched(4, headers=[("a", b"")] * 1025)],
        [fetched(3, headers=[("a", bytes(500))])],
    ],
)
def test_what_cannot_be_read_ahead_to_its_end_is_read_alone(
    ahead: Ahead, records: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has taken some, it is undecodable, undecided, or large; or there is no memory for one more."""
    if len(records) == 1:
        monkeypatch.setattr("bridge.kafka.history.MOST_HELD_BYTES", 500)
    history, consumer = ahead(records)
    assert offsets(history.requests(PLACE, 3, 6)) == [3, 4, 5]
    assert consumer.begun == [3, 3]


@pytest.mark.parametrize("starts", [(7, 6), (6 - 5001, 6)])
def test_much_is_not_read_ahead(ahead: Ahead, starts: tuple[int, int]) -> None:
    _, consumer = ahead([fetched(3)], starts)
    assert consumer.begun == []


def test_a_question_ahead_without_an_answer_is_asked_again_alone(make: Make, admin: FakeAdmin) -> None:
    said = FakeConsumer()
    history = make(said)
    said.commits = [KafkaException(TIMED_OUT), TopicPartition(*PLACE, -1)]
    admin.ends = {}
    history.ask_ahead([PLACE])
    admin.ends = {0: 3}
    assert (history.progress(PLACE), history.bounds(PLACE)) == (None, (0, 3))


def test_events_that_wait_for_a_poll_do_not_accumulate(make: Make, admin: FakeAdmin) -> None:
    """Throttled answers, errors and log lines stay in the clients of a process that runs for months."""
    said = FakeConsumer()
    history = make(said)
    most = 0
    for _ in range(100):
        said.commits = [TopicPartition(*PLACE, -1)] * 2
        assert history.bounds(PLACE) == (0, 3)
        assert history.progress(PLACE) is None
        assert history.first_offsets([PLACE]) == {PLACE: 0}
        assert history.stable_and_end_offsets([PLACE]) == {PLACE: (3, 3)}
        assert history.newest_journal_times([PLACE]) == {PLACE: 3}
        assert history.with_open_transactions([PLACE]) == set()
        most = max(most, admin.events, said.events)
    assert most <= 2


def test_the_loops_reader_of_timer_topics_is_bounded_and_no_other() -> None:
    limits = {"fetch.max.bytes": "5000000", "receive.message.max.bytes": "6000000"}
    connection = Connection("127.0.0.1:1", fetched=limits, kafka={"message.max.bytes": "9000000"})
    bounded, free = clients.reader(connection, is_bounded=True), clients.reader(connection)
    assert limits.items() <= bounded.items()
    assert limits.items() <= clients.group_member(connection).items()
    assert limits.keys().isdisjoint(free)
    for config in (bounded, free, clients.group_member(connection)):
        assert "message.max.bytes" not in config, "a producer's, which librdkafka compares with fetch.max.bytes"
