"""A small store and what happens to it, for tests of `verify`, of the offline store and of the commands on them."""

from dataclasses import replace

from schemas.progress import NOTHING_SETTLED, Progress
from timer.disk import Disk
from timer.engines import create_store, open_store
from timer.format.batch import Batch
from timer.format.body import Body, pack_headers
from timer.format.checkpoint import NAME, Checkpoint
from timer.format.unit import BLANK_SIZE, UNIT_SIZE
from timer.options import Engine, StoreOptions

OPTIONS = StoreOptions(tick_ms=1000, slots=64, segment_bytes=400, compact_below=0.0)
PER_SEGMENT = (OPTIONS.segment_bytes - BLANK_SIZE) // UNIT_SIZE
START_MS = 1_700_000_000_000


def id_of(offset: int) -> bytes | None:
    """Return an id for three of four timers."""
    return b"id-%d" % offset if offset % 4 else None


def body(offset: int, due_ms: int, *, origin: int | None = None, rolls: int = 0) -> Body:
    """Return a body; key, value and headers vary with the offset."""
    headers, plain = pack_headers([("timer-topic", b"orders"), ("trace", None)][: 1 + offset % 2])
    key = None if offset % 5 == 0 else b"key-%d" % offset
    value = None if offset % 7 == 0 else b"v" * (offset % 30)
    origin = offset if origin is None else origin
    id_ = id_of(origin)
    return Body("orders", offset % 3 - 1, offset, START_MS, due_ms, key, value, headers, plain, origin, rolls, id_)


class History:
    """A store, and methods that drive it. Times are ms after START_MS."""

    engine: Engine = "wheel"

    def __init__(self, disk: Disk, options: StoreOptions = OPTIONS) -> None:
        self.disk = disk
        self.options = replace(options, engine=self.engine)
        self.store = create_store(disk, self.options, Progress(0, NOTHING_SETTLED, 0))
        self.offset = 0

    def receives(self, *dues: int, visit: int | None = None, origin: int | None = None) -> None:
        batch = Batch()
        for due in dues:
            visit_ms = START_MS + (due if visit is None else visit)
            timer = body(self.offset, START_MS + due, origin=origin, rolls=0 if origin is None else 1)
            place = batch.add if (visit_ms, timer.origin_offset) > self.store.release_queue.settled else batch.hold
            place(timer, visit_ms)
            self.offset += 1
        self.store.add(batch, self.offset)

    def cancels(self, *origins: int) -> None:
        batch = Batch()
        for row in self.store.queries.find([id_ for origin in origins if (id_ := id_of(origin))]).values():
            batch.end(row)
        self.offset += 1
        self.store.add(batch, self.offset)

    def releases(self, now: int, limit: int = 1000) -> None:
        self.store.release_queue.take_due(START_MS + now, limit, 1 << 20)

    def checkpoints(self) -> None:
        self.store.committed(self.store.advance_progress())
        if self.store.start_checkpoint(0, (), ()):
            self.store.finish_checkpoint()

    def closes(self) -> None:
        self.checkpoints()
        self.store.close()

    def starts_again(self, options: StoreOptions | None = None) -> None:
        found = Checkpoint.from_bytes(self.disk.read(NAME) or b"")
        assert found is not None
        self.options = options or self.options
        if self.engine == "rocksdb":  # one process opens a database once
            self.store.close()
        self.store = open_store(self.disk, self.options, found, found.progress, found.held, ())
        self.offset = found.progress.next_offset


def full_history(disk: Disk) -> History:
    """Return a history with every kind of unit; some files are deleted."""
    history = History(disk)
    for due in range(0, 3000, 100):
        history.receives(due)
    history.receives(*(5000 + 300 * i for i in range(30)))
    history.releases(2450)
    history.checkpoints()
    history.receives(90_000, 95_000, visit=9000)  # to be rolled
    history.receives(7000, origin=3)  # a copy
    history.receives(100_000, visit=2000)  # key has passed, not due: out of order
    history.receives(101_000, visit=2001)
    history.cancels(33, 41, 42, 63)  # the last one is out of order
    history.receives(5200, 6200, 7300)
    history.cancels(34)
    history.checkpoints()
    history.starts_again()
    history.receives(*(8000 + i for i in range(9)))
    return history
