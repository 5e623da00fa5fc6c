"""`/metrics` in Prometheus's text format or OpenMetrics: all metrics of the bridge, and those of the process."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple, Protocol, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bridge.observe.metric_types import HELP, NAMESPACE, TopicLabels, gauge, label_gauge, partition_gauge
from bridge.observe.metrics import Metrics
from bridge.observe.pause_reasons import COUNTED
from bridge.observe.status import Phase, Status
from bridge.partition.partition import Partition
from kafka_timer.headers import PAUSED_MS
from kafka_timer.origin import TimerPartition
from timer.index.due_counts import joined_ranges


class StoresView(Protocol):
    """The open partitions of a bridge."""

    @property
    def partitions(self) -> Mapping[TimerPartition, Partition]: ...

    def free_bytes(self) -> int | None: ...


class AlertLimits(NamedTuple):
    """Settings that alerts compare with, and the version."""

    version: str
    min_free_bytes: int
    max_clock_skew_ms: int


class Exposition(Collector):
    """Renders the metrics of a process. While the loop does not answer, those of the stores are the last ones."""

    def __init__(self, metrics: Metrics, status: Status, limits: AlertLimits) -> None:
        # Holds for the process. Each counter would have a second metric, `_created`.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._metrics = metrics
        self._status = status
        self._limits = limits
        self._store_metrics = store_metrics({}, {}, metrics.targets, 0, lambda: False, None)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def read_stores(self, bridge: StoresView, now_ms: int, should_stop: Callable[[], bool]) -> None:
        """Read the metrics of the stores. Only for the loop's thread. should_stop: see `store_metrics`."""
        unavailable, targets, free_bytes = self._status.unavailable_targets, self._metrics.targets, bridge.free_bytes()
        self._store_metrics = store_metrics(bridge.partitions, unavailable, targets, now_ms, should_stop, free_bytes)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type, in the best format that `accept` allows."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.registry.collect()
        owned = {(partition.topic, str(partition.partition)) for partition in self._status.partitions()}
        for family in (*self._store_metrics, *self._loop_metrics()):
            is_of_others = family.name == f"{NAMESPACE}_standby_age_seconds"
            yield family if is_of_others else _without_others(family, owned)

    def _loop_metrics(self) -> Iterator[Metric]:
        """Yield what the loop's thread has noted in Metrics and Status."""
        metrics, status, limits = self._metrics, self._status, self._limits
        lags, hanging, committed_ms = metrics.lags, metrics.hanging_transactions, metrics.last_commit_ms
        phases = Counter(each.phase for each in status.partitions().values())
        paused = Counter(status.pauses.counted().values())
        yield gauge("last_transaction_timestamp_seconds", None if committed_ms is None else committed_ms / 1000)
        yield label_gauge("partitions", ["phase"], {(phase,): phases[phase] for phase in get_args(Phase)})
        yield partition_gauge("partition_owned", dict.fromkeys(status.partitions(), 1))
        yield partition_gauge("standby_age_seconds", status.standby_ages_s())
        yield partition_gauge("lag_offsets", {partition: each.lag for partition, each in lags.items()})
        yield partition_gauge("open_transaction_offsets", {partition: each.hidden for partition, each in lags.items()})
        open_s = {partition: (each.seen_ms - each.since_ms) / 1000 for partition, each in hanging.items()}
        yield partition_gauge("hanging_transaction_seconds", dict.fromkeys(lags, 0.0) | open_s)
        yield partition_gauge("undecodable_offset", status.pauses.undecodable)
        yield label_gauge("paused_partitions", ["reason"], {(reason,): paused[reason] for reason in COUNTED})
        throttle = "broker_throttle_seconds"
        yield CounterMetricFamily(f"{NAMESPACE}_{throttle}", HELP[throttle], status.throttled_s)
        yield partition_gauge("lost_to_retention_offsets", metrics.lost_to_retention)
        yield partition_gauge(
            "clock_skew_seconds", {partition: skew_ms / 1000 for partition, skew_ms in metrics.clock_skew_ms.items()}
        )
        yield gauge("max_clock_skew_seconds", limits.max_clock_skew_ms / 1000)
        yield gauge("disk_min_free_bytes", limits.min_free_bytes)
        yield gauge("live", not status.live().reason)
        yield gauge("ready", not status.ready().reason)
        yield gauge("silence_seconds", status.silence_s())
        yield label_gauge("build_info", ["version"], {(limits.version,): 1})


def _without_others(family: Metric, owned: set[tuple[str, str]]) -> Metric:
    """Leave out partitions that are not ours now: values may be from before a rebalance, or from an earlier run."""
    ours = Metric(family.name, family.documentation, family.type)
    ours.samples = [
        sample
        for sample in family.samples
        if "partition" not in sample.labels or (sample.labels["topic"], sample.labels["partition"]) in owned
    ]
    return ours


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
    waiting: Counter[tuple[str, ...]] = Counter()
    waiting_since_s: dict[tuple[str, ...], float] = {}
    for partition, store in stores.items():
        backlogs = {backlog.target: backlog for backlog in store.release_queue.backlogs(now_ms)}
        firsts_ms = [due.first_ms for target, due in ranges[partition].items() if target not in backlogs]
        dues_ms += [first_ms for first_ms in firsts_ms if first_ms < PAUSED_MS]
        for target, backlog in backlogs.items():
            reason = "paused" if backlog.is_paused else "unavailable" if target in unavailable else "limited"
            labels = targets.label(target), reason
            waiting[labels] += backlog.timers
            if backlog.since_ms is not None:
                waiting_since_s[labels] = min(backlog.since_ms / 1000, waiting_since_s.get(labels, math.inf))
    unavailable_since_s: dict[tuple[str, ...], float] = {}
    for target, since_ms in sorted(unavailable.items(), key=itemgetter(1)):
        unavailable_since_s.setdefault((targets.label(target),), since_ms / 1000)
    paused = {target for store in stores.values() for target in store.release_queue.paused()}
    next_due_s = min(dues_ms) / 1000 if dues_ms and not any(answers) else None
    return [
        label_gauge(
            "pending_timers", ["target"], {(target,): count for target, count in targets.sums(pending).items()}
        ),
        partition_gauge(
            "partition_pending_timers",
            {partition: store.pending + rolling[partition] for partition, store in stores.items()},
        ),
        gauge("next_due_timestamp_seconds", next_due_s),
        gauge("paused_targets", len(paused)),
        label_gauge("waiting_timers", ["target", "reason"], waiting),
        label_gauge("waiting_since_timestamp_seconds", ["target", "reason"], waiting_since_s),
        label_gauge("target_unavailable_since_timestamp_seconds", ["target"], unavailable_since_s),
        partition_gauge(
            "held_timers", {partition: len(store.release_queue.out_of_order) for partition, store in stores.items()}
        ),
        partition_gauge("rolling_timers", rolling),
        partition_gauge("backlog_requests", {partition: len(owned.backlog) for partition, owned in partitions.items()}),
        partition_gauge("store_bytes", {partition: store.queries.size_bytes for partition, store in stores.items()}),
        partition_gauge(
            "pending_bytes", {partition: store.queries.pending_bytes for partition, store in stores.items()}
        ),
        gauge("disk_free_bytes", free_bytes),
    ]
