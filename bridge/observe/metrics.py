"""Count the bridge's work after it is committed to Kafka: once per partition and transaction, not once per record.

Gauges, and the text that Prometheus reads: prometheus.py.

The loop's thread writes, any thread reads. One object serves the process through all its runs. The values of each label
are bounded.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry

from bridge.observe.metric_types import NAMESPACE, BatchHistogram, TopicLabels
from bridge.observe.pause_reasons import COUNTED
from bridge.observe.recent_traffic import TrafficMeter
from bridge.partition.draft import FrozenDraft
from bridge.partition.partition import Partition
from bridge.ports import Aborted, AbortReason, Committed, Ownership
from kafka_timer.origin import TimerPartition
from schemas.receipts import Kind
from timer.format.body import Body

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
        counter = partial(prometheus_client.Counter, namespace=NAMESPACE, registry=self.registry)
        gauge = partial(prometheus_client.Gauge, namespace=NAMESPACE, registry=self.registry)
        histogram = partial(prometheus_client.Histogram, namespace=NAMESPACE, registry=self.registry)

        self.requests = counter(
            "requests",
            "Requests taken in, by timer `topic`, without the bridge's own copies. Compare with those that are sent.",
            ["topic"],
        )
        self.deliveries = counter(
            "deliveries",
            "Timers delivered, by `target` topic: the first 100 of a process by name, all others as `other`.",
            ["target"],
        )
        self.refused = counter(
            "refused", "Requests rejected at intake, by `code`. The sender has to fix them (docs/headers.md).", ["code"]
        )
        self.parked = counter(
            "parked",
            "Due timers rejected, by `code`. Fix the target topic (docs/headers.md), then run `timer-bridge redrive`.",
            ["code"],
        )
        self.receipts = counter(
            "receipts",
            "Receipts sent, by `kind`. Many `too-late`, `not-found`: cancels are late, or go to another partition.",
            ["kind"],
        )
        self.lateness_seconds = BatchHistogram(
            "lateness_seconds",
            "Time from due time to release, without timers of `waited_seconds`. If high: see operations.md.",
            (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600),
            self.registry,
        )
        self.waited_seconds = BatchHistogram(
            "waited_seconds",
            "Time from due time to release, of timers that waited: they or their target topic were paused, or it was"
            " over its rate or unavailable (timer-topics.md).",
            (1, 10, 60, 300, 900, 3600, 14_400, 86_400, 604_800),
            self.registry,
        )
        self.transaction_seconds = histogram(
            "transaction_seconds",
            "Time from begin to commit, when consumers see the records. If long: check brokers and quotas.",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
        )
        self.transaction_aborts = counter(
            "transaction_aborts",
            "Aborted and retried transactions, by `reason`: a topic `refused` a record,"
            " the group fenced a `stale-member`, or a passing `fault`. Steady faults: check brokers and log.",
            ["reason"],
        )
        self.transaction_retries = counter("transaction_retries", "Aborted transactions that were sent again.")
        self.clock_jumps = counter(
            "clock_jumps",
            "Jumps of this machine's clock by more than a minute: timers leave by it. Synchronize it (NTP).",
        )
        self.rolled = counter(
            "rolled", "Copies written to timer topics, of timers that roll or were moved: the cost of long delays."
        )
        self.landed = counter("landed", "Copies read again from timer topics. Follows `rolled`.")
        self.rebalances = counter(
            "rebalances",
            "Rebalances. Steady increase: instances come and go, or turns take longer than the session timeout.",
        )
        self.moved_partitions = counter(
            "moved_partitions",
            "Partitions by `change`: `assigned`, `revoked`, or `lost`, as this instance missed the session timeout.",
            ["change"],
        )
        self.recovery_seconds = histogram(
            "recovery_seconds",
            "Time from the assignment of a partition until its timers run. If long: see `recovery_work`.",
            buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800),
        )
        self.recovery_work = counter(
            "recovery_work",
            "Timers and requests read by recoveries, by `source`: the local `directory`, or `kafka` alone. If `kafka`"
            " grows: keep the data directory over a restart; the log says why not.",
            ["source"],
        )
        self.undecided_recoveries = counter(
            "undecided_recoveries",
            "Recoveries that waited for an open transaction of the former owner, by timer `topic`. If the partition"
            " stays `recovering`: run `kafka-transactions.sh find-hanging` (docs/design/transactions.md).",
            ["topic"],
        )
        self.pauses = counter("pauses", "Pauses of intake, by `reason`. See `paused_partitions`.", ["reason"])
        self.topic_partitions = gauge(
            "topic_partitions",
            "Partitions of each timer `topic` at the start. If it has grown: restart the instances one by one.",
            ["topic"],
        )
        self.retention_seconds = gauge(
            "retention_seconds",
            "`retention.ms` of each timer and journal `topic`, checked every 10 minutes; +Inf is unlimited. Keep it"
            " above `needed_retention_seconds`: a lost disk is rebuilt from them.",
            ["topic"],
        )
        self.needed_retention_seconds = gauge(
            "needed_retention_seconds", "The shortest retention that is safe: three roll windows."
        )
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
