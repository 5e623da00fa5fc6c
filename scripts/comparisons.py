"""Ours beside theirs, from one run: each as a ratio above 1 where the bridge is better, so that losses find themselves.

drain of a burst    ours 90,000   theirs 100,000 msg/s   ratio 0.90   a loss
lateness p99        ours 12       theirs 1,050 ms        ratio 87.5
"""

from collections.abc import Iterator
from typing import NamedTuple

from scripts.bench_figures import FIGURES
from scripts.measured import Flat
from scripts.parts import TICKS_MS
from scripts.results import Results

MODES = {"": "exactly once", "at-least-once.": "at least once"}
COPY_LOOP = "copy loop"
EVEN = 0.98


class Comparison(NamedTuple):
    """`of`: which of our modes; `beside`: what it is compared with."""

    what: str
    of: str
    beside: str
    ours: float
    theirs: float
    unit: str
    ratio: float

    @property
    def is_lost(self) -> bool:
        """The copy loop is the limit: to be below it is no loss. Nor is what noise may be."""
        return self.ratio < EVEN and self.beside != COPY_LOOP


class _Pair(NamedTuple):
    """Two names of what was measured."""

    what: str
    of: str
    beside: str
    ours: str
    theirs: str
    unit: str

    def compared(self, medians: Flat) -> Comparison | None:
        """None where either was not measured, or measured as nothing."""
        ours, theirs = medians.get(self.ours, 0.0), medians.get(self.theirs, 0.0)
        if not ours or not theirs:
            return None
        ratio = theirs / ours if self.unit == "ms" else ours / theirs
        return Comparison(self.what, self.of, self.beside, ours, theirs, self.unit, ratio)


class Missed(NamedTuple):
    """A goal that was not reached."""

    key: str
    value: float
    unit: str
    goal: str


def comparisons(results: Results) -> list[Comparison]:
    medians = {name: value.median for name, value in results.measured.items()}
    return [found for pair in _pairs(results) if (found := pair.compared(medians)) is not None]


def missed(results: Results) -> list[Missed]:
    found = []
    for figure in FIGURES:
        value = results.figures.get(figure.key)
        if figure.goal is not None and value is not None and not figure.goal.reached(value):
            found.append(Missed(figure.key, value, figure.unit, figure.goal.text))
    return found


def _pairs(results: Results) -> Iterator[_Pair]:
    for begin, mode in MODES.items():
        yield _Pair("drain of a burst", mode, COPY_LOOP, f"{begin}burst.drain_per_s", "copy.per_s", "msg/s")
        for rate in results.places(f"{begin}steady.", ".out_per_s")[-1:]:
            what = f"steady load, in and out at once, {int(rate):,}/s asked"
            yield _Pair(what, mode, COPY_LOOP, f"{begin}steady.{rate}.out_per_s", "copy.per_s", "msg/s")
        for tick_ms in TICKS_MS:
            yield from _beside_peer(results, begin, mode, tick_ms)


def _beside_peer(results: Results, begin: str, mode: str, tick_ms: int) -> Iterator[_Pair]:
    peer, name = f"rocketmq.{tick_ms}.", f"RocketMQ, tick {tick_ms} ms"
    for percentile in ("p50_ms", "p99_ms"):
        end = f"spread.seen_late.{percentile}"
        yield _Pair(f"lateness {percentile[:3]} at the consumer", mode, name, begin + end, peer + end, "ms")
    end = "burst.drain_per_s"
    yield _Pair("drain of a burst", mode, name, begin + end, peer + end, "msg/s")
    ours, theirs = (results.places(f"{whose}steady.", ".out_per_s") for whose in (begin, peer))
    rates = [rate for rate in ours if rate in theirs]
    for rate in rates:
        end = f"steady.{rate}.late.p99_ms"
        yield _Pair(f"lateness p99 at {int(rate):,}/s", mode, name, begin + end, peer + end, "ms")
    for rate in rates[-1:]:
        end = f"steady.{rate}.out_per_s"
        yield _Pair(f"in and out at once, {int(rate):,}/s asked", mode, name, begin + end, peer + end, "msg/s")
    if not begin:
        end = "outage.per_s"
        yield _Pair("backlog behind an outage", mode, name, end, peer + end, "msg/s")
