"""The Kafka operations that the API needs. Each call may wait for a broker, so it is made from a thread.

bridge.http.api.kafka implements it; tests use a Kafka in memory.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.ports import Member, Record
from bridge.redrive.rules import Parked
from kafka_timer import TimerProducer
from kafka_timer.origin import TimerPartition


class GroupView(NamedTuple):
    """All partitions of the timer topics, and the members that own them."""

    partitions: frozenset[TimerPartition]
    members: Sequence[Member]


class TopicReader(Protocol):
    """Reads committed records (read_committed)."""

    def partitions(self, topic: str) -> int | None: ...

    def bounds(self, partition: TimerPartition) -> tuple[int, int]:
        """Return the first available offset and the last stable one."""
        ...

    def requests(self, partition: TimerPartition, from_offset: int, to_offset: int) -> Iterator[list[Record]]: ...


@dataclass(frozen=True, slots=True)
class RedriveCount:
    """Result of a redrive: the number sent, and the records that the timer topic does not accept, with the code."""

    sent: int
    refused: Sequence[tuple[Parked, str]]


class KafkaPort(Protocol):
    """Thread-safe. Raises BridgeError with the remedy."""

    def group(self) -> GroupView: ...

    def reader(self) -> AbstractContextManager[TopicReader]:
        """Yield the reader; one caller at a time has it, others wait."""
        ...

    def producer(self, timer_topic: str) -> TimerProducer: ...

    def redriven(self) -> Container[bytes]:
        """Return the markers of all records that were sent again."""
        ...

    def redrive(self, records: Sequence[Parked], on_sent: Callable[[Sequence[Parked]], None]) -> RedriveCount:
        """Send the records again. `on_sent` gets those that were committed, also if a later one fails."""
        ...

    def close(self) -> None: ...
