"""Two types that prometheus_client lacks: a histogram of whole batches, and a bound for labels that senders choose."""

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


class BatchHistogram(Collector):
    """A histogram that takes a numpy array at once: a transaction may deliver 10,000 timers.

    One thread writes, any thread reads. An update replaces the state, so no reader sees half a batch.
    """

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """buckets: upper bounds, ascending and inclusive, without +Inf."""
        self._name = f"{NAMESPACE}_{name}"
        self._documentation = documentation
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


def gauge(name: str, documentation: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; without a sample if `value` is None."""
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", documentation, value)


def label_gauge(
    name: str, documentation: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", documentation, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def partition_gauge(name: str, documentation: str, values: Mapping[TimerPartition, float]) -> GaugeMetricFamily:
    by_labels: dict[tuple[str, ...], float] = {(at.topic, str(at.partition)): value for at, value in values.items()}
    return label_gauge(name, documentation, ["topic", "partition"], by_labels)
