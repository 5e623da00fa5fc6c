"""A bridge without a broker, for tests: its ports over a Kafka in memory, and a time that the test moves.

    kafka = FakeKafka(Timeline())
    for topic in ("timer.requests", "timer.rejected", "timer.journal", "orders"): kafka.create(topic)
    bridge = FakeInstance(kafka, FakeGroup("timers", [TimerPartition("timer.requests", 0)]), options)
    kafka.produce("timer.requests", b"hello", headers=[("timer-topic", b"orders"), ("timer-delay-ms", b"500")])
    bridge.run(499);  assert kafka.read("orders") == []
    bridge.run(1);    assert [record.value for record in kafka.read("orders")] == [b"hello"]
    bridge.lose_power();  bridge.start();  bridge.run(1000);  assert len(kafka.read("orders")) == 1

A wait moves the time to the next event, so an hour passes at once. A `Fuse` ends an instance at any call of its ports,
before or after the effect (`Crash`). `FakeInstance.start` starts a new one on the remaining data.

Start with TimerWorld, one bridge with its topics; use FakeKafka and FakeInstance to control single instances.
"""

from bridge.testing.fake_history import FakeHistory
from bridge.testing.fake_instance import FakeInstance, FakePreparation
from bridge.testing.fake_kafka import Entry, FakeGroup, FakeKafka
from bridge.testing.fake_sink import FakePublishing, FakeSink
from bridge.testing.fake_source import FakeControl, FakeSource
from bridge.testing.timeline import FakeClock, Timeline
from bridge.testing.timer_world import FakeProducer, TimerWorld
from timer.testing import Crash, Fuse, SimDisk

__all__ = [
    "Crash",
    "Entry",
    "FakeClock",
    "FakeControl",
    "FakeGroup",
    "FakeHistory",
    "FakeInstance",
    "FakeKafka",
    "FakePreparation",
    "FakeProducer",
    "FakePublishing",
    "FakeSink",
    "FakeSource",
    "Fuse",
    "SimDisk",
    "Timeline",
    "TimerWorld",
]
