"""The 52-byte unit of the TimerLog as in RIP-43, and the same fields as columns in memory.

    0:4 size=52 | 4:8 previous of the slot's chain | 12:4 magic | 16:8 written ms | 24:4 wake-up - written, ms
    28:8 body position | 36:4 body size | 40:4 hash of the target topic | 44:8 origin offset      (big-endian)

The hash is the low half of `topic_hash`; the high one is in UNIT_EXTRA_DISK. RIP-43 has Java's hash code of 32 bits: a
sender could choose a name with the hash code of another topic, and share its pauses, its rate and its counts.

RIP-43's reserved last field holds the origin, because the order of release needs it for every unit of a slot. `written`
is the broker's timestamp of the request, so that a rebuild writes the same unit; `written + delay` is the wake-up time.

A file ends with a blank record (16 bytes: bytes left, zeros, magic) if a unit and a blank no longer fit.

Each unit and its row of ids have a CRC-32 (`unit_checks`). Frames of the body log have their own (timer.format.body).
"""

import zlib
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kafka_timer.headers import MAX_INT64

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
"""The timer is not due at its wake-up time: it rolls then."""
MAGIC_DELETE = 4
"""A delete mark: the unit at position `body` with this `origin` has ended. Chained in that unit's tick."""
MAGIC_UNCHAINED = 8
"""Not in RIP-43: the timer was out of order when it was stored, so its unit is in no chain."""
MAX_DELAY_MS = 2**31 - 1
"""The largest delay of a unit, 24 days. The roll window is shorter."""

TIMER_ROW = np.dtype(
    [
        ("visit_ms", "i8"),
        ("origin", "i8"),
        ("unit", "i8"),
        ("body", "i8"),
        ("body_size", "i4"),
        ("topic_hash", "i8"),
        ("id_hash", "i8"),
        ("due_ms", "i8"),
    ]
)
"""One pending timer in memory: its place in the order of release, its unit and its body."""

NO_ROWS = np.empty(0, TIMER_ROW)

_LOW_HALF = 0xFFFFFFFF

_MAX_SIGN_BYTE = 0x7F
_FEW = 64
"""Up to this many values a Python dict is faster than numpy."""
_MAX_COMPARED = 8
"""Up to this many are compared one by one: np.isin needs 20 us to start."""
_MIN_RADIX = 5000
"""From this many on two 16-bit sorts are faster than one of 64 bits."""
_MAX_SPREAD = 8
"""Values that span at most this many times their number are counted in a table, without a sort."""

Rows: TypeAlias = NDArray[Any]
"""A structured array of UNIT, UNIT_EXTRA_DISK or TIMER_ROW."""
Ints: TypeAlias = NDArray[np.int64]


def visits_ms(units: Rows) -> Ints:
    """Return the wake-up time of each unit, epoch ms."""
    return units["written_ms"].astype(np.int64) + units["delay_ms"].astype(np.int64)


_SIGN_BYTES = [16, 24, 28, 36, 44]
"""First bytes of written, delay, body position, body size and origin: none of them is ever negative."""


def are_valid(units: Rows) -> bool:
    """True if a bridge could have written `units`. Catches damage that the checks miss."""
    signs = units.view(np.uint8).reshape(-1, UNIT_SIZE)[:, _SIGN_BYTES]
    return not len(units) or (int(signs.max()) <= _MAX_SIGN_BYTE and int(visits_ms(units).min()) >= 0)


def run_of(units: Rows, extra: Rows, first_unit: int) -> Rows:
    """Return `units` as TIMER_ROW in the same order. first_unit: number of the first one in the log."""
    run = np.empty(len(units), TIMER_ROW)
    run["visit_ms"] = visits_ms(units)
    run["origin"] = units["origin"]
    run["unit"] = np.arange(first_unit, first_unit + len(units))
    run["body"] = units["body"]
    run["body_size"] = units["body_size"]
    run["topic_hash"] = extra["topic_high"].astype(np.int64) << 32 | units["topic_hash"].astype(np.int64) & _LOW_HALF
    run["id_hash"] = extra["id_hash"]
    run["due_ms"] = extra["due_ms"]
    return run


def joined(parts: Iterable[Rows]) -> Rows:
    """Concatenate TIMER_ROW arrays. A single one is not copied, and dtypes are not compared: both cost time."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return NO_ROWS
    return filled[0] if len(filled) == 1 else np.concatenate(filled)


def stable_argsort(values: Ints) -> Ints:
    """Return a stable argsort; for many values close together by two 16-bit digits, in a third of the time."""
    if len(values) > _MIN_RADIX:
        digits = values - values.min()
        if int(digits.max()) < 1 << 32:
            order: Ints = (digits & 0xFFFF).astype(np.uint16).argsort(kind="stable")
            by_high: Ints = order[(digits >> 16).astype(np.uint16)[order].argsort(kind="stable")]
            return by_high
    return values.argsort(kind="stable")


def unique_counts(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct `values` and how often each occurs, in no order if they are few. Avoids sorts."""
    if len(values) <= _FEW:
        few: dict[int, int] = {}
        for value in values.tolist():
            few[value] = few.get(value, 0) + 1
        return np.fromiter(few, np.int64, len(few)), np.fromiter(few.values(), np.int64, len(few))
    first = int(values.min())
    if int(values.max()) - first > _MAX_SPREAD * len(values):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values - first)
    there = counts.nonzero()[0]
    return there + first, counts[there]


def isin(values: Ints, wanted: Ints | list[int]) -> NDArray[np.bool_]:
    """Return which of `values` are in `wanted`. A few wanted values are compared one by one."""
    if len(wanted) > _MAX_COMPARED:
        return np.isin(values, wanted)
    found = np.zeros(len(values), np.bool_)
    for each in wanted:
        found |= values == each
    return found


def intersect(wanted: Collection[int], values: Ints) -> list[int]:
    """Return those of `wanted` that are in `values`, each once."""
    different = set(values.tolist()) if len(values) <= _FEW else np.unique(values).tolist()
    return [each for each in different if each in wanted]


@lru_cache(maxsize=65_536)
def topic_hash(topic: str) -> int:
    """Return a hash of 63 bits."""
    return hash_of(topic.encode()) & MAX_INT64


def hash_of(id_: bytes) -> int:
    """Return a signed 64-bit hash, never 0: 0 in a column means no id."""
    return int.from_bytes(blake2b(id_, digest_size=8).digest(), "big", signed=True) or 1


def hashes_of(ids: Iterable[bytes]) -> Ints:
    digests = b"".join([blake2b(id_, digest_size=8).digest() for id_ in ids])
    hashes = np.frombuffer(digests, ">i8").astype(np.int64)
    hashes[hashes == 0] = 1
    return hashes


def units_of(rows: Rows, timestamps_ms: Ints, is_in_order: NDArray[np.bool_]) -> Rows:
    """Return the units of new timers. They have no previous unit and no body position yet."""
    units = np.zeros(len(rows), UNIT)
    if not len(rows):
        return units
    delays_ms = rows["visit_ms"] - timestamps_ms
    if delays_ms.min() < 0 or delays_ms.max() > MAX_DELAY_MS:
        raise ValueError(f"a wake-up time is not within {MAX_DELAY_MS} ms after its timestamp")
    units["size"] = UNIT_SIZE
    units["previous"] = -1
    units["magic"] = np.where(rows["visit_ms"] >= rows["due_ms"], MAGIC_NORMAL, MAGIC_ROLL)
    units["magic"][~is_in_order] |= MAGIC_UNCHAINED
    units["written_ms"] = timestamps_ms
    units["delay_ms"] = delays_ms
    units["body_size"], units["origin"] = rows["body_size"], rows["origin"]
    units["topic_hash"] = rows["topic_hash"].astype(np.int32)
    return units


def delete_marks(ended: Rows, positions: Ints, chained: NDArray[np.bool_]) -> Rows:
    """Return delete marks for `ended`, whose units are at `positions`. chained: those that join their tick's chain."""
    units = np.zeros(len(ended), UNIT)
    units["size"] = UNIT_SIZE
    units["previous"] = -1
    units["magic"] = np.where(chained, MAGIC_DELETE, MAGIC_DELETE | MAGIC_UNCHAINED)
    units["written_ms"] = ended["visit_ms"]
    units["body"] = positions
    units["topic_hash"] = ended["topic_hash"].astype(np.int32)
    units["origin"] = ended["origin"]
    return units


Checks = NDArray[np.uint32]

_EXTRA = [("id_hash", ">i8"), ("due_ms", ">i8"), ("topic_high", ">i4")]
UNIT_EXTRA_DISK = np.dtype([*_EXTRA, ("check", ">u4")])
"""Fields without room in RIP-43's unit: hash of the timer's id (0: none), due time, high half of the topic's hash, and
the check of both records. All but the check are zeros for a delete mark.
"""

_NUMBERED = np.dtype([("unit", f"V{UNIT_SIZE}"), *_EXTRA, ("number", ">i8")])
_NUMBERED_BYTES = np.dtype(f"V{_NUMBERED.itemsize}")
_COVERED = _NUMBERED.itemsize
"""Bytes under a check: unit, what it has no room for, number."""
BODY_FIELD = slice(28, 36)
assert UNIT.fields is not None
assert UNIT.fields["body"] == (np.dtype(">i8"), BODY_FIELD.start)
_FEW_UNITS = 1000
"""Fewer units are checked one by one by zlib; more by a table for a whole block, in half the time."""
_TOGETHER = 8192


def unit_checks(units: Rows, extra: Rows, first_unit: int) -> Checks:
    """Return the checks of `units`. extra: UNIT_EXTRA_DISK. first_unit: number of the first one in its log.

    The body position of a timer is not covered, as a compaction changes it in place; the frame there is checked
    instead. The number is covered, so that a unit in the wrong place is noticed.
    """
    records = np.empty(len(units), _NUMBERED)
    records["unit"] = units.view(_NUMBERED["unit"])
    for name, _ in _EXTRA:
        records[name] = extra[name]
    records["number"] = np.arange(first_unit, first_unit + len(units))
    data = records.view(np.uint8).reshape(len(units), _COVERED)
    data[:, BODY_FIELD] *= (units["magic"] & MAGIC_DELETE != 0)[:, np.newaxis]
    if len(units) < _FEW_UNITS:
        return np.fromiter(map(zlib.crc32, records.view(_NUMBERED_BYTES).tolist()), np.uint32, len(records))
    found = np.empty(len(units), np.uint32)
    for start in range(0, len(units), _TOGETHER):
        found[start : start + _TOGETHER] = _crc_32s(data[start : start + _TOGETHER])
    return found


def _crc_32s(records: NDArray[np.uint8]) -> Checks:
    """Return the CRC-32 of each row: each byte changes the CRC of zeros by a constant."""
    columns = np.ascontiguousarray(records.T)
    found = np.full(len(records), zlib.crc32(bytes(len(columns))), np.uint32)
    is_constant = (columns == columns[:, :1]).all(axis=1)
    for place, column in enumerate(columns):
        changes = _byte_changes()[place]
        found ^= changes[column[0]] if is_constant[place] else changes.take(column)
    return found


@cache
def _byte_changes() -> Checks:
    """Return [place][byte]: how a byte at that place changes the CRC of zeros."""
    found = np.empty((_COVERED, 256), np.uint32)
    for place in range(_COVERED):
        for byte in range(256):
            record = bytes(place) + bytes([byte]) + bytes(_COVERED - place - 1)
            found[place, byte] = zlib.crc32(record) ^ zlib.crc32(bytes(_COVERED))
    return found
