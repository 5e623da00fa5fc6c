"""Circuit breakers for target topics that take no records, so that the timers of all other targets leave on time.

    closed    --a transaction failed at the topic-->  open       its timers wait, as those of a paused target do
    open      --the retry delay is over----------->  half open  FIRST_TIMERS timers may leave
    half open --they are committed---------------->  twice as many may leave, and so on, until the breaker is closed
    half open --the topic fails again------------->  open, for twice as long (at most LONGEST_DELAY_MS); then no more
                                                     than half of what failed may leave at a time, for 10 minutes

The state is in memory and of one instance. A restart or another instance learns it again, from the first transaction
that fails, so no format holds it: the journal shows a wait as for a target that is beyond its rate.
"""

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass

from bridge.durations import has_passed

FIRST_DELAY_MS = 5000
LONGEST_DELAY_MS = 60_000
FIRST_TIMERS = 64
"""In each partition, and in each turn. A topic that throttles takes a few in a transaction's time, if not all."""
CLOSED_BEYOND_TIMERS = 4096
"""About what one transaction carries: from there on a limit would change nothing."""
MAX_BREAKERS = 1000
"""Each record of the journal names every target that waits. Further ones fail as if there were no breaker."""
FORGOTTEN_AFTER_MS = 600_000
"""A half-open breaker that no timer has tried for so long is closed: nothing waits for that topic."""


@dataclass(slots=True)
class _Breaker:
    since_ms: int
    """When it opened first; it has not taken a record since."""
    opened_ms: int
    delay_ms: int
    timers: int = FIRST_TIMERS
    most_timers: int | None = None
    """What a topic took that failed when it got more: it is slow, or has a quota."""
    has_succeeded: bool = False

    def is_open(self, now_ms: int) -> bool:
        """False if the clock was set back: then the topic is tried earlier, which does no harm."""
        return not has_passed(self.opened_ms, now_ms, self.delay_ms)


class CircuitBreakers:
    """One per target topic that has failed lately. Times are epoch ms of the bridge's clock. For one thread."""

    def __init__(self, own_topics: Container[str] = frozenset()) -> None:
        """`own_topics`: of the bridge, which have none: without them nothing can be published at all."""
        self._own_topics = own_topics
        self._breakers: dict[str, _Breaker] = {}

    def __bool__(self) -> bool:
        """True if any target has a breaker that is not closed."""
        return bool(self._breakers)

    def trip(self, targets: Iterable[str], now_ms: int) -> list[str]:
        """Open the breakers of `targets`; return those that took records until now."""
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
                    new.most_timers = max(FIRST_TIMERS, breaker.timers // 2)
                self._breakers[target] = new
            elif not breaker.is_open(now_ms):
                breaker.opened_ms, breaker.delay_ms = now_ms, min(2 * breaker.delay_ms, LONGEST_DELAY_MS)
        return newly

    def is_open(self, target: str, now_ms: int) -> bool:
        """True if no timer of `target` may leave now."""
        breaker = self._breakers.get(target)
        return breaker is not None and breaker.is_open(now_ms)

    def allowance(self, target: str, now_ms: int) -> int | None:
        """Return how many timers of `target` may leave now; None: any number."""
        breaker = self._breakers.get(target)
        if breaker is None:
            return None
        return 0 if breaker.is_open(now_ms) else breaker.timers

    def retry_ms(self, target: str, now_ms: int) -> int:
        """Return when timers of `target` may leave: now, or when its retry delay is over."""
        breaker = self._breakers.get(target)
        return breaker.opened_ms + breaker.delay_ms if breaker is not None and breaker.is_open(now_ms) else now_ms

    def committed(self, targets: Collection[str], now_ms: int) -> list[str]:
        """Note that records to `targets` are committed; return those that take records again."""
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
        """Return the targets that take no records, each with the time (epoch ms) since when."""
        for target, breaker in list(self._breakers.items()):
            if now_ms - breaker.opened_ms >= breaker.delay_ms + FORGOTTEN_AFTER_MS:
                del self._breakers[target]
        return {target: each.since_ms for target, each in self._breakers.items() if not each.has_succeeded}
