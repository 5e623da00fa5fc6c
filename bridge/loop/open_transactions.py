"""Transactions that a sender leaves open: nothing behind the first record of one can be read in its partition.

    10:00:00   last stable offset 40, end 55        somebody's transaction is open: common
    10:00:30   last stable offset 40, end 71        the same one: it hangs since 10:00:00, and 31 offsets wait

What has hung for shorter than the time between two looks may go unseen.
"""

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from schemas.origin import Shard


class Hang(NamedTuple):
    """Where nothing can be read: from `offset` on since `since_ms`, `waiting` offsets by `seen_ms`."""

    shard: Shard
    offset: int
    since_ms: int
    waiting: int
    seen_ms: int


class OpenTransactions:
    """What the last look has shown."""

    def __init__(self) -> None:
        self._seen: dict[Shard, tuple[int, int]] = {}
        self.now: dict[Shard, Hang] = {}
        """What hangs, as of the last look."""

    def look(self, ends: Mapping[Shard, tuple[int, int]], now_ms: int, silent: Set[Shard] = frozenset()) -> None:
        """`ends`: last stable offset and end of each partition, without the `silent` ones: they stay as they were."""
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
