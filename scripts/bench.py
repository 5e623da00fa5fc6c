"""`make bench`: how late, how fast, how dear, beside a plain copy loop as the limit, all in one run on one broker.

    .run/bench/results.json    the figures below, machine and versions, the sizes, and every round
    .run/bench/round-N/        bridge.log, and the broker's folder of the last round

Scenarios are in scripts.scenarios. With --repeat K each figure is the median of K rounds, but for lost, duplicates and
early, which are sums. Exit code 3 when a message was lost, doubled or early; speed alone fails nothing.

    make bench ARGS="--messages 20000 --spread-seconds 5"      in a minute
"""

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bridge.embedded import find_java
from bridge.kafka_jars import KAFKA_VERSION
from scripts import command, kafka_io, processes
from scripts.figures import Account
from scripts.scenarios import TRANSACTION_SIZE, Round, Sizes, run_round

FOLDER = Path(".run/bench")
BUSY_SHARE = 0.15
"""More than this of the machine used by others: the figures are marked."""


class Figure(NamedTuple):
    """A key of results.json. `goal` is what is expected of it, told for people and tested."""

    key: str
    unit: str
    of: Callable[[Round], float]
    combine: Callable[[Sequence[float]], float] = statistics.median
    goal: str = ""
    reached: Callable[[float], bool] | None = None


def _faults(name: str) -> Callable[[Round], float]:
    return lambda r: sum(getattr(account, name) for account in _accounts(r))


def _accounts(r: Round) -> tuple[Account, ...]:
    return r.spread.account, r.burst.account, r.named.account


def _none(value: float) -> bool:
    return value == 0


def _two_fifths(value: float) -> bool:
    return value >= 0.4


FIGURES = (
    Figure("lateness_p50_ms", "ms", lambda r: r.spread.late.p50_ms),
    Figure("lateness_p99_ms", "ms", lambda r: r.spread.late.p99_ms, goal="<= 50", reached=lambda v: v <= 50),
    Figure("lateness_max_ms", "ms", lambda r: r.spread.late.max_ms),
    Figure("drain_per_s", "msg/s", lambda r: r.burst.drain_per_s),
    Figure("intake_per_s", "msg/s", lambda r: r.intake.per_s),
    Figure("copy_loop_per_s", "msg/s", lambda r: r.copy_per_s),
    Figure(
        "drain_to_copy", "", lambda r: r.burst.drain_per_s / r.copy_per_s, goal=">= 0.4", reached=lambda v: v >= 0.4
    ),
    Figure("intake_to_copy", "", lambda r: r.intake.per_s / r.copy_per_s, goal=">= 0.4", reached=_two_fifths),
    Figure(
        "cpu_us_per_message",
        "us, in and out",
        lambda r: (r.spread.cpu_s + r.burst.cpu_s) * 1e6 / (r.spread.account.requested + r.burst.account.requested),
    ),
    Figure("named_drain_per_s", "msg/s", lambda r: r.named.drain_per_s),
    Figure(
        "named_cpu_us_per_message",
        "us, in and out, 50 % ids, 10 % cancels",
        lambda r: r.named.cpu_s * 1e6 / (r.named.account.requested + 2 * r.named.cancelled),
    ),
    Figure("peak_rss_mb", "MB", lambda r: r.peak_rss_mb),
    Figure("early", "", _faults("early"), sum, "0", _none),
    Figure("lost", "", _faults("lost"), sum, "0", _none),
    Figure("duplicates", "", _faults("duplicates"), sum, "0", _none),
    Figure("cancelled_but_delivered", "", lambda r: r.named.cancelled_but_delivered, sum, "0", _none),
)


def bench(asked: argparse.Namespace) -> int:
    console = Console()
    sizes = Sizes(asked.messages, asked.spread_seconds, asked.body_bytes, asked.partitions)
    with command.fresh(FOLDER) as folder:
        busy_before = _busy_share()
        rounds = [_round(folder, number, asked.repeat, sizes, console) for number in range(1, asked.repeat + 1)]
        results = _results(rounds, sizes, busy_before)
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(results, rounds))
    for remark in _remarks(rounds, busy_before):
        console.print(f"[yellow]{remark}[/]")
    console.print(f"Figures and machine: {folder / 'results.json'}")
    return command.FAULT_FOUND if any(_broken(r) for r in rounds) else 0


def _round(folder: Path, number: int, of: int, sizes: Sizes, console: Console) -> Round:
    place = folder / f"round-{number}"
    say = console.print
    made = run_round(place, sizes, lambda step: say(f"{time.strftime('%H:%M:%S')}  round {number} of {of}  {step}"))
    for large in ("kafka", "timer-data"):
        shutil.rmtree(place / large, ignore_errors=True)
    return made


def _broken(made: Round) -> bool:
    return not all(account.clean for account in _accounts(made)) or made.named.cancelled_but_delivered > 0


def _results(rounds: Sequence[Round], sizes: Sizes, busy_before: float) -> dict[str, object]:
    values = {figure.key: _value(figure, rounds) for figure in FIGURES}
    machine = {
        **_machine(),
        "busy_before": round(busy_before, 3),
        "others_share": round(max(r.others_share for r in rounds), 3),
    }
    told = {**dataclasses.asdict(sizes), "repeat": len(rounds), "transaction_size_of_copy_loop": TRANSACTION_SIZE}
    environment = {name: text for name, text in os.environ.items() if name.startswith("TIMER_BRIDGE_")}
    return {
        **values,
        "machine": machine,
        "versions": _versions(),
        "settings": {**told, "environment": environment},
        "rounds": [_plain(dataclasses.asdict(r)) for r in rounds],
    }


def _value(figure: Figure, rounds: Sequence[Round]) -> float:
    value = figure.combine([figure.of(r) for r in rounds])
    return round(value, 3 if value < 10 else 1)


def _plain(value: object) -> object:
    """Named tuples become objects, as dataclasses have."""
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return _plain(value._asdict())
        case float():
            return round(value, 3)
    return value


def _table(results: dict[str, object], rounds: Sequence[Round]) -> Table:
    title = "exactly once" if len(rounds) == 1 else f"exactly once, medians of {len(rounds)} rounds"
    table = Table("figure", title=title)
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("expected")
    if len(rounds) > 1:
        table.add_column("rounds")
    for figure in FIGURES:
        value = float(str(results[figure.key]))
        colour = "" if figure.reached is None else "[green]" if figure.reached(value) else "[red]"
        each = ["  ".join(_number(figure.of(r)) for r in rounds)] if len(rounds) > 1 else []
        table.add_row(figure.key, colour + _number(value), figure.unit, figure.goal, *each)
    return table


def _number(value: float) -> str:
    return f"{value:,.2f}" if value != int(value) and value < 100 else f"{value:,.0f}"


def _remarks(rounds: Sequence[Round], busy_before: float) -> list[str]:
    found = []
    others = max(r.others_share for r in rounds)
    if max(busy_before, others) > BUSY_SHARE:
        found.append(
            f"The machine was not quiet: {busy_before:.0%} busy before, {others:.0%} used by others meanwhile."
        )
    if not all(s.taken_in_before_due for r in rounds for s in (r.spread, r.burst, r.named)):
        found.append("Intake was not over when the first timer was due: lateness and drain have it in them.")
    strangers = sum(account.strangers for r in rounds for account in _accounts(r))
    if strangers:
        found.append(f"{strangers:,} deliveries name a request that was never made.")
    return found


def _busy_share(over_s: float = 1.0) -> float:
    before = processes.machine()
    time.sleep(over_s)
    now = processes.machine()
    return (now.busy_s - before.busy_s) / max(now.total_s - before.total_s, 0.01)


def _machine() -> dict[str, object]:
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
    }


def _first(path: str, name: str) -> str | None:
    """The first `name : value` of a file under /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _versions() -> dict[str, str]:
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False).stderr
    packages = ("kafka-timer-bridge", "confluent-kafka", "numpy", "pydantic")
    return {
        "kafka": KAFKA_VERSION,
        "java": java.partition("\n")[0],
        "python": platform.python_version(),
        "librdkafka": kafka_io.librdkafka_version(),
        **{package: metadata.version(package) for package in packages},
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure the bridge beside a plain copy loop.")
    parser.add_argument("--messages", type=_at_least(1_000), default=100_000, help="in each scenario; default 100000")
    parser.add_argument("--spread-seconds", type=float, default=30.0, help="due times of `spread`; default 30")
    parser.add_argument("--body-bytes", type=_at_least(16), default=256, help="of a message's value; default 256")
    parser.add_argument("--partitions", type=_at_least(1), default=4, help="of every topic; default 4, as the bridge's")
    parser.add_argument("--repeat", type=_at_least(1), default=1, help="rounds; figures are medians; default 1")
    return parser.parse_args(argv)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parse(argv)
    return command.run("bench", lambda: bench(asked))


if __name__ == "__main__":
    sys.exit(main())
