"""Transactions that a sender leaves open: nothing after the first record of one can be read in its partition.

    10:00:00   last stable offset 40, end 55        some transaction is open: common
    10:00:30   last stable offset 40, end 71        the same one: it hangs since 10:00:00, and 31 offsets wait

A transaction that hangs for less than the time between two checks may go unseen.
"""

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from schemas.origin import Shard


class Hang(NamedTuple):
    """A partition that cannot be read from `offset` on since `since_ms`; `waiting` offsets by `seen_ms`."""

    shard: Shard
    offset: int
    since_ms: int
    waiting: int
    seen_ms: int


class OpenTransactions:
    """State of the last check."""

    def __init__(self) -> None:
        self._seen: dict[Shard, tuple[int, int]] = {}
        self.now: dict[Shard, Hang] = {}
        """Open transactions that hang, as of the last check."""

    def look(self, ends: Mapping[Shard, tuple[int, int]], now_ms: int, silent: Set[Shard] = frozenset()) -> None:
        """Compare with the last check.

        ends: last stable offset and end of each partition. silent: partitions without an answer; they stay as they are.
        """
        kept = {shard: hang for shard, hang in self.now.items() if shard in silent}
        self.now = kept | {hang.shard: hang for hang in self._compared(ends, now_ms)}
        open_ = {shard: stable for shard, (stable, end) in ends.items() if stable < end}
        known = self._seen
        self._seen = {shard: seen for shard, seen in known.items() if shard in silent} | {
            shard: known[shard] if known.get(shard, (-1, 0))[0] == stable else (stable, now_ms)
            for shard, stable in open_.items()
        }

    def _compared(self, ends: Mapping[Shard, tuple[int, int]], now_ms: int) -> Iterator[Hang]:
        for shard, (stable, end) in ends.items():
            offset, since_ms = self._seen.get(shard, (-1, 0))
            if offset == stable < end:
                yield Hang(shard, stable, since_ms, end - stable, now_ms)
