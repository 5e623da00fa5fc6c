"""`make bench`: lateness, throughput and CPU of the bridge, beside plain transactions and RocketMQ, in one run.

    make bench                                            all parts, in half an hour; writes docs/benchmarks.md
    make bench ARGS=--quick                               core and steady in small, in three minutes, without ratios
    make bench ARGS="--quick --only scale"                a part in small
    make bench ARGS="--only core steady --bridge PATH"    in alternation with the bridge of the checkout at PATH

.run/bench has results.json (every number of each try), benchmarks.md, and the logs of bridge and brokers by part.
Exit code 3 if the bridge lost, doubled or sent a message early, 1 if a part could not be measured; without root,
RocketMQ need not be. A missed goal is not an error. TIMER_BRIDGE_* are settings of the bridge:
`TIMER_BRIDGE_ENGINE=rocksdb make bench ARGS="--only pending"`.
"""

import argparse
import json
import os
import platform
import shutil
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from confluent_kafka import libversion

from bridge.dev.kafka_jars import KAFKA_VERSION
from bridge.errors import BridgeError
from scripts.bench.page import FAULTS, PAGE, counted, page
from scripts.bench.rocketmq.peer import ROCKETMQ_VERSION
from scripts.bench.suite import PARTS, measure
from scripts.bench.topic_fixture import OTHER, BenchServers, Sizes
from scripts.common import command, processes

FOLDER = Path(".run/bench")
QUICK: dict[str, Any] = {"messages": 20_000, "seconds": 3.0, "pending": 200_000, "tries": 2}


def bench(args: argparse.Namespace) -> int:
    results: dict[str, Any] = {
        "machine": _machine(),
        "versions": _versions(),
        "settings": {
            **{name: str(value) for name, value in vars(args).items()},
            **{name: text for name, text in os.environ.items() if name.startswith("TIMER_BRIDGE_")},
        },
        "failed": {},
        "rounds": [{} for _ in range(args.tries)],
    }
    with command.fresh(FOLDER):
        for part in args.only:
            _measure(part, args, results)
            (FOLDER / "results.json").write_text(json.dumps(results, indent=2) + "\n")
            (FOLDER / "benchmarks.md").write_text(page(results))
    print(page(results))
    if set(args.only) == set(PARTS) and not (args.quick or args.bridge or results["failed"]):
        shutil.copy(FOLDER / "benchmarks.md", PAGE)
    if any(counted(results["rounds"])["the bridge"].get(name) for name in FAULTS):
        return command.FAULT_FOUND
    return 1 if results["failed"].keys() - {"rocketmq"} else 0


def _measure(part: str, args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure a part into the rounds of `results`: each is a try."""
    bridges = {"": processes.TIMER_BRIDGE}
    if args.bridge:
        bridges[OTHER] = (str(args.bridge / ".venv" / "bin" / "timer-bridge"),)
    sizes = Sizes(args.messages, args.body_bytes, args.partitions)
    servers = BenchServers(FOLDER / part, sizes, args.seconds, args.tries, args.pending, args.quick, bridges)
    try:
        for one, found in zip(results["rounds"], measure(part, servers), strict=True):
            one |= {name: round(value, 4) for name, value in found.items()}
    except BridgeError as wrong:
        servers.say(f"could not be measured: {wrong}")
        results["failed"][part] = str(wrong)
    for data in list((FOLDER / part).rglob("timer-data")):
        shutil.rmtree(data, ignore_errors=True)


def _machine() -> str:
    memory_gb = processes.proc_mb("/proc/meminfo", "MemTotal") / 1024
    cpu = processes.proc_field("/proc/cpuinfo", "model name") or platform.processor()
    return f"{cpu}, {os.cpu_count()} cores, {memory_gb:.1f} GB, Linux {platform.release()}"


def _versions() -> str:
    packages = (f"{name} {metadata.version(name)}" for name in ("kafka-timer-bridge", "confluent-kafka", "numpy"))
    others = f"Kafka {KAFKA_VERSION}, RocketMQ {ROCKETMQ_VERSION}, Python {platform.python_version()}"
    return ", ".join([others, f"librdkafka {libversion()[0]}", *packages])


def _parse() -> argparse.Namespace:
    parser = command.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; core and steady, unless --only is given")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--bridge", type=Path, metavar="PATH", help="checkout whose bridge is measured in alternation")
    parser.add_argument("--tries", type=int, default=3, help="of each ratio")
    parser.add_argument("--messages", type=int, default=100_000, help="in each scenario")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each steady rate")
    parser.add_argument("--pending", type=int, default=10_000_000, help="timers")
    parser.add_argument("--body-bytes", type=int, default=256, help="of a message's value")
    parser.add_argument("--partitions", type=int, default=4, help="of every topic")
    if "--quick" in sys.argv:
        parser.set_defaults(**QUICK)
    args = parser.parse_args()
    args.only = args.only or (["core", "steady"] if args.quick else list(PARTS))
    return args


if __name__ == "__main__":
    sys.exit(command.run("bench", partial(bench, _parse())))
