"""Limits of a partition: rates and circuit breakers of target topics, and refusals beyond a quota.

    [targets."orders.*"]  max_per_s = 100          of 16 partitions each has 6.25/s, whichever instance owns it

Each partition has its part of a rate, as of `max_pending`, so a target never gets more, however many instances there
are. The first pattern that fits counts.

A target topic that takes no records has a circuit breaker, so that the timers of all other targets leave on time:

    closed    --a transaction failed at the topic-->  open       its timers wait, as those of a paused target do
    open      --the retry delay is over----------->  half open  one timer of each partition may leave
    half open --they are committed---------------->  twice as many may leave, and so on, until the breaker is closed
    half open --the topic fails again------------->  open, for twice as long (at most LONGEST_DELAY_MS); then at most
                                                     half as many as failed may leave at a time, for 10 minutes
    half open --the cluster reports it still away->  open, for the first delay: nothing was sent, so the try was cheap

A target that refuses some records has one, too: the refused ones are rejected, the others wait for a second, and are
tried in batches of growing size. So a transaction fails at most once a second for it, and decides about many timers.

Each instance keeps the state in memory alone; the journal shows the wait like that of a target beyond its rate.

Intake checks quotas. They are exact: the pending timers of a partition are known in the order of requests. A timer that
is being delivered does not count; it counts again if its target takes nothing (`Draft.roll_unavailable`).
"""

import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from itertools import islice
from math import ceil, inf

from bridge.partition.options import has_passed
from kafka_timer.headers import Refusal

_LOTS_PER_S = 10
_ROUNDING = 1e-9
"""Share of a token that adding up tenths may lose."""


class TokenBucket:
    """Limits requests of a timer topic, or timers to a target, to a rate per second.

    Begins full, or empty at `since_ms`: then no number of restarts exceeds the rate.

        1000/s     1000 at once, then 100 each 100 ms          never more than 1000 x (seconds + 1) in any span of time

    It gives lots of a tenth of a second, as a turn for each request would cost more than the request. A clock that
    jumps ahead fills the bucket once at most; if it goes back, nothing is filled, and time counts on from there.
    """

    def __init__(self, per_s: float, now_ms: int, since_ms: float = -inf) -> None:
        self.per_s = per_s
        self._lot = max(1, int(per_s / _LOTS_PER_S))
        self._most = max(1.0, per_s)
        self._tokens, self._at_ms = 0.0, since_ms
        self._fill(now_ms)

    def allowance(self, now_ms: int, wanted: float = inf) -> int:
        """Return how many may go now: all tokens, or 0 while they are fewer than a lot, and than `wanted`."""
        self._fill(now_ms)
        tokens = int(self._tokens + _ROUNDING)
        return tokens if tokens >= min(wanted, self._lot) else 0

    def spend(self, tokens: int) -> None:
        self._tokens -= tokens

    def is_full(self, now_ms: int) -> bool:
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
    f"timers for {MOST_LIMITED} target topics are pending in its partition, and one more that has a rate would be too"
    f" many: send it again later, or give it no max_per_s",
)
FIRST_DELAY_MS = 5000  # retry delay after the first failure; it doubles with each further one that was sent
REFUSED_DELAY_MS = 1000
REFUSED_TIMERS = 256
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

    def reopen(self, now_ms: int, longest_ms: int) -> None:
        """Wait for twice as long: the topic has failed again, and has taken no record meanwhile."""
        self.opened_ms, self.delay_ms = now_ms, min(2 * self.delay_ms, longest_ms)

    def refuse(self, now_ms: int) -> None:
        """Wait for a moment, then let twice as many leave: each try finds the records that the topic refuses."""
        self.opened_ms, self.delay_ms = now_ms, REFUSED_DELAY_MS
        self.timers = min(max(REFUSED_TIMERS, 2 * self.timers), CLOSED_BEYOND_TIMERS)

    def succeed(self, now_ms: int) -> None:
        """Let twice as many timers leave at a time: records are committed."""
        self.has_succeeded = True
        self.opened_ms = now_ms - self.delay_ms
        self.timers = min(2 * self.timers, self.most_timers or 2 * self.timers)

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

    def have_failed(self, targets: Iterable[str]) -> bool:
        """True if one of `targets` has failed lately, so that a transaction with it may fail again."""
        return not self._breakers.keys().isdisjoint(targets)

    def trip(self, targets: Iterable[str], now_ms: int, *, is_known: bool = False) -> list[str]:
        """Open the breakers of `targets`; return the targets that took records until now.

        is_known: True if nothing was sent to them, as the cluster reported them as unavailable. Each try still writes
        a copy of a timer, so tries are rarer if there are many breakers.
        """
        newly, longest_ms = [], LONGEST_DELAY_MS
        if is_known:
            longest_ms = max(FIRST_DELAY_MS, LONGEST_DELAY_MS * len(self._breakers) // MAX_BREAKERS)
        for target in targets:
            breaker = self._breakers.get(target)
            if breaker is None and self._may_add(target):
                self._breakers[target] = _Breaker(now_ms, now_ms, FIRST_DELAY_MS)
                newly.append(target)
            elif breaker is not None and breaker.has_succeeded:
                most = max(1, breaker.timers // 2)
                delay_ms = min(2 * breaker.delay_ms, longest_ms)
                self._breakers[target] = _Breaker(now_ms, now_ms, delay_ms, most_timers=most)
                newly.append(target)
            elif breaker is not None and not breaker.is_open(now_ms):
                breaker.reopen(now_ms, longest_ms)
        return newly

    def _may_add(self, target: str) -> bool:
        return target not in self._own_topics and len(self._breakers) < MAX_BREAKERS

    def refuse(self, targets: Iterable[str], now_ms: int) -> None:
        """Open the breakers of `targets`, which take records, but have refused some."""
        for target in targets:
            breaker = self._breakers.get(target)
            if breaker is not None:
                breaker.refuse(now_ms)
            elif self._may_add(target):
                self._breakers[target] = _Breaker(now_ms, now_ms, REFUSED_DELAY_MS, REFUSED_TIMERS, has_succeeded=True)

    def is_open(self, target: str, now_ms: int) -> bool:
        """True if no timer of `target` may leave now."""
        breaker = self._breakers.get(target)
        return breaker is not None and breaker.is_open(now_ms)

    def allowance(self, target: str, now_ms: int) -> int | None:
        """Return how many timers of `target` may leave now, or None for any number."""
        breaker = self._breakers.get(target)
        return None if breaker is None else 0 if breaker.is_open(now_ms) else breaker.timers

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
            breaker.succeed(now_ms)
            if breaker.timers > CLOSED_BEYOND_TIMERS or now_ms - breaker.since_ms > FORGOTTEN_AFTER_MS:
                del self._breakers[target]
        return again

    def unavailable(self, now_ms: int) -> dict[str, int]:
        """Return the targets that take no records, each with the epoch ms of its first failure."""
        for target, breaker in list(self._breakers.items()):
            if now_ms - breaker.opened_ms >= breaker.delay_ms + FORGOTTEN_AFTER_MS:
                del self._breakers[target]
        return {target: each.since_ms for target, each in self._breakers.items() if not each.has_succeeded}


MOST_BUCKETS = 10_000
"""Beyond this, buckets that are full again are dropped; a bucket that is in use never is."""
_CHECKED = 16
"""Number of the least recently used buckets that are checked for each new one, so that all are checked in time."""


class TargetRateLimits:
    """The limits of one partition: a timer.schedule.release_policy.Gate."""

    def __init__(
        self, by_pattern: Mapping[str, float], breakers: CircuitBreakers | None = None, opened_ms: float = -inf
    ) -> None:
        """breakers: of the instance; a target whose breaker is open has no allowance. opened_ms: buckets are empty."""
        self._opened_ms = opened_ms
        self.breakers = CircuitBreakers() if breakers is None else breakers
        self._has_rates = bool(by_pattern)
        patterns = [(re.compile(translate(pattern)), limit) for pattern, limit in by_pattern.items()]
        self._buckets: dict[str, TokenBucket] = {}

        @lru_cache(MOST_BUCKETS)
        def limit_of(target: str) -> float | None:
            return next((limit for pattern, limit in patterns if pattern.match(target)), None)

        self._limit_of = limit_of

    @property
    def is_open(self) -> bool:
        """True if no target has a rate, and none fails."""
        return not self._has_rates and not self.breakers

    def is_limited(self, target: str) -> bool:
        return self._limit_of(target) is not None

    def allowance(self, target: str, now_ms: int) -> int | None:
        bucket = self._bucket(target, now_ms)
        of_rate = None if bucket is None else bucket.allowance(now_ms)
        of_breaker = self.breakers.allowance(target, now_ms)
        return min((each for each in (of_rate, of_breaker) if each is not None), default=None)

    def spend(self, target: str, timers: int, now_ms: int) -> None:
        bucket = self._bucket(target, now_ms)
        if bucket is not None:
            bucket.spend(timers)

    def next_ms(self, target: str, now_ms: int) -> int:
        """Return when the next timer of `target` may leave."""
        bucket = self._bucket(target, now_ms)
        by_rate_ms = now_ms if bucket is None else bucket.next_ms(now_ms)
        return max(by_rate_ms, self.breakers.retry_ms(target, now_ms))

    def _bucket(self, target: str, now_ms: int) -> TokenBucket | None:
        limit = self._limit_of(target)
        if limit is None:
            return None
        bucket = self._buckets.pop(target, None)
        if bucket is None:
            self._make_room(now_ms)
            bucket = TokenBucket(limit, now_ms, self._opened_ms)
        self._buckets[target] = bucket
        return bucket

    def _make_room(self, now_ms: int) -> None:
        for target, bucket in list(islice(self._buckets.items(), _CHECKED)):
            if len(self._buckets) < MOST_BUCKETS:
                return
            del self._buckets[target]
            if not bucket.is_full(now_ms):
                self._buckets[target] = bucket
