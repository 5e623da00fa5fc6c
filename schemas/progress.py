"""Progress (C, K, L): which requests are settled, in a committed offset and its metadata.

    requests:  0 1 2 3 4 5 6 7 8 9     C = 8   next to read: every request below is settled or pending
    key <= K:  y n y y n y y n . .     K       the last settled key (visit_ms, origin offset)
                 ^                     L = 1   the lowest pending offset: a rebuild starts there

Design, invariant 3. C is the committed offset, K and L are in its metadata (<= 1 KB), with two more values. The number
increases with each transaction, as some decisions move none of C, K, L, and a store must know whether it has them all.
The era (progress generation, epoch ms) is when this progress began: the first one, or one that an operator set. Offsets
may start again then, so a store of another era is not used.
"""

import json
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from kafka_timer.headers import MAX_INT64

Int64: TypeAlias = Annotated[int, Field(ge=-1, le=MAX_INT64)]
"""An offset, a time or a number within the range of a store's columns; -1: none."""


class Key(NamedTuple):
    """A position in the order of release. Two timers of one partition never share a key."""

    visit_ms: Int64
    origin_offset: Int64


NOTHING_SETTLED = Key(-1, -1)
_encoded = json.JSONEncoder(separators=(",", ":")).encode


class Progress(NamedTuple):
    """The committed state of one partition."""

    next_offset: Int64
    settled: Key
    low_offset: Int64
    number: Int64 = 0
    era: Int64 = 0
    """0: written by an older bridge without eras."""

    def metadata(self) -> str:
        fields = {"v": 1, "k": list(self.settled), "l": self.low_offset, "n": self.number}
        return _encoded(fields | {"e": self.era} if self.era else fields)

    @classmethod
    def committed(cls, next_offset: int, metadata: str | None) -> "Progress":
        """Parse a committed offset. Raises ForeignProgressError if this version cannot read its metadata."""
        try:
            fields = json.loads(metadata or "")
            if fields["v"] != 1:
                raise ForeignProgressError(next_offset, metadata)
            visit_ms, origin_offset = map(_int64, fields["k"])
            numbers = _int64(fields["l"]), _int64(fields.get("n", 0)), _int64(fields.get("e", 0))
            return cls(int(next_offset), Key(visit_ms, origin_offset), *numbers)
        except (ValueError, KeyError, TypeError, RecursionError) as wrong:
            raise ForeignProgressError(next_offset, metadata) from wrong


Age = tuple[int, ...]
"""Progress of a store as (era, C, K, number): the greatest one of a partition is the newest."""


def age_of(progress: Progress) -> Age:
    return (progress.era, progress.next_offset, *progress.settled, progress.number)


def _int64(value: object) -> int:
    if type(value) is not int or not -1 <= value <= MAX_INT64:
        raise ValueError(f"{value!r} is not a number as this version writes them")
    return value


class ForeignProgressError(ValueError):
    """An offset that was committed by a newer bridge, or by none."""

    def __init__(self, next_offset: int, metadata: str | None) -> None:
        super().__init__(f"offset {next_offset}: this version cannot read the committed metadata {metadata!r}")
