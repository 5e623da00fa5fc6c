"""Backlogs of targets that are paused, over their rate, or unavailable. All other targets go on.

    keys of one target    1 2 3 4 5 6 7 8 9          K = 8: all other targets have left up to 8
    left already          x x . . . x . . .
    key ranges                (2   5] (6 ...         rows in a key range are pending, whatever K says
                              oldest  fresh          each range is served from its beginning

The key ranges are the whole state of a backlog (schemas.journal.Wait), however many timers wait. The timers stay in the
wheel's chains; at most `_MAX_ROWS` of the first and the last range are loaded ahead. Targets are identified by the hash
of their names, as in the units: two names with the same Java hash code wait together.

A paused target sleeps until its next timer wakes up or the first waiting one must roll, so that a turn looks at few
targets however many are paused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from schemas.journal import END, Wait
from schemas.progress import Key
from timer.format.unit import Ints, Rows, intersect, isin, topic_hash
from timer.options import MAX_EXTRA_KEY_RANGES
from timer.schedule.loaded_ticks import LoadedTicks
from timer.schedule.pending_keys import KeyRanges, in_key_ranges
from timer.schedule.row_queue import in_order
from timer.schedule.waiting_target import KeyRange, WaitingTarget, last_key

_MAX_ROWS = 4096
_MAX_WOKEN = 64


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

    def split_fresh(self, waiting: WaitingTarget, now_ms: int, fresh_ms: int) -> None:
        """Call WaitingTarget.split_fresh; without room for more key ranges, fresh timers wait like the others."""
        if self._extra_ranges < MAX_EXTRA_KEY_RANGES:
            before = len(waiting.ranges)
            waiting.split_fresh(now_ms, fresh_ms)
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
        has the brokers' timestamp: with a clock far ahead of theirs it would seem as old as before.
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
        return Key((tick + 1) * self._tick_ms - 1, END.origin_offset)

    def _tick_before(self, covered: Key) -> int:
        """Return the tick after which all rows above `covered` lie."""
        tick = max(covered.visit_ms, -1) // self._tick_ms
        return tick if covered >= self._end_of(tick) else tick - 1

    def is_loaded_to(self, waiting: WaitingTarget, tick: int) -> bool:
        return waiting.ranges[-1].covered >= self._end_of(tick)
