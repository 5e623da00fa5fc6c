"""`python -m scripts.bench.audit_cost`: time and memory of an audit, and the rate at which an import sends.

    requests, then their outcomes, written directly to an embedded Kafka without a bridge     not measured
    timer-bridge audit --master local[2]        audit_s, audit_per_s, memory and CPU of its processes
    timer-bridge import rows.parquet            import_per_s

Out of a hundred records of the timer topic, 94 are delivered, one of them after a roll, two rejected, one is cancelled
(with its receipt), one waits; half have ids. Deliveries are written in transactions, as a bridge writes them. The audit
has to find each class as it was written.

    python -m scripts.bench.audit_cost --requests 10000000       .run/auditing/results.json; 8 GB of disk
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from schemas import headers as names
from scripts.common import command
from scripts.common.kafka_io import BROKER_CLOCK, Admin, PlacedRecord, send_placed
from scripts.common.processes import TIMER_BRIDGE, SessionUsage

FOLDER = Path(".run/auditing")
TIMERS, REJECTED, RECEIPTS, IMPORTS = "timer.requests", "timer.rejected", "timer.receipts", "imports"
TARGETS = ("orders", "bills", "returns")
PARTITIONS = 4
GROUP = 100
"""Length of the repeated pattern of requests: a cancel or copy is in the partition of its timer."""
DELIVERED, REFUSED, ENDED, CANCEL, PENDING, ROLLED, COPY = range(94), (94, 95), 96, 97, 98, 93, 99
CLASSES = {"delivered": 94, "rejected": 2, "cancelled": 1, "cancel-done": 1, "pending": 1}
"""Rows by class in a hundred records of the timer topic; a copy has no row."""
FAR_MS = 30 * 86_400_000
TRANSACTION_SIZE = 2_000

Headers = list[tuple[str, str | bytes | None]]


class WrittenHistory:
    """The written records: offsets are known, as topics are new and partitions are written in order."""

    def __init__(self, requests: int, body_bytes: int) -> None:
        self.groups = -(-requests // GROUP)
        self.requests = self.groups * GROUP
        self._body = "x" * body_bytes
        self._due_ms = time.time_ns() // 1_000_000

    def timers(self) -> Iterator[PlacedRecord]:
        for group in range(self.groups):
            for nth in range(GROUP):
                yield PlacedRecord(TIMERS, group % PARTITIONS, b"%d" % group, *self._request(group, nth))

    def outcomes(self) -> Iterator[PlacedRecord]:
        """Yield deliveries, rejected records and receipts."""
        due = b"%d" % self._due_ms
        for group in range(self.groups):
            partition, key = group % PARTITIONS, b"%d" % group
            for nth in DELIVERED:
                value, headers = self._request(group, nth)
                times: Headers = [(names.DELIVER_MS, due), (names.RELEASED_MS, due)]
                own = [(names.ORIGIN, _origin(group, nth)), *times, (names.ROLLS, f"{nth == ROLLED:d}")]
                yield PlacedRecord(_target(nth), partition, key, value, [*headers[-1:], *own])
            for nth in REFUSED:
                value, headers = self._request(group, nth)
                why: Headers = [(names.ERROR, "unknown-topic"), (names.ERROR_DETAIL, "there is no such topic")]
                why.append((names.ORIGIN, _origin(group, nth)))
                yield PlacedRecord(REJECTED, partition, key, value, [*headers, *why])
            receipt = {"v": 1, "kind": "cancelled", "at_ms": self._due_ms, "request": _origin(group, CANCEL)}
            receipt["origin"] = _origin(group, ENDED)
            yield PlacedRecord(RECEIPTS, partition, key, json.dumps(receipt).encode(), [])

    def _request(self, group: int, nth: int) -> tuple[bytes | None, Headers]:
        if nth == CANCEL:
            return None, [(names.ACTION, "cancel"), (names.ID, _id(group, ENDED))]
        if nth == COPY:
            value, headers = self._request(group, ROLLED)
            return value, [(names.ORIGIN, _origin(group, ROLLED)), (names.ROLLS, "1"), *headers]
        due_ms = self._due_ms + (FAR_MS if nth in (ENDED, PENDING) else 0)
        headers = [(names.TOPIC, _target(nth)), (names.DELIVER_MS, b"%d" % due_ms)]
        if nth % 2 == 0:
            headers.append((names.ID, _id(group, nth)))
        return f"{group}/{nth} {self._body}".encode(), [*headers, ("traceparent", b"00-%032x-01" % group)]


def _origin(group: int, nth: int) -> str:
    return f"{TIMERS}/{group % PARTITIONS}/{group // PARTITIONS * GROUP + nth}"


def _id(group: int, nth: int) -> str:
    return f"order-{group}-{nth}"


def _target(nth: int) -> str:
    """Return the target: half of all timers go to the first."""
    return TARGETS[0] if nth % 2 else TARGETS[1 + nth % 4 // 2]


def stage(servers: str, history: WrittenHistory) -> None:
    topics = (TIMERS, REJECTED, RECEIPTS, IMPORTS, *TARGETS)
    Admin(servers).create_topics(topics, partitions=PARTITIONS, settings=BROKER_CLOCK)
    send_placed(servers, history.timers())  # without transactions: their markers have offsets, too
    send_placed(servers, history.outcomes(), transaction_size=TRANSACTION_SIZE)


def demand_found(history: WrittenHistory, out: Path) -> None:
    """Raise BridgeError if the audit's classes differ from the written ones."""
    topics = pq.read_table(out / "topics").to_pylist()
    found = {name: sum(topic[name.replace("-", "_")] for topic in topics) for name in CLASSES}
    wanted = {name: count * history.groups for name, count in CLASSES.items()}
    if found != wanted or sum(topic["faults"] for topic in topics):
        raise BridgeError(f"the audit found {found}, but {wanted} was written: {out / 'report.html'}")


def write_rows(file: Path, rows: int, body_bytes: int) -> None:
    due_ms = time.time_ns() // 1_000_000 + FAR_MS
    with pq.ParquetWriter(file, pa.schema([("due", pa.int64()), ("id", pa.string()), ("value", pa.binary())])) as made:
        for first in range(0, rows, 100_000):
            ids = [f"order-{number}" for number in range(first, min(rows, first + 100_000))]
            columns = {"due": [due_ms] * len(ids), "id": ids, "value": [b"x" * body_bytes] * len(ids)}
            made.write(pa.table(columns, made.schema))


def run(name: str, *words: str, exit_code: int = 0) -> dict[str, float]:
    """Run a command as users do, and return its cost. Raises BridgeError if it ends with another exit code."""
    started_s = time.perf_counter()
    process = subprocess.Popen([*TIMER_BRIDGE, name, *words], stdin=subprocess.DEVNULL, start_new_session=True)
    usage = SessionUsage(process.pid)
    try:
        while process.poll() is None:
            usage.sample()
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != exit_code:
        raise BridgeError(f"{name} ended with exit code {process.returncode}")
    elapsed_s = time.perf_counter() - started_s
    return {f"{name}_elapsed_s": elapsed_s, f"{name}_cpu_s": usage.cpu_s, f"{name}_peak_mb": usage.peak_mb}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    history = WrittenHistory(args.requests, args.body_bytes)
    figures: dict[str, float] = {"requests": history.requests, "cores": args.cores}
    with EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        common = ["--bootstrap-servers", servers, "--master", f"local[{args.cores}]"]
        command.say(f"writing {history.requests:,} requests and their outcomes")
        stage(servers, history)
        command.say("audit")
        figures |= run("audit", *common, "--out", str(folder / "audit"))
        demand_found(history, folder / "audit")
        figures["audit_per_s"] = history.requests / figures["audit_elapsed_s"]
        if args.import_rows:
            command.say(f"import of {args.import_rows:,} rows")
            write_rows(folder / "rows.parquet", args.import_rows, args.body_bytes)
            columns = ["--map", "due=due", "--map", "id=id", "--map", "value=value", "--set", f"topic={TARGETS[0]}"]
            place = ["--out", str(folder / "imported"), "--timer-topic", IMPORTS]
            figures |= run("import", str(folder / "rows.parquet"), *common, *columns, *place)
            sent = sum(Admin(servers).ends(IMPORTS).values())
            if sent < args.import_rows:
                raise BridgeError(f"{IMPORTS} has {sent} records, but {args.import_rows} rows were sent")
            figures["import_per_s"] = args.import_rows / figures["import_elapsed_s"]
    shutil.rmtree(folder / "kafka")
    return {name: round(value, 1) for name, value in figures.items()}


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every bench of a job."""
    made = command.parser(description)
    made.add_argument("--requests", type=int, default=1_000_000)
    made.add_argument("--body-bytes", type=int, default=200, help="of a value")
    made.add_argument("--cores", type=int, default=2, help="for Spark")
    return made


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--import-rows", type=int, default=200_000, help="0: no import")
    args = options.parse_args()
    return command.measured("auditing", FOLDER, lambda folder: measure(args, folder), 1)


if __name__ == "__main__":
    sys.exit(main())
