"""Backlogs of targets that are paused or over their rate. All other targets go on.

    keys of one target    1 2 3 4 5 6 7 8 9          K = 8: all other targets have left up to 8
    left already          x x . . . x . . .
    key ranges                (2   5] (6 ...         rows in a key range are pending, whatever K says
                              oldest  recent         each range is served from its beginning

The key ranges are the whole state of a backlog (schemas.journal.Wait), however many timers wait. The timers stay in the
wheel's chains; at most `_MAX_ROWS` of the first and the last range are loaded ahead. Targets are told apart by the hash
of their names, as in the units: two names with the same Java hash code wait together.

A paused target sleeps until its next timer wakes up or the first waiting one must roll, so that a turn looks at few
targets however many are paused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from schemas.journal import END, Wait
from schemas.progress import Key
from timer.format.unit import NO_ROWS, Ints, Rows, intersect, isin, topic_hash
from timer.maintenance.startup_scan import KeyRanges, in_key_ranges
from timer.schedule.due_queue import DueQueue, in_order

_MAX_ROWS = 4096
_MAX_KEY_RANGES = 32
MAX_EXTRA_KEY_RANGES = 4096
"""Key ranges beyond the first of each target, over all targets: each journal record names them all."""
_MAX_TICKS = 64
_MAX_CACHED_ROWS = 1 << 18
_MAX_WOKEN = 64


class Gate(Protocol):
    """How many timers of each target may leave now."""

    def allowance(self, target: str) -> int | None:
        """Return how many may leave; None: any number."""
        ...

    def spend(self, target: str, timers: int) -> None:
        """Count `timers` that leave now."""
        ...

    def fresh(self, target: str) -> tuple[float, int]:
        """Return the share of the rate for timers that fell due within the last ms, and those ms."""
        ...


class OpenGate:
    """A gate without limits."""

    def allowance(self, target: str) -> int | None:
        del target
        return None

    def spend(self, target: str, timers: int) -> None:
        """Do nothing."""

    def fresh(self, target: str) -> tuple[float, int]:
        del target
        return 0.0, 0


OPEN = OpenGate()


@dataclass(slots=True)
class KeyRange:
    """Pending keys (after, until] of one target. All of its rows with keys (after, covered] are in `queue`."""

    after: Key
    until: Key
    covered: Key
    queue: DueQueue = field(default_factory=DueQueue)

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


class LoadedTicks:
    """The ticks that one turn loads, each once for all targets."""

    def __init__(self, load: Callable[[int], Rows]) -> None:
        self._load = load
        self._rows: dict[int, Rows] = {}
        self._large: tuple[int, Rows] = -1, NO_ROWS
        self._kept = 0
        self._left = _MAX_TICKS

    def get(self, tick: int) -> Rows | None:
        """Return the rows of a tick, None if this turn has loaded enough ticks."""
        rows = self._large[1] if tick == self._large[0] else self._rows.get(tick)
        if rows is None and self._left > 0:
            rows = self._load(tick)
            self._left -= 1
            if self._kept + len(rows) <= _MAX_CACHED_ROWS:
                self._rows[tick] = rows
                self._kept += len(rows)
            else:  # the last one, as the next target asks for the same
                self._large = tick, rows
        return rows


class WaitingTarget:
    """One target with its key ranges, ascending; the last range has no end."""

    def __init__(self, target: str, ranges: list[KeyRange], *, is_paused: bool) -> None:
        self.target = target
        self.hash = topic_hash(target)
        self.ranges = ranges
        self.is_paused = is_paused
        self._asleep_as: Wait | None = None
        """Cached state while the target sleeps, as nothing of it changes then."""
        self._recent_credit = 0.0
        """Fractions of timers that the recent ones may still take."""

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

    def split_recent(self, now_ms: int, recent_ms: int) -> None:
        """Give recent timers a key range of their own if the oldest of the last range has waited longer."""
        last = self.ranges[-1]
        oldest_ms = last.first_visit_ms()
        is_behind = oldest_ms is not None and oldest_ms < now_ms - recent_ms
        if not is_behind or len(self.ranges) >= _MAX_KEY_RANGES:
            return
        start = Key(now_ms - recent_ms // 2, -1)
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

    def recent_part(self, allowed: int, share: float) -> int:
        """Return how many of `allowed` are for recent timers."""
        self._recent_credit = min(self._recent_credit + allowed * share, float(allowed))
        part = int(self._recent_credit)
        self._recent_credit -= part
        return part


class TargetBacklog:
    """The backlogs of all targets of one store."""

    def __init__(self, waits: Iterable[Wait], tick_ms: int) -> None:
        self._tick_ms = tick_ms
        self._by_hash = {
            topic_hash(wait.target): WaitingTarget(
                wait.target, [KeyRange.of(*span) for span in wait.stretches], is_paused=wait.is_paused
            )
            for wait in waits
        }
        self._asleep: dict[int, tuple[int, bool]] = {}
        """By hash: until when, and whether timers wait."""
        self._now_ms = 0
        self.next_roll_pass_ms = 0
        """When the next pass of rolls of timers that waited too long may begin."""
        self._roll_pass_end = 0
        self._extra_ranges = sum(len(each.ranges) - 1 for each in self._by_hash.values())

    def __iter__(self) -> Iterator[WaitingTarget]:
        return iter(list(self._by_hash.values()))

    def hashes(self) -> list[int]:
        return list(self._by_hash)

    def sleep(self, waiting: WaitingTarget, until_ms: int, *, is_empty: bool) -> None:
        """Skip `waiting` until `until_ms`: nothing of it leaves or rolls before."""
        self._asleep[waiting.hash] = until_ms, not is_empty
        waiting.sleep()

    def wake(self, waiting: WaitingTarget) -> None:
        if self._asleep.pop(waiting.hash, None) is not None:
            waiting.wake()

    def wake_up(self, now_ms: int) -> None:
        """Wake targets whose sleep is over, a limited number each turn; all if the clock went back."""
        is_back, self._now_ms = now_ms < self._now_ms, now_ms
        over = [hash_ for hash_, (until_ms, _) in self._asleep.items() if is_back or until_ms <= now_ms]
        for hash_ in over if is_back else over[:_MAX_WOKEN]:
            self.wake(self._by_hash[hash_])

    def awake(self) -> list[int]:
        """Return hashes of the targets that do not sleep."""
        return [hash_ for hash_ in self._by_hash if hash_ not in self._asleep] if self._asleep else self.hashes()

    def next_roll_ms(self) -> int | None:
        """Return when the first sleeping target with waiting timers wakes up."""
        return min((until_ms for until_ms, has_some in self._asleep.values() if has_some), default=None)

    def by_hash(self, hash_: int) -> WaitingTarget:
        return self._by_hash[hash_]

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, target: str) -> WaitingTarget | None:
        return self._by_hash.get(topic_hash(target))

    def key_ranges(self) -> Mapping[int, KeyRanges]:
        """Return the key ranges by hash of the target."""
        return {hash_: each.key_ranges() for hash_, each in self._by_hash.items()}

    def waits(self) -> tuple[Wait, ...]:
        return tuple(each.wait() for each in self)

    def begin(self, target: str, after: Key, *, is_paused: bool = False) -> WaitingTarget:
        """Start a backlog: timers of `target` with a key above `after` wait."""
        begun = WaitingTarget(target, [KeyRange.of(after, END)], is_paused=is_paused)
        self._by_hash[begun.hash] = begun
        return begun

    def end(self, waiting: WaitingTarget) -> None:
        self.wake(waiting)
        self._extra_ranges -= len(waiting.ranges) - 1
        del self._by_hash[waiting.hash]

    def split_recent(self, waiting: WaitingTarget, now_ms: int, recent_ms: int) -> None:
        """See WaitingTarget. Without room for more key ranges, recent timers wait behind the others."""
        if self._extra_ranges < MAX_EXTRA_KEY_RANGES:
            before = len(waiting.ranges)
            waiting.split_recent(now_ms, recent_ms)
            self._extra_ranges += len(waiting.ranges) - before

    def without(self, run: Rows) -> Rows:
        """Return the rows of `run` whose target has no backlog."""
        found = intersect(self._by_hash, run["topic_hash"]) if self._by_hash else []
        return run[~isin(run["topic_hash"], found)] if found else run

    def push(self, run: Rows) -> None:
        for waiting in self._backlogs_in(run):
            waiting.push(run[run["topic_hash"] == waiting.hash])

    def remove(self, run: Rows) -> None:
        for waiting in self._backlogs_in(run):
            for key_range in waiting.ranges:
                key_range.queue.remove(run["unit"])

    def _backlogs_in(self, run: Rows) -> list[WaitingTarget]:
        """Return the targets with rows in `run`, and wake them."""
        if not self._by_hash:
            return []
        found = [self._by_hash[hash_] for hash_ in intersect(self._by_hash, run["topic_hash"])]
        for waiting in found:
            self.wake(waiting)
        return found

    def repoint(self, units: Ints, bodies: Ints) -> None:
        for each in self:
            for key_range in each.ranges:
                key_range.queue.repoint(units, bodies)

    def start_roll_pass(self, now_ms: int, before_ms: int, units_end: int) -> int:
        """Return the unit below which timers that waited since before `before_ms` roll now.

        A pass ends before the first of its copies, and the next one starts an eighth of the waiting time later. A copy
        has the brokers' timestamp: by a clock far ahead of theirs it would seem as old as before.
        """
        rest_ms = (now_ms - before_ms) // 8
        if not self.next_roll_pass_ms - rest_ms <= now_ms < self.next_roll_pass_ms:
            self.next_roll_pass_ms, self._roll_pass_end = now_ms + rest_ms, units_end
        return self._roll_pass_end

    def oldest_ms(self) -> int | None:
        """Return the first wake-up time from which units are needed."""
        return min((each.ranges[0].after.visit_ms for each in self), default=None)

    def load_ahead(
        self,
        waiting: WaitingTarget,
        until_tick: int,
        next_tick: Callable[[int, int], int | None],
        ticks: LoadedTicks,
    ) -> bool:
        """Load the next rows of key ranges without loaded rows, up to the end of `until_tick`.

        Returns False if this turn has loaded enough ticks before all was loaded.
        """
        is_read = True
        for key_range in waiting.heads():
            is_read &= self._load_ahead(waiting, key_range, until_tick, next_tick, ticks)
        while waiting.ranges[0].is_drained and len(waiting.ranges) > 1:
            del waiting.ranges[0]
            self._extra_ranges -= 1
            is_read &= self._load_ahead(waiting, waiting.ranges[0], until_tick, next_tick, ticks)
        return is_read

    def _load_ahead(
        self,
        waiting: WaitingTarget,
        key_range: KeyRange,
        until_tick: int,
        next_tick: Callable[[int, int], int | None],
        ticks: LoadedTicks,
    ) -> bool:
        end = min(key_range.until, self._end_of(until_tick))
        while len(key_range.queue) == 0 and key_range.covered < end:
            tick = next_tick(self._tick_before(key_range.covered), end.visit_ms // self._tick_ms)
            if tick is None:
                key_range.covered = end
                return True
            rows = ticks.get(tick)
            if rows is None:
                return False
            own = rows[rows["topic_hash"] == waiting.hash]
            own = in_order(own[in_key_ranges(own, [(key_range.covered, key_range.until)])])
            if len(own) > _MAX_ROWS:
                own = own[:_MAX_ROWS]
                key_range.covered = last_key(own)
            else:
                key_range.covered = min(key_range.until, self._end_of(tick))
            key_range.queue.push(own)
        return True

    def _end_of(self, tick: int) -> Key:
        return Key((tick + 1) * self._tick_ms - 1, END.origin)

    def _tick_before(self, covered: Key) -> int:
        """Return the tick after which all rows above `covered` lie."""
        tick = max(covered.visit_ms, -1) // self._tick_ms
        return tick if covered >= self._end_of(tick) else tick - 1

    def is_loaded_to(self, waiting: WaitingTarget, tick: int) -> bool:
        return waiting.ranges[-1].covered >= self._end_of(tick)
