"""Histories of the canary with a bridge and no broker."""

from bridge.cli.canary_command import Canary
from bridge.tests.test_client import Place

TOPIC = "timer-canary"


class Perch(Place):
    """A canary beside the client: due after 5 s, lost 30 s later."""

    def __init__(self) -> None:
        super().__init__()
        self.kafka.create(TOPIC)
        self.canary = Canary(self.timers, TOPIC, 5_000, 30_000)
        self._read = 0

    @property
    def now_ms(self) -> int:
        return self.kafka.timeline.now_ms

    def receive(self) -> None:
        entries = self.kafka.read(TOPIC)[self._read :]
        self._read += len(entries)
        self.canary.receive([entry.headers for entry in entries], self.now_ms)

    def counts(self) -> tuple[float | None, ...]:
        """Return how many were sent, received, lost, and received again."""
        names = ("sent", "received", "lost", "duplicates")
        return tuple(self.sample(f"{name}_total") for name in names)

    def sample(self, name: str) -> float | None:
        return self.canary.registry.get_sample_value(f"timer_canary_{name}")


def test_a_timer_goes_the_whole_way() -> None:
    place = Perch()
    place.canary.send(place.now_ms)
    place.bridge.run(4_999)
    place.receive()
    assert place.counts() == (1, 0, 0, 0)
    place.bridge.run(1_001)
    place.receive()
    assert (place.counts(), place.canary.is_waiting, place.canary.losses(place.now_ms)) == ((1, 1, 0, 0), False, [])
    assert place.sample("last_lateness_seconds") == 1
    assert place.sample("lateness_seconds_sum") == 1
    assert place.sample("last_success_timestamp_seconds") == place.now_ms / 1000


def test_a_timer_that_does_not_come_in_time_is_lost_once_and_may_come_later() -> None:
    place = Perch()
    start_ms = place.now_ms
    place.canary.send(start_ms)
    (asked,) = place.kafka.read("timer.requests")
    assert place.canary.losses(start_ms + 35_000) == []
    (lost,) = place.canary.losses(start_ms + 35_001)
    topic, _, offset = lost.request.split("/")
    assert (lost.due_ms, topic, offset) == (start_ms + 5_000, "timer.requests", str(asked.offset))
    assert place.canary.losses(start_ms + 99_000) == []
    place.bridge.run(40_000)
    place.receive()
    assert place.counts() == (1, 1, 1, 0)


def test_a_repeated_record_is_a_duplicate_and_foreign_records_are_ignored() -> None:
    place = Perch()
    place.canary.send(place.now_ms)
    place.bridge.run(5_000)
    place.receive()
    (came,) = place.kafka.read(TOPIC)
    place.kafka.produce(TOPIC, b"", headers=came.headers)
    place.kafka.produce(TOPIC, b"", headers=[("timer-trace-id", b"another's")])
    place.kafka.produce(TOPIC, b"", headers=[])
    place.receive()
    assert place.counts() == (1, 1, 0, 1)


def test_a_request_that_is_refused_is_lost_with_the_reason() -> None:
    place = Perch()
    del place.kafka.topics["timer.requests"]
    place.canary.send(place.now_ms)
    (lost,) = place.canary.losses(place.now_ms + 35_001)
    assert lost.request == "refused: timer.requests: there is no such topic"
    assert place.counts() == (1, 0, 1, 0)
