"""Ours beside theirs, from one run: each as a ratio above 1 where the bridge is better, so that losses find themselves.

drain of a burst    ours 90,000   theirs 100,000 msg/s   ratio 0.90   a loss
lateness p99        ours 12       theirs 1,050 ms        ratio 87.5
"""

from collections.abc import Iterator
from typing import NamedTuple

from scripts.bench.measurements import Flat
from scripts.bench.report.figures import FIGURES
from scripts.bench.report.results import Results
from scripts.bench.suite import TICKS_MS

MODES = {"": "exactly once", "at-least-once.": "at least once"}
COPY_LOOP = "copy loop"
EVEN = 0.98
HELD = 0.95


class Comparison(NamedTuple):
    """One comparison. `of`: our mode; `beside`: the other one."""

    what: str
    of: str
    beside: str
    ours: float
    theirs: float
    unit: str
    ratio: float

    @property
    def is_lost(self) -> bool:
        """Return True for a loss. Below the copy loop, a reference, or within noise is none."""
        return self.ratio < EVEN and self.beside != COPY_LOOP


class _Pair(NamedTuple):
    """Names of two measured figures."""

    what: str
    of: str
    beside: str
    ours: str
    theirs: str
    unit: str

    def compared(self, medians: Flat) -> Comparison | None:
        """Return the comparison; None if either is 0 or was not measured."""
        ours, theirs = medians.get(self.ours, 0.0), medians.get(self.theirs, 0.0)
        if not ours or not theirs:
            return None
        ratio = theirs / ours if self.unit == "ms" else ours / theirs
        return Comparison(self.what, self.of, self.beside, ours, theirs, self.unit, ratio)


class Missed(NamedTuple):
    """A missed goal."""

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


def held(results: Results, steady: str) -> list[str]:
    """The rates that were sent as asked for and left as they were sent: beyond, lateness grows with the time alone."""
    found = []
    for rate in results.places(steady, ".out_per_s"):
        sent, out = (results.median(f"{steady}{rate}.{end}_per_s") or 0.0 for end in ("sent", "out"))
        if sent >= HELD * float(rate) and out >= HELD * sent:
            found.append(rate)
    return found


def _most(results: Results, steady: str) -> str:
    """Return the name of the highest rate that was delivered as fast as it was sent."""
    names = [f"{steady}{rate}.out_per_s" for rate in results.places(steady, ".out_per_s")]
    return max(names, key=lambda name: results.median(name) or 0.0, default="")


def _pairs(results: Results) -> Iterator[_Pair]:
    for begin, mode in MODES.items():
        yield _Pair("drain of a burst", mode, COPY_LOOP, f"{begin}burst.drain_per_s", "copy.per_s", "msg/s")
        most = _most(results, f"{begin}steady.")
        yield _Pair("the most in and out at once", mode, COPY_LOOP, most, "copy.per_s", "msg/s")
        for tick_ms in TICKS_MS:
            yield from _beside_peer(results, begin, mode, tick_ms)


def _beside_peer(results: Results, begin: str, mode: str, tick_ms: int) -> Iterator[_Pair]:
    peer, name = f"rocketmq.{tick_ms}.", f"RocketMQ, tick {tick_ms} ms"
    for percentile in ("p50_ms", "p99_ms"):
        end = f"spread.seen_late.{percentile}"
        yield _Pair(f"lateness {percentile[:3]} at the consumer", mode, name, begin + end, peer + end, "ms")
    for what, end in (("drain of a burst", "drain"), ("a burst, from its due time to its last", "from_due")):
        yield _Pair(what, mode, name, f"{begin}burst.{end}_per_s", f"{peer}burst.{end}_per_s", "msg/s")
    ours, theirs = (held(results, f"{whose}steady.") for whose in (begin, peer))
    for rate in ours:
        if rate in theirs:
            seen = results.median(f"{begin}steady.{rate}.seen_late.p99_ms")
            what, end = ("at the consumer", "seen_late") if seen else ("appended, ours before its commit", "late")
            end = f"steady.{rate}.{end}.p99_ms"
            yield _Pair(f"lateness p99 at {int(rate):,}/s, {what}", mode, name, begin + end, peer + end, "ms")
    most, theirs_most = (_most(results, f"{whose}steady.") for whose in (begin, peer))
    yield _Pair("the most in and out at once", mode, name, most, theirs_most, "msg/s")
    if not begin:
        end = "outage.per_s"
        yield _Pair("backlog behind an outage", mode, name, end, peer + end, "msg/s")
