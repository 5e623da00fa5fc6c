"""Read and verify the logs of a stopped store with the engine `wheel`, at its checkpoint.

    1 `closed` and `resume`
    2 TimerLog      every unit and its row of ids, by their check
    3 live timers   as many as the checkpoint counts; each unit against its frame and the unit before it in its tick
    4 wheel         if the store was closed cleanly: each slot by its check, and against a wheel rebuilt from the log

A fault names the damaged record: a unit, a slot.
"""

from collections.abc import Iterator

import numpy as np

from timer.disk import Disk, LogFile
from timer.errors import CorruptStoreError, WheelFullError
from timer.format.body import Body
from timer.format.checkpoint import BODIES, CLOSED, IDS, MOST_SLOTS, NAME, UNITS, WHEEL, Checkpoint
from timer.format.unit import Rows, hash_of, isin, topic_hash
from timer.index.pending_index import EndedUnits, LiveCounts
from timer.wheel import shutdown_snapshot
from timer.wheel.pending_units import LiveScan, ranges_at
from timer.wheel.timer_log import BodyReader, FrameLog, UnitLog
from timer.wheel.timer_wheel import SLOT, SLOT_SIZE, Wheel, slot_checks


class WheelRows:
    """See timer.stopped_store.StoredRows."""

    def __init__(self, disk: Disk, checkpoint: Checkpoint) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self.units = UnitLog(disk, UNITS, IDS, checkpoint.segment_bytes, checkpoint.unit_files())
        self.frames = FrameLog(disk, BODIES, checkpoint.segment_bytes, checkpoint.bodies)
        self.reader = BodyReader(self.frames)
        self.units.end = checkpoint.units_end

    def close(self) -> None:
        self.units.close()
        self.frames.close()

    def files(self) -> list[LogFile]:
        found = []
        for folder in (UNITS, IDS, BODIES):
            for name in self._disk.names(folder):
                file = self._disk.open(f"{folder}/{name}")
                found.append(LogFile(f"{folder}/{name}", file.size()))
                file.close()
        return found

    def live(self) -> Iterator[Rows]:
        checkpoint = self._checkpoint
        held = np.array(checkpoint.held, np.int64)
        scan = LiveScan(
            self.units, checkpoint, checkpoint.progress.settled, held, np.empty(0, np.int64), ranges_at(checkpoint)
        )
        ended = EndedUnits(self.units.per_segment)
        scan.mark(ended, LiveCounts())
        yield from scan.live(ended)
        yield from scan.held.values()

    def bodies(self, rows: Rows) -> list[Body]:
        return self.reader.read(rows)

    # -- verify

    def verify(self, *, is_closed: bool) -> tuple[int, int]:
        """Check what a start and deliveries read. Return the number of timers and of ticks. Raises CorruptStoreError.

        is_closed: the store was closed cleanly, so that the next start uses the snapshot and the wheel as they are.
        """
        data = self._disk.read(CLOSED)
        if data and Checkpoint.from_bytes(data) is None:
            raise CorruptStoreError(CLOSED, "not a copy of any checkpoint")
        if is_closed and shutdown_snapshot.read(self._disk, self._checkpoint) is None:
            raise CorruptStoreError(
                shutdown_snapshot.RESUME, "its check does not match, or it belongs to another checkpoint"
            )
        for start, end in self.units.blocks(0):
            self.units.read_rows(start, end, is_checked=True)
        data = self._disk.read(WHEEL) or b""
        expected, timers = self._rebuilt_wheel(len(data))
        if is_closed:
            _compare(data, expected)
        return timers, int((expected["num"] > 0).sum())

    def _rebuilt_wheel(self, wheel_bytes: int) -> tuple[Rows, int]:
        """Rebuild the slots from the live units; return them and the number of these.

        Raises CorruptStoreError if a unit has another frame or chain.
        """
        checkpoint, timers = self._checkpoint, 0
        if checkpoint.slots > max(MOST_SLOTS, wheel_bytes // SLOT_SIZE):
            raise CorruptStoreError(NAME, f"{checkpoint.slots} slots, but a wheel of {wheel_bytes} bytes")
        buffer = bytearray(checkpoint.slots * SLOT_SIZE)
        wheel = Wheel(memoryview(buffer), tick_ms=checkpoint.tick_ms, slots=checkpoint.slots)
        for rows in self.live():
            self._check_bodies(rows)
            self._link(wheel, rows[~isin(rows["origin"], list(checkpoint.held))])
            timers += len(rows)
        return np.frombuffer(buffer, SLOT), timers

    def _check_bodies(self, rows: Rows) -> None:
        names = ("unit", "body", "body_size", "origin", "topic_hash", "id_hash", "due_ms")
        for unit, position, size, origin_offset, *facts in zip(*(rows[name].tolist() for name in names), strict=True):
            try:
                body = self.reader.read_one(position, size, origin_offset)
            except CorruptStoreError as error:
                raise self.units.damaged(unit, f"no frame for it: {error}") from error
            if facts != [topic_hash(body.target), 0 if body.id is None else hash_of(body.id), body.due_ms]:
                raise self.units.damaged(unit, f"does not match the frame at {position}")

    def _link(self, wheel: Wheel, rows: Rows) -> None:
        """Add `rows` to `wheel`. Raises CorruptStoreError if one skips the live unit before it in its tick."""
        if not len(rows):
            return
        first, positions = int(rows["unit"][0]), self.units.positions(rows["unit"])
        try:
            links = wheel.plan(rows["visit_ms"], positions, np.ones(len(rows), np.bool_))
        except WheelFullError as full:
            raise CorruptStoreError(WHEEL, str(full)) from full
        wheel.link(links)
        previous = self.units.read(first, int(rows["unit"][-1]) + 1)["previous"][rows["unit"] - first]
        is_wrong = (previous < links.previous) | (previous >= positions)
        for unit in rows["unit"][is_wrong][:1].tolist():
            raise self.units.damaged(unit, "its previous is not between the live unit before it in its tick and itself")


def _compare(data: bytes, expected: Rows) -> None:
    """Raise CorruptStoreError if the wheel with these bytes is not `expected`."""
    found = np.frombuffer(data[: len(data) // SLOT_SIZE * SLOT_SIZE], SLOT)
    for slot in np.flatnonzero(slot_checks(found) != found["magic"])[:1].tolist():
        raise CorruptStoreError(WHEEL, f"slot {slot}: its check does not match", slot * SLOT_SIZE)
    if len(data) != expected.nbytes:
        raise CorruptStoreError(WHEEL, f"{len(data)} bytes, the checkpoint needs {expected.nbytes}")
    is_used = expected["num"] > 0
    is_within = (found["first"] <= expected["first"]) & (found["last"] >= expected["last"])
    is_same = (found["num"] == expected["num"]) & (~is_used | (found["time"] == expected["time"]) & is_within)
    for slot in np.flatnonzero(~is_same)[:1].tolist():
        what = f"slot {slot} and {int((~is_same).sum()) - 1} more do not match the log"
        raise CorruptStoreError(WHEEL, what, slot * SLOT_SIZE)
