"""The demo's stream: send each flight at its time, and receive, count and show departures.

sent 700  =  delivered 612  +  pending 88        late now: p50 and max of the last two seconds
"""

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from scripts.common.delivery_figures import lateness
from scripts.common.kafka_io import Delivery, Receiver, TimerSender
from scripts.demo.flights import TOPICS, ScheduledFlight

HEAD_START_MS = 3_000
GIVE_UP_MS = 20_000
"""Wait after the last departure. Longer than the audit's settling time, so that it can call a timer missing."""
_NOW_MS = 2_000
_LINE_EVERY_MS = 5_000
_MOST_AT_ONCE = 5_000
"""Flights that are sent before the counts are shown again."""


class DepartureCounts:
    """Counts of flights and departures. Only the first delivery of an origin counts; the audit finds duplicates."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self._origins: set[bytes] = set()
        self._recent: deque[tuple[int, int]] = deque()

    @property
    def complete(self) -> bool:
        return len(self._origins) >= self.total

    def note(self, deliveries: Sequence[Delivery]) -> None:
        self._origins.update(delivery.origin for delivery in deliveries)
        self._recent.extend((delivery.seen_ms, delivery.appended_ms - delivery.due_ms) for delivery in deliveries)

    def line(self, now_ms: int) -> str:
        """Return the counts, and the lateness of the last two seconds by the broker's clock."""
        while self._recent and self._recent[0][0] < now_ms - _NOW_MS:
            self._recent.popleft()
        late = lateness(np.array([late_ms for _, late_ms in self._recent], np.int64))
        delivered = len(self._origins)
        return (
            f"sent {self.sent:,}  pending {self.sent - delivered:,}  delivered {delivered:,} of {self.total:,}"
            f"  late now: p50 {late.p50_ms} ms, max {late.max_ms} ms"
        )


def stream(
    bootstrap_servers: str, timer_topic: str, flights: Sequence[ScheduledFlight], console: Console
) -> DepartureCounts:
    """Send and receive until every flight has departed, or some time after the last is due. Raises BridgeError.

    A terminal shows the present counts; a log gets a line at intervals.
    """
    counts = DepartureCounts(len(flights))
    with Receiver(bootstrap_servers, TOPICS) as receiver, console.status("") as status:
        sender = TimerSender(bootstrap_servers)
        shown_ms = started_ms = _now_ms()
        begin_ms = started_ms + HEAD_START_MS
        give_up_ms = begin_ms + max(flight.due_after_ms for flight in flights) + GIVE_UP_MS
        while not counts.complete and (now_ms := _now_ms()) < give_up_ms:
            _send(sender, timer_topic, flights, counts, begin_ms)
            counts.note(receiver.poll(0.05))
            status.update(counts.line(now_ms))
            if not console.is_terminal and now_ms - shown_ms > _LINE_EVERY_MS:
                shown_ms = now_ms
                console.print(f"{(now_ms - started_ms) / 1000:4.0f} s  {counts.line(now_ms)}", soft_wrap=True)
        sender.flush()
        console.print(f"{(_now_ms() - started_ms) / 1000:4.0f} s  {counts.line(_now_ms())}", soft_wrap=True)
    return counts


def _send(
    sender: TimerSender, topic: str, flights: Sequence[ScheduledFlight], counts: DepartureCounts, begin_ms: int
) -> None:
    """Send the flights whose time has come."""
    now_ms = _now_ms()
    for flight in flights[counts.sent : counts.sent + _MOST_AT_ONCE]:
        if begin_ms + flight.send_after_ms > now_ms:
            break
        sender.send(topic, flight.request(begin_ms))
        counts.sent += 1
    sender.serve()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
