"""Histories of recurring timers, seen from outside: each occurrence once, with its number and time."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from bridge.loop.tests.test_histories import SMALL, TROUBLE, Trouble, World, lose_disk
from bridge.partition.options import Policy
from bridge.redrive.rules import request_of
from bridge.testing.timer_world import TIMERS
from kafka_timer.headers import Headers

pytestmark = pytest.mark.thorough

SECOND = 1000
WITHOUT_3_AND_4_S = {
    "one": [1000, 2000, 5000, 6000, 7000, 8000, 9000],
    "all": [1000, 2000, 3000, 4000, 5000, 6000, 7000],
    "none": [1000, 5000, 6000, 7000, 8000, 9000, 10_000],
}
"""Due times of seven occurrences, one a second, by `timer-missed`, if nothing was released from 1.5 s to 4.3 s."""


def send(world: World, *, id_: str | None = None, topic: str = "orders", extra: Headers = (), **rule: str) -> int:
    """Send a recurring timer; `rule` by the names of its headers. Return the time when the broker took it."""
    headers: list[tuple[str, bytes | None]] = [("timer-topic", topic.encode()), ("tenant", b"a"), *extra]
    headers += [(f"timer-{name.replace('_', '-')}", value.encode()) for name, value in rule.items()]
    if id_ is not None:
        headers.append(("timer-id", id_.encode()))
    return world.kafka.produce(TIMERS, b"again", key=b"k", headers=headers).append_ms


def occurrences(world: World, from_ms: int = 0) -> list[tuple[int, int]]:
    """Return number and due time (after `from_ms`) of each delivery, in order."""
    told = world.deliveries()
    return [(int(each["timer-occurrence"]), int(each["timer-deliver-ms"]) - from_ms) for each in told]


def kinds(world: World) -> list[str]:
    """Return the kinds of the receipts that are not routine."""
    return [kind for kind, _ in world.receipts("accepted", "delivered")]


def test_each_occurrence_is_delivered_once_when_it_is_due() -> None:
    world = World()
    sent_ms = send(world, every_ms="1000", count="3")
    world.bridge.run(999)
    assert occurrences(world) == []
    for number in (1, 2, 3):
        world.bridge.run(1)
        assert occurrences(world, sent_ms)[-1] == (number, number * SECOND)
        assert world.pending() == (number < 3), "it counts as one pending timer"
        world.bridge.run(999)
    world.bridge.run(10 * SECOND)
    assert len(world.deliveries()) == 3
    assert {(each["timer-origin"], each["tenant"]) for each in world.deliveries()} == {("timer.requests/0/0", "a")}
    assert [each["timer-rolls"] for each in world.deliveries()] == ["0", "1", "2"]
    assert world.receipts() == [("accepted", 0), *[("delivered", 0)] * 3]


def test_by_cron_the_first_occurrence_is_the_next_match() -> None:
    world = World()
    sent_ms = send(world, cron="*/2 * * * *", zone="Asia/Kathmandu", until_ms="1620000")
    first_ms = 1_080_000  # 00:18 UTC, 05:48 in Kathmandu, where it is 05:46:40 at the beginning
    world.bridge.run(0)
    assert world.pending() == 1
    world.bridge.run(1_700_000 - sent_ms)
    found = occurrences(world)
    assert found[0][0] == 1
    assert found == [(number, first_ms + (number - 1) * 120_000) for number in range(1, 6)]
    assert world.pending() == 0


def test_a_given_time_is_that_of_the_first_occurrence() -> None:
    world = World()
    sent_ms = send(world, cron="* * * * *", delay_ms="5", count="2")
    world.bridge.run(70_000)
    assert occurrences(world) == [(1, sent_ms + 5), (2, 1_020_000)]
    sent_ms = send(world, every_ms="5000", deliver_ms="7", count="2", missed="all")
    world.bridge.run(SECOND)
    assert occurrences(world)[2:] == [(1, 7), (2, 5007)]


@TROUBLE
def test_an_interval_above_the_roll_window_rolls_in_between(trouble: Trouble) -> None:
    world = World()
    sent_ms = send(world, id_="x", every_ms="3500", count="4")
    for _ in range(15):
        world.bridge.run(SECOND)
        trouble(world)
    assert occurrences(world, sent_ms) == [(number, number * 3500) for number in (1, 2, 3, 4)]
    assert int(world.deliveries()[-1]["timer-rolls"]) > 4, "rolls between occurrences count as ever"


@TROUBLE
@pytest.mark.parametrize("missed", ["one", "all", "none"])
def test_after_downtime_the_policy_decides(missed: str, trouble: Trouble) -> None:
    world = World()
    sent_ms = send(world, every_ms="1000", count="7", missed=missed)
    world.bridge.run(1500)
    trouble(world)
    world.kafka.timeline.advance(4300 - 1500)
    world.bridge.run(1000)
    trouble(world)
    world.bridge.run(10 * SECOND)
    assert occurrences(world, sent_ms) == list(enumerate(WITHOUT_3_AND_4_S[missed], 1))


@pytest.mark.parametrize(
    ("code", "rule"), [(b"missed", {"until_ms": "1003500", "missed": "none"}), (b"expired", {"expire_ms": "1002500"})]
)
def test_an_end_or_an_expiry_that_passes_in_downtime_is_told(code: bytes, rule: dict[str, Any]) -> None:
    """The world begins at 1,000,000 ms."""
    world = World()
    send(world, every_ms="1000", **rule)
    world.bridge.run(1500)
    world.kafka.timeline.advance(10 * SECOND)
    world.bridge.run(5 * SECOND)
    assert [number for number, _ in occurrences(world)] == [1]
    assert world.rejected() == [(code, b"again")], "no record is lost"
    assert world.pending() == 0


@TROUBLE
@pytest.mark.parametrize("timer", [("timer-id", b"x"), ("timer-of", b"timer.requests/0/0")], ids=["by id", "by origin"])
def test_a_cancel_ends_all_occurrences_to_come(timer: tuple[str, bytes], trouble: Trouble) -> None:
    world = World()
    send(world, id_="x", every_ms="1000")
    world.bridge.run(2500)
    trouble(world)
    for _ in range(2):
        world.act("cancel", timer)
        world.bridge.run(5 * SECOND)
        assert [number for number, _ in occurrences(world)] == [1, 2]
    assert kinds(world) == ["cancelled", "not-found"]


@TROUBLE
def test_a_move_changes_one_occurrence_and_none_after_it(trouble: Trouble) -> None:
    world = World()
    sent_ms = send(world, id_="x", every_ms="4000", count="4")

    def move(due_ms: int) -> None:
        world.move_to("x", sent_ms + due_ms)
        world.bridge.run(50)
        trouble(world)

    world.bridge.run(2000)
    move(3000)  # early: 4000 is not delivered again
    world.bridge.run(2000)
    move(9500)  # late: it passes no other time
    move(9000)
    world.bridge.run(5000)
    move(13_000)  # beyond the next time
    world.bridge.run(20 * SECOND)
    assert occurrences(world, sent_ms) == [(1, 3000), (2, 9000), (3, 13_000), (4, 16_000)]


def test_a_move_right_after_the_request_moves_the_first_occurrence_by_cron() -> None:
    world = World()
    send(world, id_="x", cron="* * * * *", count="2")
    moved_ms = world.move("x", 10).append_ms
    world.bridge.run(200_000)
    assert occurrences(world) == [(1, moved_ms + 10), (2, 1_080_000)], "1,020,000 was moved"


def switch(world: World, action: str) -> None:
    world.act(action, "x")
    world.bridge.run(20)


@TROUBLE
@pytest.mark.parametrize("missed", ["one", "all", "none"])
def test_a_recurring_timer_that_is_resumed_goes_on_as_after_downtime(missed: str, trouble: Trouble) -> None:
    world = World()
    sent_ms = send(world, id_="x", every_ms="1000", count="7", missed=missed)
    world.bridge.run(1500)
    for waits_ms in (2760, 100):  # the second time nothing is missed
        switch(world, "pause")
        trouble(world)
        world.bridge.run(waits_ms)
        trouble(world)
        switch(world, "resume")
    world.bridge.run(10 * SECOND)
    assert occurrences(world, sent_ms) == list(enumerate(WITHOUT_3_AND_4_S[missed], 1))
    assert kinds(world) == ["paused", "resumed"] * 2


def test_a_pause_right_after_the_request_holds_the_first_occurrence_by_cron() -> None:
    world = World()
    send(world, id_="x", cron="* * * * *", count="2")
    switch(world, "pause")
    world.bridge.run(30 * SECOND)
    assert world.deliveries() == []
    switch(world, "resume")
    world.bridge.run(200_000)
    assert occurrences(world) == [(1, 1_020_000), (2, 1_080_000)]
    told = world.told()
    assert [each["due_ms"] for each in told if each["kind"] in ("paused", "resumed")] == [1_020_000] * 2


@pytest.mark.parametrize("missed", ["one", "all"])
def test_a_rejected_occurrence_does_not_end_the_series(missed: str) -> None:
    world = World()
    send(world, id_="x", topic="nowhere", every_ms="1000", count="3", missed=missed)
    world.bridge.run(2500)
    world.kafka.create("nowhere")
    world.bridge.run(SECOND)
    rejected, delivered = world.kafka.read("timer.rejected"), world.kafka.read("nowhere")
    assert [dict(entry.headers)["timer-occurrence"] for entry in rejected] == [b"1", b"2"]
    assert [dict(entry.headers)["timer-occurrence"] for entry in delivered] == [b"3"]
    assert world.receipts("accepted") == [("rejected", 0), ("rejected", 0), ("delivered", 0)]


def test_a_redrive_of_an_occurrence_does_not_replace_the_others_by_its_id() -> None:
    world = World()
    send(world, id_="x", topic="nowhere", every_ms="3000", count="3", missed="all")
    world.bridge.run(3500)
    world.kafka.create("nowhere")
    [entry] = world.kafka.read("timer.rejected")
    key, headers = request_of(entry, "unknown-topic")  # type: ignore[arg-type]
    world.kafka.produce(TIMERS, entry.value, key=key, headers=headers)
    world.bridge.run(20 * SECOND)
    numbers = [dict(entry.headers).get("timer-occurrence") for entry in world.kafka.read("nowhere")]
    assert numbers == [None, b"2", b"3"]


def test_a_redrive_sends_one_occurrence_and_no_second_series() -> None:
    world = World()
    send(world, id_="x", topic="nowhere", every_ms="3000", count="2", missed="all")
    world.bridge.run(6500)
    world.kafka.create("nowhere")
    for entry in world.kafka.read("timer.rejected"):
        key, headers = request_of(entry, "unknown-topic")  # type: ignore[arg-type]
        world.kafka.produce(TIMERS, entry.value, key=key, headers=headers)
        world.bridge.run(100)
    world.bridge.run(20 * SECOND)
    told = world.kafka.read("nowhere")
    assert [(entry.value, dict(entry.headers)["tenant"]) for entry in told] == [(b"again", b"a")] * 2
    assert not any("timer-occurrence" in dict(entry.headers) for entry in told)


def test_a_timer_topic_may_take_no_recurring_timers_also_after_a_lost_disk() -> None:
    world = World(replace(SMALL, policy=Policy(actions=("schedule", "cancel"))))
    send(world, every_ms="1000")
    world.send("m", 500)
    world.bridge.run(SECOND)
    assert [code for code, _ in world.rejected()] == [b"denied-action"]
    lose_disk(world)
    world.bridge.run(5 * SECOND)
    assert len(world.deliveries()) == 1


@pytest.mark.parametrize("rule", [{"every_ms": "60000"}, {"cron": "* * * * *"}])
def test_a_start_too_far_in_the_past_is_refused_only_if_all_are_to_be_delivered(rule: dict[str, Any]) -> None:
    """The world begins at 16.6 minutes after 1970: 17 occurrences before the request, with the one at the start."""
    world = World(replace(SMALL, max_missed=16))
    send(world, deliver_ms="1", missed="all", **rule)
    world.bridge.run(0)
    assert [code for code, _ in world.rejected()] == [b"quota-exceeded"]
    lose_disk(world)
    for missed, count in (("one", "3"), ("none", "3"), ("all", "16")):
        send(world, deliver_ms="1", missed=missed, count=count, **rule)
    send(world, deliver_ms="60001", missed="all", **rule)
    world.bridge.run(SECOND)
    assert len(world.rejected()) == 1
    counts = Counter(each["timer-origin"][-1] for each in world.deliveries())
    assert counts == {"1": 1, "3": 16, "4": 16}, "`one` delivers one, `none` none, `all` all of them"


def test_settings_that_forbid_it_do_not_end_what_was_accepted() -> None:
    """A rebuild asks neither cronsim nor the time zones: other versions might read the old request differently."""
    world = World()
    sent_ms = send(world, cron="* * * * *", zone="Europe/Berlin", delay_ms="30000", count="2")
    world.bridge.run(SECOND)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schemas.recurrence.CronSim.__init__", lambda *_: pytest.fail("asked"))
        lose_disk(world)
        world.bridge.run(SECOND)
    world.bridge.run(100_000)
    assert occurrences(world) == [(1, sent_ms + 30_000), (2, 1_080_000)]
