"""Control over the fake Kafka."""

from random import Random

from bridge.errors import BrokerUnavailableError
from bridge.ports import Record
from bridge.testing.fake_kafka import FakeKafka
from bridge.testing.fake_log import record_of
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.origin import TimerPartition
from timer.testing import Fuse


class FakeControl:
    """Implements Control. Creates the topic if it is missing. With `rng`, a poll may miss the newest records."""

    def __init__(self, kafka: FakeKafka, *, fuse: Fuse | None = None, rng: Random | None = None) -> None:
        if CONTROL_TOPIC not in kafka.topics:
            kafka.create(CONTROL_TOPIC)
        self._log = kafka.partition(TimerPartition(CONTROL_TOPIC, 0))
        self._fuse = fuse or Fuse()
        self._rng = rng
        self.position = 0
        self.is_silent = False
        """True if no broker answers."""

    def has_news(self) -> bool:
        return self.position < self._log.last_stable and not self.is_silent

    def poll(self) -> list[Record]:
        self._fuse.step("control.poll")
        if not self.has_news():
            return []
        end = self._log.last_stable
        return self._take(self._rng.randint(self.position, end) if self._rng else end)

    def catch_up(self) -> list[Record]:
        self._fuse.step("control.catch_up")
        if self.is_silent:
            raise BrokerUnavailableError("no broker answers")
        return self._take(self._log.last_stable)

    def _take(self, end: int) -> list[Record]:
        start, self.position = self.position, end
        return [record_of(entry) for entry in self._log.committed(start, end)] if start < end else []
