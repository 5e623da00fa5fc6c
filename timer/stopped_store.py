"""Read the store of a stopped bridge at its checkpoint. Never writes, creates or cuts a file.

    checkpoint -> ends of the logs, K, out-of-order origins            read_checkpoint
    TimerLog   -> pending units, in the order of the log               StoppedStore.live
    body log   -> their bodies                                         StoppedStore.bodies

Of the engine `rocksdb`, the database at the checkpoint is read in place of the logs. Units after the checkpoint are not
shown: the next start removes them, or reads their requests from Kafka again. The wheel is not read: the log has the
same facts. `verify` checks, of the engine `wheel`:

    1 TimerLog      every unit and its row of ids, by their check; live ones with their bodies
    2 live timers   as many as the checkpoint counts
    3 `closed` and `resume`
    4 wheel         if the store was closed cleanly: each slot by its check, and the number of pending timers by tick

A fault names the damaged record: a unit, a slot.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.format.body import Body
from timer.format.checkpoint import BODIES, CLOSED, FORMAT, IDS, MOST_SLOTS, NAME, UNITS, WHEEL, Checkpoint, sound_text
from timer.format.unit import TIMER_ROW, Rows, hash_of, isin, topic_hash
from timer.index.due_counts import DueCounts
from timer.schedule.queues import in_order
from timer.wheel import shutdown_snapshot
from timer.wheel.pending_units import LiveScan, ranges_at
from timer.wheel.shutdown_snapshot import RESUME
from timer.wheel.timer_log import FrameLog, UnitLog
from timer.wheel.timer_wheel import SLOT, SLOT_SIZE, slot_checks, used_extents

if TYPE_CHECKING:
    from timer.rocksdb.store import RocksRows

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


class WheelRows:
    """The pending timers of a stopped store. Raises CorruptStoreError."""

    def __init__(self, disk: Disk, checkpoint: Checkpoint) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._units = UnitLog(disk, UNITS, IDS, checkpoint.segment_bytes, checkpoint.unit_files())
        self._frames = FrameLog(disk, BODIES, checkpoint.segment_bytes, checkpoint.bodies)
        self._units.end = checkpoint.units_end
        self.bodies, self.damaged = self._frames.bodies, self._units.damaged

    def close(self) -> None:
        for folder in (*self._units.folders, self._frames):
            folder.close()

    def files(self) -> dict[str, int]:
        found = {}
        for folder in (UNITS, IDS, BODIES):
            for name in self._disk.names(folder):
                with closing(self._disk.open(f"{folder}/{name}")) as file:
                    found[f"{folder}/{name}"] = file.size()
        return found

    def live(self) -> Iterator[Rows]:
        """Yield pending rows block by block in the order of the log, the out-of-order ones last."""
        found = self._checkpoint
        scan = LiveScan(self._units, found, found.progress.settled, found.held, (), ranges_at(found))
        scan.mark()
        yield from scan.live()
        yield from scan.held.values()

    def check(self, by_tick: Counter[int], with_id: int, *, is_closed: bool) -> None:  # noqa: ARG002
        """Check what a start reads besides the live timers. by_tick, with_id: numbers of these in order, with an id."""
        for start, end in self._units.blocks(0):
            self._units.read_rows(start, end, is_checked=True)
        data = self._disk.read(CLOSED)
        if data and Checkpoint.from_bytes(data) is None:
            raise CorruptStoreError(CLOSED, "not a copy of any checkpoint")
        wheel, slots = self._disk.read(WHEEL) or b"", self._checkpoint.slots
        if slots > max(MOST_SLOTS, len(wheel) // SLOT_SIZE):
            raise CorruptStoreError(NAME, f"{slots} slots, but the wheel has {len(wheel)} bytes")
        if not is_closed:  # the next start rebuilds snapshot and wheel
            return
        if (resume := shutdown_snapshot.read(self._disk, self._checkpoint)) is None:
            raise CorruptStoreError(RESUME, "its check does not match, or it belongs to another checkpoint")
        _check_wheel(wheel, slots, by_tick)
        used = used_extents(self._disk, slots)
        if used is None or used[1] != resume.wheel:
            raise CorruptStoreError(WHEEL, "not the one of the last clean stop")


def _check_wheel(data: bytes, count: int, by_tick: Counter[int]) -> None:
    """Raise CorruptStoreError if a wheel of `count` slots does not have these numbers of timers by tick."""
    found = np.frombuffer(data[: len(data) // SLOT_SIZE * SLOT_SIZE], SLOT)
    for slot in np.flatnonzero(slot_checks(found) != found["magic"])[:1].tolist():
        raise CorruptStoreError(WHEEL, f"slot {slot}: its check does not match", slot * SLOT_SIZE)
    if len(found) != count:
        raise CorruptStoreError(WHEEL, f"{len(data)} bytes, the checkpoint needs {count} slots")
    expected, ticks = np.zeros(count, SLOT), np.fromiter(by_tick, np.int64, len(by_tick))
    expected["time"][ticks % count] = ticks
    expected["num"][ticks % count] = list(by_tick.values())
    is_same = (found["num"] == expected["num"]) & ((found["num"] == 0) | (found["time"] == expected["time"]))
    for slot in np.flatnonzero(~is_same)[:1].tolist():
        what = f"slot {slot} and {int((~is_same).sum()) - 1} more do not match the log"
        raise CorruptStoreError(WHEEL, what, slot * SLOT_SIZE)


def _rows_of(disk: Disk, checkpoint: Checkpoint) -> "WheelRows | RocksRows":
    """Open the rows of the checkpoint's engine. Imported here: RocksDB is loaded only if it is used."""
    if checkpoint.engine == "rocksdb":
        from timer.rocksdb.store import RocksRows

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
