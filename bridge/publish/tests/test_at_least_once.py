"""`delivery = at-least-once`: readers see a delivery before its transaction commits. Duplicates are possible."""

from random import Random

import pytest

from bridge.config.loop_options import Delivery
from bridge.loop.tests.test_histories import Trouble, World, crash, die, lose_disk, lose_power
from schemas.headers import Headers

TROUBLE = pytest.mark.parametrize("trouble", [crash, lose_power, lose_disk])


@pytest.fixture
def world() -> World:
    world = World(rng=Random(1))
    restart_as(world, "at-least-once")
    return world


def restart_as(world: World, delivery: Delivery) -> None:
    world.bridge.delivery = delivery
    world.bridge.start()


def test_without_a_fault_each_timer_is_delivered_once(world: World) -> None:
    for number in range(50):
        world.send(str(number), 100 + 20 * number)
    world.bridge.run(3000)
    assert world.delivered() == [str(number) for number in range(50)]


@TROUBLE
def test_a_crash_before_the_commit_delivers_again(world: World, trouble: Trouble) -> None:
    world.send("once more", 300)
    world.bridge.run(100)
    die(world.bridge, "sink.commit")
    assert world.delivered() == ["once more"], "a reader has it before the commit"
    trouble(world)
    world.bridge.run(1000)
    assert world.delivered() == ["once more"] * 2
    world.send("and on", 10)
    world.bridge.run(100)
    assert world.delivered()[2:] == ["and on"]


def test_a_retry_sends_no_acknowledged_delivery_again(world: World) -> None:
    for number in range(20):
        world.send(str(number), 300)
    world.bridge.run(100)
    assert world.bridge.sink is not None
    world.bridge.sink.faults = 5
    world.bridge.run(1000)
    assert world.bridge.sink.faults == 0
    assert world.delivered() == [str(number) for number in range(20)]


@TROUBLE
def test_a_bad_record_is_parked_and_the_others_are_not_sent_again(world: World, trouble: Trouble) -> None:
    nowhere: Headers = [("timer-topic", b"nowhere"), ("timer-delay-ms", b"300")]
    for number in range(10):
        world.send(str(number), 300)
        world.kafka.produce("timer.requests", b"bad %d" % number, headers=nowhere)
    world.bridge.run(100)
    trouble(world)
    world.bridge.run(1000)
    assert sorted(world.delivered()) == [str(number) for number in range(10)]
    assert sorted(world.rejected()) == [(b"unknown-topic", b"bad %d" % number) for number in range(10)]


@TROUBLE
@pytest.mark.parametrize("where", ["sink.journal", "sink.produce", "sink.commit", "sink.commit done"])
def test_a_copy_is_neither_lost_nor_doubled_by_a_crash_at_any_step(world: World, where: str, trouble: Trouble) -> None:
    world.send("far", 2500, id_="far")
    world.send("gone", 2500, id_="gone")
    world.bridge.run(500)
    die(world.bridge, where)
    trouble(world)
    world.cancel("gone")
    world.bridge.run(3000)
    assert world.delivered() == ["far"]
    assert world.rejected() == []
    assert world.pending() == 0


@TROUBLE
def test_a_timer_delivered_before_a_crash_can_be_cancelled(world: World, trouble: Trouble) -> None:
    """The one weaker promise: the timer was delivered already, although its receipt is `cancelled`."""
    world.send("seen", 300, id_="x")
    world.bridge.run(100)
    die(world.bridge, "sink.commit")
    world.cancel("x")
    trouble(world)
    world.bridge.run(1000)
    assert world.delivered() == ["seen"]
    assert world.receipts("accepted") == [("cancelled", 1)]


@TROUBLE
def test_the_mode_may_change_with_timers_pending(world: World, trouble: Trouble) -> None:
    orders: tuple[Delivery, Delivery] = ("exactly-once", "at-least-once")
    for round_ in range(6):
        restart_as(world, orders[round_ % 2])
        trouble(world)
        world.send(f"near {round_}", 100)
        world.send(f"far {round_}", 5000, id_=f"far {round_}")
        world.send(f"never {round_}", 5000, id_=f"never {round_}")
        world.bridge.run(500)
    for round_ in range(6):
        world.cancel(f"never {round_}")
    world.bridge.run(6000)
    assert sorted(world.delivered()) == sorted(f"{kind} {n}" for n in range(6) for kind in ("far", "near"))
    assert world.rejected() == []
