"""`python -m scripts.instances`: a burst by one and two instances, over 1, 4 and 16 partitions, each on a new broker.

Broker, instances and sender share one machine, so two instances are seldom faster here: what is shown is the cost.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bridge.embedded import EmbeddedKafka
from scripts import command
from scripts.processes import BridgeProcess
from scripts.scenarios import Burst, Sizes, Stage

FOLDER = Path(".run/instances")
_SPARE_S = 8.0
"""For an instance that gets nothing to join the group."""


def measured(folder: Path, count: int, sizes: Sizes) -> tuple[Burst, float]:
    """And the CPU time of all instances."""
    with EmbeddedKafka(folder / "kafka") as kafka, ExitStack() as ends:
        stage = Stage(kafka.bootstrap_servers, sizes)
        instances = []
        for number in range(count):
            arguments = ["--partitions", str(sizes.partitions)]
            instances.append(BridgeProcess(folder / str(number), kafka.bootstrap_servers, arguments))
            ends.callback(instances[-1].stop)
            if number < sizes.partitions:
                instances[-1].start()
            else:
                instances[-1].launch()
                time.sleep(_SPARE_S)
        before_s = sum(instance.usage().cpu_s for instance in instances)
        burst = stage.burst(instances[0])
        return burst, sum(instance.usage().cpu_s for instance in instances) - before_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--body-bytes", type=int, default=200)
    asked = parser.parse_args()
    columns = ("partitions", "instances", "drain msg/s", "ratio", "us CPU a message", "lost", "twice", "early")
    table = Table(*columns)
    first_per_s = 0.0
    with command.fresh(FOLDER) as folder:
        for partitions in (1, 4, 16):
            for count in (1, 2):
                sizes = Sizes(asked.messages, 0.0, asked.body_bytes, partitions)
                burst, cpu_s = measured(folder / f"{partitions}-{count}", count, sizes)
                first_per_s = first_per_s or burst.drain_per_s
                account = burst.account
                figures = (burst.drain_per_s, burst.drain_per_s / first_per_s, 1e6 * cpu_s / asked.messages)
                rest = (account.lost, account.duplicates, account.early)
                table.add_row(f"{partitions}", f"{count}", *(f"{f:.4g}" for f in figures), *map(str, rest))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
