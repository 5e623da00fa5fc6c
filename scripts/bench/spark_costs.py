"""`python -m scripts.bench.spark_costs`: time, memory and CPU of audits.

    audit       of REQUESTS requests and their outcomes
    batch       of a streaming audit over as many requests: alone, and with PENDING more timers open

Records are written to an embedded Kafka without a bridge, which is not measured. Out of a hundred records of the timer
topic, 94 are delivered, one of them after a roll, two rejected, one is cancelled (with its receipt), one waits; half
have ids. Deliveries are written in transactions, as a bridge writes them. The audit has to find each class as it was
written.

    python -m scripts.bench.spark_costs --requests 10000000    .run/spark-costs/results.json; 8 GB of disk
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from kafka_timer import headers as names
from scripts.common import command, processes
from scripts.common.kafka_io import Admin, TimerRequest, TimerSender, kafka_errors, now_ms
from scripts.common.processes import TIMER_BRIDGE

FOLDER = Path(".run/spark-costs")
TIMERS, REJECTED, RECEIPTS = "timer.requests", "timer.rejected", "timer.receipts"
TARGETS = ("orders", "bills", "returns")
TOPICS = (TIMERS, REJECTED, RECEIPTS, *TARGETS)
PARTITIONS = 4
GROUP = 100
"""Length of the repeated pattern of requests: a cancel or copy is in the partition of its timer."""
DELIVERED, REFUSED, ENDED, CANCEL, PENDING, ROLLED, COPY = range(94), (94, 95), 96, 97, 98, 93, 99
CLASSES = {"delivered": 94, "rejected": 2, "cancelled": 1, "cancel-done": 1, "pending": 1}
"""Rows by class in a hundred records of the timer topic; a copy has no row."""
FAR_MS = 30 * 86_400_000
TRANSACTION_SIZE = 2_000

Headers = list[tuple[str, str | bytes | None]]
Figures = dict[str, float]


PlacedRecord = tuple[str, int, bytes | None, Headers]
"""Topic, group, value and headers of a record for a partition without other producers: its offset is known before."""


class WrittenHistory:
    """The written records. Partitions are written in order from `first_offset` on, so offsets are known."""

    def __init__(self, requests: int, body_bytes: int, first_offset: int = 0) -> None:
        self.groups = -(-requests // GROUP)
        self.requests, self.first_offset = self.groups * GROUP, first_offset
        self._body, self._due_ms = "x" * body_bytes, now_ms()

    def timers(self) -> Iterator[PlacedRecord]:
        for group in range(self.groups):
            for nth in range(GROUP):
                yield TIMERS, group, *self._request(group, nth)

    def outcomes(self) -> Iterator[PlacedRecord]:
        """Yield deliveries, rejected records and receipts."""
        due = b"%d" % self._due_ms
        for group in range(self.groups):
            for nth in (*DELIVERED, *REFUSED):
                value, headers = self._request(group, nth)
                origin = (names.ORIGIN, self._origin(group, nth))
                if nth in REFUSED:
                    why: Headers = [(names.ERROR, "unknown-topic"), (names.ERROR_DETAIL, "no such topic")]
                    yield REJECTED, group, value, [*headers, *why, origin]
                    continue
                own: Headers = [origin, (names.DELIVER_MS, due), (names.RELEASED_MS, due)]
                yield _target(nth), group, value, [*headers[-1:], *own, (names.ROLLS, f"{nth == ROLLED:d}")]
            receipt = {"v": 1, "kind": "cancelled", "at_ms": self._due_ms, "request": self._origin(group, CANCEL)}
            receipt["origin"] = self._origin(group, ENDED)
            yield RECEIPTS, group, json.dumps(receipt).encode(), []

    def _request(self, group: int, nth: int) -> tuple[bytes | None, Headers]:
        if nth == CANCEL:
            return None, [(names.ACTION, "cancel"), (names.ID, f"order-{group}-{ENDED}")]
        if nth == COPY:
            value, headers = self._request(group, ROLLED)
            return value, [(names.ORIGIN, self._origin(group, ROLLED)), (names.ROLLS, "1"), *headers]
        due_ms = self._due_ms + (FAR_MS if nth in (ENDED, PENDING) else 0)
        headers = [(names.TOPIC, _target(nth)), (names.DELIVER_MS, b"%d" % due_ms)]
        headers += [(names.ID, f"order-{group}-{nth}")] if nth % 2 == 0 else []
        return f"{group}/{nth} {self._body}".encode(), [*headers, ("traceparent", b"00-%032x-01" % group)]

    def _origin(self, group: int, nth: int) -> str:
        return f"{TIMERS}/{group % PARTITIONS}/{self.first_offset + group // PARTITIONS * GROUP + nth}"


def _target(nth: int) -> str:
    return TARGETS[0] if nth % 2 else TARGETS[1 + nth % 4 // 2]


def plain_timers(count: int, body_bytes: int, due_ms: int) -> Iterator[PlacedRecord]:
    headers: Headers = [(names.TOPIC, TARGETS[0]), (names.DELIVER_MS, b"%d" % due_ms)]
    return ((TIMERS, number, b"x" * body_bytes, headers) for number in range(count))


def send(servers: str, records: Iterable[PlacedRecord], *, in_transactions: bool = False) -> None:
    sender, left = TimerSender(servers, **({"transactional.id": "placed"} if in_transactions else {})), iter(records)
    with kafka_errors("records could not be sent"):
        if in_transactions:
            sender.producer.init_transactions(60)
        while batch := list(islice(left, TRANSACTION_SIZE)):
            if in_transactions:
                sender.producer.begin_transaction()
            for topic, group, value, headers in batch:
                sender.send(topic, TimerRequest(b"%d" % group, value, headers), group % PARTITIONS)
            sender.serve()
            if in_transactions:
                sender.producer.commit_transaction(60)
        sender.flush()


def stage(servers: str, history: WrittenHistory) -> None:
    """Write the history to topics, which are new if it begins at offset 0."""
    if not history.first_offset:
        Admin(servers).create_topics(TOPICS, partitions=PARTITIONS)
    send(servers, history.timers())  # without transactions: their markers have offsets, too
    send(servers, history.outcomes(), in_transactions=True)


def demand_found(history: WrittenHistory, out: Path) -> None:
    """Raise BridgeError if the audit's classes differ from the written ones."""
    topics = pq.read_table(out / "topics").to_pylist()
    found = {name: sum(topic[name.replace("-", "_")] for topic in topics) for name in CLASSES}
    wanted = {name: count * history.groups for name, count in CLASSES.items()}
    if found != wanted or sum(topic["faults"] for topic in topics):
        raise BridgeError(f"the audit found {found}, but {wanted} was written: {out / 'report.html'}")


class AuditRuns:
    """Runs `timer-bridge audit` on one broker, as users do."""

    def __init__(self, folder: Path, servers: str, cores: int) -> None:
        self.servers, self.out = servers, folder / "audit"
        words = ["audit", "--out", str(self.out), "--bootstrap-servers", servers, "--master", f"local[{cores}]"]
        self._call = [*TIMER_BRIDGE, *words]

    def run(self, *words: str, requests: int) -> Figures:
        """Run it and return its cost: CPU and peak memory of all processes of its session, sampled.

        `peak_mb`: shared pages count once. Raises BridgeError if it does not end with exit code 0.
        """
        command.say("audit")
        started_s = time.perf_counter()
        process = subprocess.Popen([*self._call, *words], stdin=subprocess.DEVNULL, start_new_session=True)
        cpu_s, peak_mb = dict[int, float](), 0.0
        try:
            while process.poll() is None:
                each = processes.of_session(process.pid)
                cpu_s |= {pid: used_s for pid, (used_s, _) in each.items()}
                peak_mb = max(peak_mb, sum(used_mb for _, used_mb in each.values()))
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait(60)
        if process.returncode:
            raise BridgeError(f"the audit ended with exit code {process.returncode}")
        took_s = time.perf_counter() - started_s
        return {"elapsed_s": took_s, "cpu_s": sum(cpu_s.values()), "peak_mb": peak_mb, "per_s": requests / took_s}


def audit(runs: AuditRuns, args: argparse.Namespace) -> Figures:
    history = WrittenHistory(args.requests, args.body_bytes)
    stage(runs.servers, history)
    found = runs.run(requests=history.requests)
    demand_found(history, runs.out)
    return found


def batch(runs: AuditRuns, args: argparse.Namespace, pending: int = PARTITIONS) -> Figures:
    """Measure the second batch of a streaming audit; the first one reads the pending timers."""
    Admin(runs.servers).create_topics(TOPICS, partitions=PARTITIONS)
    send(runs.servers, plain_timers(pending, args.body_bytes, now_ms() + FAR_MS))
    words = ("--stream", "--available-now")
    runs.run(*words, requests=pending)
    stage(runs.servers, WrittenHistory(args.requests, args.body_bytes, pending // PARTITIONS))
    return runs.run(*words, requests=args.requests)


def measure(args: argparse.Namespace) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    scenarios: dict[str, Callable[[AuditRuns, argparse.Namespace], Figures]] = {"audit": audit, "batch alone": batch}
    scenarios["batch"] = partial(batch, pending=args.pending)
    for name, measured in scenarios.items():
        command.say(f"{name}: writing records")
        folder = FOLDER / name.replace(" ", "-")
        with EmbeddedKafka(folder / "kafka") as kafka:
            found[name] = measured(AuditRuns(folder, kafka.bootstrap_servers, args.cores), args)
    found["batch, to alone"] = {name: value / found["batch alone"][name] for name, value in found["batch"].items()}
    return found


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--pending", type=int, default=1_000_000, help="timers that are open in a batch")
    parser.add_argument("--body-bytes", type=int, default=200, help="of a value")
    parser.add_argument("--cores", type=int, default=2, help="for Spark")
    with command.fresh(FOLDER) as folder:
        text = json.dumps(measure(parser.parse_args()), indent=2)
        (folder / "results.json").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(command.run("spark_costs", main))
