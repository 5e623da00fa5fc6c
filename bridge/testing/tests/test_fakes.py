"""Transactions of the fakes end whole or not at all. The rest is in integration_tests/kafka/test_ports_contract.py."""

from random import Random

import pytest

from bridge.ports import Outgoing, Transaction
from bridge.testing import Crash, FakeGroup, FakeKafka, FakeSink, FakeSource, Fuse, Timeline
from kafka_timer.origin import TimerPartition
from schemas.progress import NOTHING_SETTLED, Progress

PARTITION = TimerPartition("timer.requests", 0)


def test_a_crash_at_any_step_leaves_all_or_nothing() -> None:
    found, places = set(), set[str]()
    for step in range(1, 40):
        kafka, fuse = FakeKafka(Timeline(), Random(step)), Fuse()
        for topic in ("timer.requests", "timer.journal", "orders"):
            kafka.create(topic, 2)
        source = FakeSource(kafka, group := FakeGroup("timers", [PARTITION]), "bridge")
        source.poll(0, 1)
        orders = [Outgoing("orders", -1, None, b"%d" % n, [("timer-origin", b"timer.requests/0/0")], 5) for n in (1, 2)]
        decided, reached = {PARTITION: b"decided"}, {PARTITION: Progress(1, NOTHING_SETTLED, 1)}
        sink = FakeSink(kafka, group, "bridge", "timer.journal", fuse=fuse)
        fuse.arm(step % 10 + 1, "sink.")
        with pytest.raises(Crash):
            sink.submit(Transaction(orders, decided, reached, source.membership.group_metadata)).wait()
        places.add(fuse.where)
        kafka.timeline.advance(20_000)
        found.add((len(kafka.read("orders")), kafka.stable_offset("timers", PARTITION) is not None))
    assert found == {(0, False), (2, True)}
    at_end = {f"sink.{step}" for step in ("end", "offsets", "offsets done", "commit", "commit asked", "commit done")}
    assert places == {"sink.submit", "sink.produce", "sink.journal"} | at_end
