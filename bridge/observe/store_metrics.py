"""Metrics of the stores. The loop's thread reads them when Prometheus asks."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter

from prometheus_client.core import GaugeMetricFamily

from bridge.observe.metric_types import TopicLabels, gauge, label_gauge, partition_gauge
from bridge.partition.partition import Partition
from kafka_timer.origin import TimerPartition
from timer.index.due_counts import joined_ranges


def store_metrics(
    partitions: Mapping[TimerPartition, Partition],
    unavailable: Mapping[str, int],
    targets: TopicLabels,
    now_ms: int,
    should_stop: Callable[[], bool],
    free_bytes: int | None,
) -> list[GaugeMetricFamily]:
    """Return the gauges of these partitions.

    unavailable: target topics that take no records, and since when (epoch ms). should_stop: ends the search for the
    next due time. free_bytes: on the disk of the stores.
    """
    answers: list[bool] = []

    def must_stop() -> bool:
        answers.append(should_stop())
        return answers[-1]

    stores = {partition: owned.store for partition, owned in partitions.items()}
    rolling = {partition: owned.flights.alive_count for partition, owned in partitions.items()}
    ranges = {partition: owned.due_ranges(must_stop, needs_last=False) for partition, owned in partitions.items()}
    pending = {target: due.pending for target, due in joined_ranges(ranges.values()).items()}
    dues_ms: list[int] = []
    paused: set[str] = set()
    waiting: Counter[tuple[str, ...]] = Counter()
    waiting_since_s: dict[tuple[str, ...], float] = {}
    for partition, store in stores.items():
        backlogs = {backlog.target: backlog for backlog in store.release_queue.backlogs(now_ms)}
        dues_ms += [due.first_ms for target, due in ranges[partition].items() if target not in backlogs]
        for target, backlog in backlogs.items():
            if backlog.is_paused:
                paused.add(target)
            reason = "paused" if backlog.is_paused else "unavailable" if target in unavailable else "limited"
            labels = targets.label(target), reason
            waiting[labels] += backlog.timers
            if backlog.since_ms is not None:
                waiting_since_s[labels] = min(backlog.since_ms / 1000, waiting_since_s.get(labels, math.inf))
    unavailable_since_s: dict[tuple[str, ...], float] = {}
    for target, since_ms in sorted(unavailable.items(), key=itemgetter(1)):
        unavailable_since_s.setdefault((targets.label(target),), since_ms / 1000)
    next_due_s = min(dues_ms) / 1000 if dues_ms and not any(answers) else None
    return [
        label_gauge(
            "pending_timers",
            "Pending timers with copies in flight, by `target` topic. See `timer-bridge pending`.",
            ["target"],
            {(target,): count for target, count in targets.sums(pending).items()},
        ),
        partition_gauge(
            "partition_pending_timers",
            "Pending timers with copies in flight, by `topic` and `partition`. If uneven: the keys are uneven.",
            {partition: store.pending + rolling[partition] for partition, store in stores.items()},
        ),
        gauge(
            "next_due_timestamp_seconds",
            "First due time of a target topic that is not paused, over its rate or unavailable. Absent without a"
            " timer, or if the search takes more than 5 ms. In the past by seconds: timers are late.",
            next_due_s,
        ),
        gauge("paused_targets", "Paused target topics. `timer-bridge resume` ends a pause.", len(paused)),
        label_gauge(
            "waiting_timers",
            "Timers that wait for their `target` topic, by `reason`: `paused`, `limited` (over its rate) or"
            " `unavailable` (it takes no records). Includes those due later in this hour (UTC). If `limited` grows"
            " steadily: more timers fall due than `max_per_s` allows.",
            ["target", "reason"],
            waiting,
        ),
        label_gauge(
            "waiting_since_timestamp_seconds",
            "Since when the first of the `waiting_timers` has waited, by `target` and `reason`; since its last roll if"
            " it has rolled meanwhile. If old: resume the target, or raise `max_per_s`.",
            ["target", "reason"],
            waiting_since_s,
        ),
        label_gauge(
            "target_unavailable_since_timestamp_seconds",
            "Since when the `target` topic has taken no records: it has no leader, too few in-sync replicas, or a"
            " quota that delays records for too long. Restore its brokers; it is tried again at least once a minute.",
            ["target"],
            unavailable_since_s,
        ),
        partition_gauge(
            "held_timers",
            "Out-of-order timers, by `topic` and `partition`: a clock was set back, they were just rolled, or they"
            " were overdue on arrival for a target that waits. Many without that: check `clock_skew_seconds`.",
            {partition: store.release_queue.held for partition, store in stores.items()},
        ),
        partition_gauge(
            "rolling_timers",
            "Copies in flight: written and not read again yet, by `topic` and `partition`. If many: check the lag.",
            rolling,
        ),
        partition_gauge(
            "backlog_requests",
            "Requests that were read and not taken in yet, by `topic` and `partition`. See `paused_partitions`.",
            {partition: len(owned.backlog) for partition, owned in partitions.items()},
        ),
        partition_gauge(
            "store_bytes",
            "Size of the logs on disk, by `topic` and `partition`. A file goes when none of its timers is pending.",
            {partition: store.queries.size_bytes for partition, store in stores.items()},
        ),
        partition_gauge(
            "pending_bytes",
            "Bytes of pending timers, by `topic` and `partition`, as `max_pending_bytes` counts them. The sum by topic"
            " shows which one fills the disk: limit it.",
            {partition: store.queries.pending_bytes for partition, store in stores.items()},
        ),
        gauge(
            "disk_free_bytes",
            "Free space on the disk of the data directory. Keep it above `disk_min_free_bytes`.",
            free_bytes,
        ),
    ]
