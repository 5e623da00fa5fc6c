"""The journal: decisions that the log of requests alone cannot tell again (design, invariant 4).

One record per shard and transaction, in that transaction. Each says which requests [from_offset, next_offset) it read
and by which rules, and what became an exception to "settled is what has key <= K":

    refused    in the range, but never a timer (it lies in the rejected topic)
    held       key <= K, but still live: the clock went back, or its target had to wait
    released   was held, is settled now
"""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from schemas.headers import Rules


class JournalRecord(BaseModel):
    """The value of one record on `timer.journal`, as JSON. Offsets are those of the shard's timer partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: int = 1
    from_offset: int
    next_offset: int
    rules: Rules
    refused: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    released: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_defaults=False).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> "JournalRecord":
        """Raises ValueError (pydantic's) where the bytes are no journal record of this version."""
        return cls.model_validate_json(value)


class Decisions:
    """All that a stretch of the journal tells, folded into one answer."""

    def __init__(self, records: Iterable[JournalRecord]) -> None:
        self.refused: set[int] = set()
        self.held: set[int] = set()
        self.released: set[int] = set()
        self._ranges: list[tuple[int, int, Rules]] = []
        for record in records:
            if self._ranges and record.from_offset < self._ranges[-1][1]:
                self._forget_from(record.from_offset)
            self.refused.update(record.refused)
            self.held.update(record.held)
            self.released.update(record.released)
            if record.next_offset > record.from_offset:
                self._ranges.append((record.from_offset, record.next_offset, record.rules))

    def _forget_from(self, offset: int) -> None:
        """The operator put progress back to `offset`: what was decided from there on is decided anew."""
        for decided in (self.refused, self.held, self.released):
            decided.difference_update([o for o in decided if o >= offset])
        self._ranges = [(a, min(b, offset), rules) for a, b, rules in self._ranges if a < offset]

    def rules_at(self, offset: int) -> Rules | None:
        """The rules by which `offset` was first read, or None where no record covers it."""
        low, high = 0, len(self._ranges)
        while low < high:
            middle = (low + high) // 2
            if self._ranges[middle][1] <= offset:
                low = middle + 1
            else:
                high = middle
        if low < len(self._ranges) and self._ranges[low][0] <= offset:
            return self._ranges[low][2]
        return None
