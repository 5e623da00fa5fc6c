"""Questions about waiting timers: those of target backlogs, and blocked out-of-order ones. Changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from timer.index.due_counts import HOUR_MS, DueCounts
from timer.schedule.out_of_order import OutOfOrderTimers
from timer.schedule.target_backlog import TargetBacklog


class Backlog(NamedTuple):
    """timers: due by the end of the hour. since_ms: first wake-up time, None if it has not come."""

    target: str
    is_paused: bool
    timers: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class WaitingTimers:
    """The waiting timers of one store."""

    _backlogs: TargetBacklog
    _out_of_order: OutOfOrderTimers
    _dues: DueCounts

    def hashes(self) -> list[int]:
        """Return hashes of the targets with waiting timers."""
        return [*dict.fromkeys([*self._backlogs.hashes(), *self._out_of_order.blocked()])]

    def backlogs(self, now_ms: int) -> list[Backlog]:
        """Return the backlog of each target with waiting timers."""
        firsts = self._first_blocked_ms()
        names = {hash_: self._dues.name(hash_) for hash_ in firsts}
        paused: set[int] = set()
        for each in self._backlogs:
            names[each.hash] = each.target
            if each.is_paused:
                paused.add(each.hash)
            if (first_ms := each.first_visit_ms()) is not None:
                firsts[each.hash] = min(first_ms, firsts.get(each.hash, first_ms))
        return [
            Backlog(
                target,
                hash_ in paused,
                self._dues.due_by(hash_, now_ms // HOUR_MS),
                since_ms if (since_ms := firsts.get(hash_)) is not None and since_ms <= now_ms else None,
            )
            for hash_, target in names.items()
        ]

    def next_release_ms(self, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int | None:
        """Return when the first waiting timer may leave or must roll, None if there is none.

        may_leave_ms: returns when the rate of a target allows the next one.
        """
        times = [
            self._release_ms(waiting.target, first_ms, may_leave_ms, most_wait_ms)
            for waiting in map(self._backlogs.by_hash, self._backlogs.awake())
            if (first_ms := waiting.first_visit_ms()) is not None
        ]
        for hash_, first_ms in self._first_blocked_ms().items():
            times.append(self._release_ms(self._dues.name(hash_), first_ms, may_leave_ms, most_wait_ms))
        roll_ms = self._backlogs.next_roll_ms()
        if roll_ms is not None:
            times.append(max(roll_ms, self._backlogs.next_roll_pass_ms))
        return min(times, default=None)

    def _first_blocked_ms(self) -> dict[int, int]:
        return {hash_: self._out_of_order.first_blocked_ms(hash_) for hash_ in self._out_of_order.blocked()}

    def _release_ms(self, target: str, first_ms: int, may_leave_ms: Callable[[str], int], most_wait_ms: int) -> int:
        old_ms = max(first_ms + most_wait_ms, self._backlogs.next_roll_pass_ms)
        waiting = self._backlogs.get(target)
        return old_ms if waiting is not None and waiting.is_paused else min(old_ms, max(first_ms, may_leave_ms(target)))
