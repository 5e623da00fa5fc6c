"""The ports over a real broker: what each promises, and what librdkafka does when a record cannot be taken."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition

from bridge.client import TimerProducer
from bridge.config.kafka_config import Connection
from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError, BrokerUnavailableError, FencedError, InstanceIdInUseError, OutcomeUnknownError
from bridge.kafka import ConfluentControl, ConfluentHistory, ConfluentSink, ConfluentSource, Retrier
from bridge.kafka import client_config as clients
from bridge.kafka.consumer import UNREADABLE_HEADERS, headers_of
from bridge.kafka.group_metadata import is_member
from bridge.kafka.transactions.produce import PendingSends
from bridge.kafka.transactions.producer import TransactionalProducer, TransactionContents
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.ports import Aborted, Committed, Outgoing, Ownership, Polled, Record, Transaction
from integration_tests.conftest import Broker
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S, becomes
from schemas.headers import Headers
from schemas.origin import Shard
from schemas.progress import ForeignProgressError, Key, Progress

pytestmark = pytest.mark.broker


class World:
    """A timer topic with its journal, a group of its own, and ports on them."""

    def __init__(self, bootstrap_servers: str, partitions: int = 1) -> None:
        self.cluster = Cluster(bootstrap_servers)
        self.requests = self.cluster.topic("requests", partitions, message_timestamp_type="LogAppendTime")
        self.journal = self.cluster.topic("journal", partitions)
        self.group = f"group-{uuid4().hex[:8]}"
        self.retrier = Retrier()
        self._open: list[ConfluentSource | ConfluentHistory | ConfluentSink] = []

    def connection(self, instance: str = "one") -> Connection:
        return Connection(self.cluster.bootstrap_servers, self.group, instance)

    def source(self, **kafka: str) -> ConfluentSource:
        """`group_protocol="consumer"` is group.protocol=consumer."""
        settings = {name.replace("_", "."): value for name, value in kafka.items()}
        connection = replace(self.connection(), kafka=settings)
        self._open.append(source := ConfluentSource(connection, [self.requests], self.retrier))
        return source

    def history(self) -> ConfluentHistory:
        journals = {self.requests: self.journal}
        self._open.append(history := ConfluentHistory(self.connection(), journals, self.retrier))
        return history

    def sink(
        self, instance: str = "one", own_topics: frozenset[str] | None = None, compression: str = "none"
    ) -> ConfluentSink:
        journals = {self.requests: self.journal}
        connection = replace(self.connection(instance), published={"compression.type": compression})
        self._open.append(sink := ConfluentSink(connection, journals, self.retrier, own_topics))
        return sink

    def member(self) -> "Member":
        return Member(self.source())

    def shard(self, partition: int = 0) -> Shard:
        return Shard(self.requests, partition)

    def request(self, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.cluster.send(self.requests, value, partition=partition)
        self.cluster.flush()

    def close(self) -> None:
        self.retrier.give_up_in(5)
        for port in self._open:
            port.close()


class Member:
    """A source whose shards are tracked, as the turn tracks them."""

    def __init__(self, source: ConfluentSource) -> None:
        self.source = source
        self.shards: set[Shard] = set()
        self.group_metadata: object = None
        self.records: list[Record] = []

    def poll(self, timeout_ms: int = 100, max_records: int = 1000) -> Polled:
        polled = self.source.poll(timeout_ms, max_records)
        self.note(polled.ownership)
        self.group_metadata = polled.group_metadata
        for records in polled.records.values():
            self.records += records
        return polled

    def note(self, ownership: Ownership) -> None:
        self.shards.difference_update(ownership.lost, ownership.revoked)
        self.shards.update(ownership.assigned)

    def poll_until(self, done: Callable[[], bool], *others: "Member") -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end_s, "it did not come to be"
            for member in (self, *others):
                member.poll(50)

    def own(self, count: int) -> None:
        self.poll_until(lambda: len(self.shards) == count)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


@pytest.fixture
def world(kafka: Broker) -> Iterator[World]:
    with closing(World(kafka.bootstrap_servers)) as world:
        yield world


def progress(next_offset: int) -> Progress:
    return Progress(next_offset, Key(12, 3), 1)


def out(
    topic: str, value: bytes | None = b"v", key: bytes | None = None, partition: int = -1, headers: Headers = ()
) -> Outgoing:
    return Outgoing(topic, partition, key, value, list(headers), 1_700_000_000_000)


class TestSource:
    def test_what_is_assigned_yields_nothing_until_it_is_started(self, world: World) -> None:
        world.request(b"a", b"b", b"c")
        member = world.member()
        member.own(1)
        for _ in range(5):
            assert member.poll().records == {}
        member.source.start(world.shard(), 1)
        member.poll_until(lambda: len(member.records) == 2)
        assert [(record.offset, record.value) for record in member.records] == [(1, b"b"), (2, b"c")]

    def test_a_record_comes_as_it_was_sent(self, world: World) -> None:
        headers: Headers = [("timer-topic", b"x"), ("twice", b"1"), ("twice", b"\xff"), ("null", None), ("empty", b"")]
        world.cluster.send(world.requests, None, key=None)
        world.cluster.send(world.requests, b"", key=b"", headers=headers)
        world.cluster.flush()
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        member.poll_until(lambda: len(member.records) == 2)
        tombstone, empty = member.records
        assert (tombstone.key, tombstone.value, list(tombstone.headers)) == (None, None, [])
        assert (empty.key, empty.value, list(empty.headers)) == (b"", b"", headers)
        assert abs(empty.timestamp_ms - time.time() * 1000) < 60_000

    def test_a_start_anew_yields_again_from_there(self, world: World) -> None:
        world.request(*(b"%d" % n for n in range(50)))
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        member.poll_until(lambda: len(member.records) == 50)
        member.source.start(world.shard(), 45)
        member.poll_until(lambda: len(member.records) == 55)
        assert [record.offset for record in member.records[50:]] == [45, 46, 47, 48, 49]

    def test_a_poll_takes_no_more_than_it_may(self, world: World) -> None:
        world.request(*(b"%d" % n for n in range(50)))
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        while len(member.records) < 50:
            assert sum(map(len, member.poll(1000, 7).records.values())) <= 7
        assert [record.offset for record in member.records] == list(range(50))

    def test_pause_and_resume_lose_nothing(self, world: World) -> None:
        world.request(*(b"%d" % n for n in range(100)))
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        member.poll_until(lambda: len(member.records) > 0)
        for _ in range(3):
            member.source.pause(world.shard())
            member.source.pause(world.shard())
            assert member.poll(150).records == {}
            member.source.serve_rebalance()
            member.source.resume(world.shard())
            member.poll(1000, 20)
        member.poll_until(lambda: len(member.records) == 100)
        assert [record.offset for record in member.records] == list(range(100))

    def test_check_takes_no_records_and_tells_a_fresh_fence(self, world: World) -> None:
        world.request(*(b"%d" % n for n in range(30)))
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        member.poll(1000, 5)
        for _ in range(10):
            checked = member.source.serve_rebalance()
            assert checked.records == {}
            assert checked.group_metadata == member.group_metadata
        member.poll_until(lambda: len(member.records) == 30)
        assert [record.offset for record in member.records] == list(range(30))

    def test_a_shard_that_was_paused_comes_back_unpaused(self, kafka: Broker) -> None:
        with closing(World(kafka.bootstrap_servers, partitions=2)) as world:
            for partition in range(2):
                world.request(b"%d" % partition, partition=partition)
            first = world.member()
            first.own(2)
            for shard in first.shards:
                first.source.start(shard, 0)
                first.source.pause(shard)
            first.records.clear()
            second = world.member()
            first.poll_until(lambda: (len(first.shards), len(second.shards)) == (1, 1), second)
            (gone,) = second.shards
            second.source.close()
            first.own(2)
            first.source.start(gone, 0)
            first.poll_until(lambda: first.values == [b"%d" % gone.partition])
            assert not first.poll(300).records

    def test_what_was_aborted_is_not_seen(self, world: World) -> None:
        producer = world.cluster.transactional()
        for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
            producer.begin_transaction()
            producer.produce(world.requests, value)
            producer.flush(PATIENCE_S)
            end(PATIENCE_S)
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        member.poll_until(lambda: len(member.records) > 0)
        assert member.values == [b"yes"]

    def test_a_second_member_takes_over_a_part_and_gives_it_back(self, kafka: Broker) -> None:
        with closing(World(kafka.bootstrap_servers, partitions=4)) as world:
            first = world.member()
            first.own(4)
            for shard in first.shards:
                first.source.start(shard, 0)
            second = world.member()
            first.poll_until(lambda: (len(first.shards), len(second.shards)) == (2, 2), second)
            assert not first.shards & second.shards
            assert first.group_metadata != second.group_metadata
            for shard in second.shards:
                second.source.start(shard, 0)
            for partition in range(4):
                world.request(*(b"%d" % partition for _ in range(10)), partition=partition)
            first.poll_until(lambda: len(first.records) + len(second.records) == 40, second)
            assert {record.value for record in first.records} == {b"%d" % shard.partition for shard in first.shards}
            second.source.close()
            first.own(4)

    def test_a_member_that_never_started_a_shard_gives_it_back(self, kafka: Broker) -> None:
        with closing(World(kafka.bootstrap_servers, partitions=2)) as world:
            first, second = world.member(), None
            first.own(2)
            second = world.member()
            first.poll_until(lambda: (len(first.shards), len(second.shards)) == (1, 1), second)

    def test_a_start_beyond_what_is_kept_ends_with_the_remedy(self, world: World) -> None:
        world.request(b"a", b"b", b"c")
        place = TopicPartition(world.requests, 0, 2)
        world.cluster.admin.delete_records([place])[place].result()
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 0)
        with pytest.raises(BridgeError, match=r"requests 0 to 1 .* gone.* start again: it goes on with what is left"):
            member.poll_until(lambda: False)

    def test_a_start_beyond_the_end_ends_with_the_remedy(self, world: World) -> None:
        world.request(b"a", b"b", b"c")
        member = world.member()
        member.own(1)
        member.source.start(world.shard(), 7)
        with pytest.raises(BridgeError, match=r"has lost its end below offset 7, .* ends at 3 now"):
            member.poll_until(lambda: False)

    def test_a_wake_ends_a_waiting_poll(self, world: World) -> None:
        member = world.member()
        member.own(1)
        waker = threading.Timer(0.2, member.source.wake)
        waker.start()
        began_s = time.monotonic()
        member.poll(int(10_000 * PATIENCE_S))
        assert time.monotonic() - began_s < PATIENCE_S
        waker.join()

    def test_the_fence_of_no_member_is_told_apart(self, world: World) -> None:
        member = world.member()
        assert not is_member(member.poll(0).group_metadata)
        member.own(1)
        assert is_member(member.group_metadata)

    def test_a_second_member_of_one_instance_id_puts_the_first_out(self, world: World) -> None:
        first = Member(world.source(group_instance_id="pod-1"))
        first.own(1)
        second = Member(world.source(group_instance_id="pod-1"))
        with pytest.raises(FencedError, match="another process is this member"):
            second.poll_until(lambda: False, first)
        second.own(1)

    def test_a_second_member_of_one_instance_id_waits_under_the_consumer_protocol(self, world: World) -> None:
        first = Member(world.source(group_instance_id="pod-1", group_protocol="consumer"))
        first.own(1)
        with pytest.raises(InstanceIdInUseError):
            Member(world.source(group_instance_id="pod-1", group_protocol="consumer")).own(1)

    def test_headers_that_cannot_be_read_read_as_a_bad_header(self) -> None:
        def headers() -> None:
            raise SystemError("returned a result with an exception set")

        assert headers_of(SimpleNamespace(headers=headers)) == UNREADABLE_HEADERS


class TestHistory:
    def test_progress_comes_back_as_it_was_committed(self, world: World) -> None:
        assert world.history().progress(world.shard()) is None
        publish(world, world.sink(), Transaction([], {}, {world.shard(): progress(7)}, fence_of(world)))
        assert world.history().progress(world.shard()) == Progress(7, Key(12, 3), 1)

    def test_progress_that_is_not_ours_is_said_so(self, world: World) -> None:
        producer = world.cluster.transactional()
        producer.begin_transaction()
        place = TopicPartition(world.requests, 0, 3, metadata="by hand")
        producer.send_offsets_to_transaction([place], fence_of(world), PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
        with pytest.raises(ForeignProgressError, match="by hand"):
            world.history().progress(world.shard())

    def test_progress_waits_for_an_open_transaction(self, world: World) -> None:
        producer = world.cluster.transactional()
        producer.begin_transaction()
        place = TopicPartition(world.requests, 0, 3, metadata=progress(3).metadata())
        producer.send_offsets_to_transaction([place], fence_of(world), PATIENCE_S)
        ender = threading.Timer(0.5, producer.commit_transaction, (PATIENCE_S,))
        ender.start()
        assert world.history().progress(world.shard()) == progress(3)
        ender.join()

    def test_a_shard_whose_progress_is_not_decided_is_told(self, world: World) -> None:
        history, producer = world.history(), world.cluster.transactional()
        becomes(lambda: history.with_open_transactions([world.shard()]), set())
        producer.begin_transaction()
        place = TopicPartition(world.requests, 0, 3, metadata=progress(3).metadata())
        producer.send_offsets_to_transaction([place], fence_of(world), PATIENCE_S)
        assert history.with_open_transactions([world.shard()]) == {world.shard()}
        producer.commit_transaction(PATIENCE_S)
        assert history.progress(world.shard()) == progress(3)
        becomes(lambda: history.with_open_transactions([world.shard()]), set())

    def test_bounds_and_times(self, world: World) -> None:
        history = world.history()
        assert history.bounds(world.shard()) == (0, 0)
        assert history.offset_at(world.shard(), 0) == 0
        world.request(b"a", b"b", b"c")
        place = TopicPartition(world.requests, 0, 1)
        world.cluster.admin.delete_records([place])[place].result()
        assert history.bounds(world.shard()) == (1, 3)
        (records,) = history.requests(world.shard(), 0, 3)
        assert history.offset_at(world.shard(), records[0].timestamp_ms) == 1
        assert history.offset_at(world.shard(), records[-1].timestamp_ms + 1) == 3

    def test_requests_are_the_committed_ones_in_range(self, world: World) -> None:
        producer = world.cluster.transactional()
        for value, end in (
            (b"a", producer.commit_transaction),
            (b"b", producer.abort_transaction),
            (b"c", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.produce(world.requests, value)
            producer.flush(PATIENCE_S)
            end(PATIENCE_S)  # each leaves a marker: a=0, b=2, c=4, the end is 6

        def read(begin: int, end: int) -> list[tuple[int, bytes | None]]:
            batches = list(history.requests(world.shard(), begin, end))
            return [(record.offset, record.value) for batch in batches for record in batch]

        history = world.history()
        assert history.bounds(world.shard()) == (0, 6)
        assert read(0, 6) == [(0, b"a"), (4, b"c")]
        assert read(1, 4) == []
        assert read(1, 5) == [(4, b"c")]
        assert read(5, 6) == []
        assert read(3, 3) == []

    def test_a_read_may_be_left_before_its_end(self, world: World) -> None:
        world.request(*(b"%d" % n for n in range(5000)))
        history = world.history()
        assert next(iter(history.requests(world.shard(), 0, 5000)))[0].offset == 0
        assert sum(map(len, history.requests(world.shard(), 100, 5000))) == 4900

    def test_reads_and_questions_at_a_time_do_not_disturb_each_other(self, world: World) -> None:
        world.request(*(b"%d" % n for n in range(5000)))
        history = world.history()
        one, other = (history.requests(world.shard(), start, 5000) for start in (0, 100))
        assert (next(one)[0].offset, next(other)[0].offset) == (0, 100)
        assert history.progress(world.shard()) is None
        batches = [next(one), *other, *one]
        assert sum(map(len, batches)) > 5000
        assert batches[-1][-1].offset == 4999

    def test_the_journal_from_an_offset_from_a_time_and_all(self, world: World) -> None:
        history, sink, group_metadata = world.history(), world.sink(), fence_of(world)
        assert history.journal_end(world.shard()) == 0
        assert list(history.journal(world.shard(), from_offset=None, since_ms=None)) == []
        for number in range(3):
            journal = {world.shard(): b"%d" % number}
            publish(world, sink, Transaction([], journal, {world.shard(): progress(number)}, group_metadata))
        times = [message.timestamp()[1] for message in world.cluster.read(world.journal)]
        end = history.journal_end(world.shard())
        assert end == 6  # a marker behind each
        assert list(history.journal(world.shard(), from_offset=None, since_ms=None)) == [b"0", b"1", b"2"]
        assert list(history.journal(world.shard(), from_offset=2, since_ms=None)) == [b"1", b"2"]
        assert list(history.journal(world.shard(), from_offset=end, since_ms=None)) == []
        assert list(history.journal(world.shard(), from_offset=None, since_ms=times[1]))[-2:] == [b"1", b"2"]
        assert list(history.journal(world.shard(), from_offset=None, since_ms=times[2] + 60_000)) == []

    def test_the_journal_waits_for_what_is_not_decided_yet(self, world: World) -> None:
        producer = world.cluster.transactional()
        producer.begin_transaction()
        producer.produce(world.journal, b"undecided")
        producer.flush(PATIENCE_S)
        ender = threading.Timer(0.5, producer.commit_transaction, (PATIENCE_S,))
        ender.start()
        assert list(world.history().journal(world.shard(), from_offset=None, since_ms=None)) == [b"undecided"]
        ender.join()


def fence_of(world: World) -> object:
    """Of a member that stays in the group as long as the world does."""
    member = world.member()
    member.own(1)
    return member.group_metadata


def publish(world: World, sink: ConfluentSink, transaction: Transaction) -> None:
    """What a turn does: again, until it stands."""
    for _ in range(20):
        match sink.submit(transaction).wait():
            case Committed():
                return
            case Aborted(refused):
                assert refused == {}
    raise AssertionError("it never stood")


def publish_without_refused(sink: ConfluentSink, transaction: Transaction) -> tuple[dict[int, str], int]:
    """Until it stands, without what is refused. The codes by first index, and how many times it was aborted."""
    codes: dict[int, str] = {}
    left = list(enumerate(transaction.outgoing))
    stands: set[int] = set()
    for aborted in range(40):
        outgoing = [record for _, record in left]
        acknowledged = frozenset(index for index, (number, _) in enumerate(left) if number in stands)
        again = replace(transaction, outgoing=outgoing, acknowledged=acknowledged)
        match sink.submit(again).wait():
            case Committed():
                return codes, aborted
            case Aborted(refused) as fate:
                stands |= {left[index][0] for index in fate.acknowledged}
                codes |= {left[index][0]: code for index, code in refused.items()}
                left = [pair for index, pair in enumerate(left) if index not in refused]
    raise AssertionError("it never stood")


class TestSink:
    def test_a_transaction_holds_records_journal_and_progress(self, world: World) -> None:
        target = world.cluster.topic("target", 3)
        headers: Headers = [("a", b"1"), ("a", b"\xff\x00"), ("null", None), ("empty", b"")]
        outgoing = [out(target, b"v", b"k", 2, headers), out(target, None, None, 1), out(target, b"", b"", 0)]
        transaction = Transaction(outgoing, {world.shard(): b"j"}, {world.shard(): progress(5)}, fence_of(world))
        assert world.sink().submit(transaction).wait() == Committed()
        empty, tombstone, full = world.cluster.read(target)
        assert (empty.partition(), empty.key(), empty.value(), empty.headers()) == (0, b"", b"", None)
        assert (tombstone.partition(), tombstone.key(), tombstone.value()) == (1, None, None)
        assert (full.partition(), full.key(), full.value(), full.headers()) == (2, b"k", b"v", headers)
        assert full.timestamp()[1] == 1_700_000_000_000
        assert world.cluster.values(world.journal) == [b"j"]
        assert world.history().progress(world.shard()) == progress(5)

    def test_keys_choose_partitions_as_kafkas_own_clients_do(self, world: World) -> None:
        target = world.cluster.topic("target", 7)
        keys = [b"a", b"key", b"timer-1", b"\xff\xfe", b"0123456789"]
        outgoing = [out(target, key, key) for key in keys]
        publish(world, world.sink(), Transaction(outgoing, {}, {world.shard(): progress(1)}, fence_of(world)))
        found = {message.key(): message.partition() for message in world.cluster.read(target)}
        assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys}

    def test_a_large_transaction_stands_whole(self, world: World) -> None:
        target = world.cluster.topic("target", 3)
        outgoing = [out(target, b"%d" % n, b"%d" % n) for n in range(4000)]
        publish(world, world.sink(), Transaction(outgoing, {}, {world.shard(): progress(1)}, fence_of(world)))
        assert sorted(int(value or b"") for value in world.cluster.values(target)) == list(range(4000))

    def test_an_old_fence_publishes_nothing(self, world: World) -> None:
        target = world.cluster.topic("target")
        sink, member = world.sink(), world.member()
        nobody = member.poll(0).group_metadata
        member.own(1)
        old = member.group_metadata
        newcomer = world.member()
        member.poll_until(lambda: member.group_metadata != old, newcomer)
        for group_metadata in (nobody, old):
            for _ in range(2):
                outcome = sink.submit(
                    Transaction([out(target)], {}, {world.shard(): progress(1)}, group_metadata)
                ).wait()
                assert outcome == Aborted({})
        assert world.cluster.values(target) == []
        publish(world, sink, Transaction([out(target)], {}, {world.shard(): progress(1)}, member.group_metadata))
        assert world.cluster.values(target) == [b"v"]

    def test_a_second_process_with_the_same_id_fences_the_first(self, world: World) -> None:
        target = world.cluster.topic("target")
        first, group_metadata = world.sink(), fence_of(world)
        transaction = Transaction([out(target)], {}, {world.shard(): progress(1)}, group_metadata)
        publish(world, first, transaction)
        second = world.sink()
        with pytest.raises(FencedError, match="another process runs with this instance's id"):
            first.submit(transaction).wait()
        publish(world, second, transaction)
        assert world.cluster.values(target) == [b"v", b"v"]

    def test_what_a_former_life_left_open_is_ended_at_the_start(self, world: World) -> None:
        """By both producers: else progress and readers would wait for the time-out."""
        target, group_metadata = world.cluster.topic("target"), fence_of(world)
        long = {"transaction.timeout.ms": 60_000}
        settings = [clients.producer(world.connection(), number) | long for number in range(2)]
        former = [TransactionalProducer(each, world.retrier) for each in settings]
        for number, producer in enumerate(former):
            batch = TransactionContents([out(target, b"lost")], {world.shard(): progress(number)}, group_metadata, {})
            assert producer.fill(batch) is None
        sink = world.sink()
        for number, producer in enumerate(former):
            with pytest.raises(FencedError):
                producer.settle(TransactionContents([], {world.shard(): progress(number)}, group_metadata, {}))
        publish(world, sink, Transaction([out(target)], {}, {world.shard(): progress(7)}, group_metadata))
        assert world.cluster.values(target) == [b"v"]
        assert world.history().progress(world.shard()) == progress(7)

    def test_what_a_dead_instance_left_open_holds_readers_for_the_transaction_time_out_and_no_longer(
        self, world: World
    ) -> None:
        target, group_metadata = world.cluster.topic("target"), fence_of(world)
        dead = TransactionalProducer(clients.producer(world.connection("dead"), 0), world.retrier)
        assert (
            dead.fill(TransactionContents([out(target, b"lost")], {world.shard(): progress(1)}, group_metadata, {}))
            is None
        )
        began_s = time.monotonic()
        publish(world, world.sink(), Transaction([out(target)], {}, {world.shard(): progress(2)}, group_metadata))
        assert world.cluster.values(target) == [b"v"]
        assert time.monotonic() - began_s < 4 * clients.TRANSACTION_TIMEOUT_MS / 1000
        assert world.history().progress(world.shard()) == progress(2)

    def test_a_successor_is_forgiven_some_fences_but_none_behind_a_commit(self, world: World) -> None:
        """As another process would, others of its id put it out; nobody could tell them from its own late start."""
        target, group_metadata = world.cluster.topic("target"), fence_of(world)
        settings = clients.producer(world.connection(), 0)
        batch = TransactionContents([out(target)], {world.shard(): progress(1)}, group_metadata, {})

        def fenced(lane: ProducerSlot) -> bool:
            TransactionalProducer(settings, world.retrier)
            try:
                assert lane.producer.fill(batch) or lane.producer.settle(batch)
            except FencedError:
                return True
            lane.replace_if_broken()
            return False

        def healed() -> ProducerSlot:
            lane = ProducerSlot(world.connection(), 0, world.retrier)
            lane.producer.is_broken = True
            lane.replace_if_broken()
            return lane

        lane = healed()
        assert [fenced(lane) for _ in range(4)] == [False, False, False, True]
        lane = healed()
        assert not fenced(lane)
        assert lane.producer.fill(batch) is None
        assert lane.producer.settle(batch) is None
        assert fenced(lane)
        assert world.cluster.values(target) == [b"v"]

    def test_two_instances_publish_side_by_side(self, world: World) -> None:
        target, group_metadata = world.cluster.topic("target"), fence_of(world)
        sinks = world.sink("one"), world.sink("two")
        for sink in sinks * 3:
            publish(world, sink, Transaction([out(target)], {}, {world.shard(): progress(1)}, group_metadata))
        assert world.cluster.values(target) == [b"v"] * 6


class TestSinkRefuses:
    """What can never be taken is named; the rest stands; nothing of an aborted transaction is ever seen."""

    def run(self, world: World, sink: ConfluentSink, outgoing: list[Outgoing]) -> tuple[dict[int, str], int]:
        self.group_metadata = getattr(self, "group_metadata", None) or fence_of(world)
        return publish_without_refused(
            sink, Transaction(outgoing, {}, {world.shard(): progress(1)}, self.group_metadata)
        )

    def test_case_25_an_unknown_topic_until_it_is_made(self, world: World) -> None:
        good, missing = world.cluster.topic("good"), f"missing-{uuid4().hex[:8]}"
        sink = world.sink()
        outgoing = [out(good, b"1"), out(missing), out(good, b"2"), out(missing)]
        for _ in range(2):
            codes, aborted = self.run(world, sink, outgoing)
            assert codes == {1: "unknown-topic", 3: "unknown-topic"}
            assert aborted == 1
        assert world.cluster.values(good) == [b"1", b"2"] * 2
        world.cluster.create(missing)
        codes, _ = self.run(world, sink, outgoing)
        assert codes == {}
        assert world.cluster.values(missing) == [b"v", b"v"]

    def test_a_topic_that_is_deleted_later(self, world: World) -> None:
        good, doomed = world.cluster.topic("good"), world.cluster.topic("doomed")
        sink = world.sink()
        outgoing = [out(good), out(doomed)]
        assert self.run(world, sink, outgoing)[0] == {}
        world.cluster.delete(doomed)
        assert self.run(world, sink, outgoing)[0] == {1: "unknown-topic"}
        assert world.cluster.values(good) == [b"v"] * 2

    def test_no_producer_is_asked_about_a_topic_that_is_not_there(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would keep the name for ever and ask for it each second, and senders choose names."""
        asked: list[str] = []
        real = PendingSends.partitions_of

        def partitions_of(sending: PendingSends, topic: str) -> int | KafkaError:
            asked.append(topic)
            return real(sending, topic)

        monkeypatch.setattr(PendingSends, "partitions_of", partitions_of)
        there, names = world.cluster.topic(), [f"nobody-made-{uuid4().hex}" for _ in range(5)]
        refused, _ = self.run(world, world.sink(), [out(topic) for topic in (there, *names)])
        assert refused == dict.fromkeys(range(1, 6), "unknown-topic")
        assert {*asked} <= {there}

    def test_a_topic_does_not_come_to_be_by_being_asked_for(
        self, make_kafka: Callable[[dict[str, str]], EmbeddedKafka]
    ) -> None:
        """Where brokers make topics of whatever name, which is Kafka's default, a misspelt one would take what nobody
        reads."""
        kafka = make_kafka({"auto.create.topics.enable": "true"})
        misspelt = f"ordrs-{uuid4().hex}"
        with closing(World(kafka.bootstrap_servers)) as world:
            assert self.run(world, world.sink(), [out(misspelt)])[0] == {0: "unknown-topic"}
            client = TimerProducer({"bootstrap.servers": kafka.bootstrap_servers}, timer_topic=misspelt)
            with pytest.raises(BridgeError, match="there is no such topic"), client:
                client.schedule("orders", "v", delay=1)
            assert misspelt not in world.cluster.admin.list_topics(timeout=PATIENCE_S).topics

    def test_case_32_an_unknown_partition_until_it_is_made(self, world: World) -> None:
        good = world.cluster.topic("good", 2)
        sink = world.sink()
        outgoing = [out(good, b"1", partition=0), out(good, b"2", partition=2), out(good, b"3", partition=1)]
        for _ in range(2):
            assert self.run(world, sink, outgoing) == ({1: "unknown-partition"}, 1)
        world.cluster.grow(good, 3)
        assert self.run(world, sink, outgoing)[0] == {}
        assert sorted(filter(None, world.cluster.values(good))) == [b"1", b"1", b"1", b"2", b"3", b"3", b"3"]

    @pytest.mark.parametrize("own_topics", [None, frozenset({"timer.requests"})], ids=["exactly once", "at least once"])
    def test_case_25_what_compresses_is_taken_beside_a_smaller_one_that_does_not(
        self, world: World, own_topics: frozenset[str] | None
    ) -> None:
        small = world.cluster.topic("small", max_message_bytes="2000")
        text, noise = b"a" * 5000, random.Random(1).randbytes(3000)
        sink = world.sink(own_topics=own_topics, compression="lz4")
        outgoing = [out(small, b"1"), out(small, text), out(small, noise), out(small, b"2")]
        for _ in range(2):
            assert self.run(world, sink, outgoing)[0] == {2: "too-large"}
        assert sorted(filter(None, world.cluster.values(small))) == sorted([b"1", b"2", text] * 2)

    def test_case_25_records_too_large_for_their_target(self, world: World) -> None:
        good, small = world.cluster.topic("good"), world.cluster.topic("small", max_message_bytes="1000")
        sink = world.sink()
        outgoing = [out(small, b"x" * size) for size in (10, 5000, 20, 2000, 30)] + [out(good, b"y" * 5000)]
        codes, aborted = self.run(world, sink, outgoing)
        assert codes == {1: "too-large", 3: "too-large"}
        assert aborted <= 4
        assert world.cluster.values(good) == [b"y" * 5000]
        assert world.cluster.values(small) == [b"x" * 10, b"x" * 20, b"x" * 30]
        # It is remembered, so a stream of them costs no more aborts.
        assert self.run(world, sink, outgoing) == (codes, 1)

    def test_the_largest_that_fits_is_found_among_thousands(self, world: World) -> None:
        small = world.cluster.topic("small", max_message_bytes="1000")
        outgoing = [out(small, b"x" * (1 + (7919 * n) % 2000)) for n in range(1000)]
        codes, aborted = self.run(world, world.sink(), outgoing)
        sent = [len(value or b"") for value in world.cluster.values(small)]
        assert set(codes.values()) == {"too-large"}
        assert sorted(sent) == sorted(len(r.value or b"") for i, r in enumerate(outgoing) if i not in codes)
        assert max(sent) > 900
        assert min(len(outgoing[i].value or b"") for i in codes) > max(sent)
        assert aborted <= 12

    def test_case_25_a_batch_too_large_though_each_record_fits(self, world: World) -> None:
        good, small = world.cluster.topic("good"), world.cluster.topic("small", max_message_bytes="1000")
        sink = world.sink()
        outgoing = [out(small, b"%03d" % n * 33) for n in range(30)] + [out(good)]
        codes, aborted = self.run(world, sink, outgoing)
        assert codes == {}
        assert aborted <= 12
        assert world.cluster.values(small) == [record.value for record in outgoing[:30]]
        assert self.run(world, sink, outgoing) == ({}, 0)

    def test_a_record_without_key_on_a_compacted_topic(self, world: World) -> None:
        good, compacted = world.cluster.topic("good"), world.cluster.topic("compacted", cleanup_policy="compact")
        outgoing = [out(good), out(compacted, b"1", b"k"), out(compacted, b"2"), out(compacted, b"3", b"k")]
        codes, aborted = self.run(world, world.sink(), outgoing)
        assert codes == {2: "bad-target"}
        assert aborted <= 3
        assert world.cluster.values(compacted) == [b"1", b"3"]

    def test_all_kinds_at_once(self, world: World) -> None:
        good, small = world.cluster.topic("good", 2), world.cluster.topic("small", max_message_bytes="1000")
        outgoing = []
        for n in range(100):
            outgoing += [out(good, b"%d" % n), out(small, b"s" * (10 if n % 3 else 3000))]
            outgoing += [out("no-such-topic")] if n % 10 == 0 else []
            outgoing += [out(good, partition=9)] if n % 20 == 0 else []
        codes, aborted = self.run(world, world.sink(), outgoing)
        by_code = {code: sum(1 for found in codes.values() if found == code) for code in set(codes.values())}
        assert by_code == {"unknown-topic": 10, "unknown-partition": 5, "too-large": 34}
        assert aborted <= 20
        assert len(world.cluster.values(good)) == 100
        assert len(world.cluster.values(small)) == 66

    @pytest.mark.parametrize("is_first", [True, False])
    @pytest.mark.parametrize("may_describe", [True, False])
    def test_case_25_a_denied_topic(
        self, make_kafka: Callable[[dict[str, str]], EmbeddedKafka], *, is_first: bool, may_describe: bool
    ) -> None:
        broker = make_kafka(
            {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "true",
            }
        )
        with closing(World(broker.bootstrap_servers)) as world:
            good, other, denied = (world.cluster.topic(name) for name in ("good", "other", "denied"))
            world.cluster.deny(denied, may_describe=may_describe)
            sink = world.sink()
            if not is_first:
                self.run(world, sink, [out(good, b"before")])
            outgoing = [out(good, b"1"), out(denied), out(other, b"2"), out(denied), out(good, b"3")]
            codes, aborted = self.run(world, sink, outgoing)
            assert codes == {1: "not-authorized", 3: "not-authorized"}
            assert aborted <= 2
            assert world.cluster.values(other) == [b"2"]
            assert self.run(world, sink, outgoing) == (codes, 1)
            assert [v for v in world.cluster.values(good) if v != b"before"] == [b"1", b"3"] * 2


class TestTrouble:
    """A broker that stands still or dies in the middle: the sink and the history wait, and nothing is doubled."""

    def test_a_broker_that_stands_still_is_waited_for(self, own_kafka: EmbeddedKafka) -> None:
        with closing(World(own_kafka.bootstrap_servers)) as world:
            world.request(b"a", b"b")
            history = world.history()
            for _ in range(3):  # each time the leader is elected anew
                with stopped(own_kafka, 5):
                    assert history.bounds(world.shard()) == (0, 2)
                    assert history.journal_end(world.shard()) == 0
                    assert history.offset_at(world.shard(), 0) == 0

    def test_a_transaction_that_outlives_its_time_out_is_repeated(
        self, make_kafka: Callable[[dict[str, str]], EmbeddedKafka]
    ) -> None:
        """Its broker's session outlives it too, as Kafka 4.3 may forget an abort's markers where no broker leads.

        See docs/design/kafka-markers.md.
        """
        kafka = make_kafka({"broker.session.timeout.ms": "60000"})
        with closing(World(kafka.bootstrap_servers)) as world:
            target, sink, member = world.cluster.topic("target"), world.sink(), world.member()
            member.own(1)
            publish(
                world, sink, Transaction([out(target, b"1")], {}, {world.shard(): progress(1)}, member.group_metadata)
            )
            transaction = Transaction([out(target, b"2")], {}, {world.shard(): progress(2)}, member.group_metadata)
            with stopped(kafka, 13):
                outcome = sink.submit(transaction).wait()
            assert outcome == Aborted({})
            retry_until_success(world, sink, member, transaction)
            assert world.cluster.values(target) == [b"1", b"2"]

    def test_a_producer_that_its_own_late_start_has_fenced_is_replaced(self, own_kafka: EmbeddedKafka) -> None:
        """The second one stands for the first request, which a broker that stood still carries out behind the next."""
        with closing(World(own_kafka.bootstrap_servers)) as world:
            target, group_metadata = world.cluster.topic("target"), fence_of(world)
            settings = clients.producer(world.connection(), 0)
            with stopped(own_kafka, 5):
                asked_twice = TransactionalProducer(settings, world.retrier)
            late = TransactionalProducer(settings, world.retrier)
            batch = TransactionContents([out(target)], {world.shard(): progress(1)}, group_metadata, {})
            assert asked_twice.fill(batch) or asked_twice.settle(batch)
            assert asked_twice.is_broken
            assert late.fill(batch) is None
            assert late.settle(batch) is None
            TransactionalProducer(settings, world.retrier)
            with pytest.raises(FencedError):
                assert late.fill(batch) or late.settle(batch)

    def test_a_broker_killed_and_started_again(self, own_kafka: EmbeddedKafka) -> None:
        """The markers of the first stand before the kill, as Kafka 4.3 may forget them where no other broker leads.

        See docs/design/kafka-markers.md; kills without that wait: test_brokers.py.
        """
        with closing(World(own_kafka.bootstrap_servers)) as world:
            target, sink, member = world.cluster.topic("target"), world.sink(), world.member()
            member.own(1)
            publish(
                world, sink, Transaction([out(target, b"1")], {}, {world.shard(): progress(1)}, member.group_metadata)
            )
            assert world.cluster.values(target) == [b"1"]
            assert world.history().progress(world.shard()) == progress(1)
            own_kafka.kill()
            starter = threading.Timer(1.0, own_kafka.start)
            starter.start()
            retry_until_success(
                world,
                sink,
                member,
                Transaction([out(target, b"2")], {}, {world.shard(): progress(2)}, member.group_metadata),
            )
            starter.join()
            assert world.cluster.values(target) == [b"1", b"2"]
            assert world.history().progress(world.shard()) == progress(2)

    def test_a_sink_is_closed_though_no_broker_answers(self, own_kafka: EmbeddedKafka) -> None:
        world = World(own_kafka.bootstrap_servers)
        target, sink, group_metadata = world.cluster.topic("target"), world.sink(), fence_of(world)
        own_kafka.kill()
        transactions = [Transaction([out(target)], {}, {world.shard(): progress(n)}, group_metadata) for n in range(2)]
        on_their_way = [sink.submit(transaction) for transaction in transactions]
        sink.close()
        for each in on_their_way:
            with pytest.raises(BrokerUnavailableError):
                each.wait()
        world.close()

    def test_whoever_has_to_end_does_not_wait_for_ever(self, own_kafka: EmbeddedKafka) -> None:
        world = World(own_kafka.bootstrap_servers)
        target, sink, group_metadata = world.cluster.topic("target"), world.sink(), fence_of(world)
        own_kafka.kill()
        world.retrier.give_up_in(1)
        began_s = time.monotonic()
        transaction = Transaction([out(target)], {}, {world.shard(): progress(1)}, group_metadata)
        with pytest.raises(BrokerUnavailableError):
            publish(world, sink, transaction)
        with pytest.raises(BrokerUnavailableError):
            world.history().progress(world.shard())
        assert time.monotonic() - began_s < PATIENCE_S
        world.close()


def retry_until_success(world: World, sink: ConfluentSink, member: Member, transaction: Transaction) -> None:
    """As the bridge does: until it stands; where nobody knows, a new life asks Kafka."""
    while True:
        member.poll()
        transaction.group_metadata = member.group_metadata
        try:
            if sink.submit(transaction).wait() == Committed():
                return
        except OutcomeUnknownError:
            sink = world.sink()
            if world.history().progress(world.shard()) == transaction.progress[world.shard()]:
                return


class stopped:  # noqa: N801  (reads as a statement)
    """The broker's process stands still at first, and goes on after so many seconds."""

    def __init__(self, broker: EmbeddedKafka, seconds: float) -> None:
        assert broker.pid is not None
        self._pid = broker.pid
        self._timer = threading.Timer(seconds, os.kill, (self._pid, signal.SIGCONT))

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.join()


def murmur2(data: bytes) -> int:
    """Kafka's, written down here once more, so that no library is taken at its word."""
    length, m, r = len(data), 0x5BD1E995, 24
    h = 0x9747B28C ^ length
    whole = length // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ ((k ^ k >> r) * m & 0xFFFFFFFF)
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return h ^ h >> 15


def test_the_control_topic_is_read_to_its_end_once_then_what_comes(world: World) -> None:
    """Also beyond markers, and beyond a transaction that is open."""
    topic = f"control-{uuid4().hex[:8]}"
    world.cluster.create(topic, 1)

    def send(*numbers: int) -> list[bytes]:
        for number in numbers:
            world.cluster.send(topic, b"%d" % number)
        world.cluster.flush()
        return [b"%d" % number for number in numbers]

    def values(records: Iterable[Record]) -> list[bytes | None]:
        return [record.value for record in records]

    with closing(ConfluentControl(world.connection(), topic, world.retrier)) as control:
        assert values(control.catch_up()) == []
        sent = send(*range(1200))
        hanging = Producer({"bootstrap.servers": world.cluster.bootstrap_servers, "transactional.id": topic})
        hanging.init_transactions()
        for number in range(2):
            hanging.begin_transaction()
            hanging.produce(topic, b"by a transaction")
            hanging.flush()
            if number == 0:
                hanging.commit_transaction()
        assert values(control.catch_up()) == [*sent, b"by a transaction", b"by a transaction"]
        hanging.abort_transaction()
        assert values(control.catch_up()) == []
        sent = send(7, 8)
        found: list[bytes | None] = []

        def read_on() -> list[bytes | None]:
            found.extend(values(control.poll()))
            return found

        becomes(read_on, sent)
        assert values(control.poll()) == []
