"""A record that no Kafka client can decode and a read without an answer stop their own partition alone."""

import logging
from collections import Counter
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest

from bridge.loop.tests.test_histories import PARTITION, SMALL, World, noted, send, two_partitions, values
from bridge.observe.metrics import Lag
from bridge.testing import Crash
from bridge.testing.fake_kafka import FakeKafka
from kafka_timer.origin import TimerPartition


def poison(kafka: FakeKafka, timer_partition: TimerPartition) -> int:
    """Append a record that cannot be decoded. Return its offset."""
    return send(kafka, timer_partition, "zeros", 1, is_undecodable=True).offset


def parked_at(kafka: FakeKafka) -> list[str]:
    """Return the positions of the parked undecodable records. Check that each has a reason and no contents."""
    found = []
    for entry in kafka.read("timer.rejected"):
        assert (entry.key, entry.value) == (None, None)
        headers = dict(entry.headers)
        assert headers.keys() == {"timer-error", "timer-error-detail", "timer-origin"}
        assert headers["timer-error"] == b"undecodable"
        found.append((headers["timer-origin"] or b"").decode())
    return found


def test_an_undecodable_record_stops_its_partition_alone_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    kafka, (one, other), instance = two_partitions()
    send(kafka, one, "stored", 300)
    offset = poison(kafka, one)
    send(kafka, one, "hidden", 10)
    instance.run(100)
    for number in range(20):
        send(kafka, other, f"other {number}", 10)
        instance.run(20)
        instance.bridge.monitors.check_open_transactions()
    assert values(kafka) == [*(f"other {number}" for number in range(10)), "stored"] + [
        f"other {number}" for number in range(10, 20)
    ]
    remedy = (
        f"{one}: the record at offset {offset} cannot be decoded, so nothing after it is read; run"
        f" `timer-bridge skip timer.requests 0 {offset}` to go on without it"
    )
    assert instance.status.ready() == ("intake paused: undecodable", f"{one}: {remedy}")
    assert instance.status.pauses.undecodable == {one: offset}
    assert instance.status.pauses.counted() == {one: "undecodable"}
    assert instance.metrics.hanging_transactions == {}, "no sender has a transaction open"
    assert instance.metrics.lags[one] == Lag(2, 0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING].count(remedy) == 1
    kafka.skip(one, offset)
    instance.bridge.wake()
    instance.run(20)
    assert values(kafka)[-1] == "hidden"
    assert parked_at(kafka) == [f"{one}/{offset}"]
    assert instance.status.ready().reason == ""
    assert (instance.status.pauses.undecodable, instance.status.pauses.counted()) == ({}, {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part", "crashes"), [("source.", 16), ("sink.", 20), ("history.", 14), ("disk.", 50), ("control.", 7)]
)
def test_a_skipped_record_is_parked_once_if_the_bridge_crashes_at_any_moment(part: str, crashes: int) -> None:
    """Each call of `part` since the opening of the partition is once the last of a life: at least `crashes` calls."""
    places: list[str] = []
    for step in count(1):
        world = World()
        world.send("far", 400)
        world.bridge.run(20)
        offset = poison(world.kafka, PARTITION)
        world.send("after", 10)
        world.bridge.run(20)
        world.restart()
        world.kafka.skip(PARTITION, offset)
        fuse = world.bridge.fuse
        fuse.arm(step, part)
        try:
            world.bridge.run(100)
        except Crash:
            places.append(fuse.where)
            world.restart(lose_disk=len(places) % 2 == 0)
        fuse.disarm()
        world.bridge.run(1000)
        assert sorted(world.delivered()) == ["after", "far"], (part, step, fuse.where)
        assert parked_at(world.kafka) == [f"{PARTITION}/{offset}"]
        assert Counter(world.receipts("accepted"))[("rejected", offset)] == 1
        if not fuse.burnt:  # there are no more calls
            break
    assert len(places) >= crashes, places
    assert all(place.startswith(part) for place in places)


def test_a_skipped_record_waits_for_the_backlog_before_it() -> None:
    world = World(replace(SMALL, max_requests_per_s=20, receipts="none"))
    for number in range(40):
        world.send(f"{number}", 1)
    offset = poison(world.kafka, PARTITION)
    world.send("last", 1)
    world.kafka.skip(PARTITION, offset)
    world.bridge.run(10_000)
    assert world.delivered() == [*map(str, range(40)), "last"]
    assert parked_at(world.kafka) == [f"{PARTITION}/{offset}"]


def test_partitions_that_do_not_answer_in_time_are_opened_later_and_do_not_add_up_in_one_turn() -> None:
    """Each read gives up after 4 s. A late poll would remove the instance from the group."""
    kafka, partitions, instance = two_partitions(count=20)
    send(kafka, partitions[0], "silent", 1000)
    send(kafka, partitions[-1], "other", 1000)
    instance.run(100)
    instance.start()
    history: Any = instance.history
    source: Any = instance.source
    history.silent.update(partitions[:-1])
    polled_ms: list[int] = []
    poll, demand_answer = source.poll, history.demand_answer

    def slow(timer_partition: TimerPartition) -> None:
        if timer_partition in history.silent:
            kafka.timeline.advance(4000)
        demand_answer(timer_partition)

    def timed(*arguments: int, **busy: Any) -> object:
        polled_ms.append(kafka.timeline.now_ms)
        return poll(*arguments, **busy)

    history.demand_answer, source.poll = slow, timed
    instance.holds_preparations = True
    instance.run(120_000)
    assert max(later - earlier for earlier, later in pairwise(polled_ms)) < 10_000
    assert values(kafka) == ["other"]
    assert instance.status.ready().reason.startswith("recovering")
    history.silent.clear()
    instance.holds_preparations = False
    instance.run(10_000)
    assert values(kafka) == ["other", "silent"]
    assert instance.status.ready().reason == ""


def test_checkpoints_without_an_answer_are_retried_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, (one, _), instance = two_partitions()
    history: Any = instance.history
    history.silent.add(one)
    asked = noted(monkeypatch, history, "journal_bounds")
    for number in range(100):
        send(kafka, one, f"{number}", 1)
        instance.run(500)
    assert asked.count((one,)) == 1
    assert len(values(kafka)) == 100
    history.silent.clear()
    for number in range(60):
        send(kafka, one, f"{number}", 1)
        instance.run(500)
    assert asked.count((one,)) > 2
