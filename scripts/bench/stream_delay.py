"""`python -m scripts.bench.stream_delay`: how soon behind a delivery the streaming audit has told what became of it.

    request --> bridge --> delivery (LogAppendTime) ............ batch written (written_ms)
                                    <-------- the delay -------->      over all deliveries, but for the first batch's

Kafka, bridge and audit are processes of this machine, which has to carry them all: read the figures beside its load.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from bridge.dev.child_process import kill_with_parent
from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from scripts.bench.topic_fixture import now_ms
from scripts.common import command
from scripts.common.delivery_figures import Ints, lateness
from scripts.common.kafka_io import BROKER_CLOCK, Admin, TimerSender, send_all, timer
from scripts.common.processes import BridgeProcess

FOLDER = Path(".run/stream-delay")
TIMER_TOPIC, TARGET = "timer.requests", "orders"
_PATIENCE_S = 600.0


@contextmanager
def streaming(folder: Path, servers: str, every_s: int) -> Iterator[Path]:
    """The audit at work; ended by SIGTERM. Yields its OUT."""
    out = folder / "audit"
    job = [sys.executable, "-m", "spark_jobs.audit", "--bootstrap-servers", servers, "--out", str(out)]
    job += ["--stream", "--every-s", str(every_s)]
    with (folder / "audit.log").open("ab") as log:
        audit = subprocess.Popen(kill_with_parent(job), stdout=log, stderr=log)
    try:
        yield out
        audit.send_signal(signal.SIGTERM)
        code = audit.wait(_PATIENCE_S)
    finally:
        audit.kill()
        audit.wait()
    if code != 0:
        raise BridgeError(f"the audit ended with exit code {code}: see {folder / 'audit.log'}")


def warm_up(servers: str, out: Path, pending: int) -> None:
    """`pending` timers stay open. What Spark takes to start is none of the delay: returns behind the second batch."""
    far_ms = now_ms() + 86_400_000
    send_all(servers, TIMER_TOPIC, (timer(TARGET, far_ms, b"%d" % number) for number in range(max(1, pending))))
    _await(lambda: len(_batches(out)) >= 2)


def send(servers: str, per_s: int, seconds: int, delay_ms: int) -> None:
    sender = TimerSender(servers)
    begin_s = time.monotonic()
    for number in range(per_s * seconds):
        sender.send(TIMER_TOPIC, timer(TARGET, now_ms() + delay_ms, b"%d" % number))
        ahead_s = begin_s + number / per_s - time.monotonic()
        if ahead_s > 0:
            sender.serve()
            time.sleep(ahead_s)
    sender.flush()


def delays_ms(out: Path) -> tuple[Ints, list[int]]:
    """Of each delivery, from its append to when its batch was written; and from one batch to the next."""
    found: list[int] = []
    written: list[int] = []
    for path in _batches(out)[1:]:
        part = path.parent.relative_to(out / "batches")
        written_ms = _told(path, "written_ms")
        if written:
            rows = pq.read_table(out / "requests" / part, columns=["delivered_ms", "class"], partitioning=None)
            told = [at_ms for at_ms, name in zip(*rows.to_pydict().values(), strict=True) if name == "delivered"]
            found += [written_ms - at_ms for at_ms in told]
        written.append(written_ms)
    return np.array(found, np.int64), [after - before for before, after in pairwise(written)]


def measured(folder: Path, asked: argparse.Namespace, console: Console) -> int:
    with EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        Admin(servers).create_topics([TARGET], partitions=4, settings=BROKER_CLOCK)
        with BridgeProcess(folder, servers), streaming(folder, servers, asked.every_s) as out:
            warm_up(servers, out, asked.pending)
            send(servers, asked.per_s, asked.seconds, asked.delay_ms)
            wanted = asked.per_s * asked.seconds
            _await(lambda: sum(_told(batch, "delivered") for batch in _batches(out)) >= wanted)
    delays, between = delays_ms(out)
    p50_s, p99_s, max_s = (ms / 1000 for ms in lateness(delays))
    console.print(
        f"{asked.per_s:,} deliveries a second for {asked.seconds} s, {asked.pending:,} more timers pending: told p50"
        f" {p50_s:.1f} s, p99 {p99_s:.1f} s, max {max_s:.1f} s behind it ({len(delays):,} deliveries); a batch each"
        f" {np.median(between) / 1000:.1f} s (--every-s {asked.every_s}); load {os.getloadavg()[1]:.1f} on"
        f" {os.cpu_count()} cores",
        soft_wrap=True,
    )
    return 0


def _await(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > until_s:
            raise BridgeError(f"the audit did not get there within {_PATIENCE_S:.0f} s: the machine has too much to do")
        time.sleep(0.5)


def _batches(out: Path) -> list[Path]:
    return sorted((out / "batches").glob("day=*/batch=*/part.parquet"))


def _told(batch: Path, column: str) -> int:
    return int(pq.ParquetFile(batch).read().column(column)[0].as_py())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-s", type=int, default=200, help="requests a second; default %(default)s")
    parser.add_argument("--seconds", type=int, default=60, help="default %(default)s")
    parser.add_argument("--delay-ms", type=int, default=1_000, help="of each timer; default %(default)s")
    parser.add_argument("--pending", type=int, default=0, help="timers that stay open meanwhile; default %(default)s")
    parser.add_argument("--every-s", type=int, default=10, help="the audit's; default %(default)s")
    asked = parser.parse_args()

    def job() -> int:
        with command.fresh(FOLDER) as folder:
            return measured(folder, asked, Console())

    return command.run("stream_delay", job)


if __name__ == "__main__":
    sys.exit(main())
