"""Figures of results.json: each a formula over the measurements of a try, with its goal.

A figure whose part was not run is None. A ratio is computed within a try; the figure is the median of the tries.
"""

import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scripts.bench.measurements import Flat
from scripts.bench.servers import COLLECTORS, G1_PREFIX
from scripts.bench.suite import FULL_PER_S, GOAL_RATES

Formula = Callable[[Flat], float]
_COMPARE = {"<=": operator.le, ">=": operator.ge}
FAULTS = ("early", "lost", "duplicates", "strangers")
"""Counts of an account that have to be 0."""


class MedianValue(NamedTuple):
    """A number over the tries in which it was measured."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, each: Sequence[float]) -> "MedianValue":
        return cls(statistics.median(each), min(each), max(each))

    @property
    def text(self) -> str:
        """Return the median, with lowest and highest if they differ."""
        median, low, high = map(number_text, self)
        return median if low == high == median else f"{median} ({low}–{high})"


class Figure(NamedTuple):
    """A figure. `part`: the part of the bench with its numbers; `of`: a measurement's name or a formula."""

    key: str
    unit: str
    part: str
    of: str | Formula
    goal: str = ""

    def value(self, rounds: Iterable[Flat]) -> MedianValue | None:
        found = []
        for measured in rounds:
            try:
                found.append(_value(self.of, measured))
            except (KeyError, ValueError):  # not measured
                continue
        return MedianValue(*map(rounded, MedianValue.of(found))) if found else None

    def is_missed(self, value: MedianValue) -> bool:
        """Return True if the figure has a goal and misses it."""
        sign, _, limit = self.goal.partition(" ")
        return bool(sign) and not _COMPARE[sign](value.median, float(limit))

    def worsening(self, change: float) -> float:
        """Return by how much a change of the value is for the worse; 0 without a goal."""
        return change if self.goal.startswith("<=") else -change if self.goal.startswith(">=") else 0.0


def rounded(value: float) -> float:
    return round(value, 3 if abs(value) < 10 else 1)


def number_text(value: float) -> str:
    return f"{value:,.2f}" if value != int(value) and abs(value) < 100 else f"{value:,.0f}"


def _value(of: str | Formula, measured: Flat) -> float:
    return measured[of] if isinstance(of, str) else of(measured)


def _ratio(over: str | Formula, under: str | Formula) -> Formula:
    return lambda measured: _value(over, measured) / _value(under, measured)


def best(name: str, begin: str = "") -> Formula:
    """Return the formula of the highest measurement by any collector. It raises ValueError if there is none."""
    names = [f"{begin}{collector}{name}" for collector in COLLECTORS]
    return lambda measured: max(measured[name] for name in names if name in measured)


def counted(rounds: Iterable[Flat]) -> dict[str, dict[str, float]]:
    """Return the sums of all accounts, by "the bridge" and "RocketMQ", and by the names of an Account's counts."""
    sums: dict[str, dict[str, float]] = {}
    for measured in rounds:
        for name, value in measured.items():
            scenario, account, count = name.rpartition(".account.")
            if account:
                whose = sums.setdefault("RocketMQ" if scenario.startswith("rocketmq.") else "the bridge", {})
                whose[count] = whose.get(count, 0.0) + value
    return sums


def _cpu_us(scenario: str) -> Formula:
    """Return the formula of the CPU per message in and out."""
    return lambda measured: measured[f"{scenario}.cost.cpu_s"] * 1e6 / measured[f"{scenario}.account.requested"]


def _linear(name: str) -> Formula:
    """Return the formula of the burst of 4 processes to 4 times that of one."""
    return lambda measured: measured[f"{name}.4.from_due_per_s"] / (4 * measured[f"{name}.1.from_due_per_s"])


def _by_collector(key: str, unit: str, part: str, name: str, begin: str = "") -> tuple[Figure, Figure]:
    return (
        Figure(f"{key}_per_s", f"msg/s{unit}, ZGC", part, f"{begin}{name}"),
        Figure(f"{key}_g1_per_s", f"msg/s{unit}, G1", part, f"{begin}{G1_PREFIX}{name}"),
    )


_DRAIN, _COPY, _FULL = "burst.drain_per_s", "copy.per_s", f"steady.{FULL_PER_S}.out_per_s"
FIGURES = (
    Figure("drain_to_rocketmq", "", "rocketmq", _ratio(best(_DRAIN), best(_DRAIN, "rocketmq.")), ">= 1.2"),
    Figure("drain_to_copy", "", "core", _ratio(best(_DRAIN), best(_COPY)), ">= 1.3"),
    Figure("intake_to_copy", "", "core", _ratio(best("intake.per_s"), best(_COPY)), ">= 0.8"),
    Figure("steady_to_copy", "in and out at once", "core", _ratio(best(_FULL), best(_COPY)), ">= 0.6"),
    *(
        Figure(
            f"cpu_{rate}_to_small",
            f"CPU at {rate:,}/s to that of as many transactions as small without a bridge",
            "steady",
            _ratio(_cpu_us(f"steady.{rate}"), f"small.{rate}.cpu_us"),
            "<= 2",
        )
        for rate in GOAL_RATES
    ),
    Figure(
        "p99_to_small",
        "lateness p99 at 10,000/s to that of small transactions alone",
        "steady",
        _ratio("steady.10000.late.p99_ms", "small.10000.acknowledged.p99_ms"),
        "<= 2",
    ),
    Figure("idle_cpu_percent", "% of a core, 16 partitions", "idle", "idle.cpu_percent", "<= 1"),
    Figure("ready_after_kill_s", "s, all pending", "pending", "pending.ready_after_kill_s", "<= 10"),
    Figure(
        "cost_of_pending",
        "CPU of a burst among all pending to one among 10,000",
        "pending",
        _ratio("pending.burst.cost.cpu_s", "pending.burst_before.cost.cpu_s"),
        "<= 1.2",
    ),
    Figure("pending_rss_mb", "MB, all pending", "pending", "pending.rss_mb", "<= 300"),
    *_by_collector("drain", "", "core", _DRAIN),
    *_by_collector("rocketmq_drain", "", "rocketmq", _DRAIN, "rocketmq."),
    *_by_collector("copy_loop", "", "core", _COPY),
    *_by_collector("intake", "", "core", "intake.per_s"),
    *_by_collector("steady", ", in and out at once", "core", _FULL),
    Figure("at_least_once_drain_per_s", "msg/s, ZGC", "at-least-once", "at-least-once.burst.drain_per_s"),
    Figure("seen_lateness_p99_ms", "ms at the consumer, 1,000/s", "steady", "steady.1000.seen_late.p99_ms"),
    Figure("steady_lateness_p99_ms", "ms at 10,000/s", "steady", "steady.10000.late.p99_ms"),
    Figure("small_transaction_p99_ms", "ms, acknowledged, no bridge", "steady", "small.10000.acknowledged.p99_ms"),
    Figure("at_least_once_p99_ms", "ms at 10,000/s", "at-least-once", "at-least-once.steady.10000.late.p99_ms"),
    *(
        Figure(f"cpu_{rate}_us", f"us a message at {rate:,}/s", "steady", _cpu_us(f"steady.{rate}"))
        for rate in GOAL_RATES
    ),
    Figure("ready_after_stop_s", "s, all pending", "pending", "pending.ready_after_stop_s"),
    Figure("ready_after_loss_s", "s, without the data directory", "pending", "pending.ready_after_loss_s"),
    Figure(
        "linear_to_4", "a burst by 4 instances to 4 times one's, a tenth of a core each", "slices", _linear("slices")
    ),
    Figure("workers_to_4", "the same by one command with 4 workers", "workers", _linear("workers")),
    Figure(
        "rocksdb_drain",
        "a burst with RocksDB to the wheel's",
        "engines",
        _ratio("engines.rocksdb.burst.drain_per_s", "engines.wheel.burst.drain_per_s"),
    ),
    *(
        Figure(
            f"rocksdb_{name}_{rate}",
            f"{what} with RocksDB to the wheel's, {rate:,}/s",
            "engines",
            _ratio(*(f"engines.{engine}.steady.{rate}.{measured}" for engine in ("rocksdb", "wheel"))),
        )
        for rate in GOAL_RATES
        for name, what, measured in (("cpu", "CPU", "cost.cpu_s"), ("p99", "lateness p99", "late.p99_ms"))
    ),
)
