"""The RocksDB database of one store. It holds the pending timers and nothing else, in four orders.

    timers    wake-up time, origin, unit   -> row            those in order, in the order of release
    log       unit                         -> row, frame     all, in the order of their requests
    ids       hash of the id, unit         -> nothing        those with an id
    origins   origin, unit                 -> nothing        all
    state     "state"                      -> JSON           counts, written before each checkpoint

Keys are 8-byte integers, big-endian, so that RocksDB's order is theirs. A row is a TIMER_ROW, a frame that of
timer.format.body. Each key ends with the unit, so no timer ever has the key of another. There is no write-ahead log:
Kafka is it.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict
from rocksdict import Cache, Options, ReadOptions, WriteBatch

from timer.disk import sync_all
from timer.errors import CorruptStoreError
from timer.format.checkpoint import DATABASE
from timer.format.unit import TIMER_ROW, Ints, Rows

ROW_SIZE = TIMER_ROW.itemsize
KEY_SIZE = 8
BINDINGS_FILE = "rocksdict-config.json"
OPEN = "open-"
"""Begin of the name of the folder in use, beside those of the checkpoints, which have numbers."""
_FAMILIES = ("log", "ids", "origins", "state")
_STATE = b"state"
_WRITE_BUFFER_BYTES = 32 << 20
"""Memory for changes that no file has yet, of one database. A checkpoint empties it."""
_CACHE = Cache(64 << 20)
"""Blocks of files, for all databases of the process that are in use."""
_SMALL_CACHE_BYTES = 8 << 20
_BITS_PER_KEY = 10


def key(first: int) -> bytes:
    """Return the first part of a key, at least 0: a negative one would come after all others."""
    return first.to_bytes(KEY_SIZE, "big")


def keys(*columns: Ints) -> list[bytes]:
    """Return the keys of many timers. columns: one array for each part."""
    width = KEY_SIZE * len(columns)
    packed = np.stack(columns, axis=1).astype(">i8").tobytes()
    return [packed[at : at + width] for at in range(0, len(packed), width)]


def _due_keys(rows: Rows) -> list[bytes]:
    """Return the keys of `rows` in the order of release. Without the first part they are those of `origins`."""
    return keys(rows["visit_ms"], rows["origin"], rows["unit"])


def rows_of(values: Iterable[bytes]) -> Rows:
    """Return the rows at the beginning of `values`."""
    return np.frombuffer(b"".join([value[:ROW_SIZE] for value in values]), TIMER_ROW)


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    """Turn RocksDB's errors, which have no class of their own, into those of a store."""
    try:
        yield
    except (OSError, CorruptStoreError, TypeError):
        raise
    except Exception as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, f"{folder}: {error}") from error
        raise CorruptStoreError(DATABASE, str(error)) from error


def _options(cache: Cache, *, by_prefix: bool = False) -> Options:
    """Return the options of a column family. by_prefix: it is asked for all keys with the same first part."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_db_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_keep_log_file_num(1)
    # Each checkpoint leaves a file of each family: more of them may wait than by default, as a turn would wait too.
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(80)
    if by_prefix:
        table.set_bloom_filter(_BITS_PER_KEY, block_based=False)
        options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(KEY_SIZE))
    options.set_block_based_table_factory(table)
    return options


class Database:
    """Raises CorruptStoreError and OSError."""

    def __init__(self, folder: Path, *, is_read_only: bool = False) -> None:
        self._folder = folder
        access = rocksdict.AccessType.read_only(False) if is_read_only else rocksdict.AccessType.read_write()
        cache = Cache(_SMALL_CACHE_BYTES) if is_read_only else _CACHE  # verify has to read the files
        options = {name: _options(cache, by_prefix=name in ("ids", "origins")) for name in _FAMILIES}
        with _errors(folder):
            # Any: the binding types keys as whatever they may be without raw mode.
            self._db: Any = rocksdict.Rdict(str(folder), _options(cache), options, access)
            self._families: dict[str, Any] = {name: self._db.get_column_family(name) for name in _FAMILIES}
            self.handles = {name: self._db.get_column_family_handle(name) for name in _FAMILIES}
        self._no_log = rocksdict.WriteOptions()
        self._no_log.disable_wal = True  # type: ignore[assignment,method-assign]  # a property, not a method

    def close(self) -> None:
        """Close. Has no effect on a closed database."""
        if self.handles:
            self.handles = {}
            for each in (*self._families.values(), self._db):
                each.close()

    # -- changes: each writes all that it says, or nothing

    def write(self, changes: WriteBatch) -> None:
        with _errors(self._folder):
            self._db.write(changes, self._no_log)

    def add(self, rows: Rows, frames: list[bytes], in_order: Iterable[bool]) -> None:
        changes = WriteBatch(raw_mode=True)
        put = changes.put
        log, ids, origins = (self.handles[name] for name in ("log", "ids", "origins"))
        data = rows.tobytes()
        units = keys(rows["unit"])
        by_due = _due_keys(rows)
        by_id = keys(rows["id_hash"], rows["unit"])
        for at, (is_in_order, has_id) in enumerate(zip(in_order, (rows["id_hash"] != 0).tolist(), strict=True)):
            row = data[at * ROW_SIZE : (at + 1) * ROW_SIZE]
            if is_in_order:
                put(by_due[at], row)
            put(units[at], row + frames[at], log)
            put(by_due[at][KEY_SIZE:], b"", origins)
            if has_id:
                put(by_id[at], b"", ids)
        self.write(changes)

    def take_out_of_order(self, row: Rows) -> None:
        """Take `row`, which stays pending, out of the order of release."""
        changes = WriteBatch(raw_mode=True)
        for by_due in _due_keys(row):
            changes.delete(by_due)
        self.write(changes)

    def remove(self, rows: Rows, state: bytes) -> None:
        changes = WriteBatch(raw_mode=True)
        delete = changes.delete
        log, ids, origins = (self.handles[name] for name in ("log", "ids", "origins"))
        for unit in keys(rows["unit"]):
            delete(unit, log)
        for by_due in _due_keys(rows):
            delete(by_due)
            delete(by_due[KEY_SIZE:], origins)
        for by_id in keys(rows["id_hash"], rows["unit"]):
            delete(by_id, ids)
        changes.put(_STATE, state, self.handles["state"])
        self.write(changes)

    def checkpoint(self, folder: Path) -> None:
        """Make a durable copy in `folder`, which must not exist. Files are linked, not copied."""
        with _errors(folder):
            rocksdict.Checkpoint(self._db).create_checkpoint(str(folder))
        sync_all([os.open(folder.parent, os.O_RDONLY)])  # RocksDB makes what is in the folder durable, not its name

    def state(self) -> bytes:
        with _errors(self._folder):
            found: bytes | None = self._families["state"].get(_STATE)
        if found is None:
            raise CorruptStoreError(DATABASE, "no state")
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of files and of changes in memory."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        parts = (self._db, *self._families.values())
        return sum(part.property_int_value(name) or 0 for part in parts for name in names)

    # -- in the order of release

    def in_order(self, start_ms: int, end_ms: int, most: int) -> Iterator[Rows]:
        """Yield the rows in order with wake-up times in [start_ms, end_ms), at most `most` at once."""
        options = ReadOptions()
        options.set_iterate_upper_bound(key(end_ms))
        with _errors(self._folder):
            values = self._db.values(from_key=key(start_ms), read_opt=options)
            while some := list(islice(values, most)):
                yield rows_of(some)

    def visits_ms(self, start_ms: int) -> Iterator[tuple[int, int]]:
        with _errors(self._folder):
            for found in self._db.keys(from_key=key(start_ms)):
                yield int.from_bytes(found[:KEY_SIZE], "big"), int.from_bytes(found[-KEY_SIZE:], "big")

    # -- in the order of the requests

    def log(self, first_unit: int) -> Iterator[tuple[int, bytes]]:
        with _errors(self._folder):
            for found, value in self._families["log"].items(from_key=key(first_unit)):
                yield int.from_bytes(found, "big"), value

    def values(self, units: Ints) -> list[bytes]:
        if not len(units):
            return []
        with _errors(self._folder):
            found: list[bytes | None] = self._families["log"].get(keys(units))
        values = [value for value in found if value is not None]
        if len(values) < len(found):
            raise CorruptStoreError(DATABASE, f"unit {int(units[found.index(None)])} is missing in the log")
        return values

    def value(self, unit: int) -> bytes | None:
        with _errors(self._folder):
            found: bytes | None = self._families["log"].get(key(unit))
            return found

    # -- by id and by origin

    def units(self, index: str, first: int) -> list[int]:
        """Return the units in `index` (ids, origins) whose keys begin with `first`."""
        options, prefix = ReadOptions(), first.to_bytes(KEY_SIZE, "big", signed=True)
        options.set_prefix_same_as_start(True)
        with _errors(self._folder):
            found = self._families[index].keys(from_key=prefix, read_opt=options)
            own = takewhile(lambda each: each.startswith(prefix), found)
            return [int.from_bytes(each[KEY_SIZE:], "big") for each in own]

    def count(self, index: str) -> int:
        """Return the number of keys in a family. Reads them all, with their checksums."""
        options = ReadOptions()
        options.set_total_order_seek(True)
        with _errors(self._folder):
            return sum(1 for _ in self._families[index].keys(read_opt=options))


def link(source: Path, target: Path) -> None:
    """Make the empty folder `target` the same database as `source`. Table files never change, so they are linked."""
    shutil.copytree(source, target, copy_function=_link_or_copy, dirs_exist_ok=True)


def _link_or_copy(source: str, target: str) -> str:
    if source.endswith(".sst"):
        with suppress(PermissionError):  # a file system without links
            os.link(source, target)
            return target
    return shutil.copy2(source, target)
