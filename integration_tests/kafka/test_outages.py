"""A broker that is suspended or killed: sink and history wait, and each record is committed once."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial

import pytest

from bridge.config.topic_requirements import fetch_limits
from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BrokerUnavailableError, MembershipLostError, OutcomeUnknownError, PartitionUnreadableError
from bridge.kafka import ConfluentControl, ConfluentHistory, ConfluentSink, Retrier
from bridge.kafka import client_config as clients
from bridge.kafka.readers import LIMIT_S
from bridge.ports import Aborted, Committed, Transaction
from integration_tests.conftest import FAST_RESTART, started
from integration_tests.support.patience import PATIENCE_S
from integration_tests.support.ports import Member, World, group_metadata_of, out, progress, publish

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def module_kafka() -> Iterator[EmbeddedKafka]:
    with started("outages", FAST_RESTART) as broker:
        yield broker


@pytest.fixture
def broker(module_kafka: EmbeddedKafka) -> EmbeddedKafka:
    """A running broker that the test may suspend or kill."""
    module_kafka.start(timeout_s=PATIENCE_S)
    return module_kafka


class TestOutages:
    def test_no_read_of_the_loop_waits_longer_than_5_s_for_a_frozen_broker(self, broker: EmbeddedKafka) -> None:
        assert broker.pid is not None
        with closing(World(broker.bootstrap_servers)) as world, ExitStack() as closing_:
            world.request(*[b"v" * 300] * 100)
            connection = replace(world.connection(), fetched=fetch_limits(1 << 20, is_compressed=True))
            place, journals = world.partition(), {world.requests: world.journal}
            reads: list[Callable[[ConfluentHistory], object]] = [
                lambda history: list(history.requests(place, 0, 100)),
                lambda history: list(history.journal(place, from_offset=0, since_ms=None)),
                lambda history: history.progress(place),
                lambda history: history.bounds(place),
                lambda history: history.journal_bounds(place),
                lambda history: history.offset_at(place, 1),
                lambda history: history.journal_tails([place], 20),
            ]
            histories = [ConfluentHistory(connection, journals, Retrier(), LIMIT_S) for _ in reads]
            control = ConfluentControl(connection, world.cluster.topic("control"), Retrier())
            closing_.callback(control.close)
            for history in histories:
                closing_.callback(history.close)
                assert sum(map(len, history.requests(place, 0, 100))) == 100
                assert history.progress(place) is None
            assert list(control.catch_up()) == []

            def seconds_of(read: Callable[[], object]) -> float:
                begun_s = time.monotonic()
                with pytest.raises((PartitionUnreadableError, BrokerUnavailableError)):
                    read()
                return time.monotonic() - begun_s

            os.kill(broker.pid, signal.SIGSTOP)
            closing_.callback(os.kill, broker.pid, signal.SIGCONT)
            time.sleep(1)  # on a busy machine, its threads may still answer for a moment
            with ThreadPoolExecutor(len(reads) + 1) as threads:
                calls = [partial(read, history) for read, history in zip(reads, histories, strict=True)]
                took_s = list(threads.map(seconds_of, [*calls, lambda: list(control.catch_up())]))
            assert max(took_s) < 5.5
            one = histories[0]
            checks = (one.with_open_transactions, one.stable_and_end_offsets, one.first_offsets)
            for check in (*checks, one.newest_journal_times):
                begun_s = time.monotonic()
                check([place])
                assert time.monotonic() - begun_s < 2

    def test_a_transaction_that_outlives_its_timeout_is_repeated(
        self, make_kafka: Callable[[dict[str, str]], EmbeddedKafka], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker's session is longer too, as Kafka 4.3 may forget markers of an abort while no broker leads.

        See docs/design/transactions.md.
        """
        monkeypatch.setitem(clients.PRODUCER_MUSTS, "transaction.timeout.ms", 5_000)
        kafka = make_kafka({"broker.session.timeout.ms": "60000"})
        with closing(World(kafka.bootstrap_servers)) as world:
            target, sink, member = world.cluster.topic("target"), world.sink(), world.member()
            member.own(1)
            publish(sink, Transaction([out(target, b"1")], {}, {world.partition(): progress(1)}, member.group_metadata))
            transaction = Transaction([out(target, b"2")], {}, {world.partition(): progress(2)}, member.group_metadata)
            with suspended(kafka, 7.5):
                outcome = sink.submit(transaction).wait()
            assert outcome == Aborted({})
            retry_until_success(world, sink, member, transaction)
            assert world.cluster.values(target) == [b"1", b"2"]

    def test_a_process_that_has_to_end_does_not_wait_for_a_broker(self, broker: EmbeddedKafka) -> None:
        world = World(broker.bootstrap_servers)
        target, group_metadata = world.cluster.topic("target"), group_metadata_of(world)
        closed, waiting = world.sink("closed"), world.sink("waiting")
        transactions = [
            Transaction([out(target)], {}, {world.partition(): progress(n)}, group_metadata) for n in range(2)
        ]
        broker.kill()
        in_flight = [closed.submit(transaction) for transaction in transactions]
        closed.close()
        for each in in_flight:
            with pytest.raises(BrokerUnavailableError):
                each.wait()
        world.retrier.give_up_in(1)
        began_s = time.monotonic()
        with pytest.raises(BrokerUnavailableError):
            publish(waiting, transactions[0])
        with pytest.raises(BrokerUnavailableError):
            world.history().progress(world.partition())
        assert time.monotonic() - began_s < PATIENCE_S
        world.close()


def retry_until_success(world: World, sink: ConfluentSink, member: Member, transaction: Transaction) -> None:
    """Submit until it is committed, as the bridge does; new clients follow a lost outcome or membership."""
    while True:
        try:
            member.poll()
            transaction.group_metadata = member.group_metadata
            if sink.submit(transaction).wait() == Committed():
                return
        except (OutcomeUnknownError, MembershipLostError):
            sink, member = world.sink(), world.member()
            if world.history().progress(world.partition()) == transaction.progress[world.partition()]:
                return


@contextmanager
def suspended(broker: EmbeddedKafka, seconds: float) -> Iterator[None]:
    """Suspend the broker's process for `seconds`."""
    assert broker.pid is not None
    timer = threading.Timer(seconds, os.kill, (broker.pid, signal.SIGCONT))
    os.kill(broker.pid, signal.SIGSTOP)
    timer.start()
    try:
        yield
    finally:
        timer.join()
