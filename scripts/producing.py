"""`python -m scripts.producing`: what delivery mode, linger and compression do, each on a broker of its own.

Each is told beside the first of the same run: others use the machine too, so only ratios within a run mean anything.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bridge.embedded import EmbeddedKafka
from scripts import command
from scripts.processes import BridgeProcess
from scripts.scenarios import Burst, Sizes, Spread, Stage

FOLDER = Path(".run/producing")
WAYS: tuple[tuple[str, ...], ...] = (
    (),
    ("--linger-ms", "0"),
    ("--linger-ms", "5"),
    ("--compression", "lz4"),
    ("--compression", "zstd"),
    ("--delivery", "at-least-once"),
    ("--delivery", "at-least-once", "--linger-ms", "0"),
)


def measured(folder: Path, way: tuple[str, ...], sizes: Sizes) -> tuple[Spread, Burst]:
    with EmbeddedKafka(folder / "kafka") as kafka:
        stage = Stage(kafka.bootstrap_servers, sizes)
        arguments = ["--partitions", str(sizes.partitions), *way]
        with BridgeProcess(folder, kafka.bootstrap_servers, arguments) as bridge:
            return stage.spread(bridge), stage.burst(bridge)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--spread-seconds", type=float, default=5.0)
    parser.add_argument("--body-bytes", type=int, default=200)
    asked = parser.parse_args()
    sizes = Sizes(asked.messages, asked.spread_seconds, asked.body_bytes, 4)
    columns = ("late p50 ms", "p99 ms", "seen p50 ms", "p99 ms", "drain msg/s", "ratio", "CPU s", "ratio")
    table = Table("settings", *columns)
    first: tuple[float, float] | None = None
    with command.fresh(FOLDER) as folder:
        for number, way in enumerate(WAYS):
            spread, burst = measured(folder / str(number), way, sizes)
            drain, cpu_s = burst.drain_per_s, spread.cpu_s + burst.cpu_s
            first = first or (drain, cpu_s)
            late, seen = spread.late, spread.seen_late
            figures = [late.p50_ms, late.p99_ms, seen.p50_ms, seen.p99_ms, drain, drain / first[0], cpu_s]
            table.add_row(" ".join(way) or "(defaults)", *(f"{f:.4g}" for f in (*figures, cpu_s / first[1])))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
