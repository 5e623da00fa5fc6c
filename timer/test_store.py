"""The store against a sorted list, through commits, checkpoints, crashes and losses of power."""

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.progress import NOTHING_SETTLED, Key, Progress
from timer.batch import Batch
from timer.checkpoint import NAME, Checkpoint
from timer.disk import Disk, RealDisk
from timer.errors import CorruptStoreError, WheelFullError
from timer.options import StoreOptions
from timer.record import Body
from timer.store import Due, Store
from timer.testing import SimDisk

OPTIONS = StoreOptions(tick_ms=10, slots=64, segment_bytes=300)
START_MS = 1000
FRESH = Progress(0, NOTHING_SETTLED, 0)


def body(offset: int, due_ms: int, *, timestamp_ms: int = START_MS, size: int = 3) -> Body:
    return Body("orders", -1, offset, timestamp_ms, due_ms, b"k", b"v" * size, b"", True)


def batch_of(*bodies: Body) -> Batch:
    batch = Batch()
    for each in bodies:
        batch.append(each, max(each.due_ms, each.timestamp_ms))
    return batch


def origins(store: Store, due: Due) -> list[int]:
    return [each.offset for each in store.bodies(due.rows) + store.bodies(due.released)]


def reopen(disk: Disk, progress: Progress, held: set[int]) -> Store:
    data = disk.read(NAME)
    found = Checkpoint.from_bytes(data) if data else None
    assert found is not None
    return Store.open(disk, OPTIONS, found, progress, held)


def checkpointed(store: Store) -> None:
    assert store.start_checkpoint(0)
    store.finish_checkpoint()


@dataclass
class Model:
    """What a store that is a sorted list would say. `requests[offset]` is (visit, held from the start)."""

    requests: list[int] = field(default_factory=list)
    settled: Key = NOTHING_SETTLED
    held: set[int] = field(default_factory=set)

    def live(self) -> list[Key]:
        return sorted(
            Key(visit, offset)
            for offset, visit in enumerate(self.requests)
            if offset in self.held or Key(visit, offset) > self.settled
        )

    def copy(self) -> "Model":
        return Model(list(self.requests), self.settled, set(self.held))


class StoreAgainstList(RuleBasedStateMachine):
    """Staged and committed state, a disk that may lose what is not synced, and Kafka as the list of requests."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimDisk(self.random)
        self.store = Store.create(self.disk, OPTIONS, FRESH)
        self.now_ms = START_MS
        self.staged = Model()
        self.committed = Model()
        self.progress = FRESH
        self.journal: list[tuple[set[int], set[int]]] = []
        self.staged_held: set[int] = set()
        self.staged_released: set[int] = set()
        self.due: list[Due] = []
        self.low = 0

    @rule(visits=st.lists(st.integers(-5, 400), min_size=1, max_size=12))
    def add(self, visits: list[int]) -> None:
        batch = Batch()
        first = len(self.staged.requests)
        added, held = [], set()
        for offset, ahead in enumerate(visits, first):
            visit_ms = max(self.now_ms + ahead, START_MS)
            if Key(visit_ms, offset) > self.staged.settled:
                batch.append(body(offset, visit_ms, size=offset % 50), visit_ms)
            else:
                batch.hold(body(offset, visit_ms), visit_ms)
                held.add(offset)
            added.append(visit_ms)
        try:
            self.store.add(batch, first + len(visits))
        except WheelFullError:
            return
        self.staged.requests += added
        self.staged.held |= held
        self.staged_held |= held

    @rule(limit=st.integers(1, 8), passed_ms=st.integers(-60, 120))
    def take_due(self, limit: int, passed_ms: int) -> None:
        self.now_ms = max(START_MS, self.now_ms + passed_ms)
        live = self.staged.live()
        rows = [k for k in live if k.origin not in self.staged.held and k.visit_ms <= self.now_ms][:limit]
        released = [k for k in live if k.origin in self.staged.held and k.visit_ms <= self.now_ms][:limit]
        due = self.store.due(self.now_ms, limit, 1 << 20)
        assert origins(self.store, due) == [k.origin for k in rows + released]
        if rows:
            self.staged.settled = rows[-1]
        gone = {k.origin for k in released}
        self.staged.held -= gone
        self.staged_released |= gone
        self.due.append(due)

    @rule()
    def commit(self) -> None:
        progress = self.store.progress()
        live = self.staged.live()
        lowest = min((k.origin for k in live), default=len(self.staged.requests))
        assert progress == Progress(len(self.staged.requests), self.staged.settled, max(self.low, lowest))
        self.low = progress.low_offset
        for due in self.due or [Due.none()]:
            self.store.committed(progress, due)
        self.journal.append((self.staged_held, self.staged_released))
        self.progress, self.committed, self.due = progress, self.staged.copy(), []
        self.staged_held, self.staged_released = set(), set()

    @rule(finish=st.booleans())
    def checkpoint(self, *, finish: bool) -> None:
        self.store.start_checkpoint(len(self.journal))
        if finish:
            self.store.finish_checkpoint()
        else:
            self.store.continue_checkpoint()

    @rule(power=st.booleans(), wheel=st.sampled_from(["kept", "gone", "noise"]))
    def crash(self, *, power: bool, wheel: str) -> None:
        if power:
            self.disk.lose_power(self.random)
        else:
            self.disk.kill()
        self.disk = self.disk.reopen()
        if wheel == "gone":
            self.disk.remove("wheel")
        if wheel == "noise":
            mapping = self.disk.map("wheel", OPTIONS.slots * 32)
            mapping.buffer[:] = self.random.randbytes(OPTIONS.slots * 32)
            mapping.close()
        self.recover()

    @precondition(lambda self: self.store.pending)
    @rule(name=st.sampled_from(["timer", "body"]), at=st.floats(0, 1, exclude_max=True))
    def lose_a_file(self, name: str, at: float) -> None:
        self.disk.kill()
        self.disk = self.disk.reopen()
        files = self.disk.names(name)
        if files:
            self.disk.remove(f"{name}/{files[int(at * len(files))]}")
        self.recover()

    def recover(self) -> None:
        """What bridge.recovery does, over a list."""
        data = self.disk.read(NAME)
        found = Checkpoint.from_bytes(data) if data else None
        try:
            self.store = self.catch_up(found)
            while len(due := self.store.due(10**6, 100, 1 << 20)):  # every body can be read
                self.store.bodies(due.rows), self.store.bodies(due.released)
            self.store.close()
            self.store = self.catch_up(found)
        except CorruptStoreError:
            self.store = self.catch_up(None)
        self.staged, self.due = self.committed.copy(), []
        self.staged_held, self.staged_released = set(), set()

    def catch_up(self, found: Checkpoint | None) -> Store:
        entries = self.journal[found.journal_offset if found else 0 :]
        held = {o for made, _ in entries for o in made} | set(found.held if found else ())
        held -= {o for _, released in entries for o in released}
        if found is None:
            store, start = Store.create(self.disk, OPTIONS, self.progress), self.progress.low_offset
        else:
            store, start = Store.open(self.disk, OPTIONS, found, self.progress, held), found.progress.next_offset
        batch = Batch()
        for offset in range(start, self.progress.next_offset):
            visit_ms = self.committed.requests[offset]
            if offset in held:
                batch.hold(body(offset, visit_ms), visit_ms)
            elif Key(visit_ms, offset) > self.progress.settled:
                batch.append(body(offset, visit_ms), visit_ms)
        store.add(batch, self.progress.next_offset)
        return store

    @invariant()
    def counts_what_lives(self) -> None:
        taken = sum(len(due) for due in self.due)
        assert self.store.pending == len(self.staged.live()) + taken

    @invariant()
    def knows_when_to_look_again(self) -> None:
        waiting = self.staged.live()
        look_ms = self.store.next_visit_ms(10**6)
        if waiting:
            assert look_ms is not None
            assert look_ms <= min(k.visit_ms for k in waiting)


TestStoreAgainstList = StoreAgainstList.TestCase
TestStoreAgainstList.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.fixture
def disk() -> Disk:
    return SimDisk(random.Random(0))


def test_case_1_a_timer_leaves_at_its_millisecond_and_not_before(disk: Disk) -> None:
    for tick_ms in (10, 100, 200, 500, 1000):
        store = Store.create(disk, StoreOptions(tick_ms=tick_ms, slots=64), FRESH)
        store.add(batch_of(*(body(i, due_ms) for i, due_ms in enumerate((12000, 12001, 12999)))), 3)
        left = {now: origins(store, store.due(now, 9, 1 << 20)) for now in (11999, 12000, 12001, 12998, 12999)}
        assert left == {11999: [], 12000: [0], 12001: [1], 12998: [], 12999: [2]}
        store.close()


def test_case_5_a_clock_that_jumps_over_many_ticks_releases_in_order_of_due_time(disk: Disk) -> None:
    store = Store.create(disk, OPTIONS, FRESH)
    store.add(batch_of(*(body(i, 1500 - 40 * i) for i in range(10))), 10)
    assert origins(store, store.due(10**9, 99, 1 << 20)) == list(range(9, -1, -1))


def test_case_6_a_crowd_of_one_millisecond_leaves_in_request_order(disk: Disk) -> None:
    store = Store.create(disk, StoreOptions(tick_ms=1000, slots=64), FRESH)
    store.add(batch_of(*(body(i, 5000) for i in range(5000))), 5000)
    left: list[int] = []
    while len(due := store.due(5000, 700, 1 << 30)):
        left += origins(store, due)
    assert left == list(range(5000))


def test_case_10_log_files_of_1024_bytes(disk: Disk) -> None:
    store = Store.create(disk, StoreOptions(tick_ms=10, slots=64, segment_bytes=1024), FRESH)
    for offset in range(110):
        store.add(batch_of(body(offset, 1200)), offset + 1)
    store.committed(store.progress(), Due.none())
    checkpointed(store)
    files = disk.names("timer")
    assert len(files) == 6  # 19 units and a blank of 36 bytes in each of the first five
    assert [disk.open(f"timer/{name}").size() for name in files[:2]] == [19 * 52 + 16] * 2
    store.close()

    store = Store.open(disk, OPTIONS, found_in(disk), store.progress(), ())
    due = store.due(1200, 200, 1 << 20)
    assert origins(store, due) == list(range(110))
    store.committed(store.progress(), due)
    store.add(batch_of(body(110, 1300)), 111)
    store.committed(store.progress(), Due.none())
    later = store.due(1300, 200, 1 << 20)
    store.committed(store.progress(), later)
    checkpointed(store)
    assert (len(disk.names("timer")), len(disk.names("body"))) == (1, 1)


def found_in(disk: Disk) -> Checkpoint:
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    return found


def test_case_24_an_append_that_fails_leaves_nothing_behind() -> None:
    disk = SimDisk(random.Random(3))
    store = Store.create(disk, OPTIONS, FRESH)
    store.add(batch_of(body(0, 1100)), 1)
    eleven = batch_of(*(body(i, 1100) for i in range(1, 12)))
    for taken in (0, 1, 2):
        disk.fail_append(taken)
        with pytest.raises(OSError, match="simulated"):
            store.add(eleven, 12)
        assert (store.pending, store.next_offset) == (1, 1)
        disk.mend()
    store.add(eleven, 12)
    assert origins(store, store.due(1100, 99, 1 << 20)) == list(range(12))


def test_a_real_folder_keeps_a_store_over_a_kill() -> None:
    with tempfile.TemporaryDirectory() as folder:
        disk = RealDisk(Path(folder))
        store = Store.create(disk, OPTIONS, FRESH)
        store.add(batch_of(*(body(i, 1100 + i) for i in range(30))), 30)
        gone = store.due(1110, 99, 1 << 20)
        store.committed(store.progress(), gone)
        checkpointed(store)
        progress = store.progress()
        store.add(batch_of(body(30, 1105)), 31)  # never committed
        again = reopen(RealDisk(Path(folder)), progress, set())
        assert again.pending == 19
        assert origins(again, again.due(2000, 99, 1 << 20)) == list(range(11, 30))
