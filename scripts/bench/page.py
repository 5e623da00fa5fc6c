"""docs/benchmarks.md: figures with their goals, and tables, from the rounds of a run.

A figure is a measurement, or the ratio of two within a try; the page shows the median of the tries, lowest and highest.
What was not measured is left out. In names, `*` is any of Java's collectors: the highest measurement counts.
"""

import operator
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench.scenarios import Flat
from scripts.bench.suite import FULL_PER_S, GOAL_RATES, SHAPES
from scripts.bench.topic_fixture import COLLECTORS, G1_PREFIX, OTHER, ZGC

PAGE = Path("docs/benchmarks.md")
FAULTS = ("early", "lost", "duplicates", "strangers")
"""Counts of an account that have to be 0."""
BUSY_SHARE = 0.15
_COMPARE = {"<=": operator.le, ">=": operator.ge}
_COSTS = {"cpu_us": "cost.cpu_s", "broker_us": "broker_cpu_s"}
"""CPU of a message, by the measurement of all of them."""
_DRAIN, _FULL = "burst.drain_per_s", f"steady.{FULL_PER_S}.out_per_s"
_ROWS = {
    "Steady load": ("steady.N", ("sent_per_s", "out_per_s", "late.p50_ms", "late.p99_ms", "late.max_ms", "cpu_us")),
    "The same by RocketMQ": ("rocketmq.steady.N", ("sent_per_s", "out_per_s", "late.p50_ms", "late.p99_ms")),
    "Plain transactions": ("plain.N", ("records", "acknowledged.p50_ms", "acknowledged.p99_ms", "cpu_us")),
    "Bodies of N bytes": ("bodies.N", ("drain_per_s", "from_due_per_s", "first_late_ms", "cpu_us")),
    "N partition": ("partitions.N", ("drain_per_s", "from_due_per_s", "first_late_ms", "cpu_us")),
    "Scale, the bridge: targets x partitions": (
        "scale.N.bridge",
        ("late.p50_ms", "late.p99_ms", "cpu_us", "broker_us"),
    ),
    "Scale, plain transactions": ("scale.N.plain", ("late.p50_ms", "late.p99_ms", "cpu_us", "broker_us")),
}
"""Tables: names of measurements, N for the first column, and the columns."""


class Figure(NamedTuple):
    """The measurement `of`, or its ratio `to` another one."""

    key: str
    unit: str
    of: str
    to: str = ""
    goal: str = ""

    def values(self, rounds: Sequence[Flat]) -> list[float]:
        return [
            a / b for one in rounds for a in numbers(self.of, one) for b in (numbers(self.to, one) if self.to else [1])
        ]

    def is_missed(self, value: float) -> bool:
        sign, _, limit = self.goal.partition(" ")
        return bool(self.goal) and not _COMPARE[sign](value, float(limit))


FIGURES = (
    Figure("drain_to_rocketmq", "", f"*{_DRAIN}", f"rocketmq.*{_DRAIN}", ">= 1.2"),
    Figure("drain_to_copy", "", f"*{_DRAIN}", "*copy.per_s", ">= 1.3"),
    Figure("intake_to_copy", "", "*intake.per_s", "*copy.per_s", ">= 0.8"),
    Figure("steady_to_copy", "in and out at once", f"*{_FULL}", "*copy.per_s", ">= 0.6"),
    *(
        Figure(f"cpu_{rate}_to_plain", f"CPU at {rate:,}/s", f"steady.{rate}.cpu_us", f"plain.{rate}.cpu_us", "<= 2")
        for rate in GOAL_RATES
    ),
    Figure("p99_to_plain", "10,000/s", "steady.10000.late.p99_ms", "plain.10000.acknowledged.p99_ms", "<= 2"),
    Figure("idle_cpu_percent", "% of a core, 16 partitions", "idle.cpu_percent", goal="<= 1"),
    Figure("ready_after_kill_s", "s, all pending", "pending.ready_after_kill_s", goal="<= 10"),
    Figure(
        "cost_of_pending",
        "CPU of a burst among all pending to one among 10,000",
        "pending.burst.cost.cpu_s",
        "pending.burst_before.cost.cpu_s",
        "<= 1.2",
    ),
    Figure("pending_rss_mb", "MB, all pending", "pending.rss_mb", goal="<= 300"),
    *(
        Figure(f"{key}{suffix}_per_s", f"msg/s, {collector}", name.replace("*", begin))
        for key, name in {
            "drain": f"*{_DRAIN}",
            "rocketmq_drain": f"rocketmq.*{_DRAIN}",
            "copy_loop": "*copy.per_s",
            "intake": "*intake.per_s",
            "steady": f"*{_FULL}",
        }.items()
        for begin, suffix, collector in ((ZGC, "", "ZGC"), (G1_PREFIX, "_g1", "G1"))
    ),
    *(Figure(f"lateness_{rate}_p99_ms", f"ms at {rate:,}/s", f"steady.{rate}.late.p99_ms") for rate in GOAL_RATES),
    *(Figure(f"cpu_{rate}_us", f"us a message at {rate:,}/s", f"steady.{rate}.cpu_us") for rate in GOAL_RATES),
    *(
        Figure(f"{scale}.{name}_to_plain", "", f"{scale}.bridge.{name}", f"{scale}.plain.{name}")
        for scale in (f"scale.{targets}x{partitions}" for targets, partitions in SHAPES)
        for name in ("late.p99_ms", "cpu_us", "broker_us")
    ),
    *(
        Figure(name, unit, f"pending.{name}")
        for name, unit in {
            "ready_after_stop_s": "s, all pending",
            "ready_after_loss_s": "s, all pending, without the stores",
            "taken_in_per_s": "msg/s, until all are pending",
            "look_up_p99_ms": "ms, one of all pending by its id, HTTP",
            "disk_mb": "MB, all pending",
            "rss_empty_mb": "MB, 10,000 pending",
        }.items()
    ),
)


def numbers(name: str, measured: Flat) -> list[float]:
    """Return the measurement of a try, computed if it is a CPU per message; none if it was not measured."""
    places = [name.replace("*", collector) for collector in COLLECTORS]
    if found := [measured[place] for place in places if place in measured]:
        return [max(found)]
    scenario, _, cost = name.rpartition(".")
    spent_s, count = (measured.get(f"{scenario}.{end}") for end in (_COSTS.get(cost, cost), "account.requested"))
    return [spent_s * 1e6 / count] if spent_s is not None and count else []


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
    sums: dict[str, dict[str, int]] = {"the bridge": {}}
    for name, value in (item for measured in rounds for item in measured.items()):
        scenario, account, count = name.rpartition(".account.")
        if account and "plain." not in scenario and not scenario.endswith(".plain"):
            whose = sums.setdefault("RocketMQ" if scenario.startswith("rocketmq.") else "the bridge", {})
            whose[count] = whose.get(count, 0) + int(value)
    return sums


def _figures(rounds: Sequence[Flat]) -> Iterator[Sequence[str]]:
    own, other = of_side(rounds, ""), of_side(rounds, OTHER)
    yield ("figure", "median", "unit", "goal", *(("the other bridge", "this to the other") if any(other) else ()))
    for figure in FIGURES:
        if found := figure.values(own):
            goal = f"{figure.goal} **missed**" if figure.is_missed(statistics.median(found)) else figure.goal
            others = figure.values(other)
            ratios = [a / b for a, b in zip(found, others, strict=False)]
            yield (
                f"`{figure.key}`",
                text(found),
                figure.unit,
                goal,
                *((text(others), text(ratios)) if any(other) else ()),
            )


def _rows(rounds: Sequence[Flat], pattern: str, columns: Sequence[str]) -> Iterator[Sequence[str]]:
    match = re.compile(re.escape(pattern).replace("N", r"([^.]+)") + r"\..*")
    places = {found[1] for one in rounds for name in one if (found := match.fullmatch(name))}
    if places:
        yield ("", *columns)
    for place in sorted(places, key=lambda each: [int(digits) for digits in re.findall(r"\d+", each)]):
        scenario = pattern.replace("N", place)
        yield place, *(text(Figure("", "", f"{scenario}.{name}").values(rounds)) for name in columns)


def _table(rows: Iterator[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[:1], "|" + " --- |" * (lines[0].count(" | ") + 1), *lines[1:]]) if lines else ""


def page(results: Mapping[str, Any]) -> str:
    """Return the page for the results of a run."""
    rounds, settings = results["rounds"], results["settings"]
    busy = {part: share for part, share in results["others_share"].items() if share > BUSY_SHARE}
    tables = {title: _table(_rows(of_side(rounds, ""), *rows)) for title, rows in _ROWS.items()}
    counts = "; ".join(
        f"{whose}: {', '.join(f'{count:,} {name}' for name, count in of.items())}"
        for whose, of in counted(rounds).items()
        if of
    )
    return f"""\
# Benchmarks

`make bench` on {results["machine"]}. {results["versions"]}. {settings["messages"]} messages of
{settings["body_bytes"]} bytes a scenario, {settings["partitions"]} partitions; medians of {settings["tries"]} tries in
one run, lowest and highest.

{"".join(f"**{part} was not measured:** {why}" + chr(10) * 2 for part, why in results["failed"].items())}\
{f"**The machine was not quiet, only ratios count:** others used {busy} of it." + chr(10) * 2 if busy else ""}\
{_table(_figures(rounds))}

Counted by `timer-origin`: {counts}.

{"".join(f"## {title}{chr(10) * 2}{table}{chr(10) * 2}" for title, table in tables.items() if table)}\
{_METHOD}"""


_METHOD = """\
## Method

Each part has a new embedded broker on loopback, one copy of each topic, and a bridge with its defaults in a process of
its own. Broker, bridge and sender share the machine. Servers write to memory, the bridge to the disk. The broker is
warmed up by 20,000 messages, then 2,000 and 30,000 a second. Both sides of a ratio are measured in turn on the same
servers. The highest rates are measured with both of Java's collectors, and the better one of each side counts.

- **Lateness**: append time on the target topic minus the due time, by the broker's clock.
- **Drain**: the rate from the first to the last delivery of a burst that is due in one millisecond, without a reader.
- **Steady**: each message is due 2 s after it is sent. *out* is the rate while others are still sent; 80,000/s is more
  than the bridge moves. *cpu_us* is CPU of the bridge per message in and out, *broker_us* CPU of the broker.
- **Plain transactions**: as many and as small as those of the bridge, by two producers in turn, without a bridge;
  *acknowledged* is since the begin of a transaction. In **scale** they send the same records to the same targets.
- **Copy loop**: one thread that consumes, produces and commits in transactions of 2,000, and waits for each commit.
- **Pending**: half of the timers have ids. Starts are from the launch to the ready line: after SIGTERM, after SIGKILL,
  without the stores.
- **RocketMQ**: its defaults, except for 1 to 2 GB of heap and 256 messages a fetch from memory. Bursts have its default
  tick of 1 s, with which they leave faster, steady loads a tick of 100 ms. One client has 256 sends in flight. Its
  timer delivers at least once, the bridge in transactions.
"""
