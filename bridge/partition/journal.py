"""The journal of a partition: the group that owns it, and its decisions about the requests that a recovery reads again.

Two groups with one journal would deliver every message twice.

    [claim A] [claim B] [A] [A] [A]      A owns it: its claim is the first. B reads that back, and refuses to start
              ...no key...               written by an older bridge, which sets no key

A record's Kafka key names its group and timer topic. A group that finds no record of its own claims the partition: it
writes a record that decides nothing, in a transaction without deliveries. Only the group of the first claim goes on and
writes decisions. The owner is therefore the group of the newest decision, or else of the first claim. All groups find
the same owner, because a committed record is visible only when all records before it are decided. If two groups start
at once on an empty journal of several partitions, each may have the first claim of one: then both refuse.

decide --BatchChanges.decisions--> Draft.decisions --journal_fields--> JournalRecord --Decisions--> replay at a start
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from bridge.errors import BridgeError, ForeignJournalError, PartitionUnreadableError
from bridge.partition.options import TurnOptions
from bridge.ports import History, Record
from kafka_timer.headers import Refusal
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight, Decisions, JournalRecord, Wait
from schemas.progress import Progress
from schemas.receipts import Kind
from timer.format.checkpoint import Checkpoint

_OWNER_LOOK_BACK = (20, 1000)
"""Offsets read from the end of a journal: 1,000 only if 20 show no decision. Each commit also leaves a marker."""


def owners(partitions: Sequence[TimerPartition], history: History) -> dict[TimerPartition, bytes]:
    """Return the key of the group that owns each partition's journal, unless the journal ends with no key."""
    found: dict[TimerPartition, bytes] = {}
    claimed: dict[TimerPartition, bytes] = {}
    for look_back in _OWNER_LOOK_BACK:
        left = [partition for partition in partitions if partition not in found]
        for partition, records in history.journal_tails(left, look_back).items() if left else ():
            for key, value in reversed(records):
                if key is not None and _is_claim(value):
                    claimed[partition] = key
                elif key is not None:
                    found[partition] = key
                    break
    return claimed | found


def _is_claim(value: bytes) -> bool:
    try:
        return JournalRecord.from_bytes(value).is_claim
    except ValueError:  # written by a newer bridge
        return False


def ours(partitions: Sequence[TimerPartition], history: History, journals: Callable[[str], str]) -> set[TimerPartition]:
    """Return the partitions whose journal our group is known to own. Raises ForeignJournalError if another owns one."""
    found = owners(partitions, history)
    for partition, key in found.items():
        if key != (own := history.journal_key(partition)):
            raise ForeignJournalError(
                f"{partition}: the journal {journals(partition.topic)} belongs to '{key.decode(errors='replace')}'"
                f" (group and timer topic), this bridge is '{own.decode()}': two groups deliver every message twice;"
                f" start it with the same --group, or, if both groups are to deliver every message, with another"
                f" --journal-topic"
            )
    return set(found)


@dataclass(eq=False)
class JournalOwnerCheck:
    """Checks that the journals of `partitions()` still belong to our group. journals: journal topic by timer topic."""

    _history: History
    _journals: Mapping[str, str]
    _partitions: Callable[[], Iterable[TimerPartition]]

    def __post_init__(self) -> None:
        self._ends: dict[TimerPartition, int] = {}

    def check(self) -> None:
        """Read the ends of the journals that have grown since the last check. Raises ForeignJournalError."""
        ends = self._history.journal_ends(list(self._partitions()))
        grown = [partition for partition, end in ends.items() if self._ends.get(partition) != end]
        ours(grown, self._history, self._journals.__getitem__)
        self._ends = ends


_LOOK_BACK = 1000
"""Offsets read from the end of a topic for its last record, before all of it is read."""


def parse_record(partition: TimerPartition, value: bytes) -> JournalRecord:
    try:
        return JournalRecord.from_bytes(value)
    except ValueError as wrong:
        raise BridgeError(
            f"{partition}: a record of the journal was written by a newer bridge, or by none: upgrade this one"
        ) from wrong


@dataclass(frozen=True)
class JournalReader:
    """For a recovery of one partition to `progress`."""

    _partition: TimerPartition
    _history: History
    _options: TurnOptions
    _progress: Progress

    def since(self, found: Checkpoint) -> Decisions | None:
        """Return the decisions after a checkpoint; None if the journal does not continue there: it is another one."""
        known = (found.held, found.flights, found.progress.next_offset, found.waits)
        decisions = Decisions(self._records(found.journal_offset), *known)
        return decisions if self._covers(decisions, found.progress.next_offset) else None

    def for_rebuild(self) -> Decisions:
        """Return the decisions on all that may be pending. Raises BridgeError, before any change, if they are lost."""
        first, _ = self._history.bounds(self._partition)
        for since_ms in (self._since_ms(), None):  # the whole journal if brokers' clocks differed by more
            decisions = Decisions(self._records(None, since_ms), waits=self._last_waits())
            if self._covers(decisions, max(first, self._progress.low_offset)):
                return decisions
        raise BridgeError(
            f"{self._partition}: the journal does not cover what may be pending from offset"
            f" {self._progress.low_offset} on: it was deleted, or its retention is shorter than the timer topic's. It"
            f" is unknown what was cancelled or delivered. Go on as after lost progress, and keep the directories:"
            f" `timer-bridge export` first, delete the group's offset of {self._partition}, start with --adopt-progress"
        )

    def _covers(self, decisions: Decisions, start: int) -> bool:
        """True if the journal covers the requests from `start` to C. Its ranges are contiguous."""
        return start >= self._progress.next_offset or decisions.rules_from(start)[0] is not None

    def _records(self, from_offset: int | None, since_ms: int | None = None) -> Iterator[JournalRecord]:
        for value in self._history.journal(self._partition, from_offset=from_offset, since_ms=since_ms):
            yield parse_record(self._partition, value)

    def _last_waits(self) -> tuple[Wait, ...]:
        """Return the waiting targets of the journal's last record. A paused target may have no timers."""
        first, end = self._history.journal_bounds(self._partition)
        for start in (max(first, end - _LOOK_BACK), first):
            last = deque(self._history.journal(self._partition, from_offset=start, since_ms=None), maxlen=1)
            if last:
                return parse_record(self._partition, last[0]).waits
        return ()

    def _since_ms(self) -> int | None:
        """Return the time from which the journal is needed: of L's record, minus the clock skew. None: all of it.

        If no timer is pending, copies may still be in flight, hidden by a transaction that hangs. They were written
        after the last record that can be read.
        """
        low = self._progress.low_offset
        first, end = self._history.bounds(self._partition)
        for start in (low, max(first, low - _LOOK_BACK)):
            try:
                records = next(self._history.requests(self._partition, start, end), None)
            except PartitionUnreadableError as wrong:
                if wrong.undecodable is None:
                    raise
                continue
            if records:
                at_ms = (records[0] if start == low else records[-1]).timestamp_ms
                return max(0, at_ms - self._options.clock_skew_margin_ms)
        return None


class ReceiptDraft(NamedTuple):
    """A receipt to be written. request, origin_offset: offsets (-1: no timer). id: empty if there is none."""

    kind: Kind
    request: int
    origin_offset: int
    id: bytes
    due_ms: int | None = None
    code: str | None = None


@dataclass(slots=True)
class NewDecisions:
    """Decisions that are not written yet: the lists of schemas.journal. Numbers are origins; `dropped` are copies."""

    refused: list[tuple[Record, Refusal]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    rolled: list[CopyInFlight] = field(default_factory=list)
    landed: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    receipts: list[ReceiptDraft] = field(default_factory=list)
    """Receipts of requests. The draft makes receipts of timers that leave when it is published."""

    def __bool__(self) -> bool:
        return self.count() > 0

    def add(self, later: "NewDecisions") -> None:
        """Add later decisions. A moved copy may be read before the draft is frozen: the journal says `landed` alone."""
        if landed := set(later.landed):
            self.rolled = [flight for flight in self.rolled if (flight.origin_offset, flight.rolls) not in landed]
        for each in fields(self):
            getattr(self, each.name).extend(getattr(later, each.name))

    def count(self) -> int:
        return sum(len(getattr(self, each.name)) for each in fields(self))

    def count_of_requests(self) -> int:
        """Return how many numbers the journal record needs for requests that were taken in."""
        return len(self.landed) + len(self.dropped) + len(self.held) + len(self.ended)

    def journal_fields(self) -> dict[str, Any]:
        """Return the fields of the same names of a JournalRecord."""
        refused = tuple(record.offset for record, _ in self.refused)
        same = ("ended", "rolled", "landed", "dropped", "held", "released")
        return {"refused": refused} | {name: tuple(getattr(self, name)) for name in same}
