"""Origin: `topic/partition/offset` of a timer's first request, its identity in copies, receipts and deliveries."""

from typing import NamedTuple


class Shard(NamedTuple):
    """One partition of one timer topic: the unit of ownership, of progress and of a store."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def origin(shard: Shard, offset: int) -> bytes:
    """Return the `timer-origin` header of the request at `offset` of `shard`."""
    return b"%s/%d/%d" % (shard.topic.encode("ascii"), shard.partition, offset)
