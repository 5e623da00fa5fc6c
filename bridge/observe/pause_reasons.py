"""Why intake of a partition is paused. The loop's thread writes it; source, status and metrics read it here.

    reason        intake waits for                             consumer     ready   metrics
    recovering    the partition to be open                     is paused    no      no
    disk, wheel   room for what was polled                     is paused    no      yes
    held          out-of-order timers to leave                 is paused    no      yes
    rate          max_requests_per_s                           is paused    yes     yes
    transaction   the next commit, within the next turns       is paused    yes     no
    undecodable   an operator: the next record is unreadable   has nothing  no      yes

State is replaced, never changed in place, so that any thread may read it.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from kafka_timer.origin import Shard

Reason = Literal["recovering", "disk", "wheel", "held", "rate", "transaction", "undecodable"]

COUNTED: tuple[Reason, ...] = ("disk", "wheel", "held", "rate", "undecodable")
"""Reasons in metrics."""
_READY: tuple[Reason, ...] = ("rate", "transaction")


class Pause(NamedTuple):
    """detail: for people."""

    reason: Reason
    detail: str = ""

    @property
    def is_ready(self) -> bool:
        return self.reason in _READY


class PauseReasons:
    def __init__(self) -> None:
        self.by_shard: Mapping[Shard, Pause] = {}
        self.unfetched: frozenset[Shard] = frozenset()
        """Partitions that the consumer does not fetch."""
        self.undecodable: Mapping[Shard, int] = {}
        """Partitions whose next record cannot be decoded, with its offset. Some are paused for another reason."""

    def pause(self, shard: Shard, reason: Reason, detail: str = "") -> bool:
        """Note why intake is paused now. Return True if it was not paused for this reason before."""
        before, pause = self.by_shard.get(shard), Pause(reason, detail)
        if pause == before:
            return False
        self._replace({**self.by_shard, shard: pause})
        return before is None or before.reason != reason

    def resume(self, shard: Shard) -> None:
        if shard in self.by_shard:
            self._replace({each: pause for each, pause in self.by_shard.items() if each != shard})

    def note_undecodable(self, offsets: Mapping[Shard, int]) -> None:
        """offsets: see `undecodable`."""
        self.undecodable = offsets

    def of(self, reason: Reason) -> list[Shard]:
        """Return the partitions that are paused for this reason."""
        return [shard for shard, pause in self.by_shard.items() if pause.reason == reason]

    def counted(self) -> dict[Shard, Reason]:
        """Return the partitions whose pause is in metrics, with the reason."""
        return {shard: pause.reason for shard, pause in self.by_shard.items() if pause.reason in COUNTED}

    def _replace(self, by_shard: Mapping[Shard, Pause]) -> None:
        self.by_shard = by_shard
        self.unfetched = frozenset(shard for shard, pause in by_shard.items() if pause.reason != "undecodable")
