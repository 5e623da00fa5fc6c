"""What `/metrics` tells of a bridge in a world of its own, as text; by what has happened there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.loop.clock_skew import skew_ms
from bridge.loop.tests.test_histories import SMALL, WINDOW_MS, World
from bridge.observe.metric_definitions import AlertLimits, all_metrics
from bridge.observe.metric_types import Histogram, LabelledSums, LabelNames
from bridge.observe.metrics import MOST_TARGETS, PARKED, REFUSALS
from bridge.observe.metrics_snapshot import see
from bridge.observe.prometheus import Exposition
from bridge.release.target_rate_limits import TargetLimit
from bridge.release.tests.test_release import ask, limited, send
from bridge.testing.timer_world import TIMERS, TimerWorld
from schemas.origin import Shard
from scripts.release.metric_docs import page

ROOT = Path(__file__).parents[3]
PARTITION = 'partition="0",topic="timer.requests"'


def text_of(world: TimerWorld, is_over: Callable[[], bool] = lambda: False) -> str:
    instance = world.bridge
    assert instance.bridge is not None
    exposition = Exposition(instance.metrics, instance.status, AlertLimits("1.2.3", 1 << 30, 1000))
    exposition.seen = see(instance.bridge, exposition.targets, world.now_ms, is_over)
    return exposition.text("text/plain")[0].decode()


class Told(dict[str, float]):
    """Samples by name and labels, without the prefix."""

    def __init__(self, text: str) -> None:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
                self[name.removeprefix("timer_bridge_") + (f"{{{inner}}}" if inner else "")] = value


def told(world: TimerWorld) -> Told:
    assert world.bridge.bridge is not None
    world.bridge.bridge.monitors.check_open_transactions()
    world.bridge.bridge.monitors.check_clocks()
    return Told(text_of(world))


# -- the instruments


def test_a_histogram_counts_a_batch_at_once_and_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((0.001, 0.01, 1))
    histogram.add(np.array([0.0, 0.001, 0.0011, 1.0, 7.0]))
    histogram.add_one(0.5)
    counts, total = histogram.read()
    assert counts == [2, 3, 5, 6]
    assert total == pytest.approx(8.5021)


def test_what_is_known_before_is_0_from_the_start() -> None:
    tally = LabelledSums(("a",))
    tally.add("b", amount=2)
    assert tally.read() == {("a",): 0, ("b",): 2}


def test_names_beyond_the_first_are_one() -> None:
    names = LabelNames(2)
    assert names.labelled({"a": 1, "b": 2, "c": 3, "d": 4}) == {"a": 1, "b": 2, "other": 7}
    assert [names.label(name) for name in "dcba"] == ["other", "other", "b", "a"]


# -- what a bridge has done


def test_requests_whose_commit_waits_are_counted_when_it_stands() -> None:
    """They are read again if this instance loses them before."""
    world = World(replace(SMALL, receipts="none", commit_interval_ms=200))
    world.send(delay_ms=300)
    world.bridge.run(290)
    world.send(delay_ms=10_000)
    world.bridge.run(20)
    found = told(world)
    assert (found['deliveries_total{target="orders"}'], found['requests_total{topic="timer.requests"}']) == (1, 1)
    world.bridge.run(200)
    assert told(world)['requests_total{topic="timer.requests"}'] == 2


def test_requests_deliveries_and_lateness_are_counted_when_they_stand() -> None:
    world = World()
    for delay_ms in (0, 10, 500):
        world.send(delay_ms=delay_ms)
    world.kafka.produce(TIMERS, b"?", headers=[("timer-topic", b"orders")])
    world.bridge.run(100)
    found = told(world)
    assert found['requests_total{topic="timer.requests"}'] == 4
    assert found['deliveries_total{target="orders"}'] == 2
    assert found['refused_total{code="missing-time"}'] == found['receipts_total{kind="rejected"}'] == 1
    assert found['receipts_total{kind="accepted"}'] == 3
    assert found["lateness_seconds_count"] == found['lateness_seconds_bucket{le="0.001"}'] == 2
    assert found['pending_timers{target="orders"}'] == found[f"partition_pending_timers{{{PARTITION}}}"] == 1
    assert found["next_due_timestamp_seconds"] == (world.now_ms + 400) / 1000
    assert found["transaction_seconds_count"] > 0
    assert found['partitions{phase="running"}'] == found[f"partition_owned{{{PARTITION}}}"] == 1
    assert found["live"] == found["ready"] == found['build_info{version="1.2.3"}'] == 1
    assert found["process_resident_memory_bytes"] > 1_000_000
    assert found[f"store_bytes{{{PARTITION}}}"] > 0


def test_case_6_a_backlog_is_told_while_it_lasts() -> None:
    world = World()
    assert world.bridge.sink is not None
    for _ in range(20):
        world.send()
    world.bridge.run(400)
    world.bridge.sink.is_slow = True
    world.kafka.timeline.advance(20_000)
    assert told(world)['pending_timers{target="orders"}'] == 20
    assert told(world)["next_due_timestamp_seconds"] == (world.now_ms - 20_000 + 100) / 1000
    world.bridge.sink.is_slow = False
    world.bridge.run(0)
    found = told(world)
    assert 'pending_timers{target="orders"}' not in found
    assert "next_due_timestamp_seconds" not in found
    assert (found['lateness_seconds_bucket{le="10.0"}'], found['lateness_seconds_bucket{le="30.0"}']) == (0, 20)


def test_what_waits_for_a_paused_target_is_neither_late_nor_the_next_due_one() -> None:
    world = limited(TargetLimit(1), targets={})
    ask(world, b"pause", b"limited")
    due_ms = world.now_ms + 100
    for delay_ms in (100, 150, 40_000):
        send(world, "limited", "m", delay_ms)
        send(world, "other", "m", delay_ms)
    world.pass_time(ms=15_000)
    found, waiting = told(world), '{reason="paused",target="limited"}'
    assert found["paused_targets"] == 1
    assert found[f"waiting_timers{waiting}"] == found['pending_timers{target="limited"}'] == 3, "due within the hour"
    assert found[f"waiting_since_timestamp_seconds{waiting}"] == due_ms / 1000
    assert found["next_due_timestamp_seconds"] == (due_ms + 39_900) / 1000
    ask(world, b"resume", b"limited")
    world.pass_time(ms=1000)
    found = told(world)
    assert (found["paused_targets"], f"waiting_timers{waiting}" in found) == (0, False)
    assert (found["lateness_seconds_count"], found["waited_seconds_count"]) == (2, 2)
    assert found['lateness_seconds_bucket{le="5.0"}'] == found['waited_seconds_bucket{le="60.0"}'] == 2
    assert found['waited_seconds_bucket{le="10.0"}'] == 0


def test_a_request_that_comes_late_for_a_paused_target_waits_and_is_not_late() -> None:
    world = limited(TargetLimit(1), targets={})
    ask(world, b"pause", b"limited")
    send(world, "other", "m", 0)
    world.pass_time(ms=100)
    came_ms = world.now_ms
    send(world, "limited", "m", 0)
    world.pass_time(ms=10_000)
    found, waiting = told(world), '{reason="paused",target="limited"}'
    assert found[f"waiting_since_timestamp_seconds{waiting}"] == came_ms / 1000
    assert "next_due_timestamp_seconds" not in found
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    assert (told(world)["lateness_seconds_count"], told(world)["waited_seconds_count"]) == (1, 1)


def test_what_waits_for_a_rate_is_counted_apart_and_an_outage_still_shows() -> None:
    world = limited(TargetLimit(10))
    for number in range(100):
        send(world, "limited", str(number), 100)
    world.pass_time(ms=50)
    world.kafka.timeline.advance(10_000)
    world.pass_time(ms=5_000)
    found, waiting = told(world), '{reason="limited",target="limited"}'
    assert found[f"waiting_timers{waiting}"] == found['pending_timers{target="limited"}'] > 0
    assert (found["paused_targets"], "next_due_timestamp_seconds" in found) == (0, False)
    assert found["lateness_seconds_count"] == 10, "the first second's worth: these are late by the outage"
    assert found['lateness_seconds_bucket{le="5.0"}'] == 0
    world.pass_time(ms=10_000)
    found = told(world)
    assert (found["lateness_seconds_count"], found["waited_seconds_count"]) == (10, 90)
    assert f"waiting_timers{waiting}" not in found


def test_a_search_that_was_cut_tells_no_next_due_time_rather_than_a_wrong_one() -> None:
    world = World()
    for delay_ms in (300, 301, 400):
        world.send(delay_ms=delay_ms)
    world.bridge.run(350)
    assert "next_due_timestamp_seconds" not in Told(text_of(world, is_over=lambda: True))
    assert told(world)["next_due_timestamp_seconds"] == (world.now_ms + 50) / 1000


def test_an_abort_is_told_and_what_it_repeats_counts_once() -> None:
    world = World()
    assert world.bridge.sink is not None
    world.bridge.sink.faults = 2
    world.send(delay_ms=0)
    world.bridge.run(100)
    found = told(world)
    assert world.delivered() == ["m"]
    assert found['transaction_aborts_total{reason="fault"}'] == found["transaction_retries_total"] == 2
    assert found['deliveries_total{target="orders"}'] == found['requests_total{topic="timer.requests"}'] == 1


def test_what_a_target_does_not_take_is_parked_by_code_and_not_delivered() -> None:
    world = World()
    for topic in (b"nowhere", b"orders"):
        headers = [("timer-topic", topic), ("timer-delay-ms", b"5")]
        world.kafka.produce(TIMERS, b"v", headers=headers)
    world.bridge.run(100)
    found = told(world)
    assert found['parked_total{code="unknown-topic"}'] == 1
    assert found['transaction_aborts_total{reason="refused"}'] == 1
    assert found['deliveries_total{target="orders"}'] == found["lateness_seconds_count"] == 1
    assert 'deliveries_total{target="nowhere"}' not in found


def test_targets_beyond_the_first_hundred_are_one_label() -> None:
    topics = [f"topic-{number:03}" for number in range(MOST_TARGETS + 20)]
    world = TimerWorld(*topics)
    for topic in topics:
        headers = [("timer-topic", topic.encode()), ("timer-delay-ms", b"50")]
        world.producer.produce(TIMERS, b"v", headers=headers)
    world.pass_time(ms=10)
    pending = {name: value for name, value in told(world).items() if name.startswith("pending_timers{")}
    assert (len(pending), pending['pending_timers{target="other"}']) == (MOST_TARGETS + 1, 20)
    world.pass_time(ms=100)
    delivered = {name: value for name, value in told(world).items() if name.startswith("deliveries_total{")}
    assert (len(delivered), delivered['deliveries_total{target="other"}']) == (MOST_TARGETS + 1, 20)
    assert {name.partition("{")[2] for name in pending} == {name.partition("{")[2] for name in delivered}


def test_rolls_and_copies_that_land() -> None:
    world = World()
    world.send(delay_ms=3 * WINDOW_MS)
    world.bridge.run(4 * WINDOW_MS)
    found = told(world)
    assert found["rolled_total"] == found["landed_total"] > 1
    assert found['requests_total{topic="timer.requests"}'] == 1
    assert found[f"rolling_timers{{{PARTITION}}}"] == 0


def test_a_clock_that_went_back_holds_timers_and_that_is_told() -> None:
    world = World()
    world.bridge.clock.error_ms = 900
    world.send(delay_ms=800)
    world.bridge.run(100)
    world.bridge.clock.error_ms = 0
    world.send(delay_ms=500)
    world.bridge.run(100)
    assert told(world)[f"held_timers{{{PARTITION}}}"] == 1


# -- partitions


def test_recoveries_tell_from_where_and_how_much() -> None:
    world = World()
    for number in range(10):
        world.send(delay_ms=500 + number)
    world.bridge.run(100)
    world.restart(lose_disk=True)
    world.bridge.run(10)
    found = told(world)
    assert found['recovery_work_total{source="kafka"}'] == 10
    assert found["recovery_seconds_count"] == 2
    assert found['moved_partitions_total{change="assigned"}'] == 2
    world.restart()
    world.bridge.run(10)
    assert told(world)['recovery_work_total{source="directory"}'] >= 0


def test_changes_of_hands_are_counted_and_what_is_gone_is_told_no_more() -> None:
    world = World()
    assert told(world)["rebalances_total"] == 1
    other = world.group.join("another")
    for shard in world.group.wanted:
        world.group.move(shard, other)
    world.bridge.run(0)
    found = told(world)
    assert found["rebalances_total"] == 2
    assert found['moved_partitions_total{change="revoked"}'] == 1
    assert [name for name in found if PARTITION in name] == []


def test_a_member_that_was_put_out_is_told_as_lost_and_its_transaction_as_a_stale_ones() -> None:
    world = World()
    world.bridge.leave_the_group()
    world.bridge.run(0)
    assert told(world)['moved_partitions_total{change="lost"}'] == 1


def test_a_recovery_that_waits_for_its_former_owner_is_told() -> None:
    waited, recovering = 'undecided_recoveries_total{topic="timer.requests"}', 'partitions{phase="recovering"}'
    world = World()
    left_open = world.kafka.begin("former owner")
    world.kafka.produce("timer.journal", b"undecided", transaction=left_open)
    world.restart()
    world.bridge.run(100)
    found = told(world)
    assert (found[waited], found[recovering]) == (1, 1)
    world.kafka.abort(left_open)
    world.bridge.run(100)
    found = told(world)
    assert (found[waited], found[recovering]) == (1, 0)


def test_case_38_a_senders_hanging_transaction_names_its_partition() -> None:
    world = World()
    hung = world.kafka.begin("sender")
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"5")]
    world.kafka.produce(TIMERS, b"hung", headers=headers, transaction=hung)
    world.send()
    world.bridge.run(1000)
    found = told(world)
    assert found[f"hanging_transaction_seconds{{{PARTITION}}}"] == 0
    assert found[f"open_transaction_offsets{{{PARTITION}}}"] == found[f"lag_offsets{{{PARTITION}}}"] == 2
    world.bridge.run(5000)
    assert told(world)[f"hanging_transaction_seconds{{{PARTITION}}}"] == 5
    world.kafka.commit(hung)
    world.bridge.run(1000)
    found = told(world)
    assert (
        found[f"hanging_transaction_seconds{{{PARTITION}}}"] == found[f"open_transaction_offsets{{{PARTITION}}}"] == 0
    )


def test_case_27_a_full_disk_pauses_intake_and_says_so() -> None:
    world = World()
    disk = next(iter(world.bridge.disks.values()))
    room, disk.free = disk.free, 5
    world.send()
    world.bridge.run(50)
    found = told(world)
    assert found['paused_partitions{reason="disk"}'] == found['pauses_total{reason="disk"}'] == 1
    assert found['partitions{phase="paused"}'] == found[f"backlog_requests{{{PARTITION}}}"] == 1
    assert (found["ready"], found["disk_free_bytes"], found["disk_min_free_bytes"]) == (0, 5, 1 << 30)
    disk.free = room
    world.bridge.run(50)
    found = told(world)
    assert found['paused_partitions{reason="disk"}'] == found[f"backlog_requests{{{PARTITION}}}"] == 0
    assert found['pauses_total{reason="disk"}'] == 1


def test_a_rate_of_our_own_and_a_brokers_quota() -> None:
    world = World(replace(World().options, max_requests_per_s=1))
    for _ in range(3):
        world.send()
    world.bridge.run(50)
    world.bridge.status.throttles(0.25)
    world.bridge.status.throttles(0.5)
    found = told(world)
    assert found['paused_partitions{reason="rate"}'] == found['pauses_total{reason="rate"}'] == 1
    assert found[f"backlog_requests{{{PARTITION}}}"] == 2
    assert found["broker_throttle_seconds_total"] == 0.75
    world.bridge.run(3000)
    found = told(world)
    assert (found['paused_partitions{reason="rate"}'], found['pauses_total{reason="rate"}']) == (0, 1)


def test_what_retention_has_taken_is_told() -> None:
    world = World()
    world.send()
    world.send()
    world.bridge.run(100)
    world.kafka.topics[TIMERS].partitions[0].delete_before(2)
    assert world.bridge.bridge is not None
    world.bridge.bridge.monitors.check_retention()
    assert told(world)[f"lost_to_retention_offsets{{{PARTITION}}}"] == 2


# -- clocks


@pytest.mark.parametrize(
    ("stamped_ms", "skew"), [(1000, 0), (1012, 0), (1005, 0), (1013, 1), (4000, 2988), (999, -1), (0, -1000)]
)
def test_a_brokers_clock_is_told_apart_from_ours_only_as_far_as_it_is_sure(stamped_ms: int, skew: int) -> None:
    assert skew_ms(stamped_ms, begun_ms=1000, stands_ms=1012) == skew


@pytest.mark.parametrize(("skew", "words"), [(5000, "5000 ms ahead"), (-5000, "5000 ms behind"), (900, "")])
def test_clocks_that_stand_apart_are_measured_and_warned_about(
    skew: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    for topic in ("timer.journal", TIMERS):
        world.kafka.topics[topic].partitions[0].skew_ms = skew
    world.kafka.topics["timer.journal"].partitions[0].delete_before(2)  # the claim, which bears another time
    assert f"clock_skew_seconds{{{PARTITION}}}" not in told(world), "nothing was written yet"
    world.send()
    world.bridge.run(100)
    assert told(world)[f"clock_skew_seconds{{{PARTITION}}}"] == skew / 1000
    assert (f"a broker's clock is {words} of ours" in caplog.text) == bool(words)
    assert ("broker's clock" in caplog.text) == bool(words)


# -- as a whole


def test_no_metric_stands_twice_and_each_is_told_with_its_type() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(set(names)) == len(names)
    text = text_of(World())
    for metric in all_metrics():
        assert f"# TYPE {metric.full_name} {metric.kind}\n" in text


def test_every_code_that_headers_md_tells_is_counted_from_the_start() -> None:
    table = (ROOT / "docs" / "headers.md").read_text().partition("| `timer-error` |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    codes = {code.strip(" `") for cell in cells for code in cell.split(",")}
    assert codes <= {*REFUSALS, *PARKED}


def test_docs_are_as_the_code_is() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "run `make docs`"


def test_a_record_that_cannot_be_decoded_has_its_offset_told_and_no_other_partition_has() -> None:
    world = World()
    assert f"undecodable_offset{{{PARTITION}}}" not in told(world)
    world.kafka.produce(TIMERS, b"zeros", is_undecodable=True)
    world.bridge.run(10)
    found = told(world)
    assert found[f"undecodable_offset{{{PARTITION}}}"] == 0
    assert found['paused_partitions{reason="undecodable"}'] == 1
    world.kafka.skip(Shard(TIMERS, 0), 0)
    world.bridge.run(10)
    found = told(world)
    assert f"undecodable_offset{{{PARTITION}}}" not in found
    assert found['refused_total{code="undecodable"}'] == 1
