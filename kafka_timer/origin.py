"""Origin: `topic/partition/offset` of a timer's first request, its identity in copies, receipts and deliveries."""

from typing import NamedTuple


class TimerPartition(NamedTuple):
    """One partition of one timer topic: the unit of ownership, of progress and of a store."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def origin(timer_partition: TimerPartition, offset: int) -> bytes:
    """Return the `timer-origin` header of the request at `offset` of `partition`."""
    return b"%s/%d/%d" % (timer_partition.topic.encode("ascii"), timer_partition.partition, offset)
