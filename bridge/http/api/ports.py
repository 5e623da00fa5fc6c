"""What the page asks of Kafka, in its own words; each call may wait for a broker, so it is made from a thread.

real: bridge.http.api.kafka     in tests: over a Kafka in memory
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.client import TimerProducer
from bridge.ports import Member, Record
from bridge.redrive.rules import Parked
from schemas.origin import Shard


class GroupView(NamedTuple):
    """Every partition of the timer topics, and who has which."""

    shards: frozenset[Shard]
    members: Sequence[Member]


class TopicReader(Protocol):
    """What stands, read_committed."""

    def partitions(self, topic: str) -> int | None: ...

    def bounds(self, shard: Shard) -> tuple[int, int]:
        """The first offset that is kept, and the last stable one."""
        ...

    def requests(self, shard: Shard, from_offset: int, to_offset: int) -> Iterator[list[Record]]: ...


@dataclass(frozen=True, slots=True)
class Resent:
    """Of a redrive: how many were sent, and which the timer topic does not take, with the code."""

    sent: int
    refused: Sequence[tuple[Parked, str]]


class KafkaSide(Protocol):
    """Raises BridgeError, which says what to do. Any thread."""

    def group(self) -> GroupView: ...

    def reader(self) -> AbstractContextManager[TopicReader]:
        """For one at a time; others wait."""
        ...

    def producer(self, timer_topic: str) -> TimerProducer: ...

    def redriven(self) -> Container[bytes]:
        """Marks of what was sent again."""
        ...

    def redrive(self, records: Sequence[Parked], on_sent: Callable[[Sequence[Parked]], None]) -> Resent:
        """`on_sent` is told of those that stand, also where it ends before the others."""
        ...

    def close(self) -> None: ...
