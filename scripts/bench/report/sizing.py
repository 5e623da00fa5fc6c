"""Costs of a message, a transaction, a KB and a pending timer, from the bench's measurements.

    Results -> fit -> Model -> bridge.capacity.sizing, which `timer-bridge size` uses too

CPU of a run = in x requests + out x deliveries + tx x transactions + kb x KB, by least squares over all runs, each
with the same weight.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bridge.capacity.sizing import Cpu, Model
from bridge.errors import SettingsError
from scripts.bench.report.results import Results

_LEFT_OUT = ("rocketmq.", "at-least-once.", "g1.", "slices.", "workers.", "engines.")
"""Scenarios whose CPU has other costs."""


class Run(NamedTuple):
    """Work of one scenario, and the bridge's CPU for it."""

    name: str
    requests: float
    deliveries: float
    transactions: float
    kilobytes: float
    cpu_s: float

    @property
    def terms(self) -> tuple[float, float, float, float]:
        return self.requests, self.deliveries, self.transactions, self.kilobytes

    @property
    def message_us(self) -> float:
        return self.cpu_s * 1e6 / self.requests

    def modelled_us(self, cpu: Cpu) -> float:
        """Return the model's CPU of a message, in microseconds."""
        return float(np.dot(cpu[:4], self.terms)) / self.requests


def runs(results: Results) -> list[Run]:
    """Return every scenario with CPU and transactions."""
    found, body = [], float(results.settings["body_bytes"])
    for name in sorted(results.measured):
        scenario = name.removesuffix(".cost.cpu_s")
        if scenario == name or scenario.startswith(_LEFT_OUT):
            continue
        body_bytes = float(scenario.removeprefix("bodies.")) if scenario.startswith("bodies.") else body
        delivered = results.median(f"{scenario}.account.requested") or 0.0
        requests = delivered or results.median(f"{scenario}.requests") or 0.0
        transactions, cpu_s = results.median(f"{scenario}.cost.transactions"), results.median(name)
        if transactions is not None and cpu_s:
            kilobytes = (requests + delivered) * body_bytes / 1024
            found.append(Run(scenario, requests, delivered, transactions, kilobytes, cpu_s))
    return found


def fit_cpu(observed: Sequence[Run]) -> Cpu:
    """Fit by least squares of the relative error, without negative terms. Raises SettingsError."""
    if len({run.terms for run in observed}) < 4:
        raise SettingsError("too few runs to tell the costs apart: run `make bench` without --only")
    terms = np.array([run.terms for run in observed])
    cpu_us = np.array([run.cpu_s * 1e6 for run in observed])
    rows: npt.NDArray[np.float64] = terms / cpu_us[:, None]
    scale = np.maximum(rows.max(axis=0), 1e-12)
    used = list(range(terms.shape[1]))
    while True:
        solution = np.linalg.lstsq(rows[:, used] / scale[used], np.ones(len(rows)), rcond=None)[0] / scale[used]
        if (solution >= 0).all():
            break
        del used[int(solution.argmin())]
    costs = np.zeros(terms.shape[1])
    costs[used] = solution
    return Cpu._make([*map(float, costs), float(np.abs(rows @ costs - 1).max())])


def fit(results: Results) -> Model:
    """Build the model. Raises SettingsError if a required part was not measured."""
    steady = results.places("steady.", ".out_per_s")
    if not steady:
        raise SettingsError("a steady load was not measured: run `make bench` with the part steady")

    def needed(name: str) -> float:
        value = results.median(name)
        if value is None:
            raise SettingsError(f"{name} was not measured: run `make bench` with the part {name.partition('.')[0]}")
        return value

    timers = needed("pending.timers")
    fastest = max((f"steady.{rate}" for rate in steady), key=lambda name: needed(f"{name}.out_per_s"))
    base_mb, empty_mb = needed("pending.rss_empty_mb"), needed("pending.disk_empty_mb")
    rebuild_s = needed("pending.ready_after_loss_s") - needed("pending.ready_after_stop_s")
    sent_s = needed(f"{fastest}.account.requested") / needed(f"{fastest}.sent_per_s")
    return Model(
        cpu=fit_cpu(runs(results)),
        body_bytes=float(results.settings["body_bytes"]),
        transactions_per_s=needed(f"{fastest}.cost.transactions") / sent_s,
        instance_per_s=needed(f"{fastest}.out_per_s"),
        partition_per_s=needed("partitions.1.from_due_per_s") / 2,
        base_mb=base_mb,
        memory_bytes=max(needed("pending.rss_mb") - base_mb, 0.0) * 2**20 / timers,
        disk_bytes=(needed("pending.disk_mb") - empty_mb) * 2**20 / timers,
        partition_disk_mb=empty_mb / float(results.settings["partitions"]),
        rebuild_per_s=timers / max(rebuild_s, 0.1),
        most_pending=timers,
    )
