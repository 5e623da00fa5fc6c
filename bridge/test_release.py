"""What may keep a timer from leaving when it is due, and what becomes of it: seen from outside."""

import pytest

from bridge.test_histories import TROUBLE, Trouble, World
from schemas.headers import Headers


def until(world: World, ms: int) -> Headers:
    """An expiry so far ahead."""
    return [("timer-expire-ms", b"%d" % (world.now_ms + ms))]


@pytest.mark.parametrize("delay_ms", [500, 2500], ids=["due within the window", "rolled twice"])
@TROUBLE
def test_what_was_not_released_before_its_expiry_is_rejected_once(trouble: Trouble, delay_ms: int) -> None:
    world = World()
    world.send("too late", delay_ms, id_="a", extra=until(world, delay_ms + 1))
    world.send("in time", delay_ms, id_="b", extra=[*until(world, delay_ms + 400), ("trace", b"1")])
    world.bridge.run(delay_ms - 300)
    world.bridge.kill()
    world.kafka.timeline.advance(350)
    world.bridge.start()
    trouble(world)
    world.bridge.run(1000)
    assert world.delivered() == ["in time"]
    assert "timer-expire-ms" not in world.deliveries()[0]
    assert world.rejected() == [(b"expired", b"too late")]
    assert world.receipts("accepted") == [("rejected", 0), ("delivered", 1)]


def test_an_expiry_says_nothing_of_what_leaves_in_time() -> None:
    world = World()
    world.send("m", 500, extra=until(world, 501))
    world.bridge.run(600)
    assert (world.delivered(), world.rejected()) == (["m"], [])


def test_what_is_published_again_after_its_expiry_is_rejected() -> None:
    """Kafka was away in between: the first transaction never stood."""
    passed: list[int] = []

    def meanwhile(where: str) -> None:
        if where == "sink.abort":
            passed.append(world.now_ms)
            world.kafka.timeline.advance(400)

    world = World(meanwhile=meanwhile)
    world.send("m", 500, extra=until(world, 700))
    world.send("other", 500)
    world.bridge.run(400)
    assert world.bridge.sink is not None
    world.bridge.sink.faults = 1
    world.bridge.run(1000)
    assert passed
    assert (world.delivered(), world.rejected()) == (["other"], [(b"expired", b"m")])
    assert int(world.deliveries()[0]["timer-released-ms"]) >= passed[0] + 400
