"""One target whose timers wait, and its ranges of pending keys."""

from dataclasses import dataclass, field

from schemas.journal import END, Wait
from schemas.progress import Key
from timer.format.unit import NO_ROWS, Rows, topic_hash
from timer.schedule.pending_keys import KeyRanges, in_key_ranges
from timer.schedule.row_queue import RowQueue

_MAX_KEY_RANGES = 32


@dataclass(slots=True)
class KeyRange:
    """Pending keys (after, until] of one target. All of its rows with keys (after, covered] are in `queue`."""

    after: Key
    until: Key
    covered: Key
    queue: RowQueue = field(default_factory=RowQueue)

    @classmethod
    def of(cls, after: Key, until: Key) -> "KeyRange":
        return cls(after, until, after)

    @property
    def is_drained(self) -> bool:
        return self.covered >= self.until and len(self.queue) == 0

    def first_visit_ms(self) -> int | None:
        """Return the first wake-up time of the loaded rows."""
        return self.queue.next_visit_ms()

    def take(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        rows = self.queue.take(now_ms, limit, limit_bytes) if limit > 0 else NO_ROWS
        if len(rows):
            self.after = last_key(rows)
        return rows


def last_key(rows: Rows) -> Key:
    return Key(int(rows["visit_ms"][-1]), int(rows["origin"][-1]))


class WaitingTarget:
    """One target with its key ranges, ascending; the last range has no end."""

    def __init__(self, target: str, ranges: list[KeyRange], *, is_paused: bool) -> None:
        self.target = target
        self.hash = topic_hash(target)
        self.ranges = ranges
        self.is_paused = is_paused
        self._asleep_as: Wait | None = None
        """Cached state while the target sleeps, as nothing of it changes then."""
        self._fresh_credit = 0.0
        """Fractions of timers that the fresh ones may still take."""

    def key_ranges(self) -> KeyRanges:
        return (
            [(each.after, each.until) for each in self.ranges] if self._asleep_as is None else self._asleep_as.stretches
        )

    def wait(self) -> Wait:
        return self._asleep_as or Wait(self.target, self.is_paused, tuple(self.key_ranges()))

    def sleep(self) -> None:
        self._asleep_as = self.wait()

    def wake(self) -> None:
        self._asleep_as = None

    def heads(self) -> list[KeyRange]:
        """Return the key ranges that are served: the oldest and the newest."""
        return self.ranges[:1] if len(self.ranges) == 1 else [self.ranges[0], self.ranges[-1]]

    def first_visit_ms(self) -> int | None:
        """Return the first wake-up time of the loaded rows."""
        found = [first_ms for each in self.heads() if (first_ms := each.first_visit_ms()) is not None]
        return min(found, default=None)

    def push(self, run: Rows) -> None:
        """Add rows of this target that were just stored, if their keys are in the part that is loaded."""
        for each in self.ranges:
            if each.covered > each.after:
                each.queue.push(run[in_key_ranges(run, [(each.after, each.covered)])])

    def split_fresh(self, now_ms: int, fresh_ms: int) -> None:
        """Give fresh timers a key range of their own if the last range has waited longer than `fresh_ms`."""
        last = self.ranges[-1]
        oldest_ms = last.first_visit_ms()
        is_behind = oldest_ms is not None and oldest_ms < now_ms - fresh_ms
        if not is_behind or len(self.ranges) >= _MAX_KEY_RANGES:
            return
        start = Key(now_ms - fresh_ms // 2, -1)
        if start <= last.after:
            return
        self.ranges[-1:] = [KeyRange.of(last.after, start), KeyRange.of(start, END)]
        if len(self.ranges) > 2 and self.ranges[-3].until == self.ranges[-2].after:
            joined = self.ranges[-3:-1]
            self.ranges[-3:-1] = [KeyRange.of(joined[0].after, joined[1].until)]

    def drop_until(self, before_ms: int, now_ms: int) -> None:
        """Move the first key range to `before_ms` if nothing before is pending, so that files can be deleted."""
        first, before = self.ranges[0], Key(before_ms, -1)
        oldest_ms = first.first_visit_ms()
        is_gone = before <= min(first.covered, first.until) and (oldest_ms is None or oldest_ms > before_ms)
        if is_gone and first.after.visit_ms < before_ms - (now_ms - before_ms):
            first.after = before

    def fresh_part(self, allowed: int, share: float) -> int:
        """Return how many of `allowed` are for fresh timers."""
        self._fresh_credit = min(self._fresh_credit + allowed * share, float(allowed))
        part = int(self._fresh_credit)
        self._fresh_credit -= part
        return part
