"""A small closed store with each kind of unit, frame and slot, written by the product's own store.

offset   0 1 2     3        4 ... 8   9            10          11     12            13 14     15
timer    settled   ended    pending   to be        copy of 1   held   held, ended   cancels   paused target
                                      rolled
"""

from typing import Any

from kafka_timer.headers import Headers
from schemas.journal import CopyInFlight
from schemas.progress import NOTHING_SETTLED, Progress
from timer.disk import Disk
from timer.engines import create_store
from timer.format.batch import Batch
from timer.format.body import Body, pack_headers
from timer.options import StoreOptions
from timer.store import Store
from timer.testing import SimDisk

START_MS = 1_700_000_000_000
OPTIONS = StoreOptions(tick_ms=1000, slots=16, segment_bytes=480, compact_below=0.0)
FLIGHT = CopyInFlight(origin_offset=0, rolls=1, due_ms=START_MS + 90_000, target="orders", id_hash="ab", digest="cd")
ENDED_FLIGHT = CopyInFlight(origin_offset=2, rolls=1, due_ms=START_MS + 90_001, target="bills", id_hash="", digest="ef")

ALL_HEADERS: Headers = [
    ("timer-topic", b"orders"),
    ("trace", b"\x00\xff"),
    ("timer-key", b"delivered key"),
    ("none", None),
]


def timer(offset: int, due_ms: int, *, target: str = "orders", origin: int | None = None, **other: Any) -> Body:
    """`due_ms` and `visit_ms` of this module count from START_MS."""
    headers, is_plain = pack_headers(ALL_HEADERS if offset % 2 else ALL_HEADERS[:1])
    first = offset if origin is None else origin
    made = Body(
        target=target,
        partition=offset % 3 - 1,
        offset=offset,
        timestamp_ms=START_MS + offset,
        due_ms=START_MS + due_ms,
        key=b"key-%d" % offset,
        value=b"value-%d" % offset,
        headers=headers,
        plain=is_plain,
        origin_offset=first,
        rolls=0,
        id=b"id-%d" % offset,
    )
    return made._replace(**other)


def write(disk: Disk) -> None:
    """Close the store of this module on `disk`."""
    fresh = Progress(next_offset=0, settled=NOTHING_SETTLED, low_offset=0, era=START_MS - 5)
    store = create_store(disk, OPTIONS, fresh)
    add(store, *((timer(offset, 500 + 400 * offset), 500 + 400 * offset) for offset in range(9)), next_offset=9)
    store.release_queue.take_due(START_MS + 1400, 100, 1 << 20)  # 0, 1 and 2 leave
    store.release_queue.pause("bills", is_paused=True)
    add(store, (timer(9, 90_000, key=None, id=None), 8000), next_offset=10)
    add(store, (timer(10, 3000, origin=1, rolls=1, value=None), 3000), next_offset=11)
    hold(store, timer(11, 60_000, key=None, value=None), timer(12, 61_000), next_offset=13)
    end(store, b"id-3", b"id-12", next_offset=15)
    add(store, (timer(15, 2000, target="bills"), 2000), next_offset=16)
    store.committed(store.advance_progress()._replace(number=7))
    assert store.start_checkpoint(21, (FLIGHT, ENDED_FLIGHT), (ENDED_FLIGHT.origin_offset,))
    store.finish_checkpoint()
    store.close()


def add(store: Store, *timers: tuple[Body, int], next_offset: int) -> None:
    batch = Batch()
    for body, visit_ms in timers:
        batch.add(body, START_MS + visit_ms)
    store.add(batch, next_offset)


def hold(store: Store, *bodies: Body, next_offset: int) -> None:
    batch = Batch()
    for body in bodies:
        batch.hold(body, START_MS + 1000)
    store.add(batch, next_offset)


def end(store: Store, *ids: bytes, next_offset: int) -> None:
    batch = Batch()
    for row in store.queries.find(list(ids)).values():
        batch.end(row)
    store.add(batch, next_offset)


def files() -> dict[str, bytes]:
    """Return each file of the store by its path."""
    disk = SimDisk()
    write(disk)
    return disk.contents()
