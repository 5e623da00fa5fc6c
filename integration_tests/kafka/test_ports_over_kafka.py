"""Ports over a real broker: facts that the fake does not have; all others are in test_ports_contract.py."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition

from bridge.errors import BridgeError, FencedError
from bridge.kafka import ConfluentControl
from bridge.kafka import client_config as clients
from bridge.kafka.group import Takeover, is_member
from bridge.kafka.transactions.producer import TransactionalProducer
from bridge.kafka.transactions.record_sender import TransactionContents
from bridge.kafka.transactions.sink import ProducerSlot
from bridge.ports import MAX_IN_FLIGHT, Aborted, Record, Transaction
from integration_tests.conftest import Broker
from integration_tests.support.patience import becomes
from integration_tests.support.ports import World, group_metadata_of, out, progress, publish

pytestmark = pytest.mark.broker


@pytest.fixture
def world(kafka: Broker) -> Iterator[World]:
    with closing(World(kafka.bootstrap_servers)) as world:
        yield world


class TestSource:
    def test_a_second_member_takes_over_a_part_and_gives_it_back_unpaused(self, kafka: Broker) -> None:
        with closing(World(kafka.bootstrap_servers, partitions=2)) as world:
            first = world.member()
            first.own(2)
            for timer_partition in first.partitions:
                first.source.start(timer_partition, 0)
            first.paused = set(first.partitions)
            second = world.member()
            first.poll_until(lambda: (len(first.partitions), len(second.partitions)) == (1, 1), second)
            assert first.group_metadata != second.group_metadata
            (moved,) = second.partitions
            second.source.start(moved, 0)
            for partition in range(2):
                world.request(b"%d" % partition, partition=partition)
            second.poll_until(lambda: second.values == [b"%d" % moved.partition], first)
            assert first.records == []
            second.source.close()
            first.own(2)
            first.paused.discard(moved)
            first.source.start(moved, 0)
            first.poll_until(lambda: first.values == second.values)
            assert not first.poll(300).records

    def test_a_request_is_read_soon_after_a_flood_of_another_partition(self, kafka: Broker) -> None:
        """The client has one queue for all partitions, in which the flood goes first as far as it was fetched."""
        with closing(World(kafka.bootstrap_servers, partitions=2)) as world:
            world.request(*[b"%0100d" % number for number in range(60_000)])
            member = world.member()
            member.own(2)
            for timer_partition in member.partitions:
                member.source.start(timer_partition, 0)
            member.poll_until(lambda: member.records != [])
            for _ in range(3_000):  # slowly, so that the client fetches ahead
                member.poll(max_records=1)
            read = len(member.records)
            world.request(b"soon", partition=1)
            member.poll_until(lambda: b"soon" in member.values[-1000:])
            assert member.values.index(b"soon") - read < 20_000, "two batches of 1 MB were fetched before it"

    @pytest.mark.parametrize(
        ("start", "told"),
        [
            (0, r"requests 0 to 1 .* gone.* the bridge goes on with what is left"),
            (7, r"has lost its end below offset 7, .* ends at 3 now"),
        ],
    )
    def test_a_start_outside_of_what_is_kept_ends_with_the_remedy(self, world: World, start: int, told: str) -> None:
        world.request(b"a", b"b", b"c")
        place = TopicPartition(world.requests, 0, 2)
        world.cluster.admin.delete_records([place])[place].result()
        member = world.member()
        member.own(1)
        member.source.start(world.partition(), start)
        with pytest.raises(BridgeError, match=told):
            member.poll_until(lambda: False)

    def test_group_metadata_of_no_member_publishes_nothing(self, world: World) -> None:
        """The coordinator would accept it."""
        target, member = world.cluster.topic("target"), world.member()
        member.poll(0)
        not_joined = member.group_metadata
        assert not is_member(not_joined)
        member.own(1)
        assert is_member(member.group_metadata)
        sink = world.sink()
        for _ in range(2):
            carried = Transaction([out(target)], {}, {world.partition(): progress(1)}, not_joined)
            assert sink.submit(carried).wait() == Aborted({})
        assert world.cluster.values(target) == []


class TestSink:
    def test_a_start_ends_open_transactions_of_the_former_life(self, world: World) -> None:
        """Otherwise progress and readers would wait for the transaction timeout. All producers do it."""
        target, group_metadata = world.cluster.topic("target"), group_metadata_of(world)
        long = {"transaction.timeout.ms": 60_000}
        settings = [clients.producer(world.connection(), number) | long for number in range(MAX_IN_FLIGHT)]
        former = [TransactionalProducer(each, world.retrier) for each in settings]
        for number, producer in enumerate(former):
            batch = TransactionContents(
                [out(target, b"lost")], {world.partition(): progress(number)}, group_metadata, {}
            )
            assert producer.await_acknowledgements(batch) is None
        sink = world.sink()
        for number, producer in enumerate(former):
            with pytest.raises(FencedError):
                producer.commit(TransactionContents([], {world.partition(): progress(number)}, group_metadata, {}))
        publish(sink, Transaction([out(target)], {}, {world.partition(): progress(7)}, group_metadata))
        assert world.cluster.values(target) == [b"v"]
        assert world.history().progress(world.partition()) == progress(7)

    def test_a_successor_ends_the_open_transaction_of_a_member_that_died(self, world: World) -> None:
        """Its time-out is a minute: only a fence of its producer can end it before."""
        takeover, dying = Takeover(world.connection("heir"), world.retrier), world.member()
        dying.own(1)
        takeover.look()
        settings = clients.producer(world.connection(), 0) | {"transaction.timeout.ms": 60_000}
        contents = TransactionContents([out(world.journal, b"lost")], {}, dying.group_metadata, {})
        assert TransactionalProducer(settings, world.retrier).await_acknowledgements(contents) is None
        began_s = time.monotonic()
        with closing(world.history(takeover.start)) as history:
            for _ in range(3):  # it is not fenced, as it is a member; a broker that answers late hides it for a moment
                becomes(lambda: history.with_open_transactions([world.partition()]), {world.partition()})
            dying.source.close()
            becomes(lambda: history.with_open_transactions([world.partition()]), set())
        assert time.monotonic() - began_s < 50

    def test_a_new_producer_survives_some_fences_but_none_after_a_commit(self, world: World) -> None:
        """Producers of the same transactional id fence it, as another process or its own late request would."""
        target, group_metadata = world.cluster.topic("target"), group_metadata_of(world)
        settings = clients.producer(world.connection(), 0)
        batch = TransactionContents([out(target)], {world.partition(): progress(1)}, group_metadata, {})

        def fenced(slot: ProducerSlot) -> bool:
            TransactionalProducer(settings, world.retrier)
            try:
                assert slot.producer.await_acknowledgements(batch) or slot.producer.commit(batch)
            except FencedError:
                return True
            slot.replace_if_broken()
            return False

        def healed() -> ProducerSlot:
            slot = ProducerSlot(world.connection(), 0, world.retrier)
            slot.producer.retire()
            slot.replace_if_broken()
            return slot

        slot = healed()
        assert [fenced(slot) for _ in range(4)] == [False, False, False, True]
        slot = healed()
        assert not fenced(slot)
        assert slot.producer.await_acknowledgements(batch) is None
        assert slot.producer.commit(batch) is None
        assert fenced(slot)
        assert world.cluster.values(target) == [b"v"]


def test_the_control_topic_is_read_to_its_end_once_and_then_polled(world: World) -> None:
    """Also after markers, and past an open transaction."""
    topic = world.cluster.topic("control")

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
        hanging = world.cluster.transactional()
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
