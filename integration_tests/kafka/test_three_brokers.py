"""Brokers that die at any moment, where another one leads then: what was committed stands, once and in order.

Figures (`pytest -s`): the longest time without a delivery around the kill of a leader.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from bridge.ports import Aborted, Committed, Transaction
from integration_tests.conftest import JARS_CACHE, RUN
from integration_tests.support.instances import Field
from integration_tests.support.ports import World, out, progress
from scripts.chaos.three_brokers import ThreeBrokers

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    with ThreeBrokers(RUN / "kafka-three", jars_cache=JARS_CACHE) as brokers:
        yield brokers


def led_elsewhere(brokers: ThreeBrokers, make: Callable[[], str]) -> tuple[str, int]:
    """A topic whose leader may be killed, and that leader."""
    while True:
        topic = make()
        leader = brokers.leader(topic)
        if leader != 1:
            return topic, leader


def test_two_on_their_way_when_a_leader_is_killed(brokers: ThreeBrokers) -> None:
    """Whatever becomes of each, none is skipped, doubled or out of order, also without waiting for markers."""
    with closing(World(brokers.bootstrap_servers)) as world:
        target, leader = led_elsewhere(brokers, lambda: world.cluster.topic("target"))
        sink, member = world.sink(), world.member()
        member.own(1)

        def carry(number: int) -> Transaction:
            records = [out(target, b"%d/%d" % (number, n)) for n in range(50)]
            return Transaction(records, {}, {world.shard(): progress(number)}, member.group_metadata)

        next_, last, killed_at = 1, 40, 10
        starter = threading.Timer(5.0, brokers.node(leader).start)
        while next_ <= last:
            numbers = range(next_, min(next_ + 2, last + 1))
            on_their_way = [sink.submit(carry(number)) for number in numbers]
            if starter.ident is None and next_ >= killed_at:
                brokers.node(leader).kill()
                starter.start()
            outcomes = [each.wait() for each in on_their_way]
            assert outcomes in ([Committed()] * 2, [Committed(), Aborted({})], [Aborted({})] * 2, [Committed()])
            next_ += outcomes.count(Committed())
            member.poll()
        starter.join()
        assert world.cluster.values(target) == [b"%d/%d" % (k, n) for k in range(1, last + 1) for n in range(50)]
        assert world.history().progress(world.shard()) == progress(last)


@pytest.mark.slow
def test_case_26_brokers_are_killed_and_come_back_under_load(brokers: ThreeBrokers, tmp_path: Path) -> None:
    """First the leader of the real topic, then the other one that may be killed: coordinators and journals move too."""
    with closing(Field(brokers.bootstrap_servers, tmp_path, 2)) as field:
        field.start("one")
        leader = brokers.leader(field.target)
        with field.load():
            field.until_delivered(200)
            for node_id in sorted((2, 3), key=lambda each: each != leader):
                brokers.node(node_id).kill()
                field.until_delivered(200)
                brokers.node(node_id).start()
                field.until_delivered(200)
        seen = field.demand_each_once()
    pauses = (after.appended_ms - before.appended_ms for before, after in pairwise(seen))
    print(f"\nthe longest time without a delivery while brokers were killed: {max(pauses)} ms")  # noqa: T201
