"""Metrics of the canary, for Prometheus: docs/operations.md has the list."""

from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, disable_created_metrics

_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class CanaryMetrics:
    """Counters of one canary, and its lateness."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        counter = partial(prometheus_client.Counter, namespace="timer_canary", registry=self.registry)
        gauge = partial(prometheus_client.Gauge, namespace="timer_canary", registry=self.registry)
        self.sent = counter("sent", "Timers that were sent.")
        self.received = counter("received", "Timers that arrived, including lost ones that arrived later.")
        self.lost = counter("lost", "Timers that did not arrive in time, or were not accepted by the broker.")
        self.duplicates = counter("duplicates", "Timers that arrived again.")
        self._lateness = prometheus_client.Histogram(
            "lateness_seconds",
            "From the due time until the record was read, by the canary's clock. Early ones count as 0.",
            namespace="timer_canary",
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self._last_lateness = gauge("last_lateness_seconds", "The same of the last timer; negative: early.")
        self._last_success = gauge("last_success_timestamp_seconds", "When the last timer arrived; 0: none has.")

    def arrived(self, lateness_ms: int, now_ms: int) -> None:
        self.received.inc()
        self._lateness.observe(max(0, lateness_ms) / 1000)
        self._last_lateness.set(lateness_ms / 1000)
        self._last_success.set(now_ms / 1000)
