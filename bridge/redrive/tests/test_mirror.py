"""What is sent from the mirror of a lost cluster: with it, a second cluster delivers what the first one would have."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from bridge.loop.tests.test_histories import RULES, WINDOW_MS, World
from bridge.ports import Record
from bridge.redrive.mirror import PENDING, Delivered, MirroredPartition, count_deliveries
from bridge.redrive.rules import Parked
from bridge.testing import Entry
from bridge.testing.timer_world import TIMERS
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition

MIRROR, NEW = TimerPartition("primary.timer.requests", 0), TimerPartition(TIMERS, 0)
ALL = -1
"""Start of a mirror: the first record."""


def mirrored(entries: Sequence[Entry], from_ms: int = ALL, to_ms: int = 1 << 60) -> list[Record]:
    """Return the records as a mirror has them: with their timestamps, at other offsets."""
    kept = [entry for entry in entries if from_ms <= entry.append_ms < to_ms]
    return [
        Record(offset, entry.append_ms, entry.key, entry.value, list(entry.headers))
        for offset, entry in enumerate(kept, 7)
    ]


class Loss:
    """The first cluster, as its mirrors have it; and a bridge on the second one, which starts at `at_ms`."""

    def __init__(self, first: World, *, due_from_ms: int = 0, mirror_from_ms: int = ALL, lag_ms: int = 0) -> None:
        self.first, self.due_from_ms, at_ms = first, due_from_ms, first.now_ms
        self._requests = mirrored(first.kafka.read(TIMERS), mirror_from_ms, at_ms + 1 - lag_ms)
        self.deliveries = mirrored(first.kafka.read("orders"), to_ms=at_ms + 1 - lag_ms)
        self.second = World()
        self.second.bridge.run(at_ms - self.second.now_ms)

    def judged(self) -> list[tuple[Parked, bytes | None, Headers]]:
        """Return each timer of the mirror, with key and headers of its request."""
        part = MirroredPartition(MIRROR, NEW, RULES, self.due_from_ms)
        part.read(self._requests)
        part.read(mirrored(self.second.kafka.read(TIMERS)), is_new=True)
        self.unknown = part.unknown
        found = Delivered()
        count_deliveries(found, "orders", self.deliveries, TIMERS, self.due_from_ms)
        by_offset = {record.offset: record for record in self._requests}
        return [(record, *timer.request(by_offset[record.offset], RULES)) for record, timer in part.judged(found)]

    def adopt(self) -> Counter[str]:
        """Send what is pending; return the number of timers by their code."""
        judged = self.judged()
        values = {record.offset: record.value for record in self._requests}
        for record, key, headers in judged:
            if record.code == PENDING:
                self.second.kafka.produce(TIMERS, values[record.offset], key=key, headers=headers)
        return Counter(record.code for record, *_ in judged)


def outcome(*worlds: World) -> Counter[tuple[str, str, str | None]]:
    """Return the number of deliveries by value, due time and a foreign header."""
    each = [pair for world in worlds for pair in zip(world.delivered(), world.deliveries(), strict=True)]
    return Counter((value, headers["timer-deliver-ms"], headers.get("tenant")) for value, headers in each)


def origin(sent: Entry) -> tuple[str, bytes]:
    return "timer-of", b"timer.requests/0/%d" % sent.offset


def delivered_later(loss: Loss) -> list[str]:
    """Adopt, and return what the second cluster delivers."""
    loss.adopt()
    loss.second.bridge.run(20_000)
    return sorted(loss.second.delivered())


def random_history(rng: Random, world: World) -> None:
    for _ in range(rng.randrange(5, 60)):
        world.bridge.run(rng.choice((0, 1, 7, 50, 300)))
        id_, value = rng.choice((None, None, "a", "b", "c")), rng.choice(("x", "y", f"z{rng.randrange(1000)}"))
        match rng.choice(("send", "send", "send", "cancel", "move", "recur")):
            case "send":
                extra = rng.choice(([], [("tenant", b"t")]))
                world.send(value, rng.choice((0, 5, 200, 900, 2500, 6000)), id_=id_, extra=extra)
            case "cancel":
                world.cancel(rng.choice("abc"))
            case "move":
                world.move(rng.choice("abc"), rng.choice((0, 300, 4000)))
            case _:
                every, times = rng.choice((1000, 1500)), rng.randrange(1, 6)
                rule = [("timer-every-ms", b"%d" % every), ("timer-count", b"%d" % times)]
                name = [] if id_ is None else [("timer-id", b"recurs")]
                world.kafka.produce(TIMERS, value.encode(), headers=[("timer-topic", b"orders"), *rule, *name])
    world.bridge.run(rng.choice((0, 3, 20, 500)))


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(8, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_both_clusters_deliver_what_the_first_one_would_have_delivered_alone(seed: int) -> None:
    rng, first = Random(seed), World()
    random_history(rng, first)
    now_ms = first.now_ms
    due_from_ms = rng.choice((0, now_ms - 1000, now_ms - 300))
    mirror_from_ms = rng.choice((ALL, now_ms - 3 * WINDOW_MS - 100))  # retention has taken the requests before
    loss = Loss(first, due_from_ms=due_from_ms, mirror_from_ms=mirror_from_ms)
    loss.adopt()
    before = outcome(first)
    for world in (loss.second, first):
        world.bridge.run(20_000)
    assert before + outcome(loss.second) == outcome(first)


def test_what_the_mirror_lacks_is_delivered_twice_or_not_at_all() -> None:
    first = World()
    first.send("early", 100)
    first.send("pending", 5_000)
    first.send("to be cancelled", 5_000, id_="a")
    first.bridge.run(90)
    first.send("late", 5)
    first.bridge.run(20)
    first.cancel("a")
    first.send("not mirrored", 5_000)
    first.bridge.run(10)
    assert first.delivered() == ["late", "early"]
    loss = Loss(first, lag_ms=11)
    assert [record.value for record in loss.deliveries] == [b"late", b"early"]
    assert delivered_later(loss) == ["pending", "to be cancelled"]
    assert delivered_later(Loss(first, lag_ms=22)) == ["early", "pending", "to be cancelled"], "their deliveries too"


def test_requests_on_the_new_timer_topic_end_and_move_timers_of_the_mirror() -> None:
    first = World()
    for id_ in ("cancelled", "replaced", "moved", "left alone"):
        first.send(id_, 5_000, id_=id_)
    first.bridge.run(0)
    loss = Loss(first)
    loss.second.cancel("cancelled")
    loss.second.send("new", 100, id_="replaced")
    loss.second.move("moved", 9_000)
    loss.second.bridge.run(1_000)
    assert loss.adopt() == {"ended": 2, PENDING: 2}
    loss.second.bridge.run(7_000)
    assert sorted(loss.second.delivered()) == ["left alone", "new"]
    loss.second.bridge.run(1_000)
    assert sorted(loss.second.delivered()) == ["left alone", "moved", "new"]
    assert loss.adopt() == {"ended": 4}, "sent before, or ended"


def test_a_cancel_or_move_by_origin_counts_once_a_copy_has_shown_the_timer() -> None:
    first = World()
    sent = [first.send(value, 5_000) for value in ("cancelled", "moved", "moved at once")]
    first.act("move", origin(sent[2]), ("timer-delay-ms", b"9000"))
    first.bridge.run(WINDOW_MS + 100)
    first.act("cancel", origin(sent[0]))
    first.act("move", origin(sent[1]), ("timer-delay-ms", b"8000"))
    fresh = first.send("fresh", 5_000)
    first.bridge.run(100)
    first.act("cancel", origin(fresh))
    first.bridge.run(100)
    loss = Loss(first)
    loss.adopt()
    assert loss.unknown == {b"timer.requests/0/%d" % fresh.offset: None}
    loss.second.bridge.run(6_000)
    assert loss.second.delivered() == ["fresh"], "its cancel names an offset that the mirror lacks"
    loss.second.bridge.run(3_000)
    assert sorted(loss.second.delivered()) == ["fresh", "moved", "moved at once"]


def test_a_paused_timer_is_counted_and_sent_once_it_is_resumed() -> None:
    first = World()
    for id_ in "abc":
        first.send(id_, 5_000, id_=id_)
        first.act("pause", id_)
    unnamed = [first.send(value, 5_000) for value in "de"]
    for each in unnamed:
        first.act("pause", origin(each))
    first.bridge.run(WINDOW_MS + 100)
    first.act("resume", "b")
    first.cancel("c")
    first.act("resume", origin(unnamed[0]))
    loss = Loss(first)
    assert loss.adopt() == {"paused": 2, "ended": 1, PENDING: 2}
    loss.second.bridge.run(10_000)
    assert sorted(loss.second.delivered()) == ["b", "d"]
    assert loss.unknown == {}


def test_a_copy_whose_timer_was_replaced_while_it_was_on_its_way_is_dropped() -> None:
    first = World()
    first.send("old", 5_000, id_="a")
    first.bridge.run(WINDOW_MS + 100)
    requests = first.kafka.read(TIMERS)
    first.send("new", 7_000, id_="a")
    (copy,) = [entry for entry in requests if "timer-origin" in dict(entry.headers)]
    first.kafka.produce(TIMERS, copy.value, headers=copy.headers)  # as if written before its bridge read the other one
    loss = Loss(first, mirror_from_ms=copy.append_ms + 1)
    assert delivered_later(loss) == ["new"]


def test_requests_of_other_schedulers_are_sent_in_our_headers() -> None:
    rules = RULES.model_copy(update={"profiles": ("native", "rocketmq", "etf1")})
    etf1: Headers = [("scheduler-epoch", b"2000"), ("scheduler-target-topic", b"orders"), ("trace", b"1")]
    rocketmq: Headers = [("REAL_TOPIC", b"orders"), ("TIMER_DELAY_SEC", b"7"), ("UNIQ_KEY", b"u")]
    records = [Record(0, 1_000_000, b"id", b"v", etf1), Record(1, 1_000_000, b"k", b"v", rocketmq)]
    part = MirroredPartition(MIRROR, NEW, rules, 0)
    part.read(records)
    sent = [timer.request(records[record.offset], rules) for record, timer in part.judged(Delivered())]
    topic = ("timer-topic", b"orders")
    assert sent == [
        (None, [topic, ("timer-deliver-ms", b"2000000"), ("timer-id", b"id"), ("trace", b"1")]),
        (b"k", [topic, ("timer-deliver-ms", b"1007000"), ("timer-id", b"u")]),
    ]
    part.read([Record(2, 1_000_001, b"k", b"", [("TIMER_DEL_UNIQKEY", b"orders+u")])])
    assert [record.code for record, _ in part.judged(Delivered())] == [PENDING, "ended"]


def test_deliveries_of_another_timer_topic_count_for_nothing() -> None:
    first = World()
    first.send("one", 100)
    first.bridge.run(200)
    found = Delivered()
    count_deliveries(found, "orders", mirrored(first.kafka.read("orders")), "timer.payments", 0)
    count_deliveries(found, "orders", [Record(0, 0, None, None, [("timer-origin", b"timer.requests")])], TIMERS, 0)
    assert not found
