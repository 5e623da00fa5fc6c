"""Histories of several timer topics: policy, quota and rate of each, seen from outside."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bridge.loop.tests.test_histories import RULES, WINDOW_MS, kafka_with, schedule, send, values
from bridge.loop.tests.test_histories import SMALL as ONE_TOPIC
from bridge.observe.metric_types import TopicLabels
from bridge.observe.prometheus import store_metrics
from bridge.partition.options import Policy, TurnOptions
from bridge.partition.recover import read_checkpoint
from bridge.query.summary import merge_pending, pending_in_bridge
from bridge.testing import Entry, FakeGroup, FakeInstance
from bridge.testing.timer_world import TIMERS, TimerWorld
from kafka_timer.origin import TimerPartition

PAYMENTS = "timer.payments"
OWN = (TIMERS, "timer.journal", PAYMENTS, f"{PAYMENTS}.journal", "timer.rejected", "timer.receipts")
SMALL = replace(ONE_TOPIC, rules=RULES.model_copy(update={"own_topics": frozenset(OWN)}))


class World(TimerWorld):
    """Two timer topics. `main`: the options of timer.requests, `payments`: of timer.payments."""

    def __init__(self, *, main: TurnOptions = SMALL, payments: TurnOptions = SMALL) -> None:
        super().__init__("orders", "bills", options=_both(main, payments))

    def start(self, *, main: TurnOptions = SMALL, payments: TurnOptions = SMALL) -> None:
        """Start the bridge again with these options."""
        self.bridge.options = _both(main, payments)
        self.bridge.start()

    def send(
        self, value: str, delay_ms: int = 500, *, to: str = "orders", on: str = TIMERS, id_: str | None = None
    ) -> Entry:
        return self.kafka.produce(on, value.encode(), headers=schedule(delay_ms, to, id_))

    def cancel(self, id_: str, *, on: str = TIMERS) -> Entry:
        return self.kafka.produce(on, None, headers=[("timer-action", b"cancel"), ("timer-id", id_.encode())])

    def delivered(self, topic: str = "orders") -> list[str]:
        return values(self.kafka, topic)

    def rejected(self) -> list[tuple[str, str]]:
        """Return (value, code) of each rejected record."""
        entries = self.kafka.read("timer.rejected")
        found = [(entry.value or b"", dict(entry.headers)["timer-error"] or b"") for entry in entries]
        return [(value.decode(), code.decode()) for value, code in found]

    def receipts(self, *kinds: str, on: str = TIMERS) -> list[tuple[str, int]]:
        """Return (kind, offset of the request) of each receipt of `kinds` for the timer topic `on`."""
        said = [json.loads(entry.value or b"{}") for entry in self.kafka.read("timer.receipts")]
        places = [(r["kind"], r["request"].split("/")) for r in said]
        return [(kind, int(offset)) for kind, (topic, _, offset) in places if topic == on and kind in kinds]

    def accepted(self, on: str = TIMERS) -> int:
        return len(self.receipts("accepted", on=on))

    def pending(self, on: str = TIMERS) -> int:
        return self.bridge.bridge.pending[TimerPartition(on, 0)]

    def refused_by_journal(self, on: str = TIMERS) -> list[int]:
        journal = "timer.journal" if on == TIMERS else f"{on}.journal"
        return [offset for entry in self.read(journal) for offset in json.loads(entry.value or b"")["refused"]]


def _both(main: TurnOptions, payments: TurnOptions) -> TurnOptions:
    return replace(main, topics={PAYMENTS: replace(payments, journal_topic=f"{PAYMENTS}.journal")})


def only(*allow: str, deny: tuple[str, ...] = ()) -> TurnOptions:
    return small(policy=Policy(allow, deny))


def small(**changes: Any) -> TurnOptions:
    return replace(SMALL, **changes)


RARE = [pytest.param(end, marks=pytest.mark.thorough) for end in (FakeInstance.kill, FakeInstance.lose_power)]
ENDS = pytest.mark.parametrize("end", [FakeInstance.stop, *RARE, FakeInstance.lose_disks])
End = Callable[[FakeInstance], None]


# -- policy


def test_a_denied_request_is_kept_whole_with_the_remedy_and_ends_no_timer() -> None:
    world = World(main=only("orders"))
    world.send("stands", id_="x")
    denied = world.send("denied", to="bills", id_="x")
    world.pass_time(ms=500)
    assert world.delivered() == ["stands"]
    (entry,) = world.kafka.read("timer.rejected")
    headers = list(entry.headers)
    assert (entry.value, headers[: len(denied.headers)]) == (b"denied", list(denied.headers))
    told = dict(headers)["timer-error-detail"] or b""
    assert b"bills is no target of this timer topic: send it to one that allows it" in told


def test_each_timer_topic_has_its_own_targets() -> None:
    world = World(main=only("*", deny=("bills",)), payments=only("bill*"))
    for on in (TIMERS, PAYMENTS):
        for to in ("orders", "bills"):
            world.send(f"{on} to {to}", to=to, on=on)
    world.pass_time(ms=500)
    assert world.delivered("orders") == [f"{TIMERS} to orders"]
    assert world.delivered("bills") == [f"{PAYMENTS} to bills"]
    refused = [(f"{PAYMENTS} to orders", "denied-target"), (f"{TIMERS} to bills", "denied-target")]
    assert sorted(world.rejected()) == refused
    assert world.receipts("rejected", on=PAYMENTS) == [("rejected", 0)]
    assert (world.refused_by_journal(TIMERS), world.refused_by_journal(PAYMENTS)) == ([1], [0])


@pytest.mark.parametrize("on", [TIMERS, PAYMENTS])
def test_case_32_the_own_topics_of_all_timer_topics_and_internal_ones_are_never_targets(on: str) -> None:
    world = World(main=only("*"), payments=only("*", "timer.*"))
    targets = [*OWN, "__consumer_offsets", "__transaction_state"]
    for target in targets:
        world.send(target, to=target, on=on)
    world.pass_time(ms=500)
    assert world.rejected() == [(target, "bad-target") for target in targets]


@pytest.mark.parametrize(
    ("actions", "refused"),
    [
        (("schedule",), ["cancel", "move", "pause", "resume", "other", "replace", "replace of nothing"]),
        (("schedule", "replace"), ["cancel", "move", "pause", "resume"]),
        (("cancel",), ["new", "move", "pause", "resume", "other", "replace", "replace of nothing", "new with id"]),
        (("move", "replace"), ["new", "cancel", "pause", "resume", "new with id"]),
        (("schedule", "pause"), ["cancel", "move", "other", "replace", "replace of nothing"]),
    ],
)
@ENDS
def test_a_timer_topic_takes_the_actions_that_it_allows(end: End, actions: tuple[str, ...], refused: list[str]) -> None:
    """`other`: a schedule with the id of a pending timer is a replace. A refused request has no effect, also later."""
    world = World()
    for id_ in ("cancelled", "moved", "replaced", "paused"):
        world.send(f"{id_} stands", 900, id_=id_)
    world.pass_time(ms=50)
    world.start(main=small(policy=Policy(actions=actions)))
    world.send("new")
    ids = {"cancel": "cancelled", "move": "moved", "replace": "replaced", "pause": "paused", "resume": "moved"}
    delay = ("timer-delay-ms", b"500")
    for action in ("cancel", "move", "pause", "resume"):
        headers = [("timer-action", action.encode()), ("timer-id", ids[action].encode())]
        world.kafka.produce(TIMERS, action.encode(), headers=headers + [delay] * (action == "move"))
    world.send("other", id_="replaced")
    to = ("timer-topic", b"orders")
    for value, id_ in (("replace", "replaced"), ("replace of nothing", "nothing")):
        headers = [("timer-action", b"replace"), ("timer-id", id_.encode()), to, delay]
        world.kafka.produce(TIMERS, value.encode(), headers=headers)
    world.send("new with id", id_="id")
    world.pass_time(ms=100)
    assert world.rejected() == [(value, "denied-action") for value in refused]
    end(world.bridge)
    world.start()
    world.pass_time(ms=400)
    early = {"new", "new with id", "replace", "replace of nothing"} - set(refused)
    early |= {"moved stands"} if "move" in actions else set()
    assert set(world.delivered()) == early
    world.pass_time(ms=500)
    kept = {f"{id_} stands" for action, id_ in ids.items() if action not in (*actions, "resume")}
    assert set(world.delivered()) == early | kept


@pytest.mark.parametrize("profile", ["rocketmq", "etf1"])
def test_a_policy_applies_to_all_profiles(profile: str) -> None:
    options = only("orders")
    options = replace(options, rules=options.rules.model_copy(update={"profiles": ("native", profile)}))
    world = World(main=options)
    due_s = b"%d" % (world.now_ms // 1000 + 1)
    spelled = {
        "rocketmq": [("REAL_TOPIC", b"bills"), ("TIMER_DELAY_MS", b"10")],
        "etf1": [("scheduler-target-topic", b"bills"), ("scheduler-epoch", due_s)],
    }
    world.kafka.produce(TIMERS, b"m", key=b"k", headers=spelled[profile])
    world.pass_time(ms=2000)
    assert world.rejected() == [("m", "denied-target")]
    assert world.delivered("bills") == []


def test_each_timer_topic_reads_its_own_profiles() -> None:
    spelled = SMALL.rules.model_copy(update={"profiles": ("native", "rocketmq")})
    world = World(payments=small(rules=spelled))
    for on in (TIMERS, PAYMENTS):
        world.kafka.produce(on, on.encode(), headers=[("REAL_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"10")])
    world.pass_time(ms=100)
    assert world.delivered() == [PAYMENTS]
    assert world.rejected() == [(TIMERS, "missing-time")]


@ENDS
def test_a_timer_is_parked_if_its_target_became_one_of_the_bridges_topics(end: End) -> None:
    """A delivery to a journal would be read as a decision of the bridge."""
    world = World()
    world.send("early", 900)
    world.send("other", 900, to="bills")
    world.pass_time(ms=100)
    end(world.bridge)
    grown = SMALL.rules.model_copy(update={"own_topics": frozenset((*OWN, "orders"))})
    world.start(main=small(rules=grown), payments=small(rules=grown))
    world.pass_time(ms=1000)
    assert (world.delivered(), world.delivered("bills")) == ([], ["other"])
    assert world.rejected() == [("early", "bad-target")]
    assert world.receipts("rejected", "delivered") == [("rejected", 0), ("delivered", 1)]


# -- pending timers


def test_max_pending_limits_its_own_topic_alone() -> None:
    world = World(payments=small(max_pending=2))
    for number in range(4):
        world.send(f"{number}", on=PAYMENTS)
        world.send(f"main {number}", to="bills")
    world.pass_time(ms=500)
    assert world.delivered() == ["0", "1"]
    assert world.delivered("bills") == [f"main {number}" for number in range(4)]
    assert world.rejected() == [("2", "quota-exceeded"), ("3", "quota-exceeded")]
    assert world.refused_by_journal(PAYMENTS) == [2, 3]
    told = dict(world.kafka.read("timer.rejected")[0].headers)["timer-error-detail"] or b""
    assert b"send it again later, or have max_pending raised" in told


# -- bytes


def pending_bytes(world: World) -> int:
    return world.bridge.bridge.partitions[TimerPartition(TIMERS, 0)].store.queries.pending_bytes


def frame_bytes(value: str) -> int:
    """Return the pending bytes of one timer that `send` sends without an id."""
    world = World()
    world.send(value)
    world.pass_time(ms=20)
    return pending_bytes(world)


def test_pending_bytes_are_reported_by_timer_topic() -> None:
    world = World()
    for _ in range(3):
        world.send("x" * 100)
    world.send("y" * 1000, on=PAYMENTS)
    world.pass_time(ms=20)
    bridge = world.bridge.bridge
    metrics = store_metrics(bridge.partitions, {}, TopicLabels(10), world.now_ms, lambda: False, None)
    (family,) = (each for each in metrics if each.name == "timer_bridge_pending_bytes")
    pending = {sample.labels["topic"]: sample.value for sample in family.samples}
    assert pending == {TIMERS: 3 * frame_bytes("x" * 100), PAYMENTS: frame_bytes("y" * 1000)}
    told = merge_pending(
        [pending_in_bridge(bridge, world.now_ms), pending_in_bridge(bridge, world.now_ms)]
    ).timer_topics
    assert {topic: each.pending_bytes for topic, each in told.items()} == {t: 2 * size for t, size in pending.items()}
    assert all(each.store_bytes > each.pending_bytes for each in told.values())


def test_max_request_bytes_limits_its_own_topic_alone() -> None:
    world = World(payments=small(max_request_bytes=100))
    for size in (10, 1000):
        world.send("x" * size, on=PAYMENTS)
        world.send("y" * size, to="bills")
    for size in (49, 50):  # with 51 bytes of value and headers
        world.kafka.produce(PAYMENTS, b"%d" % size, key=b"k" * size, headers=schedule(10))
    world.pass_time(ms=500)
    assert world.delivered() == ["49", "x" * 10]
    assert world.delivered("bills") == ["y" * 10, "y" * 1000]
    assert world.rejected() == [("x" * 1000, "too-large"), ("50", "too-large")]
    told = dict(world.kafka.read("timer.rejected")[0].headers)["timer-error-detail"] or b""
    assert b"max_request_bytes is 100B: shorten it" in told


def test_a_replacement_that_fits_into_the_bytes_of_its_timer_is_taken_above_the_limit() -> None:
    world = World(main=small(max_pending_bytes=10_000))
    for id_ in "abc":
        world.send(id_ * 500, id_=id_)
    world.pass_time(ms=20)
    world.start(main=small(max_pending_bytes=1000))
    world.send("d" * 100, id_="a")
    world.pass_time(ms=500)
    assert (world.rejected(), sorted(world.delivered())) == ([], ["b" * 500, "c" * 500, "d" * 100])


@pytest.mark.parametrize("apart", [False, True])
def test_max_pending_bytes_refuses_requests_and_cancels_make_room(apart: bool) -> None:  # noqa: FBT001
    """The result is the same in one batch or one by one."""
    room = frame_bytes("x" * 500) + frame_bytes("x" * 100)
    world = World(main=small(max_pending_bytes=room + 40))  # ids and their headers
    asked = [("a" * 490, "a"), ("b" * 300, None), ("c" * 30, None), ("d" * 480, "a"), ("e" * 900, "a")]
    for text, id_ in (*asked, ("cancel", "a"), ("f" * 300, None)):
        if text == "cancel":
            world.cancel("a")
        else:
            world.send(text, id_=id_)
        if apart:
            world.pass_time(ms=20)
    world.pass_time(ms=500)
    assert sorted(world.delivered()) == ["c" * 30, "f" * 300]
    assert world.rejected() == [("b" * 300, "quota-exceeded"), ("e" * 900, "quota-exceeded")]
    told = dict(world.kafka.read("timer.rejected")[0].headers)["timer-error-detail"] or b""
    assert b"send it again later, or have max_pending_bytes raised" in told
    assert pending_bytes(world) == 0


@ENDS
def test_copies_are_not_refused_for_their_bytes(end: End) -> None:
    world = World(main=small(max_pending_bytes=3 * frame_bytes("x" * 200) + 50, max_request_bytes=1000))
    for number in range(3):
        world.send(f"{number}" * 200, 3 * WINDOW_MS + number)
    world.pass_time(ms=WINDOW_MS + 200)
    end(world.bridge)
    world.start(main=small(max_pending_bytes=1, max_request_bytes=1))
    world.send("late", 10)
    world.pass_time(ms=3 * WINDOW_MS)
    assert world.delivered() == [f"{number}" * 200 for number in range(3)]
    assert world.rejected() == [("late", "too-large")]


def set_free(world: World, free: int) -> None:
    for disk in world.bridge.disks.values():
        disk.free = free


def test_a_topic_that_filled_the_disk_pauses_its_own_intake_alone_and_its_cancels_are_read() -> None:
    world = World()
    for number in range(20):
        world.send(f"{number}" * 100, 5000, on=PAYMENTS, id_=f"{number}")
    world.send("main", 5000, id_="m")
    world.pass_time(ms=200)
    least = world.options.min_free_bytes
    set_free(world, least - 1)
    for number in range(10):
        world.cancel(f"{number}", on=PAYMENTS)
    world.send("waits", 300, on=PAYMENTS)
    world.cancel("10", on=PAYMENTS)
    world.send("goes on", 300, to="bills")
    world.pass_time(ms=1000)
    assert world.delivered("bills") == ["goes on"]
    assert len(world.receipts("cancelled", on=PAYMENTS)) == 10, "the last cancel is after a request that waits"
    assert world.pending(PAYMENTS) == 10
    assert world.bridge.status.pauses.unfetched == {TimerPartition(PAYMENTS, 0)}
    set_free(world, least // 2 - 1)
    world.send("waits too", 300, to="bills")
    world.pass_time(ms=1000)
    assert world.delivered("bills") == ["goes on"]
    set_free(world, 1 << 40)
    world.pass_time(ms=100)
    assert (world.delivered(), world.delivered("bills")) == (["waits"], ["goes on", "waits too"])
    assert len(world.receipts("cancelled", on=PAYMENTS)) == 11
    world.pass_time(ms=5000)
    assert len(world.delivered()) == 11
    assert world.rejected() == []


@ENDS
def test_cancels_read_with_a_full_disk_hold_after_a_restart(end: End) -> None:
    world = World()
    for number in range(4):
        world.send(f"{number}", 2000, id_=f"{number}")
    world.pass_time(ms=100)
    set_free(world, 0)
    world.cancel("0")
    world.kafka.produce(TIMERS, b"malformed", headers=[])
    world.pass_time(ms=100)
    world.cancel("1")
    world.pass_time(ms=100)
    assert world.bridge.status.pauses.unfetched == set(), "no request waits for room"
    end(world.bridge)
    set_free(world, 0)
    world.bridge.start()
    world.pass_time(ms=2000)
    assert world.delivered() == ["2", "3"]
    assert world.rejected() == [("malformed", "missing-time")]


def test_a_tenant_at_its_quota_delays_no_other() -> None:
    world = World(payments=small(max_pending_bytes=2000, max_request_bytes=1000))
    for number in range(50):
        for _ in range(40):
            world.send("x" * 300, 60_000, on=PAYMENTS)
        world.send("y" * 5000, 60_000, on=PAYMENTS)
        world.send(f"{number}", 100, to="bills")
        world.pass_time(ms=50)
    world.pass_time(ms=200)
    headers = [dict(entry.headers) for entry in world.kafka.read("bills")]
    late_ms = [int(each["timer-released-ms"] or b"") - int(each["timer-deliver-ms"] or b"") for each in headers]
    assert len(late_ms) == 50
    assert max(late_ms) <= 20
    assert Counter(code for _, code in world.rejected())["too-large"] == 50


# -- the store


@ENDS
@pytest.mark.parametrize("prepare_from", [1, 1 << 40], ids=["prepared beside", "opened at once"])
def test_a_topic_keeps_its_store_settings_after_a_restart(end: End, prepare_from: int) -> None:
    own = small(store=replace(SMALL.store, tick_ms=50))
    world = World(main=small(prepare_from=prepare_from), payments=own)
    for on in (TIMERS, PAYMENTS):
        for number in range(20):
            world.send(f"{number}", 900, on=on)
    world.pass_time(ms=100)
    end(world.bridge)
    world.bridge.start()
    world.pass_time(ms=700)
    found = {topic: read_checkpoint(world.bridge.disks[TimerPartition(topic, 0)]) for topic in (TIMERS, PAYMENTS)}
    ticks = {topic: checkpoint and checkpoint.tick_ms for topic, checkpoint in found.items()}
    assert ticks == {TIMERS: SMALL.store.tick_ms, PAYMENTS: 50}
    world.pass_time(ms=300)
    assert len(world.delivered()) == 40


# -- requests per second


def test_a_rate_is_kept_without_rejections_and_does_not_slow_the_other_topic() -> None:
    world = World(payments=small(max_requests_per_s=50))
    for number in range(500):
        world.send(f"{number}", 0, on=PAYMENTS)
        world.send(f"main {number}", 0, to="bills")
    world.pass_time(ms=0)
    assert (world.accepted(), world.accepted(PAYMENTS)) == (500, 50)
    assert len(world.delivered("bills")) == 500
    assert world.bridge.status.pauses.unfetched == {TimerPartition(PAYMENTS, 0)}
    for second in range(1, 9):
        world.send(f"main {second}", 10, to="bills")
        world.pass_time(ms=1000)
        assert world.accepted(PAYMENTS) == 50 * (second + 1)
        assert world.delivered("bills")[-1] == f"main {second}"
    world.pass_time(ms=1000)
    assert world.delivered() == [f"{number}" for number in range(500)]
    assert world.rejected() == []


def test_each_limited_topic_is_logged_with_its_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    world = World(main=small(max_requests_per_s=1), payments=small(max_requests_per_s=2))
    for on in (TIMERS, PAYMENTS):
        for number in range(5):
            world.send(f"{number}", 0, on=on)
    world.pass_time(ms=0)
    words = "intake keeps to max_requests_per_s, {}; more than that waits"
    assert sorted(caplog.messages) == [f"{PAYMENTS}: {words.format(2)}", f"{TIMERS}: {words.format(1)}"]


def test_a_cancel_waits_for_the_rate_as_other_requests_do_and_due_timers_do_not() -> None:
    world = World(main=small(max_requests_per_s=10))
    world.send("too late", 500, id_="a")
    world.send("in time", 3000, id_="b")
    for number in range(18):
        world.send(f"{number}", 60_000)
    world.cancel("a")
    world.cancel("b")
    world.pass_time(ms=499)
    assert world.delivered() == []
    world.pass_time(ms=1)
    assert world.delivered() == ["too late"]
    world.pass_time(ms=2500)
    assert world.delivered() == ["too late"]
    assert world.receipts("too-late", "cancelled") == [("too-late", 20), ("cancelled", 21)]


@pytest.mark.thorough
@ENDS
def test_a_rate_holds_after_a_restart(end: End) -> None:
    world = World(main=small(max_requests_per_s=10))
    for number in range(100):
        world.send(f"{number}", 0)
    world.pass_time(ms=3000)
    assert world.accepted() == 40
    end(world.bridge)
    world.bridge.start()
    world.pass_time(ms=0)
    assert 40 <= world.accepted() <= 50
    world.pass_time(ms=6000)
    assert sorted(map(int, world.delivered())) == list(range(100))
    assert world.rejected() == []


def test_copies_of_rolled_timers_count_against_the_rate() -> None:
    """Each roll of a timer costs the bridge as much as its request."""
    world = World(main=small(max_requests_per_s=10))
    for number in range(10):
        world.send(f"{number}", 5 * WINDOW_MS)
    world.pass_time(ms=2 * WINDOW_MS)
    for number in range(30):
        world.send(f"later {number}", 0)
    world.pass_time(ms=2 * WINDOW_MS)
    assert world.accepted() - 10 < 30, "if the copies did not count, 30 would be taken"
    world.pass_time(ms=10 * WINDOW_MS)
    assert len(world.delivered()) == 40


def test_a_rate_and_a_full_disk_pause_and_go_on_together() -> None:
    world = World(main=small(max_requests_per_s=10))
    for number in range(50):
        world.send(f"{number}", 0)
    world.pass_time(ms=1000)
    set_free(world, 0)
    world.pass_time(ms=5000)
    assert world.accepted() == 20
    set_free(world, 1 << 40)
    world.pass_time(ms=0)
    assert world.accepted() == 30
    world.pass_time(ms=2000)
    assert world.accepted() == 50


@pytest.mark.parametrize("per_s", [2, 100])
def test_the_partitions_of_a_limited_topic_take_turns(per_s: int) -> None:
    kafka = kafka_with(3)
    partitions = [TimerPartition(TIMERS, number) for number in range(3)]
    bridge = FakeInstance(kafka, FakeGroup("timers", partitions), small(max_requests_per_s=per_s))
    bridge.run(0)
    for timer_partition in partitions:
        for number in range(1000):
            send(kafka, timer_partition, f"{timer_partition.partition}/{number}", 0)
    bridge.run(9000)
    delivered = [(entry.value or b"").split(b"/") for entry in kafka.read("orders")]
    by_partition = [
        sum(int(partition) == timer_partition.partition for partition, _ in delivered) for timer_partition in partitions
    ]
    assert sum(by_partition) == 10 * per_s
    assert max(by_partition) - min(by_partition) <= per_s


@ENDS
def test_a_request_of_an_older_version_keeps_its_meaning_and_a_new_one_like_it_is_refused(end: End) -> None:
    """Names that begin with `timer-`, and due times in seconds, were accepted: a rebuild must read them so."""
    world = World()
    world.send("in time", 2000)
    headers = schedule(2000, "orders", None, ("timer-ID", b"x"))
    world.kafka.produce(TIMERS, b"misspelt", headers=headers)
    world.kafka.produce(TIMERS, b"seconds", headers=[("timer-topic", b"orders"), ("timer-deliver-ms", b"1700000009")])
    world.pass_time(ms=100)
    assert (world.delivered(), world.pending()) == (["seconds"], 2)
    end(world.bridge)
    world.start(main=small(rules=SMALL.rules.model_copy(update={"passed_on": frozenset({"timer-tenant"})})))
    world.kafka.produce(TIMERS, b"refused", headers=headers)
    world.kafka.produce(TIMERS, b"passed on", headers=[*headers[:2], ("timer-tenant", b"a")])
    world.pass_time(ms=100)
    assert (world.rejected(), world.pending()) == ([("refused", "bad-header")], 3)
    end(world.bridge)
    world.bridge.start()
    world.pass_time(ms=5000)
    assert (world.delivered()[1:], len(world.rejected())) == (["in time", "misspelt", "passed on"], 1)
    assert dict(world.kafka.read("orders")[3].headers)["timer-tenant"] == b"a"
