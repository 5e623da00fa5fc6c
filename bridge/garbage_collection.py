"""Tune Python's collector of cyclic garbage, and the C library's allocator, for batches of records.

A record is a list and a tuple for each header. They are freed with their batch and are in no cycle.

threshold 700 (Python's)      -> each batch of 5,000 is scanned dozens of times: a third of a request's cost
threshold 100,000             -> a batch stays below it; cycles are still found, a little later
"""

import ctypes
import gc
from collections.abc import Callable

_THRESHOLD = 100_000
"""Containers: more than a batch makes. It bounds what cycles hold until they are found."""


def tune_gc() -> None:
    """Set the threshold for the whole process, and never scan what exists now. Call it once, after all imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Numbers of two options of mallopt, from glibc's malloc.h."""
_OWN_BLOCK_BYTES = 1 << 20
_ARENAS = 2


def tune_malloc() -> None:
    """Give freed memory back to the system: large blocks at once, and in two arenas instead of eight per core.

    glibc otherwise learns to keep blocks of up to 32 MB. Does nothing with another C library. Call it before threads
    start.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_BLOCK_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


_QUIET_S = 1.0
"""Shorter than most pauses between bursts. Under load the next turn needs the memory again."""


def trim_malloc() -> None:
    """Give all freed memory back to the system. Takes some ms. Does nothing with another C library than glibc."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class QuietRelease:
    """Calls `release` once whenever the bridge has been idle for `_QUIET_S`."""

    def __init__(self, release: Callable[[], None], now_s: Callable[[], float]) -> None:
        """now_s: seconds of a monotonic clock."""
        self._release = release
        self._now_s = now_s
        self._busy_s: float | None = now_s()
        """Last time of work that was not followed by a release."""

    def turn_ended(self, *, is_idle: bool) -> None:
        if not is_idle:
            self._busy_s = self._now_s()
        elif self._busy_s is not None and self._now_s() - self._busy_s >= _QUIET_S:
            self._busy_s = None
            self._release()
