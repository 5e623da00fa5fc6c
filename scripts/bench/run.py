"""`make bench`: lateness, throughput and CPU of the bridge, beside a copy loop (the limit) and RocketMQ, in one run.

    .run/bench/results.json        figures, machine, versions, sizes, and every number of each round
    .run/bench/round-N/PART/       the logs of bridge and brokers

Scenarios are in scripts.bench.scenarios, the parts of a run in scripts.bench.suite. With --repeat K each figure is the
median of K rounds; faults are summed. A figure that was not measured is null, and `reasons` says why. Exit code 3
if a message was lost, doubled or early, 1 if a part of ours could not be measured; a missed goal is no error.

    make bench ARGS="--only core --messages 20000 --spread-seconds 5"      in a minute
    make bench ARGS=--full                                                 three rounds, and 10 M pending in the first
    make bench ARGS="--add slices disk"                                    measure these again, into the last results
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from scripts.bench.suite import PARTS, PENDING, PENDING_FULL, measure
from scripts.common import command, kafka_io, processes

FOLDER = Path(".run/bench")
RESULTS = FOLDER / "results.json"
BUSY_SHARE = 0.15
"""If other processes use more than this share of the machine, the figures are marked."""
FAULTS = ("early", "lost", "duplicates", "strangers", "cancelled_but_delivered")
NEED_ROOT = ("rocketmq", "slices")
"""Without root, a run is complete without these parts."""


class Round(NamedTuple):
    """One round. `failed`: errors by part; `parts`: names of the measurements by part."""

    measured: Flat
    failed: dict[str, str]
    parts: dict[str, list[str]]


def bench(args: argparse.Namespace) -> int:
    console, last = Console(), _last_run(args) if args.add else None
    rounds = [Round(one["measured"], one["failed"], one["parts"]) for one in last["rounds"]] if last else []
    results: dict[str, Any] = {}
    with command.fresh(FOLDER):
        if last:
            RESULTS.write_text(json.dumps(last, indent=2) + "\n")  # until there are newer ones
        busy_before = _busy_share()
        for number in range(1, args.repeat + 1):
            new = _measured(FOLDER, number, args, console)
            if last:
                rounds[number - 1] = _replaced(rounds[number - 1], new, args.only)
            else:
                rounds.append(new)
            results = _results(rounds, args, busy_before)
            RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(results, rounds))
    for remark in _remarks(rounds, results):
        console.print(f"[yellow]{remark}[/]", highlight=False)
    console.print(f"Figures and machine: {RESULTS}")
    if any(results[name] for name in FAULTS):
        return command.FAULT_FOUND
    return 1 if any(name not in NEED_ROOT for r in rounds for name in r.failed) else 0


def _last_run(args: argparse.Namespace) -> dict[str, Any]:
    """Return the last results, and set `args` to its sizes and rounds. Raises SettingsError."""
    try:
        last: dict[str, Any] = json.loads(RESULTS.read_text())
    except (OSError, ValueError):
        raise SettingsError("there is no last run to add to: leave --add out") from None
    if _versions() != last["versions"] or _machine().items() - last["machine"].items():
        raise SettingsError("the last run was on another machine, or of other versions: leave --add out")
    settings = last["settings"]
    if _text(args.memory) != settings["memory"]:
        raise SettingsError(f"the servers of the last run wrote to {settings['memory']}: give the same --memory")
    added = sorted({*args.add, *settings["add"]})
    for name in vars(args).keys() & settings.keys() - {"memory"}:
        setattr(args, name, settings[name])
    args.repeat, args.add = len(last["rounds"]), added
    return last


def _replaced(old: Round, new: Round, parts: Sequence[str]) -> Round:
    """Return `old` with `parts` measured again."""
    again = {name for part in parts for name in old.parts.get(part, ())}
    kept = {name: value for name, value in old.measured.items() if name not in again}
    failed = {part: why for part, why in old.failed.items() if part not in parts}
    return Round(kept | new.measured, failed | new.failed, old.parts | new.parts)


def _measured(folder: Path, number: int, args: argparse.Namespace, console: Console) -> Round:
    """Measure the parts one after another."""
    result = Round({}, {}, {})
    sizes = Sizes(args.messages, args.spread_seconds, args.body_bytes, args.partitions)
    pending = (args.pending, PENDING_FULL) if args.full and number == 1 else (args.pending,)

    def say(part: str, step: str) -> None:
        line = f"{time.strftime('%H:%M:%S')}  round {number} of {args.repeat}  {part}  {step}"
        console.print(line, highlight=False)

    for part in args.only:
        place = folder / f"round-{number}" / part
        say(part, "")
        machine, own_s, begin_s = processes.machine(), _own_s(), time.perf_counter()
        found: Flat = {}
        try:
            servers = BenchServers(place, sizes, args.steady_seconds, pending, partial(say, part), args.memory)
            found = measure(part, servers)
        except BridgeError as wrong:
            say(part, f"could not be measured: {wrong}")
            result.failed[part] = str(wrong)
        now = processes.machine()
        others_s = now.busy_s - machine.busy_s - (_own_s() - own_s)
        found[f"{part}.others_share"] = max(others_s, 0.0) / max(now.total_s - machine.total_s, 0.01)
        found[f"{part}.took_s"] = time.perf_counter() - begin_s
        result.measured.update({name: round(value, 4) for name, value in found.items()})
        result.parts[part] = list(found)
        for data in list(place.rglob("timer-data")):  # the servers' data is deleted with them
            shutil.rmtree(data, ignore_errors=True)
    return result


def _own_s() -> float:
    """Return the CPU of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _results(rounds: Sequence[Round], args: argparse.Namespace, busy_before: float) -> dict[str, Any]:
    values = {figure.key: figure.value(r.measured for r in rounds) for figure in FIGURES}
    others = [value for r in rounds for name, value in r.measured.items() if name.endswith(".others_share")]
    return {
        **values,
        "reasons": {figure.key: _reason(figure.part, rounds) for figure in FIGURES if values[figure.key] is None},
        "machine": {**_machine(), "busy_before": round(busy_before, 3), "others_share": round(max(others), 3)},
        "versions": _versions(),
        "settings": {
            **{name: value for name, value in vars(args).items() if name != "only"},
            "memory": _text(args.memory),
            "transaction_size_of_copy_loop": TRANSACTION_SIZE,
            "environment": {name: text for name, text in os.environ.items() if name.startswith("TIMER_BRIDGE_")},
        },
        "rounds": [r._asdict() for r in rounds],
    }


def _text(memory: Path | None) -> str | None:
    return None if memory is None else str(memory)


def _reason(part: str, rounds: Sequence[Round]) -> str:
    """Return why a figure of this part is missing."""
    for r in rounds:
        if part in r.failed:
            return r.failed[part]
    return "not in this size of a run" if any(part in r.parts for r in rounds) else f"{part} was left out"


def _table(results: Mapping[str, Any], rounds: Sequence[Round]) -> Table:
    table = Table("figure", title="one round" if len(rounds) == 1 else f"medians of {len(rounds)} rounds")
    table.add_column("value", justify="right")
    for heading in ("unit", "expected", *(["rounds"] if len(rounds) > 1 else [])):
        table.add_column(heading)
    for figure in FIGURES:
        value = results[figure.key]
        if value is None:
            continue
        colour = "" if not figure.goal else "[red]" if figure.is_missed(value) else "[green]"
        each = ["  ".join(map(number_text, figure.each(r.measured for r in rounds)))] if len(rounds) > 1 else []
        table.add_row(figure.key, colour + number_text(value), figure.unit, figure.goal, *each)
    return table


def _remarks(rounds: Sequence[Round], results: Mapping[str, Any]) -> list[str]:
    found = [f"{name} could not be measured: {why}" for r in rounds for name, why in r.failed.items()]
    before, during = results["machine"]["busy_before"], results["machine"]["others_share"]
    if max(before, during) > BUSY_SHARE:
        found.append(
            f"The machine was not quiet: {before:.0%} busy before, {during:.0%} used by others during the run."
        )
    return found


def _busy_share() -> float:
    before = processes.machine()
    time.sleep(1)
    now = processes.machine()
    return (now.busy_s - before.busy_s) / max(now.total_s - before.total_s, 0.01)


def _machine() -> dict[str, object]:
    return {
        "cpu": processes.proc_field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(processes.proc_mb("/proc/meminfo", "MemTotal") / 1024, 1),
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
    memory = MEMORY if MEMORY.is_dir() else None
    parser.add_argument(
        "--memory", type=Path, default=memory, help=f"folder for what servers write; default {MEMORY}, if it exists"
    )
    parser.add_argument("--partitions", type=_at_least(1), default=4, help="of every topic; default 4, as the bridge's")
    args = parser.parse_args(argv)
    args.repeat = args.repeat or (3 if args.full else 1)
    args.only = args.add or args.only
    return args


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


if __name__ == "__main__":
    sys.exit(command.run("bench", partial(bench, _parse(None))))
