"""Targets whose due timers wait, as they are paused or beyond their rate; all others go on.

    keys of one target    1 2 3 4 5 6 7 8 9          K = 8, and of the others all up to 8 has left
    left already          x x . . . x . . .
    stretches                 (2   5] (6 ...         what lies in one of them lives, whatever K says
                              backlog fresh          each is taken from its beginning

The stretches are all that has to be known of them (schemas.journal.Wait), however many timers wait: these stay in the
wheel's chains, and at most `_MOST_ROWS` of the first and of the last stretch are read ahead. Told apart by the hash of
their names, as units are: two whose names share Java's hash code wait together.

A paused target of which nothing leaves sleeps: until one more of its timers may have come to its place (the next tick),
or, where one has, until that is to be rolled. So a turn looks at few, however many are paused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from schemas.journal import END, Wait
from schemas.progress import Key
from timer.format.unit import NO_ROWS, Ints, Rows, among, isin, topic_hash
from timer.maintenance.startup_scan import Stretches, among_stretches
from timer.schedule.due_queue import DueQueue, in_order

_MOST_ROWS = 4096
_MOST_STRETCHES = 32
MOST_PARTED = 4096
"""Stretches beyond the first of each target, of all targets together: each record of the journal tells them all."""
_MOST_TICKS = 64
_MOST_KEPT_ROWS = 1 << 18
_MOST_WOKEN = 64


class Gate(Protocol):
    """How many timers of each target may leave now."""

    def allowance(self, target: str) -> int | None:
        """None: any number."""
        ...

    def spend(self, target: str, timers: int) -> None:
        """So many leave now."""
        ...

    def fresh(self, target: str) -> tuple[float, int]:
        """The share of what fell due within the last so many ms, while others wait for longer."""
        ...


class OpenGate:
    """Nothing is limited."""

    def allowance(self, target: str) -> int | None:
        del target
        return None

    def spend(self, target: str, timers: int) -> None:
        """Nothing is counted."""

    def fresh(self, target: str) -> tuple[float, int]:
        del target
        return 0.0, 0


OPEN = OpenGate()


@dataclass(slots=True)
class Stretch:
    """Live keys (after, until] of one target. All of its rows with keys (after, covered] are in `queue`."""

    after: Key
    until: Key
    covered: Key
    queue: DueQueue = field(default_factory=DueQueue)

    @classmethod
    def of(cls, after: Key, until: Key) -> "Stretch":
        return cls(after, until, after)

    @property
    def is_over(self) -> bool:
        return self.covered >= self.until and len(self.queue) == 0

    def first_visit_ms(self) -> int | None:
        """Of those that are read ahead."""
        return self.queue.next_visit_ms()

    def take(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        rows = self.queue.take(now_ms, limit, limit_bytes) if limit > 0 else NO_ROWS
        if len(rows):
            self.after = last_key(rows)
        return rows


def last_key(rows: Rows) -> Key:
    return Key(int(rows["visit_ms"][-1]), int(rows["origin"][-1]))


class Backlog(NamedTuple):
    """Of a target that waits: `timers` are due by the end of the hour, `since_ms` was the place of the first of them.

    None: none has come to its place.
    """

    target: str
    is_paused: bool
    timers: int
    since_ms: int | None


class LoadedTicks:
    """The ticks that one turn loads, each once for all targets that wait."""

    def __init__(self, load: Callable[[int], Rows]) -> None:
        self._load = load
        self._rows: dict[int, Rows] = {}
        self._large: tuple[int, Rows] = -1, NO_ROWS
        self._kept = 0
        self._left = _MOST_TICKS

    def get(self, tick: int) -> Rows | None:
        """None where this turn has loaded enough."""
        rows = self._large[1] if tick == self._large[0] else self._rows.get(tick)
        if rows is None and self._left > 0:
            rows = self._load(tick)
            self._left -= 1
            if self._kept + len(rows) <= _MOST_KEPT_ROWS:
                self._rows[tick] = rows
                self._kept += len(rows)
            else:  # the last one, as the next target asks for the same
                self._large = tick, rows
        return rows


class WaitingTarget:
    """One that waits, with its stretches, ascending; the last one has no end."""

    def __init__(self, target: str, stretches: list[Stretch], *, is_paused: bool) -> None:
        self.target = target
        self.hash = topic_hash(target)
        self.stretches = stretches
        self.is_paused = is_paused
        self._told: Wait | None = None
        """While it sleeps, as nothing of it changes then."""
        self._fresh_due = 0.0
        """How much of the rate the fresh ones have not had yet."""

    def spans(self) -> Stretches:
        return [(each.after, each.until) for each in self.stretches] if self._told is None else self._told.stretches

    def told(self) -> Wait:
        return self._told or Wait(self.target, self.is_paused, tuple(self.spans()))

    def sleep(self) -> None:
        self._told = self.told()

    def wake(self) -> None:
        self._told = None

    def heads(self) -> list[Stretch]:
        """Those from which timers are taken: the oldest, and the newest."""
        return self.stretches[:1] if len(self.stretches) == 1 else [self.stretches[0], self.stretches[-1]]

    def first_visit_ms(self) -> int | None:
        """Of those that are read ahead."""
        found = [first_ms for each in self.heads() if (first_ms := each.first_visit_ms()) is not None]
        return min(found, default=None)

    def push(self, run: Rows) -> None:
        """Rows of this target that were stored just now, as far as they have to be in what is read ahead."""
        for each in self.stretches:
            if each.covered > each.after:
                each.queue.push(run[among_stretches(run, [(each.after, each.covered)])])

    def part_fresh(self, now_ms: int, fresh_ms: int) -> None:
        """What fell due lately gets a stretch of its own, where the oldest of the last one has waited for longer."""
        last = self.stretches[-1]
        oldest_ms = last.first_visit_ms()
        is_behind = oldest_ms is not None and oldest_ms < now_ms - fresh_ms
        if not is_behind or len(self.stretches) >= _MOST_STRETCHES:
            return
        begins = Key(now_ms - fresh_ms // 2, -1)
        if begins <= last.after:
            return
        self.stretches[-1:] = [Stretch.of(last.after, begins), Stretch.of(begins, END)]
        if len(self.stretches) > 2 and self.stretches[-3].until == self.stretches[-2].after:
            joined = self.stretches[-3:-1]
            self.stretches[-3:-1] = [Stretch.of(joined[0].after, joined[1].until)]

    def forget(self, before_ms: int, now_ms: int) -> None:
        """Nothing older lives any more: now and then the first stretch is told from there on, so that files can go."""
        first, before = self.stretches[0], Key(before_ms, -1)
        oldest_ms = first.first_visit_ms()
        is_gone = before <= min(first.covered, first.until) and (oldest_ms is None or oldest_ms > before_ms)
        if is_gone and first.after.visit_ms < before_ms - (now_ms - before_ms):
            first.after = before

    def fresh_part(self, allowed: int, share: float) -> int:
        """How many of `allowed` are for the fresh ones."""
        self._fresh_due = min(self._fresh_due + allowed * share, float(allowed))
        part = int(self._fresh_due)
        self._fresh_due -= part
        return part


class TargetBacklog:
    """Of one store."""

    def __init__(self, waits: Iterable[Wait], tick_ms: int) -> None:
        self._tick_ms = tick_ms
        self._by_hash = {
            topic_hash(wait.target): WaitingTarget(
                wait.target, [Stretch.of(*span) for span in wait.stretches], is_paused=wait.is_paused
            )
            for wait in waits
        }
        self._asleep: dict[int, tuple[int, bool]] = {}
        """Until when, and whether something of it waits; by hash."""
        self._now_ms = 0
        self.next_pass_ms = 0
        """When the next round of rolls may begin, of those that have waited too long."""
        self._pass_units = 0
        self._parted = sum(len(each.stretches) - 1 for each in self._by_hash.values())

    def __iter__(self) -> Iterator[WaitingTarget]:
        return iter(list(self._by_hash.values()))

    def hashes(self) -> list[int]:
        return list(self._by_hash)

    def sleep(self, waiting: WaitingTarget, until_ms: int, *, is_empty: bool) -> None:
        """Nothing of it leaves before, and nothing is to be rolled."""
        self._asleep[waiting.hash] = until_ms, not is_empty
        waiting.sleep()

    def wake(self, waiting: WaitingTarget) -> None:
        if self._asleep.pop(waiting.hash, None) is not None:
            waiting.wake()

    def wake_up(self, now_ms: int) -> None:
        """Those whose sleep is over, so many in a turn; all of them where the clock went back."""
        is_back, self._now_ms = now_ms < self._now_ms, now_ms
        over = [hash_ for hash_, (until_ms, _) in self._asleep.items() if is_back or until_ms <= now_ms]
        for hash_ in over if is_back else over[:_MOST_WOKEN]:
            self.wake(self._by_hash[hash_])

    def awake(self) -> list[int]:
        """Hashes."""
        return [hash_ for hash_ in self._by_hash if hash_ not in self._asleep] if self._asleep else self.hashes()

    def next_roll_ms(self) -> int | None:
        """Of those that sleep while something of them waits."""
        return min((until_ms for until_ms, has_some in self._asleep.values() if has_some), default=None)

    def by_hash(self, hash_: int) -> WaitingTarget:
        return self._by_hash[hash_]

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, target: str) -> WaitingTarget | None:
        return self._by_hash.get(topic_hash(target))

    def spans(self) -> Mapping[int, Stretches]:
        """By hash."""
        return {hash_: each.spans() for hash_, each in self._by_hash.items()}

    def told(self) -> tuple[Wait, ...]:
        return tuple(each.told() for each in self)

    def begin(self, target: str, after: Key, *, is_paused: bool = False) -> WaitingTarget:
        """From now on its timers with a key above `after` wait."""
        begun = WaitingTarget(target, [Stretch.of(after, END)], is_paused=is_paused)
        self._by_hash[begun.hash] = begun
        return begun

    def end(self, waiting: WaitingTarget) -> None:
        self.wake(waiting)
        self._parted -= len(waiting.stretches) - 1
        del self._by_hash[waiting.hash]

    def part_fresh(self, waiting: WaitingTarget, now_ms: int, fresh_ms: int) -> None:
        """See WaitingTarget. Where there is no room for more, the fresh ones wait behind the others for once."""
        if self._parted < MOST_PARTED:
            before = len(waiting.stretches)
            waiting.part_fresh(now_ms, fresh_ms)
            self._parted += len(waiting.stretches) - before

    def without(self, run: Rows) -> Rows:
        """Those of `run` whose target does not wait."""
        found = among(self._by_hash, run["topic_hash"]) if self._by_hash else []
        return run[~isin(run["topic_hash"], found)] if found else run

    def push(self, run: Rows) -> None:
        for waiting in self._among(run):
            waiting.push(run[run["topic_hash"] == waiting.hash])

    def remove(self, run: Rows) -> None:
        for waiting in self._among(run):
            for stretch in waiting.stretches:
                stretch.queue.remove(run["unit"])

    def _among(self, run: Rows) -> list[WaitingTarget]:
        """Those of which some are in `run`; they are awake from now on."""
        if not self._by_hash:
            return []
        found = [self._by_hash[hash_] for hash_ in among(self._by_hash, run["topic_hash"])]
        for waiting in found:
            self.wake(waiting)
        return found

    def repoint(self, units: Ints, bodies: Ints) -> None:
        for each in self:
            for stretch in each.stretches:
                stretch.queue.repoint(units, bodies)

    def begin_pass(self, now_ms: int, before_ms: int, units_end: int) -> int:
        """Up to which unit those that waited too long (since before `before_ms`) are rolled now.

        A round ends before the first of its copies, and the next one waits for an eighth of the time: a copy is
        reckoned by the brokers' time, so by a clock that is far ahead of theirs it would seem as old as it was.
        """
        rest_ms = (now_ms - before_ms) // 8
        if not self.next_pass_ms - rest_ms <= now_ms < self.next_pass_ms:
            self.next_pass_ms, self._pass_units = now_ms + rest_ms, units_end
        return self._pass_units

    def oldest_ms(self) -> int | None:
        """The first visit of which anything is needed."""
        return min((each.stretches[0].after.visit_ms for each in self), default=None)

    def read_ahead(
        self,
        waiting: WaitingTarget,
        until_tick: int,
        next_tick: Callable[[int, int], int | None],
        ticks: LoadedTicks,
    ) -> bool:
        """Where nothing is read ahead, the next rows are, up to the end of `until_tick`. False: not all, this turn."""
        is_read = True
        for stretch in waiting.heads():
            is_read &= self._read_ahead(waiting, stretch, until_tick, next_tick, ticks)
        while waiting.stretches[0].is_over and len(waiting.stretches) > 1:
            del waiting.stretches[0]
            self._parted -= 1
            is_read &= self._read_ahead(waiting, waiting.stretches[0], until_tick, next_tick, ticks)
        return is_read

    def _read_ahead(
        self,
        waiting: WaitingTarget,
        stretch: Stretch,
        until_tick: int,
        next_tick: Callable[[int, int], int | None],
        ticks: LoadedTicks,
    ) -> bool:
        end = min(stretch.until, self._end_of(until_tick))
        while len(stretch.queue) == 0 and stretch.covered < end:
            tick = next_tick(self._tick_before(stretch.covered), end.visit_ms // self._tick_ms)
            if tick is None:
                stretch.covered = end
                return True
            rows = ticks.get(tick)
            if rows is None:
                return False
            own = rows[rows["topic_hash"] == waiting.hash]
            own = in_order(own[among_stretches(own, [(stretch.covered, stretch.until)])])
            if len(own) > _MOST_ROWS:
                own = own[:_MOST_ROWS]
                stretch.covered = last_key(own)
            else:
                stretch.covered = min(stretch.until, self._end_of(tick))
            stretch.queue.push(own)
        return True

    def _end_of(self, tick: int) -> Key:
        return Key((tick + 1) * self._tick_ms - 1, END.origin)

    def _tick_before(self, covered: Key) -> int:
        """The tick behind which rows above `covered` lie."""
        tick = max(covered.visit_ms, -1) // self._tick_ms
        return tick if covered >= self._end_of(tick) else tick - 1

    def is_read_to(self, waiting: WaitingTarget, tick: int) -> bool:
        return waiting.stretches[-1].covered >= self._end_of(tick)
