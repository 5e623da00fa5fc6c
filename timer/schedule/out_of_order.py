"""Live timers whose place in the order has passed, or does not count: K says nothing of them, the journal names them.

push   waits for its visit: the clock went back behind K
block  waits for its target, which may not have any more now (timer.schedule.release_policy)
rest   waits for `until` or its due time, but not beyond a step back of the clock: it was rolled just now, and by
       this clock, which runs ahead of the brokers', it would be rolled again soon
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import NO_ROWS, Ints, Rows, isin, joined
from timer.schedule.due_queue import DueQueue

_SPANS = 8
"""What begins to rest within an eighth of a rest rests together."""


@dataclass(slots=True)
class _Resting:
    since_ms: int
    until_ms: int
    runs: list[Rows] = field(default_factory=list)

    def rows(self) -> Rows:
        return joined(self.runs)

    def first_due_ms(self) -> int:
        return min(int(run["due_ms"].min()) for run in self.runs)

    def has_ended(self, now_ms: int) -> bool:
        """Of some of them; also where the clock was set back behind its beginning."""
        return not self.since_ms <= now_ms < self.until_ms or self.first_due_ms() <= now_ms

    def take(self, now_ms: int) -> list[Rows]:
        """Those whose rest is over."""
        if not self.since_ms <= now_ms < self.until_ms:
            taken, self.runs = self.runs, []
            return taken
        if self.first_due_ms() > now_ms:
            return []
        rows = self.rows()
        self.runs = [rows[rows["due_ms"] > now_ms]]
        return [rows[rows["due_ms"] <= now_ms]]


class HeldTimers:
    """Rows of RUN; their bodies are on disk."""

    def __init__(self) -> None:
        self._queue = DueQueue()
        self._resting: list[_Resting] = []
        self._blocked: dict[int, DueQueue] = {}
        """By the hash of their target."""
        self._units: set[int] = set()

    def __len__(self) -> int:
        return len(self._units)

    def has(self, units: Ints) -> NDArray[np.bool_]:
        """Which of `units` are here."""
        if not self._units:
            return np.zeros(len(units), np.bool_)
        return np.fromiter((unit in self._units for unit in units.tolist()), np.bool_, len(units))

    def rows(self) -> Rows:
        """All of them."""
        blocked = (queue.rows() for queue in self._blocked.values())
        return joined([self._queue.rows(), *(each.rows() for each in self._resting), *blocked])

    def push(self, run: Rows) -> None:
        self._units.update(run["unit"].tolist())
        self._queue.push(run)

    def rest(self, run: Rows, since_ms: int, until_ms: int) -> None:
        """`run` is taken by nobody from `since_ms` to about `until_ms`, but for what is due before."""
        if len(run) == 0:
            return
        last = self._resting[-1] if self._resting else None
        if last is None or since_ms < last.since_ms or _SPANS * (since_ms - last.since_ms) > until_ms - since_ms:
            last = _Resting(since_ms, until_ms)
            self._resting.append(last)
        last.runs.append(run)
        self._units.update(run["unit"].tolist())

    def remove(self, units: Ints) -> None:
        """Those of `units` that are here leave without being taken."""
        units = units[self.has(units)]
        if len(units) == 0:
            return
        for queue in (self._queue, *self._blocked.values()):
            queue.remove(units)
        for each in self._resting:
            each.runs = [kept for run in each.runs if len(kept := run[~isin(run["unit"], units)])]
        self._forget_empty()
        self._units.difference_update(units.tolist())

    def block(self, hash_: int, run: Rows) -> None:
        """`run`, which was taken, waits until its target may have it."""
        self._blocked.setdefault(hash_, DueQueue()).push(run)
        self._units.update(run["unit"].tolist())

    def blocked(self) -> list[int]:
        """Hashes of the targets of which some are blocked."""
        if self._blocked:
            self._blocked = {hash_: queue for hash_, queue in self._blocked.items() if len(queue)}
        return list(self._blocked)

    def first_blocked_ms(self, hash_: int) -> int:
        """The earliest visit of those of a target that are blocked."""
        return self._blocked[hash_].next_visit_ms() or 0

    def take_blocked(self, hash_: int, limit: int, now_ms: int, limit_bytes: int) -> Rows:
        """Removes and returns the first of those of a target that are blocked."""
        return self._gone(self._blocked[hash_].take(now_ms, limit, limit_bytes)) if limit > 0 else NO_ROWS

    def block_due(self, hashes: list[int], now_ms: int) -> None:
        """Those of these targets that have come to their visit by `now_ms`, and were not taken yet, are blocked."""
        run = self._queue.rows()
        run = run[(run["visit_ms"] <= now_ms) & isin(run["topic_hash"], hashes)]
        self._queue.remove(run["unit"])
        for hash_ in np.unique(run["topic_hash"]).tolist():
            self.block(hash_, run[run["topic_hash"] == hash_])

    def take_old_blocked(self, hash_: int, before_ms: int, units_end: int, limit: int, limit_bytes: int) -> Rows:
        """Of those of a target that are blocked, ones with a visit before `before_ms` and a unit below `units_end`.

        The first row comes whatever its size.
        """
        run = self._blocked[hash_].rows()
        old = run[(run["visit_ms"] <= before_ms) & (run["unit"] < units_end)][:limit]
        fits = int(np.searchsorted(np.cumsum(old["body_size"], dtype=np.int64), limit_bytes, side="right"))
        old = old[: max(1, fits)]
        self._blocked[hash_].remove(old["unit"])
        return self._gone(old)

    def repoint(self, units: Ints, bodies: Ints) -> None:
        """Rows that are here have their bodies elsewhere now."""
        for queue in (self._queue, *self._blocked.values()):
            queue.repoint(units, bodies)
        where = dict(zip(units.tolist(), bodies.tolist(), strict=True))
        for each in self._resting:
            for run in each.runs:
                run["body"] = [where.get(unit, body) for unit, body in run[["unit", "body"]].tolist()]

    def next_visit_ms(self) -> int | None:
        """The earliest visit, or end of a rest, None where nothing waits."""
        visit_ms = self._queue.next_visit_ms()
        if not self._resting:
            return visit_ms
        looks = [min(each.until_ms, each.first_due_ms()) for each in self._resting]
        return min(looks if visit_ms is None else [*looks, visit_ms], default=None)

    def has_visit(self, now_ms: int) -> bool:
        """Somebody is to be looked at."""
        visit_ms = self._queue.next_visit_ms()
        return (visit_ms is not None and visit_ms <= now_ms) or any(each.has_ended(now_ms) for each in self._resting)

    def is_quiet(self, now_ms: int) -> bool:
        """Nobody is blocked, and nobody is to be looked at yet."""
        return not self.has_visit(now_ms) and not self.blocked()

    def take(self, now_ms: int, limit: int, limit_bytes: int) -> Rows:
        """Removes and returns those to be looked at, as DueQueue.take does."""
        if self._resting:
            for each in self._resting:
                for run in each.take(now_ms):
                    self._queue.push(run)
            self._forget_empty()
        return self._gone(self._queue.take(now_ms, limit, limit_bytes))

    def _gone(self, run: Rows) -> Rows:
        self._units.difference_update(run["unit"].tolist())
        return run

    def _forget_empty(self) -> None:
        for each in self._resting:
            each.runs = [run for run in each.runs if len(run)]
        self._resting = [each for each in self._resting if each.runs]
