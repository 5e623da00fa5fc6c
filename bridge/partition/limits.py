"""Limits of a partition: how many timers it holds, and how many leave for each target.

1. Quota: pending timers and their bytes, and targets with a rate.

A quota is asked once, at intake. It is exact, as the pending timers of a partition are known in the order of requests.
A timer that is being delivered does not count; it counts again if its target takes nothing (`roll_unavailable`).

2. Target limits: timers per second of each target, by pattern.

    [targets."orders.*"]  max_per_s = 100          of 16 partitions each has 6.25/s, whichever instance owns it

Each partition has its part of the rate, as with `max_pending`, so the target never gets more, however many instances
there are. Timers that wait leave in lots, as each lot is a transaction (bridge.partition.limits). The first pattern
that fits counts.

TargetGate: what the limits of target topics say of requests that intake reads: leave at once or wait, accept or refuse.

3. Token bucket: a rate per second, of requests of a timer topic or of timers to a target.

    1000/s     1000 at once, then 100 each 100 ms          never more than 1000 x (seconds + 1) in any span of time

It gives lots of a tenth of a second, as a turn for each request would cost more than the request. A clock that jumps
ahead fills the bucket once at most; if it goes back, nothing is filled, and time counts on from there.

4. Circuit breakers for target topics that take no records, so that the timers of all other targets leave on time.

    closed    --a transaction failed at the topic-->  open       its timers wait, as those of a paused target do
    open      --the retry delay is over----------->  half open  one timer of each partition may leave
    half open --they are committed---------------->  twice as many may leave, and so on, until the breaker is closed
    half open --the topic fails again------------->  open, for twice as long (at most LONGEST_DELAY_MS); then at most
                                                     half as many as failed may leave at a time, for 10 minutes

Each instance keeps the state in memory. After a restart, and in another instance, the first transaction that fails
opens the breaker again. No format holds the state: the journal shows the wait like that of a target beyond its rate.
"""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from math import ceil, inf
from typing import Protocol

from bridge.partition.options import TargetLimit, has_passed
from kafka_timer.headers import Refusal

_LOTS_PER_S = 10
_ROUNDING = 1e-9
"""Share of a token that adding up tenths may lose."""


class TokenBucket:
    """Holds the tokens of a second, at least one. Begins full."""

    def __init__(self, per_s: float, now_ms: int) -> None:
        self.per_s = per_s
        self._lot = max(1, int(per_s / _LOTS_PER_S))
        self._tokens = self._most = max(1.0, per_s)
        self._at_ms = now_ms

    def allowance(self, now_ms: int, wanted: float = inf) -> int:
        """Return how many may go now: all tokens, or 0 while they are fewer than a lot, and than `wanted`."""
        self._fill(now_ms)
        tokens = int(self._tokens + _ROUNDING)
        return tokens if tokens >= min(wanted, self._lot) else 0

    def spend(self, tokens: int) -> None:
        self._tokens -= tokens

    def is_full(self, now_ms: int) -> bool:
        """True if a new bucket would allow the same."""
        self._fill(now_ms)
        return self._tokens >= self._most

    def next_ms(self, now_ms: int, wanted: float = inf) -> int:
        """Return when `allowance` is more than 0."""
        self._fill(now_ms)
        missing = min(wanted, self._lot) - self._tokens - _ROUNDING
        return now_ms + max(0, ceil(missing * 1000 / self.per_s))

    def _fill(self, now_ms: int) -> None:
        self._tokens = min(self._most, self._tokens + max(0, now_ms - self._at_ms) * self.per_s / 1000)
        self._at_ms = now_ms


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


FIRST_DELAY_MS = 5000  # retry delay after the first failure; it doubles with each further one
LONGEST_DELAY_MS = 60_000  # so a topic is tried at least once a minute
CLOSED_BEYOND_TIMERS = 4096
"""Timers per partition and turn, about as many as one transaction carries: a higher limit would change nothing."""
MAX_BREAKERS = 1000
"""Target topics. Each journal record names every target that waits. Further targets fail as if without a breaker."""
FORGOTTEN_AFTER_MS = 600_000
"""A half-open breaker that no timer has tried for this long is closed: no timer waits for that topic."""


@dataclass(slots=True)
class _Breaker:
    since_ms: int
    """Epoch ms of the first failure. Until `has_succeeded`, the topic has taken no record since then."""
    opened_ms: int
    delay_ms: int
    timers: int = 1
    """Timers of each partition that may leave in a turn."""
    most_timers: int | None = None
    """Timers that the topic took before it failed with more (it is slow, or has a quota); None if it did not."""
    has_succeeded: bool = False

    def is_open(self, now_ms: int) -> bool:
        """True if no timer may leave. False if the clock was set back: an earlier retry does no harm."""
        return not has_passed(self.opened_ms, now_ms, self.delay_ms)


class CircuitBreakers:
    """One breaker per target topic that has failed lately. Times: epoch ms of the bridge's clock. Not thread-safe."""

    def __init__(self, own_topics: Container[str] = frozenset()) -> None:
        """own_topics: the bridge's own topics. They have no breaker: without them no transaction can be published."""
        self._own_topics = own_topics
        self._breakers: dict[str, _Breaker] = {}

    def __bool__(self) -> bool:
        """True if any target has a breaker that is not closed."""
        return bool(self._breakers)

    def trip(self, targets: Iterable[str], now_ms: int) -> list[str]:
        """Open the breakers of `targets`; return the targets that took records until now."""
        newly = []
        for target in targets:
            if target in self._own_topics:
                continue
            breaker = self._breakers.get(target)
            if breaker is None or breaker.has_succeeded:
                if breaker is None and len(self._breakers) >= MAX_BREAKERS:
                    continue
                newly.append(target)
                new = _Breaker(now_ms, now_ms, FIRST_DELAY_MS)
                if breaker is not None:
                    new.delay_ms = min(2 * breaker.delay_ms, LONGEST_DELAY_MS)
                    new.most_timers = max(1, breaker.timers // 2)
                self._breakers[target] = new
            elif not breaker.is_open(now_ms):
                breaker.opened_ms, breaker.delay_ms = now_ms, min(2 * breaker.delay_ms, LONGEST_DELAY_MS)
        return newly

    def is_open(self, target: str, now_ms: int) -> bool:
        """True if no timer of `target` may leave now."""
        breaker = self._breakers.get(target)
        return breaker is not None and breaker.is_open(now_ms)

    def allowance(self, target: str, now_ms: int) -> int | None:
        """Return how many timers of `target` may leave now, or None for any number."""
        breaker = self._breakers.get(target)
        if breaker is None:
            return None
        return 0 if breaker.is_open(now_ms) else breaker.timers

    def retry_ms(self, target: str, now_ms: int) -> int:
        """Return the epoch ms from which timers of `target` may leave: now, or the end of its retry delay."""
        breaker = self._breakers.get(target)
        return breaker.opened_ms + breaker.delay_ms if breaker is not None and breaker.is_open(now_ms) else now_ms

    def committed(self, targets: Collection[str], now_ms: int) -> list[str]:
        """Note that records to `targets` are committed; return the targets that take records again."""
        again = []
        for target in self._breakers.keys() & set(targets):
            breaker = self._breakers[target]
            if not breaker.has_succeeded:
                again.append(target)
            breaker.has_succeeded = True
            breaker.opened_ms = now_ms - breaker.delay_ms
            breaker.timers *= 2
            if breaker.most_timers is not None:
                breaker.timers = min(breaker.timers, breaker.most_timers)
            if breaker.timers > CLOSED_BEYOND_TIMERS or now_ms - breaker.since_ms > FORGOTTEN_AFTER_MS:
                del self._breakers[target]
        return again

    def unavailable(self, now_ms: int) -> dict[str, int]:
        """Return the targets that take no records, each with the epoch ms of its first failure."""
        for target, breaker in list(self._breakers.items()):
            if now_ms - breaker.opened_ms >= breaker.delay_ms + FORGOTTEN_AFTER_MS:
                del self._breakers[target]
        return {target: each.since_ms for target, each in self._breakers.items() if not each.has_succeeded}


_MOST_BUCKETS = 10_000
"""Beyond this, buckets that are full again are dropped; a bucket that is in use never is."""
_CHECKED = 16
"""Number of the least recently used buckets that are checked for each new one, so that all are checked in time."""


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
