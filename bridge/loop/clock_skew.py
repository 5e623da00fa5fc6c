"""Measure how far a broker's clock is from ours, by a record of our own that it has stamped (LogAppendTime).

    ours      begun 10:00:00.000 ... committed 10:00:00.012      the record was written in between
    stamped   10:00:00.005 -> 0      10:00:03.000 -> ahead by 2988 ms at the least      09:59:58.000 -> behind by 2000

A slow transaction makes the result less exact, not wrong. The end of a transaction is stamped too, some ms after the
commit: a broker that takes long for that seems to be ahead until the next check.
"""


def skew_ms(stamped_ms: int, begun_ms: int, committed_ms: int) -> int:
    """Return the difference; positive if the broker's clock is ahead of ours, 0 if none can be seen."""
    return max(0, stamped_ms - committed_ms) + min(0, stamped_ms - begun_ms)
