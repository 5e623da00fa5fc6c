"""Count the bridge's work after it is committed to Kafka: once per partition and transaction, not once per record.

Gauges, and the text that Prometheus reads: prometheus.py.

The loop's thread writes, any thread reads. One object serves the process through all its runs. The values of each label
are bounded.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.metrics import MetricWrapperBase

from bridge.observe.metric_types import HELP, NAMESPACE, BatchHistogram, TopicLabels
from bridge.observe.pause_reasons import COUNTED
from bridge.observe.recent_traffic import TrafficMeter
from bridge.partition.draft import FrozenDraft
from bridge.partition.partition import Partition
from bridge.ports import Aborted, AbortReason, Committed, Ownership
from kafka_timer.origin import TimerPartition
from schemas.receipts import Kind
from timer.format.body import Body

Made = TypeVar("Made", bound=MetricWrapperBase)

MAX_TARGETS = 100
"""Target topics with their own label."""

REFUSALS = (
    *("missing-time", "ambiguous-time", "bad-header", "too-far", "missing-topic", "missing-id", "unknown-action"),
    *("bad-target", "denied-target", "denied-action", "too-large", "not-ours", "quota-exceeded", "undecodable"),
    *("no-occurrence", "too-many-headers"),
)
"""Codes of requests that intake rejects."""
PARKED = ("unknown-topic", "unknown-partition", "not-authorized", "too-large", "bad-target", "expired", "missed")
"""Codes of timers that their target does not accept."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a timer partition in offsets. hidden: those that an open transaction of a sender hides."""

    lag: int
    hidden: int


class Hang(NamedTuple):
    """A partition that cannot be read from `offset` on since `since_ms`; `waiting` offsets by `seen_ms`."""

    partition: TimerPartition
    offset: int
    since_ms: int
    waiting: int
    seen_ms: int


class Metrics:
    """Counters, histograms, and state that is read when Prometheus asks (bridge.observe.prometheus).

    Attributes are named as their metrics.
    """

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0, traffic: TrafficMeter | None = None) -> None:
        """now_s: seconds of a monotonic clock. traffic: counts recent traffic too."""
        self._now_s = now_s
        self._recovery_began_s: dict[TimerPartition, float] = {}
        self.traffic = traffic or TrafficMeter()
        self.targets = TopicLabels(MAX_TARGETS)
        self.spans: Callable[[FrozenDraft, int], None] | None = None
        """Makes the spans of a committed transaction (bridge.observe.tracing)."""
        self.registry = CollectorRegistry()

        def make(kind: type[Made], name: str, *labels: str, **more: Any) -> Made:
            return kind(name, HELP[name], labels, namespace=NAMESPACE, registry=self.registry, **more)

        self.requests = make(PrometheusCounter, "requests", "topic")
        self.deliveries = make(PrometheusCounter, "deliveries", "target")
        self.refused = make(PrometheusCounter, "refused", "code")
        self.parked = make(PrometheusCounter, "parked", "code")
        self.receipts = make(PrometheusCounter, "receipts", "kind")
        lateness_s = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)
        self.lateness_seconds = BatchHistogram("lateness_seconds", lateness_s, self.registry)
        waited_s = (1, 10, 60, 300, 900, 3600, 14_400, 86_400, 604_800)
        self.waited_seconds = BatchHistogram("waited_seconds", waited_s, self.registry)
        transaction_s = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
        self.transaction_seconds = make(Histogram, "transaction_seconds", buckets=transaction_s)
        self.transaction_aborts = make(PrometheusCounter, "transaction_aborts", "reason")
        self.transaction_retries = make(PrometheusCounter, "transaction_retries")
        self.clock_jumps = make(PrometheusCounter, "clock_jumps")
        self.rolled = make(PrometheusCounter, "rolled")
        self.landed = make(PrometheusCounter, "landed")
        self.rebalances = make(PrometheusCounter, "rebalances")
        self.moved_partitions = make(PrometheusCounter, "moved_partitions", "change")
        recovery_s = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800)
        self.recovery_seconds = make(Histogram, "recovery_seconds", buckets=recovery_s)
        self.recovery_work = make(PrometheusCounter, "recovery_work", "source")
        self.undecided_recoveries = make(PrometheusCounter, "undecided_recoveries", "topic")
        self.pauses = make(PrometheusCounter, "pauses", "reason")
        self.topic_partitions = make(Gauge, "topic_partitions", "topic")
        self.retention_seconds = make(Gauge, "retention_seconds", "topic")
        self.needed_retention_seconds = make(Gauge, "needed_retention_seconds")
        # A series that starts at 0 shows its first event as an increase.
        for labelled, values in (
            (self.refused, REFUSALS),
            (self.parked, PARKED),
            (self.receipts, get_args(Kind)),
            (self.transaction_aborts, ("refused", *get_args(AbortReason))),
            (self.moved_partitions, ("assigned", "revoked", "lost")),
            (self.recovery_work, ("directory", "kafka")),
            (self.pauses, COUNTED),
        ):
            for value in values:
                labelled.labels(value)

        self.last_commit_ms: int | None = None
        """Begin of the last committed transaction, by the bridge's clock."""
        self.lags: Mapping[TimerPartition, Lag] = {}
        self.hanging_transactions: Mapping[TimerPartition, Hang] = {}
        self.clock_skew_ms: Mapping[TimerPartition, int] = {}
        """How far the clock of the broker that leads a journal partition is ahead of ours."""
        self.lost_to_retention: Mapping[TimerPartition, int] = {}
        """Offsets from the oldest pending timer on that Kafka no longer holds."""
        self.journal_written_ms: dict[TimerPartition, tuple[int, int]] = {}
        """Times (our clock) between which our newest committed journal record was written."""

    # -- topics

    def retention_checked(self, retention_ms: Mapping[str, int], needed_ms: int) -> None:
        """retention_ms: by timer topic and journal; -1 is unlimited."""
        self.needed_retention_seconds.set(needed_ms / 1000)
        for topic, each_ms in retention_ms.items():
            self.retention_seconds.labels(topic).set(math.inf if each_ms < 0 else each_ms / 1000)

    # -- transactions

    def transaction_ended(self, outcome: Committed | Aborted) -> None:
        match outcome:
            case Committed():
                self.transaction_seconds.observe(outcome.took_s)
            case Aborted(refused):
                self.transaction_aborts.labels("refused" if refused else outcome.why).inc()

    def transaction_committed(self, parts: Sequence[tuple[Partition, FrozenDraft]], now_ms: int) -> None:
        """Count a transaction. parts: what each partition has in it."""
        for owned, frozen in parts:
            draft, partition = frozen.draft, owned.partition
            self.last_commit_ms = frozen.at_ms
            self.requests.labels(partition.topic).inc(frozen.requests)
            self.rolled.inc(len(draft.copies))
            self.landed.inc(len(draft.decisions.landed))
            for kind, count in frozen.receipt_kinds.items():
                self.receipts.labels(kind).inc(count)
            for refusal in draft.parked.values():
                self.parked.labels(refusal.code).inc()
            for _, refusal in draft.decisions.refused:
                self.refused.labels(refusal.code).inc()
            if frozen.journal is not None:
                self.journal_written_ms[partition] = (frozen.at_ms, now_ms)
            if self.spans is not None:
                self.spans(frozen, now_ms)
        self._count_deliveries([frozen for _, frozen in parts if frozen.draft.bodies], now_ms)

    def _count_deliveries(self, parts: list[FrozenDraft], now_ms: int) -> None:
        delivered: list[Body] = []
        at_ms: list[int] = []
        waited: list[bool] = []
        for frozen in parts:
            draft = frozen.draft
            bodies = [body for body in draft.bodies if body.origin_offset not in draft.parked]
            delivered += bodies
            at_ms += [frozen.at_ms] * len(bodies)
            waited += [body.origin_offset in draft.waited_origins for body in bodies]
        if not delivered:
            return
        for target, count in self.targets.sums(Counter(body.target for body in delivered)).items():
            self.deliveries.labels(target).inc(count)
        due_ms = np.array([body.due_ms for body in delivered])
        late_s = np.maximum(np.array(at_ms) - due_ms, 0) / 1000
        has_waited = np.array(waited, np.bool_)
        self.lateness_seconds.observe(late_s[~has_waited])
        self.waited_seconds.observe(late_s[has_waited])
        self.traffic.timers_delivered(due_ms[~has_waited], now_ms, waited=int(has_waited.sum()))

    # -- partitions

    def rebalanced(self, ownership: Ownership) -> None:
        self.rebalances.inc()
        self.moved_partitions.labels("assigned").inc(len(ownership.assigned))
        self.moved_partitions.labels("revoked").inc(len(ownership.revoked))
        self.moved_partitions.labels("lost").inc(len(ownership.lost))

    def recovery_started(self, partition: TimerPartition) -> None:
        self._recovery_began_s[partition] = self._now_s()

    def recovery_finished(self, partition: TimerPartition) -> None:
        if partition in self._recovery_began_s:
            self.recovery_seconds.observe(self._now_s() - self._recovery_began_s.pop(partition))

    # -- checks

    def lags_checked(self, lags: Mapping[TimerPartition, Lag], hanging: Mapping[TimerPartition, Hang]) -> None:
        self.lags, self.hanging_transactions = lags, hanging

    def clocks_checked(self, clock_skew_ms: Mapping[TimerPartition, int]) -> None:
        self.clock_skew_ms = clock_skew_ms

    def lost_to_retention_checked(self, offsets: Mapping[TimerPartition, int]) -> None:
        self.lost_to_retention = offsets

    # -- the end

    def partition_closed(self, partition: TimerPartition) -> None:
        self._recovery_began_s.pop(partition, None)
        self.journal_written_ms.pop(partition, None)
