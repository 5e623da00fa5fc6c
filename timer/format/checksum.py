"""CRC-32 of each unit, with its row of ids and its number. A frame of the body log has its own (timer.format.body)."""

import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import MAGIC_DELETE, UNIT, UNIT_SIZE, Rows

Checks = NDArray[np.uint32]

COLUMN = np.dtype([("id_hash", ">i8"), ("due_ms", ">i8"), ("check", ">u4")])
"""What stands beside each unit: BESIDE, and the check of both."""

_NUMBERED = np.dtype([("unit", f"V{UNIT_SIZE}"), ("id_hash", ">i8"), ("due_ms", ">i8"), ("number", ">i8")])
_NUMBERED_BYTES = np.dtype(f"V{_NUMBERED.itemsize}")
_COVERED = _NUMBERED.itemsize
"""Bytes under a unit's check: the unit, its id hash, its due time, its number."""
_BODY = slice(28, 36)
assert UNIT.fields is not None
assert UNIT.fields["body"] == (np.dtype(">i8"), _BODY.start)
_BYTE_BITS = 8
_FEW = 1000
"""Fewer units are checked by zlib, one by one; more by a table for all of a block together, in half the time."""
_TOGETHER = 8192


def unit_checks(units: Rows, beside: Rows, first_unit: int) -> Checks:
    """The checks of `units`, the first of which is number `first_unit` of its log.

    A timer's body position is left out, as a compaction changes it in place: the frame that lies there tells whether it
    is right. The unit's number goes in, so that a unit in another's place is noticed.
    """
    records = np.empty(len(units), _NUMBERED)
    records["unit"] = units.view(_NUMBERED["unit"])
    records["id_hash"] = beside["id_hash"]
    records["due_ms"] = beside["due_ms"]
    records["number"] = np.arange(first_unit, first_unit + len(units))
    data = records.view(np.uint8).reshape(len(units), _COVERED)
    data[:, _BODY] *= (units["magic"] & MAGIC_DELETE != 0)[:, np.newaxis]
    if len(units) < _FEW:
        return np.fromiter(map(zlib.crc32, records.view(_NUMBERED_BYTES).tolist()), np.uint32, len(records))
    found = np.empty(len(units), np.uint32)
    for start in range(0, len(units), _TOGETHER):
        found[start : start + _TOGETHER] = _crc_32s(data[start : start + _TOGETHER])
    return found


def _crc_32s(records: NDArray[np.uint8]) -> Checks:
    """CRC-32 of each row: what its bytes, each in its place, change in the CRC of zeros."""
    columns = np.ascontiguousarray(records.T)
    found = np.full(len(records), zlib.crc32(bytes(len(columns))), np.uint32)
    for place, column in enumerate(columns):
        found ^= _byte_changes()[place].take(column)
    return found


@cache
def _byte_changes() -> Checks:
    """[place][byte]: what a byte in that place of a record changes in the CRC of zeros."""
    found = np.empty((_COVERED, 1 << _BYTE_BITS), np.uint32)
    for place in range(_COVERED):
        for byte in range(1 << _BYTE_BITS):
            record = bytes(place) + bytes([byte]) + bytes(_COVERED - place - 1)
            found[place, byte] = zlib.crc32(record) ^ zlib.crc32(bytes(_COVERED))
    return found
