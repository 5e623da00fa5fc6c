"""The logs of a stopped store with the engine `wheel`, at its checkpoint, and what `verify` checks of them.

    1 TimerLog      every unit and its row of ids, by their check          timer.stopped_store compares live ones
    2 live timers   as many as the checkpoint counts                       with their bodies
    3 `closed` and `resume`
    4 wheel         if the store was closed cleanly: each slot by its check, and the number of pending timers by tick

A fault names the damaged record: a unit, a slot.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.format.body import Body
from timer.format.checkpoint import BODIES, CLOSED, IDS, MOST_SLOTS, NAME, UNITS, WHEEL, Checkpoint
from timer.format.unit import Rows
from timer.index.pending_index import EndedUnits, LiveCounts
from timer.wheel import shutdown_snapshot
from timer.wheel.pending_units import LiveScan, ranges_at
from timer.wheel.shutdown_snapshot import RESUME
from timer.wheel.timer_log import FrameLog, UnitLog
from timer.wheel.timer_wheel import SLOT, SLOT_SIZE, slot_checks


class WheelRows:
    """The pending timers of a stopped store. Raises CorruptStoreError."""

    def __init__(self, disk: Disk, checkpoint: Checkpoint) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._units = UnitLog(disk, UNITS, IDS, checkpoint.segment_bytes, checkpoint.unit_files())
        self._frames = FrameLog(disk, BODIES, checkpoint.segment_bytes, checkpoint.bodies)
        self._units.end = checkpoint.units_end

    def close(self) -> None:
        self._units.close()
        self._frames.close()

    def files(self) -> dict[str, int]:
        found = {}
        for folder in (UNITS, IDS, BODIES):
            for name in self._disk.names(folder):
                with closing(self._disk.open(f"{folder}/{name}")) as file:
                    found[f"{folder}/{name}"] = file.size()
        return found

    def live(self) -> Iterator[Rows]:
        """Yield pending rows block by block in the order of the log, the out-of-order ones last."""
        found, none = self._checkpoint, np.empty(0, np.int64)
        held = np.array(found.held, np.int64)
        scan = LiveScan(self._units, found, found.progress.settled, held, none, ranges_at(found))
        ended = EndedUnits(self._units.per_segment)
        scan.mark(ended, LiveCounts())
        yield from scan.live(ended)
        yield from scan.held.values()

    def bodies(self, rows: Rows) -> list[Body]:
        return self._frames.bodies(rows)

    def damaged(self, unit: int, what: str) -> CorruptStoreError:
        return self._units.damaged(unit, what)

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
        if shutdown_snapshot.read(self._disk, self._checkpoint) is None:
            raise CorruptStoreError(RESUME, "its check does not match, or it belongs to another checkpoint")
        _check_wheel(wheel, slots, by_tick)


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
