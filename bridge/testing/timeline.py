"""Time of a test: it passes when the test says so, and events run at their time."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass


class Timeline:
    """True time, and the events to come. A machine's clock is a `FakeClock` over it."""

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self.now_ms = start_ms
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when_ms: int, action: Callable[[], None]) -> None:
        """Run `action` when `when_ms` is reached; actions of one ms in the order of the calls."""
        heapq.heappush(self._events, (when_ms, next(self._order), action))

    def advance(self, ms: int) -> None:
        """Let `ms` pass, and run the events of that time."""
        self.wait(ms, lambda: False)

    def wait(self, timeout_ms: int, until: Callable[[], bool]) -> None:
        """Let time pass until `until()` returns True, at most `timeout_ms`. It is called after each event."""
        end_ms = self.now_ms + timeout_ms
        while not until():
            if not self.run_next(end_ms):
                self.now_ms = max(self.now_ms, end_ms)
                return

    def run_next(self, before_ms: int | None = None) -> bool:
        """Jump to the next event and run it. Return False if there is none (up to `before_ms`)."""
        if not self._events or (before_ms is not None and self._events[0][0] > before_ms):
            return False
        when_ms, _, action = heapq.heappop(self._events)
        self.now_ms = max(self.now_ms, when_ms)
        action()
        return True


@dataclass(eq=False)
class FakeClock:
    """A machine's clock: the true time plus an error, which may change at any moment."""

    timeline: Timeline
    error_ms: int = 0

    def now_ms(self) -> int:
        return max(0, self.timeline.now_ms + self.error_ms)

    def cpu_ms(self) -> int:
        return self.now_ms()


def nothing_happens(_where: str) -> None:
    """Default of `meanwhile`: nothing else acts during a call of a port."""
