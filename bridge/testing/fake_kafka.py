"""A Kafka in memory, as a transactional client and a read_committed consumer see it. One thread, no sleep.

    orders/0   0 a   1 b(T1)   2 c   3 commit T1   4 d(T2, open)   5 e
               read_committed sees a b c: the marker has an offset, and T2 holds the last stable offset at 4

It behaves like Kafka in all that the bridge relies on:
1. A marker is written to each partition of a transaction. Records of an aborted transaction keep their offsets.
2. An open transaction hides all later records of its partition, and nothing else.
3. If two transactions have offsets, the one that sent them later counts, whichever commits first.
4. The coordinator checks the group's generation when offsets are sent; it checks neither the owner nor at the commit.
5. A commit is answered before its markers are written: some partitions show it later (`marker_lag_ms`).
6. A producer that starts with a transactional.id ends the open transaction of the last one; so does the timeout.
7. A request of a dead client to the coordinator may still arrive.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from random import Random

from bridge.ports import Record
from bridge.testing.timeline import Timeline as Timeline
from bridge.testing.timeline import nothing_happens
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.control import Skipped, control_record
from kafka_timer.headers import Headers
from kafka_timer.murmur2 import murmur2 as murmur2
from kafka_timer.origin import TimerPartition
from schemas.progress import Progress
from timer.testing import Fuse

MAX_METADATA_CHARACTERS = 1024


class State(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class FakeTransaction:
    """A transaction of the client `owner`. `note` is free for the test."""

    owner: str
    begun_ms: int = 0
    state: State = State.OPEN
    offsets: dict[tuple[str, TimerPartition], Progress] = field(default_factory=dict)
    position: int = -1
    records: "list[tuple[Partition, Entry]]" = field(default_factory=list)
    """Written records, in the order of the calls."""
    note: object = None

    @property
    def partitions(self) -> "Iterable[Partition]":
        """Return the partitions with its records, in the order of the first ones."""
        return dict.fromkeys(log for log, _ in self.records)


@dataclass(eq=False, slots=True)
class Entry:
    """One offset of a partition: a record, or the marker that ends `transaction` here."""

    offset: int
    append_ms: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: FakeTransaction | None = None
    is_marker: bool = False
    is_undecodable: bool = False
    """True if no client can decode it."""

    @property
    def is_committed(self) -> bool:
        """True for a record that a read_committed consumer gets, below the last stable offset."""
        is_decided = self.transaction is None or self.transaction.state is State.COMMITTED
        return is_decided and not self.is_marker


@dataclass(eq=False, repr=False, slots=True)
class Partition:
    """A partition's log: entries from `first` on, and its open transactions."""

    topic: str
    number: int
    first: int = 0
    skew_ms: int = 0
    """How far the leader's clock is ahead."""
    open: dict[FakeTransaction, int] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self._entries)

    @property
    def last_stable(self) -> int:
        """The offset up to which read_committed consumers may read."""
        return min(self.open.values()) if self.open else self.end

    def append(self, entry: Entry) -> Entry:
        entry.offset = self.end
        if entry.transaction is not None and not entry.is_marker:
            self.open.setdefault(entry.transaction, entry.offset)
        self._entries.append(entry)
        return entry

    def end_transaction(self, transaction: FakeTransaction, now_ms: int) -> None:
        if self.open.pop(transaction, None) is not None:
            self.append(Entry(-1, now_ms, now_ms, None, None, (), transaction, is_marker=True))

    def committed(self, start: int, end: int) -> Iterator[Entry]:
        """Iterate over the committed records of [start, end). `end`: at most the last stable offset."""
        kept = self._entries[max(0, start - self.first) : max(0, end - self.first)]
        return (entry for entry in kept if entry.is_committed)

    def everything(self) -> Sequence[Entry]:
        """Return every kept entry, with open and aborted records and markers."""
        return self._entries

    def delete_before(self, offset: int) -> None:
        """Delete entries, as retention does."""
        del self._entries[: max(0, offset - self.first)]
        self.first = max(self.first, offset)

    def cut(self, end: int) -> None:
        """Truncate the log, as an unclean leader election does."""
        del self._entries[max(0, end - self.first) :]


def record_of(entry: Entry) -> Record:
    return Record(entry.offset, entry.append_ms, entry.key, entry.value, list(entry.headers))


@dataclass(slots=True)
class Topic:
    """A topic. denied: writes are forbidden. unavailable: it has no leader, or too few in-sync replicas."""

    partitions: list[Partition]
    max_bytes: int
    denied: bool = False
    unavailable: bool = False
    turn: int = 0


@dataclass(eq=False, repr=False)
class FakeKafka:
    """A Kafka cluster in memory. With `rng`, markers may lag, and a dead client's commit may arrive late."""

    timeline: Timeline
    rng: Random | None = None
    _: KW_ONLY
    transaction_timeout_ms: int = 10_000
    marker_lag_ms: int = 5
    topics: dict[str, Topic] = field(default_factory=dict, init=False)
    commits: list[FakeTransaction] = field(default_factory=list, init=False)
    """Committed transactions, in the order of the coordinator's decisions."""

    def __post_init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._unfinished: dict[str, list[FakeTransaction]] = {}
        self._positions = itertools.count()
        self._offsets: dict[tuple[str, TimerPartition], tuple[int, int, str | None]] = {}

    # -- topics and plain records

    def create(self, name: str, partitions: int = 1, *, max_bytes: int = 1 << 20, denied: bool = False) -> None:
        self.topics[name] = Topic([Partition(name, number) for number in range(partitions)], max_bytes, denied)

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions, up to `partitions` in all. Keys may map to other partitions from now on."""
        logs = self.topics[name].partitions
        logs += [Partition(name, number) for number in range(len(logs), partitions)]

    def partition(self, timer_partition: TimerPartition) -> Partition:
        return self.topics[timer_partition.topic].partitions[timer_partition.partition]

    def refusal(self, topic: str, partition: int, size: int) -> str | None:
        """Return the code with which a record of `size` bytes is refused, or None."""
        found = self.topics.get(topic)
        if found is None:
            return "unknown-topic"
        if found.denied:
            return "not-authorized"
        if partition >= len(found.partitions):
            return "unknown-partition"
        return "too-large" if size > found.max_bytes else None

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int = -1,
        timestamp_ms: int | None = None,
        transaction: FakeTransaction | None = None,
        is_undecodable: bool = False,
    ) -> Entry:
        """Produce a record. `partition` -1: by the key's murmur2, as Kafka does; without a key, in turn."""
        log = self._choose(self.topics[topic], partition, key)
        now_ms = self.timeline.now_ms + log.skew_ms
        created_ms = now_ms if timestamp_ms is None else timestamp_ms
        entry = log.append(Entry(-1, now_ms, created_ms, key, value, list(headers), transaction))
        entry.is_undecodable = is_undecodable
        if transaction is not None:
            transaction.records.append((log, entry))
        return entry

    def skip(self, timer_partition: TimerPartition, offset: int) -> None:
        """Write an operator's skip of a record to the control topic."""
        if CONTROL_TOPIC not in self.topics:
            self.create(CONTROL_TOPIC)
        key, value = control_record(Skipped(timer_partition, offset), on=True)
        self.produce(CONTROL_TOPIC, value, key=key)

    def read(self, topic: str) -> list[Entry]:
        """Return all records that a read_committed consumer of `topic` sees, by partition."""
        return [e for log in self.topics[topic].partitions for e in log.committed(log.first, log.last_stable)]

    def _choose(self, topic: Topic, partition: int, key: bytes | None) -> Partition:
        if partition < 0:
            topic.turn += 1
            partition = topic.turn if key is None else murmur2(key) & 0x7FFFFFFF
            partition %= len(topic.partitions)
        return topic.partitions[partition]

    # -- transactions

    def init(self, owner: str) -> int:
        """Start a producer, which ends the open transaction of the last one with this name. Return its epoch."""
        self._epochs[owner] = self._epochs.get(owner, -1) + 1
        self.finish(owner)
        return self._epochs[owner]

    def finish(self, owner: str) -> None:
        """Abort the open transactions of `owner`, and write the missing markers of all."""
        for transaction in list(self._unfinished.get(owner, ())):
            self.abort(transaction)
            self._complete(transaction)

    def is_fenced(self, owner: str, epoch: int) -> bool:
        return self._epochs[owner] != epoch

    def begin(self, owner: str) -> FakeTransaction:
        transaction = FakeTransaction(owner, self.timeline.now_ms)
        self._unfinished.setdefault(owner, []).append(transaction)
        self.timeline.at(self.timeline.now_ms + self.transaction_timeout_ms, lambda: self.abort(transaction))
        return transaction

    def send_offsets(self, transaction: FakeTransaction, group: str, progress: dict[TimerPartition, Progress]) -> None:
        transaction.position = next(self._positions)
        transaction.offsets = {(group, timer_partition): reached for timer_partition, reached in progress.items()}

    def commit(self, transaction: FakeTransaction) -> None:
        """Commit at once. Records become visible at once or, by partition, a little later."""
        if transaction.state is not State.OPEN:
            return
        transaction.state = State.COMMITTED
        self.commits.append(transaction)
        if not draw(self.rng, 0.15):
            self._complete(transaction)
            return
        for log in transaction.partitions:
            if draw(self.rng, 0.5):
                log.end_transaction(transaction, self.timeline.now_ms + log.skew_ms)
        seen_ms = self.timeline.now_ms + 1 + self._below(self.marker_lag_ms)
        self.timeline.at(seen_ms, lambda: self._complete(transaction))

    def abort(self, transaction: FakeTransaction) -> None:
        if transaction.state is State.OPEN:
            transaction.state = State.ABORTED
            self._complete(transaction)

    def leave_in_flight(self, transaction: FakeTransaction) -> None:
        """Let the commit of a client that died arrive now, later or never."""
        if draw(self.rng, 0.3):
            self.commit(transaction)
        elif draw(self.rng, 0.5):
            arrives_ms = self.timeline.now_ms + self._below(self.transaction_timeout_ms)
            self.timeline.at(arrives_ms, lambda: self.commit(transaction))

    def _complete(self, transaction: FakeTransaction) -> None:
        """Write the missing markers, the one of the offsets last."""
        if transaction not in self._unfinished[transaction.owner]:
            return
        self._unfinished[transaction.owner].remove(transaction)
        for log in transaction.partitions:
            log.end_transaction(transaction, self.timeline.now_ms + log.skew_ms)
        if transaction.state is State.COMMITTED:
            for place, reached in transaction.offsets.items():
                if place not in self._offsets or transaction.position > self._offsets[place][0]:
                    metadata = reached.metadata()
                    assert len(metadata) <= MAX_METADATA_CHARACTERS
                    self._offsets[place] = (transaction.position, reached.next_offset, metadata)

    # -- questions of a client that starts

    def stable_offset(self, group: str, timer_partition: TimerPartition) -> tuple[int, str | None] | None:
        """Return the committed offset and its metadata, after no transaction can change it any more."""
        while not self.is_stable(group, timer_partition):
            assert self.timeline.run_next(), "an open transaction without an end"
        found = self._offsets.get((group, timer_partition))
        return None if found is None else found[1:]

    def is_stable(self, group: str, timer_partition: TimerPartition) -> bool:
        """Return True if no transaction can change the committed offset any more."""
        return not any((group, timer_partition) in t.offsets for each in self._unfinished.values() for t in each)

    def commit_offset(
        self, group: str, timer_partition: TimerPartition, offset: int, metadata: str | None = None
    ) -> None:
        """Commit an offset as another client does: an operator, or a consumer with our group id."""
        self._offsets[group, timer_partition] = (next(self._positions), offset, metadata)

    def expire_offset(self, group: str, timer_partition: TimerPartition) -> None:
        """Forget a committed offset, as a broker does some time after the group's last member has left."""
        del self._offsets[group, timer_partition]

    def wait_readable(self, log: Partition, end: int) -> None:
        """Wait until no transaction is open below `end`."""
        while log.last_stable < end:
            assert self.timeline.run_next(), "an open transaction without an end"

    def _below(self, most: int) -> int:
        return self.rng.randrange(most) if self.rng is not None else 0


def draw(rng: Random | None, chance: float) -> bool:
    return rng is not None and rng.random() < chance


class FakeGroup:
    """Members and the owner of each partition. Every change of an owner begins a new generation.

    A partition is revoked when its owner polls, and assigned to another member after that. A member whose session has
    timed out (`expire`) notices it later; another member may own its partitions by then.
    """

    def __init__(self, name: str, partitions: Sequence[TimerPartition]) -> None:
        self.name = name
        self.generation = 0
        self.wanted: dict[TimerPartition, str | None] = dict.fromkeys(partitions)
        self.owner: dict[TimerPartition, str | None] = dict.fromkeys(partitions)
        self.members: list[str] = []
        self._joined: Counter[str] = Counter()

    def join(self, name: str) -> str:
        """Return the new member's id: `name`, or if it was used before, `name#1`, `name#2` ..."""
        member = f"{name}#{self._joined[name]}" if self._joined[name] else name
        self._joined[name] += 1
        self.members.append(member)
        self._rebalance()
        return member

    def expire(self, member: str) -> None:
        """Remove a member at once, without a notice to it. A clean leave calls this too."""
        if member not in self.members:
            return
        self.members.remove(member)
        for partition, owner in self.owner.items():
            if owner == member:
                self.owner[partition] = None
        self._rebalance()

    def add(self, partitions: Sequence[TimerPartition]) -> None:
        """Add partitions of a topic that has grown."""
        self.wanted |= dict.fromkeys(partitions)
        self.owner |= dict.fromkeys(partitions)
        self._rebalance()

    def move(self, partition: TimerPartition, member: str) -> None:
        """Make the assignor assign `partition` to `member`."""
        self.wanted[partition] = member

    def has_change(self, member: str, held: set[TimerPartition]) -> bool:
        """Return True if `serve` would change ownership."""
        return member not in self.members or any(self._changes(member, held))

    def serve(self, member: str, held: set[TimerPartition]) -> tuple[list[TimerPartition], list[TimerPartition]]:
        """Return the partitions that `member` gives up and those that it gets."""
        revoked, assigned = self._changes(member, held)
        self.owner |= dict.fromkeys(revoked) | dict.fromkeys(assigned, member)
        if revoked or assigned:
            self.generation += 1
        return revoked, assigned

    def _changes(self, member: str, held: set[TimerPartition]) -> tuple[list[TimerPartition], list[TimerPartition]]:
        revoked = sorted(partition for partition in held if self.wanted[partition] != member)
        return revoked, sorted(s for s in self.wanted if self.wanted[s] == member and self.owner[s] is None)

    def accepts(self, group_metadata: object) -> bool:
        """Return True if the coordinator accepts offsets with this group metadata."""
        return group_metadata in [(member, self.generation) for member in self.members]

    def _rebalance(self) -> None:
        self.generation += 1
        load: dict[str, list[TimerPartition]] = {member: [] for member in self.members}
        homeless: list[TimerPartition] = []
        for partition, member in self.wanted.items():
            load.get(member or "", homeless).append(partition)
        for partition in homeless:
            if load:
                load[min(load, key=lambda m: len(load[m]))].append(partition)
        while load and max(map(len, load.values())) - min(map(len, load.values())) > 1:
            most, least = (pick(load, key=lambda m: len(load[m])) for pick in (max, min))
            load[least].append(load[most].pop())
        self.wanted = dict.fromkeys(self.wanted) | {s: m for m, own in load.items() for s in own}


@dataclass(eq=False, repr=False)
class FakePort:
    """What ports of one process share. A step of a call may end the process (`fuse`); `meanwhile`, others may act."""

    kafka: FakeKafka
    group: FakeGroup
    _: KW_ONLY
    fuse: Fuse = field(default_factory=Fuse)
    rng: Random | None = None
    meanwhile: Callable[[str], None] = nothing_happens

    def step(self, where: str) -> None:
        self.fuse.step(where)
        self.meanwhile(where)
