"""Two append-only logs on a Disk: the TimerLog (units of one size) and the body log (frames of any size).

    timer/00000000000000000000  timer/00000000000000001024 ...   ends with a blank record; the name is the position
    ids/00000000000000000000    ids/00000000000000001024   ...   a row for each unit of the file of that name
    body/00000000000000000000   body/00000000000000070013  ...   ends where the next begins

A segment is deleted as a whole when nothing in it is pending, whatever its position. A failed append changes nothing.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import ExitStack

import numpy as np

from kafka_timer.headers import MAX_INT64
from timer.disk import Disk, File
from timer.errors import CorruptStoreError
from timer.format.body import PEEK_SIZE, Body, Peek, peek, unpack
from timer.format.unit import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    BODY_FIELD,
    UNIT,
    UNIT_EXTRA_DISK,
    UNIT_SIZE,
    Ints,
    Rows,
    are_valid,
    run_of,
    unit_checks,
)

_BLOCK_UNITS = 1 << 16
"""Units that are read at once, 3.4 MB."""
_READ_THROUGH_BYTES = 4096
"""Gaps up to this size are read too, as that is cheaper than another read."""
_MAX_READ_BYTES = 8 << 20


def _name(folder: str, base: int) -> str:
    return f"{folder}/{base:020d}"


def delete_other_files(disk: Disk, folder: str, bases: Collection[int]) -> None:
    kept = {f"{base:020d}" for base in bases}
    for name in disk.names(folder):
        if name not in kept:
            disk.remove(f"{folder}/{name}")


class _Segments:
    """Open files by the position of their first byte."""

    def __init__(self, disk: Disk, folder: str, bases: Collection[int]) -> None:
        self._disk = disk
        self.folder = folder
        self.bases = sorted(bases)
        there = set(disk.names(folder))
        for base in self.bases:
            if f"{base:020d}" not in there:
                raise CorruptStoreError(_name(folder, base), "the file is missing")
        self.files: dict[int, File] = {}
        self._dirty: dict[int, bool] = {}
        """Files to sync. True: changed by this process; False: an earlier one may have changed it without a sync."""
        self._syncing: dict[int, bool] = {}
        """The last result of `take_dirty`."""
        self._failed: set[int] = set()
        """A sync of these failed: the kernel may consider lost bytes written."""
        with ExitStack() as opened:  # on an error, close those that are open
            opened.callback(self.close)
            for base in self.bases:
                self.files[base] = disk.open(_name(folder, base))
            opened.pop_all()

    def append_to(self, base: int, data: bytes) -> None:
        """Append to the file of `base`, which is created if missing. On OSError nothing changes."""
        is_new = base not in self.files
        if is_new:
            self.files[base] = self._disk.open(_name(self.folder, base))
            self.bases.append(base)
        file = self.files[base]
        size = file.size()
        self._dirty[base] = True
        try:
            file.append(data)
        except OSError:
            file.truncate(size)
            if is_new:
                self.drop(base)  # the newest file stays, so it must not be an empty one
            raise

    def overwrite(self, base: int, at: int, data: bytes) -> None:
        self._dirty[base] = True
        self.files[base].overwrite(at, data)

    def cut(self, base: int, size: int) -> None:
        """Cut the file of `base` to `size`. Sync it in any case: an earlier process may have cut it."""
        if base not in self.files or self.files[base].size() < size:
            raise CorruptStoreError(_name(self.folder, base), f"the file is missing or shorter than {size}")
        self._dirty[base] = True
        if self.files[base].size() != size:
            self.files[base].truncate(size)

    def mark_all_unsynced(self) -> None:
        """Let the next sync cover all files. They are not rewritten if it fails, as they may be many."""
        self._dirty = dict.fromkeys(self.bases, False)

    def restore_dirty(self) -> None:
        self._dirty = self._syncing | self._dirty
        self._failed |= {base for base, is_own in self._syncing.items() if is_own}

    def take_dirty(self) -> list[File]:
        """Return files changed since the last call: what a sync has to cover. Raises OSError and UnreadableError.

        Files of a failed sync are rewritten first: the kernel considers their bytes written and would report success.
        """
        for base in sorted(self._failed & self.files.keys()):
            self.files[base].rewrite()
        self._failed = set()
        self._syncing, self._dirty = self._dirty, {}
        return [self.files[base] for base in sorted(self._syncing.keys() & self.files.keys())]

    def drop(self, base: int) -> None:
        self.bases.remove(base)
        self._dirty.pop(base, None)
        self.files.pop(base).close()
        self._disk.remove(_name(self.folder, base))

    @property
    def size_bytes(self) -> int:
        return sum(file.size() for file in self.files.values())

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class UnitLog:
    """The TimerLog, and for each unit a row of UNIT_EXTRA_DISK: id hash (the id index is built from it), check.

    Units are numbered from 0; the number gives the RIP-43 position. bases: the files by first position; others are
    ignored. Raises CorruptStoreError if one is missing.
    """

    def __init__(self, disk: Disk, folder: str, ids_folder: str, segment_bytes: int, bases: Collection[int]) -> None:
        if segment_bytes < UNIT_SIZE + BLANK_SIZE:
            raise ValueError(f"segment_bytes is {segment_bytes}: a file holds at least one unit and a blank, 68 bytes")
        self._segment_bytes = segment_bytes
        self.per_segment = (segment_bytes - BLANK_SIZE) // UNIT_SIZE
        self._segments = _Segments(disk, folder, bases)
        with ExitStack() as opened:
            opened.callback(self._segments.close)
            self._ids = _Segments(disk, ids_folder, bases)
            opened.pop_all()
        self.folders = self._segments, self._ids
        self._segments.mark_all_unsynced()  # an earlier process may have repointed units
        self.end = 0
        for base in self._segments.bases[-1:]:
            units = min(self._segments.files[base].size() // UNIT_SIZE, self.per_segment)
            self.end = base // self._segment_bytes * self.per_segment + units

    def positions(self, numbers: Ints) -> Ints:
        """Return RIP-43 positions by unit number."""
        return numbers // self.per_segment * self._segment_bytes + numbers % self.per_segment * UNIT_SIZE

    def number(self, position: int) -> int:
        """Return the number of the unit at `position`. Raises CorruptStoreError if no unit can begin there."""
        segment, within = divmod(position, self._segment_bytes)
        if position < 0 or within % UNIT_SIZE or within // UNIT_SIZE >= self.per_segment:
            raise CorruptStoreError(f"{self._segments.folder} at {position}", "not the position of a unit")
        return segment * self.per_segment + within // UNIT_SIZE

    def segment(self, number: int) -> int:
        return number // self.per_segment

    def has(self, number: int) -> bool:
        return self.segment(number) * self._segment_bytes in self._segments.files

    def segments(self) -> list[int]:
        return [base // self._segment_bytes for base in self._segments.bases]

    def blocks(self, first: int, size: int = _BLOCK_UNITS, *, last: int = MAX_INT64) -> Iterator[tuple[int, int]]:
        """Yield parts [start, end) of units [first, last), each in one existing file; `size` grows."""
        log_end = min(last, self.end)
        for segment in self.segments():
            start = max(first, segment * self.per_segment)
            end = min(log_end, (segment + 1) * self.per_segment)
            while start < end:
                yield start, min(end, start + size)
                start, size = start + size, min(_BLOCK_UNITS, size * 4)

    def append(self, units: Rows, extra: Rows) -> None:
        """Append all of `units`. extra: TIMER_ROW with ids, due times and targets. On OSError nothing changes."""
        assert units.dtype == UNIT, f"expected UNIT rows, not {units.dtype}"
        start = self.end
        try:
            while len(units):
                count = self._append_some(units, extra)
                units, extra = units[count:], extra[count:]
        except OSError:
            self.truncate(start)
            raise

    def _append_some(self, units: Rows, extra: Rows) -> int:
        segment, within = divmod(self.end, self.per_segment)
        count = min(len(units), self.per_segment - within)
        data = units[:count].tobytes()
        if within + count == self.per_segment:
            left = self._segment_bytes - self.per_segment * UNIT_SIZE
            data += np.array([(left, 0, BLANK_MAGIC)], BLANK).tobytes()
        self._segments.append_to(segment * self._segment_bytes, data)
        column = np.empty(count, UNIT_EXTRA_DISK)
        column["id_hash"], column["due_ms"] = extra["id_hash"][:count], extra["due_ms"][:count]
        column["topic_high"] = extra["topic_hash"][:count] >> 32
        column["check"] = unit_checks(units[:count], column, self.end)
        self.end += count
        self._ids.append_to(segment * self._segment_bytes, column.tobytes())
        return count

    def damaged(self, number: int, what: str) -> CorruptStoreError:
        """Return an error that names unit `number`: its file, and the byte at which it begins."""
        segment, within = divmod(number, self.per_segment)
        name = _name(self._segments.folder, segment * self._segment_bytes)
        return CorruptStoreError(name, f"unit {number}: {what}", within * UNIT_SIZE)

    def read_rows(self, start: int, end: int, *, is_checked: bool = False) -> tuple[Rows, Rows]:
        """Return units [start, end) of one segment, and the same units as TIMER_ROW.

        is_checked: the checks are compared too. Raises CorruptStoreError, with the first damaged or missing unit.
        """
        units = np.frombuffer(self._read(self._segments, start, end, UNIT_SIZE), UNIT)
        is_valid = (units["size"] == UNIT_SIZE) & (units["magic"] > 0)
        if not is_valid.all():
            raise self.damaged(start + int(is_valid.argmin()), "wrong size or magic")
        extra = np.frombuffer(self._read(self._ids, start, end, UNIT_EXTRA_DISK.itemsize), UNIT_EXTRA_DISK)
        if is_checked:
            for at in np.flatnonzero(unit_checks(units, extra, start) != extra["check"])[:1].tolist():
                raise self.damaged(start + at, f"its check does not match (unit, or row in {self._ids.folder}/)")
            if not are_valid(units):
                at = next(at for at in range(len(units)) if not are_valid(units[at : at + 1]))
                raise self.damaged(start + at, "impossible values, though its check matches")
        return units, run_of(units, extra, start)

    def _read(self, segments: _Segments, start: int, end: int, item_size: int) -> bytes:
        """Return the bytes of units [start, end) of one segment in their files of the TimerLog or of the ids."""
        segment, within = divmod(start, self.per_segment)
        file = segments.files.get(segment * self._segment_bytes)
        data = b"" if file is None else file.read(within * item_size, (end - start) * item_size)
        if len(data) != (end - start) * item_size:
            what = "the file is missing" if file is None else f"the file ends before unit {end - 1}"
            raise CorruptStoreError(_name(segments.folder, segment * self._segment_bytes), what)
        return data

    def repoint(self, number: int, body_position: int) -> None:
        segment, within = divmod(number, self.per_segment)
        at = within * UNIT_SIZE + BODY_FIELD.start
        self._segments.overwrite(segment * self._segment_bytes, at, body_position.to_bytes(8, "big"))

    def truncate(self, end: int) -> None:
        if end > self.end:
            raise CorruptStoreError(self._segments.folder, f"{self.end} units, but {end} were synced")
        segment, within = divmod(end, self.per_segment)
        first_gone = (segment + (within > 0)) * self._segment_bytes
        for segments, item_size in ((self._segments, UNIT_SIZE), (self._ids, UNIT_EXTRA_DISK.itemsize)):
            for base in [base for base in segments.bases if base >= first_gone]:
                segments.drop(base)
            if within:
                segments.cut(segment * self._segment_bytes, within * item_size)
        self.end = end

    def drop_segment(self, segment: int) -> None:
        self._segments.drop(segment * self._segment_bytes)
        self._ids.drop(segment * self._segment_bytes)


class FrameLog(_Segments):
    """The body log. A frame's position is that of its first byte, counted over all files. bases: as in UnitLog."""

    def __init__(self, disk: Disk, folder: str, segment_bytes: int, bases: Collection[int]) -> None:
        super().__init__(disk, folder, bases)
        self._segment_bytes = segment_bytes
        self.end = self.file_end(self.bases[-1]) if self.bases else 0

    def append(self, frames: list[bytes]) -> Ints:
        """Append `frames` and return their positions. On OSError nothing changes."""
        sizes = np.fromiter(map(len, frames), np.int64, len(frames))
        start, bases = self.end, self.bases
        base = bases[-1] if bases and start - bases[-1] < self._segment_bytes else start
        self.append_to(base, b"".join(frames))
        ends = start + np.cumsum(sizes)
        self.end = int(ends[-1])
        return ends - sizes

    def base_of(self, position: int) -> int:
        at = bisect_right(self.bases, position) - 1
        if at < 0:
            raise CorruptStoreError(f"{self.folder} at {position}", "no file holds this position")
        return self.bases[at]

    def read_upto(self, position: int, size: int) -> bytes:
        base = self.base_of(position)
        return self.files[base].read(position - base, size)

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on, of one file. Raises CorruptStoreError if some are missing."""
        data = self.read_upto(position, size)
        if len(data) != size:
            raise CorruptStoreError(f"{self.folder} at {position}", f"the file ends before {position + size}")
        return data

    def bases_of(self, positions: Ints) -> Ints:
        index = np.searchsorted(self.bases, positions, side="right") - 1
        if len(index) and int(index.min()) < 0:
            self.base_of(int(positions.min()))  # raises
        found: Ints = np.array(self.bases, np.int64)[index]
        return found

    def check_frames_exist(self, positions: Ints, sizes: Ints) -> None:
        """Raise CorruptStoreError if a file ends before one of these frames. Does not read them."""
        bases = self.bases_of(positions)
        ends = np.array([self.file_end(base) for base in self.bases], np.int64)
        beyond = positions + sizes > ends[np.searchsorted(self.bases, bases)]
        for position in positions[beyond][:1].tolist():
            raise CorruptStoreError(f"{self.folder} at {position}", "no file holds this frame")

    def file_end(self, position: int) -> int:
        base = self.base_of(position)
        return base + self.files[base].size()

    def truncate(self, end: int) -> None:
        for base in [base for base in self.bases if base >= end]:
            self.drop(base)
        if end and (not self.bases or self.file_end(end - 1) < end):
            raise CorruptStoreError(self.folder, f"ends before {end}, which was synced")
        if end:
            base = self.bases[-1]
            self.cut(base, end - base)
        self.end = end

    # -- bodies, each compared with its row

    def bodies(self, rows: Rows) -> list[Body]:
        """Return the bodies of `rows`, in their order. Raises CorruptStoreError."""
        if not len(rows):  # fast path: three of the four kinds of a turn are usually empty
            return []
        positions, sizes, origins = rows["body"].tolist(), rows["body_size"].tolist(), rows["origin"].tolist()
        bodies: list[Body] = []
        at = 0
        while at < len(positions):
            base = positions[at]
            end, upto = self._span(positions, sizes, at)
            data = self.read(base, end - base)
            for i in range(at, upto):
                offset = positions[i] - base
                bodies.append(unpack(data[offset : offset + sizes[i]], positions[i], origins[i]))
            at = upto
        return bodies

    def _span(self, positions: list[int], sizes: list[int], at: int) -> tuple[int, int]:
        """Return the end of one read that serves the bodies from row `at` on, and the first row after it."""
        base = positions[at]
        file_end, end, upto = self.file_end(base), base + sizes[at], at + 1
        while upto < len(positions):
            begin = positions[upto]
            if not end <= begin <= end + _READ_THROUGH_BYTES or begin >= file_end or begin - base > _MAX_READ_BYTES:
                break
            end, upto = begin + sizes[upto], upto + 1
        return end, upto

    def peek(self, row: Rows) -> Peek:
        """Return the beginning of the body of `row`. Raises CorruptStoreError if a torn unit points to another body."""
        position = int(row["body"][0])
        found = peek(self.read_upto(position, PEEK_SIZE), position)
        if (found.size, found.origin_offset) != (row["body_size"][0], row["origin"][0]):
            raise CorruptStoreError(f"body log at {position}", f"not the body of origin {row['origin'][0]}")
        return found
