"""docs/benchmarks.md: figures with their goals, and all scenarios in one table, from the rounds of a run.

A figure is a measurement, or the ratio of two within a try; the page shows the median of the tries, lowest and highest.
What was not measured is left out.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench.scenarios import Flat
from scripts.bench.suite import FULL_PER_S, GOAL_RATES, SHAPES
from scripts.bench.topic_fixture import OTHER

PAGE = Path("docs/benchmarks.md")
METHOD = Path(__file__).with_name("method.md")
FAULTS = ("early", "lost", "duplicates", "strangers")
"""Counts of an account that have to be 0."""
_DRAIN, _FULL = "burst.drain_per_s", f"steady.{FULL_PER_S}.out_per_s"
_COLUMNS = (
    *("sent_per_s", "out_per_s", "drain_per_s", "from_due_per_s", "late.p50_ms", "late.p99_ms", "late.max_ms"),
    *("acknowledged.p50_ms", "acknowledged.p99_ms", "cpu_us", "broker_us"),
)
"""Measurements in the table of scenarios."""


class Figure(NamedTuple):
    """The measurement `of`, or its ratio `to` another one."""

    key: str
    unit: str
    of: str
    to: str = ""
    goal: str = ""

    def values(self, rounds: Sequence[Flat]) -> list[float]:
        found = [one | {"": 1.0} for one in rounds]
        return [one[self.of] / one[self.to] for one in found if self.of in one and self.to in one]

    def is_missed(self, value: float) -> bool:
        sign, _, limit = self.goal.partition(" ")
        return bool(self.goal) and {"<=": value > float(limit), ">=": value < float(limit)}[sign]


_PENDING = {
    "ready_after_stop_s": "s, all pending",
    "ready_after_loss_s": "s, all pending, without the stores",
    "disk_mb": "MB, all pending",
    "rss_empty_mb": "MB, 10,000 pending",
}


def _all_figures() -> Iterator[Figure]:
    yield Figure("drain_to_rocketmq", "", _DRAIN, f"rocketmq.{_DRAIN}", ">= 1.2")
    from_due = "burst.from_due_per_s"
    yield Figure("from_due_to_rocketmq", "", from_due, f"rocketmq.{from_due}", ">= 2.2")
    for rate, goal in zip(GOAL_RATES, ("<= 1", "<= 0.8"), strict=True):
        total, unit = f"steady.{rate}.total_us", f"CPU of bridge and broker at {rate:,}/s"
        yield Figure(f"cpu_{rate}_to_rocketmq", unit, total, f"rocketmq.{total}", goal)
        cpu, plain = f"steady.{rate}.cpu_us", f"plain.{rate}.cpu_us"
        yield Figure(f"cpu_{rate}_to_plain", f"CPU at {rate:,}/s", cpu, plain, "<= 2")
    yield Figure("p99_to_plain", "10,000/s", "steady.10000.late.p99_ms", "plain.10000.acknowledged.p99_ms", "<= 2")
    yield Figure("idle_cpu_percent", "% of a core, 16 partitions", "idle.cpu_percent", goal="<= 1")
    yield Figure("ready_after_kill_s", "s, all pending", "pending.ready_after_kill_s", goal="<= 10")
    among, alone = "pending.burst.cpu_us", "pending.burst_before.cpu_us"
    yield Figure("cost_of_pending", "CPU of a burst among all pending to one among 10,000", among, alone, "<= 1.2")
    yield Figure("pending_rss_mb", "MB, all pending", "pending.rss_mb", goal="<= 300")
    speeds = {"drain": _DRAIN, "rocketmq_drain": f"rocketmq.{_DRAIN}", "intake": "intake.per_s", "steady": _FULL}
    for key, name in speeds.items():
        yield Figure(f"{key}_per_s", "msg/s", name)
    for rate in GOAL_RATES:
        yield Figure(f"lateness_{rate}_p99_ms", f"ms at {rate:,}/s", f"steady.{rate}.late.p99_ms")
        yield Figure(f"cpu_{rate}_us", f"us a message at {rate:,}/s", f"steady.{rate}.cpu_us")
    for partitions, targets in SHAPES:
        for name in ("late.p99_ms", "cpu_us", "broker_us"):
            scale = f"scale.{partitions}x{targets}"
            yield Figure(f"{scale}.{name}_to_plain", "", f"{scale}.bridge.{name}", f"{scale}.plain.{name}")
    for name, unit in _PENDING.items():
        yield Figure(name, unit, f"pending.{name}")


FIGURES = tuple(_all_figures())


def text(found: Sequence[float]) -> str:
    """Return the median, with lowest and highest if they differ; empty without values."""
    if not found:
        return ""
    median, low, high = (
        f"{value:,.2f}" if abs(value) < 100 and value != int(value) else f"{value:,.0f}"
        for value in (statistics.median(found), min(found), max(found))
    )
    return median if low == high else f"{median} ({low}–{high})"


def of_side(rounds: Sequence[Flat], side: str) -> list[Flat]:
    """Return the measurements of this bridge (""), or those of the other one (OTHER), without their prefix."""
    return [{n.removeprefix(side): v for n, v in one.items() if n.startswith(OTHER) == bool(side)} for one in rounds]


def counted(rounds: Sequence[Flat]) -> dict[str, dict[str, int]]:
    """Return the sums of all accounts, by whose they are, and by the names of an Account's counts."""
    sums: dict[str, dict[str, int]] = defaultdict(Counter, {"the bridge": Counter()})
    for name, value in (item for measured in rounds for item in measured.items()):
        scenario, account, count = name.rpartition(".account.")
        if account and "plain." not in scenario and not scenario.endswith(".plain"):
            sums["RocketMQ" if scenario.startswith("rocketmq.") else "the bridge"][count] += int(value)
    return sums


def _figures(rounds: Sequence[Flat], *, is_quick: bool) -> Iterator[Sequence[str]]:
    """is_quick: leave out goals and ratios, which so few messages do not give."""
    own, other = of_side(rounds, ""), of_side(rounds, OTHER)
    has_other, is_whole = any(other), not is_quick
    others = ["the other bridge"] * has_other + ["this to the other"] * (has_other and is_whole)
    yield ["figure", "median", "unit", *["goal"] * is_whole, *others]
    for figure in FIGURES:
        if (found := figure.values(own)) and (is_whole or not figure.to):
            missed = " **missed**" if figure.is_missed(statistics.median(found)) else ""
            theirs = figure.values(other)
            row = [f"`{figure.key}`", text(found), figure.unit, *[figure.goal + missed] * is_whole]
            row += [text(theirs)] * has_other
            row += [text([a / b for a, b in zip(found, theirs, strict=False)])] * (len(others) > 1)
            yield row


def _scenarios(rounds: Sequence[Flat]) -> Iterator[Sequence[str]]:
    yield ("scenario", *_COLUMNS)
    for name in rounds[0]:
        scenario, requested, _ = name.partition(".account.requested")
        if requested:
            values = (Figure("", "", f"{scenario}.{column}").values(rounds) for column in _COLUMNS)
            yield f"`{scenario}`", *map(text, values)


def _table(rows: Iterator[Sequence[str]]) -> str:
    head, *lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * (head.count(" | ") + 1), *lines])


def page(results: Mapping[str, Any]) -> str:
    rounds, settings = results["rounds"], results["settings"]
    sums = {whose: ", ".join(f"{n:,} {name}" for name, n in of.items()) for whose, of in counted(rounds).items() if of}
    counts = "; ".join(f"{whose}: {listed}" for whose, listed in sums.items())
    return f"""\
# Benchmarks

`make bench` on {results["machine"]}. {results["versions"]}. {settings["messages"]} messages of
{settings["body_bytes"]} bytes a scenario, {settings["partitions"]} partitions; medians of {settings["tries"]} tries in
one run, lowest and highest.

{"".join(f"**{part} was not measured:** {why}" + chr(10) * 2 for part, why in results["failed"].items())}\
{_table(_figures(rounds, is_quick=settings["quick"] == "True"))}

Counted by `timer-origin`: {counts}.

## Scenarios

{_table(_scenarios(of_side(rounds, "")))}

{METHOD.read_text()}"""
