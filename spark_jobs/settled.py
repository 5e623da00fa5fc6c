"""Which missing timers no bridge will ever deliver: by progress and journal, as docs/formats.md has them. Pure.

    C 9800   K (due 5000, 7431)   journal: held 8, rolled (3, 1), ended 5
    origin 7, expected 4000       below C, (4000, 7) <= K, and the journal says nothing of it      settled
    origin 9801                   not read yet                                                      unread
    origin 9, expected 6000       (6000, 9) > K: it waits in a store                                live
    origin 8, 3                   held, or a copy on its way                                        held, rolling
    origin 5                      a cancel ended it, which always wins                              ended

A copy's place in the order is its own time, which is no later than that of the record which says that it has landed.
"""

from collections.abc import Iterable
from typing import Literal

from schemas.journal import Decisions, JournalRecord
from schemas.progress import Key, Progress

SKEW_MS = 60_000
"""So far the clocks of two brokers may be apart."""
Waits = Literal["no-progress", "unread", "live", "held", "rolling", "ended", "refused"]


class Settled:
    """Of one shard. `journal`: with the time of each record, from before the first request that is asked about."""

    def __init__(self, progress: Progress | None, journal: Iterable[tuple[int, JournalRecord]]) -> None:
        self._progress = progress
        self._landed_ms: dict[int, int] = {}
        self._decisions = Decisions(self._timed(journal))
        self._rolling = {origin for origin, _ in self._decisions.flights}

    def why_not(self, offset: int, expected_ms: int) -> Waits | None:
        """None: settled, and nobody decided that it shall not come. `expected_ms`: due, or sent if that is later."""
        if self._progress is None:
            return "no-progress"
        if offset >= self._progress.next_offset:
            return "unread"
        told: dict[Waits, Iterable[int]] = {
            "ended": self._decisions.ended | self._decisions.dropped,
            "refused": self._decisions.refused,
            "held": self._decisions.held,
            "rolling": self._rolling,
        }
        for why, origins in told.items():
            if offset in origins:
                return why
        visit_ms = max(expected_ms, self._landed_ms.get(offset, 0))
        return None if Key(visit_ms, offset) <= self._progress.settled else "live"

    def _timed(self, journal: Iterable[tuple[int, JournalRecord]]) -> Iterable[JournalRecord]:
        for at_ms, record in journal:
            self._landed_ms |= {origin: at_ms + SKEW_MS for origin, _ in record.landed}
            yield record
