"""Histories of one bridge, seen from outside: requests in, records out. Names give the number in the case list."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bridge.errors import BridgeError
from bridge.partition import recover
from bridge.partition.decide import BatchIntake
from bridge.partition.options import StoreOptions, TurnOptions
from bridge.partition.recover import read_checkpoint
from bridge.testing import Crash, Entry, FakeInstance, FakePublishing, FakeSource, SimDisk
from bridge.testing.fake_kafka import FakeGroup, FakeKafka, FakeTransaction, Timeline
from bridge.testing.timeline import nothing_happens
from bridge.testing.timer_world import TIMERS, TimerWorld
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.control import Paused, control_record
from kafka_timer.headers import Headers
from kafka_timer.levels import parse_levels
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules

PARTITION = TimerPartition(TIMERS, 0)
WINDOW_MS = 1000
LAP_MS = 10_240
RULES = Rules(max_delay_ms=10**9, roll_window_ms=WINDOW_MS, own_topics=frozenset({TIMERS}))
SMALL = TurnOptions(
    rules=RULES,
    store=StoreOptions(tick_ms=10, slots=1024, segment_bytes=2000, checkpoint_interval_ms=100),
    receipts="all",
    commit_interval_ms=10,
)
"""Small files, intervals and windows, so that a short history meets them all."""


Pairs = list[tuple[str, bytes | None]]


def schedule(delay_ms: int, target: str = "orders", id_: str | None = None, *more: tuple[str, bytes | None]) -> Pairs:
    """Return the headers of a request for a timer."""
    named = [] if id_ is None else [("timer-id", id_.encode())]
    return [("timer-topic", target.encode()), ("timer-delay-ms", b"%d" % delay_ms), *named, *more]


class World(TimerWorld):
    """A world with one target topic."""

    def __init__(
        self,
        options: TurnOptions | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
    ) -> None:
        super().__init__("orders", options=options or SMALL, rng=rng, meanwhile=meanwhile, start_ms=1_000_000)

    def send(self, value: str = "m", delay_ms: int = 500, *, id_: str | None = None, extra: Headers = ()) -> Entry:
        return self.kafka.produce(TIMERS, value.encode(), headers=schedule(delay_ms, "orders", id_, *extra))

    def send_due(self, value: str, due_ms: int, *more: tuple[str, bytes | None]) -> Entry:
        headers = [("timer-topic", b"orders"), ("timer-deliver-ms", b"%d" % due_ms), *more]
        return self.kafka.produce(TIMERS, value.encode(), headers=headers)

    def act(self, action: str, timer: str | tuple[str, bytes], *more: tuple[str, bytes]) -> Entry:
        """Send a request about a timer, which its id or a header names."""
        named = ("timer-id", timer.encode()) if isinstance(timer, str) else timer
        return self.kafka.produce(TIMERS, None, headers=[("timer-action", action.encode()), named, *more])

    def cancel(self, id_: str) -> Entry:
        return self.act("cancel", id_)

    def move(self, id_: str, delay_ms: int) -> Entry:
        return self.act("move", id_, ("timer-delay-ms", b"%d" % delay_ms))

    def move_to(self, id_: str, due_ms: int) -> Entry:
        return self.act("move", id_, ("timer-deliver-ms", b"%d" % due_ms))

    def forget(self, topic: str = TIMERS) -> None:
        """Delete all records of a topic's partition 0, as retention does."""
        log = self.kafka.partition(TimerPartition(topic, 0))
        log.delete_before(log.end)

    def start(self, options: TurnOptions | None = None, disk: SimDisk | None = None) -> None:
        """Start the bridge again, with these options and on this disk if they are given."""
        self.bridge.kill()
        self.bridge.options = options or self.bridge.options
        self.bridge.disks |= {PARTITION: disk} if disk else {}
        self.bridge.start()

    def delivered(self) -> list[str]:
        return values(self.kafka)

    def deliveries(self) -> list[dict[str, str]]:
        return [{name: (value or b"").decode() for name, value in e.headers} for e in self.kafka.read("orders")]

    def told(self) -> list[dict[str, Any]]:
        """Return all receipts."""
        return [json.loads(entry.value or b"{}") for entry in self.kafka.read("timer.receipts")]

    def receipts(self, *without: str) -> list[tuple[str, int]]:
        """Return (kind, offset of the request) of each receipt whose kind is not in `without`."""
        return [(r["kind"], int(r["request"].rpartition("/")[2])) for r in self.told() if r["kind"] not in without]

    def rejected(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(dict(entry.headers)["timer-error"], entry.value) for entry in self.kafka.read("timer.rejected")]

    def counts(self) -> dict[str, int]:
        return {topic: hours.total() for topic, hours in self.bridge.bridge.due_hours().items()}

    def pending(self) -> int:
        return sum(self.bridge.bridge.pending.values())


def crash(world: TimerWorld) -> None:
    world.bridge.start()


def lose_power(world: TimerWorld) -> None:
    world.bridge.lose_power()
    world.bridge.start()


def lose_disk(world: TimerWorld) -> None:
    world.bridge.lose_disks()
    world.bridge.start()


def die(instance: FakeInstance, where: str, nth: int = 1, *, within_ms: int = 5000) -> None:
    """Run the bridge until its `nth` call of `where`, which kills it. Fail if that call does not come in time."""
    instance.fuse.arm(nth, where)
    with pytest.raises(Crash):
        instance.run(within_ms)
    assert instance.fuse.where == where, f"the name of call {nth} begins with {where!r}, but it is another one"


def values(kafka: FakeKafka, topic: str = "orders") -> list[str]:
    return [(entry.value or b"").decode() for entry in kafka.read(topic)]


def noted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """Return the arguments of all later calls of `owner.name`, which does what it did."""
    calls, right = list[tuple[Any, ...]](), getattr(owner, name)

    def note(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return right(*given, **named)

    monkeypatch.setattr(owner, name, note)
    return calls


def ask(world: TimerWorld, action: bytes, target: bytes) -> None:
    """Pause or resume a target, as an operator does."""
    key, value = control_record(Paused(TIMERS, target.decode()), on=action == b"pause")
    world.kafka.produce(CONTROL_TOPIC, value, key=key)


def hang(world: TimerWorld) -> FakeTransaction:
    """Send a record in a transaction that stays open: nothing after it can be read."""
    hung = world.kafka.begin("somebody")
    world.kafka.produce(TIMERS, b"hung", headers=[], transaction=hung)
    return hung


def kafka_with(partitions: int = 1, *, transaction_timeout_ms: int = 10_000) -> FakeKafka:
    """Return a Kafka with the bridge's topics and `orders`. The timer topic and its journal have `partitions`."""
    kafka = FakeKafka(Timeline(), transaction_timeout_ms=transaction_timeout_ms)
    for topic in (TIMERS, "timer.journal"):
        kafka.create(topic, partitions)
    for topic in ("timer.rejected", "timer.receipts", "orders"):
        kafka.create(topic)
    return kafka


def send(
    kafka: FakeKafka, timer_partition: TimerPartition, value: str = "m", delay_ms: int = 500, **more: Any
) -> Entry:
    """Send a request. more: further arguments of FakeKafka.produce."""
    topic, partition = timer_partition
    return kafka.produce(topic, value.encode(), headers=schedule(delay_ms), partition=partition, **more)


def two_partitions(
    store: StoreOptions = SMALL.store, count: int = 2, *, transaction_timeout_ms: int = 10_000
) -> tuple[FakeKafka, list[TimerPartition], FakeInstance]:
    """Return a running bridge with both partitions (or `count`) and no receipts."""
    kafka = kafka_with(count, transaction_timeout_ms=transaction_timeout_ms)
    timer_partitions = [TimerPartition(TIMERS, number) for number in range(count)]
    instance = FakeInstance(kafka, FakeGroup("timers", timer_partitions), replace(SMALL, receipts="none", store=store))
    instance.run(0)
    return kafka, timer_partitions, instance


def go_on(world: TimerWorld) -> None:
    """Do nothing."""


RARE = [pytest.param(trouble, marks=pytest.mark.thorough) for trouble in (crash, lose_power)]
TROUBLE = pytest.mark.parametrize("trouble", [go_on, *RARE, lose_disk])
Trouble = Callable[[TimerWorld], None]


# -- Time


@pytest.mark.parametrize("tick_ms", [10, 100, 200, 500, 1000])
def test_case_1_never_before_the_millisecond(tick_ms: int) -> None:
    world = World(TurnOptions(rules=RULES, store=StoreOptions(tick_ms=tick_ms, slots=1024)))
    start_ms = world.now_ms
    for at in (500, 501, 999, 1000):
        world.send(str(at), at)
    for at in (500, 501, 999, 1000):
        world.bridge.run(start_ms + at - 1 - world.now_ms)
        assert str(at) not in world.delivered()
        world.bridge.run(1)
        assert world.delivered()[-1] == str(at)


def test_case_2_overdue_timers_and_level_0_leave_in_the_next_turn() -> None:
    world = World()
    for n in range(10):
        world.send_due(str(n), world.now_ms - 1000)
    world.kafka.produce(TIMERS, b"level", headers=[("timer-topic", b"orders"), ("timer-delay-level", b"0")])
    world.bridge.turn()
    assert world.delivered() == [*map(str, range(10)), "level"]


def test_case_5_a_timer_out_of_order_before_and_after_a_roll_leaves_once_also_on_an_old_disk() -> None:
    world = World()
    world.start(replace(world.options, rules=RULES.model_copy(update={"roll_window_ms": 5 * WINDOW_MS})))
    world.bridge.clock.error_ms = 5 * WINDOW_MS
    world.send("ahead", 5 * WINDOW_MS)
    world.bridge.run(200)
    world.start(world.options)
    world.bridge.clock.error_ms = 0
    world.send("held", 3 * WINDOW_MS)
    world.bridge.run(200)
    old = world.bridge.disks[PARTITION].copy()
    world.bridge.run(WINDOW_MS)
    world.start(disk=old)
    world.bridge.run(0)
    assert world.counts() == {"orders": 1}
    world.bridge.run(3 * WINDOW_MS)
    assert world.delivered() == ["ahead", "held"]


def test_case_5_an_old_disk_without_its_journal_does_not_bring_back_a_timer_out_of_order() -> None:
    """No request was read since the copy, so C does not show that the disk is old."""
    world = World()
    world.bridge.clock.error_ms = WINDOW_MS
    world.send("ahead", WINDOW_MS)
    world.bridge.run(200)
    world.bridge.clock.error_ms = 0
    world.send("held", 500)
    world.bridge.run(200)
    old = world.bridge.disks[PARTITION].copy()
    world.bridge.run(400)
    assert world.delivered() == ["ahead", "held"]
    world.bridge.kill()
    world.forget("timer.journal")
    world.bridge.disks[PARTITION] = old
    world.bridge.start()
    world.bridge.run(1000)
    assert world.delivered() == ["ahead", "held"]
    assert world.counts() == {}


def test_case_7_each_level_at_its_time_and_a_changed_setting_leaves_pending_timers_alone() -> None:
    rules = RULES.model_copy(update={"levels_ms": parse_levels("1s 2s 3s"), "roll_window_ms": 5000})
    world = World(TurnOptions(rules=rules, store=StoreOptions(tick_ms=10, slots=4096)))
    for level in (1, 2, 3, 4):
        headers = [("timer-topic", b"orders"), ("timer-delay-level", b"%d" % level)]
        world.kafka.produce(TIMERS, b"%d" % level, headers=headers)
    world.bridge.run(1500)
    world.bridge.lose_disks()
    world.start(TurnOptions(rules.model_copy(update={"levels_ms": parse_levels("9s")}), world.options.store))
    for ms, left in ((499, ["1"]), (1, ["1", "2"]), (1000, ["1", "2", "3", "4"])):
        world.bridge.run(ms)
        assert world.delivered() == left


@TROUBLE
def test_case_5_a_clock_far_ahead_of_the_brokers_does_not_roll_a_timer_for_ever(trouble: Trouble) -> None:
    """The wake-up time of a copy is computed from the brokers' time; by this clock it has always passed."""
    world = World()
    world.send("near", 500)
    world.send("far", 4 * LAP_MS)
    world.send("cancelled", 4 * LAP_MS, id_="x")
    world.bridge.run(20)
    world.bridge.clock.error_ms = LAP_MS + LAP_MS // 2
    world.bridge.run(20)
    assert world.delivered() == ["near"]
    rolled = len(world.kafka.read(TIMERS)) - 3
    world.bridge.run(WINDOW_MS)
    assert len(world.kafka.read(TIMERS)) - 3 <= rolled + 2 * 10
    world.cancel("x")
    trouble(world)
    world.bridge.run(20)
    world.bridge.clock.error_ms = 0
    world.send("behind", 500)
    trouble(world)
    world.bridge.run(500)
    assert world.delivered() == ["near", "behind"]
    world.bridge.run(4 * LAP_MS)
    assert world.delivered() == ["near", "behind", "far"]
    assert world.counts() == {}


# -- Roll


@TROUBLE
@pytest.mark.parametrize(
    ("delay_ms", "rolls"), [(1000, 0), (1001, 1), (1332, 1), (1334, 1), (2000, 1), (2001, 2), (20_000, 19)]
)
def test_case_14_a_long_delay_is_rolled_and_delivered_once_on_time(delay_ms: int, rolls: int, trouble: Trouble) -> None:
    world = World()
    sent = world.send("far", delay_ms, extra=[("trace", b"1")])
    world.bridge.run(delay_ms // 2)
    trouble(world)
    world.bridge.run(delay_ms - 1 - delay_ms // 2)
    assert world.delivered() == []
    world.bridge.run(1)
    (headers,) = world.deliveries()
    assert headers["timer-origin"] == f"timer.requests/0/{sent.offset}"
    assert headers["timer-deliver-ms"] == str(sent.append_ms + delay_ms)
    assert headers["timer-rolls"] == str(rolls)
    assert headers["trace"] == "1"
    world.bridge.run(5000)
    assert len(world.delivered()) == 1


STEPS_OF_A_ROLL = [
    ("sink.submit", 1),
    *(("sink.produce", nth) for nth in range(1, 6)),  # one copy each
    *((f"sink.{step}", 1) for step in ("journal", "end", "offsets", "offsets done", "commit", "commit asked")),
    ("sink.commit done", 1),
    *((f"disk.append {step}", nth) for nth in range(1, 4) for step in ("half", "done")),  # the copies are read
]


@pytest.mark.parametrize(("where", "nth"), STEPS_OF_A_ROLL)
@pytest.mark.parametrize("trouble", [*RARE, lose_disk])
def test_case_15_a_crash_amid_a_roll_neither_loses_nor_doubles(where: str, nth: int, trouble: Trouble) -> None:
    world = World(rng=Random(f"{where} {nth}"))
    for n in range(5):
        world.send(str(n), 1500 + n)
    world.bridge.run(WINDOW_MS - 100)
    assert len(world.kafka.read(TIMERS)) == 5, "no copy yet"
    die(world.bridge, where, nth, within_ms=300)
    if where != "sink.commit asked":  # then the outcome is unknown
        is_committed = where == "sink.commit done" or where.startswith("disk.")
        assert len(world.kafka.read(TIMERS)) == (10 if is_committed else 5)
    trouble(world)
    world.bridge.run(2000)
    assert sorted(world.delivered()) == ["0", "1", "2", "3", "4"]
    assert world.pending() == 0


COPY_OF_0 = ("timer-origin", b"timer.requests/0/0"), ("timer-rolls", b"1")


@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_forged_copy_is_refused_and_the_true_one_delivered(seen: str) -> None:
    world = World()
    world.send("true", 2000)
    if seen == "after":
        world.bridge.run(1500)
    world.send_due("forged", world.now_ms + 100, *COPY_OF_0)
    world.bridge.run(3000)
    assert world.delivered() == ["true"]
    assert world.rejected() == [(b"not-ours", b"forged")]


@pytest.mark.parametrize("trouble", [crash, lose_disk])
def test_a_forged_copy_is_refused_while_the_true_one_is_not_published_yet(trouble: Callable[[World], None]) -> None:
    """The forgery equals the copy that the move before it makes, byte for byte, and is read in the same batch."""
    world = World()
    world.send("m", 3000, id_="x")
    world.bridge.run(50)
    world.move("x", 5000)
    forged = world.send_due("m", world.now_ms + 5000, ("timer-id", b"x"), *COPY_OF_0)
    world.bridge.run(50)
    copies = [e.headers for e in world.kafka.read(TIMERS) if "timer-rolls" in dict(e.headers)]
    assert copies == [forged.headers] * 2, "the second is the true one"
    trouble(world)
    world.bridge.run(10_000)
    assert world.delivered() == ["m"]
    assert world.rejected() == [(b"not-ours", b"m")]


def test_a_forged_copy_is_refused_while_a_retry_may_replace_the_true_one() -> None:
    """The forgery equals the copy for the next occurrence. Its target takes no records, so this one rolls instead."""
    worlds = twin, world = World(), World()
    for each in worlds:
        each.send("m", 500, extra=[("timer-every-ms", b"1000"), ("timer-count", b"2")])
        each.bridge.run(490)
    twin.bridge.run(50)
    world.kafka.topics["orders"].unavailable, world.bridge.sink.slow_turns = True, 3
    world.kafka.timeline.advance(10)
    world.bridge.turn()
    forged = twin.kafka.read(TIMERS)[1]
    world.kafka.produce(TIMERS, forged.value, key=forged.key, headers=forged.headers)
    world.bridge.run(100)
    world.kafka.topics["orders"].unavailable = False
    world.bridge.run(100_000)
    assert (world.delivered(), world.rejected()) == (["m", "m"], [(b"not-ours", b"m")])


# -- Cancel and replace


@TROUBLE
@pytest.mark.parametrize("rolls", [1, 2, 3])
def test_case_18_a_cancel_after_rolls_wins(rolls: int, trouble: Trouble) -> None:
    world = World()
    world.send("gone", 10 * WINDOW_MS, id_="x")
    world.bridge.run(rolls * WINDOW_MS + 100)
    trouble(world)
    cancelled = world.cancel("x")
    world.bridge.run(100)
    trouble(world)
    world.bridge.run(20 * WINDOW_MS)
    assert world.delivered() == []
    assert world.receipts("accepted") == [("cancelled", cancelled.offset)]


@TROUBLE
def test_case_18_downtime_over_both_roll_and_due_does_not_beat_a_cancel(trouble: Trouble) -> None:
    world = World()
    world.send("gone", 3 * WINDOW_MS, id_="x")
    world.send("late", 3 * WINDOW_MS, id_="y")
    world.bridge.run(100)
    world.bridge.kill()
    world.cancel("x")
    world.kafka.timeline.advance(10 * WINDOW_MS)
    world.bridge.start()
    trouble(world)
    world.bridge.run(100)
    assert world.delivered() == ["late"]


@TROUBLE
def test_case_18_a_cancel_while_the_copy_is_in_flight_wins(trouble: Trouble) -> None:
    world = World()
    world.send("gone", 3 * WINDOW_MS, id_="x")
    world.bridge.run(WINDOW_MS - 1)
    hung = hang(world)
    world.send("other", 3 * WINDOW_MS)
    cancelled = world.cancel("x")
    world.bridge.run(1)  # the copy is written after the cancel; neither can be read yet
    trouble(world)
    world.bridge.run(50)
    world.kafka.abort(hung)
    world.bridge.run(50)
    trouble(world)
    world.bridge.run(10 * WINDOW_MS)
    assert world.delivered() == ["other"]
    assert world.receipts("accepted", "delivered") == [("cancelled", cancelled.offset)]


STEPS_OF_A_CANCEL = [
    *((f"disk.append {step}", nth) for nth in (1, 2) for step in ("half", "done")),
    *((f"sink.{step}", 1) for step in ("submit", "produce", "journal", "end", "offsets", "offsets done", "commit")),
    ("sink.commit asked", 1),
    ("sink.commit done", 1),
    *((f"disk.{step}", 1) for step in ("start_sync", "start_replace")),  # of the checkpoint
]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
@pytest.mark.parametrize(("where", "nth"), STEPS_OF_A_CANCEL)
def test_case_19_a_store_ahead_of_the_commit_writes_cancelled_once(where: str, nth: int, seed: int) -> None:
    world = World(rng=Random(seed))
    world.send("gone", 900, id_="x")
    world.bridge.run(150)
    cancelled = world.cancel("x")
    die(world.bridge, where, nth, within_ms=200)
    crash(world)
    world.bridge.run(2000)
    assert world.delivered() == []
    assert world.receipts("accepted") == [("cancelled", cancelled.offset)]


def test_case_17_a_cancel_ends_an_overdue_timer_which_counts_as_pending_also_if_the_batch_is_split() -> None:
    """The batch is split, as a slot still holds a timer of another lap of the wheel."""
    store = StoreOptions(tick_ms=10, slots=20)
    world = World(TurnOptions(rules=RULES, store=store, receipts="all", max_pending=2))
    world.bridge.clock.error_ms = 500
    world.send("ahead", 300)
    world.bridge.run(20)
    far = world.send("far", 700, id_="f")
    world.bridge.run(20)
    world.send("late", 0, id_="x")
    first = world.cancel("f")
    world.send_due("a lap later", far.append_ms + 900)
    world.send("beyond", 0)
    second = world.cancel("x")
    world.bridge.run(1000)
    assert world.delivered() == ["ahead", "a lap later"]
    assert world.rejected() == [(b"quota-exceeded", b"beyond")]
    receipts = world.receipts("accepted", "delivered", "rejected")
    assert receipts == [("cancelled", first.offset), ("cancelled", second.offset)]


def test_requests_behind_an_occupied_slot_are_not_decided_again_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(TurnOptions(rules=RULES, store=StoreOptions(tick_ms=10, slots=20)))
    decided, decide_one = Counter[str](), BatchIntake.decide_one

    def counted(self: BatchIntake, *request: Any) -> None:
        decided["requests"] += 1
        decide_one(self, *request)

    monkeypatch.setattr(BatchIntake, "decide_one", counted)
    world.bridge.clock.error_ms = 500
    first = world.send("first", 700)
    world.bridge.run(20)
    world.send_due("a lap later", first.append_ms + 900)
    for number in range(300):
        world.send(f"behind {number}", 600)
    world.bridge.run(150)
    assert decided["requests"] < 700
    world.bridge.run(1000)
    assert len(world.delivered()) == 302


@TROUBLE
@pytest.mark.parametrize("delay_ms", [100, 700, -1])
def test_case_20_a_replaced_time_never_fires(delay_ms: int, trouble: Trouble) -> None:
    world = World()
    world.send("old", 400, id_="x")
    world.bridge.run(50)
    replace = [("timer-id", b"x"), ("timer-action", b"replace")]
    due_ms = world.now_ms + delay_ms if delay_ms >= 0 else 1
    replaced = world.send_due("new", due_ms, *replace)
    world.bridge.run(20)
    trouble(world)
    world.bridge.run(2000)
    assert world.delivered() == ["new"]
    assert world.receipts("accepted", "delivered") == [("replaced", replaced.offset)]


@TROUBLE
def test_case_21_delete_marks_survive_and_their_space_is_freed(trouble: Trouble) -> None:
    world = World()
    for n in range(200):
        world.send(str(n), 900, id_=f"id-{n}")
    world.bridge.run(100)
    for n in range(200):
        world.cancel(f"id-{n}")
    world.bridge.run(100)
    trouble(world)
    world.bridge.run(1500)
    assert world.delivered() == []
    world.send("after", 10)
    world.bridge.run(2000)
    assert world.delivered() == ["after"]
    disk = world.bridge.disks[PARTITION]
    assert sum(len(data) for name, data in disk.contents().items() if name != "wheel") < 10_000


def test_a_partition_that_is_given_up_in_order_has_a_checkpoint_of_its_progress() -> None:
    store = StoreOptions(tick_ms=10, slots=1024, checkpoint_interval_ms=10_000)
    world = World(TurnOptions(rules=RULES, store=store, max_wait_ms=1, commit_interval_ms=0))
    world.bridge.run(10)
    world.send("stays", 600)
    world.bridge.run(10)
    (timer_partition,) = world.bridge.disks
    world.group.move(timer_partition, world.group.join("another"))
    world.bridge.run(10)
    found = read_checkpoint(world.bridge.disks[timer_partition])
    assert found is not None
    assert (found.progress.next_offset, found.pending) == (1, 1)


# -- Settings


def changing_wheel(tick_ms: int = 10, slots: int = 1024, *, clean: bool) -> World:
    """Store timers on both sides of K in several files, and cancel one. The next start uses another wheel."""
    store = StoreOptions(tick_ms=10, slots=1024, segment_bytes=200, checkpoint_interval_ms=0)  # 3 units a file
    world = World(TurnOptions(rules=RULES, store=store, max_wait_ms=10, commit_interval_ms=10))
    for number in range(20):
        world.send(f"m{number}", 900 - 40 * number, id_=f"id-{number}")
        world.send("later", 950 + number % 3 * 10)
    world.cancel("id-3")
    world.bridge.run(200)
    if clean:
        world.bridge.stop()
    world.bridge.options = replace(world.options, store=replace(world.options.store, tick_ms=tick_ms, slots=slots))
    return world


def demand_all_leaves_once(world: World) -> None:
    world.bridge.run(100)
    assert world.counts() == {"orders": 20 + sum(900 - 40 * n > 300 for n in range(20) if n != 3)}
    world.bridge.run(700)
    assert world.delivered() == [f"m{number}" for number in range(19, -1, -1) if number != 3] + ["later"] * 20


@pytest.mark.parametrize(("tick_ms", "slots"), [(10, 16), (7, 1024), (5000, 1024), (1, 10)])
@pytest.mark.parametrize("clean", [True, False])
def test_case_12_a_changed_tick_rebuilds_the_store_and_other_slots_do_not(
    tick_ms: int, slots: int, *, clean: bool
) -> None:
    world = changing_wheel(tick_ms, slots, clean=clean)
    world.bridge.start()
    if tick_ms == 10:
        world.forget()  # a rebuild would fail
    demand_all_leaves_once(world)


def test_case_12_a_store_that_would_need_too_many_slots_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recover, "MOST_SLOTS", 64)
    world = changing_wheel(slots=16, clean=False)
    world.bridge.start()
    demand_all_leaves_once(world)
    before, damage, after = caplog.text.partition(
        f"{PARTITION}: the local store is damaged (timer: visits further apart than 64"
    )
    assert damage
    for text, slots in ((before, [32, 64]), (after, [32, 64, 128])):
        assert re.findall(r"starting with (\d+) slots", text) == [str(each) for each in slots]
    assert "retention" not in caplog.text


def journal_forgets(world: World) -> None:
    journal = world.kafka.partition(TimerPartition("timer.journal", 0))
    journal.delete_before(journal.end - 1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("is_gone", "told"),
    [
        (World.forget, "retention has taken the requests before .*: start with version 0.2.0 and tick_ms 10"),
        (journal_forgets, "the journal does not cover what may be pending"),
    ],
)
def test_case_12_a_changed_tick_is_refused_without_what_a_rebuild_needs_and_the_store_stays(
    is_gone: Callable[[World], None], told: str, *, clean: bool
) -> None:
    world = changing_wheel(tick_ms=7, clean=clean)
    world.bridge.kill()
    is_gone(world)
    before = {timer_partition: disk.contents() for timer_partition, disk in world.bridge.disks.items()}
    world.bridge.start()
    with pytest.raises(BridgeError, match=told):
        world.bridge.run(10)
    world.bridge.kill()
    assert {timer_partition: disk.contents() for timer_partition, disk in world.bridge.disks.items()} == before
    world.start(replace(world.options, store=replace(world.options.store, tick_ms=10)))
    demand_all_leaves_once(world)


# -- Figures


@TROUBLE
def test_case_34_first_and_last_due_time_are_exact_and_the_hours_add_up(trouble: Trouble) -> None:
    hour_ms = 3_600_000
    rules = RULES.model_copy(update={"roll_window_ms": hour_ms})
    world = World(TurnOptions(rules=rules, store=StoreOptions(slots=10_000), max_wait_ms=hour_ms))
    dues_ms = {f"id-{n}": world.now_ms + 700 + n * 2 * hour_ms for n in range(6)}
    for id_, due_ms in dues_ms.items():
        world.send_due("m", due_ms, ("timer-id", id_.encode()))

    def check() -> None:
        bridge, dues = world.bridge.bridge, dues_ms.values()
        assert bridge.due_ranges() == {"orders": (len(dues), min(dues), max(dues))}
        assert bridge.due_hours() == {"orders": Counter(due_ms // hour_ms * hour_ms for due_ms in dues)}

    world.bridge.run(20)
    check()
    for ended in ("id-0", "id-5"):
        world.cancel(ended)
        del dues_ms[ended]
        world.bridge.run(20)
        check()
    trouble(world)
    world.bridge.run(3 * hour_ms)  # over many rolls; the first has left
    del dues_ms["id-1"]
    check()


# -- Two transactions in flight


def slow(world: World, faults: int = 0) -> None:
    """Keep each later transaction in flight for a turn, or until the bridge waits. The first `faults` are aborted."""
    world.bridge.sink.slow_turns, world.bridge.sink.faults = 1, faults


def turns(world: World, *values: str) -> None:
    """Send each of `values`, due at once, and run one turn after each."""
    for value in values:
        world.send(value, 0)
        world.bridge.turn()


def test_a_partition_waits_for_its_transaction_and_another_one_does_not() -> None:
    kafka, partitions, instance = two_partitions()
    instance.sink.slow_turns = 1
    delivered = []
    for partition, value in ((0, "a"), (1, "b"), (0, "c"), (0, "d"), (0, "e")):
        send(kafka, partitions[partition], value, 0)
        instance.turn()
        delivered.append("".join(values(kafka)))
    assert delivered == ["", "", "a", "ab", "abc"]


def test_a_turn_comes_soon_while_a_transaction_of_an_earlier_turn_is_in_flight() -> None:
    kafka, partitions, instance = two_partitions()
    instance.sink.slow_turns = 1
    is_busy = []
    send(kafka, partitions[0], delay_ms=0)
    for _ in range(4):
        instance.turn()
        is_busy.append(instance.source.is_busy)
        kafka.timeline.advance(10)
    assert is_busy == [False, False, True, False]


def test_a_partition_with_many_records_shares_no_transaction() -> None:
    kafka, partitions, instance = two_partitions()
    for partition, count in ((partitions[0], 501), (partitions[1], 1)):
        for _ in range(count):
            send(kafka, partition, str(partition), 100)
    instance.run(500)
    transactions = {entry.value: entry.transaction for entry in kafka.read("orders")}
    one, other = transactions.values()
    assert one is not other


def test_intake_stops_when_the_transaction_after_the_one_in_flight_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 20
    world = World(replace(SMALL, max_poll_records=most))
    with monkeypatch.context() as stuck:
        stuck.setattr(FakePublishing, "is_done", lambda _: False)
        for number in range(10 * most):
            world.send(str(number), 0)
        for _ in range(30):
            world.bridge.turn()
        (partition,) = world.bridge.bridge.partitions.values()
        assert most < partition.store.next_offset <= 3 * most
    world.bridge.run(1000)
    assert sorted(map(int, world.delivered())) == list(range(10 * most))


def test_a_partition_that_catches_up_goes_on_after_a_turn_without_records_in_a_transaction() -> None:
    """Its checkpoint is overdue in that turn, so intake would wait for the transaction if anything had come."""
    world = World(replace(SMALL, max_poll_records=1))
    world.bridge.kill()
    for value in ("first", "second"):
        world.send(value, 0)
    world.bridge.start()
    world.bridge.sink.slow_turns = 1
    while not any(each.is_frozen for each in world.bridge.bridge.partitions.values()):
        world.bridge.turn()
    world.kafka.timeline.advance(60_000)
    with pytest.MonkeyPatch.context() as late:
        late.setattr(world.bridge.source, "_take", lambda _: {})
        world.bridge.turn()
    world.bridge.run(60_000)
    assert world.delivered() == ["first", "second"]


@pytest.mark.parametrize("faults", [1, 2, 3])
def test_aborted_transactions_are_retried_in_order_before_new_ones(faults: int) -> None:
    world = World()
    slow(world, faults)
    turns(world, "a", "b", "c", "d")
    world.bridge.run(100)
    assert world.delivered() == ["a", "b", "c", "d"]
    assert world.receipts("delivered") == [("accepted", n) for n in range(4)]


@pytest.mark.thorough
@TROUBLE
def test_pending_requests_are_journalled_once_an_interval_and_not_with_each_delivery(trouble: Trouble) -> None:
    store = StoreOptions(tick_ms=10, slots=1024, checkpoint_interval_ms=10_000)
    world = World(TurnOptions(rules=RULES, store=store, max_wait_ms=10, commit_interval_ms=200))
    for number in range(100):
        world.send(f"{number}", 300)
        world.bridge.run(10)
    trouble(world)
    world.bridge.run(1000)
    assert world.delivered() == [f"{number}" for number in range(100)]
    assert len(world.kafka.read("timer.journal")) <= 10


# -- Waits, commits and checkpoints


def test_a_poll_waits_until_the_next_work_and_briefly_while_a_start_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit marker after the last request is not returned by a poll. An empty poll shows that it was passed."""
    polls = noted(monkeypatch, FakeSource, "poll")
    world = World(replace(SMALL, max_wait_ms=400, commit_interval_ms=200))
    sender = world.kafka.begin("sender")
    send(world.kafka, PARTITION, "m", 1000, transaction=sender)
    world.kafka.commit(sender)
    world.start()
    del polls[:]
    for _ in range(4):
        world.bridge.turn()
    world.send("behind it", 2000)
    while len(world.delivered()) < 2:
        world.bridge.turn()
    assert [timeout_ms for _, timeout_ms, *_ in polls] == [400, 10, 10, 400, 400, 400, 200, 400, 400, 200, 400, 400]


def test_requests_wait_for_their_commit_for_commit_interval() -> None:
    """Later requests share their commit. No timer is due."""
    world = World(replace(SMALL, receipts="none", commit_interval_ms=200))
    world.send(delay_ms=5000)
    world.bridge.run(500)
    committed, began_ms = world.kafka.stable_offset("timers", PARTITION), world.now_ms
    world.send(delay_ms=5000)
    while world.kafka.stable_offset("timers", PARTITION) == committed:
        world.bridge.turn()
    assert world.delivered() == []
    assert 200 <= world.now_ms - began_ms <= 210


def test_a_partition_has_a_checkpoint_in_each_interval_and_no_more() -> None:
    world = World(replace(SMALL, receipts="none"))
    found = []
    for _ in range(50):
        world.send(delay_ms=0)
        world.bridge.run(20)
        found.append(read_checkpoint(world.bridge.disks[PARTITION]))
    assert 8 <= len({checkpoint.progress.next_offset for checkpoint in found if checkpoint is not None}) <= 20


@pytest.mark.thorough
@pytest.mark.parametrize("busy", [0, 1])
def test_a_busy_partition_has_checkpoints_beside_a_quiet_one(busy: int) -> None:
    kafka, timer_partitions, instance = two_partitions()
    instance.sink.slow_turns = 1
    for number in range(1500):
        send(kafka, timer_partitions[busy], str(number), 0)
        kafka.timeline.advance(20)
        instance.turn()
    found = read_checkpoint(instance.disks[timer_partitions[busy]])
    assert found is not None
    assert found.progress.next_offset > 900


@pytest.mark.parametrize("faults", [0, 1])
def test_case_19_a_cancel_of_a_timer_whose_transaction_is_in_flight_waits_for_its_outcome(faults: int) -> None:
    world = World()
    world.send("a", 0, id_="one")
    world.bridge.run(1)
    world.send("b", 5, id_="two")
    world.bridge.turn()
    slow(world, faults)
    world.kafka.timeline.advance(5)
    world.bridge.turn()  # the transaction with "b" is in flight
    assert world.delivered() == ["a"]
    world.cancel("two")
    world.bridge.turn()
    assert (world.delivered(), world.receipts("accepted", "delivered")) == (["a"], [])
    world.bridge.run(100)
    assert world.delivered() == ["a", "b"]
    assert world.receipts("accepted", "delivered") == [("too-late", 2)]


def test_a_cancel_that_waited_for_a_transaction_has_the_receipt_time_of_its_outcome() -> None:
    waits: list[int] = []

    def meanwhile(where: str) -> None:
        if where == "sink.commit" and waits:
            world.kafka.timeline.advance(waits.pop())

    world = World(meanwhile=meanwhile)
    world.send("a", 5, id_="x")
    world.bridge.turn()
    slow(world)
    world.kafka.timeline.advance(5)
    world.bridge.turn()  # the transaction with "a" is in flight, and a broker does not answer
    waits.append(5_000)
    world.cancel("x")
    asked_ms = world.kafka.timeline.now_ms
    world.bridge.turn()
    world.bridge.turn()
    world.bridge.stop()
    told = world.told()
    assert [each["at_ms"] - asked_ms for each in told if each["kind"] == "too-late"] == [5_001]


def test_two_targets_with_one_java_hash_code_have_pauses_and_counts_of_their_own() -> None:
    """RIP-43 tells targets apart by 32 bits: a sender could choose a name that shares the pause of another target."""
    world = World()
    for target in ("xAa", "xBB"):
        world.kafka.create(target)
        world.kafka.produce(TIMERS, target.encode(), headers=schedule(500, target))
    world.bridge.run(100)
    assert world.counts() == {"xAa": 1, "xBB": 1}
    ask(world, b"pause", b"xAa")
    world.bridge.run(1000)
    assert [len(world.kafka.read(target)) for target in ("xAa", "xBB")] == [0, 1]
