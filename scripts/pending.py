"""`make bench-pending`: what pending timers cost one store: memory, disk, the start behind a kill, ids.

    python -m scripts.pending --timers 10000000        written to .run/bench/pending.json; no broker is needed

Times are of one run; on a machine that others use, read them as such.
"""

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from schemas.progress import NOTHING_SETTLED, Progress
from timer.batch import Batch
from timer.checkpoint import NAME, Checkpoint
from timer.disk import RealDisk
from timer.options import StoreOptions
from timer.record import Body, pack_headers
from timer.store import Store

FOLDER = Path(".run/bench/pending")
START_MS = 1_700_000_000_000
WINDOW_MS = 172_800_000
BATCH = 2000
IDS_ASKED = 40_000
HEADERS, PLAIN = pack_headers([("timer-topic", b"orders"), ("timer-deliver-ms", b"1700000000000"), ("timer-id", b"x")])


def rss_mb() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def timer(offset: int, rng: random.Random, id_: bytes) -> tuple[Body, int]:
    due_ms = START_MS + rng.randrange(WINDOW_MS)
    body = Body("orders", -1, offset, START_MS, due_ms, b"key", b"v" * 100, HEADERS, PLAIN, offset, 0, id_)
    return body, due_ms


def fill(store: Store, timers: int, rng: random.Random) -> None:
    for first in range(0, timers, BATCH):
        batch = Batch()
        for offset in range(first, min(timers, first + BATCH)):
            batch.add(*timer(offset, rng, b"id-%d" % offset))
        store.add(batch, min(timers, first + BATCH))


def replace_some(store: Store, timers: int, rng: random.Random) -> None:
    """Each request ends the timer of its id and stands itself."""
    for first in range(timers, timers + IDS_ASKED, BATCH):
        ids = [b"id-%d" % rng.randrange(timers) for _ in range(BATCH)]
        batch = Batch()
        for row in store.find(ids).values():
            batch.end(row)
        for place, id_ in enumerate(dict.fromkeys(ids)):
            batch.add(*timer(first + place, rng, id_))
        store.add(batch, first + BATCH)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(timers: int) -> dict[str, float]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    disk, rng, options = RealDisk(FOLDER), random.Random(1), StoreOptions()
    empty_mb = rss_mb()
    store = Store.create(disk, options, Progress(0, NOTHING_SETTLED, 0))
    figures = {"timers": float(timers), "add_per_s": timers / timed(lambda: fill(store, timers, rng))}
    figures["bytes_of_memory_a_timer"] = (rss_mb() - empty_mb) * 2**20 / timers
    figures["replace_by_id_per_s"] = IDS_ASKED / timed(lambda: replace_some(store, timers, rng))
    store.committed(store.progress())
    store.start_checkpoint(0, (), ())
    store.finish_checkpoint()
    used = sum(file.stat().st_blocks * 512 for file in FOLDER.rglob("*") if file.is_file())
    figures["bytes_of_disk_a_timer"] = used / timers
    store.close()
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    start = time.perf_counter()
    store = Store.open(disk, options, found, found.progress, (), ())
    figures["ready_s"] = time.perf_counter() - start
    assert store.pending == found.pending
    store.close()
    disk.close()
    shutil.rmtree(FOLDER)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=1_000_000, help="pending at once")
    figures = measure(parser.parse_args().timers)
    results = FOLDER.with_suffix(".json")
    results.write_text(json.dumps(figures, indent=2) + "\n")
    table = Table(title="one store, all timers with an id, due within two days")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
