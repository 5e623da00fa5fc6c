"""Fakes for tests of programs that use the bridge: a Kafka in memory, the ports over it, and a whole bridge.

Start with TimerWorld. Use FakeKafka and FakeInstance to control a single instance.
"""

from bridge.testing.fake_kafka import FakeGroup, FakeKafka, Timeline
from bridge.testing.fakes import (
    FakeClock,
    FakeControl,
    FakeHistory,
    FakeInstance,
    FakePreparation,
    FakePublishing,
    FakeSink,
    FakeSource,
)
from bridge.testing.timer_world import FakeProducer, TimerWorld

__all__ = [
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
    "Timeline",
    "TimerWorld",
]
