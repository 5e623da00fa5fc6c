"""Compare the store with a sorted list, through commits, checkpoints, crashes and losses of power."""

import errno
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from schemas.journal import END, Wait
from schemas.progress import NOTHING_SETTLED, Key, Progress
from timer.disk import Disk, RealDisk
from timer.engines import create_store, open_store
from timer.errors import CorruptStoreError, UnreadableError, WheelFullError
from timer.format.batch import Batch
from timer.format.body import Body
from timer.format.checkpoint import CLOSED, NAME, Checkpoint
from timer.format.unit import TIMER_ROW, UNIT, UNIT_SIZE
from timer.index import due_counts as dues
from timer.index.due_counts import HOUR_MS
from timer.options import StoreOptions
from timer.schedule.release_policy import Gate
from timer.schedule.release_queue import Due
from timer.store import Store
from timer.testing import SimDisk
from timer.wheel.store import WheelStore
from timer.wheel.timer_log import UnitLog
from timer.wheel.timer_wheel import EXTENT_SLOTS

OPTIONS = StoreOptions(tick_ms=10, slots=64, segment_bytes=300, compact_below=0.6, compact_ahead_ms=0)
START_MS = 1000
EMPTY = Progress(0, NOTHING_SETTLED, 0)


def id_of(offset: int) -> bytes | None:
    """Return an id for two of three timers."""
    return b"id-%d" % offset if offset % 3 else None


def body(offset: int, due_ms: int, *, timestamp_ms: int = START_MS, size: int = 3) -> Body:
    return Body("orders", -1, offset, timestamp_ms, due_ms, b"k", b"v" * size, b"", True, offset, 0, id_of(offset))


def timer_at(offset: int, visit_ms: int, *, size: int = 3) -> Body:
    """Return a timer of one of two topics. Each fifth rolls at its wake-up time, as it is due some hours later."""
    due_ms = visit_ms + (0 if offset % 5 else (offset % 7) * HOUR_MS)
    return body(offset, due_ms, size=size)._replace(target=("orders", "bills")[offset % 2])


def batch_of(*bodies: Body) -> Batch:
    batch = Batch()
    for each in bodies:
        batch.add(each, max(each.due_ms, each.timestamp_ms))
    return batch


def held(*bodies: Body) -> Batch:
    batch = Batch()
    for each in bodies:
        batch.hold(each, each.due_ms)
    return batch


def to(target: str, offset: int, due_ms: int) -> Body:
    return body(offset, due_ms)._replace(target=target)


def origins(store: Store, due: Due) -> list[int]:
    return [each.origin_offset for each in store.queries.bodies(due.rows) + store.queries.bodies(due.released)]


def take_due(store: Store, now_ms: int) -> list[int]:
    return origins(store, store.release_queue.take_due(now_ms, 99, 1 << 20))


def found_in(disk: Disk) -> Checkpoint:
    found = Checkpoint.from_bytes(disk.read(NAME) or b"")
    assert found is not None
    return found


def reopen(
    disk: Disk, options: StoreOptions | None = None, progress: Progress | None = None, ended: tuple[int, ...] = ()
) -> Store:
    found = found_in(disk)
    return open_store(disk, options or OPTIONS, found, progress or found.progress, (), ended)


def checkpointed(store: Store) -> None:
    """Commit what is staged, and make a checkpoint."""
    store.committed(store.advance_progress())
    assert store.start_checkpoint(0, (), ())
    store.finish_checkpoint()


def stopped(store: Store) -> None:
    checkpointed(store)
    store.close()


# -- against a sorted list


@dataclass
class Model:
    """The store as a sorted list. requests[offset]: wake-up time. held: out-of-order offsets."""

    requests: list[int] = field(default_factory=list)
    settled: Key = NOTHING_SETTLED
    held: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)

    def live(self) -> list[Key]:
        return sorted(
            Key(visit, offset)
            for offset, visit in enumerate(self.requests)
            if offset not in self.ended | self.released and (offset in self.held or Key(visit, offset) > self.settled)
        )


class StoreAgainstList(RuleBasedStateMachine):
    """Staged and committed state, a disk that may lose unsynced bytes, and Kafka as the list of requests."""

    base = OPTIONS
    times_full = 0
    """Refused batches, of all machines together."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimDisk(self.random)
        self.options = self.base
        self.store = create_store(self.disk, self.base, EMPTY)
        self.now_ms = START_MS
        self.committed = Model()
        self.drop_staged()
        self.progress = EMPTY
        self.journal: list[tuple[set[int], set[int], set[int]]] = []
        self.low = 0
        self.slots = OPTIONS.slots
        """Of the store: more than `options` have after a start with pending timers that span more than a lap."""

    @rule(
        visits=st.lists(st.integers(-5, 400) | st.integers(500, 1500), min_size=1, max_size=12), is_held=st.booleans()
    )
    def add(self, visits: list[int], *, is_held: bool) -> None:
        """is_held: each third timer is out of order, whatever its key."""
        batch = Batch()
        first = len(self.staged.requests)
        added, held = [], set()
        for offset, ahead in enumerate(visits, first):
            visit_ms = max(self.now_ms + ahead, START_MS)
            if Key(visit_ms, offset) > self.staged.settled and not (is_held and offset % 3 == 0):
                batch.add(timer_at(offset, visit_ms, size=offset % 50), visit_ms)
            else:
                batch.hold(timer_at(offset, visit_ms), visit_ms)
                held.add(offset)
            added.append(visit_ms)
        in_order_ms = [k.visit_ms for k in self.staged.live() if k.origin_offset not in self.staged.held]
        in_order_ms += [visit_ms for offset, visit_ms in enumerate(added, first) if offset not in held]
        ticks = {visit_ms // OPTIONS.tick_ms for visit_ms in in_order_ms}
        has_a_slot_for_each = self.base.engine == "rocksdb" or len({tick % self.slots for tick in ticks}) == len(ticks)
        try:
            self.store.add(batch, first + len(visits))
        except WheelFullError:
            assert not has_a_slot_for_each
            StoreAgainstList.times_full += 1
            return
        assert has_a_slot_for_each, "a slot holds timers of two ticks"
        self.staged.requests += added
        self.staged.held |= held
        self.staged_held |= held

    @rule(chosen=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4), unknown=st.integers(0, 400))
    def end(self, chosen: list[float], unknown: int) -> None:
        live = self.staged.live()
        named = {id_of(k.origin_offset): k for k in live if id_of(k.origin_offset)}
        keys = [live[int(at * len(live))] for at in chosen] if live else []
        wanted = {key.origin_offset for key in keys} | {unknown}
        ids = [id_ for origin in sorted(wanted) if (id_ := id_of(origin))]
        found = self.store.queries.find(ids)
        expected = {id_: named[id_] for id_ in ids if id_ in named}
        assert {id_: (int(row["visit_ms"][0]), int(row["origin"][0])) for id_, row in found.items()} == expected
        batch = Batch()
        for row in found.values():
            batch.end(row)
        self.store.add(batch, len(self.staged.requests))
        removed = {key.origin_offset for key in expected.values()}
        self.staged.ended |= removed
        self.staged_ended |= removed

    @rule(chosen=st.lists(st.integers(0, 400), min_size=1, max_size=4))
    def end_by_origin(self, chosen: list[int]) -> None:
        live = {key.origin_offset: key.visit_ms for key in self.staged.live()}
        batch = Batch()
        for origin in set(chosen):
            rows = self.store.queries.find_origin(origin)
            assert rows["visit_ms"].tolist() == ([live[origin]] if origin in live else [])
            if len(rows):
                batch.end(rows)
                self.staged.ended.add(origin)
                self.staged_ended.add(origin)
        self.store.add(batch, len(self.staged.requests))

    @rule(limit=st.integers(1, 8), passed_ms=st.integers(-3, 5) | st.integers(-60, 120) | st.integers(200, 800))
    def take_due(self, limit: int, passed_ms: int) -> None:
        self.now_ms = max(START_MS, self.now_ms + passed_ms)
        live = self.staged.live()
        rows = [k for k in live if k.origin_offset not in self.staged.held and k.visit_ms <= self.now_ms]
        now_ms = self.now_ms
        released = [k for k in live if k.origin_offset in self.staged.held and k.visit_ms <= now_ms]
        due = self.store.release_queue.take_due(self.now_ms, limit, 1 << 20)
        assert due.total <= limit
        rows, released = rows[: len(due.rows)], released[: len(due.released)]
        assert origins(self.store, due) == [k.origin_offset for k in rows + released]
        if rows:
            self.staged.settled = rows[-1]
        removed = {k.origin_offset for k in released}
        self.staged.held -= removed
        self.staged.released |= removed
        self.staged_released |= removed

    @rule()
    def commit(self) -> None:
        progress = self.store.advance_progress()
        live = self.staged.live()
        lowest = min((k.origin_offset for k in live), default=len(self.staged.requests))
        assert progress == Progress(len(self.staged.requests), self.staged.settled, max(self.low, lowest))
        self.low = progress.low_offset
        self.store.committed(progress)
        self.journal.append((self.staged_held, self.staged_released, self.staged_ended))
        self.progress, self.committed = progress, self.staged
        self.drop_staged()

    def drop_staged(self) -> None:
        self.staged = deepcopy(self.committed)
        self.staged_held, self.staged_released, self.staged_ended = set[int](), set[int](), set[int]()

    @rule(finish=st.booleans())
    def checkpoint(self, *, finish: bool) -> None:
        self.store.start_checkpoint(len(self.journal), (), ())
        if finish:
            self.store.finish_checkpoint()
        else:
            self.store.continue_checkpoint()

    @rule(times=st.integers(1, 6))
    def compact(self, times: int) -> None:
        for _ in range(times):
            self.store.compact_some()

    @rule(
        power=st.booleans(), wheel=st.sampled_from(["kept", "gone", "noise"]), slots=st.sampled_from([64, 64, 91, 640])
    )
    def crash(self, *, power: bool, wheel: str, slots: int) -> None:
        self.options = replace(self.base, slots=slots)
        if power:
            self.disk.lose_power(self.random)
        else:
            self.disk.kill()
        self.disk = self.disk.reopen()
        if wheel == "gone":
            self.disk.remove("wheel")
        if wheel == "noise":
            mapping = self.disk.map("wheel", OPTIONS.slots * 32)
            mapping.allocate(0, OPTIONS.slots * 32)
            mapping.buffer[:] = self.random.randbytes(OPTIONS.slots * 32)
            mapping.close()
        self.recover(may_be_wrong=power)  # a unit that was overwritten may be torn then

    @precondition(lambda self: self.store.pending)
    @rule(name=st.sampled_from(["timer", "body"]), at=st.floats(0, 1, exclude_max=True))
    def lose_a_file(self, name: str, at: float) -> None:
        self.disk.kill()
        self.disk = self.disk.reopen()
        found = self.checkpoint_found()
        if found is not None and found.database is not None:
            folder = self.disk.folder(f"rocksdb/{found.database}")
            tables = sorted(folder.glob("*.sst"))
            if tables:
                tables[int(at * len(tables))].unlink()
            self.recover(may_be_wrong=True)
            return
        files = self.disk.names(name)
        if files:
            self.disk.remove(f"{name}/{files[int(at * len(files))]}")
        self.recover(may_be_wrong=True)

    @rule()
    def stop(self) -> None:
        """Stop cleanly: if nothing is staged, the next opening uses the shutdown snapshot."""
        self.store.finish_checkpoint()
        self.store.start_checkpoint(len(self.journal), (), ())
        self.store.finish_checkpoint()
        self.store.close()
        self.store = self.catch_up(self.checkpoint_found())
        self.drop_staged()

    def recover(self, *, may_be_wrong: bool) -> None:
        """Do what bridge.partition.recover does, over a list."""
        found = self.checkpoint_found()
        try:
            self.store = self.catch_up(found)
            while (due := self.store.release_queue.take_due(10**6, 100, 1 << 20)).total:  # every body can be read
                self.store.queries.bodies(due.rows), self.store.queries.bodies(due.released)
            self.store.close()
            self.store = self.catch_up(self.checkpoint_found())
        except CorruptStoreError:
            if not may_be_wrong:
                raise
            self.store = self.catch_up(None)
        self.drop_staged()

    def checkpoint_found(self) -> Checkpoint | None:
        data = self.disk.read(NAME)
        return Checkpoint.from_bytes(data) if data else None

    def catch_up(self, found: Checkpoint | None) -> Store:
        """Open with more slots if the pending timers span more than a lap."""
        options = self.options
        while True:
            self.slots = options.slots
            try:
                return self.caught_up(found, options)
            except WheelFullError:
                options = replace(options, slots=2 * options.slots)

    def caught_up(self, found: Checkpoint | None, options: StoreOptions) -> Store:
        entries = self.journal[found.journal_offset if found else 0 :]
        held = {o for made, _, _ in entries for o in made} | set(found.held if found else ())
        released = {o for _, removed, _ in entries for o in removed}
        held -= released
        ended = {o for _, _, removed in entries for o in removed}
        if found is None:
            store, start = create_store(self.disk, options, self.progress), self.progress.low_offset
        else:
            store = open_store(self.disk, options, found, self.progress, held, ended)
            start = found.progress.next_offset
        batch = Batch()
        for offset in range(start, self.progress.next_offset):
            visit_ms = self.committed.requests[offset]
            if offset in ended | released:
                continue
            if offset in held:
                batch.hold(timer_at(offset, visit_ms), visit_ms)
            elif Key(visit_ms, offset) > self.progress.settled:
                batch.add(timer_at(offset, visit_ms), visit_ms)
        try:
            store.add(batch, self.progress.next_offset)
        except WheelFullError:
            store.close()
            raise
        store.committed(self.progress)
        return store

    @invariant()
    def counts_pending(self) -> None:
        assert self.store.pending == len(self.staged.live())

    @rule(patience=st.integers(0, 9))
    def compare_due_ranges(self, patience: int) -> None:
        """First with a search that ends early, then exactly."""
        dues: dict[str, list[int]] = {}
        for visit_ms, offset in self.staged.live():
            timer = timer_at(offset, visit_ms)
            dues.setdefault(timer.target, []).append(timer.due_ms)
        ranges = {target: (len(own), min(own), max(own)) for target, own in dues.items()}
        times = iter(range(patience))
        rough = self.store.queries.due_ranges(lambda: next(times, None) is None)
        assert rough.keys() == ranges.keys()
        for target, (count, first_ms, last_ms) in ranges.items():
            rough_first_ms, rough_last_ms = rough[target].first_ms, rough[target].last_ms
            assert rough[target].pending == count
            assert rough_first_ms in (first_ms, first_ms // HOUR_MS * HOUR_MS)
            assert rough_last_ms in (last_ms, (last_ms // HOUR_MS + 1) * HOUR_MS - 1)
        assert self.store.queries.due_ranges() == ranges
        hours = {target: Counter(due_ms // HOUR_MS * HOUR_MS for due_ms in own) for target, own in dues.items()}
        assert self.store.queries.dues.hours() == hours

    @invariant()
    def wakes_up_in_time(self) -> None:
        waiting = self.staged.live()
        wake_up_ms = self.store.release_queue.next_visit_ms(10**6)
        if waiting:
            assert wake_up_ms is not None
            assert wake_up_ms <= max(self.now_ms, min(k.visit_ms for k in waiting))  # any past time will do


@pytest.mark.thorough
def test_the_store_behaves_like_a_sorted_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timer.index.id_index.BLOCK_UNITS", 4)
    StoreAgainstList.times_full = 0
    run_state_machine_as_test(StoreAgainstList, settings=settings(max_examples=150, stateful_step_count=40))
    assert StoreAgainstList.times_full > 0, "no slot was ever occupied by another lap"


class RocksStoreAgainstList(StoreAgainstList):
    base = replace(OPTIONS, engine="rocksdb")


@pytest.mark.thorough
def test_the_store_behaves_like_a_sorted_list_on_rocksdb() -> None:
    examples, steps = 10 * int(os.environ.get("EXAMPLES", "1")), 40
    run_state_machine_as_test(
        RocksStoreAgainstList, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


@pytest.fixture(params=["wheel", "rocksdb"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with each engine."""
    monkeypatch.setitem(globals(), "OPTIONS", replace(OPTIONS, engine=request.param))


of_each_engine = pytest.mark.usefixtures("engine")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(0))


@pytest.fixture
def store(disk: SimDisk) -> Store:
    return create_store(disk, OPTIONS, EMPTY)


# -- what a store holds


@of_each_engine
def test_l_is_the_offset_of_a_copy_and_not_its_origin(store: Store) -> None:
    store.add(batch_of(body(9, 1100)._replace(origin_offset=3)), 10)
    assert store.advance_progress().low_offset == 9


@pytest.mark.thorough
@of_each_engine
@pytest.mark.parametrize("seed", range(12, 16))
def test_any_timer_is_found_by_its_origin_after_rolls_and_restarts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of rolled timers lie among later requests. Files of few units each are deleted once they are empty."""
    monkeypatch.setattr("timer.index.id_index.BLOCK_UNITS", 4 if seed % 2 else 16)
    rng = random.Random(seed)
    disk = SimDisk(rng)
    options = replace(OPTIONS, segment_bytes=(3 if seed % 3 else 30) * 52 + 16)
    store = create_store(disk, options, EMPTY)
    pending: dict[int, int] = {}
    for offset in range(120):
        origin = offset
        if pending and rng.random() < 0.5:
            origin = rng.choice(sorted(pending))
            pending.pop(origin)
            batch = Batch()
            batch.end(store.queries.find_origin(origin))
            store.add(batch, offset)
            assert len(store.queries.find_origin(origin)) == 0
            if rng.random() < 0.3:
                continue
        visit_ms = 1100 + offset + (500 if rng.random() < 0.1 else 0)
        store.add(batch_of(body(offset, visit_ms)._replace(origin_offset=origin)), offset + 1)
        pending[origin] = visit_ms
        if rng.random() < 0.1:
            due = store.release_queue.take_due(1100 + offset, 99, 1 << 20)
            for gone in origins(store, due):
                del pending[gone]
            checkpointed(store)
            if rng.random() < 0.5:
                store.close()
            disk.kill()
            disk = disk.reopen()
            store = reopen(disk, options)
        found_ms = [store.queries.find_origin(origin)["visit_ms"].tolist() for origin in range(offset + 1)]
        assert found_ms == [[pending[origin]] if origin in pending else [] for origin in range(offset + 1)]


def test_a_store_with_another_tick_is_refused_unchanged(disk: SimDisk) -> None:
    four(disk)
    before = disk.contents()
    with pytest.raises(ValueError, match="tick_ms 70, the store was built by wheel with 10"):
        reopen(disk, replace(OPTIONS, tick_ms=70))
    assert disk.contents() == before


# -- files, damage and compaction


def test_case_24_a_failed_append_changes_nothing(disk: SimDisk, store: Store) -> None:
    store.add(batch_of(body(0, 1100)), 1)
    eleven = batch_of(*(body(i, 1100) for i in range(1, 12)))
    for taken in (0, 1, 2):
        disk.fail_append(taken)
        with pytest.raises(OSError, match="simulated"):
            store.add(eleven, 12)
        assert (store.pending, store.next_offset) == (1, 1)
        disk.mend()
    store.add(eleven, 12)
    assert take_due(store, 1100) == list(range(12))


@of_each_engine
def test_an_empty_store_takes_less_than_a_megabyte(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    store = create_store(disk, replace(OPTIONS, slots=StoreOptions().slots), EMPTY)
    store.add(Batch(), 1)
    stopped(store)
    disk.close()
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


def test_case_24_a_full_disk_refuses_timers_whose_slots_have_no_blocks_yet(disk: SimDisk) -> None:
    options = replace(OPTIONS, slots=3 * EXTENT_SLOTS, segment_bytes=10_000)
    store = create_store(disk, options, EMPTY)
    visits_ms = [1100 + extent * EXTENT_SLOTS * OPTIONS.tick_ms for extent in range(3)]
    batch = batch_of(*(body(offset, visit_ms) for offset, visit_ms in enumerate(visits_ms)))
    for extents in range(3):
        disk.fail_append(extents)
        with pytest.raises(OSError, match="simulated"):
            store.add(batch, 3)
        assert (store.pending, store.next_offset) == (0, 0)
        disk.mend()
    store.add(batch, 3)
    stopped(store)
    for _ in range(2):  # with the shutdown snapshot, then without
        disk.fail_append(0)
        with pytest.raises(OSError, match="simulated"):
            reopen(disk, options)
        disk.mend()
    again = reopen(disk, options)
    assert take_due(again, visits_ms[-1]) == [0, 1, 2]
    again.close()


@pytest.mark.parametrize("size", [3, 4])
def test_a_unit_with_the_body_of_another_is_detected_before_its_id_or_offset_is_used(
    disk: SimDisk, store: Store, size: int
) -> None:
    """A loss of power tore the unit while a compaction repointed it."""
    store.add(batch_of(body(1, 1100), body(2, 1200, size=size)), 3)
    stopped(store)
    (name,) = disk.names("timer")
    units = disk.open(f"timer/{name}")
    first, second = np.frombuffer(units.read(0, 2 * UNIT.itemsize), UNIT).copy()
    second["body"] = first["body"]
    units.overwrite(UNIT.itemsize, second.tobytes())
    again = reopen(disk)
    assert again.queries.find([b"id-1"])
    with pytest.raises(CorruptStoreError, match="not the body of origin 2"):
        again.queries.find([b"id-2"])
    take_due(again, 1100)
    with pytest.raises(CorruptStoreError, match="body log at 0: "):
        again.advance_progress()


def ended(store: Store, *origins: int) -> Batch:
    batch = Batch()
    for row in store.queries.find([id_ for origin in origins if (id_ := id_of(origin))]).values():
        batch.end(row)
    return batch


def four(disk: Disk) -> None:
    """Create a store with four timers of one tick, and close it."""
    store = create_store(disk, OPTIONS, EMPTY)
    store.add(batch_of(*(body(offset, 1500) for offset in range(4))), 4)
    stopped(store)


def test_a_lost_file_is_detected_even_if_the_count_is_right_without_it(disk: SimDisk, store: Store) -> None:
    """The count is right: 5 and 6 are lost, 1 and 2 would be pending again."""
    store.add(batch_of(*(body(offset, 1500) for offset in range(7))), 7)
    store.add(ended(store, 1, 2), 7)
    store.add(batch_of(*(body(offset, 1500) for offset in range(7, 10))), 10)
    stopped(store)
    assert len(disk.names("timer")) == 3
    for folder in ("timer", "ids", "body"):
        twin = disk.copy()
        twin.remove(f"{folder}/{disk.names(folder)[1]}")
        with pytest.raises(CorruptStoreError, match="the file is missing"):
            reopen(twin)
    assert reopen(disk).pending == 8


def test_a_deleted_file_that_a_loss_of_power_brings_back_is_deleted_again(disk: SimDisk, store: Store) -> None:
    """Even if only half of it is back: its file in ids/ may be lost."""
    store.add(batch_of(*(body(offset, 1100) for offset in range(5))), 5)
    store.add(batch_of(body(5, 1200), *(body(offset, 1500) for offset in range(6, 10))), 10)
    first = disk.names("timer")[0]
    kept = disk.read(f"timer/{first}") or b""
    take_due(store, 1200)
    stopped(store)
    assert first not in disk.names("timer")
    disk.open(f"timer/{first}").append(kept)
    again = reopen(disk)
    assert first not in disk.names("timer")
    assert take_due(again, 2000) == list(range(6, 10))


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize(("folder", "at"), [("timer", 52 + 11), ("timer", 52 + 20), ("timer", 52 + 51), ("ids", 13)])
def test_a_flipped_byte_of_a_unit_is_detected_at_once_or_when_its_tick_opens(folder: str, at: int, end: str) -> None:
    """In the previous unit, the wake-up time, the origin, and the due time. After a clean stop no unit is read."""
    disk = SimDisk(random.Random(5))
    four(disk)
    file = disk.open(f"{folder}/{disk.names(folder)[0]}")
    file.overwrite(at, bytes([file.read(at, 1)[0] ^ 1]))
    if end == "kill":
        disk.remove(CLOSED)
        with pytest.raises(CorruptStoreError, match="check does not match"):
            reopen(disk)
    else:
        store = reopen(disk)
        with pytest.raises(CorruptStoreError, match="check does not match"):
            take_due(store, 1500)


def test_a_count_of_a_slot_that_does_not_fit_is_detected_when_its_tick_opens(disk: SimDisk) -> None:
    """After the opening the wheel becomes an older one, which does not know that a timer has ended."""
    four(disk)
    older = disk.read("wheel") or b""
    store = reopen(disk)
    store.add(ended(store, 1), 5)
    stopped(store)
    store = reopen(disk)
    disk.open("wheel").overwrite(0, older)
    with pytest.raises(CorruptStoreError, match="3 live units, the slot counts 4"):
        take_due(store, 1500)


# -- shutdown snapshots


def test_a_shutdown_snapshot_is_used_once_and_without_reading_the_log(disk: SimDisk) -> None:
    four(disk)
    units = disk.open(f"timer/{disk.names('timer')[0]}")
    whole = units.read(0, units.size())
    units.overwrite(0, bytes(len(whole)))
    store = reopen(disk)
    units.overwrite(0, whole)
    assert (store.pending, store.queries.due_ranges()) == (4, {"orders": (4, 1500, 1500)})
    assert store.queries.find([b"id-1"]).keys() == {b"id-1"}
    disk.kill()
    units = (disk := disk.reopen()).open(f"timer/{disk.names('timer')[0]}")
    units.overwrite(0, bytes(len(whole)))
    with pytest.raises(CorruptStoreError):  # killed since: now the log is read
        reopen(disk)


def test_a_shutdown_snapshot_takes_any_number_of_topics(disk: SimDisk) -> None:
    """Their names make a line of more than 1 MiB."""
    options = replace(OPTIONS, segment_bytes=1 << 20)
    store = create_store(disk, options, EMPTY)
    count = 6000
    store.add(batch_of(*(to(f"{offset:0200d}", offset, START_MS + 5) for offset in range(count))), count)
    stopped(store)
    again = reopen(disk.reopen(), options)
    assert (again.pending, again.queries.dues.targets) == (count, count)


@of_each_engine
def test_due_ranges_of_a_search_that_ends_early_are_exact_to_the_hour(store: Store) -> None:
    store.add(batch_of(*(body(offset, 1100 + 100 * offset) for offset in range(5))), 5)
    ranges = store.queries.due_ranges
    assert ranges(lambda: True) == {"orders": (5, 1100, 1500)}, "known times are exact"
    store.add(ended(store, 4), 6)
    never = pytest.fail
    assert ranges(lambda: never("a search"), needs_last=False) == {"orders": (4, 1100, HOUR_MS - 1)}
    take_due(store, 1100)
    assert ranges(lambda: True) == {"orders": (3, 0, HOUR_MS - 1)}
    assert ranges() == ranges(lambda: True) == {"orders": (3, 1200, 1400)}
    store.close()


def flip(disk: SimDisk, name: str) -> None:
    """Change each seventh byte."""
    file = disk.open(name)
    for at in range(0, file.size(), 7):
        file.overwrite(at, bytes([file.read(at, 1)[0] ^ 1]))


@pytest.mark.parametrize(
    "damage",
    [lambda disk: flip(disk, "resume"), lambda disk: flip(disk, "wheel"), lambda disk: disk.fail_read("wheel")],
)
def test_a_damaged_shutdown_snapshot_or_wheel_is_rebuilt(disk: SimDisk, damage: Callable[[SimDisk], None]) -> None:
    four(disk)
    damage(disk)
    assert take_due(reopen(disk), 1500) == [0, 1, 2, 3]


# -- files and indexes that go


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_case_24_a_store_opens_after_a_compaction_met_a_full_disk(disk: SimDisk, store: Store, share: float) -> None:
    """An empty body file was left and the full one before it deleted: no file gave the end of the log."""
    store.add(batch_of(body(0, 1500, size=9), *(body(i, 1010, size=99) for i in (1, 2, 3))), 4)
    store.add(batch_of(body(4, 1020, size=400)), 5)
    take_due(store, 1010)
    store.committed(store.advance_progress())
    store.compact_some()
    disk.fail_append(0, share=share)
    with pytest.raises(OSError, match="simulated"):
        store.compact_some()
    disk.mend()
    take_due(store, 1020)
    stopped(store)
    assert take_due(reopen(disk), 1500) == [0]


def test_a_body_file_with_copies_that_have_no_unit_yet_stays(store: Store) -> None:
    def add(first: int, *dues_ms: int) -> None:
        bodies = (body(offset, due_ms, size=10) for offset, due_ms in enumerate(dues_ms, first))
        store.add(batch_of(*bodies), first + len(dues_ms))

    def leave(now_ms: int) -> None:
        take_due(store, now_ms)
        store.committed(store.advance_progress())

    add(0, 1500, 1010, 1010, 1010)
    add(4, 1020)
    leave(1010)
    store.compact_some()
    store.compact_some()  # copies 0 to the end, after 4
    add(5, 1030, 1030, 1030)
    add(8, 1040)  # into the next file
    leave(1030)
    checkpointed(store)
    store.compact_some()  # repoints 0
    assert take_due(store, 1500) == [8, 0]


def test_a_file_stays_until_its_last_tick_has_passed(disk: SimDisk) -> None:
    """A chain of the tick of K passes through settled units: here unit 1, in a file of its own."""
    options = replace(OPTIONS, segment_bytes=UNIT_SIZE + 16)
    store = create_store(disk, options, EMPTY)
    for offset, due_ms in enumerate((1105, 1101, 1300)):
        store.add(batch_of(body(offset, due_ms)), offset + 1)
    assert take_due(store, 1101) == [1]
    checkpointed(store)
    assert len(disk.names("timer")) == 3
    store.close()
    store = reopen(disk, options)
    assert take_due(store, 1109) == [0]
    take_due(store, 1110)
    store.add(batch_of(body(3, 1310)), 4)
    assert take_due(store, 1300) == [2]
    checkpointed(store)
    assert len(disk.names("timer")) == 2, "what is over is deleted"


def test_a_delete_mark_stays_as_long_as_the_unit_that_it_ends(disk: SimDisk) -> None:
    """The journal ended the timers after the checkpoint, so the delete marks are written at the opening."""
    options = replace(OPTIONS, segment_bytes=UNIT_SIZE + 16)
    store = create_store(disk, options, EMPTY)
    for offset, due_ms in enumerate((1600, 1500, 1501, 1502, 1100)):
        store.add(batch_of(body(offset, due_ms)), offset + 1)
    stopped(store)
    progress = store.advance_progress()._replace(next_offset=8)  # after three cancels
    store = reopen(disk, options, progress, (1, 2, 3))
    assert take_due(store, 1100) == [4]
    for _ in range(2):
        stopped(store)
        store = reopen(disk, options)
        assert store.pending == 1
    progress = store.advance_progress()._replace(next_offset=9)
    store.close()
    store = reopen(disk, options, progress, (0,))
    store.add(batch_of(body(9, 1700)), 10)
    assert take_due(store, 1700) == [9]
    take_due(store, 1710)
    checkpointed(store)
    assert len(disk.names("timer")) == 1, "what is over is deleted"


@of_each_engine
def test_staged_changes_prevent_a_checkpoint_without_an_overflow_too(store: Store) -> None:
    store.add(batch_of(body(0, 1100)), 1)
    store.committed(store.advance_progress())
    store.add(batch_of(body(1, 1100)), 2)
    assert len(store.release_queue.take_overflow(1000, 10, 1 << 20)) == 0
    assert not store.start_checkpoint(0, (), ())
    store.committed(store.advance_progress())
    assert store.start_checkpoint(0, (), ())


@pytest.mark.parametrize("place", ["backlog", "open tick", "out of order"])
def test_bodies_of_a_target_backlog_are_found_after_a_compaction(disk: SimDisk, place: str) -> None:
    """Their rows were in memory before the compaction: loaded ahead, in the queue, or out of order."""
    store = create_store(disk, replace(OPTIONS, segment_bytes=1000), EMPTY)
    store.release_queue.pause("bills", is_paused=place == "backlog")
    for offset in range(40):
        waits = offset % 10 == 0
        each = body(offset, 1009 if waits else 1001, size=100)._replace(target="bills" if waits else "orders")
        store.add((held if waits and place == "out of order" else batch_of)(each), offset + 1)
    assert store.release_queue.take_due(1009 if place == "backlog" else 1001, 99, 1 << 20).total == 36
    before = disk.names("body")
    for _ in range(40):
        store.committed(store.advance_progress())
        store.compact_some()
        store.start_checkpoint(0, (), ())
        store.finish_checkpoint()
    assert not {before[0], before[1]} & set(disk.names("body"))
    store.release_queue.pause("bills", is_paused=False)
    assert origins(store, store.release_queue.take_due(1009, 1, 1 << 20)) == [0]
    assert store.advance_progress().low_offset == 10  # its unit was read before the compaction, with the first one
    assert take_due(store, 1009) == [10, 20, 30]


def test_timers_without_an_id_use_no_slot_of_the_id_index(store: Store) -> None:
    assert isinstance(store, WheelStore)
    store.add(batch_of(*(body(3 * number, 1100) for number in range(10))), 30)
    assert (store.pending, len(store._index.ids)) == (10, 0)
    store.add(batch_of(body(31, 1100)), 32)
    assert len(store._index.ids) == 1


def test_empty_topics_are_dropped(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dues, "_MAX_EMPTY_TOPICS", 50)
    store = create_store(disk, replace(OPTIONS, segment_bytes=1 << 16), EMPTY)
    assert isinstance(store, WheelStore)
    store.add(batch_of(body(0, START_MS + 10_000)), 1)
    for number in range(1, 200):
        store.add(batch_of(to(f"made.up.{number}", number, START_MS + 100)), number + 1)
        end = Batch()
        end.end(store.queries.find_origin(number))
        store.add(end, number + 1)
    assert store.queries.dues.counts() == {"orders": 1}
    names = [each.name for each in store._index.dues._topics.values()]
    assert "orders" in names
    assert len(names) < 60


# -- syncs that fail


def test_a_failed_opening_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    store = create_store(disk, OPTIONS, EMPTY)
    for offset in range(30):
        store.add(batch_of(body(offset, START_MS + 1000)), offset + 1)
    stopped(store)
    before = open_files()
    for opened in range(100):
        refused = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
        openings = iter([*[disk.open] * opened, *[refused] * 10])
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open", lambda name, openings=openings: next(openings)(name))
            try:
                reopen(disk).close()
            except OSError:
                assert open_files() == before
            else:
                break
    assert opened > 10
    assert open_files() == before


def open_files() -> list[str]:
    """What this process has open of files that tests made."""
    found = (str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists())
    return sorted(path for path in found if "pytest" in path)


@pytest.mark.parametrize("failures", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("starts", [True, False])
def test_after_a_failed_sync_the_next_checkpoint_rewrites_the_files(failures: int, *, starts: bool) -> None:
    """Linux considers bytes of a failed sync written: a second fsync reports success."""
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        store = create_store(disk, OPTIONS, EMPTY)
        for number in range(failures):
            store.add(batch_of(*(body(30 * number + n, START_MS + 1000) for n in range(30))), 30 * number + 30)
            if starts:
                disk.fail_sync()
            refused = Mock(side_effect=OSError(errno.EMFILE, "simulated"))
            start_sync = disk.start_sync if starts else refused
            with patch.object(disk, "start_sync", start_sync), pytest.raises(OSError, match="simulated"):
                checkpointed(store)
        store.add(batch_of(body(30 * failures, START_MS + 1000)), 30 * failures + 1)
        disk.fail_append(0)  # there is no room to write it again
        with pytest.raises(OSError, match="simulated"):
            checkpointed(store)
        disk.mend()
        checkpointed(store)
        disk.lose_power(random.Random(seed))
        assert take_due(reopen(disk.reopen()), START_MS + 1000) == [*range(30 * failures + 1)]


def test_files_that_cannot_be_rewritten_prevent_a_checkpoint(disk: SimDisk, store: Store) -> None:
    store.add(batch_of(*(body(offset, START_MS + 1000) for offset in range(30))), 30)
    disk.fail_sync()
    with pytest.raises(OSError, match="simulated"):
        checkpointed(store)
    disk.fail_read("body")
    with pytest.raises(UnreadableError):
        checkpointed(store)
    store.close()
    assert not disk.read("closed")
    assert not disk.read(NAME)


def test_units_repointed_by_an_earlier_process_are_synced_before_the_old_file_goes() -> None:
    """The process was killed before its sync: the system has the bytes, the disk may not."""
    units = np.zeros(9, UNIT)
    units["size"], units["magic"] = UNIT_SIZE, 1

    def sync(disk: SimDisk, log: UnitLog) -> None:
        disk.start_sync([file for folder in log.folders for file in folder.take_dirty()]).wait()

    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        log = UnitLog(disk, "timer", "ids", 68 * 4, ())
        log.append(units, np.zeros(9, TIMER_ROW))
        sync(disk, log)
        log.repoint(0, 4711)
        disk = disk.reopen()
        bases = [int(name) for name in disk.names("timer")]
        again = UnitLog(disk, "timer", "ids", 68 * 4, bases)
        sync(disk, again)
        disk.lose_power(random.Random(seed))
        found = UnitLog(disk.reopen(), "timer", "ids", 68 * 4, bases)
        assert found.read_rows(0, 1)[0]["body"].tolist() == [4711]


# -- targets that wait


@of_each_engine
def test_a_paused_target_holds_no_out_of_order_timer_of_another_back(store: Store) -> None:
    store.release_queue.pause("bills", is_paused=True)
    store.add(held(to("bills", 0, 1100), to("orders", 1, 1100)), 2)
    assert take_due(store, 1100) == [1]


@of_each_engine
def test_a_copy_of_a_timer_that_waited_too_long_rolls_in_the_next_pass(store: Store) -> None:
    """By our clock, which is ahead of the brokers', the copy has waited for too long at once."""
    store.release_queue.pause("orders", is_paused=True)
    store.add(batch_of(body(0, 1100)), 1)

    def rolled(now_ms: int) -> list[int]:
        due = store.release_queue.take_due(now_ms, 9, 1 << 20, most_wait_ms=800)
        return [*due.old_rows["origin"].tolist(), *due.old_released["origin"].tolist()]

    assert rolled(2500) == [0]
    store.add(batch_of(body(1, 1100, timestamp_ms=1200)), 2)
    store.add(held(body(2, 1100)), 3)
    assert [rolled(now_ms) for now_ms in (2500, 2599, 2600)] == [[], [], [1, 2]]


@of_each_engine
def test_out_of_order_timers_that_waited_too_long_roll_by_turns_within_the_limit(store: Store) -> None:
    """One target has none that waited too long."""
    targets = ("young", "orders", "bills")
    for target in targets:
        store.release_queue.pause(target, is_paused=True)
    store.add(held(to("young", 0, 1900)), 1)
    assert store.release_queue.take_due(1900, 99, 1 << 20).total == 0
    store.add(held(*(to(targets[1 + offset % 2], offset, 1100) for offset in range(1, 9))), 9)
    assert store.release_queue.take_due(1900, 99, 1 << 20).total == 0
    turns = [store.release_queue.take_due(1901, 2, 1 << 20, most_wait_ms=800) for _ in range(5)]
    rolled = [[offset % 2 for offset in due.old_released["origin"].tolist()] for due in turns]
    assert rolled in ([[0, 0], [1, 1], [0, 0], [1, 1], []], [[1, 1], [0, 0], [1, 1], [0, 0], []])


@of_each_engine
def test_key_ranges_of_an_older_bridge_are_served_in_order_without_what_has_left_between_them(disk: SimDisk) -> None:
    """It served fresh timers ahead of the oldest ones."""
    edges = [*(Key(edge_ms, -1) for edge_ms in range(1000, 1401, 100)), END]
    wait = Wait("orders", False, tuple(itertools.pairwise(edges))[::2])
    left = [4]
    four_each: Gate = Mock(allowance=lambda *_: left[0], spend=lambda _, timers, __: left.append(left.pop() - timers))
    store = create_store(disk, OPTIONS, EMPTY, [wait])
    dues_ms = (*range(1050, 1053), *range(1250, 1255), *range(1410, 1413))
    store.add(batch_of(*(body(offset, due_ms) for offset, due_ms in enumerate(dues_ms))), len(dues_ms))
    assert store.release_queue.waits == (wait,)
    assert not store.release_queue.is_unreleased("orders", Key(1150, 3))
    turns = []
    for _ in range(3):
        turns.append(store.release_queue.take_due(1450, 99, 1 << 20, four_each).rows["visit_ms"].tolist())
        left[0] = 4
    assert turns == [[1050, 1051, 1052, 1250], [1251, 1252, 1253, 1254], [1410, 1411, 1412]]
    assert store.release_queue.blocked.named("orders") is None


@of_each_engine
def test_sparse_backlogs_leave_many_ticks_in_a_turn_and_take_turns(disk: SimDisk) -> None:
    """Two targets with a timer in every other tick each: a pause of hours must not take as many turns as ticks."""
    waits = [Wait(target, False, ((NOTHING_SETTLED, END),)) for target in ("orders", "bills")]
    store = create_store(disk, replace(OPTIONS, slots=1024), EMPTY, waits)
    store.add(batch_of(*(to(("orders", "bills")[n % 2], n, 1000 + 10 * n) for n in range(400))), 400)
    turns = [take_due(store, 6000) for _ in range(7)]
    assert sorted(itertools.chain(*turns)) == list(range(400))
    assert all(len({n % 2 for n in turn}) == 2 for turn in turns[:6])
