"""Count requests, deliveries and their lateness over the last minutes. The loop's thread writes, any thread reads.

    10 s slots of an hour:    | in 200, out 180, lateness {5 ms: 170, 8 ms: 10}; in one of each minute: pending | ... |

Lateness is the time from a timer's due time to the end of its transaction, when consumers see it, in steps of a tenth.
Timers that waited for a paused or rate-limited target are left out.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, computed_field

from timer.format.unit import unique_counts

SLOT_MS = 10_000
SLOTS = 30
MINUTE_MS = 60_000
MINUTES = 60
_STEP = 1.1
_STEPS = 264
"""The last step is a hundred days; later timers count as that."""
_BOUNDS_MS = np.unique(np.ceil(_STEP ** np.arange(_STEPS)).astype(np.int64))


class Counts(BaseModel):
    """Traffic of a slot or a minute."""

    from_ms: int
    timers: int = Field(description="Timers delivered, with those whose lateness does not count.")
    taken_in: int = Field(0, description="Requests read.")
    pending: int | None = Field(None, description="Timers at the begin of a minute; null: not known.")


class Deliveries(Counts):
    late: dict[int, int] = Field(description="Timers by lateness: upper bound in ms, number of timers.")


class Traffic(BaseModel):
    """Requests read and timers delivered each second, over the last minute; deliveries of the last 5 minutes.

    Instances answer each other with it. Those of the last release read `late` and have no `slots`.
    """

    in_per_s: float
    out_per_s: float
    slots: list[Deliveries] = Field(
        default_factory=list, description="The last 5 minutes, 10 s each; one without deliveries is left out."
    )

    minutes: list[Deliveries] = Field(default_factory=list, description="The last hour.")

    @computed_field(description="Timers of all slots, by lateness.")  # type: ignore[prop-decorator]
    @property
    def late(self) -> dict[int, int]:
        return _summed(slot.late for slot in self.slots)


def lateness_ms(late: Mapping[int, int], share: float) -> int | None:
    """Return the lateness that `share` of the timers did not exceed, or None without timers."""
    wanted, total = share * sum(late.values()), 0
    for bound_ms, count in sorted(late.items()):
        total += count
        if total >= wanted:
            return bound_ms
    return None


def joined_traffic(parts: Iterable[Traffic]) -> Traffic:
    all_ = list(parts)
    return Traffic(
        in_per_s=sum(each.in_per_s for each in all_),
        out_per_s=sum(each.out_per_s for each in all_),
        slots=_joined(each.slots for each in all_),
        minutes=_joined(each.minutes for each in all_),
    )


def _joined(parts: Iterable[Iterable[Deliveries]], step_ms: int = SLOT_MS) -> list[Deliveries]:
    """Add up what began in the same step, by time."""
    by_start: defaultdict[int, list[Deliveries]] = defaultdict(list)
    for slot in chain.from_iterable(parts):
        by_start[slot.from_ms - slot.from_ms % step_ms].append(slot)
    return [
        Deliveries(
            from_ms=at_ms,
            timers=sum(each.timers for each in own),
            late=_summed(each.late for each in own),
            taken_in=sum(each.taken_in for each in own),
            pending=None if all(each.pending is None for each in own) else sum(each.pending or 0 for each in own),
        )
        for at_ms, own in sorted(by_start.items())
    ]


def _summed(parts: Iterable[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for each in parts:
        total.update(each)
    return total


class TrafficMeter:
    """Counts traffic in slots. `now_ms` is the bridge's clock. If it jumps back, later slots are forgotten."""

    def __init__(self) -> None:
        self._slots: deque[Deliveries] = deque(maxlen=MINUTES * MINUTE_MS // SLOT_MS)
        self._began_ms: int | None = None
        self._sampled_minute: int | None = None

    def requests_polled(self, requests: int, now_ms: int) -> None:
        self._current(now_ms).taken_in += requests

    def timers_delivered(self, due_ms: npt.NDArray[np.int64], now_ms: int, waited: int = 0) -> None:
        """Count deliveries. due_ms: of timers whose lateness counts. waited: number of others, which waited."""
        step = np.searchsorted(_BOUNDS_MS[:-1], now_ms - due_ms)
        bounds, counts = unique_counts(_BOUNDS_MS[step])
        late = dict(zip(bounds.tolist(), counts.tolist(), strict=True))
        slot = self._current(now_ms)
        slot.timers += len(due_ms) + waited
        slot.late = _summed((slot.late, late))  # a new one, as another thread may read the old one

    def sample_pending(self, count: Callable[[], int], now_ms: int) -> None:
        """Note once a minute how many timers are pending."""
        if self._sampled_minute != now_ms // MINUTE_MS:
            self._sampled_minute = now_ms // MINUTE_MS
            self._current(now_ms).pending = count()

    def recent(self, now_ms: int) -> Traffic:
        all_ = [slot for slot in tuple(self._slots) if slot.from_ms <= now_ms]
        began_ms = now_ms if self._began_ms is None else self._began_ms
        of_a_minute = [slot for slot in all_ if slot.from_ms > now_ms - MINUTE_MS]
        first_ms = now_ms // SLOT_MS * SLOT_MS - MINUTE_MS + SLOT_MS
        span_s = max(1.0, (now_ms - max(began_ms, first_ms)) / 1000)
        return Traffic(
            in_per_s=sum(slot.taken_in for slot in of_a_minute) / span_s,
            out_per_s=sum(slot.timers for slot in of_a_minute) / span_s,
            slots=[slot for slot in all_ if slot.timers and slot.from_ms > now_ms - SLOTS * SLOT_MS],
            minutes=[each for each in _joined([all_], MINUTE_MS) if each.from_ms > now_ms - MINUTES * MINUTE_MS],
        )

    def _current(self, now_ms: int) -> Deliveries:
        if self._began_ms is None or now_ms < self._began_ms:
            self._began_ms = now_ms
        from_ms = now_ms - now_ms % SLOT_MS
        while self._slots and self._slots[-1].from_ms > from_ms:
            self._slots.pop()
        if not self._slots or self._slots[-1].from_ms < from_ms:
            self._slots.append(Deliveries(from_ms=from_ms, timers=0, late={}))
        return self._slots[-1]
