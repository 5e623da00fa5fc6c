"""A timer topic grows from 4 partitions to 8 while timers are pending, as docs/timer-topics.md describes."""

import json
from concurrent.futures import Future
from dataclasses import replace
from random import Random

import pytest

from bridge.errors import BridgeError, SettingsError, TopicGrownError
from bridge.loop.tests.test_histories import kafka_with
from bridge.partition.options import StoreOptions, TurnOptions
from bridge.testing import FakeGroup, FakeInstance
from bridge.tests.test_client import FakeOutbox
from kafka_timer import Headers, Sent, TimerProducer, partition_for
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules

pytestmark = pytest.mark.thorough

TIMERS, JOURNAL = "timer.requests", "timer.journal"
WINDOW_MS = 10_000
MOVED = [id_ for id_ in map(str, range(40)) if partition_for(id_, 4) != partition_for(id_, 8)]


class World:
    """Four partitions, a bridge, and senders that place ids by the counts given to them."""

    def __init__(self) -> None:
        self.kafka = kafka_with(4)
        self.group = FakeGroup("timers", [TimerPartition(TIMERS, number) for number in range(4)])
        rules = Rules(max_delay_ms=10**9, roll_window_ms=WINDOW_MS)
        options = TurnOptions(rules=rules, store=StoreOptions(slots=1 << 12), max_wait_ms=3_600_000)
        self.bridge = FakeInstance(self.kafka, self.group, options)
        self.bridge.run(0)

    def sender(self, partitions: int | None = None, other_partitions: int | None = None) -> TimerProducer:
        outbox = FakeOutbox(self.kafka)
        return TimerProducer({}, partitions=partitions, other_partitions=other_partitions, outbox=outbox)

    def grow(self, *, lose_disk: bool = False) -> None:
        """Stop the bridge, add the partitions, and start it again."""
        self.bridge.stop()
        if lose_disk:
            self.bridge.lose_disks()
        self.kafka.grow(TIMERS, 8)
        self.kafka.grow(JOURNAL, 8)
        self.group.add([TimerPartition(TIMERS, number) for number in range(4, 8)])
        self.bridge.start()
        self.bridge.run(0)

    def values(self) -> list[str]:
        return sorted((entry.value or b"").decode() for entry in self.kafka.read("orders"))

    def receipts(self, id_: str) -> list[str]:
        told = [json.loads(entry.value or b"{}") for entry in self.kafka.read("timer.receipts")]
        return sorted(each["kind"] for each in told if each.get("id") == id_)


@pytest.fixture
def world() -> World:
    return World()


def test_a_cancel_by_the_new_count_misses_a_timer_placed_by_the_old_one(world: World) -> None:
    """A cancel in all partitions finds it, and a move of a sender that names the old count does."""
    alone, missed, moved = MOVED[:3]
    for id_ in (alone, missed, moved):
        world.sender().schedule("orders", id_, delay="9000ms", id=id_)
    world.grow()
    world.sender().cancel(missed)
    world.sender().cancel_everywhere(alone)
    world.sender(other_partitions=4).release(moved)
    world.bridge.run(1000)
    assert world.values() == [moved]
    world.bridge.run(9000)
    assert world.values() == sorted([missed, moved])
    assert world.receipts(missed) == ["not-found"]
    assert world.receipts(alone) == ["cancelled", *["not-found"] * 7]
    assert world.receipts(moved) == ["moved", "not-found"]


@pytest.mark.parametrize("lose_disk", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_each_timer_leaves_once_while_senders_change_over(world: World, seed: int, *, lose_disk: bool) -> None:
    """First all senders place by 4 and name 8. The topic grows. Then each in turn places by 8 and names 4."""
    rng = Random(seed)
    before, after = world.sender(4, 8), world.sender(8, 4)
    expected = {}

    def ask(sender: TimerProducer, id_: str, text: str) -> None:
        match rng.choice(["schedule", "replace", "cancel", "nothing"]):
            case "schedule":
                sender.schedule("orders", text, delay=f"{rng.randint(50_000, 90_000)}ms", id=id_).result(0)
                expected[id_] = text
            case "replace":
                sender.replace(id_, "orders", text, delay=f"{rng.randint(50_000, 90_000)}ms").result(0)
                expected[id_] = text
            case "cancel":
                sender.cancel(id_).result(0)
                expected.pop(id_, None)

    ids = [str(number) for number in range(40)]
    for id_ in ids:  # they roll several times meanwhile
        before.schedule("orders", f"{id_} first", delay=f"{rng.randint(50_000, 90_000)}ms", id=id_)
        expected[id_] = f"{id_} first"
    world.bridge.run(rng.randint(0, 2 * WINDOW_MS))
    world.grow(lose_disk=lose_disk)
    for step in range(3):
        for id_ in ids:
            ask(rng.choice([before, after]), id_, f"{id_} step {step}")
        world.bridge.run(rng.randint(0, WINDOW_MS))
    for id_ in ids:
        ask(after, id_, f"{id_} last")
    world.bridge.run(200_000)
    assert world.values() == sorted(expected.values())
    assert world.kafka.read("timer.rejected") == []


def test_ids_placed_by_the_old_count_do_not_move(world: World) -> None:
    """Without other_partitions: new partitions take requests without an id."""
    sender = world.sender(4)
    sender.schedule("orders", "gone", delay="5000ms", id=MOVED[0])
    world.grow()
    assert sender.partition_of(MOVED[0]) == partition_for(MOVED[0], 4)
    sender.cancel(MOVED[0])
    for number in range(16):
        sender.schedule("orders", f"{number:02}", key=str(number), delay="100ms")
    world.bridge.run(6000)
    assert world.values() == [f"{number:02}" for number in range(16)]
    assert world.receipts(MOVED[0]) == ["cancelled"]


def test_an_added_partition_ends_the_life_and_the_next_one_serves_it(world: World) -> None:
    """The old life does not read the new partition's journal, which may be missing: it would wait for it."""
    options = replace(world.bridge.options, partitions=4)
    world.bridge.options = options
    world.bridge.start()
    world.kafka.grow(TIMERS, 5)
    world.group.add([TimerPartition(TIMERS, 4)])
    with pytest.raises(TopicGrownError, match=r"timer\.requests/4: the topic has grown, it had 4 partitions"):
        world.bridge.run(0)
    world.kafka.grow(JOURNAL, 5)
    world.bridge.options = replace(options, partitions=5)
    world.bridge.start()
    id_ = next(id_ for id_ in map(str, range(99)) if partition_for(id_, 5) == 4)
    world.sender(5).schedule("orders", "served", delay="5ms", id=id_)
    world.bridge.run(100)
    assert world.values() == ["served"]


def test_an_instance_without_new_partitions_shares_its_limits_out_again_and_goes_on(world: World) -> None:
    options = replace(world.bridge.options, partitions=4, max_pending=2)
    world.bridge.options = options
    world.bridge.start()
    ids = [id_ for id_ in map(str, range(99)) if partition_for(id_, 4) == 0][:3]
    world.sender(4).schedule("orders", ids[0], delay="5000ms", id=ids[0])
    world.bridge.run(0)
    world.bridge.bridge.use(replace(options, partitions=8, max_pending=1, targets={"*": 1}))
    for id_ in ids[1:]:
        world.sender(4).schedule("orders", id_, delay="5000ms", id=id_)
    world.bridge.run(6000)
    assert world.values() == ids[:1]
    rejected = world.kafka.read("timer.rejected")
    assert [dict(entry.headers)["timer-error"] for entry in rejected] == [b"quota-exceeded"] * 2


class FailingOutbox(FakeOutbox):
    """Fails for the partition `failing`, which no broker leads."""

    failing = -1

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        if partition != self.failing:
            return super().send(topic, partition, key, value, headers)
        future: Future[Sent] = Future()
        future.set_exception(BridgeError("no broker took it in time"))
        return future


@pytest.mark.parametrize("by", [4, 8])
def test_a_replace_that_only_one_partition_took_fails_and_may_be_sent_again(world: World, by: int) -> None:
    world.sender().schedule("orders", "old", delay="5000ms", id=MOVED[0])
    world.grow()
    outbox = FailingOutbox(world.kafka)
    sender = TimerProducer({}, partitions=8, other_partitions=4, outbox=outbox)
    outbox.failing = partition_for(MOVED[0], by)
    with pytest.raises(BridgeError, match="no broker"):
        sender.replace(MOVED[0], "orders", "new", delay="5000ms").result(0)
    outbox.failing = -1
    assert sender.replace(MOVED[0], "orders", "new", delay="5000ms").result(0).partition == partition_for(MOVED[0], 8)
    world.bridge.run(6000)
    assert world.values() == ["new"]


@pytest.mark.parametrize("given", [{"partitions": 0}, {"other_partitions": -1}])
def test_counts_below_1_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="give 1 or more"):
        TimerProducer({}, partitions=given.get("partitions"), other_partitions=given.get("other_partitions"))
