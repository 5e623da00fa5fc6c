"""When a timer wakes up, and how many leave in one turn. Pure functions of times, rows and allowances.

The wake-up time (`visit_ms`) is the due time, or an earlier time to roll if that is beyond the roll window:

    window 60     due in  50 -> wake up in 50, delivered
                  due in  70 -> 10 beyond the window, less than a third of it: wake up in 30, so that the last wait is
                                not a short one
                  due in 200 -> wake up in 60, copied to the end of the timer topic, and again from there

RIP-43's rule, from the record's timestamp. A request that is overdue when sent wakes up at its timestamp.

A turn has a room for all targets together, and an allowance for each limited one:

    rows, allowances  -> leaving       which rows leave; the others wait
    queue, room       -> Room.take     the first rows that have room
    targets           -> rotated_to    round robin: a target that got nothing is the first in the next turn
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timer.format.unit import NO_ROWS, Rows
from timer.schedule.queues import RowQueue


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
    """Return the time in which a copy that was read does not roll again, an eighth of the window.

    Otherwise a clock ahead of the brokers' by a window would roll it without end: the wake-up time of a copy is counted
    from the brokers' timestamp.
    """
    return window_ms // 8


class Gate(Protocol):
    """How many timers of each target may leave."""

    def allowance(self, target: str, now_ms: int) -> int | None:
        """Return how many may leave; None: any number."""

    def spend(self, target: str, timers: int, now_ms: int) -> None: ...


@dataclass(slots=True)
class Room:
    """Timers and bytes that one turn may still take, over all targets. The last body may exceed the bytes."""

    timers: int
    size_bytes: int
    starved: list[int] = field(default_factory=list)
    """Hashes of targets that got nothing because there was no room."""
    cut_short: list[int] = field(default_factory=list)
    """Hashes of targets that got less than they must because there was no room."""

    def is_full_for(self, hash_: int) -> bool:
        """True if there is no room left; the target is noted as starved."""
        if self.timers == 0:
            self.starved.append(hash_)
        return self.timers == 0

    def take(self, queue: RowQueue, until_ms: int, most: int) -> Rows:
        """Take the first rows of `queue` up to `until_ms`: at most `most`, as far as there is room."""
        most = min(most, self.timers)
        run = queue.take(until_ms, most, self.size_bytes) if most > 0 else NO_ROWS
        self.spend(run)
        return run

    def spend(self, run: Rows) -> None:
        if len(run) == 0:
            return
        self.size_bytes -= int(run["body_size"].sum(dtype=np.int64))
        self.timers = self.timers - len(run) if self.size_bytes > 0 else 0


def count_due(rows: Rows, now_ms: int) -> int:
    return int((rows["due_ms"] <= now_ms).sum())


def passing(rows: Rows, allowed: int, now_ms: int) -> int:
    """Return how many rows at the start of `rows` leave if `allowed` due ones may. Rolls are not limited."""
    return int((rows["due_ms"] <= now_ms).cumsum().searchsorted(allowed, side="right"))


def leaving(rows: Rows, allowances: Mapping[int, int], now_ms: int) -> NDArray[np.bool_]:
    """Return which of `rows` leave. allowances: due rows that may leave, by hash of a limited target."""
    leaves = np.ones(len(rows), np.bool_)
    for hash_, allowed in allowances.items():
        own = (rows["topic_hash"] == hash_).nonzero()[0]
        leaves[own[passing(rows[own], allowed, now_ms) :]] = False
    return leaves


def rotated_to(first: int | None, hashes: list[int]) -> list[int]:
    """Return `hashes` rotated so that `first` is the first: no target is always the last."""
    at = hashes.index(first) if first in hashes else 0
    return hashes[at:] + hashes[:at]
