"""The contract of the bridge's ports (bridge.ports), for the fakes and for a real broker alike.

A `Harness` is one Kafka of either kind, and what other clients do to it: senders, readers, a hanging transaction. The
methods of ConfluentHarness say what each does.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from bridge.errors import FencedError
from bridge.ports import MAX_IN_FLIGHT, Aborted, Committed, Outgoing, Polled, Sink, SubmittedTransaction, Transaction
from bridge.testing import FakeGroup, FakeHistory, FakeKafka, FakeSink, FakeSource, Timeline
from bridge.testing.fake_kafka import murmur2
from integration_tests.conftest import Broker
from integration_tests.support.patience import PATIENCE_S, becomes
from integration_tests.support.ports import Member, World
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.progress import ForeignProgressError, Key, Progress

SMALL_BYTES = 1000
HANG_MS = 1500
READ = Progress(3, Key(12_000, 1), 2)


class Published(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class FakeHarness:
    timers, journal, target, small = "timers", "journal", "target", "small"

    def __init__(self) -> None:
        self._kafka = FakeKafka(Timeline())
        for topic, partitions in ((self.timers, 2), (self.journal, 2), (self.target, 3)):
            self._kafka.create(topic, partitions)
        self._kafka.create(self.small, max_bytes=SMALL_BYTES)
        self.first, self.second = (TimerPartition(self.timers, number) for number in range(2))
        self._group = FakeGroup("group", [self.first, self.second])

    def source(self) -> FakeSource:
        return FakeSource(self._kafka, self._group, uuid4().hex)

    def history(self) -> FakeHistory:
        return FakeHistory(self._kafka, self._group, self.journal)

    def sink(self, name: str = "one") -> FakeSink:
        return FakeSink(self._kafka, self._group, name, self.journal)

    def send(self, value: bytes | None, *, key: bytes | None = None, headers: Headers = (), partition: int = 0) -> None:
        self._kafka.produce(self.timers, value, key=key, headers=headers, partition=partition)
        self._kafka.timeline.advance(5)

    def send_aborted(self) -> None:
        transaction = self._kafka.begin("sender")
        self._kafka.produce(self.timers, b"aborted", partition=0, transaction=transaction)
        self._kafka.abort(transaction)

    def hang(self, topic: str) -> Callable[[], None]:
        transaction, timeline = self._kafka.begin("sender"), self._kafka.timeline
        self._kafka.produce(topic, b"hangs", partition=0, transaction=transaction)
        return lambda: timeline.at(timeline.now_ms + HANG_MS, lambda: self._kafka.abort(transaction))

    def hang_progress(self, progress: Progress) -> None:
        transaction, timeline = self._kafka.begin("sender"), self._kafka.timeline
        self._kafka.send_offsets(transaction, "group", {self.first: progress})
        timeline.at(timeline.now_ms + HANG_MS, lambda: self._kafka.commit(transaction))

    def read(self, topic: str) -> list[Published]:
        return [
            Published(log.number, entry.key, entry.value, entry.headers, entry.timestamp_ms)
            for log in self._kafka.topics[topic].partitions
            for entry in log.committed(log.first, log.last_stable)
        ]

    def commit_offset(self, offset: int) -> None:
        self._kafka.commit_offset("group", self.first, offset)

    def delete_before(self, offset: int) -> None:
        self._kafka.partition(self.first).delete_before(offset)

    def now_ms(self) -> int:
        return self._kafka.timeline.now_ms


class ConfluentHarness:
    """`timers` and `journal` have two partitions, `target` three. `small` has one, and takes small records only."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._world = World(bootstrap_servers, partitions=2)
        self._cluster = self._world.cluster
        self.timers, self.journal = self._world.requests, self._world.journal
        self.first, self.second = (self._world.partition(number) for number in range(2))
        self.target = self._cluster.topic("to", 3)
        self.small = self._cluster.topic("small", max_message_bytes=str(SMALL_BYTES))
        self._of_group = {"bootstrap.servers": bootstrap_servers, "group.id": self._world.group}
        self._closing = ExitStack()
        self._closing.callback(self._world.close)
        self.source, self.history, self.sink = self._world.source, self._world.history, self._world.sink

    def close(self) -> None:
        self._closing.close()

    def send(self, value: bytes | None, *, key: bytes | None = None, headers: Headers = (), partition: int = 0) -> None:
        """Send a request."""
        self._cluster.send(self.timers, value, key=key, headers=headers, partition=partition)
        self._cluster.flush()

    def send_aborted(self) -> None:
        """Send a record to the first timer partition, in a transaction that is aborted."""
        self._begun(self.timers).abort_transaction(PATIENCE_S)

    def hang(self, topic: str) -> Callable[[], None]:
        """Send a record to the first partition of `topic`, in an open transaction.

        Return a function: HANG_MS after its call the transaction is aborted.
        """
        producer = self._begun(topic)
        return lambda: self._later(producer.abort_transaction)

    def hang_progress(self, progress: Progress) -> None:
        """Send progress of the first timer partition, in a transaction that is committed HANG_MS from now."""
        producer, member = self._begun(self.target), Consumer(self._of_group)
        offset = TopicPartition(self.timers, 0, progress.next_offset, progress.metadata())
        producer.send_offsets_to_transaction([offset], member.consumer_group_metadata(), PATIENCE_S)
        member.close()
        self._later(producer.commit_transaction)

    def _later(self, end: Callable[[], None]) -> None:
        timer = threading.Timer(HANG_MS / 1000, end)
        timer.start()
        self._closing.callback(timer.join)

    def _begun(self, topic: str) -> Any:
        producer = self._cluster.transactional()
        producer.begin_transaction()
        producer.produce(topic, b"hangs", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        return producer

    def read(self, topic: str) -> list[Published]:
        """Return the committed records, in order in each partition."""
        return [
            Published(each.partition(), each.key(), each.value(), each.headers() or [], each.timestamp()[1])
            for each in self._cluster.read(topic)
        ]

    def commit_offset(self, offset: int) -> None:
        """Commit an offset of the first timer partition, as another client of our group does."""
        hand = Consumer({**self._of_group, "enable.auto.commit": False})
        hand.commit(offsets=[TopicPartition(self.timers, 0, offset)], asynchronous=False)
        hand.close()

    def delete_before(self, offset: int) -> None:
        """Delete records of the first timer partition, as retention does."""
        (deleted,) = self._cluster.admin.delete_records([TopicPartition(self.timers, 0, offset)]).values()
        deleted.result()

    def now_ms(self) -> int:
        """Return the brokers' time."""
        return time.time_ns() // 1_000_000  # it runs on this machine


Harness: TypeAlias = FakeHarness | ConfluentHarness
KINDS = ["fake", pytest.param("confluent", marks=pytest.mark.broker)]


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if request.param == "fake":
        yield FakeHarness()
    else:
        broker: Broker = request.getfixturevalue("kafka")
        real = ConfluentHarness(broker.bootstrap_servers)
        yield real
        real.close()


class Reader(Member):
    """A member that reads at most `max_records` at a poll. `most`: records of one poll."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.max_records, self.most = 100, 0

    def poll(self, timeout_ms: int = 200, max_records: int = 0) -> Polled:
        polled = super().poll(timeout_ms, max_records or self.max_records)
        self.most = max(self.most, sum(map(len, polled.records.values())))
        return polled

    def offsets(self, count: int) -> list[int]:
        """Return the offsets of the first `count` records, and of records that follow at once."""
        self.poll_until(lambda: len(self.records) >= count)
        for _ in range(2):
            self.poll()
        return [record.offset for record in self.records]


@pytest.fixture
def reader(harness: Harness) -> Reader:
    """Return a reader that owns both partitions; neither is started."""
    made = Reader(harness.source())
    made.own(2)
    return made


class TestSource:
    def test_a_partition_is_read_from_its_start_offset_also_again(self, harness: Harness, reader: Reader) -> None:
        """A poll returns at most `max_records`, and a wake ends a poll that waits."""
        for number in range(7):
            harness.send(b"%d" % number)
        reader.poll(600)
        assert reader.records == []
        reader.source.start(harness.first, 1)
        reader.max_records = 3
        assert reader.offsets(6) == list(range(1, 7))
        assert [record.value for record in reader.records] == [b"%d" % number for number in range(1, 7)]
        assert reader.most <= 3
        reader.source.start(harness.first, 6)
        assert reader.offsets(7) == [*range(1, 7), 6]
        reader.source.wake()
        began_ms = harness.now_ms()
        reader.source.poll(int(1000 * PATIENCE_S), 1)
        assert harness.now_ms() - began_ms < 1000 * PATIENCE_S

    def test_a_record_is_returned_as_it_was_sent_and_aborted_ones_are_not(
        self, harness: Harness, reader: Reader
    ) -> None:
        headers = [("a", b"1"), ("a", b"1"), ("none", None), ("raw", b"\xff\xfe"), ("empty", b"")]
        harness.send(None, key=None, headers=headers)
        harness.send_aborted()
        harness.send(b"", key=b"", headers=())
        harness.hang(harness.timers)()
        harness.send(b"c")
        reader.source.start(harness.first, 0)
        reader.offsets(3)
        told = [(record.key, record.value, list(record.headers)) for record in reader.records]
        assert told == [(None, None, headers), (b"", b"", []), (None, b"c", [])]
        assert all(abs(record.timestamp_ms - harness.now_ms()) < 60_000 for record in reader.records)

    def test_a_paused_partition_returns_nothing_and_loses_nothing(self, harness: Harness, reader: Reader) -> None:
        for number in range(50):
            harness.send(b"%d" % number)
        reader.source.start(harness.first, 0)
        reader.max_records = 5
        reader.poll_until(lambda: len(reader.records) > 0)
        for _ in range(3):
            reader.paused = {harness.first}
            before = len(reader.records)
            reader.poll()
            assert len(reader.records) == before
            reader.paused = set()
            reader.poll()
        assert reader.offsets(50) == list(range(50))

    def test_a_member_without_partitions_knows_that_it_is_one(self, harness: Harness, reader: Reader) -> None:
        others = [Reader(harness.source()) for _ in range(2)]

        def shared() -> bool:
            for each in (reader, *others):
                each.poll()
            members = [each for each in (reader, *others) if each.source.membership.is_member]
            return len(members) == 3 and sorted(len(each.partitions) for each in members) == [0, 1, 1]

        reader.poll_until(shared)


def values(harness: Harness) -> list[bytes | None]:
    """Return the values on the target."""
    return [record.value for record in harness.read(harness.target)]


def order(
    harness: Harness, value: bytes | None, topic: str = "", partition: int = -1, key: bytes | None = None
) -> Outgoing:
    headers = [("timer-origin", f"{harness.timers}/0/0".encode()), ("a", b"1"), ("a", None)]
    return Outgoing(topic or harness.target, partition, key, value, headers, 1_700_000_000_123)


def progress(number: int) -> Progress:
    return Progress(number, Key(number, number), number)


def carry(harness: Harness, group_metadata: object, number: int, *records: Outgoing) -> Transaction:
    """Return a transaction that moves progress of the first partition to `number`, and has it as its decision."""
    return Transaction(
        list(records), {harness.first: b"%d" % number}, {harness.first: progress(number)}, group_metadata
    )


def commit(sink: Sink, transaction: Transaction) -> None:
    assert sink.submit(transaction).wait() == Committed()


def journal(harness: Harness, from_offset: int | None = None, since_ms: int | None = None) -> list[bytes]:
    """Return the decisions of the first partition."""
    return list(harness.history().journal(harness.first, from_offset=from_offset, since_ms=since_ms))


class TestSink:
    def test_a_transaction_is_committed_as_a_whole(self, harness: Harness, reader: Reader) -> None:
        first, tombstone = order(harness, b"a", partition=0, key=b"k"), order(harness, None, partition=1)
        sink, history = harness.sink(), harness.history()
        commit(sink, carry(harness, reader.group_metadata, 1, first, tombstone))
        assert history.progress(harness.first) == progress(1)
        assert journal(harness) == [b"1"]
        assert harness.read(harness.target) == [
            Published(0, b"k", b"a", first.headers, first.timestamp_ms),
            Published(1, None, None, tombstone.headers, tombstone.timestamp_ms),
        ]
        commit(sink, Transaction([], {}, {harness.first: progress(2)}, reader.group_metadata))
        assert (history.progress(harness.first), journal(harness)) == (progress(2), [b"1"]), "progress alone"
        keys = [b"a", b"bc", b"def", b"N14228", b"tail-number"]
        commit(sink, carry(harness, reader.group_metadata, 3, *(order(harness, key, key=key) for key in keys)))
        found = {record.key: record.partition for record in harness.read(harness.target) if record.key in keys}
        assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in keys}, "as Java's clients choose"

    def publish_all(self, sink: Sink, transaction: Transaction) -> dict[bytes | None, str]:
        """Retry without refused records, as the bridge does. Return the codes by value."""
        refused: dict[bytes | None, str] = {}
        for _ in range(20):
            match sink.submit(transaction).wait():
                case Committed():
                    return refused
                case Aborted(codes):
                    refused |= {record.value: code for record, code in codes.items()}
                    transaction.outgoing = [record for record in transaction.outgoing if record not in codes]
        pytest.fail(f"not after 20 tries; refused: {refused}")

    def test_refused_records_are_named_and_the_rest_is_committed_once(self, harness: Harness, reader: Reader) -> None:
        records = [
            order(harness, b"good", partition=0),
            order(harness, b"no topic", topic="nowhere-to-be-found"),
            order(harness, b"no partition", partition=3),
            order(harness, b"small", topic=harness.small),
            order(harness, b"large" * SMALL_BYTES, topic=harness.small),
            order(harness, b"good too", partition=0),
        ]
        sink = harness.sink()
        refused = self.publish_all(sink, carry(harness, reader.group_metadata, 1, *records))
        assert refused == {
            b"no topic": "unknown-topic",
            b"no partition": "unknown-partition",
            b"large" * SMALL_BYTES: "too-large",
        }
        assert values(harness) == [b"good", b"good too"]
        small = [order(harness, b"%100d" % number, topic=harness.small) for number in range(30)]
        assert self.publish_all(sink, carry(harness, reader.group_metadata, 2, *small)) == {}, "only the batch is large"
        assert [record.value for record in harness.read(harness.small)] == [b"small", *(each.value for each in small)]

    def test_stale_group_metadata_publishes_nothing(self, harness: Harness, reader: Reader) -> None:
        stale = reader.group_metadata
        second = Reader(harness.source())

        def shared() -> bool:
            reader.poll()
            return len(second.partitions) == len(reader.partitions) == 1

        second.poll_until(shared)
        assert second.partitions.isdisjoint(reader.partitions)
        sink, history = harness.sink(), harness.history()
        assert sink.submit(carry(harness, stale, 1, order(harness, b"a"))).wait() == Aborted({})
        assert history.progress(harness.first) is None
        assert harness.read(harness.target) == []
        reader.poll()
        commit(sink, carry(harness, reader.group_metadata, 1, order(harness, b"b")))


class TestInFlight:
    """Transactions of different partitions are submitted before the outcome of others is known."""

    def test_each_is_committed_whatever_becomes_of_the_others(self, harness: Harness, reader: Reader) -> None:
        sink, history = harness.sink(), harness.history()
        bad = [order(harness, b"1", partition=0), order(harness, b"bad", topic="nowhere-to-be-found")]
        first = sink.submit(carry(harness, reader.group_metadata, 1, *bad))
        other = Transaction(
            [replace(order(harness, b"2", partition=0), headers=[])],
            {harness.second: b"2"},
            {harness.second: progress(2)},
            reader.group_metadata,
        )
        second = sink.submit(other)
        assert (second.wait(), first.wait()) == (Committed(), Aborted({bad[1]: "unknown-topic"}))
        assert (history.progress(harness.first), history.progress(harness.second)) == (None, progress(2))
        assert (journal(harness), values(harness)) == ([], [b"2"])
        commit(sink, carry(harness, reader.group_metadata, 1, bad[0]))
        assert journal(harness) == [b"1"]
        assert history.progress(harness.first) == progress(1)
        assert values(harness) == [b"2", b"1"]

    def test_they_follow_each_other_in_each_partition(self, harness: Harness, reader: Reader) -> None:
        sink, history = harness.sink(), harness.history()
        partitions = [harness.first, harness.second]
        in_flight: list[SubmittedTransaction] = []
        for number in range(12):
            mine = partitions[number % 2]
            if len(in_flight) == len(partitions):
                assert in_flight.pop(0).wait() == Committed()
                assert (history.progress(mine) or progress(0)).next_offset == max(0, number - 2)
            record = replace(order(harness, b"%d" % number, partition=number % 2), headers=[])
            reached = {mine: progress(number)}
            in_flight.append(sink.submit(Transaction([record], {}, reached, reader.group_metadata)))
        assert [each.wait() for each in in_flight] == [Committed()] * 2
        assert [history.progress(each) for each in partitions] == [progress(10), progress(11)]
        assert values(harness) == [b"%d" % number for number in (*range(0, 12, 2), *range(1, 12, 2))]

    def test_a_second_sink_of_the_same_id_ends_all(self, harness: Harness, reader: Reader) -> None:
        first = harness.sink("same")
        commit(first, carry(harness, reader.group_metadata, 1, order(harness, b"1", partition=0)))
        second = harness.sink("same")
        for _ in range(MAX_IN_FLIGHT):
            with pytest.raises(FencedError):
                first.submit(carry(harness, reader.group_metadata, 2, order(harness, b"no", partition=0))).wait()
        commit(second, carry(harness, reader.group_metadata, 2, order(harness, b"2", partition=0)))
        assert values(harness) == [b"1", b"2"]


class TestHistory:
    def test_without_a_commit_there_is_no_progress(self, harness: Harness) -> None:
        history = harness.history()
        assert history.progress(harness.first) is None
        assert history.journal_ends([harness.first])[harness.first] == 0
        assert history.journal_bounds(harness.first) == (0, 0)
        assert journal(harness) == []
        assert journal(harness, since_ms=5) == []
        assert history.bounds(harness.first) == (0, 0)
        harness.send(b"a")
        harness.commit_offset(1)
        with pytest.raises(ForeignProgressError):  # no bridge committed it
            history.progress(harness.first)

    def test_progress_that_may_still_change_is_waited_for(self, harness: Harness) -> None:
        history = harness.history()
        becomes(lambda: history.with_open_transactions([harness.first]), set())
        harness.hang_progress(READ)
        assert history.with_open_transactions([harness.first]) == {harness.first}
        assert history.progress(harness.first) == READ
        becomes(lambda: history.with_open_transactions([harness.first]), set())

    def test_an_open_transaction_in_a_journal_names_its_partition_and_hides_no_decision(
        self, harness: Harness, reader: Reader
    ) -> None:
        """A zombie's record in it lies before a record that its successor has committed."""
        history, other = harness.history(), harness.second
        becomes(lambda: history.with_open_transactions([harness.first, other]), set())
        end = harness.hang(harness.journal)
        becomes(lambda: history.with_open_transactions([harness.first, other]), {harness.first})
        end()
        decided = Transaction([], {harness.first: b"decided"}, {harness.first: READ}, reader.group_metadata)
        commit(harness.sink(), decided)
        assert history.journal_ends([harness.first])[harness.first] >= 2
        assert journal(harness, 0) == [b"decided"]  # waits for its end
        becomes(lambda: history.with_open_transactions([harness.first, other]), set())

    def test_an_open_transaction_shows_between_stable_offset_and_end(self, harness: Harness) -> None:
        history, other = harness.history(), harness.second
        harness.send(b"a")
        end = harness.hang(harness.timers)
        harness.send(b"b")
        becomes(lambda: history.stable_and_end_offsets([harness.first, other]), {harness.first: (1, 3), other: (0, 0)})
        end()

    def test_requests_are_the_committed_records_of_a_range(self, harness: Harness) -> None:
        for value in (b"a", b"b"):
            harness.send(value)
        harness.send_aborted()
        for value in (b"c", b"d"):
            harness.send(value)
        history = harness.history()
        told = [(r.offset, r.value) for batch in history.requests(harness.first, 1, 6) for r in batch]
        assert [value for _, value in told] == [b"b", b"c", b"d"]
        last = told[-1][0]
        assert [r.value for batch in history.requests(harness.first, 1, last) for r in batch] == [b"b", b"c"]
        assert [r.value for batch in history.requests(harness.first, 2, told[1][0]) for r in batch] == []
        assert history.bounds(harness.first) == (0, 6)
        other = harness.second
        becomes(lambda: history.first_offsets([harness.first, other]), {harness.first: 0, other: 0})
        harness.delete_before(1)
        becomes(lambda: history.first_offsets([harness.first, other]), {harness.first: 1, other: 0})
        assert history.bounds(harness.first) == (1, 6)
        assert history.offset_at(harness.first, 0) == 1
        assert history.first_offsets([]) == {}

    def test_offsets_by_time(self, harness: Harness) -> None:
        for value in (b"a", b"b", b"c"):
            harness.send(value)
            time.sleep(0.02)
        history = harness.history()
        times = [record.timestamp_ms for batch in history.requests(harness.first, 0, 3) for record in batch]
        asked = [times[0] - 1, times[1], times[1] + 1, times[2] + 1]
        assert [history.offset_at(harness.first, at) for at in asked] == [0, 1, 2, 3]

    def test_the_journal_from_an_offset_and_from_a_time(self, harness: Harness, reader: Reader) -> None:
        sink, history = harness.sink(), harness.history()
        ends = []
        for value in (b"one", b"two", b"three"):
            ends.append(history.journal_ends([harness.first])[harness.first])
            commit(sink, Transaction([], {harness.first: value}, {harness.first: READ}, reader.group_metadata))
            harness.history().progress(harness.first)  # waits until it is visible
        assert ends == [0, 2, 4], "a record and the marker of its transaction"
        assert history.journal_bounds(harness.first) == (0, history.journal_ends([harness.first])[harness.first])
        assert journal(harness, ends[1]) == [b"two", b"three"]
        assert journal(harness, history.journal_ends([harness.first])[harness.first]) == []
        assert journal(harness, since_ms=1) == [b"one", b"two", b"three"]
        later_ms = harness.now_ms() + 60_000
        assert journal(harness, since_ms=later_ms) == []
        assert list(history.journal(harness.second, from_offset=None, since_ms=None)) == []
        key, other = history.journal_key(harness.first), harness.second
        last = history.journal_ends([harness.first])[harness.first] - ends[1]
        assert history.journal_tails([harness.first, other], last) == {
            harness.first: [(key, b"two"), (key, b"three")],
            other: [],
        }
        assert history.journal_tails([harness.first], 1000)[harness.first] == [
            (key, each) for each in (b"one", b"two", b"three")
        ]
        assert history.journal_key(harness.first).endswith(f" {harness.first.topic}".encode())

    def test_what_is_read_ahead_is_what_is_read_alone(self, harness: Harness, reader: Reader) -> None:
        """Aborted records and markers among the requests, and decisions behind the start in the journal."""
        sink, history, partitions = harness.sink(), harness.history(), [harness.first, harness.second]
        harness.send(b"a")
        harness.send_aborted()
        for value in (b"b", b"c", b"d"):
            harness.send(value)
        last = history.bounds(harness.first)[1] - 1
        read = READ._replace(next_offset=last)
        for value in (b"one", b"two"):
            commit(sink, Transaction([], {harness.first: value}, {harness.first: read}, reader.group_metadata))
            becomes(lambda: history.with_open_transactions(partitions), set())  # else the marker may come after "two"

        def found() -> list[object]:
            requests = [r.value for batch in history.requests(harness.first, 1, last) for r in batch]
            return [requests, list(history.journal(harness.first, from_offset=2, since_ms=None))]

        history.ask_ahead(partitions, lambda partition: (1, 2) if partition == harness.first else None)
        assert found() == found() == [[b"b", b"c"], [b"two"]]

    def test_the_newest_journal_time_is_by_the_brokers_clock(self, harness: Harness, reader: Reader) -> None:
        sink, history, other = harness.sink(), harness.history(), harness.second
        assert history.newest_journal_times([harness.first, other]) == {}
        carried = Transaction(
            [order(harness, b"a")], {harness.first: b"decided"}, {harness.first: READ}, reader.group_metadata
        )
        began_ms = harness.now_ms()
        commit(sink, carried)
        history.progress(harness.first)  # waits for the markers
        becomes(lambda: history.newest_journal_times([harness.first, other]).keys(), {harness.first})
        told = history.newest_journal_times([harness.first, other])
        assert began_ms <= told[harness.first] <= harness.now_ms()
