"""What the limits of target topics say of requests that intake reads: leave at once or wait, accept or refuse."""

from collections import Counter
from typing import Protocol

from bridge.intake.quota import MOST_LIMITED
from bridge.release.target_rate_limits import TargetRateLimits


class TargetQueue(Protocol):
    """The part of the store's release queue that intake needs."""

    def must_wait(self, target: str) -> bool: ...

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool: ...


class TargetCounts(Protocol):
    """The part of the store's queries that intake needs."""

    @property
    def targets(self) -> int: ...

    def has_target(self, target: str) -> bool: ...


class TargetGate:
    """For one batch: which overdue timers leave at once, and which new targets with a rate are accepted."""

    def __init__(self, queue: TargetQueue, counts: TargetCounts, limits: TargetRateLimits, now_ms: int) -> None:
        self._queue, self._counts = queue, counts
        self._limits = limits
        self._now_ms = now_ms
        self._leaving: Counter[str] = Counter()
        self._new_targets: set[str] = set()

    def must_wait(self, target: str) -> bool:
        """True if an overdue timer may not leave at once. Those that may are counted."""
        if self._queue.must_wait(target):
            return True
        allowed = None if self._limits.is_open else self._limits.allowance(target, self._now_ms)
        if allowed is None:
            return False
        if self._leaving[target] >= allowed:
            return True
        self._leaving[target] += 1
        return False

    def is_one_too_many(self, target: str) -> bool:
        """True if the target has a rate and no pending timer, and too many targets have pending timers."""
        if not self._limits.is_limited(target) or target in self._new_targets or self._counts.has_target(target):
            return False
        if self._counts.targets + len(self._new_targets) >= MOST_LIMITED:
            return True
        self._new_targets.add(target)
        return False

    def charge(self) -> None:
        """Charge the rates. Call it after the batch is stored: if the disk refuses it, it is taken in again."""
        for target, timers in self._leaving.items():
            self._limits.spend(target, timers, self._now_ms)
