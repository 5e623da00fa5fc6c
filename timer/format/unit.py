"""The 52-byte unit of the TimerLog, as RIP-43 lays it out, and the same facts as columns in memory.

    0:4 size=52 | 4:8 previous of the slot's chain | 12:4 magic | 16:8 written ms | 24:4 visit - written, ms
    28:8 body position | 36:4 body size | 40:4 hash of the real topic | 44:8 origin offset        (big-endian)

The reserved last field holds the origin, as the order of release needs it for every unit of an opening slot, while the
exact due time is only needed with the body, where it stands. `written` is the broker's timestamp of the request, so
that a rebuild writes the same unit; `written + delay` is the visit to the millisecond.

A file ends with a blank record (16 bytes: bytes left, zeros, magic) once a unit and a blank no longer fit.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("body", ">i8"),
        ("body_size", ">i4"),
        ("topic_hash", ">i4"),
        ("origin", ">i8"),
    ]
)
UNIT_SIZE = 52
assert UNIT.itemsize == UNIT_SIZE

BLANK = np.dtype([("left", ">i4"), ("zero", ">i8"), ("magic", ">u4")])
BLANK_SIZE = 16
BLANK_MAGIC = 0xCBD43194
assert BLANK.itemsize == BLANK_SIZE

MAGIC_NORMAL = 1
MAGIC_ROLL = 2
"""At its visit the timer is not due yet: it is looked at to be rolled."""
MAGIC_DELETE = 4
"""No timer: `origin` ended, which lies in the unit at position `body`; chained in that one's tick."""
MAGIC_UNCHAINED = 8
"""Ours: the unit was held from the start (its place in the order had passed), so it is in no slot's chain."""
MAX_DELAY_MS = 2**31 - 1
"""What the unit's delay can say: 24 days. The roll window is shorter."""

RUN = np.dtype(
    [
        ("visit_ms", "i8"),
        ("origin", "i8"),
        ("unit", "i8"),
        ("body", "i8"),
        ("body_size", "i4"),
        ("topic_hash", "i4"),
        ("id_hash", "i8"),
        ("due_ms", "i8"),
    ]
)
"""Live timers in memory, one row each: where they stand in the order of release, and where their unit and body lie."""

NO_ROWS = np.empty(0, RUN)

BESIDE = np.dtype([("id_hash", "i8"), ("due_ms", "i8")])
"""What RIP-43's unit has no room for: the hash of the timer's id (0: none), and when it is due. Zeros for a marker."""

_MOST_POSITIVE = 0x7F
_FEW = 64
"""Up to so many a dict of Python is faster than numpy."""
_HANDFUL = 8
"""Up to so many are compared one by one: np.isin takes 20 us before it begins."""
_MANY = 5000
"""From so many on two sorts of 16 bits are faster than one of 64."""
_NEAR = 8
"""Values that span at most so many times their number are counted in a table of that span, without a sort."""

Rows: TypeAlias = NDArray[Any]
"""A structured array of UNIT, BESIDE or RUN."""
Ints: TypeAlias = NDArray[np.int64]


def visits_ms(units: Rows) -> Ints:
    """Visit of each unit, epoch ms."""
    return units["written_ms"].astype(np.int64) + units["delay_ms"].astype(np.int64)


_SIGNS = [16, 24, 28, 36, 44]
"""Where written, delay, body position, body size and origin begin: none of them is ever negative."""


def are_possible(units: Rows) -> bool:
    """Whether any bridge can have written `units`, though their checks fit."""
    signs = units.view(np.uint8).reshape(-1, UNIT_SIZE)[:, _SIGNS]
    return not len(units) or (int(signs.max()) <= _MOST_POSITIVE and int(visits_ms(units).min()) >= 0)


def run_of(units: Rows, beside: Rows, first_unit: int) -> Rows:
    """`units`, the first of which is number `first_unit` of the log, as a RUN in the same order."""
    run = np.empty(len(units), RUN)
    run["visit_ms"] = visits_ms(units)
    run["origin"] = units["origin"]
    run["unit"] = np.arange(first_unit, first_unit + len(units))
    run["body"] = units["body"]
    run["body_size"] = units["body_size"]
    run["topic_hash"] = units["topic_hash"]
    run["id_hash"] = beside["id_hash"]
    run["due_ms"] = beside["due_ms"]
    return run


def joined(parts: Iterable[Rows]) -> Rows:
    """RUNs one behind another. One alone is not copied, and numpy compares no types: both cost in small turns."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return NO_ROWS
    return filled[0] if len(filled) == 1 else np.concatenate(filled)


def stable_order(values: Ints) -> Ints:
    """As a stable argsort: of many that lie near each other by their two digits of 16 bits, in a third of the time."""
    if len(values) > _MANY:
        digits = values - values.min()
        if int(digits.max()) < 1 << 32:
            order: Ints = (digits & 0xFFFF).astype(np.uint16).argsort(kind="stable")
            by_high: Ints = order[(digits >> 16).astype(np.uint16)[order].argsort(kind="stable")]
            return by_high
    return values.argsort(kind="stable")


def counted(values: Ints) -> tuple[Ints, Ints]:
    """The different `values`, and how often each is there; of a few in no order. Sorts only where nothing is faster."""
    if len(values) <= _FEW:
        few: dict[int, int] = {}
        for value in values.tolist():
            few[value] = few.get(value, 0) + 1
        return np.fromiter(few, np.int64, len(few)), np.fromiter(few.values(), np.int64, len(few))
    first = int(values.min())
    if int(values.max()) - first > _NEAR * len(values):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values - first)
    there = counts.nonzero()[0]
    return there + first, counts[there]


def isin(values: Ints, wanted: Ints | list[int]) -> NDArray[np.bool_]:
    """Which of `values` are `wanted`: where these are a handful, or none, each is compared by itself."""
    if len(wanted) > _HANDFUL:
        return np.isin(values, wanted)
    found = np.zeros(len(values), np.bool_)
    for each in wanted:
        found |= values == each
    return found


def among(wanted: Collection[int], values: Ints) -> list[int]:
    """Those of `wanted` that `values` hold, each once."""
    different = set(values.tolist()) if len(values) <= _FEW else np.unique(values).tolist()
    return [each for each in different if each in wanted]


@lru_cache(maxsize=65_536)
def topic_hash(topic: str) -> int:
    """Java's String.hashCode, signed, as RocketMQ keeps it for the metrics of a topic."""
    value = 0
    for character in topic:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
