"""Which rows are pending by their keys: the one rule for K and for the key ranges of target backlogs."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.format.unit import MAGIC_UNCHAINED, Rows, intersect

KeyRanges: TypeAlias = Sequence[tuple[Key, Key]]
"""Keys (after, until], ascending."""
Waits: TypeAlias = Mapping[int, KeyRanges]
"""Key ranges of target backlogs, by hash of the target (timer.schedule.target_backlog)."""


def _is_above(run: Rows, key: Key) -> NDArray[np.bool_]:
    visits = run["visit_ms"]
    found: NDArray[np.bool_] = visits > key.visit_ms
    if not found.all():  # at a start nearly all are above
        found |= (visits == key.visit_ms) & (run["origin"] > key.origin_offset)
    return found


def in_key_ranges(run: Rows, ranges: KeyRanges) -> NDArray[np.bool_]:
    """Return which rows have a key in one of `ranges`."""
    found = np.zeros(len(run), np.bool_)
    for after, until in ranges:
        found |= _is_above(run, after) & ~_is_above(run, until)
    return found


def pending_by_key(run: Rows, settled: Key, waits: Waits) -> NDArray[np.bool_]:
    """Return which rows are pending by their key: above `settled`, or in a key range if their target waits."""
    found = _is_above(run, settled)
    if not waits:
        return found
    for hash_ in intersect(waits, run["topic_hash"]):
        own = (run["topic_hash"] == hash_).nonzero()[0]
        found[own] = in_key_ranges(run[own], waits[hash_])
    return found


def pending_in_order(units: Rows, run: Rows, settled: Key, waits: Waits) -> NDArray[np.bool_]:
    """Return which of `units` are chained and pending by their key. run: the same units as TIMER_ROW."""
    chained: NDArray[np.bool_] = units["magic"] & MAGIC_UNCHAINED == 0
    return pending_by_key(run, settled, waits) & chained
