"""Timers of the canary: sent with a trace id, awaited on a topic of their own, given up after a time. Without I/O.

send ---> waiting ---> arrived: lateness              a second time: a duplicate
                  ---> lost: not there in time        later: arrived too
"""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import uuid4

import prometheus_client
from prometheus_client import CollectorRegistry, disable_created_metrics

from kafka_timer import Sent, TimerProducer
from kafka_timer.headers import TRACE_ID, Headers

_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_MOST_KNOWN = 10_000
"""Trace ids that are kept to recognise a duplicate, or a lost timer that arrives later."""


class Lost(NamedTuple):
    """A timer that has not arrived in time. `request`: where its request is, or why there is none."""

    trace: str
    due_ms: int
    request: str


class _Waiting(NamedTuple):
    due_ms: int
    sent: "Future[Sent]"


class CanaryMetrics:
    """Counters of one canary, and its lateness, for Prometheus: docs/operations.md has the list."""

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


@dataclass(eq=False)
class Canary:
    """Sends to `topic`, `delay_ms` ahead. A timer is lost `timeout_ms` after its due time. Times are epoch ms."""

    _timers: TimerProducer
    _metrics: CanaryMetrics
    topic: str
    delay_ms: int
    timeout_ms: int

    def __post_init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._known: dict[str, int] = {}
        """Due times of timers that have arrived or are lost, oldest first."""
        self._lost: set[str] = set()
        self.last_lateness_ms: int | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def send(self, now_ms: int) -> None:
        """Send a timer. A failure shows when the timer is lost."""
        trace, due_ms = uuid4().hex, now_ms + self.delay_ms
        sent = self._timers.schedule(self.topic, b"", key=trace, headers=[(TRACE_ID, trace)], at=due_ms)
        self._waiting[trace] = _Waiting(due_ms, sent)
        self._metrics.sent.inc()

    def receive(self, records: Iterable[Headers], now_ms: int) -> None:
        """Count records of the topic, which were received now. Those of other canaries are ignored."""
        for headers in records:
            trace = (dict(headers).get(TRACE_ID) or b"").decode(errors="replace")
            waiting = self._waiting.pop(trace, None)
            if waiting is not None or trace in self._lost:
                due_ms = waiting.due_ms if waiting is not None else self._known[trace]
                self._lost.discard(trace)
                self._remember(trace, due_ms)
                self.last_lateness_ms = now_ms - due_ms
                self._metrics.arrived(self.last_lateness_ms, now_ms)
            elif trace in self._known:
                self._metrics.duplicates.inc()

    def losses(self, now_ms: int) -> list[Lost]:
        """Return the timers that are lost by now, each once."""
        over = [trace for trace, each in self._waiting.items() if now_ms - each.due_ms > self.timeout_ms]
        found = []
        for trace in over:
            due_ms, sent = self._waiting.pop(trace)
            self._lost.add(trace)
            self._remember(trace, due_ms)
            self._metrics.lost.inc()
            found.append(Lost(trace, due_ms, _request_of(sent)))
        return found

    def _remember(self, trace: str, due_ms: int) -> None:
        self._known[trace] = due_ms
        while len(self._known) > _MOST_KNOWN:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._lost.discard(oldest)


def _request_of(sent: "Future[Sent]") -> str:
    if not sent.done():
        return "not acknowledged"
    failure = sent.exception()
    return f"refused: {failure}" if failure is not None else "/".join(map(str, sent.result()))
