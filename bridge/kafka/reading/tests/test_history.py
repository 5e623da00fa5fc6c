"""Errors of librdkafka during a read of Kafka's topics, by a fake consumer."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, PartitionUnreadableError
from bridge.kafka import client_config as clients
from bridge.kafka.reading import history as history_module
from bridge.kafka.reading.history import ConfluentHistory
from bridge.kafka.retry import Retrier
from schemas.origin import Shard
from schemas.progress import Key, Progress

PLACE = Shard("timer.requests", 0)
GONE, DELETED, DENIED, PASSING, AT_THE_END = map(
    KafkaError,
    (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._TRANSPORT,
        KafkaError._PARTITION_EOF,
    ),
)

FATAL = SystemError("returned a result with an exception set")
"""An error of a callback as it leaves a poll."""
FATAL.__cause__ = KafkaException(KafkaError(KafkaError._FATAL, "of no use any more", fatal=True))


class Told:
    """A record at an offset, or an error in the place of one."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self._offset = offset
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None


class Saying:
    """A fake consumer that returns `batches`, one for each poll. `begun`: start offsets of the reads."""

    def __init__(self, *batches: list[Told]) -> None:
        self._batches = list(batches)
        self._more: list[Told] = []
        self.begun: list[int] = []
        self.is_open = True
        self.is_slow = False
        self.commits: list[TopicPartition | SimpleNamespace] = []
        self.events = 0

    def assign(self, places: list[TopicPartition]) -> None:
        self.begun += [place.offset for place in places]

    def close(self) -> None:
        self.is_open = False

    def poll(self, timeout_s: float) -> Told | None:
        time.sleep(timeout_s if self.is_slow else 0)
        self.events = 0
        if not self._batches:
            return None
        first, *self._more = self._batches.pop(0)
        return first

    def seek(self, place: TopicPartition) -> None:
        self.begun.append(place.offset)

    def consume(self, count: int, timeout_s: float) -> list[Told]:
        del timeout_s
        told, self._more = self._more[:count], self._more[count:]
        return told

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition | SimpleNamespace]:
        del places, timeout
        self.events += 1
        return [self.commits.pop(0)]


def refused(code: int) -> SimpleNamespace:
    """Return an answer with an error."""
    return SimpleNamespace(error=KafkaError(code), topic=PLACE.topic, partition=PLACE.partition)


def history(said: Saying, bounds: tuple[int, int] = (0, 3)) -> Any:
    made: Any = ConfluentHistory(Connection("127.0.0.1:1"), {PLACE.topic: "timer.journal"}, Retrier())
    made.close()
    made._consumer = said
    made._new_consumer = lambda place=None: said
    made._ask = lambda place, spec, level=None: bounds[spec is history_module._END]
    return made


def offsets(read: Any) -> list[int]:
    return [record.offset for records in read for record in records]


def test_a_read_goes_on_after_offsets_that_retention_deletes_meanwhile() -> None:
    said = Saying([Told(0)], [Told(1, GONE)], [Told(4), Told(5)])
    read = history(said)
    found = read.requests(PLACE, 0, 6)
    assert [record.offset for record in next(found)] == [0]
    read._ask = lambda place, spec: 4
    assert offsets(found) == [4, 5]
    assert said.begun == [0, 4]


def test_deleted_offsets_are_not_waited_for() -> None:
    said = Saying()
    assert offsets(history(said, (3, 3)).requests(PLACE, 0, 3)) == []
    assert said.begun == []


def test_markers_at_the_end_are_no_records() -> None:
    assert offsets(history(Saying([Told(0), Told(1)], [Told(3, AT_THE_END)])).requests(PLACE, 0, 3)) == [0, 1]


def test_records_after_the_requested_end_are_left_out() -> None:
    assert offsets(history(Saying([Told(0), Told(3), Told(4)])).requests(PLACE, 0, 3)) == [0]


def test_a_topic_deleted_while_it_is_read_ends_the_read_with_the_remedy() -> None:
    read = history(Saying([Told(0)], [Told(1, DELETED)])).requests(PLACE, 0, 3)
    assert len(next(read)) == 1
    with pytest.raises(BridgeError, match=r"timer\.requests/0 does not exist any more: start again"):
        next(read)


def test_a_denied_read_names_its_partition() -> None:
    with pytest.raises(BridgeError, match=r"timer\.requests/0: reading"):
        next(history(Saying([Told(0, DENIED)])).requests(PLACE, 0, 3))


def test_a_passing_error_is_logged_and_the_read_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert offsets(history(Saying([Told(0), Told(0, PASSING)], [Told(1), Told(2)])).requests(PLACE, 0, 3)) == [
            0,
            1,
            2,
        ]
    assert "Kafka: " in caplog.text


def test_a_read_left_before_its_end_closes_its_consumer() -> None:
    said = Saying([Told(0)], [Told(1)], [Told(2)])
    assert any(history(said).requests(PLACE, 0, 3))
    assert (said.begun, said.is_open) == ([0], False)


def test_progress_is_asked_for_until_it_is_stable() -> None:
    stands = Progress(7, Key(12, 3), 1)
    said = Saying()
    committed = TopicPartition(*PLACE, 7, stands.metadata())
    said.commits = [refused(KafkaError.UNSTABLE_OFFSET_COMMIT), committed]
    assert history(said).progress(PLACE) == stands
    said.commits = [refused(KafkaError.GROUP_AUTHORIZATION_FAILED)]
    with pytest.raises(BridgeError, match="waiting for stable progress"):
        history(said).progress(PLACE)


@pytest.mark.parametrize(
    ("ends", "error", "open_ones"),
    [
        ((4, 4), KafkaError._TRANSPORT, set()),
        ((3, 4), KafkaError._TRANSPORT, {PLACE}),
        ((4, 4), KafkaError._TIMED_OUT, {PLACE}),
        ((4, 4), KafkaError.UNSTABLE_OFFSET_COMMIT, {PLACE}),
    ],
)
def test_a_broker_that_does_not_answer_is_not_an_open_transaction(
    ends: tuple[int, int], error: int, open_ones: set[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Saying):
        def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition | SimpleNamespace]:
            raise KafkaException(KafkaError(error))

    monkeypatch.setattr(history_module, "_QUICK_S", 0)
    read = history(Silent())
    read.stable_and_end_offsets = lambda places: {Shard("timer.journal", 0): ends}
    assert read.with_open_transactions([PLACE]) == open_ones


class Admin:
    """A fake admin client. `told`: first offset by partition, or an error; other partitions get no answer.

    As in librdkafka, one request has one answer, whose event waits for a poll.
    """

    def __init__(self, told: Mapping[int, int | KafkaException]) -> None:
        self._reported = told
        self.events = 0

    def poll(self, timeout_s: float) -> int:
        del timeout_s
        self.events = 0
        raise FATAL

    def list_offsets(self, asked: Mapping[TopicPartition, object], **_: object) -> dict[TopicPartition, Any]:
        self.events += 1
        answers: dict[TopicPartition, Any] = {place: Future() for place in asked}
        if all(place.partition in self._reported for place in asked):
            for place, answer in answers.items():
                told = self._reported[place.partition]
                if isinstance(told, int):
                    answer.set_result(SimpleNamespace(offset=told, timestamp=told))
                else:
                    answer.set_exception(told)
        return answers


def test_first_offsets_are_those_of_the_leaders_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_QUICK_S", 0)
    read = history(Saying())
    read._admin = Admin({0: 7, 2: KafkaException(PASSING), 3: OFFSET_INVALID, 4: 0})
    shards = [Shard(PLACE.topic, number) for number in range(5)]
    assert read.first_offsets(shards) == {shards[0]: 7, shards[4]: 0}


def test_a_leader_that_hangs_hides_neither_ends_nor_decisions_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_QUICK_S", 0)
    read = history(Saying())
    read._admin = Admin({0: 7, 2: 9})
    shards = [Shard(PLACE.topic, number) for number in range(3)]
    assert read.stable_and_end_offsets(shards) == {shards[0]: (7, 7), shards[2]: (9, 9)}
    assert read.newest_journal_times(shards) == {shards[0]: 7, shards[2]: 9}


@pytest.mark.thorough
def test_events_that_wait_for_a_poll_do_not_accumulate() -> None:
    """Throttled answers, errors and log lines stay in the clients of a process that runs for months."""
    said = Saying()
    read = history(said)
    del read._ask
    read._admin = admin = Admin({0: 7})
    most = 0
    for _ in range(1000):
        said.commits = [TopicPartition(*PLACE, -1)] * 2
        assert read.bounds(PLACE) == (7, 7)
        assert read.progress(PLACE) is None
        assert read.first_offsets([PLACE]) == {PLACE: 7}
        assert read.stable_and_end_offsets([PLACE]) == {PLACE: (7, 7)}
        assert read.newest_journal_times([PLACE]) == {PLACE: 7}
        assert read.with_open_transactions([PLACE]) == set()
        most = max(most, admin.events, said.events)
    assert most <= 2


def test_each_read_is_a_consumer_of_its_own() -> None:
    """A consumer with a new assignment may leave out its first record."""
    consumers = [Saying([Told(0)], [Told(1, GONE)]), Saying([Told(2)], [Told(3)]), Saying([Told(0), Told(1)])]
    left, other = iter(consumers[:2]), consumers[2]
    read = history(Saying())
    read._new_consumer = lambda place=None: next(left, other)
    found = read.requests(PLACE, 0, 4)
    assert [record.offset for record in next(found)] == [0]
    assert [record.offset for record in next(found)] == [2]
    assert offsets(read.requests(PLACE, 0, 2)) == [0, 1]
    assert offsets(found) == [3]
    assert [(each.begun, each.is_open) for each in consumers] == [([0], False), ([1], False), ([0], False)]


BAD = KafkaError(KafkaError._BAD_COMPRESSION, "Decompression of message failed")


def test_a_record_that_cannot_be_decoded_ends_a_read_after_what_lies_before_it() -> None:
    read = history(Saying([Told(0), Told(1, BAD)], [Told(1, BAD)])).requests(PLACE, 0, 4)
    assert [record.offset for record in next(read)] == [0]
    with pytest.raises(PartitionUnreadableError, match=r"timer\.requests/0: offset 1 cannot be decoded") as wrong:
        next(read)
    assert wrong.value.undecodable == 1


def test_a_read_that_ends_at_a_record_that_cannot_be_decoded_has_read_all() -> None:
    """The record at offset 1 is a transaction marker."""
    assert offsets(history(Saying([Told(0)], [Told(2, BAD)])).requests(PLACE, 0, 2)) == [0]


def test_skipped_records_are_passed_one_offset_at_a_time() -> None:
    """A seek into a batch of two returns the batch's first offset again."""
    said = Saying([Told(0), Told(1, BAD)], [Told(1, BAD)], [Told(1, BAD)], [Told(3)])
    assert offsets(history(said).requests(PLACE, 0, 4, {1, 2})) == [0, 3]
    assert said.begun == [0, 2, 3]


def test_a_read_on_the_loops_thread_ends_in_time_and_names_its_offset() -> None:
    silent = Saying([Told(0)])
    silent.is_slow = True
    read = history(silent)
    read._limit_s = 0.2
    found = read.requests(PLACE, 0, 4)
    assert [record.offset for record in next(found)] == [0]
    with pytest.raises(PartitionUnreadableError, match=r"at 1 of 4 after 0\.2 s") as slow:
        next(found)
    assert (slow.value.undecodable, silent.is_open) == (None, False)
    silent.commits = [refused(KafkaError.UNSTABLE_OFFSET_COMMIT) for _ in range(100)]
    with pytest.raises(PartitionUnreadableError, match="waiting for stable progress"):
        read.progress(PLACE)


def test_the_loops_reader_of_timer_topics_is_bounded_and_no_other() -> None:
    limits = {"fetch.max.bytes": "5000000", "receive.message.max.bytes": "6000000"}
    connection = Connection("127.0.0.1:1", fetched=limits, kafka={"message.max.bytes": "9000000"})
    bounded, free = clients.reader(connection, is_bounded=True), clients.reader(connection)
    assert limits.items() <= bounded.items()
    assert limits.items() <= clients.group_member(connection).items()
    assert limits.keys().isdisjoint(free)
    for config in (bounded, free, clients.group_member(connection)):
        assert "message.max.bytes" not in config, "a producer's, which librdkafka compares with fetch.max.bytes"
