"""Fakes for tests of programs that use the bridge: a Kafka in memory, the ports over it, and a whole bridge.

Start with TimerWorld. Use FakeKafka and FakeInstance to control a single instance.
"""

from bridge.testing.fake_control import FakeControl
from bridge.testing.fake_group import FakeGroup
from bridge.testing.fake_history import FakeHistory
from bridge.testing.fake_instance import FakeInstance, FakePreparation
from bridge.testing.fake_kafka import FakeKafka
from bridge.testing.fake_sink import FakePublishing, FakeSink
from bridge.testing.fake_source import FakeSource
from bridge.testing.timeline import FakeClock, Timeline
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
