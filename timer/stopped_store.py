"""Read the store of a stopped bridge at its checkpoint. Never writes, creates or cuts a file.

    checkpoint -> ends of the logs, K, out-of-order origins            read_checkpoint
    TimerLog   -> pending units, in the order of the log               StoppedStore.live
    body log   -> their bodies                                         StoppedStore.bodies

Of the engine `rocksdb`, the database at the checkpoint is read in place of the logs. Units after the checkpoint are not
shown: the next start removes them, or reads their requests from Kafka again. The wheel is not read: the log has the
same facts.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.format.body import Body
from timer.format.checkpoint import CLOSED, FORMAT, NAME, Checkpoint, sound_text
from timer.format.unit import TIMER_ROW, Rows, hash_of, isin, topic_hash
from timer.index.due_counts import DueCounts
from timer.schedule.queues import in_order
from timer.wheel.stopped import WheelRows

if TYPE_CHECKING:
    from timer.rocksdb.stopped import RocksRows

_BODIES_AT_ONCE = 64
_FORMAT = re.compile(rb'{"format":(\d+)')


class NoStoreError(Exception):
    """There is no store to read; the message says why and what to do."""


class EmptyStoreError(NoStoreError):
    """A store without a first checkpoint. That is not a fault."""


class StoredTimer(NamedTuple):
    visit_ms: int
    body: Body


def read_checkpoint(disk: Disk) -> Checkpoint:
    """Return the checkpoint. Raises NoStoreError (none, or another format) and CorruptStoreError."""
    data = disk.read(NAME)
    if data is None:
        raise NoStoreError(
            "no checkpoint, so this is no store: give a data directory or the folder of one partition in it. If only"
            " the checkpoint is lost, a start of the bridge rebuilds the store from Kafka"
        )
    if not data:
        raise EmptyStoreError("no checkpoint was written yet: the next start of the bridge reads all of it from Kafka")
    found = Checkpoint.from_bytes(data)
    if found is not None:
        return found
    text = sound_text(data)
    if text is None:
        raise CorruptStoreError(NAME, "the checksum does not match the text")
    format_ = _FORMAT.match(text)
    if format_ is None or int(format_[1]) == FORMAT:
        raise CorruptStoreError(NAME, "impossible contents, though the checksum matches")
    raise NoStoreError(
        f"the checkpoint is of format {int(format_[1])}, this version knows {FORMAT}: use the timer-bridge that wrote"
        " it. A start of this one rebuilds the store from Kafka"
    )


def _rows_of(disk: Disk, checkpoint: Checkpoint) -> "WheelRows | RocksRows":
    """Open the rows of the checkpoint's engine. Imported here: RocksDB is loaded only if it is used."""
    if checkpoint.engine == "rocksdb":
        from timer.rocksdb.stopped import RocksRows

        return RocksRows(disk, checkpoint)
    return WheelRows(disk, checkpoint)


class StoppedStore:
    """See the module. Raises NoStoreError and CorruptStoreError."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.checkpoint = read_checkpoint(disk)
        self.rows = _rows_of(disk, self.checkpoint)
        self.live, self.files = self.rows.live, self.rows.files

    def __enter__(self) -> "StoppedStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.rows.close()

    @property
    def closed(self) -> bool:
        """True if the store was closed cleanly at its checkpoint."""
        return self._disk.read(CLOSED) == self.checkpoint.to_bytes()

    def timers(self, rows: Rows) -> list[StoredTimer]:
        return list(map(StoredTimer, rows["visit_ms"].tolist(), self.rows.bodies(rows)))

    def soonest(self, limit: int) -> list[StoredTimer]:
        """Return the first `limit` pending timers in the order of release. Memory for `limit` timers only."""
        kept = np.empty(0, TIMER_ROW)
        for rows in self.live():
            kept = in_order(np.concatenate([kept, rows]))[:limit]
        return self.timers(kept)

    def with_id(self, id_: bytes) -> list[StoredTimer]:
        hash_ = hash_of(id_)
        found = [timer for rows in self.live() for timer in self.timers(rows[rows["id_hash"] == hash_])]
        return [timer for timer in found if timer.body.id == id_]

    def dues(self) -> DueCounts:
        counts = DueCounts(lambda row: self.rows.bodies(row)[0].target)
        for rows in self.live():
            counts.add(rows)
        return counts

    def ticks(self, limit: int) -> list[tuple[int, int]]:
        """Return the first `limit` ticks with pending timers: start in epoch ms, and number."""
        counts, tick_ms = Counter[int](), self.checkpoint.tick_ms
        for rows in self.live():
            counts.update((rows["visit_ms"] // tick_ms * tick_ms).tolist())
        return sorted(counts.items())[:limit]


@dataclass(frozen=True, slots=True)
class StoreFault:
    """at: the byte of the file at which the faulty record begins, None if the whole file is at fault."""

    file: str
    at: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.at is None else f', byte {self.at}'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verified:
    """fault: the first one, None if the store is sound."""

    fault: StoreFault | None
    closed: bool = False
    """True if the store was closed cleanly at its checkpoint."""
    live: int = 0
    ticks: int = 0
    """Ticks with pending timers."""


def verify(disk: Disk) -> Verified:
    """Check all that the next start and deliveries read of the store on `disk`, up to the first fault.

    Raises NoStoreError if there is no store, or one of another format.
    """
    try:
        with StoppedStore(disk) as store:
            return _verified(store)
    except CorruptStoreError as error:
        return Verified(StoreFault(error.where, error.at, error.what))


def _verified(store: StoppedStore) -> Verified:
    live = with_id = 0
    by_tick, held = Counter[int](), list(store.checkpoint.held)
    for rows in store.live():
        for at in range(0, len(rows), _BODIES_AT_ONCE):
            _compare(store.rows, rows[at : at + _BODIES_AT_ONCE])
        live += len(rows)
        with_id += int((rows["id_hash"] != 0).sum())
        by_tick.update((rows["visit_ms"][~isin(rows["origin"], held)] // store.checkpoint.tick_ms).tolist())
    store.rows.check(by_tick, with_id, is_closed=store.closed)
    return Verified(None, store.closed, live, len(by_tick))


def _compare(stored: "WheelRows | RocksRows", rows: Rows) -> None:
    """Raise CorruptStoreError if a unit of `rows` has no frame or another one."""
    try:
        bodies = stored.bodies(rows)
    except CorruptStoreError as error:
        if len(rows) == 1:
            raise stored.damaged(int(rows["unit"][0]), f"no frame for it: {error}") from error
        for at in range(len(rows)):  # which one it is
            _compare(stored, rows[at : at + 1])
        raise
    facts = rows[["unit", "topic_hash", "id_hash", "due_ms"]].tolist()
    for body, (unit, *told) in zip(bodies, facts, strict=True):
        if told != [topic_hash(body.target), 0 if body.id is None else hash_of(body.id), body.due_ms]:
            raise stored.damaged(unit, f"does not match its frame, of origin {body.origin_offset}")
