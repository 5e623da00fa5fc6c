"""`/metrics` of a bridge in a simulated world, after what has happened there."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from bridge.loop.monitors import skew_ms
from bridge.loop.tests.test_histories import SMALL, WINDOW_MS, World, ask
from bridge.observe.metric_types import HELP, BatchHistogram
from bridge.observe.metrics import MAX_TARGETS, Hang, Lag, Metrics
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.observe.status import Status
from bridge.partition.tests.test_release import limited, send
from bridge.testing.timer_world import TIMERS, TimerWorld
from kafka_timer.origin import TimerPartition

ROOT = Path(__file__).parents[3]
PARTITION = 'partition="0",topic="timer.requests"'


def exposed(world: TimerWorld, should_stop: Callable[[], bool] = lambda: False) -> Exposition:
    """Return the metrics, with a reading of the stores."""
    instance = world.bridge
    exposition = Exposition(instance.metrics, instance.status, AlertLimits("1.2.3", 1 << 30, 1000))
    exposition.read_stores(instance.bridge, world.now_ms, should_stop)
    return exposition


def samples(exposition: Exposition) -> dict[str, float]:
    """Samples by name and sorted labels, without the prefix."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition.text("text/plain")[0].decode()):
        for name, labels, value, *_ in family.samples:
            inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            found[name.removeprefix("timer_bridge_") + (f"{{{inner}}}" if inner else "")] = value
    return found


def metrics_of(world: TimerWorld) -> dict[str, float]:
    return samples(exposed(world))


# -- all metrics

PUBLIC_NAMES = {
    ("counter", ""): "broker_throttle_seconds clock_jumps landed rebalances rolled transaction_retries",
    ("counter", "change"): "moved_partitions",
    ("counter", "code"): "parked refused",
    ("counter", "kind"): "receipts",
    ("counter", "reason"): "pauses transaction_aborts",
    ("counter", "source"): "recovery_work",
    ("counter", "target"): "deliveries",
    ("counter", "topic"): "requests undecided_recoveries",
    ("histogram", ""): "lateness_seconds recovery_seconds transaction_seconds waited_seconds",
    ("gauge", ""): "disk_free_bytes disk_min_free_bytes last_transaction_timestamp_seconds live max_clock_skew_seconds"
    " needed_retention_seconds next_due_timestamp_seconds paused_targets ready silence_seconds",
    ("gauge", "phase"): "partitions",
    ("gauge", "reason"): "paused_partitions",
    ("gauge", "target"): "pending_timers target_unavailable_since_timestamp_seconds",
    ("gauge", "target reason"): "waiting_since_timestamp_seconds waiting_timers",
    ("gauge", "topic"): "retention_seconds topic_partitions",
    ("gauge", "topic partition"): "backlog_requests clock_skew_seconds hanging_transaction_seconds held_timers"
    " lag_offsets lost_to_retention_offsets open_transaction_offsets partition_owned partition_pending_timers"
    " pending_bytes rolling_timers standby_age_seconds store_bytes undecodable_offset",
    ("gauge", "version"): "build_info",
}
BUCKETS = {
    "lateness_seconds": [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600],
    "waited_seconds": [1, 10, 60, 300, 900, 3600, 14_400, 86_400, 604_800],
    "transaction_seconds": [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60],
    "recovery_seconds": [0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800],
}


def test_names_types_labels_and_buckets_are_public() -> None:
    metrics = Metrics()
    exposition = Exposition(metrics, Status(), AlertLimits("", 0, 0))
    declared: list[Any] = [
        *metrics.registry._collector_to_names,
        *exposition._store_metrics,
        *exposition._loop_metrics(),
    ]
    labels = {getattr(each, "name", "") or each._name: " ".join(getattr(each, "_labelnames", ())) for each in declared}
    found: dict[tuple[str, str], set[str]] = {}
    buckets: dict[str, list[float]] = {}
    for family in exposition.collect():
        name = family.name.removeprefix("timer_bridge_")
        found.setdefault((family.type, labels[family.name]), set()).add(name)
        assert all(f"`{label}`" in family.documentation for label in labels[family.name].split()), name
        if family.type == "histogram":
            buckets[name] = [float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels][:-1]
    assert found == {key: set(names.split()) for key, names in PUBLIC_NAMES.items()}
    assert HELP.keys() == {name for names in found.values() for name in names}, "no text of a former metric"
    assert buckets == BUCKETS


def test_a_batch_is_counted_with_inclusive_bounds() -> None:
    registry = CollectorRegistry()
    histogram = BatchHistogram("lateness_seconds", (0.001, 0.01, 1), registry)
    histogram.observe(np.array([0.0, 0.001, 0.0011, 1.0, 7.0]))
    histogram.observe(np.array([0.5]))
    (family,) = registry.collect()
    assert [sample.value for sample in family.samples] == [2, 3, 5, 6, 6, pytest.approx(8.5021)]


def test_each_code_of_headers_md_is_counted_from_0_on() -> None:
    table = (ROOT / "docs" / "headers.md").read_text().partition("| `timer-error` |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    codes = {code.strip(" `") for cell in cells for code in cell.split(",")}
    found = metrics_of(World())
    counted = {
        code for code in codes for kind in ("refused", "parked") if found.get(f'{kind}_total{{code="{code}"}}') == 0
    }
    assert counted == codes


# -- work


def test_requests_are_counted_when_they_are_committed() -> None:
    world = World(replace(SMALL, receipts="none", commit_interval_ms=200))
    world.send(delay_ms=300)
    world.bridge.run(290)
    world.send(delay_ms=10_000)
    world.bridge.run(20)
    found = metrics_of(world)
    assert (found['deliveries_total{target="orders"}'], found['requests_total{topic="timer.requests"}']) == (1, 1)
    world.bridge.run(200)
    assert metrics_of(world)['requests_total{topic="timer.requests"}'] == 2


def test_requests_deliveries_and_lateness() -> None:
    world = World()
    for delay_ms in (0, 10, 500):
        world.send(delay_ms=delay_ms)
    world.kafka.produce(TIMERS, b"?", headers=[("timer-topic", b"orders")])
    world.bridge.run(100)
    found = metrics_of(world)
    assert found['requests_total{topic="timer.requests"}'] == 4
    assert found['deliveries_total{target="orders"}'] == 2
    assert found['refused_total{code="missing-time"}'] == found['receipts_total{kind="rejected"}'] == 1
    assert found['receipts_total{kind="accepted"}'] == 3
    assert found["lateness_seconds_count"] == found['lateness_seconds_bucket{le="0.001"}'] == 2
    assert found['pending_timers{target="orders"}'] == found[f"partition_pending_timers{{{PARTITION}}}"] == 1
    assert found["next_due_timestamp_seconds"] == (world.now_ms + 400) / 1000
    assert found["transaction_seconds_count"] > 0
    assert found["process_resident_memory_bytes"] > 1_000_000
    assert found[f"store_bytes{{{PARTITION}}}"] > 0
    assert found["disk_free_bytes"] == next(iter(world.bridge.disks.values())).free_bytes()


def test_timers_of_a_paused_target_wait_and_count_neither_as_late_nor_as_next_due() -> None:
    world = limited(1, targets={})
    ask(world, b"pause", b"limited")
    due_ms = world.now_ms + 100
    for delay_ms in (100, 150, 40_000):
        send(world, "limited", "m", delay_ms)
        send(world, "other", "m", delay_ms)
    world.pass_time(ms=15_000)
    found, waiting = metrics_of(world), '{reason="paused",target="limited"}'
    assert found["paused_targets"] == 1
    assert found[f"waiting_timers{waiting}"] == found['pending_timers{target="limited"}'] == 3, "due within the hour"
    assert found[f"waiting_since_timestamp_seconds{waiting}"] == due_ms / 1000
    assert found["next_due_timestamp_seconds"] == (due_ms + 39_900) / 1000
    ask(world, b"resume", b"limited")
    world.pass_time(ms=1000)
    found = metrics_of(world)
    assert (found["paused_targets"], f"waiting_timers{waiting}" in found) == (0, False)
    assert (found["lateness_seconds_count"], found["waited_seconds_count"]) == (2, 2)
    assert found['lateness_seconds_bucket{le="5.0"}'] == found['waited_seconds_bucket{le="60.0"}'] == 2
    assert found['waited_seconds_bucket{le="10.0"}'] == 0


def test_a_paused_timer_counts_neither_as_late_nor_as_next_due() -> None:
    world = limited(1, targets={})
    send(world, "other", "m", 100, ("timer-id", b"a"))
    world.pass_time(ms=10)
    for action in (b"pause", b"resume"):
        world.kafka.produce(TIMERS, None, headers=[("timer-action", action), ("timer-id", b"a")])
        world.pass_time(ms=40_000 if action == b"pause" else 20)
        found = metrics_of(world)
        assert "next_due_timestamp_seconds" not in found
        assert found.get('pending_timers{target="other"}') == (1 if action == b"pause" else None)
    found = metrics_of(world)
    assert (found["lateness_seconds_count"], found["waited_seconds_count"]) == (0, 1)


def test_a_request_that_is_overdue_on_arrival_for_a_paused_target_waits_from_then_on() -> None:
    world = limited(1, targets={})
    ask(world, b"pause", b"limited")
    send(world, "other", "m", 0)
    world.pass_time(ms=100)
    arrived_ms = world.now_ms
    send(world, "limited", "m", 0)
    world.pass_time(ms=10_000)
    found = metrics_of(world)
    since = found['waiting_since_timestamp_seconds{reason="paused",target="limited"}']
    assert (since, "next_due_timestamp_seconds" in found) == (arrived_ms / 1000, False)
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    found = metrics_of(world)
    assert (found["lateness_seconds_count"], found["waited_seconds_count"]) == (1, 1)


def test_timers_over_the_rate_of_their_target_count_apart_and_an_outage_still_shows() -> None:
    world = limited(10)
    for number in range(100):
        send(world, "limited", str(number), 100)
    world.pass_time(ms=50)
    world.kafka.timeline.advance(10_000)
    world.pass_time(ms=5_000)
    found, waiting = metrics_of(world), '{reason="limited",target="limited"}'
    assert found[f"waiting_timers{waiting}"] == found['pending_timers{target="limited"}'] > 0
    assert (found["paused_targets"], "next_due_timestamp_seconds" in found) == (0, False)
    assert found["lateness_seconds_count"] == 10, "those of the first second are late because of the outage"
    assert found['lateness_seconds_bucket{le="5.0"}'] == 0
    world.pass_time(ms=10_000)
    found = metrics_of(world)
    assert (found["lateness_seconds_count"], found["waited_seconds_count"]) == (10, 90)
    assert f"waiting_timers{waiting}" not in found


def test_no_next_due_time_is_better_than_one_of_an_interrupted_search() -> None:
    world = World()
    for delay_ms in (300, 301, 400):
        world.send(delay_ms=delay_ms)
    world.bridge.run(350)
    assert "next_due_timestamp_seconds" not in samples(exposed(world, should_stop=lambda: True))
    assert metrics_of(world)["next_due_timestamp_seconds"] == (world.now_ms + 50) / 1000


def test_a_retried_transaction_counts_once() -> None:
    world = World()
    world.bridge.sink.faults = 2
    world.send(delay_ms=0)
    world.bridge.run(100)
    found = metrics_of(world)
    assert world.delivered() == ["m"]
    assert found['transaction_aborts_total{reason="fault"}'] == found["transaction_retries_total"] == 2
    assert found['deliveries_total{target="orders"}'] == found['requests_total{topic="timer.requests"}'] == 1


def test_a_timer_that_its_target_refuses_is_parked_and_not_delivered() -> None:
    world = World()
    for topic in (b"nowhere", b"orders"):
        world.kafka.produce(TIMERS, b"v", headers=[("timer-topic", topic), ("timer-delay-ms", b"5")])
    world.bridge.run(100)
    found = metrics_of(world)
    assert found['parked_total{code="unknown-topic"}'] == 1
    assert found['transaction_aborts_total{reason="refused"}'] == 1
    assert found['deliveries_total{target="orders"}'] == found["lateness_seconds_count"] == 1
    assert 'deliveries_total{target="nowhere"}' not in found


def test_targets_after_the_first_hundred_share_a_label() -> None:
    topics = [f"topic-{number:03}" for number in range(MAX_TARGETS + 20)]
    world = TimerWorld(*topics)
    for topic in topics:
        headers = [("timer-topic", topic.encode()), ("timer-delay-ms", b"50")]
        world.producer.produce(TIMERS, b"v", headers=headers)

    def by_target(metric: str) -> dict[str, float]:
        found = {name: value for name, value in metrics_of(world).items() if name.startswith(f"{metric}{{")}
        return {name.removeprefix(metric): value for name, value in found.items()}

    world.pass_time(ms=10)
    pending = by_target("pending_timers")
    assert (len(pending), pending['{target="other"}']) == (MAX_TARGETS + 1, 20)
    world.pass_time(ms=100)
    assert by_target("deliveries_total") == pending


def test_rolled_copies_are_no_requests() -> None:
    world = World()
    world.send(delay_ms=3 * WINDOW_MS)
    world.bridge.run(4 * WINDOW_MS)
    found = metrics_of(world)
    assert found["rolled_total"] == found["landed_total"] > 1
    assert found['requests_total{topic="timer.requests"}'] == 1
    assert found[f"rolling_timers{{{PARTITION}}}"] == 0


def test_timers_are_held_after_a_clock_was_set_back() -> None:
    world = World()
    world.bridge.clock.error_ms = 900
    world.send(delay_ms=800)
    world.bridge.run(100)
    world.bridge.clock.error_ms = 0
    world.send(delay_ms=500)
    world.bridge.run(100)
    assert metrics_of(world)[f"held_timers{{{PARTITION}}}"] == 1


# -- partitions


def test_recovery_work_from_kafka_and_from_the_directory() -> None:
    world = World()
    for number in range(10):
        world.send(delay_ms=500 + number)
    world.bridge.run(100)
    world.restart(lose_disk=True)
    world.bridge.run(10)
    found = metrics_of(world)
    assert found['recovery_work_total{source="kafka"}'] == 10
    assert found["recovery_seconds_count"] == found['moved_partitions_total{change="assigned"}'] == 2
    world.restart()
    world.bridge.run(10)
    assert metrics_of(world)['recovery_work_total{source="kafka"}'] == 10


def test_rebalances_are_counted_and_a_revoked_partition_has_no_metrics() -> None:
    world = World()
    reading = exposed(world)
    assert samples(reading)["rebalances_total"] == samples(reading)[f"partition_owned{{{PARTITION}}}"] == 1
    other = world.group.join("another")
    for partition in world.group.wanted:
        world.group.move(partition, other)
    world.bridge.run(0)
    for found in (metrics_of(world), samples(reading)):
        assert found["rebalances_total"] == 2
        assert found['moved_partitions_total{change="revoked"}'] == 1
        assert [name for name in found if PARTITION in name] == []
    world = World()
    world.bridge.leave_the_group()
    world.bridge.run(0)
    assert metrics_of(world)['moved_partitions_total{change="lost"}'] == 1


def test_a_recovery_that_waits_for_the_former_owner_is_counted() -> None:
    waited, recovering = 'undecided_recoveries_total{topic="timer.requests"}', 'partitions{phase="recovering"}'
    world = World()
    left_open = world.kafka.begin("former owner")
    world.kafka.produce("timer.journal", b"undecided", transaction=left_open)
    world.restart()
    world.bridge.run(100)
    found = metrics_of(world)
    assert (found[waited], found[recovering]) == (1, 1)
    world.kafka.abort(left_open)
    world.bridge.run(100)
    found = metrics_of(world)
    assert (found[waited], found[recovering]) == (1, 0)


def test_intake_over_the_rate_of_a_timer_topic_is_paused() -> None:
    world = World(replace(World().options, max_requests_per_s=1))
    for _ in range(3):
        world.send()
    world.bridge.run(50)
    found = metrics_of(world)
    assert found['paused_partitions{reason="rate"}'] == found['pauses_total{reason="rate"}'] == 1
    assert found[f"backlog_requests{{{PARTITION}}}"] == 2
    world.bridge.run(3000)
    found = metrics_of(world)
    assert (found['paused_partitions{reason="rate"}'], found['pauses_total{reason="rate"}']) == (0, 1)


def test_state_that_the_loop_has_noted() -> None:
    metrics, status = Metrics(), Status()
    partition, other = TimerPartition(TIMERS, 0), TimerPartition(TIMERS, 1)
    status.partition_running(other)
    status.partition_running(partition)
    status.pauses.pause(partition, "disk", "full")
    metrics.lags = {partition: Lag(5, 2), other: Lag(0, 0)}
    metrics.hanging_transactions = {partition: Hang(partition, offset=3, since_ms=1000, waiting=2, seen_ms=6000)}
    status.pauses.note_undecodable({partition: 7})
    metrics.clock_skew_ms = {partition: -1500}
    metrics.lost_to_retention = {partition: 4}
    metrics.topic_partitions.labels(TIMERS).set(2)
    metrics.retention_checked({TIMERS: -1, "timer.journal": 60_000}, needed_ms=30_000)
    status.throttled(0.25)
    status.throttled(0.5)
    found = samples(Exposition(metrics, status, AlertLimits("1.2.3", 1 << 30, 1000)))
    assert {name.partition("{")[0]: value for name, value in found.items() if PARTITION in name} == {
        "partition_owned": 1,
        "lag_offsets": 5,
        "open_transaction_offsets": 2,
        "hanging_transaction_seconds": 5,
        "undecodable_offset": 7,
        "lost_to_retention_offsets": 4,
        "clock_skew_seconds": -1.5,
    }
    assert found[f"hanging_transaction_seconds{{{PARTITION.replace('0', '1')}}}"] == 0
    assert {name: found[name] for name in found if name.startswith(("partitions{", "retention", "topic_"))} == {
        'partitions{phase="running"}': 1,
        'partitions{phase="recovering"}': 0,
        'partitions{phase="paused"}': 1,
        'retention_seconds{topic="timer.requests"}': math.inf,
        'retention_seconds{topic="timer.journal"}': 60,
        'topic_partitions{topic="timer.requests"}': 2,
    }
    assert (found["needed_retention_seconds"], found["broker_throttle_seconds_total"]) == (30, 0.75)
    assert (found["live"], found["ready"], found['build_info{version="1.2.3"}']) == (1, 0, 1)
    assert (found["disk_min_free_bytes"], found["max_clock_skew_seconds"]) == (1 << 30, 1)


# -- clocks


@pytest.mark.parametrize(
    ("stamped_ms", "skew"), [(1000, 0), (1012, 0), (1005, 0), (1013, 1), (4000, 2988), (999, -1), (0, -1000)]
)
def test_clock_skew_is_the_smallest_certain_one(stamped_ms: int, skew: int) -> None:
    assert skew_ms(stamped_ms, begun_ms=1000, committed_ms=1012) == skew
