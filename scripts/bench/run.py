"""`make bench`: how late, how fast, how dear, beside a plain copy loop (the limit) and RocketMQ (the peer), in one run.

    .run/bench/results.json        figures, machine and versions, the sizes, and all that each round measured
    .run/bench/round-N/PART/       the logs of bridge and brokers

Scenarios are in scripts.bench.scenarios, the parts of a run in scripts.bench.suite. With --repeat K each figure is the
median of K rounds, but for faults, which are sums. What was not measured is null, and `reasons` says why. Exit code 3
when a message was lost, doubled or early, 1 when a part of ours could not be measured; speed alone fails nothing.

    make bench ARGS="--only core --messages 20000 --spread-seconds 5"      in a minute
    make bench ARGS=--full                                                 three rounds, and 10 M pending in the first
    make bench ARGS="--add slices disk"                                    these again, into the results of the last run
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bridge.dev.embedded_kafka import find_java
from bridge.dev.kafka_jars import KAFKA_VERSION
from bridge.errors import BridgeError, SettingsError
from scripts.bench.measurements import Flat, Sizes
from scripts.bench.report.figures import FIGURES, number_text
from scripts.bench.rocketmq.jars import ROCKETMQ_VERSION
from scripts.bench.scenarios import TRANSACTION_SIZE
from scripts.bench.servers import MEMORY, BenchServers
from scripts.bench.suite import PARTS, PENDING, PENDING_FULL
from scripts.common import command, kafka_io, processes

FOLDER = Path(".run/bench")
BUSY_SHARE = 0.15
"""If other processes use more than this share of the machine, the figures are marked."""
FAULTS = ("early", "lost", "duplicates", "strangers", "cancelled_but_delivered")
BY_ROOT = ("rocketmq", "slices")
"""Parts that need root: without root, a run is complete without them."""


class Round(NamedTuple):
    """One round. `failed`: errors by part; `parts`: names of the measurements by part."""

    measured: Flat
    failed: dict[str, str]
    parts: dict[str, list[str]]


def bench(asked: argparse.Namespace) -> int:
    console = Console()
    last = _last_run() if asked.add else None
    former = _former(asked, last) if last else []
    rounds, results = former.copy(), dict[str, object]()
    with command.fresh(FOLDER) as folder:
        if last:
            _keep(folder, last)  # until there is something newer
        busy_before = _busy_share()
        for number in range(1, asked.repeat + 1):
            made = _round(folder, number, asked, console)
            if former:
                rounds[number - 1] = _added(former[number - 1], made, asked.only)
            else:
                rounds.append(made)
            results = _results(rounds, asked, busy_before)
            _keep(folder, results)
    console.print(_table(results, rounds))
    for remark in _remarks(rounds, results):
        console.print(f"[yellow]{remark}[/]", highlight=False)
    console.print(f"Figures and machine: {folder / 'results.json'}")
    return _exit_code(results, rounds)


def _keep(folder: Path, results: Mapping[str, object]) -> None:
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")


def _last_run() -> dict[str, Any]:
    """Return the results of the last run. Raises SettingsError."""
    try:
        found: dict[str, Any] = json.loads((FOLDER / "results.json").read_text())
    except (OSError, ValueError):
        raise SettingsError("there is no last run to add to: leave --add out") from None
    return found


def _former(asked: argparse.Namespace, told: Mapping[str, Any]) -> list[Round]:
    """The rounds of the last run, whose sizes are `asked` from here on. Raises SettingsError."""
    machine, versions = _machine(), _versions()
    if versions != told["versions"] or any(told["machine"][name] != value for name, value in machine.items()):
        raise SettingsError("the last run was on another machine, or of other versions: leave --add out")
    for name, value in told["settings"].items():
        if name in vars(asked) and name not in ("add", "memory"):
            setattr(asked, name, value)
    if _memory(asked) != told["settings"]["memory"]:
        raise SettingsError(
            f"the servers of the last run wrote to {told['settings']['memory']}: give the same --memory"
        )
    asked.repeat = len(told["rounds"])
    asked.add = sorted({*asked.add, *told["settings"]["add"]})
    return [Round(one["measured"], one["failed"], one["parts"]) for one in told["rounds"]]


def _added(former: Round, new: Round, parts: Sequence[str]) -> Round:
    again = {name for part in parts for name in former.parts.get(part, ())}
    kept = {name: value for name, value in former.measured.items() if name not in again}
    failed = {part: why for part, why in former.failed.items() if part not in parts}
    return Round(kept | new.measured, failed | new.failed, former.parts | new.parts)


def _round(folder: Path, number: int, asked: argparse.Namespace, console: Console) -> Round:
    made = Round({}, {}, {})
    for name in asked.only:
        place = folder / f"round-{number}" / name

        def say(step: str, name: str = name) -> None:
            line = f"{time.strftime('%H:%M:%S')}  round {number} of {asked.repeat}  {name}  {step}"
            console.print(line, highlight=False)

        say("")
        machine, ours_s, begin_s = processes.machine(), _own_s(), time.perf_counter()
        found: Flat = {}
        try:
            found = PARTS[name](_place(place, number, asked, say))
        except BridgeError as trouble:
            say(f"could not be measured: {trouble}")
            made.failed[name] = str(trouble)
        now = processes.machine()
        others_s = now.busy_s - machine.busy_s - (_own_s() - ours_s)
        found[f"{name}.others_share"] = max(others_s, 0.0) / max(now.total_s - machine.total_s, 0.01)
        found[f"{name}.took_s"] = time.perf_counter() - begin_s
        made.measured.update(found)
        made.parts[name] = list(found)
        _throw_away_data(place)
    return made


def _place(folder: Path, number: int, asked: argparse.Namespace, say: Callable[[str], None]) -> BenchServers:
    sizes = Sizes(asked.messages, asked.spread_seconds, asked.body_bytes, asked.partitions)
    pending = (asked.pending, PENDING_FULL) if asked.full and number == 1 else (asked.pending,)
    return BenchServers(folder, sizes, asked.steady_seconds, pending, say, asked.memory)


def _own_s() -> float:
    """Return the CPU of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _throw_away_data(place: Path) -> None:
    """Delete the bridge's data; the servers' data is deleted with them."""
    for found in list(place.rglob("timer-data")):
        shutil.rmtree(found, ignore_errors=True)


def _results(rounds: Sequence[Round], asked: argparse.Namespace, busy_before: float) -> dict[str, object]:
    values = {figure.key: figure.value(r.measured for r in rounds) for figure in FIGURES}
    others = [value for r in rounds for name, value in r.measured.items() if name.endswith(".others_share")]
    environment = {name: text for name, text in os.environ.items() if name.startswith("TIMER_BRIDGE_")}
    told = {name: value for name, value in vars(asked).items() if name not in ("only", "memory")}
    ran = {part for r in rounds for part in r.parts}
    return {
        **values,
        "reasons": {figure.key: _reason(figure.part, rounds, ran) for figure in FIGURES if values[figure.key] is None},
        "machine": {**_machine(), "busy_before": round(busy_before, 3), "others_share": round(max(others), 3)},
        "versions": _versions(),
        "settings": {
            **told,
            "memory": _memory(asked),
            "transaction_size_of_copy_loop": TRANSACTION_SIZE,
            "environment": environment,
        },
        "rounds": [
            {**r._asdict(), "measured": {name: round(value, 4) for name, value in r.measured.items()}} for r in rounds
        ],
    }


def _memory(asked: argparse.Namespace) -> str | None:
    return None if asked.memory is None else str(asked.memory)


def _reason(part: str, rounds: Sequence[Round], ran: Set[str]) -> str:
    told = [r.failed[part] for r in rounds if part in r.failed]
    return told[0] if told else f"{part} was left out" if part not in ran else "not in this size of a run"


def _table(results: dict[str, object], rounds: Sequence[Round]) -> Table:
    table = Table("figure", title="one round" if len(rounds) == 1 else f"medians of {len(rounds)} rounds")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("expected")
    if len(rounds) > 1:
        table.add_column("rounds")
    for figure in FIGURES:
        value = results[figure.key]
        if value is None:
            continue
        number, goal = float(str(value)), figure.goal
        colour = "" if goal is None else "[green]" if goal.reached(number) else "[red]"
        each = ["  ".join(map(number_text, figure.each(r.measured for r in rounds)))] if len(rounds) > 1 else []
        table.add_row(figure.key, colour + number_text(number), figure.unit, goal.text if goal else "", *each)
    return table


def _remarks(rounds: Sequence[Round], results: dict[str, object]) -> list[str]:
    found = [f"{name} could not be measured: {why}" for r in rounds for name, why in r.failed.items()]
    machine = results["machine"]
    assert isinstance(machine, dict)
    if max(machine["busy_before"], machine["others_share"]) > BUSY_SHARE:
        before, meanwhile = machine["busy_before"], machine["others_share"]
        found.append(f"The machine was not quiet: {before:.0%} busy before, {meanwhile:.0%} used by others meanwhile.")
    return found


def _exit_code(results: dict[str, object], rounds: Sequence[Round]) -> int:
    if any(results[name] for name in FAULTS):
        return command.FAULT_FOUND
    return 1 if any(name not in BY_ROOT for r in rounds for name in r.failed) else 0


def _busy_share() -> float:
    before = processes.machine()
    time.sleep(1)
    now = processes.machine()
    return (now.busy_s - before.busy_s) / max(now.total_s - before.total_s, 0.01)


def _machine() -> dict[str, object]:
    return {
        "cpu": processes.proc_field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(int((processes.proc_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
    }


def _versions() -> dict[str, str]:
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False).stderr
    packages = ("kafka-timer-bridge", "confluent-kafka", "numpy", "pydantic")
    return {
        "kafka": KAFKA_VERSION,
        "rocketmq": ROCKETMQ_VERSION,
        "java": java.partition("\n")[0],
        "python": platform.python_version(),
        "librdkafka": kafka_io.librdkafka_version(),
        **{package: metadata.version(package) for package in packages},
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure the bridge beside a copy loop and RocketMQ.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--add", nargs="+", choices=PARTS, default=[], metavar="PART", help="to the last run's figures")
    parser.add_argument("--full", action="store_true", help="three rounds, and 10 M pending in the first: an hour")
    parser.add_argument("--repeat", type=_at_least(1), help="rounds; figures are medians; default 1, 3 with --full")
    parser.add_argument("--messages", type=_at_least(1_000), default=100_000, help="in each scenario; default 100000")
    parser.add_argument("--spread-seconds", type=float, default=30.0, help="due times of `spread`; default 30")
    parser.add_argument("--steady-seconds", type=float, default=10.0, help="of each rate; default 10")
    parser.add_argument("--pending", type=_at_least(1_000), default=PENDING, help="timers that stay; default 1000000")
    parser.add_argument("--body-bytes", type=_at_least(16), default=256, help="of a message's value; default 256")
    parser.add_argument(
        "--memory",
        type=Path,
        default=MEMORY if MEMORY.is_dir() else None,
        help=f"folder for what servers write; default {MEMORY}, where there is one",
    )
    parser.add_argument("--partitions", type=_at_least(1), default=4, help="of every topic; default 4, as the bridge's")
    asked = parser.parse_args(argv)
    asked.repeat = asked.repeat or (3 if asked.full else 1)
    asked.only = asked.add or asked.only
    return asked


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
