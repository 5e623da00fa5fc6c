"""Compares the bridge with the copy loop and with RocketMQ, from one run. A ratio above 1: the bridge is better.

drain of a burst    ours 90,000   theirs 100,000 msg/s   ratio 0.90   a loss
lateness p99        ours 12       theirs 1,050 ms        ratio 87.5
"""

from collections.abc import Iterator
from typing import NamedTuple

from scripts.bench.report.results import Results
from scripts.bench.suite import TICKS_MS

MODES = {"": "exactly once", "at-least-once.": "at least once"}
COPY_LOOP = "copy loop"
EVEN = 0.98
HELD = 0.95


class Comparison(NamedTuple):
    """One comparison. `mode`: ours."""

    what: str
    mode: str
    beside: str
    ours: float
    theirs: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours if self.unit == "ms" else self.ours / self.theirs

    @property
    def is_lost(self) -> bool:
        """True if the bridge is worse. The copy loop is a reference: to be slower than that is no loss."""
        return self.ratio < EVEN and self.beside != COPY_LOOP


def comparisons(results: Results) -> list[Comparison]:
    """Return every comparison of which both sides were measured."""
    found = []
    for begin, mode in MODES.items():
        for beside, what, unit, ours, theirs in _pairs(results, begin):
            values = results.median(begin + ours), results.median(theirs)
            if values[0] and values[1]:
                found.append(Comparison(what, mode, beside, values[0], values[1], unit))
    return found


def held(results: Results, steady: str) -> list[str]:
    """Return the rates that were sent as asked and delivered as sent: beyond them, lateness only grows with time."""
    found = []
    for rate in results.places(steady, ".out_per_s"):
        sent, out = (results.median(f"{steady}{rate}.{end}_per_s") or 0.0 for end in ("sent", "out"))
        if sent >= HELD * float(rate) and out >= HELD * sent:
            found.append(rate)
    return found


def _pairs(results: Results, begin: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield other side, what, unit, name of our measurement without `begin`, name of theirs."""
    most = "the most in and out at once"
    yield COPY_LOOP, "drain of a burst", "msg/s", "burst.drain_per_s", "copy.per_s"
    yield COPY_LOOP, most, "msg/s", _most(results, begin), "copy.per_s"
    for tick_ms in TICKS_MS:
        peer, name = f"rocketmq.{tick_ms}.", f"RocketMQ, tick {tick_ms} ms"
        for percentile in ("p50", "p99"):
            end = f"spread.seen_late.{percentile}_ms"
            yield name, f"lateness {percentile} at the consumer", "ms", end, peer + end
        for what, end in (
            ("drain of a burst", "burst.drain_per_s"),
            ("a burst, from its due time to its last", "burst.from_due_per_s"),
        ):
            yield name, what, "msg/s", end, peer + end
        theirs = held(results, f"{peer}steady.")
        for rate in held(results, f"{begin}steady."):
            if rate in theirs:
                seen = results.median(f"{begin}steady.{rate}.seen_late.p99_ms")
                what, late = ("at the consumer", "seen_late") if seen else ("appended, ours before its commit", "late")
                end = f"steady.{rate}.{late}.p99_ms"
                yield name, f"lateness p99 at {int(rate):,}/s, {what}", "ms", end, peer + end
        yield name, most, "msg/s", _most(results, begin), peer + _most(results, peer)
        if not begin:
            yield name, "backlog after an outage", "msg/s", "outage.per_s", f"{peer}outage.per_s"


def _most(results: Results, begin: str) -> str:
    """Return the name, without `begin`, of the highest rate that was delivered while others were sent."""
    names = [f"steady.{rate}.out_per_s" for rate in results.places(f"{begin}steady.", ".out_per_s")]
    return max(names, key=lambda name: results.median(begin + name) or 0.0, default="")
