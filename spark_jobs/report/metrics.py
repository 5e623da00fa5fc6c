"""Metrics of an audit for Prometheus: a text file for node_exporter's textfile collector, or a push to a Pushgateway.

An audit that fails writes nothing, so `timer_audit_last_success_timestamp_seconds` gets old. A failure to write metrics
does not change the exit code. For users: docs/audit.md#metrics-of-the-audit
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, push_to_gateway, write_to_textfile

from spark_jobs.audit_rules.verdicts import FAULTS
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.report.summary import AuditVerdict

METRICS = {
    "faults": "Faults by class that the last audit found; of a stream: those reported since its start.",
    "requests": "Requests that the last audit judged; of a stream: verdicts since its start.",
    "open_timers": "Timers whose verdict may change: pending and held ones.",
    "gaps": "Ranges of records that retention deleted before an audit read them; of a stream: since its start.",
    "unproved": "Other reasons for exit code 1: a hanging transaction, or too many refusals that cannot be checked.",
    "as_of_timestamp_seconds": "Until when due timers are judged. The lag is time() minus this.",
    "duration_seconds": "How long the last audit or batch took.",
    "last_success_timestamp_seconds": "When an audit or batch last ended with a verdict, whatever the verdict is.",
}


class AuditMetrics:
    """Metrics of the audits of one timer topic."""

    def __init__(self, arguments: AuditArguments) -> None:
        self._arguments, self._registry = arguments, CollectorRegistry()
        labels = {"faults": ("timer_topic", "class")}
        self._gauges = {
            name: Gauge(name, text, labels.get(name, ("timer_topic",)), "timer_audit", registry=self._registry)
            for name, text in METRICS.items()
        }
        self._told: Counter[str] = Counter()

    def audited(self, verdict: AuditVerdict, duration_s: float) -> None:
        rest = {"requests": verdict.requests, "open_timers": verdict.open_timers, "unproved": len(verdict.unproved)}
        self._export(verdict.fault_counts, {**rest, "gaps": len(verdict.gaps)}, verdict.as_of_ms, duration_s)

    def batch(self, row: Mapping[str, Any]) -> None:
        """Export the metrics of a stream after a batch. `row`: of the table `batches`."""
        self._told.update({name.column: row[name.column] for name in FAULTS})
        self._told.update({"rows": row["rows"], "gaps": len(row["gaps"])})
        faults = {name.value: self._told[name.column] for name in FAULTS}
        rest = {"requests": self._told["rows"], "open_timers": row["open"], "gaps": self._told["gaps"]}
        begun_ms = row["as_of_ms"] + self._arguments.skew_ms
        self._export(faults, rest, row["as_of_ms"], (row["written_ms"] - begun_ms) / 1000)

    def _export(self, faults: Mapping[str, int], rest: Mapping[str, int], as_of_ms: int, duration_s: float) -> None:
        topic, now_s = self._arguments.timer_topic, time.time()
        for name, count in faults.items():
            self._gauges["faults"].labels(topic, name).set(count)
        times = {"as_of_timestamp_seconds": as_of_ms / 1000, "last_success_timestamp_seconds": now_s}
        for gauge, value in {**rest, **times, "duration_seconds": duration_s}.items():
            self._gauges[gauge].labels(topic).set(value)
        file, gateway = self._arguments.metrics_file, self._arguments.pushgateway
        if file is not None:
            _try(f"--metrics-file {file}", lambda: write_to_textfile(str(file), self._registry))
        if gateway is not None:
            key = {"timer_topic": topic}
            _try(f"--pushgateway {gateway}", lambda: push_to_gateway(gateway, "timer-audit", self._registry, key))


def _try(target: str, export: Callable[[], None]) -> None:
    try:
        export()
    except (OSError, ValueError) as wrong:
        print(f"timer-bridge audit: {target}: metrics could not be written: {wrong}", file=sys.stderr)
