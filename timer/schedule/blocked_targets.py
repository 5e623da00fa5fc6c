"""Targets that are paused, over their rate, or unavailable: their timers wait. All other targets go on.

    keys of one target    1 2 3 4 5 6 7 8 9          K = 8: all other targets have left up to 8
    has left              x x
    after = 2                 (2 ...                 its timers above 2 are pending, whatever K says

`after` is a K of the target's own, and the whole state of its backlog (schemas.journal.Wait), however many timers wait.
The timers stay where the engine keeps them; about `_MAX_ROWS` of the next ones are loaded ahead. Targets are identified
by the hash of their names, as in the units.

A paused target sleeps until its next timer wakes up or the first waiting one must roll, so that a turn looks at few
targets however many are paused.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from schemas.journal import END, Wait
from schemas.progress import Key
from timer.format.unit import NO_ROWS, Rows, intersect, isin, topic_hash
from timer.schedule.pending_timers import KeyRanges, Waits, in_key_ranges
from timer.schedule.queues import RowQueue, earliest, in_order, last_key

_MAX_ROWS = 4096
_MAX_WOKEN = 64
_MAX_TICKS = 64
_MAX_CACHED_ROWS = 1 << 18


@dataclass(slots=True)
class BlockedTarget:
    """One target whose timers with keys above `after` wait. Those with keys (after, covered] are in `rows`."""

    target: str
    is_paused: bool
    stretches: list[tuple[Key, Key]]
    """Keys (after, until] that wait, ascending, the last one up to END. Bridges with `fresh_share` left several."""
    hash: int = field(init=False)
    covered: Key = field(init=False)
    rows: RowQueue = field(default_factory=RowQueue)
    held: RowQueue = field(default_factory=RowQueue)
    """Its out-of-order rows whose wake-up time has come."""
    look_ms: int = 0
    """The target sleeps until then; 0: it is awake."""
    is_empty: bool = False
    """True if it sleeps without a waiting timer."""
    _wait: Wait | None = None
    """Made once for each state, as each transaction names all blocked targets."""

    def __post_init__(self) -> None:
        self.hash, self.covered = topic_hash(self.target), self.after

    @property
    def after(self) -> Key:
        return self.stretches[0][0]

    def wait(self) -> Wait:
        if self._wait is None:
            self._wait = Wait(self.target, self.is_paused, tuple(self.stretches))
        return self._wait

    def pending_in(self, after: Key, until: Key) -> KeyRanges:
        return [(max(after, start), min(until, end)) for start, end in self.stretches]

    def pause(self, *, is_paused: bool) -> None:
        self.is_paused, self._wait = is_paused, None
        self.wake()

    def sleep(self, until_ms: int, *, is_empty: bool) -> None:
        """Skip the target until `until_ms`: nothing of it leaves or rolls before."""
        self.look_ms, self.is_empty = until_ms, is_empty

    def wake(self) -> None:
        self.look_ms = 0

    def first_ms(self) -> int | None:
        return earliest(self.rows.first_ms, self.held.first_ms)

    def push(self, run: Rows) -> None:
        """Add rows of this target that were just stored, if their keys are in the part that is loaded."""
        if self.covered > self.after:
            self.rows.push(run[in_key_ranges(run, self.pending_in(self.after, self.covered))])

    def left_until(self, key: Key) -> None:
        """Move `after` to `key`: all timers up to it have left or ended."""
        while len(self.stretches) > 1 and self.stretches[0][1] <= key:
            del self.stretches[0]
        self.stretches[0] = max(key, self.after), self.stretches[0][1]
        self._wait = None
        self.covered = max(self.covered, self.after)

    def skip_empty(self, before_ms: int, now_ms: int) -> None:
        """Move `after` to `before_ms` if nothing before is pending, so that files can be deleted."""
        before, first_ms = Key(before_ms, -1), self.rows.first_ms
        reached = self.covered if first_ms is None else Key(first_ms, -1)
        while len(self.stretches) > 1 and self.stretches[1][0] <= reached:
            self.left_until(self.stretches[1][0])
        is_empty = before <= self.covered and (first_ms is None or first_ms > before_ms)
        if is_empty and self.after.visit_ms < before_ms - (now_ms - before_ms):
            self.left_until(before)


class BlockedTargets(dict[int, BlockedTarget]):
    """The blocked targets of one store, by hash."""

    def __init__(self, waits: Iterable[Wait]) -> None:
        blocked = (BlockedTarget(target, is_paused, list(stretches)) for target, is_paused, stretches in waits)
        super().__init__((each.hash, each) for each in blocked)
        self._now_ms = 0
        self.next_roll_pass_ms = 0
        """When the next pass of rolls of timers that waited too long may begin."""
        self._roll_pass_end = 0

    def named(self, target: str) -> BlockedTarget | None:
        return self.get(topic_hash(target)) if self else None

    def key_ranges(self) -> Waits:
        return {hash_: each.wait().stretches for hash_, each in self.items()}

    def awake(self, now_ms: int) -> list[int]:
        """Return hashes of the targets that do not sleep. All wake up if the clock went back, else a limited number."""
        is_back, self._now_ms = now_ms < self._now_ms, now_ms
        over = [each for each in self.values() if each.look_ms and (is_back or each.look_ms <= now_ms)]
        for each in over if is_back else over[:_MAX_WOKEN]:
            each.wake()
        return [hash_ for hash_, each in self.items() if not each.look_ms]

    # -- rows

    def without(self, run: Rows) -> Rows:
        """Return the rows of `run` whose target is not blocked."""
        found = intersect(self, run["topic_hash"]) if self else []
        return run[~isin(run["topic_hash"], found)] if found else run

    def push(self, run: Rows) -> None:
        for blocked in self._blocked_in(run):
            blocked.push(run[run["topic_hash"] == blocked.hash])

    def remove(self, run: Rows) -> None:
        for blocked in self._blocked_in(run):
            blocked.rows.remove(run["unit"])
            blocked.held.remove(run["unit"])

    def _blocked_in(self, run: Rows) -> list[BlockedTarget]:
        """Return the blocked targets with rows in `run`, and wake them."""
        found = [self[hash_] for hash_ in intersect(self, run["topic_hash"])] if self else []
        for blocked in found:
            blocked.wake()
        return found

    def start_roll_pass(self, now_ms: int, before_ms: int, units_end: int) -> int:
        """Return the unit below which timers that waited since before `before_ms` roll now.

        A pass ends before the first of its copies, and the next one starts an eighth of the waiting time later. A copy
        has the brokers' timestamp: with a clock far ahead of theirs it would seem as old as before.
        """
        rest_ms = (now_ms - before_ms) // 8
        if not self.next_roll_pass_ms - rest_ms <= now_ms < self.next_roll_pass_ms:
            self.next_roll_pass_ms, self._roll_pass_end = now_ms + rest_ms, units_end
        return self._roll_pass_end


class BacklogReader:
    """Loads the next rows of blocked targets in one turn, up to tick `until`: each tick once for all targets.

    load_tick: reads one tick. next_tick: returns the first tick in (after, until] with a timer.
    """

    def __init__(
        self, load_tick: Callable[[int], Rows], next_tick: Callable[[int, int], int | None], tick_ms: int, until: int
    ) -> None:
        self._load_tick, self._next_tick, self._tick_ms = load_tick, next_tick, tick_ms
        self.end_ms = (until + 1) * tick_ms
        """Epoch ms of the first tick that is not read."""
        self._end = self._end_of(until)
        self._cached: dict[int, Rows] = {}
        self._large: tuple[int, Rows] = -1, NO_ROWS
        self._cached_rows = 0
        self._ticks_left = _MAX_TICKS

    def has_read_all(self, blocked: BlockedTarget) -> bool:
        return blocked.covered >= self._end

    def load_ahead(self, blocked: BlockedTarget) -> bool:
        """Load the next rows of `blocked` if it has none. False if this turn has loaded enough ticks before."""
        while len(blocked.rows) == 0 and blocked.covered < self._end:
            before = max(blocked.covered.visit_ms, -1) // self._tick_ms
            before -= blocked.covered < self._end_of(before)  # not all of that tick is loaded
            tick = self._next_tick(before, self._end.visit_ms // self._tick_ms)
            if tick is None:
                blocked.covered = self._end
                return True
            rows = self.tick(tick)
            if rows is None:
                return False
            own = rows[rows["topic_hash"] == blocked.hash]
            own = in_order(own[in_key_ranges(own, blocked.pending_in(blocked.covered, END))])[:_MAX_ROWS]
            blocked.covered = last_key(own) if len(own) == _MAX_ROWS else self._end_of(tick)
            blocked.rows.push(own)
        return True

    def tick(self, tick: int) -> Rows | None:
        """Return the rows of `tick`, None if this turn has loaded enough ticks."""
        rows = self._large[1] if tick == self._large[0] else self._cached.get(tick)
        if rows is None and self._ticks_left > 0:
            rows = self._load_tick(tick)
            self._ticks_left -= 1
            if self._cached_rows + len(rows) <= _MAX_CACHED_ROWS:
                self._cached[tick] = rows
                self._cached_rows += len(rows)
            else:  # the last one, as the next target asks for the same
                self._large = tick, rows
        return rows

    def _end_of(self, tick: int) -> Key:
        return Key((tick + 1) * self._tick_ms - 1, END.origin_offset)
