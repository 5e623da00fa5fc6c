"""Limit the timers per second of each target: settings by pattern, and a token bucket for each target.

    [targets."orders.*"]  max_per_s = 100          of 16 partitions each has 6.25/s, whichever instance owns it

Each partition has its part of the rate, as with `max_pending`, so the target never gets more, however many instances
there are. Timers that wait leave in lots, as each lot is a transaction (bridge.token_bucket). The first pattern
that fits counts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from bridge.release.circuit_breaker import CircuitBreakers
from bridge.token_bucket import TokenBucket

_MOST_BUCKETS = 10_000
"""Beyond this, buckets that are full again are dropped; a bucket that is in use never is."""
_CHECKED = 16
"""Number of the least recently used buckets that are checked for each new one, so that all are checked in time."""


@dataclass(frozen=True, slots=True)
class TargetLimit:
    """Rate limit of one partition for a target."""

    max_per_s: float


class TargetRateLimits:
    """The limits of one partition: a timer.schedule.release_policy.Gate."""

    def __init__(self, by_pattern: Mapping[str, TargetLimit], breakers: CircuitBreakers | None = None) -> None:
        """breakers: of the instance; a target whose breaker is open has no allowance."""
        self._breakers = CircuitBreakers() if breakers is None else breakers
        self._has_rates = bool(by_pattern)
        patterns = [(re.compile(translate(pattern)), limit) for pattern, limit in by_pattern.items()]
        self._buckets: dict[str, TokenBucket] = {}

        @lru_cache(_MOST_BUCKETS)
        def limit_of(target: str) -> TargetLimit | None:
            return next((limit for pattern, limit in patterns if pattern.match(target)), None)

        self._limit_of = limit_of

    @property
    def is_open(self) -> bool:
        """True if nothing is limited: no target has a rate, and none fails."""
        return not self._has_rates and not self._breakers

    def is_limited(self, target: str) -> bool:
        return self._limit_of(target) is not None

    def allowance(self, target: str, now_ms: int) -> int | None:
        bucket = self._bucket(target, now_ms)
        of_rate = None if bucket is None else bucket.allowance(now_ms)
        of_breaker = self._breakers.allowance(target, now_ms)
        return min((each for each in (of_rate, of_breaker) if each is not None), default=None)

    def spend(self, target: str, timers: int, now_ms: int) -> None:
        bucket = self._bucket(target, now_ms)
        if bucket is not None:
            bucket.spend(timers)

    def next_ms(self, target: str, now_ms: int) -> int:
        """Return when the next timer of `target` may leave."""
        bucket = self._bucket(target, now_ms)
        by_rate_ms = now_ms if bucket is None else bucket.next_ms(now_ms)
        return max(by_rate_ms, self._breakers.retry_ms(target, now_ms))

    def _bucket(self, target: str, now_ms: int) -> TokenBucket | None:
        limit = self._limit_of(target)
        if limit is None:
            return None
        bucket = self._buckets.pop(target, None)
        if bucket is None:
            self._make_room(now_ms)
            bucket = TokenBucket(limit.max_per_s, now_ms)
        self._buckets[target] = bucket
        return bucket

    def _make_room(self, now_ms: int) -> None:
        for _ in range(_CHECKED):
            if len(self._buckets) < _MOST_BUCKETS:
                return
            target, bucket = next(iter(self._buckets.items()))
            del self._buckets[target]
            if not bucket.is_full(now_ms):
                self._buckets[target] = bucket
