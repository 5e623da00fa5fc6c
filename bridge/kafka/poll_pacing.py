"""Pace the turns, so that records that arrive or fall due meanwhile share a batch and a transaction.

requests   . .. . .  ... .  .     a turn for each: 2 ms of CPU with four partitions, for any number of records
paced      |--------|--------|    first request after a pause: at once; timers leave at most one interval late
"""

import time

POLL_INTERVAL_S = {"exactly-once": 0.008, "at-least-once": 0.004}
"""By mode of delivery: nearly half of the p99 target for lateness. Under load, turns take longer anyway."""


class PollPacer:
    """Not for use by two threads."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next_s = 0.0

    def wait(self) -> None:
        """Wait until the interval since the last return has passed."""
        if (left_s := self._next_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self._next_s = time.monotonic() + self._least_s
