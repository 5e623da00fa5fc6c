"""The TimerLog by its checks; what markers end; and each unit against the frame that it speaks of.

pass 1   every unit with its id hash by their check, blank records, delete markers -> which units have ended
pass 2   every unit's frame, where its file is there; what lives: it has a frame, its chain, and is counted
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from timer.checkpoint import Checkpoint
from timer.checksum import COLUMN, UNIT_COVERED, changed_byte, unit_checks
from timer.entry import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    MAGIC_DELETE,
    MAGIC_NORMAL,
    MAGIC_ROLL,
    MAGIC_UNCHAINED,
    UNIT,
    UNIT_SIZE,
    Rows,
    run_of,
    topic_hash,
    visits_ms,
)
from timer.errors import CorruptStoreError
from timer.ids import hash_of
from timer.live import EndedUnits
from timer.log import FrameLog, UnitLog
from timer.names import UNITS
from timer.record import Body, unpack
from timer.scan import to_come, waits_of
from timer.verified import FaultError, Folder, Verified, field_at
from timer.wheel_verification import TimeChains

_KINDS = (MAGIC_NORMAL, MAGIC_ROLL, MAGIC_DELETE)
_MAGICS = tuple(kind | extra for kind in _KINDS for extra in (0, MAGIC_UNCHAINED))
_BLOCK_UNITS = 1 << 14
_TOLD = np.dtype([(name, "i8") for name in ("origin", "offset", "timestamp_ms", "due_ms", "topic_hash", "id_hash")])
"""What a frame tells about its unit."""


def per_segment(told: Checkpoint) -> int:
    """Units in a file that is full."""
    return (told.segment_bytes - BLANK_SIZE) // UNIT_SIZE


def units_in(told: Checkpoint, base: int) -> int:
    """Units below the checkpoint's end in the file of `base`."""
    return max(0, min(per_segment(told), told.units_end - base // told.segment_bytes * per_segment(told)))


class UnitVerification:
    """Of the TimerLog, whose files have the sizes that `told` says."""

    def __init__(self, units: Folder, ids: Folder, log: UnitLog, bodies: FrameLog, told: Checkpoint) -> None:
        self._units = units
        self._ids = ids
        self._log = log
        self._bodies = bodies
        self._told = told
        self._per_segment = log.per_segment
        self._ended = EndedUnits(log.per_segment)

    def _blocks(self) -> Iterator[tuple[int, int, Rows, Rows]]:
        """(base, number of the first, units, their columns)."""
        for base in self._units.bases:
            count = units_in(self._told, base)
            if not count:
                continue  # behind the checkpoint
            first = base // self._told.segment_bytes * self._per_segment
            units, columns = self._units.open(base), self._ids.open(base)
            for start in range(0, count, _BLOCK_UNITS):
                some = min(_BLOCK_UNITS, count - start)
                yield (
                    base,
                    first + start,
                    np.frombuffer(units.read(start * UNIT_SIZE, some * UNIT_SIZE), UNIT),
                    np.frombuffer(columns.read(start * COLUMN.itemsize, some * COLUMN.itemsize), COLUMN),
                )
            units.close()
            columns.close()

    def check_sums(self, seen: Verified) -> None:
        """Pass 1. Raises FaultError."""
        for base, first, units, columns in self._blocks():
            self._check_sums(base, first, units, columns)
            self._check_kinds(first, units)
            is_marker = units["magic"] & MAGIC_DELETE != 0
            for at in np.flatnonzero(is_marker).tolist():
                self._check_marker(first + at, units[at], columns[at])
            seen.units += len(units)
            seen.markers += int(is_marker.sum())
        for base in self._units.bases:
            if units_in(self._told, base) == self._per_segment:
                self._check_blank(base)

    def _check_sums(self, base: int, first: int, units: Rows, columns: Rows) -> None:
        computed = unit_checks(units, columns, first)
        for at in np.flatnonzero(computed != columns["check"])[:1].tolist():
            place = changed_byte(int(columns["check"][at]), int(computed[at]), UNIT_COVERED)
            within = first % self._per_segment + at
            if place is not None and place >= UNIT_SIZE:
                field = "check" if place == UNIT_COVERED else field_at(_offsets(COLUMN), place - UNIT_SIZE)
                what = f"unit {first + at}: what stands beside it and the check do not fit each other"
                raise FaultError(self._ids.name(base), within * COLUMN.itemsize, field, what)
            field = "" if place is None else field_at(_offsets(UNIT), place)
            what = f"unit {first + at}: the check in {self._ids.name(base)} does not fit"
            raise FaultError(self._units.name(base), within * UNIT_SIZE, field, what)

    def _check_kinds(self, first: int, units: Rows) -> None:
        """Fields that no unit may have, though their check fits."""
        for field, wrong in (
            ("size", units["size"] != UNIT_SIZE),
            ("magic", ~np.isin(units["magic"], _MAGICS)),
            ("delay_ms", units["delay_ms"] < 0),
            ("body", (units["body"] < 0) | ((units["body"] >= self._told.body_end) & _timers(units))),
            (
                "previous",
                (units["previous"] >= self._log.positions(np.arange(first, first + len(units))))
                | (units["previous"] < -1),
            ),
        ):
            for at in np.flatnonzero(wrong)[:1].tolist():
                raise self._wrong_unit(first + at, field, f"{int(units[field][at])} cannot be")

    def _wrong_unit(self, number: int, field: str, what: str) -> FaultError:
        segment, within = divmod(number, self._per_segment)
        name = self._units.name(segment * self._told.segment_bytes)
        return FaultError(name, within * UNIT_SIZE, field, f"unit {number}: {what}")

    def _check_marker(self, number: int, marker: Any, beside: Any) -> None:
        """The unit that a delete marker ends is the one that it speaks of; it may be gone with its segment."""
        try:
            target = self._log.number(int(marker["body"]))
        except CorruptStoreError as wrong:
            raise self._wrong_unit(number, "body", f"a marker for no unit: {wrong}") from wrong
        if target >= number:
            raise self._wrong_unit(number, "body", f"a marker for unit {target}, which is not before it")
        self._ended.mark(np.array([target]))
        if not self._log.has(target):
            return
        unit = self._log.read(target, target + 1)
        told = (int(marker["origin"]), int(marker["written_ms"]), int(marker["topic_hash"]))
        ended = (int(unit["origin"][0]), int(visits_ms(unit)[0]), int(unit["topic_hash"][0]))
        is_timer = bool(_timers(unit)[0])
        nothing = (marker["delay_ms"], marker["body_size"], beside["id_hash"], beside["due_ms"])
        if told != ended or not is_timer or any(nothing):
            raise self._wrong_unit(number, "body", f"a marker of {told} for unit {target}, which is {ended}")

    def _check_blank(self, base: int) -> None:
        at = self._per_segment * UNIT_SIZE
        file = self._units.open(base)
        blank = np.frombuffer(file.read(at, BLANK_SIZE), BLANK)[0]
        file.close()
        for field, value in (("left", self._told.segment_bytes - at), ("zero", 0), ("magic", BLANK_MAGIC)):
            if blank[field] != value:
                raise FaultError(self._units.name(base), at, field, f"blank record: {blank[field]}, not {value}")

    def check_live(self, chains: TimeChains, seen: Verified) -> None:
        """Pass 2; `chains` gets what has a place in the wheel. Raises FaultError."""
        told = self._told
        held = np.array(told.held, np.int64)
        holding: set[int] = set()
        waits = waits_of(told)
        for _, first, units, columns in self._blocks():
            run = run_of(units, columns, first)
            ended = self._ended.among(first, first + len(units))
            standing = _timers(units) & ~ended & (run["unit"] >= told.low_unit)
            is_held = standing & np.isin(run["origin"], held)
            in_wheel = standing & ~is_held & to_come(units, run, told.progress.settled, waits)
            holding.update(run["origin"][is_held].tolist())
            seen.live += int(in_wheel.sum())
            self._check_bodies(units, run, in_wheel | is_held)
            chains.add(units[in_wheel], run["unit"][in_wheel])
        seen.live += len(holding)
        if seen.live != told.pending:
            what = f"{seen.live} live timers where the checkpoint counts {told.pending}"
            raise FaultError(UNITS, None, "", what)

    def _check_bodies(self, units: Rows, run: Rows, alive: Any) -> None:
        """Each timer's frame, where its file is there; `alive`: it has to be."""
        bases, ends = self._bodies.bases(), _ends(self._bodies)
        file = np.searchsorted(bases, run["body"], side="right") - 1
        there = (file >= 0) & (run["body"] < np.array([*ends, -1])[file]) & _timers(units)
        for lost in np.flatnonzero(alive & ~there)[:1].tolist():
            what = f"it lives, but no file holds its frame at {int(run['body'][lost])}"
            raise self._wrong_unit(int(run["unit"][lost]), "body", what)
        told = np.empty(int(there.sum()), _TOLD)
        for at, (number, position, size) in enumerate(run[["unit", "body", "body_size"]][there].tolist()):
            try:
                told[at] = _told(unpack(self._bodies.read(position, size), position))
            except CorruptStoreError as wrong:
                raise self._wrong_unit(number, "body", f"no frame of its own is at {position}: {wrong}") from wrong
        self._compare(units[there], run[there], told)

    def _compare(self, units: Rows, run: Rows, told: Rows) -> None:
        """Units and their frames tell the same."""
        is_normal = units["magic"] & MAGIC_NORMAL != 0
        end = self._told.progress.next_offset
        for field, wrong in (
            ("origin", told["origin"] != run["origin"]),
            ("written_ms", told["timestamp_ms"] != units["written_ms"]),
            ("topic_hash", told["topic_hash"] != run["topic_hash"]),
            ("id_hash", told["id_hash"] != run["id_hash"]),
            ("due_ms", told["due_ms"] != run["due_ms"]),
            ("delay_ms", (run["visit_ms"] >= told["due_ms"]) != is_normal),
            ("offset", (told["offset"] < run["origin"]) | (told["offset"] >= end)),
        ):
            for at in np.flatnonzero(wrong)[:1].tolist():
                what = f"the frame at {int(run['body'][at])} tells another: origin {told['origin'][at]}"
                raise self._wrong_unit(int(run["unit"][at]), field, f"{what}, due {told['due_ms'][at]}")


def _told(body: Body) -> tuple[int, ...]:
    """A row of _TOLD."""
    id_hash = 0 if body.id is None else hash_of(body.id)
    return body.origin, body.offset, body.timestamp_ms, body.due_ms, topic_hash(body.target), id_hash


def _ends(bodies: FrameLog) -> list[int]:
    """Where each file ends."""
    return [bodies.file_end(base) for base in bodies.bases()]


def _offsets(dtype: Any) -> dict[str, int]:
    return {name: dtype.fields[name][1] for name in dtype.names}


def _timers(units: Rows) -> Any:
    return units["magic"] & MAGIC_DELETE == 0
