"""Transactions of the fakes end whole or not at all. The rest is in integration_tests/kafka/test_ports_contract.py."""

from random import Random

import pytest

from bridge.errors import OutcomeUnknownError
from bridge.ports import Outgoing, Transaction
from bridge.testing import Crash, FakeGroup, FakeKafka, FakeSink, FakeSource, Fuse, Timeline
from kafka_timer.origin import TimerPartition
from schemas.progress import NOTHING_SETTLED, Progress

FIRST, SECOND = (TimerPartition("timer.requests", number) for number in range(2))


class World:
    """A group of one bridge, and sinks of it. seed: decides what becomes of a dead client's commit."""

    def __init__(self, seed: int) -> None:
        self.kafka = FakeKafka(Timeline(), Random(seed))
        for topic in ("timer.requests", "timer.journal", "orders"):
            self.kafka.create(topic, 2)
        self.group = FakeGroup("timers", [FIRST, SECOND])
        self._source = FakeSource(self.kafka, self.group, "bridge")
        self._source.poll(0, 1)

    def sink(self, **more: object) -> FakeSink:
        return FakeSink(self.kafka, self.group, "bridge", "timer.journal", **more)  # type: ignore[arg-type]

    def transaction(self, reached: Progress) -> Transaction:
        orders = [
            Outgoing("orders", -1, None, value, [("timer-origin", b"timer.requests/0/0")], 5) for value in (b"a", b"b")
        ]
        return Transaction(orders, {FIRST: b"decided"}, {FIRST: reached}, self._source.membership.group_metadata)

    def progress(self) -> Progress | None:
        found = self.kafka.stable_offset("timers", FIRST)
        return None if found is None else Progress.committed(*found)


def test_after_an_unknown_outcome_the_transaction_stands_as_a_whole_or_not_at_all() -> None:
    world = World(0)
    outcomes = set()
    for seed in range(20):
        sink = world.sink(rng=Random(seed))
        sink.unknown_chance, before = 1.0, len(world.kafka.read("orders"))
        reached = Progress(seed, NOTHING_SETTLED, seed)
        submitted = sink.submit(world.transaction(reached))
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                submitted.wait()
        world.sink()  # the next life
        outcomes.add((len(world.kafka.read("orders")) - before, world.progress() == reached))
        world.kafka.timeline.advance(1)
    assert outcomes == {(0, False), (2, True)}


def test_a_crash_at_any_step_leaves_all_or_nothing() -> None:
    found, places = set(), set[str]()
    for step in range(1, 40):
        world, fuse = World(step), Fuse()
        sink = world.sink(fuse=fuse)
        fuse.arm(step % 10 + 1, "sink.")
        with pytest.raises(Crash):
            sink.submit(world.transaction(Progress(1, NOTHING_SETTLED, 1))).wait()
        places.add(fuse.where)
        world.kafka.timeline.advance(20_000)
        found.add((len(world.kafka.read("orders")), world.progress() is not None))
    assert found == {(0, False), (2, True)}
    at_end = {f"sink.{step}" for step in ("end", "offsets", "offsets done", "commit", "commit asked", "commit done")}
    assert places == {"sink.submit", "sink.produce", "sink.journal"} | at_end
