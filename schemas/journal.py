"""The journal: decisions that the timer topic alone does not contain (design, invariant 4).

One record per partition and transaction, in that transaction. It has the range of requests [from_offset, next_offset)
that were read, their rules, and the exceptions to "settled is every key <= K":

    refused    requests in the range that never became timers (they are on the rejected topic)
    ended      timers that a later request cancelled or replaced
    rolled     copies that were written to the timer topic, with the fields that identify each
    landed     copies that were read, or skipped unread (then the timer has ended); one that is rolled and not landed is
               a copy in flight
    dropped    copies that were read after their timer had ended
    held       key <= K, but still pending: the clock went back, or the target had to wait
    released   was held, is settled now
    waits      all targets with a backlog as of this record: paused, or over their rate
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kafka_timer.headers import MAX_INT64
from schemas.progress import Int64, Key
from schemas.rules import Rules


class CopyInFlight(NamedTuple):
    """A copy in flight: the `rolls`-th of the timer at `origin_offset`, which is due at `due_ms`.

    If the timer is moved while its copy is in flight, the journal has the copy again with another `due_ms` than the
    copy's own; then it is rolled once more.
    id_hash: hex, empty without an id; lets a cancel find the copy. digest: hex, detects a forged copy.
    """

    origin_offset: Int64
    rolls: Int64
    due_ms: Int64
    target: str
    id_hash: str
    digest: str


END = Key(MAX_INT64, MAX_INT64)


class Wait(NamedTuple):
    """A target backlog: timers with a key in one of `stretches` (after, until] are pending, whatever K says.

    Its other timers below the last stretch are settled. Stretches are ascending; the last one has no end (END).
    """

    target: str
    is_paused: bool
    stretches: tuple[tuple[Key, Key], ...]


def writer_key(group: str, timer_topic: str) -> bytes:
    """Return the Kafka key of journal records of `group` about `timer_topic`. Records of older bridges have none."""
    return f"{group} {timer_topic}".encode()


class JournalRecord(BaseModel):
    """The value of one record on `timer.journal`, as JSON. Offsets are those of the partition's timer partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: int = 1
    from_offset: Int64
    next_offset: Int64
    rules: Rules
    refused: tuple[Int64, ...] = ()
    ended: tuple[Int64, ...] = ()
    """Origin offsets. An ended timer stays ended, also if a copy of it is in flight."""
    rolled: tuple[CopyInFlight, ...] = ()
    landed: tuple[tuple[Int64, Int64], ...] = ()
    """(origin offset, rolls)."""
    dropped: tuple[Int64, ...] = ()
    held: tuple[Int64, ...] = ()
    released: tuple[Int64, ...] = ()
    waits: tuple[Wait, ...] = ()
    """In every record while there are any, so that the last record is complete."""

    @property
    def is_claim(self) -> bool:
        """True if the record decides nothing: a group claims the journal partition with it before a timer leaves."""
        decided = (self.refused, self.ended, self.rolled, self.landed, self.dropped, self.held, self.released)
        return self.from_offset == self.next_offset and not any(decided) and not self.waits

    def to_bytes(self) -> bytes:
        """Return the JSON, without `waits` if empty: an older bridge in the group refuses an unknown field."""
        return self.model_dump_json(exclude=None if self.waits else {"waits"}, exclude_none=True).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> "JournalRecord":
        """Parse a record. Raises pydantic's ValueError if the bytes are not a journal record of this version."""
        return cls.model_validate_json(value)


class Decisions:
    """The sum of journal records after a state with `held`, `waits` and copies in flight (`flights`).

    The records may begin before that state, which includes the requests below `known`: then some decisions repeat.
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
        self.flights = {(flight.origin_offset, flight.rolls): flight for flight in flights}
        """Copies in flight: rolled, not landed."""
        self.rolled = set(self.flights)
        """(origin offset, rolls) of every copy that these records made."""
        self.held = set(held)
        """Held, not released."""
        self.released: set[int] = set()
        """Held once and settled since, whatever K says; a copy that lands later is a timer again."""
        self.waits = tuple(waits)
        self.gone: set[int] = set()
        """Origins that were rolled since: none of their earlier units is pending, whatever its key."""
        waited = self.held.copy()
        self.waiting = self.held.copy()
        """Origins held in the state and never released: a copy of a released one may be held again, as another unit."""
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
                self.flights[flight.origin_offset, flight.rolls] = flight
                self.rolled.add((flight.origin_offset, flight.rolls))
                self.gone.add(flight.origin_offset)
            self.held.update(record.held)
            self.held.difference_update(record.released)
            if record.next_offset <= known:
                self.waiting |= waited.intersection(record.held)
            self.waiting.difference_update(record.released)
            if (start := record.from_offset) < record.next_offset:
                if self._ranges and self._ranges[-1][1:] == (start, record.rules):
                    start = self._ranges.pop()[0]  # one range per change of the rules, not per commit
                self._ranges.append((start, record.next_offset, record.rules))

    def _forget_from(self, offset: int) -> None:
        """Forget the decisions from `offset` on: an operator has set progress back to it."""
        self.flights = {key: flight for key, flight in self.flights.items() if flight.origin_offset < offset}
        self.rolled = {key for key in self.rolled if key[0] < offset}
        for decided in (self.refused, self.ended, self.dropped, self.held, self.released, self.waiting, self.gone):
            decided.difference_update([o for o in decided if o >= offset])
        self._ranges = [(a, min(b, offset), rules) for a, b, rules in self._ranges if a < offset]

    def rules_from(self, offset: int) -> tuple[Rules | None, int]:
        """Return the rules by which `offset` was first read (None: no record covers it), and the end of their range."""
        at = bisect_right(self._ranges, offset, key=itemgetter(1))
        if at == len(self._ranges):
            return None, MAX_INT64
        start, end, rules = self._ranges[at]
        return (rules, end) if start <= offset else (None, start)
