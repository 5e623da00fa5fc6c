"""The help texts of all metrics, and two types that prometheus_client lacks.

The types: a histogram of whole batches, and a bound for labels that senders choose.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kafka_timer.origin import TimerPartition

NAMESPACE = "timer_bridge"
OTHER = "other"

HELP = {
    "requests": "Requests taken in, by timer `topic`, without the bridge's own copies. Compare with those that are"
    " sent.",
    "deliveries": "Timers delivered, by `target` topic: the first 100 of a process by name, all others as `other`.",
    "refused": "Requests rejected at intake, by `code`. The sender has to fix them (docs/headers.md).",
    "parked": "Due timers rejected, by `code`. Fix the target topic (docs/headers.md), then run `timer-bridge"
    " redrive`.",
    "receipts": "Receipts sent, by `kind`. Many `too-late`, `not-found`: cancels are late, or go to another partition.",
    "lateness_seconds": "Time from due time to release, without timers of `waited_seconds`. If high: see"
    " operations.md.",
    "waited_seconds": "Time from due time to release, of timers that waited: they or their target topic were paused,"
    " or it was over its rate or unavailable (timer-topics.md).",
    "transaction_seconds": "Time from begin to commit, when consumers see the records. If long: check brokers and"
    " quotas.",
    "transaction_aborts": "Aborted and retried transactions, by `reason`: a topic `refused` a record, the group fenced"
    " a `stale-member`, or a passing `fault`. Steady faults: check brokers and log.",
    "transaction_retries": "Aborted transactions that were sent again.",
    "clock_jumps": "Jumps of this machine's clock by more than a minute: timers leave by it. Synchronize it (NTP).",
    "rolled": "Copies written to timer topics, of timers that roll or were moved: the cost of long delays.",
    "landed": "Copies read again from timer topics. Follows `rolled`.",
    "rebalances": "Rebalances. Steady increase: instances come and go, or turns take longer than the session timeout.",
    "moved_partitions": "Partitions by `change`: `assigned`, `revoked`, or `lost`, as this instance missed the session"
    " timeout.",
    "recovery_seconds": "Time from the assignment of a partition until its timers run. If long: see `recovery_work`.",
    "recovery_work": "Timers and requests read by recoveries, by `source`: the local `directory`, or `kafka` alone. If"
    " `kafka` grows: keep the data directory over a restart; the log says why not.",
    "undecided_recoveries": "Recoveries that waited for an open transaction of the former owner, by timer `topic`. If"
    " the partition stays `recovering`: run `kafka-transactions.sh find-hanging` (docs/design/transactions.md).",
    "pauses": "Pauses of intake, by `reason`. See `paused_partitions`.",
    "topic_partitions": "Partitions of each timer `topic` at the start. If it has grown: restart the instances one by"
    " one.",
    "retention_seconds": "`retention.ms` of each timer and journal `topic`, checked every 10 minutes; +Inf is"
    " unlimited. Keep it above `needed_retention_seconds`: a lost disk is rebuilt from them.",
    "needed_retention_seconds": "The shortest retention that is safe: three roll windows.",
    "last_transaction_timestamp_seconds": "Begin of the last committed transaction; an idle bridge makes none. If old"
    " while there is work: the log says which broker the bridge waits for.",
    "partitions": "Partitions that this instance owns, by `phase`: `running`, `recovering` (if for long, see"
    " `recovery_work`) or `paused` (intake only, and not for a rate: see `paused_partitions`).",
    "partition_owned": "1 for each `topic` and `partition` that this instance owns. If no instance does: start one.",
    "standby_age_seconds": "How long ago a standby had all that was committed, by `topic` and `partition`. If it"
    " grows: raise `standby_cpu_percent`, or see the log.",
    "lag_offsets": "Offsets not read yet, markers included, by `topic` and `partition`. Checked every 15 s. Alert and"
    " scale on it, not on the group's lag, which is higher by design. If it grows: intake is paused, a sender has a"
    " transaction open, or an instance is missing.",
    "open_transaction_offsets": "Offsets that an open transaction of a sender hides, by `topic` and `partition`."
    " Checked every 15 s. See `hanging_transaction_seconds`.",
    "hanging_transaction_seconds": "How long the same transaction of a sender has been open, by `topic` and"
    " `partition`, or 0. Checked every 15 s. Find the sender, or abort it: `kafka-transactions.sh find-hanging`, then"
    " `abort`.",
    "undecodable_offset": "Offset of a record that the Kafka client cannot decode, by `topic` and `partition`. No"
    " later record is read. Run `timer-bridge skip TOPIC PARTITION OFFSET` (operations.md,"
    " TimerBridgeUndecodableRecord).",
    "paused_partitions": "Partitions whose intake is paused, by `reason`: `disk` (free some space), `wheel` or `held`"
    " is full (operations.md), `rate` is max_requests_per_s, `undecodable` is a record. Stored timers still leave.",
    "broker_throttle_seconds": "Delays by brokers' quotas, summed over all clients. Raise the quotas of the bridge's"
    " user.",
    "lost_to_retention_offsets": "Offsets from the oldest pending timer on that Kafka has deleted, by `topic` and"
    " `partition`. Checked every 10 minutes. Raise retention.ms now and keep the disk: it has the only copy of these"
    " timers.",
    "clock_skew_seconds": "How far the clock of the journal's broker is ahead of ours, at least, by `topic` and"
    " `partition`; negative if ours is ahead. Checked every 15 s. Synchronize all clocks (NTP): timers leave by the"
    " bridge's clock, delays count from the broker's.",
    "max_clock_skew_seconds": "Limit of `clock_skew_seconds`. A larger skew is logged as a warning.",
    "disk_min_free_bytes": "Setting `min_free_bytes`. Intake pauses below it, or below half of it for a topic with a"
    " small store.",
    "live": "1 while `/health/live` answers 200. If 0: restart the process.",
    "ready": "1 while `/health/ready` answers 200. If 0: it gives the reason.",
    "silence_seconds": "Time since a turn of the loop ended or a wait for a broker was reported; metrics of the stores"
    " are as old. Above 60 without a recovery: the loop hangs.",
    "build_info": "1, with the `version` of the bridge.",
    "pending_timers": "Pending timers with copies in flight, by `target` topic. See `timer-bridge pending`.",
    "partition_pending_timers": "Pending timers with copies in flight, by `topic` and `partition`. If uneven: the keys"
    " are uneven.",
    "next_due_timestamp_seconds": "First due time of a target topic that is not paused, over its rate or unavailable."
    " Absent without a timer, or if the search takes more than 5 ms. In the past by seconds: timers are late.",
    "paused_targets": "Paused target topics. `timer-bridge resume` ends a pause.",
    "waiting_timers": "Timers that wait for their `target` topic, by `reason`: `paused`, `limited` (over its rate) or"
    " `unavailable` (it takes no records). Includes those due later in this hour (UTC). If `limited` grows steadily:"
    " more timers fall due than `max_per_s` allows.",
    "waiting_since_timestamp_seconds": "Since when the first of the `waiting_timers` has waited, by `target` and"
    " `reason`; since its last roll if it has rolled meanwhile. If old: resume the target, or raise `max_per_s`.",
    "target_unavailable_since_timestamp_seconds": "Since when the `target` topic has taken no records: it has no"
    " leader, too few in-sync replicas, or a quota that delays records for too long. Restore its brokers; it is tried"
    " again at least once a minute.",
    "held_timers": "Out-of-order timers, by `topic` and `partition`: a clock was set back, a copy would roll soon,"
    " or they were overdue on arrival for a target that waits. Many without that: check `clock_skew_seconds`.",
    "rolling_timers": "Copies in flight: written and not read again yet, by `topic` and `partition`. If many: check"
    " the lag.",
    "backlog_requests": "Requests that were read and not taken in yet, by `topic` and `partition`. See"
    " `paused_partitions`.",
    "store_bytes": "Size of the logs on disk, by `topic` and `partition`. A file goes when none of its timers is"
    " pending.",
    "pending_bytes": "Bytes of pending timers, by `topic` and `partition`, as `max_pending_bytes` counts them. The sum"
    " by topic shows which one fills the disk: limit it.",
    "disk_free_bytes": "Free space on the disk of the data directory. Keep it above `disk_min_free_bytes`.",
}
"""Help text of each metric, by its name without NAMESPACE: what it shows, and what to do if it is high or grows."""


class BatchHistogram(Collector):
    """A histogram that takes a numpy array at once: a transaction may deliver 10,000 timers.

    One thread writes, any thread reads. An update replaces the state, so no reader sees half a batch.
    """

    def __init__(self, name: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """buckets: upper bounds, ascending and inclusive, without +Inf."""
        self._name = f"{NAMESPACE}_{name}"
        self._documentation = HELP[name]
        self._bounds = np.array(buckets, np.float64)
        self._counts_and_sum = np.zeros(len(buckets) + 1, np.int64), 0.0
        registry.register(self)

    def observe(self, values: NDArray[np.float64]) -> None:
        counts, total = self._counts_and_sum
        new = np.bincount(self._bounds.searchsorted(values), minlength=len(counts))
        self._counts_and_sum = counts + new, total + float(values.sum())

    def collect(self) -> list[HistogramMetricFamily]:
        counts, total = self._counts_and_sum
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(bounds, np.cumsum(counts).tolist(), strict=True))
        return [HistogramMetricFamily(self._name, self._documentation, buckets, total)]


class TopicLabels:
    """Labels for topics that senders name: the first `limit` topics have their own label, all others `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._labelled: set[str] = set()

    def label(self, topic: str) -> str:
        if topic not in self._labelled:
            if len(self._labelled) >= self._limit:
                return OTHER
            self._labelled.add(topic)
        return topic

    def sums(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return counts of topics by label."""
        sums = Counter[str]()
        for topic, count in counts.items():
            sums[self.label(topic)] += count
        return sums


def gauge(name: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; without a sample if `value` is None."""
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", HELP[name], value)


def label_gauge(name: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", HELP[name], labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def partition_gauge(name: str, values: Mapping[TimerPartition, float]) -> GaugeMetricFamily:
    by_labels: dict[tuple[str, ...], float] = {(at.topic, str(at.partition)): value for at, value in values.items()}
    return label_gauge(name, ["topic", "partition"], by_labels)
