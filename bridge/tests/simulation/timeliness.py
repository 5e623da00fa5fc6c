"""Judge when timers leave, for bridge.tests.simulation.oracle: no faster than the rate of their target, and on time.

Rate: within one life of a partition (from its opening to its end), the deliveries to a limited target stay below one
burst (`max_per_s`, at least 1) and `max_per_s` for each second that the clock of the instance went ahead.

Lateness: counted in the time that passes within the turns of the instance that owns the partition, since the instances
of a simulation take turns. A timer leaves within LATEST_MS after its time, after it was read, and after the last
disturbance (a fault, an opening, a word of an operator). If its target is limited, each timer that leaves since
then, and one lot more, may take 1/`max_per_s`. If transactions take few timers, each full one may take the lag of its
markers.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_timer.origin import TimerPartition

LATEST_MS = 20
"""A poll of 10 ms while transactions are under way or requests are read first, and twice the lag of markers."""
_MARKERS_MS = 5
"""The longest lag of markers (bridge.testing.fake_kafka)."""
_SEALED = 3
"""Transactions of a partition that may be published again after later timers were taken out."""
_ROUNDING = 1e-6


class Opening(NamedTuple):
    """An instance opened a partition: `passed_ms` at that time, and the end of what was there to be read."""

    passed_ms: int = 0
    end: int = 0


class InstancePace(NamedTuple):
    """The time of the publishing instance, as its transaction began."""

    openings: Mapping[TimerPartition, Opening]
    passed_ms: int
    """How far its clock went ahead, in all."""
    turns: Sequence[Sequence[int]]
    """Begin and end of its turns since the last disturbance (true time, ms)."""
    error_ms: int
    """How far its clock is ahead of the true time."""


class Left(NamedTuple):
    """A timer that left: its target, its time (ms, by the clock of the instance) and when it was read (true time)."""

    target: str
    at_ms: int
    read_ms: int
    is_delivered: bool


@dataclass(slots=True)
class _Rate:
    """Deliveries to one target in one life of a partition. level: those beyond what the time so far allows."""

    opening: Opening
    passed: deque[int]
    level: float = 0.0
    left: list[tuple[int, int]] = field(default_factory=list)
    """When transactions began (true time, ms), and how many timers each took out."""

    def publish(self, limit: float, timers: int, passed_ms: int) -> float:
        """Return how many deliveries are beyond the burst."""
        per_ms = limit / 1000
        since_last, since_sealed = passed_ms - self.passed[-1], passed_ms - self.passed[0]
        self.level = timers + max(self.level - since_last * per_ms, -since_sealed * per_ms)
        self.passed.append(passed_ms)
        return self.level - max(1.0, limit) - _ROUNDING


class Timeliness:
    """Judge the transactions of all partitions, in their order."""

    def __init__(self) -> None:
        self._rates: dict[tuple[TimerPartition, str], _Rate] = {}

    def judge(
        self,
        partition: TimerPartition,
        left: Sequence[Left],
        limits: Mapping[str, float | None],
        pace: InstancePace,
        begun_ms: int,
        lot: int,
    ) -> str:
        """Return what is wrong with one transaction; empty if nothing is.

        left: the timers that left in it. limits: rates of the judged targets; timers of others may be late. lot: the
        largest number of timers in a transaction.
        """
        opening = pace.openings.get(partition, Opening())
        gone, delivered = Counter(each.target for each in left), Counter(e.target for e in left if e.is_delivered)
        for target, timers in gone.items():
            rate = self._rates.get((partition, target))
            if rate is None or rate.opening is not opening:
                rate = self._rates[partition, target] = _Rate(opening, deque([opening.passed_ms] * _SEALED, _SEALED))
            rate.left.append((begun_ms, timers))
            limit = limits.get(target)
            if limit is not None and delivered[target]:
                beyond = rate.publish(limit, delivered[target], pace.passed_ms)
                if beyond > 0:
                    return f"{beyond:.1f} deliveries to {target} beyond {limit}/s"
        for each in left:
            if each.target in limits and (
                late := self._late(partition, each, limits[each.target], pace, begun_ms, lot)
            ):
                return late
        return ""

    def _late(
        self, partition: TimerPartition, each: Left, limit: float | None, pace: InstancePace, begun_ms: int, lot: int
    ) -> str:
        ready_ms = max(each.at_ms - pace.error_ms, each.read_ms)
        late_ms = sum(max(0, min(end, begun_ms) - max(begin, ready_ms)) for begin, end in pace.turns)
        if late_ms == 0:
            return ""
        rates = [(target, rate) for (place, target), rate in self._rates.items() if place == partition]
        since = Counter({name: sum(timers for at_ms, timers in rate.left if at_ms >= ready_ms) for name, rate in rates})
        allowed_ms = LATEST_MS + float(since.total() // lot * _MARKERS_MS)
        if limit is not None:
            allowed_ms += (since[each.target] + max(1, limit // 10)) * 1000 / limit
        return f"left {late_ms} ms late, {allowed_ms} are allowed: {each}" if late_ms > allowed_ms else ""
