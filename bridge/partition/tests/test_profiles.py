"""Histories of requests in the headers of other schedulers (profiles), under settings that change."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from bridge.loop.tests.test_histories import (
    RULES,
    SMALL,
    TROUBLE,
    WINDOW_MS,
    Pairs,
    Trouble,
    World,
    crash,
    hang,
    lose_disk,
    lose_power,
)
from bridge.partition.options import TurnOptions
from bridge.testing import Entry
from bridge.testing.timer_world import TIMERS
from schemas.profiles import PROFILES

ALL = ("native", *PROFILES)
EACH = pytest.mark.parametrize("name", PROFILES)
START_MS = 1_700_000_000_000
TROUBLES: list[Trouble] = [crash, lose_power, lose_disk]
FOREIGN: Pairs = [("trace", b"1"), ("trace", b"1"), ("none", None)]


def options(*profiles: str) -> TurnOptions:
    return replace(SMALL, rules=RULES.model_copy(update={"profiles": profiles or ALL}))


class Spelled(World):
    """A world with all profiles that begins at a full second."""

    def __init__(self) -> None:
        super().__init__(options())
        self.kafka.timeline.now_ms = START_MS
        self.kafka.create("payments")

    def ask(self, name: str, delay_s: int, id_: bytes = b"x", *, value: bytes | None = b"v") -> Entry:
        """Send a schedule request of the profile. Whole seconds, as some profiles have no smaller unit."""
        at_s = self.now_ms // 1000 + delay_s
        iso = datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z").encode()
        to, at = b"orders", b"%d" % at_s
        karafka: Pairs = [("schedule_schema_version", b"1.0.0"), ("schedule_source_type", b"schedule")]
        karafka += [("schedule_target_topic", to), ("schedule_target_key", b"k"), ("schedule_target_partition", b"0")]
        kaspr: Pairs = [("x-scheduler-deliver-to", to), ("x-scheduler-deliver-at", iso)]
        spellings: dict[str, tuple[bytes, Pairs]] = {
            "rocketmq": (b"k", [("REAL_TOPIC", to), ("TIMER_DELIVER_MS", at + b"000"), ("UNIQ_KEY", id_)]),
            "etf1": (id_, [("scheduler-target-topic", to), ("scheduler-target-key", b"k"), ("scheduler-epoch", at)]),
            "kaspr": (b"k", [*kaspr, ("x-scheduler-request-id", id_)]),
            "karafka": (id_, [*karafka, ("schedule_target_epoch", at)]),
            "timebridge": (b"k", [("X-Timebridge-Where", to), ("X-Timebridge-When", iso)]),
        }
        key, headers = spellings[name]
        return self.kafka.produce(TIMERS, value, key=key, headers=[FOREIGN[0], *headers, *FOREIGN[1:]])

    def cancel_by(self, name: str, id_: bytes = b"x") -> Entry:
        spellings: dict[str, tuple[bytes | None, Pairs]] = {
            "rocketmq": (b"k", [("TIMER_DEL_UNIQKEY", id_)]),
            "etf1": (id_, []),
            "kaspr": (b"k", [("x-scheduler-action", b"CANCEL"), ("x-scheduler-request-id", id_)]),
            "karafka": (id_, [("schedule_schema_version", b"1.0.0"), ("schedule_source_type", b"cancel")]),
        }
        key, headers = spellings[name]
        return self.kafka.produce(TIMERS, None, key=key, headers=headers)

    def rocketmq(self, topic: bytes, delay_ms: int, id_: bytes = b"x") -> None:
        headers: Pairs = [("REAL_TOPIC", topic), ("TIMER_DELAY_MS", b"%d" % delay_ms), ("UNIQ_KEY", id_)]
        self.kafka.produce(TIMERS, topic, headers=headers)

    def arrived(self) -> list[str]:
        return sorted((e.value or b"").decode() for topic in ("orders", "payments") for e in self.kafka.read(topic))

    def turn_to(self, *profiles: str) -> None:
        """Restart the bridge with other profiles."""
        self.start(options(*profiles))


def the_delivered(world: World) -> Entry:
    (entry,) = world.kafka.read("orders")
    assert entry.key == b"k"
    assert list(entry.headers[:3]) == FOREIGN
    assert {name for name, _ in entry.headers[3:]} == {
        "timer-origin",
        "timer-deliver-ms",
        "timer-released-ms",
        "timer-rolls",
    }
    return entry


@EACH
@TROUBLE
@pytest.mark.parametrize(("delay_s", "rolls"), [(1, b"0"), (3, b"2")])
def test_each_profile_is_delivered_on_time_without_its_headers(
    name: str, trouble: Trouble, delay_s: int, rolls: bytes
) -> None:
    world = Spelled()
    sent = world.ask(name, delay_s)
    for _ in range(2 * delay_s - 1):
        world.bridge.run(500)
        trouble(world)
    world.bridge.run(499)
    assert world.delivered() == []
    world.bridge.run(1)
    added = dict(the_delivered(world).headers[3:])
    assert added["timer-origin"] == b"timer.requests/0/%d" % sent.offset
    assert added["timer-deliver-ms"] == b"%d" % (START_MS + delay_s * 1000)
    assert added["timer-rolls"] == rolls


def test_etf1_an_empty_value_is_delivered_and_a_null_cancels() -> None:
    world = Spelled()
    world.ask("etf1", 1, b"a", value=b"")
    world.ask("etf1", 1, b"b")
    world.ask("etf1", 1, b"b", value=None)
    world.bridge.run(2000)
    assert world.delivered() == [""]


def test_karafka_and_etf1_without_a_target_key_deliver_a_null_key_also_after_a_roll() -> None:
    world = Spelled()
    for delay_s in (1, 3):
        at_s = b"%d" % (world.now_ms // 1000 + delay_s)
        karafka: Pairs = [("schedule_target_topic", b"orders"), ("schedule_target_epoch", at_s)]
        etf1: Pairs = [("scheduler-target-topic", b"orders"), ("scheduler-epoch", at_s)]
        world.kafka.produce(TIMERS, b"v", key=b"a%d" % delay_s, headers=karafka)
        world.kafka.produce(TIMERS, b"v", key=b"b%d" % delay_s, headers=etf1)
    world.bridge.run(4000)
    assert [entry.key for entry in world.kafka.read("orders")] == [None] * 4


def test_a_timer_that_cannot_be_delivered_is_parked_as_it_was_sent() -> None:
    world = Spelled()
    headers: Pairs = [("REAL_TOPIC", b"nowhere"), ("trace", b"1"), ("TIMER_DELAY_MS", b"100"), ("UNIQ_KEY", b"7F00")]
    world.kafka.produce(TIMERS, b"v", key=b"k", headers=headers)
    world.bridge.run(500)
    (parked,) = world.kafka.read("timer.rejected")
    assert (parked.key, list(parked.headers[:4])) == (b"k", headers)
    assert dict(parked.headers)["timer-error"] == b"unknown-topic"
    assert "timer-profile" not in dict(parked.headers)


# -- rocketmq's topic+id


@TROUBLE
@pytest.mark.parametrize("delay_ms", [500, 1500])
def test_case_19_topic_and_id_cancel_on_that_topic_alone(trouble: Trouble, delay_ms: int) -> None:
    world = Spelled()
    world.rocketmq(b"orders", delay_ms)
    world.bridge.run(delay_ms // 2)
    trouble(world)
    missed = world.cancel_by("rocketmq", b"payments+x")
    world.bridge.run(50)
    assert world.receipts("accepted") == [("not-found", missed.offset)]
    cancelled = world.cancel_by("rocketmq", b"orders+x")
    world.bridge.run(2000)
    assert world.arrived() == []
    assert world.receipts("accepted", "not-found") == [("cancelled", cancelled.offset)]


def test_case_19_a_schedule_replaces_a_timer_with_its_id_on_another_topic() -> None:
    world = Spelled()
    world.rocketmq(b"orders", 500)
    world.rocketmq(b"payments", 500)
    world.bridge.run(1000)
    assert world.arrived() == ["payments"]


def test_case_19_topic_and_id_in_the_same_batch_and_while_the_copy_is_in_flight() -> None:
    world = Spelled()
    world.rocketmq(b"orders", 0, b"a")
    world.rocketmq(b"orders", 0, b"b")
    world.cancel_by("rocketmq", b"orders+a")
    world.cancel_by("rocketmq", b"payments+b")
    world.rocketmq(b"orders", 3 * WINDOW_MS, b"c")
    world.rocketmq(b"orders", 3 * WINDOW_MS, b"d")
    world.bridge.run(WINDOW_MS - 1)
    assert world.arrived() == ["orders"]
    hung = hang(world)
    met = world.cancel_by("rocketmq", b"orders+c")
    missed = world.cancel_by("rocketmq", b"payments+d")
    world.bridge.run(50)  # the copies are written after the cancels; none can be read yet
    world.kafka.abort(hung)
    world.bridge.run(4 * WINDOW_MS)
    assert world.arrived() == ["orders", "orders"]
    assert {("cancelled", met.offset), ("not-found", missed.offset)} <= set(world.receipts())


def test_an_id_that_contains_a_plus_is_tried_before_topic_and_id() -> None:
    world = Spelled()
    world.rocketmq(b"orders", 500, b"x")
    world.rocketmq(b"payments", 500, b"orders+x")
    world.cancel_by("rocketmq", b"orders+x")
    world.bridge.run(1000)
    assert world.arrived() == ["orders"]


def test_a_late_cancel_by_topic_and_id_is_too_late() -> None:
    world = Spelled()
    world.rocketmq(b"orders", 100)
    world.bridge.run(200)
    late = world.cancel_by("rocketmq", b"orders+x")
    world.bridge.run(100)
    assert world.receipts("accepted", "delivered") == [("too-late", late.offset)]


# -- Settings that change


@pytest.mark.parametrize(("room", "fits"), [(2000, True), (1300, False)])
def test_a_copy_that_names_its_id_twice_has_to_fit(room: int, *, fits: bool) -> None:
    """etf1's id is the record's key; a copy carries it as key and as `timer-id`.

    A move whose copy would not fit could never be committed, in this life or the next.
    """
    world = Spelled()
    world.start(replace(world.options, max_message_bytes=room))
    world.ask("etf1", 3, b"i" * 300, value=b"v" * 300)
    world.ask("etf1", 1, b"m" * 300, value=b"w" * 300)
    world.move("m" * 300, 500)
    world.bridge.run(500)
    assert [code for code, _ in world.rejected()] == ([] if fits else [b"too-large"] * 2)
    assert world.delivered() == ["w" * 300] * fits
    world.bridge.run(3000)
    assert sorted(world.delivered()) == ["v" * 300] * fits + ["w" * 300]


@pytest.mark.parametrize("delay_s", [1, 3])
def test_a_partition_is_kept_also_over_a_roll(delay_s: int) -> None:
    world = Spelled()
    world.kafka.create("wide", 3)
    at_ms = b"%d" % (world.now_ms + delay_s * 1000)
    rocketmq: Pairs = [("REAL_TOPIC", b"wide"), ("TIMER_DELIVER_MS", at_ms), ("REAL_QID", b"2")]
    world.kafka.produce(TIMERS, b"v", key=b"k", headers=rocketmq)
    world.bridge.run(4000)
    assert [len(list(log.everything())) > 0 for log in world.kafka.topics["wide"].partitions] == [False, False, True]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(40))
def test_any_mix_of_profiles_settings_and_losses_delivers_each_accepted_timer_once(seed: int) -> None:
    rng = Random(seed)
    on: tuple[str, ...] = ALL
    world = Spelled()
    pending: dict[bytes, bytes] = {}
    refused: set[bytes] = set()
    for number in range(25):
        match rng.randrange(6):
            case 0:
                on = ("native", *rng.sample(list(PROFILES), rng.randint(0, len(PROFILES))))
                world.turn_to(*on)
            case 1:
                rng.choice(TROUBLES)(world)
            case _:
                name, id_, value = rng.choice(list(PROFILES)), b"id-%d" % rng.randrange(4), b"%d" % number
                world.ask(name, rng.choice((10, 11, 13)), id_, value=value)
                if name not in on:
                    refused.add(value)
                elif name == "timebridge":
                    pending[value] = value
                else:
                    pending[id_] = value
                if name != "timebridge" and name in on and rng.random() < 0.2:
                    world.cancel_by(name, id_)
                    pending.pop(id_)
        world.bridge.run(rng.choice((1, 30, 300)))
    world.bridge.run(20_000)
    assert sorted(value.encode() for value in world.delivered()) == sorted(pending.values())
    assert sorted(value or b"" for _, value in world.rejected()) == sorted(refused)
    assert all(list(entry.headers[:3]) == FOREIGN for entry in world.kafka.read("orders"))


@pytest.mark.thorough
@TROUBLE
def test_kaspr_a_cron_is_paused_and_resumed(trouble: Trouble) -> None:
    """A pause and a cancel in one poll: the cancel finds the paused timer."""
    world = Spelled()
    asked: Pairs = [("x-scheduler-deliver-to", b"orders"), ("x-scheduler-cron-expr", b"* * * * *")]

    def ask(action: bytes, id_: bytes, *more: tuple[str, bytes | None]) -> None:
        named: Pairs = [("x-scheduler-action", action), ("x-scheduler-request-id", id_)]
        world.kafka.produce(TIMERS, b"again", headers=[*named, *more])

    for id_ in (b"7", b"8"):
        ask(b"CRON_ADD", id_, *asked)
    world.bridge.run(100)
    for action, id_ in ((b"CRON_PAUSE", b"7"), (b"CRON_PAUSE", b"8"), (b"CRON_CANCEL", b"8")):
        ask(action, id_)
    world.bridge.run(170_000)
    trouble(world)
    assert world.delivered() == []
    ask(b"CRON_RESUME", b"7")
    world.bridge.run(20)
    assert world.delivered() == ["again"] * 3, "missed ones are delivered, as kaspr has it"
