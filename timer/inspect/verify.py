"""Check a stopped store against its checkpoint, with the scans of a start, up to the first fault.

    1 checkpoint    its CRC; `closed` and `resume`
    2 files         sizes; blank records; every frame by its CRC
    3 TimerLog      every unit and its row of ids by their check
    4 live timers   as many as the checkpoint counts; each unit against its frame and the unit before it in its tick
    5 wheel         the check of each slot; each slot against a wheel that is rebuilt from the log

or, of the engine rocksdb: every value of the database, and its four orders against each other

A fault names the damaged record: a unit, a frame, a slot. Notes name what the next start repairs: it deletes files that
the checkpoint does not name, cuts bytes after the checkpoint's ends, and rebuilds the wheel unless the store was closed
cleanly.
"""

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from timer.errors import CorruptStoreError, WheelFullError
from timer.files.disk import Disk, File
from timer.files.wheel import SLOT, SLOT_SIZE, Wheel, slot_checks
from timer.format.body import unpack
from timer.format.checkpoint import CLOSED, MOST_SLOTS, NAME, Checkpoint
from timer.format.checksum import UNIT_EXTRA_DISK
from timer.format.file_names import BODIES, IDS, UNITS, WHEEL
from timer.format.unit import BLANK, BLANK_MAGIC, BLANK_SIZE, MAGIC_DELETE, UNIT_SIZE, Rows, isin, topic_hash
from timer.index.id_index import hash_of
from timer.inspect.offline_store import StoppedStore, WheelRows
from timer.maintenance import shutdown_snapshot

_READ_BYTES = 1024
"""Bytes of the first read of a frame; most frames are shorter."""


@dataclass(frozen=True, slots=True)
class StoreFault:
    """at: the byte of the file at which the faulty record begins, None if the whole file is at fault."""

    file: str
    at: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.at is None else f', byte {self.at}'}: {self.what}"


@dataclass(slots=True)
class Verified:
    """closed: True if the store was closed cleanly at its checkpoint; then the wheel has to match the log too."""

    fault: StoreFault | None = None
    notes: list[str] = field(default_factory=list)
    closed: bool = False
    files: int = 0
    frames: int = 0
    units: int = 0
    """Units in the log; `markers` of them are delete marks."""
    markers: int = 0
    live: int = 0
    ticks: int = 0
    """Slots of the wheel that hold live units."""

    def __str__(self) -> str:
        return (
            f"{self.live} live timers in {self.ticks} ticks, {self.units} units ({self.markers} markers),"
            f" {self.frames} frames, {self.files} files"
        )


def verify(disk: Disk) -> Verified:
    """Check the store on `disk`. Raises NoStoreError if there is none, or one of another format."""
    result = Verified()
    try:
        with StoppedStore(disk) as store:
            result.closed = store.closed
            if isinstance(store.rows, WheelRows):
                _Verification(disk, store.checkpoint, store.rows, result).run()
            else:
                from timer.inspect.rocksdb_rows import RocksRows  # loads RocksDB

                assert isinstance(store.rows, RocksRows)
                result.files = len(store.files())
                result.live, result.ticks = store.rows.verify()
                result.frames = result.units = result.live
    except CorruptStoreError as error:
        result.fault = StoreFault(error.where, error.at, error.what)
    return result


class _Verification:
    def __init__(self, disk: Disk, checkpoint: Checkpoint, rows: WheelRows, result: Verified) -> None:
        self._disk, self._checkpoint, self._rows, self._result = disk, checkpoint, rows, result
        self._log, self._frames = rows.units, rows.frames

    def run(self) -> None:
        """Check everything. Raises CorruptStoreError at the first fault."""
        self._check_closed()
        named = self._unit_file_ends() | self._body_file_ends()
        for folder in (UNITS, IDS, BODIES):
            for name in (f"{folder}/{each}" for each in self._disk.names(folder)):
                if name in named:
                    self._result.files += 1
                    with closing(self._disk.open(name)) as file:
                        self._check_file(name, file, named[name])
                else:
                    self._result.notes.append(f"{name}: not in the checkpoint; the next start deletes it")
        for start, end in self._log.blocks(0):
            units, _ = self._log.read_rows(start, end, is_checked=True)
            self._result.units += len(units)
            self._result.markers += int((units["magic"] & MAGIC_DELETE != 0).sum())
        self._check_wheel()

    def _check_closed(self) -> None:
        data = self._disk.read(CLOSED)
        if data and Checkpoint.from_bytes(data) is None:
            raise CorruptStoreError(CLOSED, "not a copy of any checkpoint")
        if self._result.closed and shutdown_snapshot.read(self._disk, self._checkpoint) is None:
            raise CorruptStoreError(
                shutdown_snapshot.RESUME, "its check does not match, or it belongs to another checkpoint"
            )

    # -- files

    def _body_file_ends(self) -> dict[str, int]:
        """Return the size of each body file at the checkpoint. Only the last one grows after it."""
        bases = self._checkpoint.bodies
        ends = {base: self._frames.file_end(base) for base in bases[:-1]}
        ends |= dict.fromkeys(bases[-1:], self._checkpoint.body_end)
        return {f"{BODIES}/{base:020d}": end - base for base, end in ends.items()}

    def _unit_file_ends(self) -> dict[str, int]:
        """Return the size of each file of the TimerLog and of its ids."""
        per_segment = self._log.per_segment
        found: dict[str, int] = {}
        for base in self._checkpoint.unit_files():
            count = max(0, min(per_segment, self._checkpoint.units_end - self._log.segment_at(base) * per_segment))
            found[f"{UNITS}/{base:020d}"] = count * UNIT_SIZE + (BLANK_SIZE if count == per_segment else 0)
            found[f"{IDS}/{base:020d}"] = count * UNIT_EXTRA_DISK.itemsize
        return found

    def _check_file(self, name: str, file: File, end: int) -> None:
        """Check the bytes below `end`."""
        size = file.size()
        if size < end:
            raise CorruptStoreError(name, f"{size} bytes, not {end}")
        if size > end:
            self._result.notes.append(f"{name}: {size - end} bytes after the checkpoint; the next start cuts them")
        if name.startswith(BODIES):
            self._check_frames(name, file, end)
        elif name.startswith(UNITS) and end % UNIT_SIZE:  # a full file
            at = end - BLANK_SIZE
            blank = np.array([(self._checkpoint.segment_bytes - at, 0, BLANK_MAGIC)], BLANK).tobytes()
            if file.read(at, size - at) != blank:
                raise CorruptStoreError(name, "not the blank record that ends a full file", at)

    def _check_frames(self, name: str, file: File, end: int) -> None:
        at = 0
        while at < end:
            data = file.read(at, min(_READ_BYTES, end - at))
            size = int.from_bytes(data[:4], "big")
            if size > len(data):
                data = file.read(at, min(size, end - at))
            try:
                unpack(data[:size], at)
            except CorruptStoreError as error:
                raise CorruptStoreError(name, error.what, at) from error
            at += size
            self._result.frames += 1

    # -- live timers and wheel

    def _check_wheel(self) -> None:
        data = self._disk.read(WHEEL) or b""
        expected = self._rebuilt_wheel(len(data))
        self._result.ticks = int((expected["num"] > 0).sum())
        found = np.frombuffer(data[: len(data) // SLOT_SIZE * SLOT_SIZE], SLOT)
        for slot in np.flatnonzero(slot_checks(found) != found["magic"])[:1].tolist():
            raise CorruptStoreError(WHEEL, f"slot {slot}: its check does not match", slot * SLOT_SIZE)
        if len(data) != expected.nbytes:
            self._differs(None, f"{len(data)} bytes, the checkpoint needs {expected.nbytes}")
            return
        is_used = expected["num"] > 0
        is_within = (found["first"] <= expected["first"]) & (found["last"] >= expected["last"])
        is_same = (found["num"] == expected["num"]) & (~is_used | (found["time"] == expected["time"]) & is_within)
        for slot in np.flatnonzero(~is_same)[:1].tolist():
            self._differs(slot, f"slot {slot} and {int((~is_same).sum()) - 1} more do not match the log")

    def _differs(self, slot: int | None, what: str) -> None:
        if self._result.closed:
            raise CorruptStoreError(WHEEL, what, None if slot is None else slot * SLOT_SIZE)
        self._result.notes.append(f"{WHEEL}: {what}; the next start rebuilds it")

    def _rebuilt_wheel(self, wheel_bytes: int) -> Rows:
        """Rebuild the slots from the live units. Raises CorruptStoreError if a unit has another frame or chain."""
        checkpoint = self._checkpoint
        if checkpoint.slots > max(MOST_SLOTS, wheel_bytes // SLOT_SIZE):
            raise CorruptStoreError(NAME, f"{checkpoint.slots} slots, but a wheel of {wheel_bytes} bytes")
        buffer = bytearray(checkpoint.slots * SLOT_SIZE)
        wheel = Wheel(memoryview(buffer), tick_ms=checkpoint.tick_ms, slots=checkpoint.slots)
        for rows in self._rows.live():
            self._check_bodies(rows)
            self._link(wheel, rows[~isin(rows["origin"], list(checkpoint.held))])
            self._result.live += len(rows)
        return np.frombuffer(buffer, SLOT)

    def _check_bodies(self, rows: Rows) -> None:
        names = ("unit", "body", "body_size", "origin", "topic_hash", "id_hash", "due_ms")
        for unit, position, size, origin_offset, *facts in zip(*(rows[name].tolist() for name in names), strict=True):
            try:
                body = self._rows.reader.read_one(position, size, origin_offset)
            except CorruptStoreError as error:
                raise self._log.damaged(unit, f"no frame for it: {error}") from error
            if facts != [topic_hash(body.target), 0 if body.id is None else hash_of(body.id), body.due_ms]:
                raise self._log.damaged(unit, f"does not match the frame at {position}")

    def _link(self, wheel: Wheel, rows: Rows) -> None:
        """Add `rows` to `wheel`. Raises CorruptStoreError if one skips the live unit before it in its tick."""
        if not len(rows):
            return
        first, positions = int(rows["unit"][0]), self._log.positions(rows["unit"])
        try:
            links = wheel.plan(rows["visit_ms"], positions, np.ones(len(rows), np.bool_))
        except WheelFullError as full:
            raise CorruptStoreError(WHEEL, str(full)) from full
        wheel.link(links)
        previous = self._log.read(first, int(rows["unit"][-1]) + 1)["previous"][rows["unit"] - first]
        is_wrong = (previous < links.previous) | (previous >= positions)
        for unit in rows["unit"][is_wrong][:1].tolist():
            raise self._log.damaged(unit, "its previous is not between the live unit before it in its tick and itself")
