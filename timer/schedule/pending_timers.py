"""The port between the order of release and the engine that keeps the timers."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.progress import Key
from timer.format.unit import Rows
from timer.index.due_counts import DueCounts
from timer.schedule.pending_keys import Waits


class PendingTimers(Protocol):
    """The pending timers of a store, as staged. A tick is `tick_ms` long; tick 0 begins at the epoch."""

    @property
    def tick_ms(self) -> int: ...

    @property
    def dues(self) -> DueCounts: ...

    @property
    def end_unit(self) -> int:
        """Return the number of the next timer that will be stored."""
        ...

    def next_tick(self, after: int, until: int) -> int | None:
        """Return the first tick in (after, until] with a pending timer in order."""
        ...

    def read_tick(self, tick: int, settled: Key, waits: Waits) -> Rows:
        """Return the pending rows of `tick` that are in order, in any sequence. Raises CorruptStoreError."""
        ...

    def leave(self, rows: Rows, *, is_in_order: bool) -> None:
        """Remove `rows`, which leave. Their bodies can be read until the transaction is committed."""
        ...

    def end(self, rows: Rows, in_order: NDArray[np.bool_]) -> None:
        """Remove `rows`, which have ended before they left. in_order: which of them are."""
        ...
