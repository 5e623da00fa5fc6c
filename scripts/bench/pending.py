"""`make bench-pending`: cost of pending timers in one store: memory, disk, starts, ids, a rebuild, and waits of a year.

Each engine is measured in a process of its own. A rebuild reads requests from memory, as a consumer returns them. No
broker is needed.

    python -m scripts.bench.pending --timers 10000000        .run/bench/pending.json; times are of one run
    python -m scripts.bench.pending --engines rocksdb        one engine
    python -m scripts.bench.pending --recurring              timers that recur every day
"""

import json
import os
import random
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bridge.garbage_collection import tune_gc
from bridge.ports import Record
from bridge.recovery.replay import replay
from schemas.headers import Rules
from schemas.journal import Decisions
from schemas.progress import NOTHING_SETTLED, Progress
from scripts.bench.suite import ENGINES
from scripts.common import command
from scripts.common.processes import usage
from timer.disk import RealDisk
from timer.engines import create_store, open_store
from timer.format.batch import Batch
from timer.format.body import Body, frame_size, pack_headers
from timer.format.checkpoint import CLOSED, NAME, Checkpoint
from timer.options import Engine, StoreOptions
from timer.store import Store

FOLDER = Path(".run/bench/pending")
START_MS = 1_700_000_000_000
WINDOW_MS = 172_800_000
BATCH = 2000
IDS_ASKED = 40_000
READ_AT_ONCE = 5000
LOOKED_UP = 1000
DRAINED = 200_000
"""Timers of the first part of the window that are taken with their bodies, as for deliveries."""
TAKEN_AT_ONCE = 4000
ADDED_BETWEEN = 20_000
"""Timers between two checkpoints while the store is filled: 2 s at 10,000 a second."""
YEAR_MS, HOUR_MS = 365 * 86_400_000, 3_600_000
OF_A_YEAR = 5_000
"""Timers that wait for a year."""
RULES = Rules(max_delay_ms=WINDOW_MS, roll_window_ms=WINDOW_MS)
HEADERS = (("timer-topic", b"orders"), ("timer-deliver-ms", b"1700000000000"), ("timer-id", b"x"))
RECURRING = (("timer-every-ms", b"86400000"),)


class Maker:
    """Makes timers. rule: headers besides those of all."""

    def __init__(self, rng: random.Random, rule: tuple[tuple[str, bytes], ...]) -> None:
        self.rng = rng
        self._rule = rule
        self._packed = pack_headers([*HEADERS, *rule])

    def timer(self, offset: int, id_: bytes) -> tuple[Body, int]:
        headers, plain = self._packed
        due_ms = START_MS + self.rng.randrange(WINDOW_MS)
        value = self.rng.randbytes(100)
        return Body("orders", -1, offset, START_MS, due_ms, b"key", value, headers, plain, offset, 0, id_), due_ms

    def request(self, offset: int) -> Record:
        """Return a request with five headers; every other one has an id. Names are new strings, as from a consumer."""
        due_ms = START_MS + self.rng.randrange(WINDOW_MS)
        last = ("timer-id", b"id-%d" % offset) if offset % 2 else ("kind", b"order.created")
        headers = (
            ("timer-topic", b"orders"),
            ("timer-deliver-ms", b"%d" % due_ms),
            ("tenant", b"acme"),
            ("traceparent", b"00-%032x-%016x-01" % (self.rng.getrandbits(128), offset)),
            last,
            *self._rule,
        )
        new = [(name.encode().decode(), value) for name, value in headers]
        return Record(offset, START_MS, b"key", self.rng.randbytes(100), new)


def checkpoint(store: Store) -> float:
    """Commit what is staged and make a checkpoint. Return the seconds for which a turn waits for it."""
    store.committed(store.advance_progress())
    begin_s = time.perf_counter()
    store.start_checkpoint(0, (), ())
    waited_s = time.perf_counter() - begin_s
    store.finish_checkpoint()
    return waited_s


def fill(store: Store, timers: int, maker: Maker) -> tuple[float, list[float]]:
    """Add timers, with a checkpoint now and then. Return CPU seconds, and the wait for each of them."""
    cpu_s, waits_s = 0.0, [0.0]
    for first in range(0, timers, BATCH):
        batch = Batch()
        for offset in range(first, min(timers, first + BATCH)):
            batch.add(*maker.timer(offset, b"id-%d" % offset))
        begin_s = time.process_time()
        store.add(batch, min(timers, first + BATCH))
        if (first + BATCH) % ADDED_BETWEEN == 0:
            waits_s.append(checkpoint(store))
        cpu_s += time.process_time() - begin_s
    return cpu_s, waits_s


def drain(store: Store) -> float:
    """Take timers that become due, with their bodies. Return the seconds of CPU."""
    begin_s, taken, now_ms = time.process_time(), 0, START_MS
    while taken < DRAINED and store.pending:
        due = store.release_queue.take_due(now_ms, TAKEN_AT_ONCE, 16 << 20)
        taken += len(store.queries.bodies(due.rows))
        if not due.total:
            now_ms += 60_000
    return time.process_time() - begin_s


def written_bytes() -> int:
    """Return the bytes that this process has caused to be written to a disk."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["write_bytes"])


def replace_some(store: Store, timers: int, maker: Maker) -> None:
    """Replace timers: each request ends the timer with its id and becomes pending."""
    for first in range(timers, timers + IDS_ASKED, BATCH):
        ids = [b"id-%d" % maker.rng.randrange(timers) for _ in range(BATCH)]
        batch = Batch()
        for row in store.queries.find(ids).values():
            batch.end(row)
        for place, id_ in enumerate(dict.fromkeys(ids)):
            batch.add(*maker.timer(first + place, id_))
        store.add(batch, first + BATCH)


def look_up_ms(store: Store, timers: int, rng: random.Random) -> float:
    """Return the 99th percentile of the time to look up a timer by id, with its body."""
    spent_ms = []
    for _ in range(LOOKED_UP):
        id_ = b"id-%d" % rng.randrange(timers)
        start = time.perf_counter()
        (row,) = store.queries.find([id_]).values()
        assert store.queries.bodies(row)[0].id == id_
        spent_ms.append((time.perf_counter() - start) * 1000)
    return sorted(spent_ms)[LOOKED_UP * 99 // 100]


def wait_a_year(maker: Maker, engine: Engine) -> dict[str, float]:
    """Keep timers for a year, with the copies that their engine needs: the wheel rolls them, RocksDB does not.

    Time passes in hours. The Kafka part of a roll, a copy that is produced and read again, is not measured.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    window_ms = WINDOW_MS if engine == "wheel" else 2 * YEAR_MS
    disk = RealDisk(FOLDER)
    store = create_store(disk, StoreOptions(engine=engine), Progress(0, NOTHING_SETTLED, 0))
    written, begin_s, batch = written_bytes(), time.process_time(), Batch()
    for offset in range(OF_A_YEAR):
        body, at_ms = maker.timer(offset, b"id-%d" % offset)
        due_ms = at_ms + YEAR_MS
        batch.add(body._replace(timestamp_ms=at_ms, due_ms=due_ms), min(due_ms, at_ms + window_ms))
    end = OF_A_YEAR
    store.add(batch, end)
    delivered, now_ms = 0, START_MS
    while store.pending:
        now_ms += HOUR_MS
        batch = Batch()
        while (due := store.release_queue.take_due(now_ms, TAKEN_AT_ONCE, 16 << 20)).total:
            for body in store.queries.bodies(due.rows):
                if body.due_ms <= now_ms:
                    delivered += 1
                else:
                    copy = body._replace(offset=end, timestamp_ms=now_ms, rolls=body.rolls + 1)
                    batch.add(copy, min(body.due_ms, now_ms + window_ms))
                    end += 1
        store.add(batch, end)
        checkpoint(store)
        store.compact_some()
    assert delivered == OF_A_YEAR
    store.close()
    disk.close()
    shutil.rmtree(FOLDER)
    return {
        "year_copies_a_timer": end / OF_A_YEAR - 1,
        "year_cpu_us_a_timer": (time.process_time() - begin_s) * 1e6 / OF_A_YEAR,
        "year_written_bytes_a_timer": (written_bytes() - written) / OF_A_YEAR,
    }


def rebuild(timers: int, maker: Maker, options: StoreOptions) -> tuple[float, float]:
    """Build a store from requests in memory. Return seconds, and seconds of CPU, both without making the requests."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    disk = RealDisk(FOLDER)
    store = create_store(disk, options, Progress(timers, NOTHING_SETTLED, 0))
    decided, spent_s, cpu_s = Decisions(()), 0.0, 0.0
    for first in range(0, timers, READ_AT_ONCE):
        records = [maker.request(offset) for offset in range(first, min(timers, first + READ_AT_ONCE))]
        start, cpu_start = time.perf_counter(), time.process_time()
        store.add(replay(records, store.release_queue.is_unreleased, lambda _: (RULES, timers), decided, int), timers)
        spent_s += time.perf_counter() - start
        cpu_s += time.process_time() - cpu_start
    assert store.pending == timers
    store.close()
    disk.close()
    shutil.rmtree(FOLDER)
    return spent_s, cpu_s


def measure(timers: int, engine: Engine, rule: tuple[tuple[str, bytes], ...]) -> dict[str, float]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    disk, options = RealDisk(FOLDER), StoreOptions(engine=engine)
    maker = Maker(random.Random(1), rule)
    store = create_store(disk, options, Progress(0, NOTHING_SETTLED, 0))
    empty, written = usage(os.getpid()), written_bytes()
    cpu_s, waits_s = fill(store, timers, maker)
    waits_s.append(checkpoint(store))
    used = usage(os.getpid())
    payload = timers * frame_size(maker.timer(0, b"id-0")[0])
    figures = {
        "timers": float(timers),
        "add_cpu_us_a_timer": cpu_s * 1e6 / timers,
        "bytes_of_memory_a_timer": (used.rss_mb - empty.rss_mb) * 2**20 / timers,
        "most_memory_mb": used.peak_rss_mb,
        "write_amplification": (written_bytes() - written) / payload,
        "longest_wait_for_a_checkpoint_ms": max(waits_s) * 1000,
    }
    begin_s = time.perf_counter()
    replace_some(store, timers, maker)
    figures["replace_by_id_per_s"] = IDS_ASKED / (time.perf_counter() - begin_s)
    checkpoint(store)
    stats = [file.stat() for file in FOLDER.rglob("*") if file.is_file()]
    blocks = {each.st_ino: each.st_blocks for each in stats}  # RocksDB links files
    figures["bytes_of_disk_a_timer"] = 512 * sum(blocks.values()) / timers
    store.close()
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    for end in ("stop", "kill"):
        if end == "kill":
            disk.remove(CLOSED)  # a kill leaves it unwritten
        begin_s = time.perf_counter()
        store = open_store(disk, options, found, found.progress, (), ())
        figures[f"ready_after_{end}_s"] = time.perf_counter() - begin_s
        assert store.pending == found.pending
        figures["look_up_p99_ms"] = look_up_ms(store, timers, maker.rng)
        if end == "kill":
            figures["drain_cpu_us_a_timer"] = drain(store) * 1e6 / min(DRAINED, timers)
        store.close()
    disk.close()
    shutil.rmtree(FOLDER)
    spent_s, cpu_s = rebuild(timers, maker, options)
    figures |= {"rebuild_per_s": timers / spent_s, "rebuild_cpu_us_a_timer": cpu_s * 1e6 / timers}
    return figures | wait_a_year(maker, engine)


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--timers", type=int, default=1_000_000, help="pending at once")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="measured in turn")
    parser.add_argument("--recurring", action="store_true", help="each recurs every day")
    args = parser.parse_args()
    rule = RECURRING if args.recurring else ()
    figures: dict[str, dict[str, float]] = {}
    for engine in args.engines:
        command.say(f"{engine}: {args.timers:,} timers")
        with ProcessPoolExecutor(1, get_context("spawn"), tune_gc) as pool:
            figures[engine] = pool.submit(measure, args.timers, engine, rule).result()
        if not args.recurring:  # docs/engines.md compares the engines without
            FOLDER.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    table = Table(title="one store, all timers with an id (half, when it is rebuilt), due within two days")
    for column in ("", *figures):
        table.add_column(column, justify="left" if not column else "right")
    for name in next(iter(figures.values())):
        table.add_row(name, *(f"{each[name]:,.2f}" for each in figures.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
