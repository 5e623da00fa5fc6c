"""The rule of spark_jobs.backfill.undeliverable for one timer after the other: a test compares both."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from schemas.journal import Decisions, JournalRecord
from schemas.progress import Key, Progress
from spark_jobs.backfill.undeliverable import SKEW_MS

WaitReason = Literal["no-progress", "unread", "live", "held", "rolling", "ended", "refused"]


class JournalEntry(NamedTuple):
    """A record of the journal. `waits`: targets, each with the ranges (after, until] of its pending keys."""

    at_ms: int
    record: JournalRecord
    waits: tuple[tuple[str, tuple[tuple[Key, Key], ...]], ...] = ()

    @classmethod
    def read(cls, at_ms: int, value: bytes) -> "JournalEntry":
        """Parse a journal record. Raises ValueError if it is none of this version."""
        told: dict[str, Any] = json.loads(value)
        waits = tuple(
            (target, tuple((Key(*after), Key(*until)) for after, until in stretches))
            for target, _, stretches in told.pop("waits", ())
        )
        return cls(at_ms, JournalRecord.model_validate(told), waits)


class SettledTimers:
    """Settled timers of one partition. `journal`: from before the first request in question."""

    def __init__(self, progress: Progress | None, journal: Iterable[JournalEntry]) -> None:
        self._progress = progress
        self._waits: dict[int, list[tuple[Key, Key]]] = {}
        self._visit_ms: dict[int, int] = {}
        self._decisions = Decisions(self._read_journal(journal))
        self._rolling = {origin for origin, _ in self._decisions.flights}
        self._ended = self._decisions.ended | self._decisions.dropped

    def reason_to_wait(self, offset: int, expected_ms: int, target: str, *, requested_ms: int) -> WaitReason | None:
        """Return why the timer must not be sent; None: settled, but not ended.

        expected_ms: due time, or the request's timestamp if that is later.
        """
        if self._progress is None:
            return "no-progress"
        if offset >= self._progress.next_offset:
            return "unread"
        told: dict[WaitReason, Iterable[int]] = {
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
        """Return True if the key is known: the timer was not rolled, and did not have to be."""
        rules, _ = self._decisions.rules_from(offset)
        return offset not in self._visit_ms and rules is not None and delay_ms <= rules.roll_window_ms

    def _read_journal(self, journal: Iterable[JournalEntry]) -> Iterator[JournalRecord]:
        for at_ms, record, waits in journal:
            for flight in record.rolled:
                self._raise_visit(flight.origin_offset, flight.due_ms)
            for origin, _ in record.landed:
                self._raise_visit(origin, at_ms + SKEW_MS)
            self._waits = {}
            for target, stretches in waits:
                self._waits.setdefault(_hash(target), []).extend(stretches)
            yield record

    def _raise_visit(self, origin: int, visit_ms: int) -> None:
        self._visit_ms[origin] = max(visit_ms, self._visit_ms.get(origin, 0))


def _hash(target: str) -> int:
    """Return Java's String.hashCode: targets with the same hash share a backlog."""
    found = 0
    for letter in target:
        found = (31 * found + ord(letter)) & 0xFFFFFFFF
    return found
