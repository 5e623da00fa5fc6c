"""Contents of one transaction, and why it was aborted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import KafkaError

from bridge.ports import Outgoing
from kafka_timer.origin import TimerPartition
from schemas.progress import Progress

_MAX_NAMED = 3
_FOLLOWUP = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


class FindUnavailable(Protocol):
    """Queries the cluster, and returns the topics that accept no records now.

    is_early: True to return only topics that were deleted or created again.
    """

    def __call__(self, topics: Collection[str], *, is_early: bool) -> frozenset[str]: ...


def none_unavailable(topics: Collection[str], *, is_early: bool) -> frozenset[str]:
    del topics, is_early
    return frozenset()


class TopicsUnavailableError(Exception):
    """Some topics accept no records now."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(topics)))
        self.topics = topics


@dataclass(slots=True)
class TransactionContents:
    """Contents of one transaction. max_batch_bytes: topic -> bytes that may be unacknowledged at a time."""

    records: Sequence[Outgoing]
    progress: Mapping[TimerPartition, Progress]
    group_metadata: object
    max_batch_bytes: Mapping[str, int]


@dataclass(slots=True)
class SendFailure:
    """Why a transaction was aborted. named: error codes by record. cause: error of the whole transaction."""

    named: dict[Outgoing, int] = field(default_factory=dict)
    cause: KafkaError | None = None
    unavailable: frozenset[str] = frozenset()
    """Topics that caused the failure by accepting no records in time."""
    is_slow: bool = False
    """True if the transaction timed out though the broker accepted a part (slow broker, or quota)."""

    @property
    def codes(self) -> set[int]:
        return set(self.named.values()) | ({self.cause.code()} if self.cause is not None else set())

    @property
    def is_followup_error(self) -> bool:
        """True if the transaction before it is the reason (rule 3 of producer.py)."""
        return not self.named and self.cause is not None and self.cause.code() == _FOLLOWUP

    def __str__(self) -> str:
        if self.unavailable:
            return f"no records are taken by {', '.join(sorted(self.unavailable)[:_MAX_NAMED])}"
        if self.cause is not None:
            return self.cause.str()
        return f"{len(self.named)} records failed" if self.named else "the broker did not answer in time"
