"""Define the interfaces between the bridge and the outside. Implemented by bridge.kafka and bridge.testing.

    Source  -> new requests, and which partitions this instance owns
    History -> what Kafka already holds: progress, old requests, the journal
    Control -> operators' orders from the control topic
    Sink    <- one transaction: deliveries, rejected records, journal, progress
    Clock   -> now

A `TimerPartition` names one partition of one timer topic. Ownership changes only inside `Source.poll`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.progress import Progress
from timer.disk import Disk
from timer.errors import UnreadableError


class Record(NamedTuple):
    """A record of a timer topic. `timestamp_ms` is the broker's (LogAppendTime)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class UndecodableRecord(Record):
    """Stands for a record that the Kafka client cannot decode and that an operator has skipped: only an offset."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Outgoing:
    """A record to be published, equal to itself alone. `partition` -1: the producer's partitioner chooses by key."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class Member(NamedTuple):
    """A member of the group. address: host:port of its HTTP server, if it has one. instance: empty if it is static."""

    name: str
    address: str
    partitions: frozenset[TimerPartition]
    instance: str = ""


@dataclass(slots=True)
class Ownership:
    """Changes of ownership, to be applied in this order: lost, revoked, assigned.

    lost: another member may own it already. revoked: given up by us. assigned: ours, but not started yet.
    """

    lost: list[TimerPartition] = field(default_factory=list)
    revoked: list[TimerPartition] = field(default_factory=list)
    assigned: list[TimerPartition] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


@dataclass(slots=True)
class Membership:
    """Our membership of the consumer group as of the last poll. The source refreshes it, transactions carry it.

    A transaction carries the `group_metadata` (member id and generation) of its submit, and is not refreshed: a stale
    owner publishes nothing. is_member: True if the group has accepted us. A member without partitions is a spare.
    """

    group_metadata: object = b""
    is_member: bool = False

    def refresh(self, group_metadata: object, *, is_member: bool) -> None:
        self.group_metadata, self.is_member = group_metadata, is_member


@dataclass(slots=True)
class Polled:
    """Result of one poll. has_read: False if no record was asked for, so that one may be there."""

    ownership: Ownership
    records: dict[TimerPartition, list[Record]]
    undecodable: dict[TimerPartition, int] = field(default_factory=dict)
    """Started partitions whose next record cannot be decoded, with its offset. All records before it were returned."""
    has_read: bool = True


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return epoch ms. It may jump either way."""

    def cpu_ms(self) -> int:
        """Return the time (ms) that the calling thread has computed since any moment: without waits."""


class Source(Protocol):
    """Consumer of the timer topics, read_committed: records of a partition in order, each once after each start."""

    membership: Membership
    """As of the last `poll`."""

    def poll(
        self, timeout_ms: int, max_records: int, paused: Set[TimerPartition] = frozenset(), *, is_busy: bool = False
    ) -> Polled:
        """Wait for a record, a change of ownership or the timeout; return what has arrived, at most `max_records`.

        An assigned partition returns records only after `start`. paused: partitions that return none, and lose none.
        max_records: 0 for none, without a wait for them. is_busy: True to return without a wait for what can be taken
        in together, as other work waits.
        """

    def start(self, timer_partition: TimerPartition, offset: int) -> None:
        """Make `poll` return the partition's records from `offset` on."""

    def rewind(self, timer_partition: TimerPartition, offset: int) -> None:
        """Start a started partition again, because it has returned nothing for too long."""

    def wake(self) -> None:
        """End a waiting `poll` soon. May be called from a signal handler."""

    def close(self) -> None:
        """Leave the group."""


class BackgroundRecovery(Protocol):
    """Recovery, or refresh as a standby, of one partition's store, which the loop keeps closed meanwhile."""

    def is_done(self) -> bool:
        """Return True if the work has ended, with or without success. The loop then recovers the store again."""

    @property
    def refused(self) -> OSError | UnreadableError | None:
        """The error of the disk that ended the work, or None: the loop would meet it, too. Of a refresh: any error."""

    def give_up(self) -> None:
        """Stop, because the partition has another owner. After the return nothing writes to its directory."""


Since = Callable[[TimerPartition], tuple[int, int] | None]
"""Returns the offsets of the timer partition and of its journal that a recovery reads first; None: unknown."""


class History(Protocol):
    """Reads of what Kafka holds, read_committed. Calls wait through passing faults, unless their docstring differs.

    The loop's own instance gives up after a few seconds and raises bridge.errors.PartitionUnreadableError. It raises
    that at once if a record cannot be decoded.
    """

    def ask_ahead(self, partitions: Sequence[TimerPartition], since: Since | None = None) -> None:
        """Ask once what the next `bounds` and `journal_bounds` of each return, and then what `progress` returns.

        In this order: progress that is read later includes all decisions below the journal's last stable offset.
        Forgets what an earlier call has got and was not used. Calls without such an answer ask as always. An answer may
        be seconds old when it is used: a recovery asks for the progress again at its end.

        since: then read what the next `journal` and `requests` of each return from there to the progress, if it is
        little.
        """

    def progress(self, timer_partition: TimerPartition) -> Progress | None:
        """Return the committed progress, or None. Waits until no open transaction can change it.

        Raises ForeignProgressError if another program committed the offset.
        """

    def bounds(self, timer_partition: TimerPartition) -> tuple[int, int]:
        """Return the timer partition's first kept offset and its last stable offset."""

    def with_open_transactions(self, partitions: Sequence[TimerPartition]) -> set[TimerPartition]:
        """Return the partitions whose progress or journal is hidden by an open transaction. Waits for a moment."""

    def first_offsets(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        """Return the first kept offset of each timer partition. Asks once; leaves out those without an answer."""

    def stable_and_end_offsets(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, tuple[int, int]]:
        """Return last stable offset and end of each timer partition. Asks once; leaves out those without an answer."""

    def newest_journal_times(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        """Return the broker's timestamp (epoch ms) of the newest record of each journal partition. Asks once.

        Leaves out partitions without an answer or without records.
        """

    def offset_at(self, timer_partition: TimerPartition, timestamp_ms: int) -> int:
        """Return the first offset of the timer partition with this timestamp or a later one, or its end."""

    def requests(
        self, timer_partition: TimerPartition, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        """Yield the committed records [from_offset, to_offset) of the timer partition, in order, in batches.

        skipped: offsets to leave out if their records cannot be decoded.
        """

    def journal_ends(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        """Return the next offset of each journal partition; 0 if it was never written to."""

    def journal_bounds(self, timer_partition: TimerPartition) -> tuple[int, int]:
        """Return the journal partition's first kept offset and its last stable offset."""

    def journal(
        self, timer_partition: TimerPartition, *, from_offset: int | None, since_ms: int | None
    ) -> Iterator[bytes]:
        """Yield values of committed journal records from `from_offset`, else `since_ms` (broker's time), else all."""

    def journal_tails(
        self, partitions: Sequence[TimerPartition], look_back: int
    ) -> dict[TimerPartition, list[tuple[bytes | None, bytes]]]:
        """Return key and value of each partition's committed journal records within the last `look_back` offsets.

        Reads up to the last stable offset, in order; does not wait for open transactions.
        """

    def journal_key(self, timer_partition: TimerPartition) -> bytes:
        """Return the key of journal records that our group writes about this partition."""


class Control(Protocol):
    """The control topic, from its beginning: each record once, in order."""

    def poll(self) -> Iterable[Record]:
        """Return records that have arrived. Does not wait."""

    def catch_up(self) -> Iterable[Record]:
        """Return all further records up to the topic's end as of now.

        Raises BrokerUnavailableError if that takes longer than a few seconds.
        """


@dataclass(slots=True)
class Transaction:
    """Contents of one transaction. `progress` has all partitions of `outgoing`. tries: how often it was aborted."""

    outgoing: list[Outgoing]
    journal: dict[TimerPartition, bytes]
    progress: dict[TimerPartition, Progress]
    group_metadata: object
    tries: int = 0


AbortReason = Literal["stale-member", "fault"]


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction is committed. `took_s`: seconds since `Sink.submit`."""

    took_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Aborted:
    """The transaction is aborted. Apply changes of ownership, then submit it again.

    refused: records of `outgoing` that the broker will never accept, each with a code (`unknown-topic`,
        `unknown-partition`, `not-authorized`, `too-large`). Empty after a passing fault or with stale group metadata.
    why: meaningful if `refused` is empty. `stale-member`: the group no longer knows the member.
    unavailable: topics that accepted no records for a reason that may last: no leader, too few in-sync replicas, a
        quota. As far as the sink knows, the transaction would commit without records to them.
    is_known: True if the cluster reported `unavailable` soon, before anything was sent: no other record was delayed.
    refusing: topics of `refused` that made a transaction fail after it was sent, so that each try costs all others.
    """

    refused: Mapping[Outgoing, str]
    why: AbortReason = field(default="fault", compare=False)
    unavailable: frozenset[str] = field(default=frozenset(), compare=False)
    is_known: bool = field(default=False, compare=False)
    refusing: frozenset[str] = field(default=frozenset(), compare=False)


MAX_IN_FLIGHT = 4
"""Transactions of one sink that may be in flight at a time."""


class SubmittedTransaction(Protocol):
    def is_done(self) -> bool:
        """Return True if `wait` would return or raise at once."""

    def wait(self) -> Committed | Aborted:
        """Wait for the outcome. May be called again. Raises the errors of `Sink.submit`."""


class Sink(Protocol):
    """Kafka transactions that are independent of each other."""

    def needs_look_up(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return True if a transaction with these records may take longer, as targets have to be looked up first."""

    def submit(self, transaction: Transaction) -> SubmittedTransaction:
        """Start a transaction. A passing fault of the broker delays or aborts it, and raises nothing.

        The caller keeps at most `MAX_IN_FLIGHT` of them, and each partition in at most one. (Otherwise a later one
        could commit progress that skips the records of an earlier one.)
        Raises FencedError if another process uses the same transactional.id: this process must end.
        """

    def close(self) -> None:
        """Close. The next producer with this id, or the transaction timeout, ends an open transaction."""


class Ports(NamedTuple):
    """What a partition needs. disk_for: opens its directory. prepare: recovers its store outside the loop."""

    clock: Clock
    source: Source
    history: History
    disk_for: Callable[[TimerPartition], Disk]
    prepare: Callable[[TimerPartition], BackgroundRecovery]
