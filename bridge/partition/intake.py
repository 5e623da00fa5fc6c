"""Take polled records of one partition into its store and its draft, part by part.

    backlog --first part--> BatchIntake --> store.add --> draft          repeated up to an IntakeStop

A part ends with a move, or when the wheel is full: a batch that spans more than a lap is taken in by parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from bridge.partition.copies import CopiesInFlight, copy_of
from bridge.partition.decide import BatchIntake
from bridge.partition.decisions import Intake
from bridge.partition.draft import Draft
from bridge.partition.due_timers import DueTimers
from bridge.partition.ids import RecentlyDelivered
from bridge.partition.limits import Quota, TargetGate
from bridge.partition.options import TurnOptions
from bridge.partition.request import RequestBatch, batch_length, needing_no_room
from bridge.ports import Record
from kafka_timer.origin import Shard
from schemas.receipts import is_sent
from timer.disk import Disk
from timer.errors import WheelFullError
from timer.format.body import Body, frame_size
from timer.store import Store


class IntakeStop(Enum):
    """Why intake stopped before the last record that it was given.

    DISK_FULL, WHEEL_FULL and TOO_MANY_HELD outlast a turn: their values are the reasons in status and metrics.
    """

    DISK_FULL = "disk"
    WHEEL_FULL = "wheel"
    TOO_MANY_HELD = "held"
    TRANSACTION_FULL = "transaction"
    """The next transaction has no room for more moves: intake goes on after its commit."""
    UNDECIDED = "undecided"
    """A request names a timer of a transaction in flight, or an origin while there is one: wait for its outcome."""


class IntakeOutcome(NamedTuple):
    """taken: number of records taken in, copies of rolled or moved timers too. detail: of `stop`, for operators."""

    taken: int
    stop: IntakeStop | None = None
    detail: str = ""


@dataclass(eq=False)
class PartitionIntake:
    """Intake of one open partition. Each call gets a draft, as the partition freezes one and begins another."""

    _shard: Shard
    _disk: Disk
    _store: Store
    _flights: CopiesInFlight
    _recently: RecentlyDelivered
    _due: DueTimers
    options: TurnOptions
    _least_free_bytes: Callable[[Shard], int]

    def __post_init__(self) -> None:
        self.backlog: list[Record] = []
        """Polled, but not taken in, because of a rate or a full disk, wheel or transaction."""
        self.newest_ms = 0
        """Timestamp of the newest request, by the brokers' clocks."""
        self.is_transaction_full = False
        self._overdue: dict[int, Body] = {}
        """Overdue timers of a part of the backlog, while the rest waits for the outcome of a transaction."""

    def take_in(
        self,
        records: list[Record],
        draft: Draft,
        leaving: Sequence[frozenset[bytes]],
        now_ms: int,
        most: int | None = None,
    ) -> IntakeOutcome:
        """Take in `records` after the backlog, at most `most` records in all (None: any number).

        leaving: ids of the timers of each transaction in flight. After IntakeStop.UNDECIDED, call again without records
        when no transaction is in flight.
        """
        self.backlog += records
        if records:
            self.newest_ms = max(self.newest_ms, records[-1].timestamp_ms)
        before = len(self.backlog)
        self.is_transaction_full = False
        try:
            stop, detail = self._take_in_backlog(draft, leaving, now_ms, before if most is None else min(most, before))
        except OSError as error:
            stop, detail = IntakeStop.DISK_FULL, str(error)
        if stop is not IntakeStop.UNDECIDED:
            overdue, self._overdue = self._overdue, {}
            self._due.leave(draft, list(overdue.values()), now_ms)
        return IntakeOutcome(before - len(self.backlog), stop, detail)

    def _take_in_backlog(
        self, draft: Draft, leaving: Sequence[frozenset[bytes]], now_ms: int, left: int
    ) -> tuple[IntakeStop | None, str]:
        """Take in the first `left` records of the backlog.

        Moves may fill half of a transaction; the rest is for due timers. If the disk is full, requests that store no
        body (cancels) are still taken, in order, up to the first request that stores one.
        """
        no_room = self._no_room()
        if no_room:
            left = needing_no_room(self.backlog[:left], self.options.rules)
        if self.backlog and (too_many := self._due.too_many_held):
            return IntakeStop.TOO_MANY_HELD, too_many
        count, rolling = left, self._rolling(draft)
        while left and not self._has_moved_enough(draft):
            count = min(count, left)
            part = self.backlog[:count]
            del part[batch_length(part) :]
            requests = RequestBatch(part, self.options.rules)
            if not all(ids.isdisjoint(requests.ids) for ids in leaving) or (leaving and requests.origin is not None):
                return IntakeStop.UNDECIDED, ""
            try:
                self._take_in_part(requests, draft, rolling, now_ms)
            except WheelFullError as full:
                if count == 1:
                    return IntakeStop.WHEEL_FULL, str(full)
                count //= 2
            else:
                left -= len(part)
        self.is_transaction_full = left > 0
        if no_room and self.backlog:
            return IntakeStop.DISK_FULL, no_room
        return (IntakeStop.TRANSACTION_FULL if left else None), ""

    def _no_room(self) -> str:
        """Return the reason if the disk has no room for bodies, else an empty text."""
        least = self.options.min_free_bytes
        if self.backlog and (free := self._disk.free_bytes()) < least and free < self._least_free_bytes(self._shard):
            return f"{free} bytes are free, min_free_bytes is {least}"
        return ""

    def _has_moved_enough(self, draft: Draft) -> bool:
        return 2 * len(draft.copies) >= self.options.max_due_records or (
            bool(draft.copies) and 2 * draft.size_bytes >= self.options.max_due_bytes
        )

    def _rolling(self, draft: Draft) -> int:
        """Return the number of drafted copies that are not in `flights` yet."""
        return sum((flight.origin_offset, flight.rolls) not in self._flights for flight in draft.decisions.rolled)

    def _take_in_part(self, requests: RequestBatch, draft: Draft, rolling: int, now_ms: int) -> None:
        """Take in the first records of the backlog. Raises OSError and WheelFullError before anything has changed."""
        queue, queries = self._store.release_queue, self._store.queries
        targets = TargetGate(queue, queries, self._due.limits, now_ms)
        taken = BatchIntake(
            *(queries, queue, self._flights, self._recently, self.options, targets, now_ms),
            quota=self._quota(rolling),
            overdue=self._overdue,
        ).take_in(requests)
        (last, _), count = requests.asked[-1], len(requests.asked)
        self._store.add(taken.batch, last.offset + 1)
        targets.charge()
        del self.backlog[:count]
        self._overdue = taken.overdue
        self._recently.forget(taken.ended_ids)
        self._apply(taken, draft, now_ms)
        draft.requests += count - len(taken.decisions.landed)

    def _quota(self, rolling: int) -> Quota:
        """Return what may still be pending. Overdue timers count; copies in flight count as timers, not as bytes."""
        quota, options, store = Quota(), self.options, self._store
        if options.max_pending is not None:
            uncounted = self._flights.alive_count + len(self._overdue) + rolling
            quota.timers = options.max_pending - store.pending - uncounted
        if options.max_pending_bytes is not None:
            uncounted = sum(map(frame_size, self._overdue.values()))
            quota.size_bytes = options.max_pending_bytes - store.queries.pending_bytes - uncounted
        return quota

    def _apply(self, taken: Intake, draft: Draft, now_ms: int) -> None:
        """Add the decisions to the draft, and bring the copies in flight up to date: the next request may name them."""
        decisions = taken.decisions
        self._flights.land(decisions.landed)
        if landed := set(decisions.landed):
            # A moved copy may be read before the draft is frozen. The journal then says `landed` alone.
            rolled = draft.decisions.rolled
            draft.decisions.rolled = [flight for flight in rolled if (flight.origin_offset, flight.rolls) not in landed]
        self._flights.end(decisions.ended)
        for body, due_ms in taken.moved.values():
            copy = copy_of(self._shard, body, now_ms, moved_ms=due_ms)
            draft.add_copy(copy)
            self._flights.stage(copy.flight)
        self._flights.depart(decisions.rolled)
        decisions.receipts = [each for each in decisions.receipts if is_sent(each.kind, self.options.receipts)]
        draft.decisions.add(decisions)
