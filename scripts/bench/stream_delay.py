"""`python -m scripts.bench.stream_delay`: time from a delivery until the streaming audit has written its outcome.

    request --> bridge --> delivery (LogAppendTime) ............ batch written (written_ms)
                                    <-------- the delay -------->      all deliveries but those of the first batch

Kafka, bridge and audit are processes of this machine, which needs CPU for all three: the figures depend on its load.
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
from scripts.bench.paced_sender import send_at_rate
from scripts.bench.topic_fixture import now_ms
from scripts.common import command
from scripts.common.delivery_figures import lateness
from scripts.common.kafka_io import BROKER_CLOCK, Admin, TimerSender, send_all, timer
from scripts.common.processes import BridgeProcess

FOLDER = Path(".run/stream-delay")
TIMER_TOPIC, TARGET = "timer.requests", "orders"
_PATIENCE_S = 600.0


@contextmanager
def streaming_audit(folder: Path, servers: str, every_s: int) -> Iterator[Path]:
    """Run the audit until SIGTERM. Yield its OUT."""
    out, log_path = folder / "audit", folder / "audit.log"
    job = [sys.executable, "-m", "spark_jobs.audit", "--bootstrap-servers", servers, "--out", str(out)]
    with log_path.open("ab") as log:
        audit = subprocess.Popen(
            kill_with_parent([*job, "--stream", "--every-s", str(every_s)]), stdout=log, stderr=log
        )
    try:
        yield out
        audit.send_signal(signal.SIGTERM)
        code = audit.wait(_PATIENCE_S)
    finally:
        audit.kill()
        audit.wait()
    if code != 0:
        raise BridgeError(f"the audit ended with exit code {code}: see {log_path}")


def delays_ms(out: Path) -> tuple[list[int], list[int]]:
    """Return the time from each append until its batch was written, and from one batch to the next."""
    delays: list[int] = []
    batches = _batches(out)[1:]
    written_ms = [_value(path, "written_ms") for path in batches]
    for path, at_ms in zip(batches[1:], written_ms[1:], strict=True):
        part = out / "requests" / path.parent.relative_to(out / "batches")
        rows = pq.read_table(part, columns=["delivered_ms", "class"], partitioning=None).to_pylist()
        delays += [at_ms - row["delivered_ms"] for row in rows if row["class"] == "delivered"]
    return delays, [after - before for before, after in pairwise(written_ms)]


def measure(folder: Path, args: argparse.Namespace, console: Console) -> int:
    with EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        Admin(servers).create_topics([TARGET], partitions=4, settings=BROKER_CLOCK)
        with BridgeProcess(folder, servers), streaming_audit(folder, servers, args.every_s) as out:
            far_ms = now_ms() + 86_400_000
            send_all(servers, TIMER_TOPIC, (timer(TARGET, far_ms, b"%d" % n) for n in range(max(1, args.pending))))
            _await(lambda: len(_batches(out)) >= 2)  # Spark's start is not part of the delay
            send_at_rate(TimerSender(servers), TIMER_TOPIC, TARGET, args.per_s, args.seconds, args.delay_ms, b"v")
            _await(lambda: sum(_value(each, "delivered") for each in _batches(out)) >= args.per_s * args.seconds)
    delays, between_ms = delays_ms(out)
    p50_s, p99_s, max_s = (ms / 1000 for ms in lateness(np.array(delays, np.int64)))
    console.print(
        f"{args.per_s:,} deliveries a second for {args.seconds} s, {args.pending:,} more timers pending: delay p50"
        f" {p50_s:.1f} s, p99 {p99_s:.1f} s, max {max_s:.1f} s ({len(delays):,} deliveries); a batch each"
        f" {np.median(between_ms) / 1000:.1f} s (--every-s {args.every_s}); load {os.getloadavg()[1]:.1f} on"
        f" {os.cpu_count()} cores",
        soft_wrap=True,
    )
    return 0


def _await(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > until_s:
            raise BridgeError(f"the audit has not caught up within {_PATIENCE_S:.0f} s: the machine is overloaded")
        time.sleep(0.5)


def _batches(out: Path) -> list[Path]:
    return sorted((out / "batches").glob("day=*/batch=*/part.parquet"))


def _value(batch: Path, column: str) -> int:
    return int(pq.ParquetFile(batch).read().column(column)[0].as_py())


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--per-s", type=int, default=200, help="requests a second")
    parser.add_argument("--seconds", type=int, default=60, help="duration of the load")
    parser.add_argument("--delay-ms", type=int, default=1_000, help="of each timer")
    parser.add_argument("--pending", type=int, default=0, help="timers that stay open meanwhile")
    parser.add_argument("--every-s", type=int, default=10, help="the audit's")
    args, console = parser.parse_args(), Console()

    def job() -> int:
        with command.fresh(FOLDER) as folder:
            return measure(folder, args, console)

    return command.run("stream_delay", job)


if __name__ == "__main__":
    sys.exit(main())
