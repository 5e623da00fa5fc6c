"""When a timer is looked at next: at its due time, or, where that lies beyond the roll window, earlier, to be rolled.

    window 60     due in  50 -> visit in 50, delivered
                  due in  70 -> the rest beyond the window, 10, is under a third of it: visit in 30, so that the last
                                stretch is not a short one
                  due in 200 -> visit in 60, copied to the end of the timer topic, and looked at again from there

RIP-43's rule, on the record's timestamp. What is overdue when it is sent is visited by its timestamp.
"""


def visit_ms(due_ms: int, timestamp_ms: int, window_ms: int) -> int:
    """Epoch ms; below `due_ms` exactly when the timer is to be rolled then."""
    rest_ms = due_ms - timestamp_ms
    if rest_ms <= window_ms:
        return max(due_ms, timestamp_ms)
    if 3 * (rest_ms - window_ms) < window_ms:
        return timestamp_ms + window_ms // 2
    return timestamp_ms + window_ms


def most_wait_ms(window_ms: int) -> int:
    """How long a timer waits for its target before it is rolled: so all visits lie within two windows, and a lap."""
    return window_ms * 3 // 4


def rest_of_window_ms(window_ms: int) -> int:
    """A timer is not rolled twice within this time: else a clock that runs ahead of the brokers' by a window would roll
    it without end, as a copy's visit is reckoned from their time.
    """
    return window_ms // 8
