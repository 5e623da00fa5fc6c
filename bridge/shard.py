"""One shard between two commits: what it has read, stored and taken out, and what of it the next transaction carries.

take_in(records) -> find_due(now) -> news() -> transaction -> committed() | thrown away with the shard
"""

from dataclasses import dataclass, field
from operator import itemgetter

from bridge.delivery import deliver, park, refuse
from bridge.intake import intake
from bridge.options import TurnOptions
from bridge.ports import Outgoing, Record
from schemas.headers import Refusal
from schemas.journal import JournalRecord
from schemas.origin import Shard
from schemas.progress import Progress
from timer.disk import Disk
from timer.record import Body
from timer.store import Due, Store

_BY_DUE_THEN_REQUEST = itemgetter(Body._fields.index("due_ms"), Body._fields.index("offset"))


@dataclass(slots=True)
class Staged:
    """What became of requests and timers since the last commit."""

    bodies: list[Body] = field(default_factory=list)
    parked: dict[int, Refusal] = field(default_factory=dict)
    """By row of `bodies`: those that their target will not take."""
    refused: list[tuple[Record, Refusal]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    due: list[Due] = field(default_factory=list)


class OwnedShard:
    """A shard that is ours, with its store open."""

    def __init__(self, shard: Shard, disk: Disk, store: Store, options: TurnOptions) -> None:
        self.shard = shard
        self.disk = disk
        self.store = store
        self.committed_progress = store.progress()
        self.backlog: list[Record] = []
        """Read, but not taken in: the disk or the wheel is full."""
        self._options = options
        self._staged = Staged()
        self._dirty_since_ms: int | None = None

    def take_in(self, records: list[Record], now_ms: int) -> None:
        """Puts `records` where they belong. Raises OSError or WheelFullError; then they wait in `backlog`."""
        self.backlog += records
        if not self.backlog:
            return
        taken = intake(self.backlog, self.store.settled, now_ms, self._options.rules)
        self.store.add(taken.batch, self.backlog[-1].offset + 1)
        self.backlog = []
        self._staged.bodies += taken.late
        self._staged.refused += taken.refused
        self._staged.held += taken.held
        if self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms

    def find_due(self, now_ms: int) -> None:
        """Takes out what leaves now."""
        room = self._options.max_due_records - len(self._staged.bodies)
        if room <= 0:
            return
        due = self.store.due(now_ms, room, self._options.max_due_bytes)
        if len(due):
            self._staged.bodies += self.store.bodies(due.rows) + self.store.bodies(due.released)
            self._staged.due.append(due)

    def is_urgent(self, now_ms: int) -> bool:
        """Something is to be published, or stored requests have waited long enough for their commit."""
        staged = self._staged
        if staged.bodies or staged.refused:
            return True
        return self._dirty_since_ms is not None and now_ms - self._dirty_since_ms >= self._options.commit_interval_ms

    def has_news(self) -> bool:
        return bool(self._staged.bodies or self._staged.refused) or self._dirty_since_ms is not None

    def next_look_ms(self, until_ms: int) -> int:
        """When something is to be done without a new message, at the latest `until_ms`."""
        looks = [until_ms]
        visit_ms = self.store.next_visit_ms(until_ms)
        if visit_ms is not None:
            looks.append(visit_ms)
        if self._dirty_since_ms is not None:
            looks.append(self._dirty_since_ms + self._options.commit_interval_ms)
        return min(looks)

    def outgoing(self, now_ms: int) -> list[Outgoing]:
        """Deliveries in order of due time, those parked in their place; then the refused."""
        staged, shard, topic = self._staged, self.shard, self._options.rejected_topic
        if not staged.parked:
            staged.bodies.sort(key=_BY_DUE_THEN_REQUEST)
        records = [deliver(shard, body, now_ms) for body in staged.bodies]
        for row, refusal in staged.parked.items():
            records[row] = park(topic, shard, staged.bodies[row], refusal, now_ms)
        records += [refuse(topic, shard, record, refusal, now_ms) for record, refusal in staged.refused]
        return records

    def park(self, row: int, code: str) -> bool:
        """The broker refuses the record at `row` of `outgoing`. False where it was bound for the rejected topic."""
        if row >= len(self._staged.bodies) or row in self._staged.parked:
            return False
        target = self._staged.bodies[row].target
        self._staged.parked[row] = Refusal(code, f"topic {target} does not take it: mend the topic, then send it again")
        return True

    def journal(self, progress: Progress) -> JournalRecord | None:
        """What the rule alone cannot tell again; None where the transaction reads nothing and makes no exception."""
        staged = self._staged
        released = [int(origin) for due in staged.due for origin in due.released["origin"]]
        if progress.next_offset == self.committed_progress.next_offset and not released:
            return None
        return JournalRecord(
            from_offset=self.committed_progress.next_offset,
            next_offset=progress.next_offset,
            rules=self._options.rules,
            refused=tuple(record.offset for record, _ in staged.refused),
            held=tuple(staged.held),
            released=tuple(released),
        )

    def committed(self, progress: Progress) -> None:
        """The transaction stands."""
        for due in self._staged.due:
            self.store.committed(progress, due)
        if not self._staged.due:
            self.store.committed(progress, Due.none())
        self.committed_progress = progress
        self._staged = Staged()
        self._dirty_since_ms = None
