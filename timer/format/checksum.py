"""CRC-32 of each unit, its UNIT_EXTRA row and its number. Frames of the body log have their own (timer.format.body)."""

import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import MAGIC_DELETE, UNIT, UNIT_SIZE, Rows

Checks = NDArray[np.uint32]

UNIT_EXTRA_DISK = np.dtype([("id_hash", ">i8"), ("due_ms", ">i8"), ("check", ">u4")])
"""UNIT_EXTRA, and the check of the unit and this row."""

_NUMBERED = np.dtype([("unit", f"V{UNIT_SIZE}"), ("id_hash", ">i8"), ("due_ms", ">i8"), ("number", ">i8")])
_NUMBERED_BYTES = np.dtype(f"V{_NUMBERED.itemsize}")
_COVERED = _NUMBERED.itemsize
"""Bytes under a check: unit, id hash, due time, number."""
_BODY = slice(28, 36)
assert UNIT.fields is not None
assert UNIT.fields["body"] == (np.dtype(">i8"), _BODY.start)
_BYTE_BITS = 8
_FEW = 1000
"""Fewer units are checked one by one by zlib; more by a table for a whole block, in half the time."""
_TOGETHER = 8192


def unit_checks(units: Rows, extra: Rows, first_unit: int) -> Checks:
    """Return the checks of `units`. first_unit: number of the first one in its log.

    The body position of a timer is not covered, as a compaction changes it in place; the frame there is checked
    instead. The number is covered, so that a unit in the wrong place is noticed.
    """
    records = np.empty(len(units), _NUMBERED)
    records["unit"] = units.view(_NUMBERED["unit"])
    records["id_hash"] = extra["id_hash"]
    records["due_ms"] = extra["due_ms"]
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
    found = np.empty((_COVERED, 1 << _BYTE_BITS), np.uint32)
    for place in range(_COVERED):
        for byte in range(1 << _BYTE_BITS):
            record = bytes(place) + bytes([byte]) + bytes(_COVERED - place - 1)
            found[place, byte] = zlib.crc32(record) ^ zlib.crc32(bytes(_COVERED))
    return found
