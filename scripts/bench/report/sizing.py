"""Resources for a load, calculated from the bench's measurements.

    Results -> fit -> Model (CPU a message, a transaction, a KB; memory and disk a pending timer) -> size -> Sizing

CPU of a run = in x requests + out x deliveries + tx x transactions + kb x KB, by least squares over all runs, each
weighing the same. By Little's law timers wait pending / rate on the average; who waits longer than a roll window goes
round once a window, which is one more message in and out each time: rolls = pending / window a second. All wait
alike in this: where few wait long and most do not, more roll than that, and a rebuild reads more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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
        return sum(cost * term for cost, term in zip(self[:4], run.terms, strict=True)) / run.requests


@dataclass(frozen=True)
class Model:
    """`most_...`: what was measured; all beyond is calculated. `partition_per_s` and `instance_per_s`: in and out."""

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
        kilobytes = 2 * self.body_bytes / 1024
        return self.cpu.request_us + self.cpu.delivery_us + kilobytes * self.cpu.kilobyte_us


@dataclass(frozen=True)
class Sizing:
    """`..._each`: of an instance. `broker_mb_per_s`: written, all copies, without journal and receipts.

    `topic_tb`: kept for three windows, or LEAST_KEPT_S. `rebuild_s` where all wait alike; `longest_rebuild_s` where one
    waits for as long as a window, so that all that came since is read.
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
        if scenario == name or scenario.startswith(
            ("rocketmq.", "at-least-once.", "publishing.", "named", "disk.", "slices.")
        ):
            continue
        size = float(scenario.removeprefix("bodies.")) if scenario.startswith("bodies.") else body
        count = results.median(f"{scenario}.account.requested")
        requests = count if count is not None else results.median(f"{scenario}.requests") or 0.0
        delivered = count or 0.0
        transactions, cpu_s = results.median(f"{scenario}.cost.transactions"), results.median(name)
        if transactions is not None and cpu_s:
            kilobytes = (requests + delivered) * size / 1024
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
    worst = float(np.abs(rows @ costs - 1).max())
    request_us, delivery_us, transaction_us, kilobyte_us = map(float, costs)
    return Cpu(request_us, delivery_us, transaction_us, kilobyte_us, worst)


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return base and slope of a line through the points, by least squares."""
    x, y = np.array(points).T
    by_x, base = np.polyfit(x, y, 1)
    return float(base), float(by_x)


def fit(results: Results) -> Model:
    """Build the model. Raises SettingsError if a required part was not measured."""
    timers = [float(place) for place in results.places("pending.", ".rss_mb")]
    if not timers:
        raise SettingsError("pending timers were not measured: run `make bench` with the part pending")
    rates = results.places("steady.", ".out_per_s")
    if not rates:
        raise SettingsError("a steady load was not measured: run `make bench` with the part steady")
    most = timers[-1]
    base_mb, full_mb = (_needed(results, f"pending.{most:.0f}.{end}") for end in ("rss_empty_mb", "rss_mb"))
    empty_mb = _needed(results, f"pending.{most:.0f}.disk_empty_mb")
    start_s, lost_s = (_needed(results, f"pending.{most:.0f}.ready_after_{end}_s") for end in ("stop", "loss"))
    return Model(
        cpu=fit_cpu(runs(results)),
        body_bytes=float(results.settings["body_bytes"]),
        transactions_per_s=_transactions_per_s(results, max(rates, key=partial(_out_per_s, results))),
        instance_per_s=max(_out_per_s(results, rate) for rate in rates),
        partition_per_s=_needed(results, "instances.1x1.from_due_per_s") / 2,
        base_mb=base_mb,
        memory_bytes=max(full_mb - base_mb, 0.0) * 2**20 / most,
        disk_bytes=(_needed(results, f"pending.{most:.0f}.disk_mb") - empty_mb) * 2**20 / most,
        partition_disk_mb=empty_mb / float(results.settings["partitions"]),
        rebuild_per_s=most / max(lost_s - start_s, 0.1),
        most_pending=most,
    )


def _needed(results: Results, name: str) -> float:
    value = results.median(name)
    if value is None:
        raise SettingsError(f"{name} was not measured: run `make bench` without --only")
    return value


def _out_per_s(results: Results, rate: str) -> float:
    return _needed(results, f"steady.{rate}.out_per_s")


def _transactions_per_s(results: Results, rate: str) -> float:
    took_s = _needed(results, f"steady.{rate}.account.requested") / _needed(results, f"steady.{rate}.sent_per_s")
    return _needed(results, f"steady.{rate}.cost.transactions") / took_s


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
