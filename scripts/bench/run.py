"""`make bench`: lateness, throughput and CPU of the bridge, beside a copy loop (the limit) and RocketMQ, in one run.

    .run/bench/results.json        figures, machine, versions, sizes, and every number of each try
    .run/bench/PART/               the logs of bridge and brokers

Scenarios are in scripts.bench.scenarios, the parts of a run in scripts.bench.suite. Each figure is the median of the
tries in which it was measured; faults are summed. `reasons` says why a figure is missing. Exit code 3 if a message was
lost, doubled or early, 1 if a part that does not need root could not be measured; a missed goal is not an error.

    make bench                                            all parts, in half an hour
    make bench ARGS=--quick                               the main ratios in three minutes
    make bench ARGS="--only steady --disk"                the cost of a disk under the broker
    make bench ARGS="--add slices"                        measure a part again, into the last results
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
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from bridge.dev.embedded_kafka import find_java
from bridge.dev.kafka_jars import KAFKA_VERSION
from bridge.errors import BridgeError, SettingsError
from scripts.bench.measurements import Flat, Sizes
from scripts.bench.report import last_release
from scripts.bench.report.figures import FAULTS, FIGURES, MedianValue, counted
from scripts.bench.rocketmq.jars import ROCKETMQ_VERSION
from scripts.bench.scenarios import TRANSACTION_SIZE
from scripts.bench.servers import MEMORY, BenchServers
from scripts.bench.suite import PARTS, WHOLE, measure
from scripts.common import command, kafka_io, processes

FOLDER = Path(".run/bench")
RESULTS = FOLDER / "results.json"
BUSY_SHARE = 0.15
"""If other processes use more than this share of the machine, the figures are marked."""
QUICK: dict[str, Any] = {"only": ["quick"], "messages": 20_000, "steady_seconds": 3.0}
NEED_ROOT = ("rocketmq", "slices", "workers")
"""Without root, a run is complete without these parts."""


def bench(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 110)
    results = _last_run(args) if args.add else _nothing(args)
    with command.fresh(FOLDER):
        for part in args.only:
            RESULTS.write_text(json.dumps(results, indent=2) + "\n")
            _measure(part, args, results, console)
            _summarise(results)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(results))
    for whose, counts in results["counted"].items():
        console.print(f"{whose}: " + ", ".join(f"{number:,.0f} {name}" for name, number in counts.items()))
    for remark in _remarks(results):
        console.print(f"[yellow]{remark}[/]", highlight=False)
    console.print(f"Figures and machine: {RESULTS}")
    if any(results["counted"].get("the bridge", {}).get(name) for name in FAULTS):
        return command.FAULT_FOUND
    return 1 if any(part not in NEED_ROOT for part in results["failed"]) else 0


def _nothing(args: argparse.Namespace) -> dict[str, Any]:
    """Return results without measurements. A round is a try; `parts`: names of the measurements by part."""
    return {
        "machine": {**_machine(), "busy_before": round(_busy_share(), 3)},
        "versions": _versions(),
        "settings": {
            **{name: value for name, value in vars(args).items() if name != "only"},
            "memory": not args.disk and MEMORY.is_dir(),
            "transaction_size_of_copy_loop": TRANSACTION_SIZE,
            "environment": {name: text for name, text in os.environ.items() if name.startswith("TIMER_BRIDGE_")},
        },
        "failed": {},
        "parts": {},
        "rounds": [{"measured": {}} for _ in range(args.tries)],
    }


def _last_run(args: argparse.Namespace) -> dict[str, Any]:
    """Return the last results, and set `args` to its sizes and rounds. Raises SettingsError."""
    try:
        last: dict[str, Any] = json.loads(RESULTS.read_text())
    except (OSError, ValueError):
        raise SettingsError("there is no last run to add to: leave --add out") from None
    if _versions() != last["versions"] or _machine().items() - last["machine"].items():
        raise SettingsError("the last run was on another machine or with other versions: leave --add out")
    settings = last["settings"]
    settings["add"] = sorted({*args.add, *settings["add"]})
    for name in vars(args).keys() & settings.keys():
        setattr(args, name, settings[name])
    return last


def _measure(part: str, args: argparse.Namespace, results: dict[str, Any], console: Console) -> None:
    """Measure a part into `results`, in place of its former measurements."""
    place = FOLDER / part
    for one in results["rounds"]:
        for name in results["parts"].get(part, ()):
            one["measured"].pop(name, None)
    results["failed"].pop(part, None)

    def say(step: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')}  {part}  {step}", highlight=False)

    say("")
    sizes = Sizes(args.messages, args.body_bytes, args.partitions)
    memory = MEMORY if results["settings"]["memory"] else None
    machine, own_s, begin_s = processes.machine(), _own_s(), time.perf_counter()
    found: list[Flat] = [{}]
    try:
        found = measure(part, BenchServers(place, sizes, args.steady_seconds, args.tries, args.pending, say, memory))
    except BridgeError as wrong:
        say(f"could not be measured: {wrong}")
        results["failed"][part] = str(wrong)
    now = processes.machine()
    others_s = now.busy_s - machine.busy_s - (_own_s() - own_s)
    found[0][f"{part}.others_share"] = max(others_s, 0.0) / max(now.total_s - machine.total_s, 0.01)
    found[0][f"{part}.took_s"] = time.perf_counter() - begin_s
    for one, measured in zip(results["rounds"], found, strict=False):
        one["measured"] |= {name: round(value, 4) for name, value in measured.items()}
    results["parts"][part] = sorted({name for measured in found for name in measured})
    for data in list(place.rglob("timer-data")):  # the servers' data is deleted with them
        shutil.rmtree(data, ignore_errors=True)


def _own_s() -> float:
    """Return the CPU of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _summarise(results: dict[str, Any]) -> None:
    """Compute the figures from what was measured so far."""
    rounds = [one["measured"] for one in results["rounds"]]
    values = {figure.key: figure.value(rounds) for figure in FIGURES}
    results["figures"] = {key: value for key, value in values.items() if value is not None}
    results["reasons"] = {
        figure.key: results["failed"].get(figure.part, f"{figure.part} was left out")
        for figure in FIGURES
        if values[figure.key] is None
    }
    results["counted"] = counted(rounds)
    others = [value for name, value in rounds[0].items() if name.endswith(".others_share")]
    results["machine"]["others_share"] = round(max(others), 3)


def _table(results: Mapping[str, Any]) -> Table:
    """Return the figures beside those of the last release. A quick run shows only ratios."""
    quick, tries = results["settings"]["quick"], results["settings"]["tries"]
    last = last_release.read("quick" if quick else "whole")
    table = Table(Column("figure", no_wrap=True), title=f"medians of {tries} tries, beside release {last.release}")
    for heading in ("value", "goal", last.release, "change"):
        table.add_column(heading, no_wrap=True)
    for figure in FIGURES:
        value = results["figures"].get(figure.key)
        if value is None or (quick and not figure.goal):
            continue
        of = MedianValue(*value)
        colour = "" if not figure.goal else "[red]" if figure.is_missed(of) else "[green]"
        table.add_row(figure.key, colour + of.text, figure.goal, *last.columns(figure, of))
    return table


def _remarks(results: Mapping[str, Any]) -> list[str]:
    found = [f"{part} could not be measured: {why}" for part, why in results["failed"].items()]
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
    parser.add_argument("--quick", action="store_true", help="the main ratios in three minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=" ".join(WHOLE))
    parser.add_argument("--add", nargs="+", choices=WHOLE, default=[], metavar="PART", help="to the last run's figures")
    parser.add_argument("--tries", type=_at_least(1), default=3, help="of each ratio; default 3")
    parser.add_argument("--messages", type=_at_least(1_000), default=100_000, help="in each scenario; default 100000")
    parser.add_argument("--steady-seconds", type=float, default=8.0, help="of each rate; default 8")
    parser.add_argument("--pending", type=_at_least(20_000), default=10_000_000, help="timers; default 10000000")
    parser.add_argument("--body-bytes", type=_at_least(16), default=256, help="of a message's value; default 256")
    parser.add_argument("--disk", action="store_true", help=f"servers write to the disk, not to {MEMORY}")
    parser.add_argument("--partitions", type=_at_least(1), default=4, help="of every topic; default 4, as the bridge's")
    if "--quick" in (sys.argv[1:] if argv is None else argv):
        parser.set_defaults(**QUICK)
    args = parser.parse_args(argv)
    args.only = args.add or args.only or list(WHOLE)
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
