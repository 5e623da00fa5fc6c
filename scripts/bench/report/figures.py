"""Figures of results.json: each a formula over the measurements of a round, with its goal.

A figure whose part was not run is None. A ratio is computed within a round, so both of its sides saw the same machine.
"""

import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scripts.bench.measurements import Flat

Formula = Callable[[Flat], float]
_MOST = "pending.most"
"""The most pending timers of any round; rounds with fewer do not count."""
_COMPARE = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}


class Figure(NamedTuple):
    """A figure. `part`: the part of the bench with its numbers; `of`: a measurement's name or a formula."""

    key: str
    unit: str
    part: str
    of: str | Formula
    goal: str = ""
    combine: Callable[[Sequence[float]], float] = statistics.median

    def value(self, rounds: Iterable[Flat]) -> float | None:
        each = self.each(rounds)
        return rounded(self.combine(each)) if each else None

    def each(self, rounds: Iterable[Flat]) -> list[float]:
        found, all_ = [], [*rounds]
        most = max((value for one in all_ for name, value in one.items() if _is_pending_count(name)), default=0.0)
        for measured in all_:
            try:
                found.append(_value(self.of, measured | {_MOST: most}))
            except (KeyError, ValueError):  # not measured
                continue
        return found

    def is_missed(self, value: float | None) -> bool:
        """Return True if the figure has a goal, was measured, and misses it."""
        if value is None or not self.goal:
            return False
        sign, _, limit = self.goal.rpartition(" ")
        return not _COMPARE[sign or "="](value, float(limit))


def rounded(value: float) -> float:
    return round(value, 3 if abs(value) < 10 else 1)


def number_text(value: float) -> str:
    return f"{value:,.2f}" if value != int(value) and abs(value) < 100 else f"{value:,.0f}"


def _value(of: str | Formula, measured: Flat) -> float:
    return measured[of] if isinstance(of, str) else of(measured)


def _is_pending_count(name: str) -> bool:
    return name.startswith("pending.") and name.endswith(".timers")


def _ratio(over: str | Formula, under: str | Formula) -> Formula:
    return lambda measured: _value(over, measured) / _value(under, measured)


def _all(measured: Flat, begin: str, end: str) -> list[float]:
    return [value for name, value in measured.items() if name.startswith(begin) and name.endswith(end)]


def _best(choose: Callable[[list[float]], float], begin: str, end: str) -> Formula:
    """Return the formula of the best of several measurements. It raises ValueError if there are none."""
    return lambda measured: choose(_all(measured, begin, end))


def faults(name: str) -> Formula:
    """Return the formula of the bridge's faults, summed over all parts."""

    def of(measured: Flat) -> float:
        ours = {key: value for key, value in measured.items() if not key.startswith("rocketmq.")}
        values = _all(ours, "", f".account.{name}")
        if not values:
            raise ValueError(f"no account of {name}")
        return sum(values)

    return of


def cpu_us(*scenarios: str) -> Formula:
    """Return the formula of the CPU per message in and out."""

    def of(measured: Flat) -> float:
        spent_s = sum(measured[f"{scenario}.cost.cpu_s"] for scenario in scenarios)
        return spent_s * 1e6 / max(sum(measured[f"{scenario}.account.requested"] for scenario in scenarios), 1.0)

    return of


def _most_pending(name: str) -> Formula:
    """Return the formula of a measurement with the most pending timers of the run."""
    return lambda measured: measured[f"pending.{measured[_MOST]:.0f}.{name}"]


def _linear(measured: Flat) -> float:
    one, most = (measured[f"slices.{count}.from_due_per_s"] for count in (1, 4))
    return most / (4 * one)


_DRAIN, _COPY = "burst.drain_per_s", "copy.per_s"
_STEADY = _best(max, "steady.", ".out_per_s")
_PEER_DRAIN = _best(max, "rocketmq.", ".burst.drain_per_s")

FIGURES = (
    Figure("lateness_p50_ms", "ms", "core", "spread.late.p50_ms"),
    Figure("lateness_p99_ms", "ms", "core", "spread.late.p99_ms", "<= 20"),
    Figure("lateness_max_ms", "ms", "core", "spread.late.max_ms"),
    Figure("seen_lateness_p99_ms", "ms at the consumer", "core", "spread.seen_late.p99_ms"),
    Figure("drain_per_s", "msg/s", "core", _DRAIN),
    Figure("burst_from_due_per_s", "msg/s, from its due time to its last", "core", "burst.from_due_per_s"),
    Figure("intake_per_s", "msg/s", "core", "intake.per_s"),
    Figure("copy_loop_per_s", "msg/s", "core", _COPY),
    Figure("drain_to_copy", "", "core", _ratio(_DRAIN, _COPY), ">= 0.4"),
    Figure("intake_to_copy", "", "core", _ratio("intake.per_s", _COPY), ">= 0.4"),
    Figure("cpu_us_per_message", "us, in and out", "core", cpu_us("spread", "burst"), "<= 20"),
    Figure("copy_cpu_us_per_message", "us, in and out, no timers", "core", "copy.cpu_us"),
    Figure("named_drain_per_s", "msg/s", "core", "named.drain_per_s"),
    Figure("named_cpu_us_per_message", "us a delivery, in and out, 50 % ids, 10 % cancelled", "core", cpu_us("named")),
    Figure("peak_rss_mb", "MB", "core", "core.peak_rss_mb"),
    Figure("steady_per_s", "msg/s, in and out at once", "steady", _STEADY),
    Figure("steady_to_copy", "", "steady", _ratio(_STEADY, _COPY), ">= 0.5"),
    Figure("steady_lateness_p99_ms", "ms at 10,000/s", "steady", "steady.10000.late.p99_ms", "<= 20"),
    Figure("small_transaction_p99_ms", "ms, acknowledged, no bridge", "steady", "small.acknowledged.p99_ms"),
    Figure("disk_lateness_p99_ms", "ms at 10,000/s, Kafka's data on the disk", "disk", "disk.steady.10000.late.p99_ms"),
    Figure(
        "disk_small_transaction_p99_ms",
        "ms, acknowledged, no bridge, on the disk",
        "disk",
        "disk.small.acknowledged.p99_ms",
    ),
    Figure("steady_cpu_us_per_message", "us at 10,000/s", "steady", cpu_us("steady.10000")),
    Figure("small_transaction_cpu_us", "us, out alone, 10,000/s, no bridge", "steady", "small.cpu_us"),
    Figure(
        "at_least_once_lateness_p99_ms",
        "ms at 10,000/s",
        "at-least-once",
        "at-least-once.steady.10000.late.p99_ms",
        "<= 10",
    ),
    Figure("at_least_once_drain_per_s", "msg/s", "at-least-once", "at-least-once.burst.drain_per_s"),
    Figure("backlog_per_s", "msg/s, from the start after an outage", "outage", "outage.per_s"),
    Figure("pending_1m_rss_mb", "MB", "pending", "pending.1000000.rss_mb"),
    Figure("pending_10m_rss_mb", "MB", "pending", "pending.10000000.rss_mb", "<= 500"),
    Figure("ready_after_stop_s", "s, with the most pending", "pending", _most_pending("ready_after_stop_s")),
    Figure("ready_after_kill_s", "s, with the most pending", "pending", _most_pending("ready_after_kill_s"), "<= 10"),
    Figure(
        "ready_after_kill_static_s",
        "s, with static_membership",
        "pending",
        _most_pending("ready_after_kill_static_s"),
        "<= 10",
    ),
    Figure("ready_after_loss_s", "s, without the data directory", "pending", _most_pending("ready_after_loss_s")),
    Figure("linear_to_4", "a burst by 4 instances to 4 times one's, a tenth of a core each", "slices", _linear),
    Figure(
        "cost_of_pending",
        "CPU of a burst among them to one alone",
        "pending",
        _ratio(_most_pending("burst.cost.cpu_s"), _most_pending("burst_before.cost.cpu_s")),
        "<= 1.2",
    ),
    Figure("rocketmq_drain_per_s", "msg/s, its better tick", "rocketmq", _PEER_DRAIN),
    Figure(
        "rocketmq_lateness_p99_ms",
        "ms at the consumer, its better tick",
        "rocketmq",
        _best(min, "rocketmq.", ".spread.seen_late.p99_ms"),
    ),
    Figure("rocketmq_backlog_per_s", "msg/s, from the start after an outage", "rocketmq", "rocketmq.1000.outage.per_s"),
    Figure("drain_to_rocketmq", "", "rocketmq", _ratio(_DRAIN, _PEER_DRAIN), ">= 1.2"),
    Figure("early", "", "core", faults("early"), "0", sum),
    Figure("lost", "", "core", faults("lost"), "0", sum),
    Figure("duplicates", "", "core", faults("duplicates"), "0", sum),
    Figure("strangers", "", "core", faults("strangers"), "0", sum),
    Figure("cancelled_but_delivered", "", "core", "named.cancelled_but_delivered", "0", sum),
)
