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

from kafka_timer.origin import TimerPartition

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
        self.by_partition: Mapping[TimerPartition, Pause] = {}
        self.undecodable: Mapping[TimerPartition, int] = {}
        """Partitions whose next record cannot be decoded, with its offset. Some are paused for another reason."""

    @property
    def unfetched(self) -> frozenset[TimerPartition]:
        """Partitions that the consumer does not fetch."""
        return frozenset(each for each, pause in self.by_partition.items() if pause.reason != "undecodable")

    def pause(self, partition: TimerPartition, reason: Reason, detail: str = "") -> bool:
        """Note why intake is paused now. Return True if it was not paused for this reason before."""
        before, pause = self.by_partition.get(partition), Pause(reason, detail)
        if pause == before:
            return False
        self.by_partition = {**self.by_partition, partition: pause}
        return before is None or before.reason != reason

    def resume(self, partition: TimerPartition) -> None:
        if partition in self.by_partition:
            self.by_partition = {each: pause for each, pause in self.by_partition.items() if each != partition}

    def note_undecodable(self, offsets: Mapping[TimerPartition, int]) -> None:
        self.undecodable = offsets

    def of(self, reason: Reason) -> list[TimerPartition]:
        return [partition for partition, pause in self.by_partition.items() if pause.reason == reason]

    def counted(self) -> dict[TimerPartition, Reason]:
        """Return the partitions whose pause is in metrics, with the reason."""
        return {partition: pause.reason for partition, pause in self.by_partition.items() if pause.reason in COUNTED}
