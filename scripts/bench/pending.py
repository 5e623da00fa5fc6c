"""`make bench-pending`: cost of pending timers in one store: memory, disk, starts, ids, and the rate of a rebuild.

A rebuild reads requests from memory, as a consumer returns them. No broker is needed.

    python -m scripts.bench.pending --timers 10000000        .run/bench/pending.json; times are of one run
"""

import json
import os
import random
import shutil
import time
from pathlib import Path

from rich.console import Console

from bridge.garbage_collection import tune_gc
from bridge.ports import Record
from bridge.recovery.replay import replay
from schemas.headers import Rules
from schemas.journal import Decisions
from schemas.progress import NOTHING_SETTLED, Progress
from scripts.common import command
from scripts.common.processes import usage
from timer.files.disk import RealDisk
from timer.format.batch import Batch
from timer.format.body import Body, pack_headers
from timer.format.checkpoint import CLOSED, NAME, Checkpoint
from timer.options import StoreOptions
from timer.store import Store

FOLDER = Path(".run/bench/pending")
START_MS = 1_700_000_000_000
WINDOW_MS = 172_800_000
BATCH = 2000
IDS_ASKED = 40_000
READ_AT_ONCE = 5000
LOOKED_UP = 1000
RULES = Rules(max_delay_ms=WINDOW_MS, roll_window_ms=WINDOW_MS)
HEADERS, PLAIN = pack_headers([("timer-topic", b"orders"), ("timer-deliver-ms", b"1700000000000"), ("timer-id", b"x")])


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
    """Replace timers: each request ends the timer with its id and becomes pending."""
    for first in range(timers, timers + IDS_ASKED, BATCH):
        ids = [b"id-%d" % rng.randrange(timers) for _ in range(BATCH)]
        batch = Batch()
        for row in store.find(ids).values():
            batch.end(row)
        for place, id_ in enumerate(dict.fromkeys(ids)):
            batch.add(*timer(first + place, rng, id_))
        store.add(batch, first + BATCH)


def look_up_ms(store: Store, timers: int, rng: random.Random) -> float:
    """Return the 99th percentile of the time to look up a timer by id, with its body."""
    spent_ms = []
    for _ in range(LOOKED_UP):
        id_ = b"id-%d" % rng.randrange(timers)
        start = time.perf_counter()
        (row,) = store.find([id_]).values()
        assert store.bodies(row)[0].id == id_
        spent_ms.append((time.perf_counter() - start) * 1000)
    return sorted(spent_ms)[LOOKED_UP * 99 // 100]


def request(offset: int, rng: random.Random) -> Record:
    """Return a request with five headers; every other one has an id. Names are new strings, as from a consumer."""
    due_ms = START_MS + rng.randrange(WINDOW_MS)
    last = (b"timer-id", b"id-%d" % offset) if offset % 2 else (b"kind", b"order.created")
    headers = (
        (b"timer-topic", b"orders"),
        (b"timer-deliver-ms", b"%d" % due_ms),
        (b"tenant", b"acme"),
        (b"traceparent", b"00-%032x-%016x-01" % (rng.getrandbits(128), offset)),
        last,
    )
    return Record(offset, START_MS, b"key", b"v" * 100, [(name.decode(), value) for name, value in headers])


def rebuild(timers: int, rng: random.Random) -> tuple[float, float]:
    """Build a store from requests in memory. Return seconds, and seconds of CPU, both without making the requests."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    disk = RealDisk(FOLDER)
    store = Store.create(disk, StoreOptions(), Progress(timers, NOTHING_SETTLED, 0))
    decided, spent_s, cpu_s = Decisions(()), 0.0, 0.0
    for first in range(0, timers, READ_AT_ONCE):
        records = [request(offset, rng) for offset in range(first, min(timers, first + READ_AT_ONCE))]
        start, cpu_start = time.perf_counter(), time.process_time()
        store.add(replay(records, store.is_unreleased, lambda _: (RULES, timers), decided, int), timers)
        spent_s += time.perf_counter() - start
        cpu_s += time.process_time() - cpu_start
    assert store.pending == timers
    store.close()
    disk.close()
    shutil.rmtree(FOLDER)
    return spent_s, cpu_s


def measure(timers: int) -> dict[str, float]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    disk, rng, options = RealDisk(FOLDER), random.Random(1), StoreOptions()
    empty_mb = usage(os.getpid()).rss_mb
    store = Store.create(disk, options, Progress(0, NOTHING_SETTLED, 0))
    begin_s = time.perf_counter()
    fill(store, timers, rng)
    figures = {"timers": float(timers), "add_per_s": timers / (time.perf_counter() - begin_s)}
    figures["bytes_of_memory_a_timer"] = (usage(os.getpid()).rss_mb - empty_mb) * 2**20 / timers
    begin_s = time.perf_counter()
    replace_some(store, timers, rng)
    figures["replace_by_id_per_s"] = IDS_ASKED / (time.perf_counter() - begin_s)
    store.committed(store.progress())
    store.start_checkpoint(0, (), ())
    store.finish_checkpoint()
    used = sum(file.stat().st_blocks * 512 for file in FOLDER.rglob("*") if file.is_file())
    figures["bytes_of_disk_a_timer"] = used / timers
    store.close()
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    for end in ("stop", "kill"):
        if end == "kill":
            disk.remove(CLOSED)  # a kill leaves it unwritten
        begin_s = time.perf_counter()
        store = Store.open(disk, options, found, found.progress, (), ())
        figures[f"ready_after_{end}_s"] = time.perf_counter() - begin_s
        assert store.pending == found.pending
        figures["look_up_p99_ms"] = look_up_ms(store, timers, rng)
        store.close()
    disk.close()
    shutil.rmtree(FOLDER)
    spent_s, cpu_s = rebuild(timers, rng)
    return figures | {"rebuild_per_s": timers / spent_s, "rebuild_cpu_us_a_timer": cpu_s * 1e6 / timers}


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--timers", type=int, default=1_000_000, help="pending at once")
    timers = parser.parse_args().timers
    tune_gc()
    figures = measure(timers)
    FOLDER.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    title = "one store, all timers with an id (half, when it is rebuilt), due within two days"
    Console().print(command.table(figures, 2, title))


if __name__ == "__main__":
    main()
