"""Requests per second of one timer topic: a bucket that time fills, and intake takes from.

    1000/s     1000 at once, then 100 each 100 ms          never more than 1000 x (seconds + 1) in any stretch of time

It is asked for lots of a tenth of a second, as a turn for each request would cost more than the request. A clock that
jumps ahead fills it once at most; one that goes back fills nothing, and time counts on from there.
"""

_LOTS_PER_S = 10
_SHARE = 1000
"""Parts of a request that are counted: a ms of 1 request/s is one."""


class Throttle:
    """Of one timer topic on one instance, for all of its shards there. Begins full."""

    def __init__(self, per_s: int) -> None:
        self.per_s = per_s
        self._shares = per_s * _SHARE
        self._at_ms: int | None = None

    def allowance(self, wanted: int, now_ms: int) -> int:
        """How many may go in now: all in the bucket, or none while they are fewer than a lot, and than `wanted`."""
        self._fill(now_ms)
        requests = self._shares // _SHARE
        return requests if requests >= self._lot(wanted) else 0

    def spend(self, requests: int) -> None:
        """So many of the allowance went in."""
        self._shares -= requests * _SHARE

    def next_ms(self, wanted: int, now_ms: int) -> int:
        """When `allowance` is more than none."""
        self._fill(now_ms)
        missing = self._lot(wanted) * _SHARE - self._shares
        return now_ms + max(0, -(-missing // self.per_s))

    def _lot(self, wanted: int) -> int:
        return min(wanted, max(1, self.per_s // _LOTS_PER_S))

    def _fill(self, now_ms: int) -> None:
        passed_ms = 0 if self._at_ms is None else max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._shares = min(self.per_s * _SHARE, self._shares + passed_ms * self.per_s)
