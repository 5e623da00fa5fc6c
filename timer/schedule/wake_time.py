"""The wake-up time of a timer (`visit_ms`): its due time, or an earlier time to roll if that is beyond the roll window.

    window 60     due in  50 -> wake up in 50, delivered
                  due in  70 -> 10 beyond the window, less than a third of it: wake up in 30, so that the last wait is
                                not a short one
                  due in 200 -> wake up in 60, copied to the end of the timer topic, and again from there

RIP-43's rule, from the record's timestamp. A request that is overdue when sent wakes up at its timestamp.
"""


def visit_ms(due_ms: int, timestamp_ms: int, window_ms: int) -> int:
    """Return the wake-up time, epoch ms. It is below `due_ms` exactly if the timer rolls then."""
    rest_ms = due_ms - timestamp_ms
    if rest_ms <= window_ms:
        return max(due_ms, timestamp_ms)
    if 3 * (rest_ms - window_ms) < window_ms:
        return timestamp_ms + window_ms // 2
    return timestamp_ms + window_ms


def most_wait_ms(window_ms: int) -> int:
    """Return how long a timer waits for its target before it rolls, so that wake-up times span at most two windows."""
    return window_ms * 3 // 4


def roll_cooldown_ms(window_ms: int) -> int:
    """Return the time in which a timer does not roll again, an eighth of the window.

    Otherwise a clock ahead of the brokers' by a window would roll it without end: the wake-up time of a copy is counted
    from the brokers' timestamp.
    """
    return window_ms // 8
