"""Shards of which much is to be read at a start: prepared beside the turns, while the others go on."""

from dataclasses import replace

import pytest

from bridge.testing import Crash, FakeGroup, FakeInstance, FakeKafka, Timeline
from bridge.timer_world import TIMERS, usual_options
from schemas.origin import Shard

LARGE, SMALL = Shard(TIMERS, 0), Shard(TIMERS, 1)
MINUTE_MS = 60_000


class World:
    """Twenty timers in one shard, which is large by that, and none in the other."""

    def __init__(self) -> None:
        self.kafka = FakeKafka(Timeline())
        for topic in (TIMERS, "timer.journal"):
            self.kafka.create(topic, 2)
        for topic in ("timer.rejected", "timer.receipts", "orders"):
            self.kafka.create(topic)
        self.bridge = FakeInstance(
            self.kafka, FakeGroup("timers", [LARGE, SMALL]), replace(usual_options(), prepare_from=20)
        )
        for number in range(20):
            self.send(LARGE, f"large {number}", MINUTE_MS, id_=b"%d" % number)
        self.bridge.run(1000)

    def send(self, shard: Shard, value: str, delay_ms: int, *, id_: bytes | None = None) -> None:
        headers: list[tuple[str, bytes | None]] = [("timer-topic", b"orders"), ("timer-delay-ms", b"%d" % delay_ms)]
        headers += [] if id_ is None else [("timer-id", id_)]
        self.kafka.produce(TIMERS, value.encode(), headers=headers, partition=shard.partition)

    def cancel(self, shard: Shard, id_: bytes) -> None:
        headers = [("timer-action", b"cancel"), ("timer-id", id_)]
        self.kafka.produce(TIMERS, None, headers=headers, partition=shard.partition)

    def delivered(self) -> list[str]:
        return [(entry.value or b"").decode() for entry in self.kafka.read("orders")]

    def is_ready(self) -> bool:
        assert self.bridge.bridge is not None
        return self.bridge.bridge.ready


def test_the_others_go_on_while_one_is_prepared() -> None:
    world = World()
    world.bridge.lose_disks()
    world.bridge.holds_preparations = True
    world.bridge.start()
    world.send(SMALL, "small", 500)
    world.bridge.run(500)
    world.cancel(LARGE, b"7")
    world.bridge.run(MINUTE_MS)
    assert world.delivered() == ["small"]
    assert not world.is_ready()
    world.bridge.holds_preparations = False
    world.bridge.run(1000)
    assert world.is_ready()
    assert sorted(world.delivered()) == sorted(["small", *(f"large {n}" for n in range(20) if n != 7)])


@pytest.mark.parametrize("dies_at", ["sink.offsets done", "sink.commit", "sink.end"])
def test_the_others_go_on_while_a_dead_owners_transaction_hangs(dies_at: str) -> None:
    """Neither its progress nor its journal can be read before the time-out has ended it."""
    kafka = FakeKafka(Timeline(), transaction_timeout_ms=10_000)
    for topic in (TIMERS, "timer.journal"):
        kafka.create(topic, 2)
    for topic in ("timer.rejected", "timer.receipts", "orders"):
        kafka.create(topic)
    group, options = FakeGroup("timers", [LARGE, SMALL]), replace(usual_options(), max_wait_ms=500)
    instances = {name: FakeInstance(kafka, group, options, name=name) for name in ("dead", "other")}
    for _ in range(3):
        for instance in instances.values():
            instance.run(0)
    dead, other = instances["dead"], instances["other"]
    assert dead.bridge is not None
    assert other.bridge is not None
    (gone,), (kept,) = dead.bridge.pending, other.bridge.pending

    def send(shard: Shard) -> None:
        headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"100")]
        kafka.produce(TIMERS, str(shard).encode(), headers=headers, partition=shard.partition)

    send(gone)
    dead.fuse.arm(1, dies_at)
    with pytest.raises(Crash):
        dead.run(1000)
    dead.kill()
    other.run(1)  # it is given the shard of the dead one
    for _ in range(5):
        send(kept)
        other.run(500)
    other.run(15_000)
    late_ms: dict[bytes | None, list[int]] = {}
    for entry in kafka.read("orders"):
        told = {name: int(value or b"") for name, value in entry.headers if name != "timer-origin"}
        late_ms.setdefault(entry.value, []).append(told["timer-released-ms"] - told["timer-deliver-ms"])
    assert late_ms[str(kept).encode()] == [0] * 5
    assert len(late_ms[str(gone).encode()]) == 1


@pytest.mark.parametrize("is_ours_again", [True, False])
def test_one_that_is_given_up_while_it_is_prepared(is_ours_again: bool) -> None:  # noqa: FBT001
    world = World()
    world.bridge.lose_disks()
    world.bridge.holds_preparations = True
    world.bridge.start()
    world.bridge.run(500)
    if is_ours_again:
        world.bridge.leave_the_group()
    else:
        world.bridge.stop()
        world.bridge.start()
    world.bridge.holds_preparations = False
    world.bridge.run(MINUTE_MS)
    assert world.delivered() == [f"large {number}" for number in range(20)]


def test_after_a_clean_end_nothing_is_left_to_prepare() -> None:
    world = World()
    world.bridge.stop()
    world.bridge.holds_preparations = True
    world.bridge.start()
    world.bridge.run(1000)
    assert world.is_ready()
