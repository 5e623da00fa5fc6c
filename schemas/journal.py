"""The journal: decisions that the log of requests alone cannot tell again (design, invariant 4).

One record per shard and transaction, in that transaction. Each says which requests [from_offset, next_offset) it read
and by which rules, and what became an exception to "settled is what has key <= K":

    refused    in the range, but never a timer (it lies in the rejected topic)
    ended      timers that a later request ended: cancelled or replaced, wherever they stood
    rolled     copies on their way through the timer topic, with what is needed to know each when it lands
    landed     copies that were read; on their way are those rolled and not landed
    dropped    copies that landed after their timer had ended
    held       key <= K, but still live: the clock went back, or its target had to wait
    released   was held, is settled now
    waits      all targets whose timers wait as of this record: paused, or beyond their rate
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from schemas.headers import MAX_INT64, Rules
from schemas.progress import Int64, Key


class CopyInFlight(NamedTuple):
    """A copy on its way: the `rolls`-th of the timer `origin`, which is due at `due_ms`.

    Where it was moved meanwhile it is told again, and `due_ms` is no longer what the copy says: then it goes round once
    more.
    `id_hash` (hex, empty without an id) lets a cancel meet it, `digest` (hex) tells it from a forged one.
    """

    origin: Int64
    rolls: Int64
    due_ms: Int64
    target: str
    id_hash: str
    digest: str


END = Key(MAX_INT64, MAX_INT64)


class Wait(NamedTuple):
    """A target whose timers wait: those with a key in one of `stretches` (after, until] live, whatever K says.

    The others below the last stretch have left. Ascending; the last one has no end (END).
    """

    target: str
    is_paused: bool
    stretches: tuple[tuple[Key, Key], ...]


def writer_key(group: str, timer_topic: str) -> bytes:
    """Return the Kafka key of journal records of `group` about `timer_topic`. Records of older bridges have none."""
    return f"{group} {timer_topic}".encode()


class JournalRecord(BaseModel):
    """The value of one record on `timer.journal`, as JSON. Offsets are those of the shard's timer partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: int = 1
    from_offset: Int64
    next_offset: Int64
    rules: Rules
    refused: tuple[Int64, ...] = ()
    ended: tuple[Int64, ...] = ()
    """Origins. An origin has at most one place at a time, and what is ended stays ended, through any roll."""
    rolled: tuple[CopyInFlight, ...] = ()
    landed: tuple[tuple[Int64, Int64], ...] = ()
    """(origin, rolls)."""
    dropped: tuple[Int64, ...] = ()
    held: tuple[Int64, ...] = ()
    released: tuple[Int64, ...] = ()
    waits: tuple[Wait, ...] = ()
    """In each record as long as there are any, so that the last record tells all."""

    @property
    def is_claim(self) -> bool:
        """True if the record decides nothing: a group claims the journal partition with it before a timer leaves."""
        decided = (self.refused, self.ended, self.rolled, self.landed, self.dropped, self.held, self.released)
        return self.from_offset == self.next_offset and not any(decided) and not self.waits

    def to_bytes(self) -> bytes:
        """Without `waits` where there are none: a bridge of before, beside this one, refuses what it does not know."""
        return self.model_dump_json(exclude=None if self.waits else {"waits"}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> "JournalRecord":
        """Raises ValueError (pydantic's) where the bytes are no journal record of this version."""
        return cls.model_validate_json(value)


class Decisions:
    """All that a part of the journal tells, behind a state in which `held` and `waits` waited and `flights` were out.

    It may begin before that state, which knows the requests below `known`: some of it is told again then.
    """

    def __init__(
        self,
        records: Iterable[JournalRecord],
        held: Iterable[int] = (),
        flights: Iterable[CopyInFlight] = (),
        known: int = 0,
        waits: Iterable[Wait] = (),
    ) -> None:
        self.refused: set[int] = set()
        self.ended: set[int] = set()
        self.dropped: set[int] = set()
        self.flights = {(flight.origin, flight.rolls): flight for flight in flights}
        """On their way: rolled, not landed."""
        self.rolled = set(self.flights)
        """(origin, rolls) of every copy that was ever made in this stretch."""
        self.held = set(held)
        """Held, not released."""
        self.released: set[int] = set()
        """Held once and gone since, whatever K says; a copy that landed later is a timer again."""
        self.waits = tuple(waits)
        self.gone: set[int] = set()
        """Origins of which a copy was made since, so that no unit of before lives, whatever its key."""
        waited = self.held.copy()
        self.waiting = self.held.copy()
        """Of those that waited, the ones never released: a copy of a released one may be held again, elsewhere."""
        self._ranges: list[tuple[int, int, Rules]] = []
        for record in records:
            if self._ranges and record.from_offset < self._ranges[-1][1]:
                self._forget_from(record.from_offset)
            self.waits = record.waits
            self.refused.update(record.refused)
            self.ended.update(record.ended)
            self.dropped.update(record.dropped)
            for landed in record.landed:
                self.flights.pop(landed, None)
                if record.next_offset <= known:
                    self.gone.discard(landed[0])
                self.released.discard(landed[0])
            self.released.update(record.released)
            for flight in record.rolled:
                self.flights[flight.origin, flight.rolls] = flight
                self.rolled.add((flight.origin, flight.rolls))
                self.gone.add(flight.origin)
            self.held.update(record.held)
            self.held.difference_update(record.released)
            if record.next_offset <= known:
                self.waiting |= waited.intersection(record.held)
            self.waiting.difference_update(record.released)
            if record.next_offset > record.from_offset:
                self._cover(record.from_offset, record.next_offset, record.rules)

    def _cover(self, start: int, end: int, rules: Rules) -> None:
        """Neighbours that were read by the same rules are one range: there are as many as changes, not commits."""
        if self._ranges and self._ranges[-1][1:] == (start, rules):
            start = self._ranges.pop()[0]
        self._ranges.append((start, end, rules))

    def _forget_from(self, offset: int) -> None:
        """The operator put progress back to `offset`: what was decided from there on is decided anew."""
        self.flights = {key: flight for key, flight in self.flights.items() if flight.origin < offset}
        self.rolled = {key for key in self.rolled if key[0] < offset}
        for decided in (self.refused, self.ended, self.dropped, self.held, self.released, self.waiting, self.gone):
            decided.difference_update([o for o in decided if o >= offset])
        self._ranges = [(a, min(b, offset), rules) for a, b, rules in self._ranges if a < offset]

    def rules_from(self, offset: int) -> tuple[Rules | None, int]:
        """The rules by which `offset` was first read (None: no record covers it), and up to which offset that holds."""
        at = bisect_right(self._ranges, offset, key=_end_of)
        if at == len(self._ranges):
            return None, MAX_INT64
        start, end, rules = self._ranges[at]
        return (rules, end) if start <= offset else (None, start)


_end_of = itemgetter(1)
