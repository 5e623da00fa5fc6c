"""Which missing timers no bridge will ever deliver: by progress and journal, as docs/formats.md has them. Pure.

    C 9800   K (due 5000, 7431)   journal: held 8, rolled (3, 1), ended 5, waits orders (4000, 2]..(4500, 9]
    origin 7, expected 3900       below C, (3900, 7) <= K, and the journal says nothing of it      settled
    origin 9801                   not read yet                                                      unread
    origin 9, expected 6000       (6000, 9) > K: it waits in a store                                live
    origin 8, 3                   held, or a copy on its way                                        held, rolling
    origin 6, expected 4200       its target waits, and its key lies in what waits                  held
    origin 5                      a cancel ended it, which always wins                              ended

A copy's place in the order is its due time as the journal tells it, or its own time, which is no later than that of the
record which says that it has landed. One that is, or was, to be rolled may stand anywhere from its request's time on up
to there: where its target waits, it may have waited at the place of its roll until it was due.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from schemas.journal import Decisions, JournalRecord
from schemas.progress import Key, Progress

SKEW_MS = 60_000
"""So far the clocks of two brokers may be apart."""
Waits = Literal["no-progress", "unread", "live", "held", "rolling", "ended", "refused"]


class JournalEntry(NamedTuple):
    """A record of the journal. `waits`: target, and the stretches (after, until] of its keys that live."""

    at_ms: int
    record: JournalRecord
    waits: tuple[tuple[str, tuple[tuple[Key, Key], ...]], ...] = ()

    @classmethod
    def read(cls, at_ms: int, value: bytes) -> "JournalEntry":
        """Raises ValueError for what is no journal record of this version."""
        told: dict[str, Any] = json.loads(value)
        waits = tuple(
            (target, tuple((Key(*after), Key(*until)) for after, until in stretches))
            for target, _, stretches in told.pop("waits", ())
        )
        return cls(at_ms, JournalRecord.model_validate(told), waits)


class Settled:
    """Of one shard. `journal`: from before the first request that is asked about."""

    def __init__(self, progress: Progress | None, journal: Iterable[JournalEntry]) -> None:
        self._progress = progress
        self._waits: dict[int, list[tuple[Key, Key]]] = {}
        self._visit_ms: dict[int, int] = {}
        self._decisions = Decisions(self._heard(journal))
        self._rolling = {origin for origin, _ in self._decisions.flights}
        self._ended = self._decisions.ended | self._decisions.dropped

    def why_not(self, offset: int, expected_ms: int, target: str, *, requested_ms: int) -> Waits | None:
        """None: settled, and nobody decided that it shall not come. `expected_ms`: due, or sent if that is later."""
        if self._progress is None:
            return "no-progress"
        if offset >= self._progress.next_offset:
            return "unread"
        told: dict[Waits, Iterable[int]] = {
            "ended": self._ended,
            "refused": self._decisions.refused,
            "held": self._decisions.held,
            "rolling": self._rolling,
        }
        for why, origins in told.items():
            if offset in origins:
                return why
        high = Key(max(expected_ms, self._visit_ms.get(offset, 0)), offset)
        if high > self._progress.settled:
            return "live"
        low = high if self._is_exact(offset, expected_ms - requested_ms) else Key(requested_ms - SKEW_MS, offset)
        waiting = self._waits.get(_hash(target), ())
        return "held" if any(after < high and low <= until for after, until in waiting) else None

    def _is_exact(self, offset: int, delay_ms: int) -> bool:
        """Its place is known: it was never rolled, nor was it to be."""
        rules, _ = self._decisions.rules_from(offset)
        return offset not in self._visit_ms and rules is not None and delay_ms <= rules.roll_window_ms

    def _heard(self, journal: Iterable[JournalEntry]) -> Iterator[JournalRecord]:
        for at_ms, record, waits in journal:
            for flight in record.rolled:
                self._is_at(flight.origin, flight.due_ms)
            for origin, _ in record.landed:
                self._is_at(origin, at_ms + SKEW_MS)
            self._waits = {}
            for target, stretches in waits:
                self._waits.setdefault(_hash(target), []).extend(stretches)
            yield record

    def _is_at(self, origin: int, visit_ms: int) -> None:
        self._visit_ms[origin] = max(visit_ms, self._visit_ms.get(origin, 0))


def _hash(target: str) -> int:
    """Java's: targets whose names share it wait together."""
    found = 0
    for letter in target:
        found = (31 * found + ord(letter)) & 0xFFFFFFFF
    return found
