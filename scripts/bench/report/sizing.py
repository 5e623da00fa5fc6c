"""Resources for a load, calculated from the bench's measurements.

    Results -> fit -> Model (CPU a message, a transaction, a KB; memory and disk a pending timer) -> size -> Sizing

CPU of a run = in x requests + out x deliveries + tx x transactions + kb x KB, by least squares over all runs, each
with the same weight. By Little's law timers wait pending / rate on the average. A timer that waits longer than a roll
window rolls once a window, which is one more message in and out: rolls = pending / window a second. All timers wait
equally long in this model: if a few wait long and most do not, more roll, and a rebuild reads more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bridge.errors import SettingsError
from scripts.bench.report.results import Results

DAY_S = 86_400
WINDOW_S = 2 * DAY_S
"""The bridge's default roll window."""
BUSY = 0.7
"""Planned share of a core or of a measured maximum; the rest is for peaks and for a failed instance."""
MEMORY_MB = 16_384
"""Memory of an instance for its index of ids."""
LEAST_KEPT_S = 7 * DAY_S
"""Least retention of the timer topic, for any window."""
COPIES = 3
"""Copies of each record on the brokers."""
RECORD_BYTES = 150
"""Bytes of a record besides its body: headers and framing, about."""
LEAST_PARTITIONS = 16
_LEFT_OUT = ("rocketmq.", "at-least-once.", "g1.", "slices.", "workers.")
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


class Cpu(NamedTuple):
    """CPU model, in microseconds; `worst`: its largest relative error of a run."""

    request_us: float
    delivery_us: float
    transaction_us: float
    kilobyte_us: float
    worst: float

    def message_us(self, run: Run) -> float:
        """Return the model's CPU for a run."""
        return float(np.dot(self[:4], run.terms)) / run.requests


@dataclass(frozen=True)
class Model:
    """`most_pending`: was measured; beyond it, all is calculated. `partition_per_s`, `instance_per_s`: in and out."""

    cpu: Cpu
    body_bytes: float
    transactions_per_s: float
    instance_per_s: float
    partition_per_s: float
    base_mb: float
    memory_bytes: float
    disk_bytes: float
    partition_disk_mb: float
    rebuild_per_s: float
    most_pending: float

    @property
    def message_us(self) -> float:
        """Return the CPU of a message in and out, in microseconds."""
        return self.cpu.request_us + self.cpu.delivery_us + 2 * self.body_bytes / 1024 * self.cpu.kilobyte_us


@dataclass(frozen=True)
class Sizing:
    """`..._each`: of an instance. `broker_mb_per_s`: written, all copies, without journal and receipts.

    `topic_tb`: kept for three windows, or LEAST_KEPT_S. `rebuild_s`: if all wait equally long. `longest_rebuild_s`: if
    one waits for a whole window, so that everything since is read.
    """

    rolls_per_s: float
    instances: int
    partitions: int
    memory_mb_each: float
    disk_gb_each: float
    broker_mb_per_s: float
    transactions_per_s: float
    topic_tb: float
    rebuild_s: float
    longest_rebuild_s: float


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


def size(model: Model, per_s: float, pending: float, window_s: float = WINDOW_S) -> Sizing:
    """Return the resources for an evenly shared load."""
    rolls_per_s = pending / window_s if pending / per_s > window_s else 0.0
    moved_per_s, record_bytes = per_s + rolls_per_s, model.body_bytes + RECORD_BYTES
    room_us = max(BUSY * 1e6 - model.transactions_per_s * model.cpu.transaction_us, 1e5)
    instances = max(
        math.ceil(moved_per_s * model.message_us / room_us),
        math.ceil(moved_per_s / (BUSY * model.instance_per_s)),
        math.ceil(pending * model.memory_bytes / 2**20 / MEMORY_MB),
    )
    partitions = max(LEAST_PARTITIONS, 2 * instances, math.ceil(moved_per_s / (BUSY * model.partition_per_s)))
    disk_bytes = pending * model.disk_bytes + partitions * model.partition_disk_mb * 2**20
    return Sizing(
        rolls_per_s=rolls_per_s,
        instances=instances,
        partitions=partitions,
        memory_mb_each=model.base_mb + pending * model.memory_bytes / instances / 2**20,
        disk_gb_each=disk_bytes / instances / 1e9,
        broker_mb_per_s=(2 * per_s + rolls_per_s) * record_bytes * COPIES / 1e6,
        transactions_per_s=instances * model.transactions_per_s,
        topic_tb=moved_per_s * record_bytes * max(3 * window_s, LEAST_KEPT_S) * COPIES / 1e12,
        rebuild_s=min(pending, moved_per_s * window_s) / (instances * model.rebuild_per_s),
        longest_rebuild_s=moved_per_s * window_s / (instances * model.rebuild_per_s),
    )


def rebuild_s(model: Model, per_s: float, window_s: float) -> float:
    """Return the time to rebuild lost disks, if every timer waits a whole window: all instances read at once."""
    return size(model, per_s, per_s * window_s, window_s).longest_rebuild_s
