"""Progress (C, K, L): which requests are settled, in one number and a line of metadata.

    requests:  0 1 2 3 4 5 6 7 8 9     C = 8   read so far: below it each is settled or live
    key <= K:  y n y y n y y n . .     K       the full position (visit_ms, origin offset) up to which is settled
                 ^                     L = 1   the lowest live one: a rebuild starts there

Design, invariant 3. C is the committed offset itself, K and L travel in its metadata (<= 1 KB). With them a number, one
higher in each transaction: not all that may be decided moves C, K or L, and a store has to know whether it knows all.
And the era, epoch ms: from when on there is this progress, where there was none or the operator put another in its
place. Offsets may begin again then, so a store of another era knows nothing, whatever its numbers say.
"""

import json
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from schemas.headers import MAX_INT64

Int64: TypeAlias = Annotated[int, Field(ge=-1, le=MAX_INT64)]
"""An offset, a time or a number, -1 for none, as far as the columns of a store can hold it."""


class Key(NamedTuple):
    """A place in the order of release. Total: two timers of one partition never share it."""

    visit_ms: Int64
    origin: Int64


NOTHING_SETTLED = Key(-1, -1)
_encoded = json.JSONEncoder(separators=(",", ":")).encode


class Progress(NamedTuple):
    """The committed state of one shard."""

    next_offset: Int64
    settled: Key
    low_offset: Int64
    number: Int64 = 0
    era: Int64 = 0
    """0: of a bridge that did not tell it yet."""

    def metadata(self) -> str:
        """What is committed beside `next_offset`."""
        told = {"v": 1, "k": list(self.settled), "l": self.low_offset, "n": self.number}
        return _encoded(told | {"e": self.era} if self.era else told)

    @classmethod
    def committed(cls, next_offset: int, metadata: str | None) -> "Progress":
        """Raises ForeignProgressError where the metadata was not written by a bridge."""
        try:
            told = json.loads(metadata or "")
            if told["v"] != 1:
                raise ForeignProgressError(next_offset, metadata)
            visit_ms, origin = map(_int64, told["k"])
            numbers = _int64(told["l"]), _int64(told.get("n", 0)), _int64(told.get("e", 0))
            return cls(int(next_offset), Key(visit_ms, origin), *numbers)
        except (ValueError, KeyError, TypeError, RecursionError) as wrong:
            raise ForeignProgressError(next_offset, metadata) from wrong


def _int64(told: object) -> int:
    if type(told) is not int or not -1 <= told <= MAX_INT64:
        raise ValueError(f"{told!r} is no number of ours")
    return told


class ForeignProgressError(ValueError):
    """An offset committed by something else than a bridge, or by a newer one."""

    def __init__(self, next_offset: int, metadata: str | None) -> None:
        super().__init__(f"offset {next_offset} was committed with metadata {metadata!r}, which no bridge wrote")
