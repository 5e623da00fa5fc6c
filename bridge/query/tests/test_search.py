"""Lists of pending timers, details of one, and traffic, of a simulated bridge."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from bridge.loop.loop import Bridge
from bridge.loop.tests.test_histories import WINDOW_MS, World
from bridge.observe.recent_traffic import SLOT_MS, Traffic, TrafficMeter, joined_traffic, lateness_ms
from bridge.query.search import (
    MAX_SHOWN_BYTES,
    Listing,
    NamedTimer,
    Search,
    SearchPosition,
    TimerDetail,
    TimerFilter,
    content,
    find_timers,
    merge_listings,
)
from bridge.testing.timer_world import TIMERS
from kafka_timer import Sent
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight

FLIGHT = CopyInFlight(origin_offset=0, rolls=1, due_ms=0, target="orders", id_hash="", digest="")


@pytest.fixture
def world() -> World:
    return World()


def bridge_of(world: World) -> Bridge:
    return world.bridge.bridge


def listed(
    world: World,
    filter_: TimerFilter,
    should_stop: Callable[[], bool] = lambda: True,
    meanwhile: Callable[[], None] = lambda: None,
) -> Listing:
    """Search in the smallest steps, with `meanwhile` between any two."""
    search = Search(filter_)
    while not search.step(bridge_of(world), world.now_ms, should_stop):
        meanwhile()
    return search.listing()


def paged(world: World, filter_: TimerFilter) -> list[NamedTimer]:
    timers: list[NamedTimer] = []
    while True:
        page = listed(world, filter_)
        timers += page.timers
        if page.after is None:
            return timers
        filter_ = filter_.model_copy(update={"after": page.after})


def test_pages_list_each_pending_timer_once_in_due_order(world: World) -> None:
    rng = Random(7)
    for number in range(300):
        delay_ms = rng.choice((400, 400, 700, 900, 3 * WINDOW_MS))  # some are rolled before, some at equal times
        world.send(f"v{number}", delay_ms, id_=f"i{number}" if number % 2 else None)
    world.bridge.run(50)
    for number in range(1, 100, 2):
        world.cancel(f"i{number}")
    world.bridge.run(50)
    timers = paged(world, TimerFilter(topic="orders", limit=7))
    places = [timer.place for timer in timers]
    assert places == sorted(set(places))
    assert [timer.place for timer in paged(world, TimerFilter(limit=7, order="latest"))] == places[::-1]
    chosen = TimerFilter(origins=" ".join(timer.origin_text for timer in timers[3:90:5]))
    assert [timer.place for timer in listed(world, chosen).timers] == places[3:90:5]
    assert len(timers) == world.pending() == 250
    assert listed(world, TimerFilter(limit=0)).matching == 250
    assert {timer.id for timer in timers if timer.id} == {f"i{number}" for number in range(101, 300, 2)}
    first = timers[0]
    assert (first.state, first.topic, first.raw_id) == ("pending", "orders", first.id.encode() if first.id else None)
    assert listed(world, TimerFilter(topic="others")).timers == []
    world.bridge.run(2 * WINDOW_MS)
    rolled = paged(world, TimerFilter(limit=7))
    assert (len(rolled), min(timer.rolls for timer in rolled) > 0) == (world.pending(), True)


def test_a_list_has_every_timer_that_is_pending_throughout(world: World) -> None:
    for number in range(400):
        world.send(f"v{number}", WINDOW_MS - 50 if number % 4 else 100, id_=f"i{number}")
    world.bridge.run(10)
    waiting = iter(range(1, 400, 8))

    def meanwhile() -> None:
        if (number := next(waiting, None)) is not None:
            world.cancel(f"i{number}")
            world.send(delay_ms=WINDOW_MS // 2)
            world.bridge.run(5)

    timers = {timer.id for timer in listed(world, TimerFilter(limit=1000), meanwhile=meanwhile).timers}
    stay = {f"i{number}" for number in range(400) if number % 4 and number % 8 != 1}
    assert stay <= timers


def test_timers_are_chosen_by_key_header_and_due_time(world: World) -> None:
    def send(key: bytes, due_ms: int, tenant: bytes) -> int:
        headers = [("timer-topic", b"orders"), ("timer-deliver-ms", b"%d" % due_ms), ("tenant", tenant)]
        return world.kafka.produce("timer.requests", b"v", key=key, headers=headers).offset

    base_ms = world.now_ms + 500
    offsets = [send(b"eu-%d" % (n % 3), base_ms + n, b"a" if n % 2 else b"b") for n in range(100)]
    world.bridge.run(20)

    def chosen(filter_: TimerFilter) -> list[int]:
        found = listed(world, filter_)
        assert found.matching == len(found.timers)
        return [timer.origin - offsets[0] for timer in found.timers]

    assert chosen(TimerFilter(key_prefix="eu-1")) == [n for n in range(100) if n % 3 == 1]
    assert chosen(TimerFilter(key_prefix="us")) == []
    assert chosen(TimerFilter(key="-1")) == [n for n in range(100) if n % 3 == 1]
    assert chosen(TimerFilter(header="tenant=a")) == list(range(1, 100, 2))
    assert chosen(TimerFilter(header="tenant")) == list(range(100))
    assert chosen(TimerFilter(header="nobody")) == []
    assert not TimerFilter(header="=a").reads_bodies, "any header, also those of copies in flight, which have no body"
    due = {"due_from": base_ms + 10, "due_to": base_ms + 13}
    assert chosen(TimerFilter().model_copy(update=due)) == [10, 11, 12]
    start_ms = base_ms // 40 * 40
    counted = listed(world, TimerFilter(limit=0).model_copy(update={"bucket": 40})).histogram
    assert [bucket.from_ms for bucket in counted] == list(range(start_ms, base_ms + 100, 40))
    assert (counted[1].timers, sum(bucket.timers for bucket in counted)) == (40, 100)
    assert chosen(TimerFilter(topic="orders", key_prefix="eu-2", header="tenant=b")) == list(range(2, 100, 6))


@pytest.mark.parametrize("is_named", [False, True], ids=["without an id", "with one"])
def test_a_timer_is_found_by_its_origin_in_each_state(world: World, is_named: bool) -> None:  # noqa: FBT001
    for number in range(300):
        world.send(f"near {number}", 400)
    origin = world.send("far", 3 * WINDOW_MS, id_="far" if is_named else None).offset
    world.bridge.run(50)

    def found(timer_partition: TimerPartition) -> list[TimerDetail]:
        return find_timers(bridge_of(world), Sent(*timer_partition, origin), world.now_ms, with_value=True)

    states: set[str] = set()
    listed_states: set[str] = set()
    while "far" not in world.delivered():
        page = listed(world, TimerFilter(limit=400))
        listed_states |= {timer.state for timer in page.timers if timer.origin == origin}
        (timer,) = found(TimerPartition(TIMERS, 0))
        is_rolling = timer.state == "rolling"
        assert (timer.origin, timer.id) == (origin, "far" if is_named and not is_rolling else None)
        assert is_rolling or (timer.value is not None and timer.value.text == "far")
        states.add(timer.state)
        world.bridge.turn()
    assert {"pending", "rolling"} <= states & listed_states
    world.bridge.run(10)
    assert (found(TimerPartition(TIMERS, 0)), found(TimerPartition(TIMERS, 7))) == ([], [])


def part(names: list[int], matching: int, after: int | None, partition: int) -> Listing:
    """Return the listing of an instance with one partition; timers and `after` are given by due time."""
    timer_partition = TimerPartition("timers", partition)
    timers = [NamedTimer.rolling(timer_partition, FLIGHT._replace(origin_offset=at, due_ms=at)) for at in names]
    told = None if after is None else str(SearchPosition(after, timer_partition, after))
    return Listing(at_ms=0, matching=matching, timers=timers, after=told, partitions=[])


def test_a_list_goes_no_further_than_each_instance_has_looked() -> None:
    """Some left before they were listed, so an instance returned fewer than `limit` and has more after them."""
    drained, small = part([3], 9, 4, 0), part([90], 1, None, 1)
    page = merge_listings([drained, small], 0, 4)
    assert [timer.due_ms for timer in page.timers] == [3]
    assert page.after == str(SearchPosition(4, TimerPartition("timers", 0), 4))
    assert merge_listings([part([], 9, 4, 0)], 0, 4).after == page.after
    full = merge_listings([part([3, 4], 9, 4, 0), part([1, 2], 9, 2, 1)], 0, 4)
    assert [timer.due_ms for timer in full.timers] == [1, 2]
    assert full.after == str(SearchPosition(2, TimerPartition("timers", 1), 2))


def test_recurring_timers_are_chosen_by_their_rule_and_tell_their_next_times(world: World) -> None:
    for name, value in (("timer-every-ms", b"60000"), ("timer-every-ms", b"3600000"), ("timer-cron", b"0 9 * * *")):
        headers = [("timer-topic", b"orders"), (name, value), ("timer-id", value)]
        world.kafka.produce("timer.requests", b"v", headers=headers)
    world.send("once", 70_000, id_="once")
    world.bridge.run(50)

    def chosen(rule: str) -> set[str | None]:
        return {each.id for each in listed(world, TimerFilter(rule=rule)).timers}

    assert chosen("every 1m") == {"60000"}
    assert chosen("every") == {"60000", "3600000"}
    assert chosen("0 9 *") == {"0 9 * * *"}
    assert chosen("any") == {"60000", "3600000", "0 9 * * *"}
    (minutely,) = find_timers(bridge_of(world), b"60000", world.now_ms, with_value=False)
    assert minutely.next_due_ms == [minutely.due_ms + 60_000 * number for number in range(5)]
    (daily,) = find_timers(bridge_of(world), b"0 9 * * *", world.now_ms, with_value=False)
    assert [each // 3_600_000 % 24 for each in daily.next_due_ms] == [9] * 5
    (once,) = find_timers(bridge_of(world), b"once", world.now_ms, with_value=False)
    assert once.next_due_ms == []


def test_an_id_is_found_with_headers_and_its_value_on_request(world: World) -> None:
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"500"), ("timer-id", b"\xff"), ("trace", None)]
    world.kafka.produce("timer.requests", b"\xfe" * 3, key="ключ".encode(), headers=headers)
    world.bridge.run(10)

    def told(*, with_value: bool) -> TimerDetail:
        (timer,) = find_timers(bridge_of(world), b"\xff", world.now_ms, with_value=with_value)
        return timer

    timer = told(with_value=False)
    assert (timer.id, timer.raw_id, timer.value, timer.value_bytes) == (None, b"\xff", None, 3)
    assert timer.key is not None
    assert timer.key.text == "ключ"
    told_headers = [(each.name, each.value and (each.value.text or each.value.base64)) for each in timer.headers]
    assert told_headers[2:] == [("timer-id", "/w=="), ("trace", None)]
    value = told(with_value=True).value
    assert value is not None
    assert (value.base64, value.is_cut) == ("/v7+", False)
    assert find_timers(bridge_of(world), b"other", world.now_ms, with_value=True) == []


def test_a_long_value_is_cut_after_a_whole_character() -> None:
    told = content(b"-" + "ж".encode() * MAX_SHOWN_BYTES)
    assert told is not None
    assert (told.text, told.is_cut) == ("-" + "ж" * (MAX_SHOWN_BYTES // 2 - 1), True)
    assert told.bytes == 1 + 2 * MAX_SHOWN_BYTES
    assert content(None) is None


def test_lateness_and_rates_are_those_of_the_last_minutes() -> None:
    meter = TrafficMeter()
    now_ms = 1_000_000
    assert lateness_ms(meter.recent(now_ms).late, 0.5) is None
    meter.requests_polled(300, now_ms)
    meter.timers_delivered(np.array([now_ms - 1] * 98 + [now_ms - 500] * 2, np.int64), now_ms)
    now_ms += 30_000
    lately = meter.recent(now_ms)
    assert (lately.in_per_s, round(lately.out_per_s, 2)) == (10, 3.33)
    assert (lateness_ms(lately.late, 0.5), 500 <= (lateness_ms(lately.late, 0.99) or 0) <= 550) == (1, True)
    both = joined_traffic([lately, Traffic.model_validate_json(lately.model_dump_json())])
    assert both.out_per_s == 2 * lately.out_per_s
    assert [(slot.from_ms, slot.timers, sum(slot.late.values())) for slot in both.slots] == [(1_000_000, 200, 200)]
    now_ms += 60_000
    assert (meter.recent(now_ms).out_per_s, lateness_ms(meter.recent(now_ms).late, 0.5)) == (0, 1)
    assert meter.recent(now_ms + 30 * SLOT_MS).late == {}
    meter.requests_polled(1, now_ms - 100_000)
    assert meter.recent(now_ms - 100_000).late == {}, "what a clock that went back has seen"


@pytest.mark.parametrize("steps", range(8))
def test_a_partition_revoked_during_a_search_is_left_to_its_next_owner(world: World, steps: int) -> None:
    for number in range(6):
        world.send(f"v{number}", 700 + number)
    world.bridge.run(50)
    search, partitions = Search(TimerFilter()), bridge_of(world)._partitions.open  # noqa: SLF001
    for _ in range(steps):
        search.step(bridge_of(world), world.now_ms, lambda: True)
    given_up = {timer_partition: partitions.pop(timer_partition) for timer_partition in [*partitions]}
    assert search.step(bridge_of(world), world.now_ms)
    partitions.update(given_up)
    assert search.listing().partitions == []
    assert len(search.listing().timers) < 6 or steps == 7


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_partition_reopened_during_a_search_is_not_listed_by_old_units(world: World, steps: int) -> None:
    """Unit numbers change when a store opens: another timer has the number now, and would be cancelled instead."""
    for number in range(6):
        world.send(f"v{number}", 700 + number, id_=f"id-{number}")
    world.bridge.run(50)
    search = Search(TimerFilter())
    for _ in range(steps):
        search.step(bridge_of(world), world.now_ms, lambda: True)
    world.bridge.leave_the_group()
    world.bridge.run(50)
    assert len(bridge_of(world).partitions) == 1
    assert search.step(bridge_of(world), world.now_ms)
    listing = search.listing()
    assert (listing.partitions, listing.matching, len(listing.timers)) == ([], 6, steps - 1)
