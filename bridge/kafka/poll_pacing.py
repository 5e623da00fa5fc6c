"""Turns that are paced: what comes and falls due meanwhile shares a batch, a transaction and their fixed costs.

requests   . .. . .  ... .  .     a turn for each, 2 ms of CPU with four shards, whatever it holds
paced      |--------|--------|    the first after a pause at once; never earlier than due, later by a pace at most
"""

import time

PACES_S = {"exactly-once": 0.008, "at-least-once": 0.004}
"""By mode of delivery: nearly half of what p99 of lateness may be. Where there is much to do, turns take longer."""


class Pace:
    """One thread."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next_s = 0.0

    def wait(self) -> None:
        """Returns no sooner than so long after it has returned before."""
        if (left_s := self._next_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self._next_s = time.monotonic() + self._least_s
