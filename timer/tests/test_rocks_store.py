"""Tests of the engine `rocksdb` that the wheel has no equal of. Those of both: timer/tests/test_store.py."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from rocksdict import Cache, WriteBatch

from schemas.progress import NOTHING_SETTLED, Progress
from timer.disk import RealDisk
from timer.engines import create_store, open_store
from timer.errors import CorruptStoreError
from timer.format.batch import Batch
from timer.options import StoreOptions
from timer.rocksdb import database
from timer.rocksdb.database import Database, keys
from timer.stopped_store import verify
from timer.store import Store
from timer.tests.history import START_MS, body
from timer.tests.test_store import checkpointed, found_in

OPTIONS = StoreOptions(engine="rocksdb", tick_ms=1000)
YEAR_MS = 365 * 86_400_000


def batch_of(*dues_ms: int, first: int = 0) -> Batch:
    batch = Batch()
    for offset, due_ms in enumerate(dues_ms, first):
        batch.add(body(offset, due_ms), due_ms)
    return batch


def created(folder: Path) -> Store:
    return create_store(RealDisk(folder), OPTIONS, Progress(0, NOTHING_SETTLED, 0))


def stopped_with(folder: Path, batch: Batch) -> None:
    """Create a store with the timers of `batch`, and stop it."""
    store = created(folder)
    store.add(batch, 2000)
    checkpointed(store)
    store.close()


def reopened(folder: Path) -> Store:
    disk = RealDisk(folder)
    found = found_in(disk)
    return open_store(disk, OPTIONS, found, found.progress, found.held, ())


def due_origins(store: Store, now_ms: int) -> list[int]:
    origins: list[int] = store.release_queue.take_due(now_ms, 1000, 1 << 20).rows["origin"].tolist()
    return origins


def folders(folder: Path) -> set[str]:
    return {"open" if path.name.startswith("open-") else path.name for path in (folder / "rocksdb").iterdir()}


def test_a_timer_of_years_needs_no_roll(tmp_path: Path) -> None:
    """No wheel has a slot for it, and no unit of RIP-43 can hold the delay."""
    stopped_with(tmp_path, batch_of(START_MS + 10 * YEAR_MS, START_MS + YEAR_MS))
    store = reopened(tmp_path)
    assert due_origins(store, START_MS + YEAR_MS - 1) == []
    assert store.release_queue.next_visit_ms(START_MS + 20 * YEAR_MS) == (START_MS + YEAR_MS) // 1000 * 1000
    assert due_origins(store, START_MS + YEAR_MS) == [1]
    assert due_origins(store, START_MS + 10 * YEAR_MS) == [0]
    store.close()


def test_an_opening_keeps_the_database_of_the_last_checkpoint_without_what_was_staged_since(tmp_path: Path) -> None:
    store = created(tmp_path)
    for offset in range(3):
        store.add(batch_of(START_MS + 1 + offset, first=offset), offset + 1)
        checkpointed(store)
        assert folders(tmp_path) == {"open", str(offset)}
    assert due_origins(store, START_MS + 1) == [0]
    ended = Batch()
    ended.end(store.queries.find([b"id-1"])[b"id-1"])
    store.add(ended, 4)
    store.add(batch_of(START_MS + 1, first=4), 5)
    store.close()
    (tmp_path / "rocksdb" / "7").mkdir()  # left by a checkpoint that was not completed
    store = reopened(tmp_path)
    assert folders(tmp_path) == {"open", "2"}
    assert (store.pending, due_origins(store, START_MS + 9)) == (3, [0, 1, 2])
    store.close()


def test_a_body_can_be_read_until_the_transaction_of_its_timer_is_in_a_checkpoint(tmp_path: Path) -> None:
    store = created(tmp_path)
    store.add(batch_of(START_MS + 1, START_MS + 2), 2)
    checkpointed(store)
    rows = store.release_queue.take_due(START_MS + 1, 10, 1 << 20).rows
    store.add(batch_of(START_MS + 5, first=2), 3)
    assert [each.offset for each in store.queries.bodies(rows)] == [0]
    assert store.queries.find([b"id-0"]) == {}
    checkpointed(store)
    with pytest.raises(CorruptStoreError, match="unit 0 is missing"):
        store.queries.bodies(rows)
    assert store.pending == 2
    store.close()


def test_a_damaged_database_is_replaced_while_its_error_is_still_known(tmp_path: Path) -> None:
    """The error's frames keep iterators, and so the closed database, alive."""
    store = created(tmp_path)
    store.add(batch_of(*range(START_MS, START_MS + 500)), 500)
    checkpointed(store)
    search = store.queries.all_rows()
    next(search)
    try:
        raise CorruptStoreError("rocksdb", "damaged")
    except CorruptStoreError:
        store.close()
        again = created(tmp_path)
        again.add(batch_of(START_MS), 1)
        assert again.pending == 1
        again.close()
    del search


def test_another_engine_leaves_no_file_of_this_one(tmp_path: Path) -> None:
    stopped_with(tmp_path, batch_of(START_MS + 1))
    assert os.stat(tmp_path / "rocksdb").st_mode & 0o077 == 0, "files are for us alone"  # noqa: PTH116
    create_store(RealDisk(tmp_path), StoreOptions(slots=64), Progress(0, NOTHING_SETTLED, 0)).close()
    assert not (tmp_path / "rocksdb").exists()
    created(tmp_path).close()
    assert not (tmp_path / "wheel").exists()


def damage_table(folder: Path) -> None:
    table = max(folder.glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x40
    table.unlink()  # the file of the open database is another link to the same bytes
    table.write_bytes(content)


def remove_table(folder: Path) -> None:
    sorted(folder.glob("*.sst"))[-1].unlink()


def remove_manifest(folder: Path) -> None:
    next(folder.glob("MANIFEST-*")).unlink()


@pytest.mark.parametrize("damage", [damage_table, remove_table, remove_manifest])
def test_damage_is_found_by_verify_and_by_the_next_opening(
    tmp_path: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_with(tmp_path, batch_of(*range(START_MS, START_MS + 500)))
    assert verify(RealDisk(tmp_path)).fault is None
    damage(tmp_path / "rocksdb" / "0")
    assert verify(RealDisk(tmp_path)).fault is not None
    monkeypatch.setattr(database, "_CACHE", Cache(1 << 20))  # as in another process
    with pytest.raises(CorruptStoreError):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("family", "told"), [("ids", "499 ids"), ("origins", "499 origins"), ("log", "499 timers"), ("", "499 in order")]
)
def test_verify_compares_the_orders_of_the_database(tmp_path: Path, family: str, told: str) -> None:
    """A database that RocksDB finds sound, but without one key."""
    batch = Batch()
    for number in range(500):
        batch.add(body(4 * number + 1, START_MS + number), START_MS + number)
    stopped_with(tmp_path, batch)
    changed = Database(tmp_path / "rocksdb" / "0")
    (rows,) = changed.in_order(START_MS, START_MS + 1, 10)
    key = {"ids": keys(rows["id_hash"], rows["unit"]), "origins": keys(rows["origin"], rows["unit"])}
    key |= {"log": keys(rows["unit"]), "": keys(rows["visit_ms"], rows["origin"], rows["unit"])}
    changes = WriteBatch(raw_mode=True)
    changes.delete(key[family][0], *([changed.handles[family]] if family else []))
    changed.write(changes)
    changed.close()
    fault = verify(RealDisk(tmp_path)).fault
    assert fault is not None
    assert told in fault.what


def read_all(folder: Path) -> None:
    store = reopened(folder)
    rows = store.release_queue.take_due(START_MS + 999, 1000, 1 << 20).rows
    store.queries.bodies(rows)
    store.queries.find([b"id-%d" % origin for origin in range(500)])
    store.queries.find_origin(3)


def test_a_full_disk_is_told_as_such_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB tells it with a text alone."""
    store = created(tmp_path)
    store.add(batch_of(START_MS + 1), 1)
    checkpointed(store)

    error = Exception("IO error: No space left on device: While appending to file: /a")
    store.add(batch_of(START_MS + 2, first=1), 2)
    store.committed(store.advance_progress())
    with monkeypatch.context() as full:
        full.setattr("rocksdict.Checkpoint", lambda _: Mock(create_checkpoint=Mock(side_effect=error)))
        with pytest.raises(OSError, match="No space left") as told:
            store.start_checkpoint(0, (), ())
    assert told.value.errno == errno.ENOSPC
    checkpointed(store)
    store.close()
    store = reopened(tmp_path)
    assert due_origins(store, START_MS + 9) == [0, 1]
    store.close()
