"""Metrics of the stores. The loop's thread reads them when Prometheus asks."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from prometheus_client.core import GaugeMetricFamily

from bridge.observe.metric_types import NAMESPACE, TopicLabels, gauge, label_gauge, partition_gauge
from bridge.release.partition import OwnedPartition
from schemas.origin import Shard
from timer.index.due_counts import joined_ranges


def store_metrics(
    partitions: Mapping[Shard, OwnedPartition],
    unavailable: Mapping[str, int],
    targets: TopicLabels,
    now_ms: int,
    should_stop: Callable[[], bool],
) -> list[GaugeMetricFamily]:
    """Return the gauges of these partitions.

    unavailable: target topics that take no records, and since when (epoch ms). should_stop: ends the search for the
    next due time.
    """
    answers: list[bool] = []

    def must_stop() -> bool:
        answers.append(should_stop())
        return answers[-1]

    stores = {shard: owned.store for shard, owned in partitions.items()}
    rolling = {shard: owned.flights.alive_count for shard, owned in partitions.items()}
    ranges = {shard: owned.due_ranges(must_stop, needs_last=False) for shard, owned in partitions.items()}
    pending = {target: due.pending for target, due in joined_ranges(ranges.values()).items()}
    dues_ms: list[int] = []
    paused: set[str] = set()
    waiting: Counter[tuple[str, ...]] = Counter()
    waiting_since_s: dict[tuple[str, ...], float] = {}
    for shard, store in stores.items():
        backlogs = {backlog.target: backlog for backlog in store.backlogs(now_ms)}
        dues_ms += [due.first_ms for target, due in ranges[shard].items() if target not in backlogs]
        for target, backlog in backlogs.items():
            if backlog.is_paused:
                paused.add(target)
            reason = "paused" if backlog.is_paused else "unavailable" if target in unavailable else "limited"
            labels = targets.label(target), reason
            waiting[labels] += backlog.timers
            if backlog.since_ms is not None:
                waiting_since_s[labels] = min(backlog.since_ms / 1000, waiting_since_s.get(labels, math.inf))
    unavailable_since_s: dict[str, float] = {}
    for target, since_ms in unavailable.items():
        label = targets.label(target)
        unavailable_since_s[label] = min(since_ms / 1000, unavailable_since_s.get(label, math.inf))
    next_due_s = min(dues_ms) / 1000 if dues_ms and not any(answers) else None
    free_bytes = min((owned.disk.free_bytes() for owned in partitions.values()), default=None)
    return [
        label_gauge(
            "pending_timers",
            "Pending timers by `target` topic, with copies in flight. `timer-bridge pending` shows when they are due.",
            "target",
            targets.sums(pending),
        ),
        partition_gauge(
            "partition_pending_timers",
            "Pending timers by `topic` and `partition`, with copies in flight. If they are uneven, so are keys.",
            {shard: store.pending + rolling[shard] for shard, store in stores.items()},
        ),
        GaugeMetricFamily(
            f"{NAMESPACE}_next_due_timestamp_seconds",
            "Due time of the first pending timer whose target topic is not paused, over its rate or unavailable. Absent"
            " if there is none, or if the search took longer than 5 ms. If it is seconds in the past, timers are late.",
            next_due_s,
        ),
        GaugeMetricFamily(
            f"{NAMESPACE}_paused_targets",
            "Target topics that are paused, with or without due timers. `timer-bridge resume` ends a pause.",
            len(paused),
        ),
        gauge(
            "waiting_timers",
            "Timers that wait for their `target` topic, by `reason`: `paused`, `limited` (over its rate) or"
            " `unavailable` (it takes no records). Includes timers due later in this hour (UTC), as counts are kept by"
            " the hour. If `limited` grows steadily, more timers fall due than `max_per_s` allows.",
            ["target", "reason"],
            waiting,
        ),
        gauge(
            "waiting_since_timestamp_seconds",
            "Since when the first waiting timer has waited, by `target` and `reason`; since its last roll, if it has"
            " waited for three quarters of the roll window. If it is old, resume the target or raise `max_per_s`.",
            ["target", "reason"],
            waiting_since_s,
        ),
        label_gauge(
            "target_unavailable_since_timestamp_seconds",
            "Since when the `target` topic has taken no records: it has no leader or too few in-sync replicas, or a"
            " quota delays its records for longer than a transaction may last. Only its timers wait. Restore its"
            " brokers; the bridge tries again at least once a minute.",
            "target",
            unavailable_since_s,
        ),
        partition_gauge(
            "held_timers",
            "Out-of-order timers by `topic` and `partition`: a clock was set back, they were just rolled, or they were"
            " overdue on arrival for a target that waits. If there are many and no clock was set back, check"
            " `clock_skew_seconds`.",
            {shard: store.held for shard, store in stores.items()},
        ),
        partition_gauge(
            "rolling_timers",
            "Copies in flight by `topic` and `partition`: written to the timer topic and not read again yet. If there"
            " are always many, check `lag_offsets`.",
            rolling,
        ),
        partition_gauge(
            "backlog_requests",
            "Requests that were read and not taken in yet, by `topic` and `partition`. See `paused_partitions`.",
            {shard: len(owned.backlog) for shard, owned in partitions.items()},
        ),
        partition_gauge(
            "store_bytes",
            "Size of the TimerLog and the body log on disk, by `topic` and `partition`. A file is deleted when none of"
            " its timers is pending.",
            {shard: store.size_bytes for shard, store in stores.items()},
        ),
        partition_gauge(
            "pending_bytes",
            "Bytes of the pending timers' bodies, by `topic` and `partition`, as `max_pending_bytes` counts them. The"
            " sum by topic shows which one fills the disk; limit that one by `max_pending_bytes`.",
            {shard: store.pending_bytes for shard, store in stores.items()},
        ),
        GaugeMetricFamily(
            f"{NAMESPACE}_disk_free_bytes",
            "Free space on the disk of the data directory. Keep it above `disk_min_free_bytes`.",
            free_bytes,
        ),
    ]
