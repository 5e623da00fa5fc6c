"""How many timers of each partition may leave in a turn, so that a burst of some does not make those of others late.

    4 partitions have 4,000 timers due at once    the turn takes 900 ms, and timers of others are as late
    with a pace                                   some hundreds of each leave in a turn of 120 ms

A turn drafts the timers of all partitions, sends them in one transaction, and settles those of an earlier one. What
that takes depends on partitions, sizes, disk and brokers, so it is measured.
"""

TURN_MS = 120
"""Time of a turn for timers that leave, without waits for transactions in flight. Intake has its own (admission.py)."""
LEAST_TIMERS = 32


class ReleasePace:
    """Timers of each partition in a turn: `timers`. A partition with fewer due is not affected."""

    def __init__(self, most_timers: int) -> None:
        """most_timers: of one partition in one transaction."""
        self._most = most_timers
        self.timers = LEAST_TIMERS

    def adapt(self, took_ms: int, partitions: int, *, is_full: bool) -> None:
        """Set the pace of the next turn.

        took_ms: for timers that left in this turn. is_full: True if a partition may have had more of them due.
        """
        if took_ms > TURN_MS:
            self.timers = max(LEAST_TIMERS, self.timers * TURN_MS // took_ms)
        elif is_full:
            self.timers = min(2 * self.timers, max(self._most, LEAST_TIMERS))
        else:  # the next burst may be one of all partitions
            self.timers = max(LEAST_TIMERS, self._most // max(1, partitions), self.timers // 2)
