"""How long the timers of one topic wait in a turn for the requests and timers of others.

Time passes by work: each record sent takes 1 ms; in the test of intake, each look of the bridge at its clock.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import pytest

import bridge.loop
import bridge.partition
import timer
from bridge.loop.loop import FLOODED_TURN_MS, LEAST_TIMERS, TURN_MS, ReleasePace
from bridge.loop.tests.test_histories import kafka_with, noted, send, values
from bridge.partition.options import TurnOptions
from bridge.partition.recover import read_checkpoint
from bridge.ports import Outgoing
from bridge.testing.fake_history import FakeHistory
from bridge.testing.fake_instance import FakeInstance
from bridge.testing.fake_kafka import FakeGroup
from bridge.testing.fake_sink import FakeSink
from bridge.testing.timeline import FakeClock, Timeline
from bridge.testing.timer_world import TIMERS, TimerWorld, usual_options
from kafka_timer.origin import TimerPartition

LOUD = ("a.timers", "b.timers", "c.timers")
QUIET = "z.timers"
MOST_DUE = 200
"""Of each partition in a transaction: three of them take 600 ms."""
MOST_LATE_MS = 400
"""Three turns of intake and release."""


class BusyClock(FakeClock):
    """Each look at the time takes 1 ms while `is_busy`, of which our thread computes one part of `shares`."""

    is_busy = False
    shares = 1

    def now_ms(self) -> int:
        self.timeline.advance(int(self.is_busy))
        return super().now_ms()

    def cpu_ms(self) -> int:
        return super().now_ms() // self.shares


class BusyWorld(TimerWorld):
    """Four timer topics beside timer.requests; the targets are `loud` and `quiet`."""

    def __init__(self) -> None:
        def topic(name: str) -> TurnOptions:
            return replace(usual_options(), journal_topic=f"{name}.journal", max_due_records=MOST_DUE)

        def takes_1_ms(where: str) -> None:
            if where == "sink.produce" and not self.clock.is_busy:
                self.kafka.timeline.advance(1)

        topics = {name: topic(name) for name in (*LOUD, QUIET)}
        others = {*topics, *(each.journal_topic for each in topics.values())}
        common = usual_options()
        rules = common.rules.model_copy(update={"own_topics": common.rules.own_topics | others})
        topics = {name: replace(each, rules=rules) for name, each in topics.items()}
        options = replace(common, rules=rules, topics=topics, max_due_records=MOST_DUE)
        self.clock = BusyClock(Timeline())
        super().__init__("loud", "quiet", options=options, meanwhile=takes_1_ms)
        self.clock.timeline = self.kafka.timeline
        self.bridge.clock = self.clock
        self.restart()
        self.pass_time(ms=100)

    def send(self, topic: str, target: str, due_ms: int) -> None:
        headers = [("timer-topic", target.encode()), ("timer-deliver-ms", b"%d" % due_ms)]
        self.kafka.produce(topic, b"", headers=headers)

    def quiet_lateness_ms(self) -> list[int]:
        return [entry.append_ms - int(dict(entry.headers)["timer-deliver-ms"] or 0) for entry in self.read("quiet")]


def test_a_burst_of_other_topics_delays_a_timer_by_some_turns_and_not_by_all_of_the_burst() -> None:
    world = BusyWorld()
    due_ms = world.now_ms + 10_000
    for number in range(2_000):
        world.send(LOUD[number % 3], "loud", due_ms)
    for number in range(20):
        world.send(QUIET, "quiet", due_ms + 100 * number)
    world.pass_time(ms=20_000)
    assert len(world.read("loud")) == 2_000
    late_ms = world.quiet_lateness_ms()
    assert len(late_ms) == 20
    assert 0 <= min(late_ms) <= max(late_ms) <= MOST_LATE_MS


@pytest.mark.thorough
def test_requests_of_a_quiet_topic_are_taken_in_soon_beside_a_flood_of_three_others() -> None:
    """They are more than a partition gets whose turn comes when the time of all is over: then they take 1,800 ms."""
    world = BusyWorld()
    due_ms = world.now_ms + 200
    for number in range(9_000):
        world.send(LOUD[number % 3], "loud", due_ms + 3_600_000)
    for _ in range(400):
        world.send(QUIET, "quiet", due_ms)
    world.clock.is_busy = True
    world.pass_time(ms=10_000)
    late_ms = world.quiet_lateness_ms()
    assert len(late_ms) == 400
    assert 0 <= min(late_ms) <= max(late_ms) <= 2 * MOST_LATE_MS


@pytest.mark.parametrize("sent", [400, 2_000])
@pytest.mark.parametrize(("shares", "least"), [(1, 150), (3, 400), (1000, 400)])
def test_a_turn_takes_in_many_requests_of_a_long_backlog_on_a_busy_processor(
    shares: int, least: int, sent: int
) -> None:
    """It is limited by its own CPU time: 20 looks. A disk that is slow takes none, so the clock is the limit then."""
    world = BusyWorld()
    for _ in range(sent):
        world.send(QUIET, "quiet", world.now_ms + 3_600_000)
    world.clock.is_busy, world.clock.shares = True, shares
    world.bridge.turn()
    assert least <= sum(world.bridge.bridge.pending.values()) <= 700


@pytest.mark.parametrize("count", [20, 60])
def test_a_busy_timer_topic_shares_its_transaction_neither_with_few_timers_nor_with_costly_ones(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, few, new = LOUD

    def needs_look_up(_: FakeSink, outgoing: Sequence[Outgoing]) -> bool:
        return any((dict(record.headers).get("timer-origin") or b"").startswith(new.encode()) for record in outgoing)

    monkeypatch.setattr(FakeSink, "needs_look_up", needs_look_up)
    world = BusyWorld()
    for topic, timers in ((busy, count), (few, 1), (new, 1), (QUIET, 1)):
        for _ in range(timers):
            world.send(topic, "quiet", world.now_ms + 1000)
    world.pass_time(ms=3000)
    topics: dict[int, set[str]] = {}
    for entry in world.read("quiet"):
        origin = (dict(entry.headers)["timer-origin"] or b"").decode()
        topics.setdefault(id(entry.transaction), set()).add(origin.partition("/")[0])
    assert {new} in topics.values()
    assert ({busy, few, QUIET} in topics.values()) is (count == 20)
    assert ({few, QUIET} in topics.values()) is (count == 60)


def test_a_burst_leaves_in_large_transactions_though_they_take_longer_than_turns() -> None:
    kafka, partitions = kafka_with(4), [TimerPartition(TIMERS, number) for number in range(4)]
    instance = FakeInstance(kafka, FakeGroup("timers", partitions), replace(usual_options(), max_due_records=MOST_DUE))
    instance.run(20_000)
    for number in range(4 * 6 * MOST_DUE):
        send(kafka, partitions[number % 4])
    instance.sink.slow_turns = 3
    instance.run(20_000)
    sizes = Counter(id(entry.transaction) for entry in kafka.read("orders"))
    assert sizes.total() == 4 * 6 * MOST_DUE
    assert len(sizes) <= 18, "twelve of two partitions each, and the smaller ones at the beginning"


PRODUCT = tuple(package.__path__[0] for package in (bridge.loop, bridge.partition, timer))


def calls_of(instance: FakeInstance) -> Counter[str]:
    """Run a turn; return how often it has called each function of the loop, of partitions and of stores."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            found[frame.f_code.co_qualname] += 1

    instance.source.wake()
    sys.setprofile(count)
    try:
        instance.turn()
    finally:
        sys.setprofile(None)
    return found


def test_a_turn_makes_no_call_for_a_partition_that_rests() -> None:
    calls = {}
    for count in (2, 128):
        kafka, partitions = kafka_with(count), [TimerPartition(TIMERS, number) for number in range(count)]
        instance = FakeInstance(kafka, FakeGroup("timers", partitions), usual_options())
        instance.run(20_000)
        for _ in range(3):
            calls[count] = calls_of(instance)
        send(kafka, partitions[1])
        instance.run(1_000)
        assert values(kafka) == ["m"]
    assert calls[128] == calls[2]


def test_kafka_is_asked_once_for_all_checkpoints_that_start_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, partitions = kafka_with(8), [TimerPartition(TIMERS, number) for number in range(8)]
    instance = FakeInstance(kafka, FakeGroup("timers", partitions), usual_options())
    instance.run(20_000)

    asked = noted(monkeypatch, FakeHistory, "ask_ahead")
    for place in partitions:
        send(kafka, place, delay_ms=500_000)
    instance.run(20_000)
    assert [sorted(each) for _, each, *_ in asked] == [partitions, []]
    checkpoints = [read_checkpoint(instance.disks[place]) for place in partitions]
    assert [each.pending for each in checkpoints if each is not None] == [1] * len(partitions)


def test_the_pace_follows_what_a_turn_takes() -> None:
    pace = ReleasePace(4_000)
    for _ in range(10):
        pace.adapt(TURN_MS // 4, 4, 3)
    assert pace.timers == 4_000
    pace.adapt(TURN_MS, 4, 3)
    assert pace.timers == 4_000, "a turn that takes its time is followed by one as large, not by one of twice its time"
    pace.adapt(8 * TURN_MS, 4, 3)
    assert pace.timers == 500
    pace.adapt(10**9, 4, 3)
    assert pace.timers == LEAST_TIMERS
    pace.adapt(0, 4, 0)
    assert pace.timers == 1_000


def test_turns_are_longer_while_timers_of_all_partitions_wait() -> None:
    pace = ReleasePace(4_000)
    for _ in range(10):
        pace.adapt(FLOODED_TURN_MS, 4, 4)
    assert pace.timers == LEAST_TIMERS
    for _ in range(10):
        pace.adapt(TURN_MS, 4, 4)
    assert pace.timers == 4_000
    pace.adapt(FLOODED_TURN_MS, 4, 3)
    assert pace.timers == 4_000 * TURN_MS // FLOODED_TURN_MS, "one of them has no others: its next ones may not wait"
