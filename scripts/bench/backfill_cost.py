"""`python -m scripts.bench.backfill_cost`: time and memory of a backfill of timers that were all lost.

requests, and progress of a bridge by which all have left     not measured
timer-bridge audit                finds each of them missing
timer-bridge backfill --apply     backfill_elapsed_s, backfill_per_s, memory and CPU of its processes

python -m scripts.bench.backfill_cost --requests 5000000       .run/backfilling/results.json; 6 GB of disk
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from schemas import headers as names
from schemas.headers import MAX_INT64
from schemas.progress import Key, Progress
from scripts.bench.audit_cost import parser, run
from scripts.common import command
from scripts.common.kafka_io import BROKER_CLOCK, Admin, PlacedRecord, send_placed

FOLDER = Path(".run/backfilling")
TIMERS, TARGET, GROUP = "timer.requests", "orders", "timer-bridge"
PARTITIONS = 4
FOUND_FAULTS = 3


def lost(requests: int, body_bytes: int) -> Iterator[PlacedRecord]:
    """Yield requests that were due at once."""
    due_ms = b"%d" % (time.time_ns() // 1_000_000)
    body = "x" * body_bytes
    for number in range(requests):
        headers: list[tuple[str, str | bytes | None]] = [(names.TOPIC, TARGET), (names.DELIVER_MS, due_ms)]
        yield PlacedRecord(TIMERS, number % PARTITIONS, b"%d" % number, f"{number} {body}".encode(), headers)


def settle(servers: str) -> None:
    """Commit progress by which everything on the timer topic has been read, and has left."""
    consumer: Any = Consumer({"bootstrap.servers": servers, "group.id": GROUP})
    try:
        places = [
            TopicPartition(TIMERS, partition, end, metadata=Progress(end, Key(MAX_INT64, MAX_INT64), end, 1).metadata())
            for partition, end in Admin(servers).ends(TIMERS).items()
        ]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    with EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        topics = (TIMERS, TARGET, "timer.rejected", "timer.receipts", "timer.journal")
        Admin(servers).create_topics(topics, partitions=PARTITIONS, settings=BROKER_CLOCK)
        command.say(f"writing {args.requests:,} requests")
        send_placed(servers, lost(args.requests, args.body_bytes))
        settle(servers)
        common = ["--bootstrap-servers", servers, "--master", f"local[{args.cores}]"]
        command.say("audit")
        run("audit", *common, "--settle-ms", "0", "--out", str(folder / "audit"), exit_code=FOUND_FAULTS)
        command.say("backfill")
        figures = {"requests": float(args.requests), "cores": float(args.cores)}
        figures |= run("backfill", *common, "--audit", str(folder / "audit"), "--apply")
        figures["backfill_per_s"] = args.requests / figures["backfill_elapsed_s"]
        delivered = sum(Admin(servers).ends(TARGET).values())
        if delivered < args.requests:
            raise BridgeError(f"{TARGET} has {delivered} records, but {args.requests} were missing")
    shutil.rmtree(folder / "kafka")
    return {name: round(value, 1) for name, value in figures.items()}


def main() -> int:
    args = parser(__doc__).parse_args()
    return command.measured("backfilling", FOLDER, lambda folder: measure(args, folder), 1)


if __name__ == "__main__":
    sys.exit(main())
