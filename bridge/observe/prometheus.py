"""`/metrics` in Prometheus's text format or OpenMetrics: bridge.observe.metric_definitions, and the process's own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from bridge.observe.metric_definitions import AlertLimits, Facts, Metric, all_metrics
from bridge.observe.metric_types import Histogram
from bridge.observe.metrics import Metrics
from bridge.observe.metrics_snapshot import NOTHING, MetricsSnapshot
from bridge.observe.status import Status


class Exposition(Collector):
    """Renders a process's metrics. `seen` is the last snapshot: a bridge that waits for a broker makes no new one."""

    def __init__(self, metrics: Metrics, status: Status, limits: AlertLimits) -> None:
        self.targets = metrics.targets
        self.seen: MetricsSnapshot = NOTHING
        self._facts = Facts(metrics, status, NOTHING, limits)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type, in the best format that `accept` allows."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Family]:
        facts = self._facts._replace(seen=self.seen)
        for metric in all_metrics():
            yield _family(metric, facts)


def _family(metric: Metric, facts: Facts) -> Family:
    found = metric.read(facts)
    if isinstance(found, Histogram):
        counts, total = found.read()
        bounds = [*map(floatToGoString, found.bounds), "+Inf"]
        buckets = list(zip(bounds, counts, strict=True))
        return HistogramMetricFamily(metric.name, metric.tells, buckets, total)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.tells, labels=metric.labels)
    for labels, value in found:
        family.add_metric(labels, value)
    return family
