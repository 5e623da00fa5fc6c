"""Circuit breakers for target topics that take no records, so that the timers of all other targets leave on time.

    closed    --a transaction failed at the topic-->  open       its timers wait, as those of a paused target do
    open      --the retry delay is over----------->  half open  one timer of each partition may leave
    half open --they are committed---------------->  twice as many may leave, and so on, until the breaker is closed
    half open --the topic fails again------------->  open, for twice as long (at most LONGEST_DELAY_MS); then at most
                                                     half as many as failed may leave at a time, for 10 minutes

Each instance keeps the state in memory. After a restart, and in another instance, the first transaction that fails
opens the breaker again. No format holds the state: the journal shows the wait like that of a target beyond its rate.
"""

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass

from bridge.config.durations import has_passed

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
