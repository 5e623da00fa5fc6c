"""Check a stopped store against its checkpoint: the checks of recovery, over every record, up to the first fault.

    1 checkpoint    its CRC; `closed` and `resume`
    2 files         sizes; blank records; every frame by its CRC
    3 TimerLog      every unit and its row of ids by their check; what each delete marker ends
    4 live timers   as many as the checkpoint counts; each unit against its frame and its chain
    5 wheel         the check of each slot; each slot against a wheel that is rebuilt from the log

The next start deletes files that the checkpoint does not name, cuts bytes after the checkpoint's ends, and rebuilds the
wheel unless the store was closed cleanly. Such differences are notes, not faults.
"""

from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from timer.errors import CorruptStoreError, WheelFullError
from timer.files.disk import Disk, File
from timer.files.wheel import SLOT, SLOT_SIZE, Wheel, slot_checks
from timer.format.body import unpack
from timer.format.checkpoint import CLOSED, MOST_SLOTS, NAME, Checkpoint
from timer.format.checksum import UNIT_EXTRA_DISK
from timer.format.file_names import BODIES, IDS, UNITS, WHEEL
from timer.format.unit import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    MAGIC_DELETE,
    MAGIC_NORMAL,
    MAGIC_UNCHAINED,
    UNIT_SIZE,
    Rows,
    topic_hash,
    visits_ms,
)
from timer.index.id_index import hash_of
from timer.inspect.offline_store import StoppedStore
from timer.maintenance import shutdown_snapshot
from timer.maintenance.startup_scan import blocks

_READ_BYTES = 1024
"""Bytes of the first read of a frame; most frames are shorter."""
_BLOCK_SLOTS = 1 << 16


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
    """Units in the log; `markers` of them are delete markers."""
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
            _Verification(disk, store, result).run()
    except CorruptStoreError as wrong:
        result.fault = StoreFault(wrong.where, wrong.at, wrong.what)
    return result


class _Verification:
    def __init__(self, disk: Disk, store: StoppedStore, result: Verified) -> None:
        self._disk, self._store, self._result = disk, store, result
        self._checkpoint, self._log = store.checkpoint, store.units

    def run(self) -> None:
        """Check everything. Raises CorruptStoreError at the first fault."""
        self._check_closed()
        sizes = self._sizes()
        for folder in (UNITS, IDS, BODIES):
            for name in self._disk.names(folder):
                self._check_file(f"{folder}/{name}", sizes)
        for start, end in blocks(self._log, 0):
            self._check_units(start, end)
        data = self._disk.read(WHEEL)
        self._check_wheel(data, self._rebuilt_wheel(len(data or b"")))

    def _check_closed(self) -> None:
        data = self._disk.read(CLOSED)
        if data and Checkpoint.from_bytes(data) is None:
            raise CorruptStoreError(CLOSED, "not a copy of any checkpoint")
        self._result.closed = self._store.closed
        if self._result.closed and shutdown_snapshot.read(self._disk, self._checkpoint) is None:
            raise CorruptStoreError(
                shutdown_snapshot.RESUME, "its check does not fit, or it belongs to another checkpoint"
            )

    # -- files

    def _sizes(self) -> dict[str, tuple[int, int, bool]]:
        """Return least and largest size of each file of the checkpoint, with True if it is the last one of its log."""
        checkpoint, units = self._checkpoint, self._log.per_segment
        found: dict[str, tuple[int, int, bool]] = {}
        for base in checkpoint.unit_files():
            count = max(0, min(units, checkpoint.units_end - self._log.segment_at(base) * units))
            is_last = count < units
            size = count * UNIT_SIZE + (0 if is_last else BLANK_SIZE)
            found[f"{UNITS}/{base:020d}"] = size, size, is_last
            found[f"{IDS}/{base:020d}"] = count * UNIT_EXTRA_DISK.itemsize, count * UNIT_EXTRA_DISK.itemsize, is_last
        for base, following in pairwise((*checkpoint.bodies, checkpoint.body_end)):
            is_last = following == checkpoint.body_end
            size = following - base
            # The file after a full one may have been deleted.
            found[f"{BODIES}/{base:020d}"] = size if is_last else min(checkpoint.segment_bytes, size), size, is_last
        return found

    def _check_file(self, name: str, sizes: dict[str, tuple[int, int, bool]]) -> None:
        if name not in sizes:
            self._result.notes.append(f"{name}: not in the checkpoint; the next start deletes it")
            return
        self._result.files += 1
        least, most, is_last = sizes[name]
        with closing(self._disk.open(name)) as file:
            found = file.size()
            if found < least or (found > most and not is_last):
                raise CorruptStoreError(name, f"{found} bytes, not {most}")
            if found > most:
                self._result.notes.append(
                    f"{name}: {found - most} bytes after the checkpoint; the next start cuts them"
                )
            if name.startswith(BODIES):
                self._check_frames(name, file, min(found, most))
            elif name.startswith(UNITS) and not is_last:
                at = most - BLANK_SIZE
                blank = np.array([(self._checkpoint.segment_bytes - at, 0, BLANK_MAGIC)], BLANK).tobytes()
                if file.read(at, BLANK_SIZE) != blank:
                    raise CorruptStoreError(name, "not the blank record that ends a full file", at)

    def _check_frames(self, name: str, file: File, end: int) -> None:
        at = 0
        while at < end:
            data = file.read(at, min(_READ_BYTES, end - at))
            size = int.from_bytes(data[:4], "big")
            if size > len(data):
                data = file.read(at, min(size, end - at))
            try:
                unpack(memoryview(data)[:size], at)
            except CorruptStoreError as wrong:
                raise CorruptStoreError(name, wrong.what, at) from wrong
            at += size
            self._result.frames += 1

    # -- units

    def _wrong_unit(self, number: int, what: str) -> CorruptStoreError:
        segment, within = divmod(number, self._log.per_segment)
        name = f"{UNITS}/{segment * self._checkpoint.segment_bytes:020d}"
        return CorruptStoreError(name, f"unit {number}: {what}", within * UNIT_SIZE)

    def _check_units(self, start: int, end: int) -> None:
        try:
            units, _ = self._log.read_checked(start, end)
        except CorruptStoreError as wrong:
            if end - start == 1:
                raise self._wrong_unit(start, f"{wrong.what} (the unit, or its row in {IDS}/)") from wrong
            for number in range(start, end):
                self._check_units(number, number + 1)
            raise
        is_marker = units["magic"] & MAGIC_DELETE != 0
        self._result.units += len(units)
        self._result.markers += int(is_marker.sum())
        for at in np.flatnonzero(is_marker).tolist():
            if not self._ends_its_timer(units[at : at + 1], start + at):
                raise self._wrong_unit(start + at, "a delete marker that does not match the unit that it ends")

    def _ends_its_timer(self, marker: Rows, number: int) -> bool:
        try:
            ended = self._log.number(int(marker["body"][0]))
            if ended >= number or not self._log.has(ended):
                return ended < number  # its file may have been deleted
            unit = self._log.read(ended, ended + 1)
        except CorruptStoreError:
            return False
        is_timer = (unit["magic"] & MAGIC_DELETE == 0) & (marker["body_size"] == 0)
        is_same = (marker["origin"] == unit["origin"]) & (marker["topic_hash"] == unit["topic_hash"])
        return bool((is_timer & is_same & (visits_ms(marker) == visits_ms(unit))).all())

    def _rebuilt_wheel(self, wheel_bytes: int) -> Rows:
        """Rebuild the slots from the live units. Raises CorruptStoreError if a unit differs from its frame or chain."""
        checkpoint = self._checkpoint
        if checkpoint.slots > max(MOST_SLOTS, wheel_bytes // SLOT_SIZE):
            raise CorruptStoreError(NAME, f"{checkpoint.slots} slots, but a wheel of {wheel_bytes} bytes")
        buffer = bytearray(checkpoint.slots * SLOT_SIZE)
        wheel = Wheel(memoryview(buffer), tick_ms=checkpoint.tick_ms, slots=checkpoint.slots)
        held = set(checkpoint.held)
        for rows in self._store.live():
            if len(rows):
                first, last = int(rows["unit"][0]), int(rows["unit"][-1])
                units = self._log.read(first, last + 1)[rows["unit"] - first]
                self._check_bodies(rows, units)
                chained = np.array([origin not in held for origin in rows["origin"].tolist()], np.bool_)
                self._chain(wheel, rows[chained], units[chained])
                self._result.live += len(rows)
        return np.frombuffer(buffer, SLOT)

    def _check_bodies(self, rows: Rows, units: Rows) -> None:
        """Check that each unit agrees with its frame."""
        names = ("unit", "body", "body_size", "origin", "topic_hash", "id_hash", "due_ms")
        is_normal, is_due = units["magic"] & MAGIC_NORMAL != 0, rows["visit_ms"] >= rows["due_ms"]
        columns = (*(rows[name] for name in names), units["written_ms"], is_normal == is_due)
        for number, position, size, *facts, is_sound in zip(*(column.tolist() for column in columns), strict=True):
            try:
                body = unpack(self._store.frames.read(position, size), position)
            except CorruptStoreError as wrong:
                raise self._wrong_unit(number, f"no frame for it: {wrong}") from wrong
            id_hash = 0 if body.id is None else hash_of(body.id)
            expected = [body.origin, topic_hash(body.target), id_hash, body.due_ms, body.timestamp_ms]
            is_offset_known = body.origin <= body.offset < self._checkpoint.progress.next_offset
            if not is_sound or facts != expected or not is_offset_known:
                raise self._wrong_unit(number, f"does not match the frame at {position}")

    def _chain(self, wheel: Wheel, rows: Rows, units: Rows) -> None:
        """Add `rows` to `wheel`. Raises CorruptStoreError if one does not lead to the live unit before it in a tick."""
        positions = self._log.positions(rows["unit"])
        try:
            links = wheel.plan(rows["visit_ms"], positions, np.ones(len(rows), np.bool_))
        except WheelFullError as full:
            raise CorruptStoreError(WHEEL, str(full)) from full
        wheel.link(links)
        previous = units["previous"].astype(np.int64)
        differs = (previous != links.previous) & ((links.previous >= 0) | (previous >= positions))
        for at in np.flatnonzero(differs).tolist():
            tick = int(rows["visit_ms"][at]) // wheel.tick_ms
            if not self._leads(int(positions[at]), int(previous[at]), int(links.previous[at]), tick):
                what = f"its previous, {previous[at]}, does not lead to the live unit at {links.previous[at]}"
                raise self._wrong_unit(int(rows["unit"][at]), what)

    def _leads(self, after: int, position: int, goal: int, tick: int) -> bool:
        """True if a link from `after` to `position` leads to `goal` through units of `tick` that have ended."""
        while goal < position < after:
            try:
                number = self._log.number(position)
                unit = self._log.read(number, number + 1)
            except CorruptStoreError:
                return False
            if int(visits_ms(unit)[0]) // self._checkpoint.tick_ms != tick or int(unit["magic"][0]) & MAGIC_UNCHAINED:
                return False
            after, position = position, int(unit["previous"][0])
        return position == goal

    # -- wheel

    def _check_wheel(self, data: bytes | None, expected: Rows) -> None:
        """Check the slots against `expected`. data: the wheel file on disk, None if it is missing."""
        self._result.ticks = int((expected["num"] > 0).sum())
        found = np.frombuffer(data or b"", SLOT, len(data or b"") // SLOT_SIZE)
        for start in range(0, len(found), _BLOCK_SLOTS):
            slots = found[start : start + _BLOCK_SLOTS]
            for at in np.flatnonzero(slot_checks(slots) != slots["magic"])[:1].tolist():
                raise CorruptStoreError(WHEEL, f"slot {start + at}: its check does not fit", (start + at) * SLOT_SIZE)
        if data is None or len(data) != len(expected) * SLOT_SIZE:
            size = "no file" if data is None else f"{len(data)} bytes"
            self._differs(None, f"{size}, the checkpoint needs {len(expected) * SLOT_SIZE}")
            return
        is_used = expected["num"] > 0
        is_other = (found["num"] != expected["num"]) | (is_used & (found["time"] != expected["time"]))
        for slot in np.flatnonzero(is_other)[:1].tolist():
            self._differs(slot, f"slot {slot} and {int(is_other.sum()) - 1} more do not match the log")
        if self._result.closed:
            for slot in np.flatnonzero(is_used & (found["first"] > expected["first"])).tolist():
                raise CorruptStoreError(WHEEL, f"slot {slot}: first is after its first live unit", slot * SLOT_SIZE)
            end = int(self._log.positions(np.array([self._checkpoint.units_end]))[0])
            for slot in np.flatnonzero(is_used & (found["last"] != expected["last"])).tolist():
                last, goal = int(found["last"][slot]), int(expected["last"][slot])
                if not self._leads(end, last, goal, int(found["time"][slot])):
                    what = f"slot {slot}: last, {last}, does not lead to its last live unit, {goal}"
                    raise CorruptStoreError(WHEEL, what, slot * SLOT_SIZE)

    def _differs(self, slot: int | None, what: str) -> None:
        if self._result.closed:
            raise CorruptStoreError(WHEEL, what, None if slot is None else slot * SLOT_SIZE)
        self._result.notes.append(f"{WHEEL}: {what}; the next start rebuilds it")
