"""Tests of the pure parts of the store: bytes of a unit, a frame, a slot; the order of release."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_timer.headers import Headers
from schemas.journal import END, Wait
from schemas.progress import NOTHING_SETTLED, Key, Progress
from timer.errors import CorruptStoreError, WheelFullError
from timer.format import body as record
from timer.format.body import Body, Peek, pack, pack_headers, peek, unpack, unpack_headers
from timer.format.checkpoint import Checkpoint, runs
from timer.format.unit import TIMER_ROW, UNIT, Ints, Rows, hash_of, hashes_of, stable_argsort, unique_counts
from timer.index import id_index as ids
from timer.index.id_index import IdIndex
from timer.schedule import blocked_targets
from timer.schedule.blocked_targets import BacklogReader, BlockedTargets
from timer.schedule.queues import RowQueue
from timer.schedule.release_policy import most_wait_ms, roll_cooldown_ms, visit_ms
from timer.testing import SimDisk
from timer.wheel.timer_wheel import EXTENT_SLOTS, SLOT_SIZE, Wheel, used_extents

ANY_BYTES = st.none() | st.binary(max_size=30)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


# -- unit and frame


def test_a_unit_lies_in_its_52_bytes_as_rip_43_says() -> None:
    unit = np.array([(52, -1, 1, 0x0102030405060708, 7, 9, 300, -5, 42)], UNIT).tobytes()
    expected = "00000034 ffffffffffffffff 00000001 0102030405060708 00000007"
    expected += "0000000000000009 0000012c fffffffb 000000000000002a"
    assert unit == bytes.fromhex(expected)


@given(
    key=ANY_BYTES,
    value=ANY_BYTES,
    headers=st.lists(st.tuples(st.text(max_size=8), ANY_BYTES)),
    due_ms=st.integers(0, 2**63 - 1),
    id_=ANY_BYTES,
)
def test_a_frame_unpacks_to_the_packed_body(
    key: bytes | None, value: bytes | None, headers: Headers, due_ms: int, id_: bytes | None
) -> None:
    encoded, plain = pack_headers(headers)
    body = Body("orders", -1, 9, 1000, due_ms, key, value, encoded, plain, 7, 2, id_)
    assert unpack(pack(body), 0) == body
    assert peek(pack(body), 0) == Peek(len(pack(body)), body.origin_offset, 9, "orders", id_, -1, 2)
    assert unpack_headers(encoded) == list(headers)


def test_every_flipped_byte_of_a_frame_is_noticed() -> None:
    encoded, plain = pack_headers([("a", b"1")])
    frame = pack(Body("orders", 2, 7, 1000, 2000, b"k", b"value", encoded, plain, 7, 0, b"id"))
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 0x40
        with pytest.raises(CorruptStoreError):
            unpack(bytes(damaged), 0)
    with pytest.raises(CorruptStoreError):
        unpack(frame[:-1], 0)


def test_headers_are_plain_if_none_matters_to_a_delivery() -> None:
    assert pack_headers([("timer-topic", b"orders"), ("timer-delay-ms", b"5")])[1]
    assert not pack_headers([("timer-topic", b"orders"), ("trace", b"5")])[1]
    assert not pack_headers([("timer-topic", b"orders"), ("timer-key", b"5")])[1]


def test_the_cache_of_header_names_is_bounded() -> None:
    record._beginning.cache_clear()
    pack_headers([("n" * 257, b"v")])
    assert record._beginning.cache_info().currsize == 0
    for number in range(5000):
        pack_headers([(f"x-{number}", b"v")])
    assert record._beginning.cache_info().currsize == 4096


@given(st.lists(st.binary(max_size=40)))
def test_a_batch_of_ids_has_the_hashes_of_each(ids: list[bytes]) -> None:
    assert hashes_of(ids).tolist() == [hash_of(id_) for id_ in ids]


def test_a_torn_or_changed_checkpoint_is_not_parsed() -> None:
    logs = {"units_end": 4, "body_end": 400, "low_unit": 1, "segments": ((0, 2), (5, 5)), "bodies": (0, 300)}
    settings = {"segment_bytes": 1024, "tick_ms": 1000, "slots": 64}
    state = {"progress": Progress(9, Key(5, 3), 2), "pending": 2, "held": (3,), "journal_offset": 8}
    whole = Checkpoint.model_validate(logs | settings | state)
    data = whole.to_bytes()
    assert Checkpoint.from_bytes(data) == whole
    assert whole.unit_files() == [0, 1024, 2048, 5120]
    assert runs([0, 1, 2, 5]) == whole.segments
    assert runs([]) == ()
    assert all(Checkpoint.from_bytes(data[:end]) is None for end in range(len(data)))
    assert all(Checkpoint.from_bytes(data[:i] + b"#" + data[i + 1 :]) is None for i in range(len(data)))


# -- wheel


def wheel(slots: int = 8, tick_ms: int = 10, disk: SimDisk | None = None) -> Wheel:
    return Wheel((disk or SimDisk()).map("wheel", slots * SLOT_SIZE), tick_ms=tick_ms, slots=slots)


def used(disk: SimDisk, slots: int) -> list[int] | None:
    found = used_extents(disk, slots)
    return None if found is None else found[0].tolist()


def link(on: Wheel, visits_ms: Ints, positions: Ints) -> list[int]:
    links = on.plan(visits_ms, positions, np.ones(len(positions), np.bool_))
    on.link(links)
    return [int(previous) for previous in links.previous]


def test_units_of_one_tick_are_chained_in_the_order_of_the_log() -> None:
    on = wheel()
    assert link(on, ints(1000, 1010, 1009), ints(0, 52, 104)) == [-1, -1, 0]
    assert link(on, ints(1005, 1010), ints(156, 208)) == [104, 52]
    assert (on.slot(100), on.slot(101)) == ((0, 156, 3), (52, 208, 2))


@pytest.mark.parametrize("slot", [0, 1, EXTENT_SLOTS - 1, EXTENT_SLOTS, 2 * EXTENT_SLOTS, 9999])
def test_a_changed_byte_of_any_slot_is_detected(slot: int) -> None:
    disk = SimDisk()
    link(wheel(10_000, disk=disk), ints(slot * 10), ints(0))
    file = disk.open("wheel")
    assert used(disk, 10_000) == [slot // EXTENT_SLOTS]
    assert used(disk, 9_999) is None
    file.overwrite(slot * SLOT_SIZE + 27, bytes([file.read(slot * SLOT_SIZE + 27, 1)[0] ^ 1]))
    assert used(disk, 10_000) is None


def test_an_extent_without_pending_units_is_free_at_the_next_start() -> None:
    disk = SimDisk()
    on = wheel(10_000, disk=disk)
    link(on, ints(0, 50_000), ints(0, 52))
    on.settle(ints(0))
    assert used(disk, 10_000) == [1]


def test_case_11_an_undrained_slot_is_never_overwritten() -> None:
    on = wheel()
    link(on, ints(1000), ints(0))
    with pytest.raises(WheelFullError, match=r"^1 slots hold timers of another lap of 8 ticks$"):
        link(on, ints(1010, 1080), ints(52, 104))
    assert (on.slot(100), on.slot(101), on.slot(108)) == ((0, 0, 1), (-1, -1, 0), (-1, -1, 0))
    on.settle(ints(1000))
    assert link(on, ints(1080), ints(104)) == [-1]


@given(st.sets(st.integers(0, 20_000)), st.integers(-1, 25_000), st.integers(0, 50_000))
def test_the_next_tick_is_found_over_the_extents_of_a_wheel(ticks: set[int], after: int, until: int) -> None:
    on = wheel(20_001)
    for tick in ticks:
        link(on, ints(tick * 10), ints(tick))
    assert on.next_time(after, until) == min((tick for tick in ticks if after < tick <= until), default=None)


# -- order of release


def run_of_keys(*keys: tuple[int, int]) -> Rows:
    run = np.zeros(len(keys), TIMER_ROW)
    run["visit_ms"], run["origin"] = [k[0] for k in keys], [k[1] for k in keys]
    run["body_size"] = 10
    return run


def keys(run: Rows) -> list[tuple[int, int]]:
    return list(zip(run["visit_ms"].tolist(), run["origin"].tolist(), strict=True))


def test_repointed_bodies_match_their_units_in_any_order() -> None:
    queue, units = RowQueue(), [2, 4, 6, 8, 9, 10]
    for some in (units[:3], units[3:]):
        run = run_of_keys(*((5, unit) for unit in some))
        run["unit"] = some
        queue.push(run)
    queue.repoint(ints(6, 9, 2, 7, 4), ints(60, 90, 20, 70, 40))
    assert queue.rows()["body"].tolist() == [20, 40, 60, 0, 90, 0]


def test_the_byte_limit_cuts_but_one_row_always_leaves() -> None:
    queue = RowQueue()
    queue.push(run_of_keys((1, 1), (1, 2), (1, 3)))
    assert keys(queue.take(9, 9, 1)) == [(1, 1)]
    assert keys(queue.take(9, 9, 19)) == [(1, 2)]
    assert keys(queue.take(9, 9, 1)) == [(1, 3)]
    queue.push(run_of_keys((1, 1), (1, 2), (1, 3)))
    assert keys(queue.take(9, 9, 20)) == [(1, 1), (1, 2)], "they fit to the byte"


# -- rolls and ids


@pytest.mark.parametrize(
    ("due_ms", "expected"), [(900, 1000), (1060, 1060), (1061, 1030), (1079, 1030), (1080, 1060), (9999, 1060)]
)
def test_case_14_a_timer_due_after_the_window_wakes_up_before(due_ms: int, expected: int) -> None:
    assert visit_ms(due_ms, 1000, 60) == expected


@pytest.mark.parametrize(("window", "half", "wait", "rest"), [(60, 30, 45, 7), (61, 30, 45, 7), (24, 12, 18, 3)])
def test_the_parts_of_a_window_are_whole_milliseconds(window: int, half: int, wait: int, rest: int) -> None:
    parts = (visit_ms(1000 + window + 1, 1000, window) - 1000, most_wait_ms(window), roll_cooldown_ms(window))
    assert parts == (half, wait, rest)
    assert all(type(each) is int for each in parts)


@given(st.integers(1, 10**5), st.data())
def test_every_roll_comes_nearer_and_the_last_wait_is_never_short(window: int, data: st.DataObject) -> None:
    at, due_ms = 0, data.draw(st.integers(0, 50 * window))
    while (visit := visit_ms(due_ms, at, window)) < due_ms:
        assert at < visit or window == 1
        assert 3 * (due_ms - visit) >= window
        at = max(visit, at + 1)
    assert visit == max(due_ms, at)


def test_a_tick_is_loaded_once_a_turn_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_targets, "_MAX_CACHED_ROWS", 10)
    loaded: list[int] = []

    def load(tick: int) -> Rows:
        loaded.append(tick)
        return np.zeros({1: 100, 2: 3, 3: 200}[tick], TIMER_ROW)

    reader = BacklogReader(load, lambda *_: None, 1000, 3)
    for tick in (1, 1, 2, 1, 2, 3, 3, 2):
        rows = reader.tick(tick)
        assert rows is not None
        assert len(rows) == {1: 100, 2: 3, 3: 200}[tick]
    assert loaded == [1, 2, 3]


def test_all_sleeping_targets_wake_up_after_the_clock_went_back() -> None:
    """In other turns a limited number wakes up, as each is looked at."""
    targets = BlockedTargets(Wait(f"t{number}", True, ((NOTHING_SETTLED, END),)) for number in range(100))
    for each in targets.values():
        each.sleep(10_000, is_empty=False)
    assert targets.awake(9_999) == []
    assert targets.awake(9_998) == list(targets)
    for each in targets.values():
        each.sleep(10_000, is_empty=True)
    assert len(targets.awake(10_000)) == 64
    assert len(targets.awake(10_000)) == 100


def test_the_id_index_takes_a_burst_while_it_shrinks() -> None:
    """After a peak, removed slots fill the large table one by one; the next table is small, then comes a burst."""
    rng, index, unit = np.random.default_rng(1), IdIndex(), 0

    def hashes(count: int) -> Ints:
        return rng.integers(1, 2**62, count)

    def come(count: int) -> tuple[Ints, Ints]:
        nonlocal unit
        came = hashes(count), np.arange(unit, unit + count)
        unit += count
        index.insert(*came)
        return came

    index.remove(*come(40_000))
    for burst in range(1, 300):
        kept = come(50)
        if burst % 40 == 0:
            many = come(2_000)
            assert len(index.find(many[0])) == 2_000
            index.remove(*many)
        assert len(index.find(hashes(10))) == 0
        index.remove(*kept)
    assert len(index) == 0
    index.state()


def test_an_id_index_of_expected_size_holds_it_without_growing_and_is_at_least_a_third_full() -> None:
    for count in (1_000, 1_365, 1_366, 100_000, 174_762, 174_763):
        index = IdIndex(count)
        slots = len(index.state()[0])
        index.insert(np.random.default_rng(1).integers(1, 2**62, count), np.arange(count))
        assert len(index.state()[0]) == slots <= 3 * count + 2


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    st.integers(4, 64),
    st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 1)), min_size=1, max_size=12),
    st.sampled_from([40, 2**62]),
    st.booleans(),
)
def test_the_id_index_is_a_dictionary_of_sets(
    moved: int,
    steps: list[tuple[int, float]],
    hashes: int,
    is_closed: bool,  # noqa: FBT001
) -> None:
    """Moves in parts as small as `moved`, so that a move to a new table is always running. hashes: how many differ."""
    rng, index, unit = np.random.default_rng(7), IdIndex(), 0
    live = np.empty((2, 0), np.int64)
    with mock.patch.object(ids, "_MOVE_SLOTS", moved):
        for count, share in steps:
            came = np.stack([rng.integers(1, hashes, min(count, hashes)), np.arange(unit, unit + min(count, hashes))])
            unit += count
            index.insert(*came)
            live = np.concatenate([live, came], axis=1)
            goes = rng.random(live.shape[1]) < share
            index.remove(*live[:, goes])
            live = live[:, ~goes]
            assert len(index) == live.shape[1]
            check_found(index, live)
        if is_closed:
            check_found(IdIndex.restored(*index.state()), live)


def check_found(index: IdIndex, live: Ints) -> None:
    """Check that all units of each hash are found, and no others."""
    units: dict[int, set[int]] = {}
    for hash_, unit in live.T.tolist():
        units.setdefault(hash_, set()).add(unit)
    found = index.find(live[0])
    assert [set(found[at]) for at in range(live.shape[1])] == [units[hash_] for hash_ in live[0].tolist()]


@given(
    st.lists(st.integers(0, 70_000) | st.integers(1_700_000_000_000, 1_700_000_900_000), max_size=200), st.booleans()
)
def test_stable_argsort_and_unique_counts_match_numpy(few: list[int], is_wide: bool) -> None:  # noqa: FBT001
    values = np.array(few * (40 if len(few) else 1), np.int64)
    if is_wide:
        values = values * 2**20
    assert (stable_argsort(values) == values.argsort(kind="stable")).all()
    found, counts = unique_counts(values)
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == Counter(values.tolist())
