"""Limits of what one partition may hold: pending timers and their bytes, and targets with a rate.

A quota is asked once, at intake. It is exact, as the pending timers of a partition are known in the order of requests.
A timer that is being delivered does not count; it counts again if its target takes nothing (`roll_unavailable`).
"""

from dataclasses import dataclass
from math import inf

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
