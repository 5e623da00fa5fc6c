"""Limits of what one partition may hold: pending timers and their bytes, and targets with a rate.

A quota is asked once, at intake. It is exact, as the pending timers of a partition are known in the order of requests.
A timer that is being delivered does not count; it counts again if its target takes nothing (`roll_unavailable`).
"""

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Protocol

from bridge.release.target_rate_limits import TargetRateLimits
from schemas.headers import Refusal

MOST_PAUSED = 1000
"""Paused targets of one partition: each journal record names them all."""
MOST_LIMITED = 10_000
"""Targets with pending timers in one partition, beyond which no further one with a rate is accepted."""
BEYOND_TIMERS = Refusal(
    "quota-exceeded",
    "its partition holds as many pending timers as max_pending allows: send it again later, or have max_pending raised",
)
BEYOND_BYTES = Refusal(
    "quota-exceeded",
    "its partition holds as many bytes of pending timers as max_pending_bytes allows: send it again later, or have"
    " max_pending_bytes raised",
)
TOO_MANY_LIMITED = Refusal(
    "quota-exceeded",
    f"timers for {MOST_LIMITED} real topics are pending in its partition, and one more that has a rate would be too"
    f" many: send it again later, or give it no max_per_s",
)


@dataclass(slots=True)
class Quota:
    """How many more timers may be pending, and how many more bytes of bodies (without copies in flight)."""

    timers: float = inf
    size_bytes: float = inf


class TargetQueue(Protocol):
    """The part of the store's release queue that intake needs."""

    def must_wait(self, target: str) -> bool: ...


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
        allowed = None if self._limits.is_open else self._limits.at(self._now_ms).allowance(target)
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
            self._limits.spend(target, timers)
