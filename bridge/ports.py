"""The bridge's only ways out, in its own words. Real ones: bridge.kafka. Simulated ones: bridge.testing.fakes.

    Source  -> what arrives on the timer topics, and which shards are ours
    History -> what is already written there: progress, old requests, the journal
    Control -> what operators ask for: the control topic
    Sink    <- one transaction: deliveries, rejected, journal, progress; all or nothing
    Clock   -> now

A shard is one partition of one timer topic. Ownership moves only inside `Source.poll` and `Source.check`.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from schemas.headers import Headers
from schemas.origin import Shard
from schemas.progress import Progress
from timer.errors import UnreadableError


class Record(NamedTuple):
    """A request as it stands on the timer topic; `timestamp_ms` is the broker's (LogAppendTime)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class UndecodableRecord(Record):
    """Stands for a record that the Kafka client cannot decode and an operator has skipped: an offset, nothing else."""

    __slots__ = ()


class Outgoing(NamedTuple):
    """A record to be published. `partition` -1: the producer's partitioner chooses by key."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class Member(NamedTuple):
    """One of the group. `address`: host:port of its HTTP, empty where it tells none."""

    name: str
    address: str
    shards: frozenset[Shard]


@dataclass(slots=True)
class Ownership:
    """What changed hands, in this order: lost (another's by now), revoked (given up), assigned (ours, not started)."""

    lost: list[Shard] = field(default_factory=list)
    revoked: list[Shard] = field(default_factory=list)
    assigned: list[Shard] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


@dataclass(slots=True)
class Polled:
    """One look at the source. `fence` is the group's generation as of this poll: a transaction carries it unchanged."""

    ownership: Ownership
    records: dict[Shard, list[Record]]
    fence: object
    is_member: bool = True
    """The group has let us in: where nothing is ours, there is nothing left for us."""
    undecodable: dict[Shard, int] = field(default_factory=dict)
    """Started shards whose next record cannot be decoded, with its offset. All records before it were yielded."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Epoch ms. It may jump either way."""
        ...


class Source(Protocol):
    """The consumer of the timer topics, read_committed: the records of a shard in order, each once per start."""

    def poll(self, timeout_ms: int, max_records: int) -> Polled:
        """Waits until a record, a change of ownership or the time-out; then takes what is there, at most `max_records`.

        A shard that was assigned yields nothing until it is started.
        """
        ...

    def check(self) -> Polled:
        """Serves changes of ownership without taking records (after an abort): `records` is empty, `fence` is fresh."""
        ...

    def start(self, shard: Shard, offset: int) -> None:
        """From now on `poll` yields the shard's records from `offset` on."""
        ...

    def rewind(self, shard: Shard, offset: int) -> None:
        """As `start`, of a shard that was started: it has yielded nothing for too long."""
        ...

    def pause(self, shard: Shard) -> None:
        """`poll` yields nothing more of this shard; no record is lost. Pausing twice is pausing once."""
        ...

    def resume(self, shard: Shard) -> None:
        """Goes on where `pause` stopped."""
        ...

    def wake(self) -> None:
        """Ends a waiting `poll` soon; may be called from a signal handler."""
        ...

    def close(self) -> None:
        """Leaves the group."""
        ...


class Preparation(Protocol):
    """A shard's store on its way to what Kafka says, beside the turns, while no store of it is open here."""

    def is_done(self) -> bool:
        """Whether nobody works at it any more. Not whether it went well: who opens the store recovers it again."""
        ...

    @property
    def refused(self) -> OSError | UnreadableError | None:
        """What the disk refused it by, once it is done: who opens the store would only meet the same, for as long."""
        ...

    def give_up(self) -> None:
        """The shard is not ours any more: when this returns, nobody writes to its directory."""
        ...


class History(Protocol):
    """What Kafka already holds, read_committed. Every call waits through passing faults, unless it says otherwise.

    The loop's own gives up after a few seconds. Raises bridge.errors.PartitionUnreadableError then, and at once where a
    record cannot be decoded.
    """

    def progress(self, shard: Shard) -> Progress | None:
        """The committed progress, read when no transaction can change it any more; None where there is none.

        Raises schemas.progress.ForeignProgressError where something else committed the offset.
        """
        ...

    def bounds(self, shard: Shard) -> tuple[int, int]:
        """First offset of the timer partition that is kept, and the last stable offset: the end of what can be read."""
        ...

    def undecided(self, shards: Sequence[Shard]) -> set[Shard]:
        """Those whose progress or journal cannot be read before somebody's transaction ends. Waits for a moment."""
        ...

    def firsts(self, shards: Sequence[Shard]) -> dict[Shard, int]:
        """First offset of each timer partition that is kept. Asked once: whoever does not answer is left out."""
        ...

    def open_ends(self, shards: Sequence[Shard]) -> dict[Shard, tuple[int, int]]:
        """Last stable offset and end of each timer partition. Asked once: whoever does not answer is left out."""
        ...

    def newest_decisions(self, shards: Sequence[Shard]) -> dict[Shard, int]:
        """When the broker wrote the newest record of each journal partition, epoch ms by the broker's clock.

        Asked once: whoever does not answer, or holds none, is left out.
        """
        ...

    def offset_at(self, shard: Shard, timestamp_ms: int) -> int:
        """The first offset of the timer partition with this timestamp or a later one; the end where there is none."""
        ...

    def requests(
        self, shard: Shard, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        """The committed records [from_offset, to_offset) of the timer partition, in order, in batches.

        skipped: offsets that are left out if their records cannot be decoded.
        """
        ...

    def journal_end(self, shard: Shard) -> int:
        """The next offset to be written on the shard's journal partition; 0 where nothing was ever written."""
        ...

    def journal_bounds(self, shard: Shard) -> tuple[int, int]:
        """First offset of the shard's journal partition that is kept, and its last stable offset."""
        ...

    def journal(self, shard: Shard, *, from_offset: int | None, since_ms: int | None) -> Iterator[bytes]:
        """Values of the shard's committed journal records, from an offset, else from a time (broker's), else all."""
        ...

    def journal_tails(self, shards: Sequence[Shard], look_back: int) -> dict[Shard, list[tuple[bytes | None, bytes]]]:
        """Key and value of the committed journal records of each shard, of the last `look_back` offsets, in order.

        Up to the last stable offset: waits for no transaction.
        """
        ...

    def journal_key(self, shard: Shard) -> bytes:
        """The key of the journal records that our group writes about this shard."""
        ...


class Control(Protocol):
    """The control topic, from its beginning: each record once, in order."""

    def poll(self) -> Iterable[Record]:
        """Return what has arrived. Does not wait."""
        ...

    def catch_up(self) -> Iterable[Record]:
        """Return all that the topic holds by now beyond the records before.

        Raises bridge.errors.BrokerUnavailableError if that takes longer than a few seconds.
        """
        ...


@dataclass(slots=True)
class Transaction:
    """What is published together. `progress` holds every shard whose output stands in `outgoing`."""

    outgoing: list[Outgoing]
    journal: dict[Shard, bytes]
    progress: dict[Shard, Progress]
    fence: object
    standing: frozenset[int] = frozenset()
    """By index of `outgoing`: what stands already, and is not to be sent again (at-least-once)."""


AbortReason = Literal["earlier", "stale-member", "fault"]


@dataclass(frozen=True, slots=True)
class Committed:
    """All of it stands. `took_s`: since it was begun."""

    took_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing of it stands, but for `standing`: deliveries of at-least-once, by index of `outgoing`.

    `refused` names by index those of `outgoing` that the broker will never take, each with a code of the contract
    (`unknown-topic`, `unknown-partition`, `not-authorized`, `too-large`). Empty: a passing fault or a stale fence; look
    at the ownership, then publish again. `why`, where nothing is refused: the transaction before it was aborted, the
    group no longer knows the member that it was begun for, or a passing fault.
    """

    refused: dict[int, str]
    why: AbortReason = field(default="fault", compare=False)
    standing: frozenset[int] = field(default=frozenset(), compare=False)
    unavailable: frozenset[str] = field(default=frozenset(), compare=False)
    """Topics that did not take their records for a reason that may last: no leader, too few in-sync replicas, a quota.

    Without records to them, the transaction would have been committed as far as the sink knows.
    """


MOST_PUBLISHING = 2
"""Transactions of one sink that may be on their way at a time."""


class Publishing(Protocol):
    """A transaction on its way."""

    def is_done(self) -> bool:
        """Whether `wait` would answer, or raise, at once."""
        ...

    def wait(self) -> Committed | Aborted:
        """Its fate; may be asked again. Raises what `Sink.begin` raises."""
        ...


class Sink(Protocol):
    """Kafka transactions, one behind the other, of which a second may be under way while the first is committed.

    The later of two sends its offsets and commits only when the earlier stands; where the earlier is aborted, the later
    is `Aborted({})` too. (Out of this order, a crash between the two leaves progress that skips what the first held.)
    """

    def begin(self, transaction: Transaction) -> Publishing:
        """Starts it. The caller lets at most `MOST_PUBLISHING` be on their way, and begins none behind an abort before
        it has waited for all.

        Passing faults of the broker are waited out inside. Raises bridge.errors.FencedError when another process runs
        with the same transactional.id: this one must end.
        """
        ...

    def close(self) -> None:
        """What is on its way is left to the next producer of this id, or to the time-out."""
        ...
