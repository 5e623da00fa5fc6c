"""A real bridge on a fake Kafka, for tests of programs that use the bridge. The test controls the time.

    world = TimerWorld("reminders")
    my_service(world.producer)                           # produces to timer.requests, as it does to a real Kafka
    world.pass_time(ms=60_000)
    assert [record.value for record in world.read("reminders")] == [b"..."]

Nothing sleeps: an hour passes as fast as its events are processed.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from bridge.partition.options import StoreOptions, TurnOptions
from bridge.testing.fake_instance import FakeInstance
from bridge.testing.fake_kafka import Entry, FakeGroup, FakeKafka
from bridge.testing.timeline import Timeline, nothing_happens
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules

TIMERS = "timer.requests"
_OWN = (TIMERS, "timer.journal", "timer.rejected", "timer.receipts")
_DAY_MS = 86_400_000


def usual_options() -> TurnOptions:
    """Return the default options, with a smaller wheel."""
    own = frozenset(_OWN)
    rules = Rules(max_delay_ms=366 * _DAY_MS, roll_window_ms=2 * _DAY_MS, own_topics=own, passed_on=frozenset())
    return TurnOptions(rules=rules, store=StoreOptions(tick_ms=10_000, slots=30_000), max_wait_ms=_DAY_MS)


class FakeProducer:
    """Replaces confluent_kafka.Producer for programs that send requests. Records arrive at once."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Callable[[None, Entry], None] | None = None,
        timestamp: int = 0,  # noqa: ARG002  (the broker sets it)
        headers: Headers | Mapping[str, bytes | str | None] | None = None,
        **others: Any,
    ) -> None:
        """Produce a record. Raises KeyError if the topic does not exist. `timestamp` is ignored: the broker sets it."""
        told = others.pop("callback", on_delivery)
        assert not others, f"this producer does not know {', '.join(others)}"
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        raw = [(name, _bytes(content)) for name, content in pairs]
        entry = self._kafka.produce(topic, _bytes(value), key=_bytes(key), headers=raw, partition=partition)
        if told is not None:
            told(None, entry)

    def poll(self, timeout: float = -1) -> int:  # noqa: ARG002
        """Return 0: no record waits."""
        return 0

    flush = poll


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


class TimerWorld:
    """A fake Kafka with the target topics `topics`, one partition of each timer topic, and one running bridge.

    Timer topics: timer.requests, and those of `options.topics`.
    """

    def __init__(
        self,
        *topics: str,
        options: TurnOptions | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
        start_ms: int = 1_700_000_000_000,
    ) -> None:
        self.kafka = FakeKafka(Timeline(start_ms))
        self.options = options or usual_options()
        others = self.options.topics
        for topic in (*_OWN, *others, *(other.journal_topic for other in others.values()), *topics):
            self.kafka.create(topic)
        self.group = FakeGroup("timers", [TimerPartition(topic, 0) for topic in (TIMERS, *others)])
        self.bridge = FakeInstance(self.kafka, self.group, self.options, rng=rng, meanwhile=meanwhile)
        self.producer = FakeProducer(self.kafka)
        self.bridge.run(0)

    @property
    def now_ms(self) -> int:
        """Return the time, epoch ms."""
        return self.kafka.timeline.now_ms

    def pass_time(self, *, ms: int) -> None:
        """Run the bridge until `ms` have passed and no work is left."""
        self.bridge.run(ms)

    def read(self, topic: str) -> list[Entry]:
        """Return all records that a read_committed consumer of `topic` has seen until now."""
        return self.kafka.read(topic)

    def restart(self, *, lose_disk: bool = False) -> None:
        """Kill and start the bridge. lose_disk: True to start on another machine."""
        if lose_disk:
            self.bridge.lose_disks()
        self.bridge.start()
