"""Which timers are pending: the one rule by keys, and the port to the engine that keeps the timers.

A key is (wake-up time, origin offset). K, the last settled key, and the key ranges of blocked targets say of each
chained timer whether it is pending.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.format.unit import MAGIC_UNCHAINED, Rows, intersect
from timer.index.due_counts import DueCounts

KeyRanges: TypeAlias = Sequence[tuple[Key, Key]]
"""Keys (after, until], ascending."""
Waits: TypeAlias = Mapping[int, KeyRanges]
"""Key ranges of target backlogs, by hash of the target (timer.schedule.blocked_targets)."""


def _is_above(run: Rows, key: Key) -> NDArray[np.bool_]:
    visits = run["visit_ms"]
    found: NDArray[np.bool_] = visits > key.visit_ms
    if not found.all():  # at a start nearly all are above
        found |= (visits == key.visit_ms) & (run["origin"] > key.origin_offset)
    return found


def in_key_ranges(run: Rows, ranges: KeyRanges) -> NDArray[np.bool_]:
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


class PendingTimers(Protocol):
    """The pending timers of a store, as staged. A tick is `tick_ms` long; tick 0 begins at the epoch."""

    tick_ms: int
    dues: DueCounts

    @property
    def end_unit(self) -> int: ...

    def next_tick(self, after: int, until: int) -> int | None:
        """Return the first tick in (after, until] with a pending timer in order."""

    def read_tick(self, tick: int, settled: Key, waits: Waits) -> Rows:
        """Return the pending rows of `tick` that are in order, in any sequence. Raises CorruptStoreError."""

    def remove(self, rows: Rows, in_order: Rows, *, has_ended: bool = False) -> None:
        """Remove `rows`, which leave or have ended. Bodies can be read until the transaction is committed.

        in_order: the rows in order among them. has_ended: True if they ended before they left.
        """
