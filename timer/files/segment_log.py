"""Two append-only logs over a Disk: units of one size (the TimerLog) and frames of any size (the body log).

    timer/00000000000000000000  timer/00000000000000001024 ...   ends with a blank record; its name is its position
    ids/00000000000000000000    ids/00000000000000001024   ...   a row for each unit of the file of that name
    body/00000000000000000000   body/00000000000000070013  ...   ends where the next begins

A segment is deleted as a whole when nothing in it lives, wherever it lies. A failed append leaves the log as it was.
"""

from bisect import bisect_right
from collections.abc import Collection
from contextlib import ExitStack

import numpy as np

from timer.errors import CorruptStoreError
from timer.files.disk import Disk, File
from timer.format.checksum import COLUMN, unit_checks
from timer.format.unit import BLANK, BLANK_MAGIC, BLANK_SIZE, UNIT, UNIT_SIZE, Ints, Rows, are_possible


def _name(folder: str, base: int) -> str:
    return f"{folder}/{base:020d}"


def sweep(disk: Disk, folder: str, only: Collection[int]) -> None:
    """Deletes all files but those of `only`."""
    kept = {f"{base:020d}" for base in only}
    for name in disk.names(folder):
        if name not in kept:
            disk.remove(f"{folder}/{name}")


class _Segments:
    """Open files by the position of their first byte."""

    def __init__(self, disk: Disk, folder: str, only: Collection[int]) -> None:
        self._disk = disk
        self.folder = folder
        self.bases = sorted(only)
        there = set(disk.names(folder))
        for base in self.bases:
            if f"{base:020d}" not in there:
                raise CorruptStoreError(_name(folder, base), "the file is missing")
        self.files: dict[int, File] = {}
        self._dirty: set[int] = set()
        self._former: set[int] = set()
        """What a former life may have changed, and not synced."""
        self._syncing: tuple[set[int], set[int]] = (set(), set())
        """Taken last, of both."""
        self._failed: set[int] = set()
        """What the system takes for written of them may not be."""
        with ExitStack() as opened:  # an error leaves none of them open
            opened.callback(self.close)
            for base in self.bases:
                self.files[base] = disk.open(_name(folder, base))
            opened.pop_all()

    def append(self, base: int, data: bytes) -> None:
        """`data` at the end of the file of `base`, made where missing; OSError and nothing where it fails."""
        is_new = base not in self.files
        if is_new:
            self.files[base] = self._disk.open(_name(self.folder, base))
            self.bases.append(base)
        file = self.files[base]
        size = file.size()
        self._dirty.add(base)
        try:
            file.append(data)
        except OSError:
            file.truncate(size)
            if is_new:
                self.drop(base)  # as the newest one it would be all that stays when the file before it goes
            raise

    def overwrite(self, base: int, at: int, data: bytes) -> None:
        """`data` within the file of `base`."""
        self._dirty.add(base)
        self.files[base].overwrite(at, data)

    def cut(self, base: int, size: int) -> None:
        """The file of `base` ends at `size`; to be synced also where it does, as a former life may have cut it."""
        if base not in self.files or self.files[base].size() < size:
            raise CorruptStoreError(_name(self.folder, base), f"the file is missing or shorter than {size}")
        self._dirty.add(base)
        if self.files[base].size() != size:
            self.files[base].truncate(size)

    @property
    def size_bytes(self) -> int:
        return sum(file.size() for file in self.files.values())

    def mark_former(self) -> None:
        """All of them: to be synced once, and not to be written again where that fails, as they may be many."""
        self._former = set(self.bases)

    def give_back(self, *, has_failed: bool) -> None:
        own, former = self._syncing
        self._dirty |= own
        self._former |= former
        if has_failed:
            self._failed |= own

    def take_dirty(self) -> list[File]:
        for base in sorted(self._failed & self.files.keys()):
            self.files[base].rewrite()
        self._failed = set()
        own, former = self._syncing = self._dirty, self._former
        self._dirty, self._former = set(), set()
        return [self.files[base] for base in sorted((own | former) & self.files.keys())]

    def drop(self, base: int) -> None:
        if base not in self.files:
            return
        self.bases.remove(base)
        self._dirty.discard(base)
        self.files.pop(base).close()
        self._disk.remove(_name(self.folder, base))

    def base_of(self, position: int) -> int:
        at = bisect_right(self.bases, position) - 1
        if at < 0:
            raise CorruptStoreError(f"{self.folder} at {position}", "no file holds this position")
        return self.bases[at]

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class UnitLog:
    """The TimerLog, and beside it rows of COLUMN: hashes of ids, from which their index is made at start, and checks.

    Units are numbered from 0 on; a unit's RIP-43 position follows from its number. `only`: the files by their first
    positions; others are passed over. Raises CorruptStoreError where one of them is missing.
    """

    def __init__(self, disk: Disk, folder: str, ids_folder: str, segment_bytes: int, only: Collection[int]) -> None:
        if segment_bytes < UNIT_SIZE + BLANK_SIZE:
            raise ValueError(f"segment_bytes is {segment_bytes}: a file holds at least one unit and a blank, 68 bytes")
        self._segment_bytes = segment_bytes
        self.per_segment = (segment_bytes - BLANK_SIZE) // UNIT_SIZE
        self._segments = _Segments(disk, folder, only)
        with ExitStack() as opened:
            opened.callback(self._segments.close)
            self._ids = _Segments(disk, ids_folder, only)
            opened.pop_all()
        self._segments.mark_former()  # which may have repointed units, and died before that was synced
        self.end = self._find_end()

    def _find_end(self) -> int:
        if not self._segments.bases:
            return 0
        base = self._segments.bases[-1]
        units = min(self._segments.files[base].size() // UNIT_SIZE, self.per_segment)
        return base // self._segment_bytes * self.per_segment + units

    def positions(self, numbers: Ints) -> Ints:
        """RIP-43 positions of units by number."""
        return numbers // self.per_segment * self._segment_bytes + numbers % self.per_segment * UNIT_SIZE

    def number(self, position: int) -> int:
        """The number of the unit at `position`. Raises CorruptStoreError where no unit can stand."""
        segment, within = divmod(position, self._segment_bytes)
        if position < 0 or within % UNIT_SIZE or within // UNIT_SIZE >= self.per_segment:
            raise CorruptStoreError(f"{self._segments.folder} at {position}", "no unit can begin here")
        return segment * self.per_segment + within // UNIT_SIZE

    def segment(self, number: int) -> int:
        """Which segment (0, 1, ...) a unit lies in."""
        return number // self.per_segment

    def has(self, number: int) -> bool:
        """Whether the file of unit `number` is there."""
        return self.segment(number) * self._segment_bytes in self._segments.files

    def segment_at(self, base: int) -> int:
        """The segment whose file is named `base`."""
        return base // self._segment_bytes

    def segments(self) -> list[int]:
        """Segments that exist, ascending."""
        return [base // self._segment_bytes for base in self._segments.bases]

    def append(self, units: Rows, beside: Rows) -> None:
        """All of `units`, with a row of BESIDE for each, or OSError and none."""
        assert units.dtype == UNIT, f"{units.dtype} are no units"
        start = self.end
        try:
            while len(units):
                count = self._append_some(units, beside)
                units, beside = units[count:], beside[count:]
        except OSError:
            self.truncate(start)
            raise

    def _append_some(self, units: Rows, beside: Rows) -> int:
        segment, within = divmod(self.end, self.per_segment)
        count = min(len(units), self.per_segment - within)
        data = units[:count].tobytes()
        if within + count == self.per_segment:
            left = self._segment_bytes - self.per_segment * UNIT_SIZE
            data += np.array([(left, 0, BLANK_MAGIC)], BLANK).tobytes()
        self._segments.append(segment * self._segment_bytes, data)
        column = np.empty(count, COLUMN)
        column["id_hash"], column["due_ms"] = beside["id_hash"][:count], beside["due_ms"][:count]
        column["check"] = unit_checks(units[:count], beside[:count], self.end)
        self.end += count
        self._ids.append(segment * self._segment_bytes, column.tobytes())
        return count

    def read(self, start: int, end: int) -> Rows:
        """Units [start, end), which lie in one segment. Raises CorruptStoreError where they are not all there."""
        segment, within = divmod(start, self.per_segment)
        base = segment * self._segment_bytes
        where = f"{self._segments.folder} at {base + within * UNIT_SIZE}"
        file = self._segments.files.get(base)
        if file is None:
            raise CorruptStoreError(where, "the file is missing")
        data = file.read(within * UNIT_SIZE, (end - start) * UNIT_SIZE)
        if len(data) != (end - start) * UNIT_SIZE:
            raise CorruptStoreError(where, "the file ends before")
        units = np.frombuffer(data, UNIT)
        if not ((units["size"] == UNIT_SIZE).all() and (units["magic"] > 0).all()):
            raise CorruptStoreError(where, "bytes that are no units")
        return units

    def read_checked(self, start: int, end: int) -> tuple[Rows, Rows]:
        """As `read` and `beside`, and the checks of the units fit. Raises CorruptStoreError where one does not."""
        units, columns = self.read(start, end), self.beside(start, end)
        computed = unit_checks(units, columns, start)
        for at in np.flatnonzero(computed != columns["check"])[:1].tolist():
            raise CorruptStoreError(f"{self._segments.folder}, unit {start + at}", "its check does not fit")
        if not are_possible(units):
            raise CorruptStoreError(f"{self._segments.folder}, units {start} to {end - 1}", "one that cannot be")
        return units, columns

    def beside(self, start: int, end: int) -> Rows:
        """Rows of COLUMN for units [start, end), of one segment. Raises CorruptStoreError where they are not there."""
        segment, within = divmod(start, self.per_segment)
        file = self._ids.files.get(segment * self._segment_bytes)
        data = file.read(within * COLUMN.itemsize, (end - start) * COLUMN.itemsize) if file is not None else b""
        if len(data) != (end - start) * COLUMN.itemsize:
            raise CorruptStoreError(f"{self._ids.folder}, unit {start}", "the file is missing or ends before")
        return np.frombuffer(data, COLUMN)

    def repoint(self, number: int, body_position: int) -> None:
        """The body of unit `number` lies elsewhere now."""
        segment, within = divmod(number, self.per_segment)
        field = UNIT.fields["body"] if UNIT.fields else None
        assert field is not None
        at = within * UNIT_SIZE + field[1]
        self._segments.overwrite(segment * self._segment_bytes, at, body_position.to_bytes(field[0].itemsize, "big"))

    def truncate(self, end: int) -> None:
        """Units [end, ...) are gone."""
        if end > self.end:
            raise CorruptStoreError(self._segments.folder, f"holds {self.end} units where {end} were synced")
        segment, within = divmod(end, self.per_segment)
        first_gone = (segment + (within > 0)) * self._segment_bytes
        for segments, item_size in ((self._segments, UNIT_SIZE), (self._ids, COLUMN.itemsize)):
            for base in [base for base in segments.bases if base >= first_gone]:
                segments.drop(base)
            if within:
                segments.cut(segment * self._segment_bytes, within * item_size)
        self.end = end

    def drop_segment(self, segment: int) -> None:
        self._segments.drop(segment * self._segment_bytes)
        self._ids.drop(segment * self._segment_bytes)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self._segments.size_bytes + self._ids.size_bytes

    def take_dirty(self) -> list[File]:
        """Files changed since the last call: what a sync has to cover. Raises OSError and UnreadableError.

        What a sync had failed for is written again: the system would take it for written, and say that all is well.
        """
        return self._segments.take_dirty() + self._ids.take_dirty()

    def give_back(self, *, has_failed: bool) -> None:
        """What was taken last is to be synced still; `has_failed`: a sync of it was tried."""
        self._segments.give_back(has_failed=has_failed)
        self._ids.give_back(has_failed=has_failed)

    def close(self) -> None:
        self._segments.close()
        self._ids.close()


class FrameLog:
    """The body log. A frame's position is that of its first byte, counted over all files since the first.

    `only`: as in UnitLog.
    """

    def __init__(self, disk: Disk, folder: str, segment_bytes: int, only: Collection[int]) -> None:
        self._segment_bytes = segment_bytes
        self._segments = _Segments(disk, folder, only)
        self.end = 0
        if self._segments.bases:
            base = self._segments.bases[-1]
            self.end = base + self._segments.files[base].size()

    def append(self, frames: list[bytes]) -> Ints:
        """Positions of `frames`, which lie one behind the other; OSError and none where it fails."""
        sizes = np.fromiter(map(len, frames), np.int64, len(frames))
        start = self.end
        bases = self._segments.bases
        base = bases[-1] if bases and start - bases[-1] < self._segment_bytes else start
        self._segments.append(base, b"".join(frames))
        ends = start + np.cumsum(sizes)
        self.end = int(ends[-1])
        return ends - sizes

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self._segments.size_bytes

    def read_upto(self, position: int, size: int) -> bytes:
        """At most `size` bytes from `position` on, within one file."""
        base = self._segments.base_of(position)
        return self._segments.files[base].read(position - base, size)

    def read(self, position: int, size: int) -> bytes:
        """`size` bytes from `position` on, within one file. Raises CorruptStoreError where they are not there."""
        base = self._segments.base_of(position)
        data = self._segments.files[base].read(position - base, size)
        if len(data) != size:
            raise CorruptStoreError(f"{self._segments.folder} at {position}", "the file ends before")
        return data

    def bases(self) -> list[int]:
        """First positions of the files, ascending."""
        return self._segments.bases

    def bases_of(self, positions: Ints) -> Ints:
        """The first position of the file in which each of `positions` lies."""
        bases = np.array(self._segments.bases, np.int64)
        index = np.searchsorted(bases, positions, side="right") - 1
        if len(index) and int(index.min()) < 0:
            raise CorruptStoreError(f"{self._segments.folder} at {int(positions.min())}", "no file holds this position")
        found: Ints = bases[index]
        return found

    def expect(self, positions: Ints, sizes: Ints) -> None:
        """Raises CorruptStoreError where a file ends before a frame that lies in it; the bytes are not looked at."""
        bases = self.bases_of(positions)
        ends = np.array([self.file_end(base) for base in self._segments.bases], np.int64)
        beyond = positions + sizes > ends[np.searchsorted(self._segments.bases, bases)]
        for position in positions[beyond][:1].tolist():
            raise CorruptStoreError(f"{self._segments.folder} at {position}", "no file holds this frame")

    def file_end(self, position: int) -> int:
        """Where the file that holds `position` ends."""
        base = self._segments.base_of(position)
        return base + self._segments.files[base].size()

    def truncate(self, end: int) -> None:
        """Bytes from `end` on are gone."""
        for base in [base for base in self._segments.bases if base >= end]:
            self._segments.drop(base)
        if end and (not self._segments.bases or self.file_end(end - 1) < end):
            raise CorruptStoreError(self._segments.folder, f"ends before {end}, which was synced")
        if end:
            base = self._segments.bases[-1]
            self._segments.cut(base, end - base)
        self.end = end

    def drop_segment(self, base: int) -> None:
        self._segments.drop(base)

    def take_dirty(self) -> list[File]:
        """See UnitLog.take_dirty."""
        return self._segments.take_dirty()

    def give_back(self, *, has_failed: bool) -> None:
        """See UnitLog.give_back."""
        self._segments.give_back(has_failed=has_failed)

    def close(self) -> None:
        self._segments.close()
