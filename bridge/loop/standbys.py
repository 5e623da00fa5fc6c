"""Standbys: the stores of partitions that others own, kept near their committed progress.

A refresh is a recovery without an owner: it reads from Kafka what was committed since, and closes the store again.
They run one at a time, the oldest store first. A partition that is assigned to us then opens with what came since.
Before an instance joins others, it refreshes each store once, as timers of a partition that moves wait meanwhile.
"""

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass

from bridge.observe.status import Status
from bridge.ports import BackgroundRecovery, Clock
from kafka_timer.origin import TimerPartition

INTERVAL_MS = 5000
"""A store is refreshed at most this often."""
_LOOK_MS = 500
_FAILED_MS = 60_000
"""Time until the next try after an error, which the refresh has logged."""


@dataclass(eq=False)
class Standbys:
    """For the loop's thread alone. partitions: all of the timer topics."""

    _clock: Clock
    _status: Status
    _refresh: Callable[[TimerPartition], BackgroundRecovery]
    _partitions: Collection[TimerPartition]
    _interval_ms: int = INTERVAL_MS

    def __post_init__(self) -> None:
        self._next_ms = dict.fromkeys(self._partitions, 0)
        """The earliest start (epoch ms) of each partition's next refresh."""
        self._running: tuple[TimerPartition, BackgroundRecovery] | None = None
        self._began_ms = self._clock.now_ms()

    def warm_up(self, is_served: Callable[[], bool], rest: Callable[[], None]) -> None:
        """Refresh each store once, as long as others own the partitions. is_served: tells whether they do."""
        look_ms = self._clock.now_ms()
        while 0 in self._next_ms.values():
            if self._clock.now_ms() >= look_ms:
                if not is_served():
                    break
                look_ms = self._clock.now_ms() + _LOOK_MS
            self.step(())
            rest()
        self.give_up()

    def step(self, owned: Container[TimerPartition]) -> None:
        """Note the end of a refresh, or start the next one. owned: the partitions that are assigned to us."""
        now_ms, others = self._clock.now_ms(), [each for each in self._partitions if each not in owned]
        if self._running is None:
            if others and self._next_ms[oldest := min(others, key=self._next_ms.__getitem__)] <= now_ms:
                self._began_ms = now_ms
                self._running = oldest, self._refresh(oldest)
            return
        partition, refresh = self._running
        if refresh.is_done():
            self._running = None
            is_fresh = refresh.refused is None
            self._next_ms[partition] = now_ms + (self._interval_ms if is_fresh else _FAILED_MS)
            if is_fresh:
                self._status.standby_refreshed(partition, (now_ms - self._began_ms) / 1000)

    def give_up(self) -> None:
        """Stop a refresh that runs. After the return no refresh writes to any directory."""
        if self._running is not None:
            self._running[1].give_up()
            self._running = None
