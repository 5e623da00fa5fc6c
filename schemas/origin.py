"""`topic/partition/offset` of the first request: a timer's identity through every copy, receipt and delivery."""

from typing import NamedTuple


class Shard(NamedTuple):
    """One partition of one timer topic: the unit of ownership, of progress and of a store."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def origin(shard: Shard, offset: int) -> bytes:
    """The `timer-origin` header of the request at `offset` of `shard`."""
    return b"%s/%d/%d" % (shard.topic.encode("ascii"), shard.partition, offset)
