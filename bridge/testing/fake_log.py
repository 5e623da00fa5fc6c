"""The log of one partition of the fake Kafka: records, markers and open transactions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bridge.ports import Record
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.progress import Progress


class State(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class FakeTransaction:
    """A transaction of the client `owner`. `note` is free for the test."""

    owner: str
    epoch: int
    number: int
    begun_ms: int = 0
    state: State = State.OPEN
    touched: "list[Partition]" = field(default_factory=list)
    offsets: dict[tuple[str, TimerPartition], Progress] = field(default_factory=dict)
    position: int = -1
    records: "list[tuple[Partition, Entry]]" = field(default_factory=list)
    """Written records, in the order of the calls."""
    finished: bool = False
    """True if it is decided and every marker is written."""
    note: object = None


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


class Partition:
    """A partition's log: entries from `first` on, and its open transactions."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.first = 0
        self.skew_ms = 0
        """How far the leader's clock is ahead."""
        self._entries: list[Entry] = []
        self.open: dict[FakeTransaction, int] = {}

    @property
    def end(self) -> int:
        return self.first + len(self._entries)

    @property
    def last_stable(self) -> int:
        """The offset up to which read_committed consumers may read."""
        return min(self.open.values()) if self.open else self.end

    def append(self, entry: Entry) -> Entry:
        entry.offset = self.end
        transaction = entry.transaction
        if transaction is not None and not entry.is_marker and self not in transaction.touched:
            transaction.touched.append(self)
            self.open[transaction] = entry.offset
        self._entries.append(entry)
        return entry

    def end_transaction(self, transaction: FakeTransaction, now_ms: int) -> None:
        if self.open.pop(transaction, None) is not None:
            self.append(Entry(-1, now_ms, now_ms, None, None, (), transaction, is_marker=True))

    def committed(self, start: int, end: int) -> Iterator[Entry]:
        """Yield the committed records of [start, end). `end`: at most the last stable offset."""
        for entry in self._entries[max(0, start - self.first) : max(0, end - self.first)]:
            stands = entry.transaction is None or entry.transaction.state is State.COMMITTED
            if stands and not entry.is_marker:
                yield entry

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
