"""A wait before the next try of something that blocks the loop's thread."""

from bridge.config.durations import has_passed
from bridge.ports import Clock

_RETRY_MS = 5000
"""Time between two tries to open a partition: a try may take long, and the loop's thread serves all partitions."""


class RetryDelay:
    """Implements bridge.ports.BackgroundRecovery: it takes the place of a recovery until the next try."""

    refused = None

    def __init__(self, clock: Clock, wait_ms: int = _RETRY_MS) -> None:
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._wait_ms = wait_ms

    def is_done(self) -> bool:
        return has_passed(self._since_ms, self._clock.now_ms(), self._wait_ms)

    def give_up(self) -> None:
        """Stop waiting: no delay runs any more."""
