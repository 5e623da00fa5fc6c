"""Token bucket: a rate per second, of requests of a timer topic or of timers to a target.

    1000/s     1000 at once, then 100 each 100 ms          never more than 1000 x (seconds + 1) in any span of time

It gives lots of a tenth of a second, as a turn for each request would cost more than the request. A clock that jumps
ahead fills the bucket once at most; if it goes back, nothing is filled, and time counts on from there.
"""

from math import ceil, inf

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
