"""The demo's stream: flights out when they are to be sent, departures back as they come, counted and shown.

sent 700  =  delivered 612  +  pending 88        late now: p50 and max of the last two seconds
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from scripts.common import delivery_figures as figures
from scripts.common.kafka_io import Delivery, Receiver, TimerSender
from scripts.demo.flights import TOPICS, ScheduledFlight

HEAD_START_MS = 3_000
GIVE_UP_MS = 20_000
"""Wait after the last departure. Longer than the audit's settling time, so that it can call a timer missing."""
_NOW_MS = 2_000
_LINE_EVERY_S = 5.0


class DepartureCounts:
    """Counts of flights and departures. Only the first delivery of an origin counts; the audit finds duplicates."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self._origins: set[bytes] = set()
        self._recent: deque[tuple[int, int]] = deque()

    @property
    def delivered(self) -> int:
        return len(self._origins)

    @property
    def pending(self) -> int:
        return self.sent - self.delivered

    @property
    def complete(self) -> bool:
        return self.delivered >= self.total

    def note(self, came: Sequence[Delivery]) -> None:
        self._origins.update(delivery.origin for delivery in came)
        self._recent.extend((delivery.seen_ms, delivery.appended_ms - delivery.due_ms) for delivery in came)

    def late_now(self, now_ms: int) -> str:
        """Return "p50 3 ms, max 9 ms", by the broker's clock."""
        while self._recent and self._recent[0][0] < now_ms - _NOW_MS:
            self._recent.popleft()
        if not self._recent:
            return ""
        late = figures.lateness(np.array([late_ms for _, late_ms in self._recent], np.int64))
        return f"late now: p50 {late.p50_ms} ms, max {late.max_ms} ms"


def stream(
    bootstrap_servers: str, timer_topic: str, flights: Sequence[ScheduledFlight], console: Console
) -> DepartureCounts:
    """Send and receive until every flight has departed, or some time after the last is due. Raises BridgeError."""
    tally = DepartureCounts(len(flights))
    with ExitStack() as held:
        receiver = held.enter_context(Receiver(bootstrap_servers, TOPICS))
        shown: _Display = _Bars(console, tally) if console.is_terminal else _Lines(console, tally)
        display = held.enter_context(shown)
        sender = TimerSender(bootstrap_servers)
        begin_ms = _now_ms() + HEAD_START_MS
        give_up_ms = begin_ms + max(flight.due_after_ms for flight in flights) + GIVE_UP_MS
        while not tally.complete and (now_ms := _now_ms()) < give_up_ms:
            _send(sender, timer_topic, flights, tally, begin_ms, now_ms)
            tally.note(receiver.poll(0.05))
            display.show(now_ms)
        sender.flush()
        display.show(_now_ms())
    return tally


def _send(
    sender: TimerSender,
    topic: str,
    flights: Sequence[ScheduledFlight],
    tally: DepartureCounts,
    begin_ms: int,
    now_ms: int,
    most: int = 5_000,
) -> None:
    """Send the flights whose time has come; at most `most` at once, so that the display is updated."""
    for flight in flights[tally.sent : tally.sent + most]:
        if begin_ms + flight.send_after_ms > now_ms:
            break
        sender.send(topic, flight.request(begin_ms))
        tally.sent += 1
    sender.serve()


class _Display(AbstractContextManager["_Display"]):
    """Shows counts while they change."""

    def show(self, now_ms: int) -> None:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class _Bars(_Display):
    """For a terminal: two progress bars."""

    def __init__(self, console: Console, tally: DepartureCounts) -> None:
        name, say = TextColumn("{task.description:>9}"), TextColumn("{task.fields[say]}")
        self._bars = Progress(name, BarColumn(), MofNCompleteColumn(), say, console=console)
        self._tally = tally
        self._sent = self._bars.add_task("sent", total=tally.total, say="")
        self._delivered = self._bars.add_task("delivered", total=tally.total, say="")

    def show(self, now_ms: int) -> None:
        tally = self._tally
        self._bars.update(self._sent, completed=tally.sent, say=f"pending {tally.pending:,}")
        self._bars.update(self._delivered, completed=tally.delivered, say=tally.late_now(now_ms))

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


class _Lines(_Display):
    """For a log: a line at intervals, and one at the end."""

    def __init__(self, console: Console, tally: DepartureCounts) -> None:
        self._say: Callable[[str], None] = lambda line: console.print(line, highlight=False, soft_wrap=True)
        self._tally = tally
        self._begin_s = self._said_s = time.monotonic()
        self._over = False

    def show(self, now_ms: int) -> None:
        now_s, tally = time.monotonic(), self._tally
        if self._over or (now_s - self._said_s < _LINE_EVERY_S and not tally.complete):
            return
        self._said_s, self._over = now_s, tally.complete
        counts = f"sent {tally.sent:,}  pending {tally.pending:,}  delivered {tally.delivered:,} of {tally.total:,}"
        self._say(f"{now_s - self._begin_s:4.0f} s  {counts}  {tally.late_now(now_ms)}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
