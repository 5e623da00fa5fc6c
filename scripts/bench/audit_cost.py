"""`python -m scripts.bench.audit_cost`: how long an audit takes, how much memory, and how fast an import sends.

    requests, then what became of them, straight to an embedded Kafka: no bridge     not in the figures
    timer-bridge audit --master local[2]        audit_s, audit_per_s, its processes' memory and CPU
    timer-bridge import rows.parquet            import_per_s

Of a hundred records of the timer topic 94 are delivered, one of them behind a roll, two rejected, one is cancelled
(with its receipt), one waits; half have ids. Deliveries stand in transactions, as a bridge writes them. The audit has
to find each class as it was written.

    python -m scripts.bench.audit_cost --requests 10000000       .run/auditing/results.json; 8 GB of disk
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from schemas import headers as names
from scripts.common import command
from scripts.common.kafka_io import BROKER_CLOCK, Admin, PlacedRecord, send_placed
from scripts.common.processes import TIMER_BRIDGE, Tree

FOLDER = Path(".run/auditing")
TIMERS, REJECTED, RECEIPTS, IMPORTS = "timer.requests", "timer.rejected", "timer.receipts", "imports"
TARGETS = ("orders", "bills", "returns")
PARTITIONS = 4
GROUP = 100
"""Length of the repeated pattern of requests: a cancel or copy is in the partition of its timer."""
DELIVERED, REFUSED, ENDED, CANCEL, WAITS, ROLLED, COPY = range(94), (94, 95), 96, 97, 98, 93, 99
CLASSES = {"delivered": 94, "rejected": 2, "cancelled": 1, "cancel-done": 1, "pending": 1}
"""Of a hundred records of the timer topic; the copy is a row of none."""
FAR_MS = 30 * 86_400_000
TRANSACTION_SIZE = 2_000

Headers = list[tuple[str, str | bytes | None]]


class WrittenHistory:
    """The written records: offsets are known, as topics are new and partitions are written in order."""

    def __init__(self, requests: int, body_bytes: int) -> None:
        self.groups = -(-requests // GROUP)
        self._body = "x" * body_bytes
        self._due_ms = time.time_ns() // 1_000_000

    @property
    def requests(self) -> int:
        return self.groups * GROUP

    def timers(self) -> Iterator[PlacedRecord]:
        for group in range(self.groups):
            for nth in range(GROUP):
                yield PlacedRecord(TIMERS, group % PARTITIONS, b"%d" % group, *self._request(group, nth))

    def outcomes(self) -> Iterator[PlacedRecord]:
        """Return deliveries, rejected records and receipts."""
        for group in range(self.groups):
            partition, key = group % PARTITIONS, b"%d" % group
            for nth in DELIVERED:
                value, headers = self._request(group, nth)
                told = [*headers[-1:], *self._told(group, nth, rolls=nth == ROLLED)]
                yield PlacedRecord(_target(nth), partition, key, value, told)
            for nth in REFUSED:
                value, headers = self._request(group, nth)
                why: Headers = [(names.ERROR, "unknown-topic"), (names.ORIGIN, _origin(group, nth))]
                yield PlacedRecord(REJECTED, partition, key, value, [*headers, *why])
            said = {"v": 1, "kind": "cancelled", "at_ms": self._due_ms, "request": _origin(group, CANCEL)}
            receipt = json.dumps({**said, "origin": _origin(group, ENDED)}).encode()
            yield PlacedRecord(RECEIPTS, partition, key, receipt, [])

    def _request(self, group: int, nth: int) -> tuple[bytes | None, Headers]:
        if nth == CANCEL:
            return None, [(names.ACTION, "cancel"), (names.ID, _id(group, ENDED))]
        if nth == COPY:
            value, headers = self._request(group, ROLLED)
            return value, [(names.ORIGIN, _origin(group, ROLLED)), (names.ROLLS, "1"), *headers]
        due_ms = self._due_ms + (FAR_MS if nth in (ENDED, WAITS) else 0)
        headers = [(names.TOPIC, _target(nth)), (names.DELIVER_MS, b"%d" % due_ms)]
        if nth % 2 == 0:
            headers.append((names.ID, _id(group, nth)))
        return f"{group}/{nth} {self._body}".encode(), [*headers, ("traceparent", b"00-%032x-01" % group)]

    def _told(self, group: int, nth: int, *, rolls: bool) -> Headers:
        due = b"%d" % self._due_ms
        origin = _origin(group, nth)
        return [(names.ORIGIN, origin), (names.DELIVER_MS, due), (names.RELEASED_MS, due), (names.ROLLS, f"{rolls:d}")]


def _origin(group: int, nth: int) -> str:
    return f"{TIMERS}/{group % PARTITIONS}/{group // PARTITIONS * GROUP + nth}"


def _id(group: int, nth: int) -> str:
    return f"order-{group}-{nth}"


def _target(nth: int) -> str:
    """Return the target: half of all timers go to the first."""
    return TARGETS[0] if nth % 2 else TARGETS[1 + nth % 4 // 2]


class AuditCost(NamedTuple):
    """Cost of all processes of a command; `peak_mb`: RAM at one moment."""

    elapsed_s: float
    cpu_s: float
    peak_mb: float


def stage(servers: str, history: WrittenHistory) -> None:
    topics = (TIMERS, REJECTED, RECEIPTS, IMPORTS, *TARGETS)
    Admin(servers).create_topics(topics, partitions=PARTITIONS, settings=BROKER_CLOCK)
    send_placed(servers, history.timers())
    send_placed(servers, history.outcomes(), transaction_size=TRANSACTION_SIZE)


def audited(servers: str, history: WrittenHistory, out: Path, cores: int) -> AuditCost:
    cost = run("audit", "--bootstrap-servers", servers, "--out", str(out), "--master", f"local[{cores}]")
    demand_found(history, out)
    return cost


def demand_found(history: WrittenHistory, out: Path) -> None:
    """Raise BridgeError if the audit's classes differ from the written ones."""
    topics = pq.read_table(out / "topics").to_pylist()
    found = {name: sum(topic[name.replace("-", "_")] for topic in topics) for name in CLASSES}
    wanted = {name: count * history.groups for name, count in CLASSES.items()}
    if found != wanted or sum(topic["faults"] for topic in topics):
        raise BridgeError(f"the audit found {found}, but {wanted} was written: {out / 'report.html'}")


def imported(servers: str, rows: int, body_bytes: int, folder: Path, cores: int) -> AuditCost:
    file = folder / "rows.parquet"
    due_ms = time.time_ns() // 1_000_000 + FAR_MS
    with pq.ParquetWriter(file, pa.schema([("due", pa.int64()), ("id", pa.string()), ("value", pa.binary())])) as made:
        for first in range(0, rows, 100_000):
            some = range(first, min(rows, first + 100_000))
            ids, body = [f"order-{n}" for n in some], b"x" * body_bytes
            made.write(pa.table({"due": [due_ms] * len(some), "id": ids, "value": [body] * len(some)}, made.schema))
    given = ["--map", "due=due", "--map", "id=id", "--map", "value=value", "--set", f"topic={TARGETS[0]}"]
    given += ["--out", str(folder / "imported"), "--timer-topic", IMPORTS, "--master", f"local[{cores}]"]
    cost = run("import", str(file), "--bootstrap-servers", servers, *given)
    sent = sum(Admin(servers).ends(IMPORTS).values())
    if sent < rows:
        raise BridgeError(f"{sent} records stand on {IMPORTS}, but {rows} rows were sent")
    return cost


def run(*words: str) -> AuditCost:
    """Run a command as users do. Raises BridgeError if its exit code is not 0."""
    started_s = time.perf_counter()
    process = subprocess.Popen([*TIMER_BRIDGE, *words], stdin=subprocess.DEVNULL)
    tree = Tree(process.pid)
    try:
        while process.poll() is None:
            tree.look()
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise BridgeError(f"{words[0]} ended with exit code {process.returncode}")
    return AuditCost(time.perf_counter() - started_s, tree.cpu_s, tree.peak_mb)


def measure(asked: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    history = WrittenHistory(asked.requests, asked.body_bytes)
    figures: dict[str, float] = {"requests": history.requests, "cores": asked.cores}
    with EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        say(f"writing {history.requests:,} requests and what became of them")
        stage(servers, history)
        say("audit")
        audit = audited(servers, history, folder / "audit", asked.cores)
        figures |= {f"audit_{name}": value for name, value in audit._asdict().items()}
        figures["audit_per_s"] = history.requests / audit.elapsed_s
        if asked.import_rows:
            say(f"import of {asked.import_rows:,} rows")
            cost = imported(servers, asked.import_rows, asked.body_bytes, folder, asked.cores)
            figures |= {f"import_{name}": value for name, value in cost._asdict().items()}
            figures["import_per_s"] = asked.import_rows / cost.elapsed_s
    shutil.rmtree(folder / "kafka")
    return {name: round(value, 1) for name, value in figures.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="rounded up to hundreds; default 1000000")
    parser.add_argument("--import-rows", type=int, default=200_000, help="0: no import; default 200000")
    parser.add_argument("--body-bytes", type=int, default=200, help="of a value; default 200")
    parser.add_argument("--cores", type=int, default=2, help="for Spark; default 2")
    asked = parser.parse_args(argv)
    return command.run("auditing", lambda: _auditing(asked, Console()))


def _auditing(asked: argparse.Namespace, console: Console) -> int:
    with command.fresh(FOLDER) as folder:
        figures = measure(asked, folder, lambda step: console.print(f"{time.strftime('%H:%M:%S')}  {step}"))
        (folder / "results.json").write_text(json.dumps(figures, indent=2) + "\n")
    console.print(command.table(figures, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
