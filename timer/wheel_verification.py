"""The wheel against the log: is every live unit in the chain of its tick, and every slot what its chain says?

    the log, unit by unit, as of the checkpoint -> a wheel as it must be (TimeChains)
    a unit's `previous`  leads, through ended units of its tick at most, to the live one before it
    a slot on the disk   time and num as they must be; `last` leads so to the last live unit, the first one to `first`

A wheel is only at the checkpoint's moment when the store was closed then. After a kill it is of a later one, after a
loss of power of none, and the next start lays it out anew: what differs is a note then. A slot whose own check does not
fit is a fault at any time.
"""

from typing import Any

import numpy as np

from timer.checkpoint import MOST_SLOTS, NAME, Checkpoint
from timer.entry import MAGIC_UNCHAINED, Ints, Rows, visits_ms
from timer.errors import CorruptStoreError, WheelFullError
from timer.log import UnitLog
from timer.names import UNITS, WHEEL
from timer.verified import FaultError, Verified
from timer.wheel import SLOT, SLOT_SIZE, Wheel, slot_checks

_BLOCK_SLOTS = 1 << 16


class TimeChains:
    """Fed with the live units in the order of the log; then compared with the wheel on the disk."""

    def __init__(self, log: UnitLog, told: Checkpoint, wheel_bytes: int) -> None:
        """`wheel_bytes`: of the wheel on the disk. Raises FaultError where the checkpoint tells of a far larger one."""
        if told.slots > max(MOST_SLOTS, wheel_bytes // SLOT_SIZE):
            raise FaultError(NAME, None, "slots", f"{told.slots} slots, and a wheel of {wheel_bytes} bytes")
        self._log = log
        self._told = told
        self._buffer = bytearray(told.slots * SLOT_SIZE)
        self._wheel = Wheel(memoryview(self._buffer), tick_ms=told.tick_ms, slots=told.slots)

    def add(self, units: Rows, numbers: Ints) -> None:
        """Live units that have a place in a chain. Raises FaultError where they do not lead to those before them."""
        visits, positions = visits_ms(units), self._log.positions(numbers)
        try:
            links = self._wheel.plan(visits, positions, np.ones(len(units), np.bool_))
        except WheelFullError as full:
            raise FaultError(WHEEL, None, "", f"two laps of live timers share a slot: {full}") from full
        self._wheel.link(links)
        linked = units["previous"].astype(np.int64)
        for at in np.flatnonzero((linked != links.previous) & (links.previous >= 0)).tolist():
            tick = int(visits[at]) // self._told.tick_ms
            self._follow(int(positions[at]), int(linked[at]), int(links.previous[at]), tick)

    def _follow(self, start: int, position: int, goal: int, tick: int) -> None:
        """From `position`, which `start` names as its previous, through the chain of `tick` to `goal`."""
        at = start
        while position != goal:
            if not goal < position < at:
                raise self._broken(at, f"the chain of tick {tick} leads to {position}, not to the unit at {goal}")
            try:
                unit = self._unit(position)
            except CorruptStoreError as wrong:
                raise self._broken(at, f"its previous is {position}, where no unit is: {wrong}") from wrong
            own = int(visits_ms(unit)[0]) // self._told.tick_ms
            if own != tick or int(unit["magic"][0]) & MAGIC_UNCHAINED:
                raise self._broken(at, f"the chain of tick {tick} leads to {position}, which is not in it")
            at, position = position, int(unit["previous"][0])

    def _unit(self, position: int) -> Rows:
        number = self._log.number(position)
        return self._log.read(number, number + 1)

    def _broken(self, position: int, what: str) -> FaultError:
        base = position // self._told.segment_bytes * self._told.segment_bytes
        return FaultError(f"{UNITS}/{base:020d}", position - base, "previous", what)

    def compare(self, data: bytes | None, seen: Verified) -> None:
        """`data`: the wheel on the disk. Raises FaultError."""
        must_be = np.frombuffer(self._buffer, SLOT)
        seen.ticks = int((must_be["num"] > 0).sum())
        if data is None or len(data) % SLOT_SIZE:
            self._differs(seen, None, "the file is missing" if data is None else f"{len(data)} bytes are no wheel")
            return
        found = np.frombuffer(data, SLOT)
        self._check_slots(found, must_be)
        if len(found) != len(must_be):
            self._differs(seen, None, f"{len(found)} slots, {len(must_be)} by the checkpoint")
            return
        other = (found["num"] != must_be["num"]) | ((must_be["num"] > 0) & (found["time"] != must_be["time"]))
        if other.any():
            first, count = int(np.argmax(other)), int(other.sum())
            what = (
                f"{_told(found[first])} where the log says {_told(must_be[first])};"
                f" {count} slots are of another moment than the checkpoint"
            )
            self._differs(seen, first, what)
        elif seen.closed:
            self._check_ends(found, must_be)

    def _differs(self, seen: Verified, slot: int | None, what: str) -> None:
        place = None if slot is None else slot * SLOT_SIZE
        if seen.closed:
            raise FaultError(WHEEL, place, "", f"{what}. The next start lays the wheel out anew")
        where = WHEEL if place is None else f"{WHEEL}, byte {place}"
        seen.notes.append(f"{where}: {what}; the next start lays it out anew")

    def _check_slots(self, found: Rows, must_be: Rows) -> None:
        """Each slot by itself: its check, and that it is in its place."""
        for start in range(0, len(found), _BLOCK_SLOTS):
            slots = found[start : start + _BLOCK_SLOTS]
            for at in np.flatnonzero(slot_checks(slots) != slots["magic"])[:1].tolist():
                field = _changed(slots[at], must_be[start + at]) if start + at < len(must_be) else ""
                raise FaultError(WHEEL, (start + at) * SLOT_SIZE, field, "the slot's check does not fit")
            place = slots["time"].astype(np.int64) % len(found)
            displaced = (slots["magic"] != 0) & (place != np.arange(start, start + len(slots)))
            for at in np.flatnonzero(displaced)[:1].tolist():
                what = f"tick {int(slots['time'][at])} has its place elsewhere"
                raise FaultError(WHEEL, (start + at) * SLOT_SIZE, "time", what)

    def _check_ends(self, found: Rows, must_be: Rows) -> None:
        for at in np.flatnonzero((must_be["num"] > 0) & (found["last"] != must_be["last"])).tolist():
            self._follow_slot(at, "last", int(found["last"][at]), int(must_be["last"][at]), int(must_be["time"][at]))
        for at in np.flatnonzero((must_be["num"] > 0) & (found["first"] != must_be["first"])).tolist():
            below = int(self._unit(int(must_be["first"][at]))["previous"][0])
            self._follow_slot(at, "first", below, int(found["first"][at]), int(must_be["time"][at]))

    def _follow_slot(self, slot: int, field: str, position: int, goal: int, tick: int) -> None:
        end = int(self._log.positions(np.array([self._told.units_end]))[0])
        if position >= end:
            raise FaultError(WHEEL, slot * SLOT_SIZE, field, f"{position} lies behind the log, which ends at {end}")
        try:
            self._follow(end, position, goal, tick)
        except FaultError as broken:
            raise FaultError(WHEEL, slot * SLOT_SIZE, field, broken.fault.what) from broken


def _told(slot: Any) -> str:
    return f"tick {int(slot['time'])} with {int(slot['num'])} live units"


def _changed(found: Any, must_be: Any) -> str:
    """The field of a slot whose check does not fit, if a single one differs from what must be."""
    differing = [name for name in ("time", "first", "last", "num") if found[name] != must_be[name]]
    return differing[0] if len(differing) == 1 else "" if differing else "magic"
