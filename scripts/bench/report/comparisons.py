"""Compares the bridge with RocketMQ, the copy loop and small transactions alone, from one run.

                    exactly once   at least once   RocketMQ   copy loop   small transactions
drain, ZGC          90,000         110,000         100,000    75,000                           msg/s
lateness p99        12             8               1,050                  7                    ms
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from scripts.bench.report.results import Results
from scripts.bench.servers import G1_PREFIX, ZGC
from scripts.bench.suite import FULL_PER_S, PEER_RATES

OURS = {"exactly once": "", "at least once": "at-least-once."}
PEER = "RocketMQ"
SIDES = (*OURS, PEER, "copy loop", "small transactions")
EVEN = 0.98
HELD = 0.95


class Comparison(NamedTuple):
    """One line: a value for each of SIDES, None if not measured."""

    what: str
    unit: str
    values: dict[str, float | None]

    def losses(self) -> Iterator[tuple[str, float]]:
        """Yield each of our modes that is worse than RocketMQ, and the ratio: above 1 is better."""
        theirs = self.values[PEER]
        for mode in OURS:
            ours = self.values[mode]
            if ours and theirs:
                ratio = ours / theirs if self.unit == "msg/s" else theirs / ours
                if ratio < EVEN:
                    yield mode, ratio


def comparisons(results: Results) -> list[Comparison]:
    """Return every comparison that has at least two sides."""
    found = []
    for what, unit, ours, theirs, copy, small in _lines(results):
        names = (*(begin + ours for begin in OURS.values()), theirs, copy, small)
        values = {side: _value(results, name) for side, name in zip(SIDES, names, strict=True)}
        if sum(map(bool, values.values())) > 1:
            found.append(Comparison(what, unit, values))
    return found


def held(results: Results, steady: str) -> list[str]:
    """Return the rates that were sent as asked and delivered as sent: beyond them, lateness only grows with time."""
    found = []
    for rate in results.places(steady, ".out_per_s"):
        sent, out = (results.median(f"{steady}{rate}.{end}_per_s") or 0.0 for end in ("sent", "out"))
        if sent >= HELD * float(rate) and out >= HELD * sent:
            found.append(rate)
    return found


def _lines(results: Results) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield what, unit, and the names of our measurement, RocketMQ's, the copy loop's and small transactions'."""
    for name, collector in (("ZGC", ZGC), ("G1", G1_PREFIX)):
        copy = f"{collector}copy.per_s"
        for what, of, end in (
            ("drain of a burst", copy, "burst.drain_per_s"),
            ("a burst, from its due time to its last", "", "burst.from_due_per_s"),
            ("intake", copy, "intake.per_s"),
        ):
            yield f"{what}, {name}", "msg/s", f"{collector}{end}", f"rocketmq.{collector}{end}", of, ""
        end = f"{collector}steady.{FULL_PER_S}.out_per_s"
        yield f"in and out at once, {name}", "msg/s", end, _most(results) if collector == ZGC else "", copy, ""
    for percentile in ("p50", "p99"):
        end = f"steady.1000.seen_late.{percentile}_ms"
        yield f"lateness {percentile} at 1,000/s, at the consumer", "ms", end, f"rocketmq.{end}", "", ""
    for rate in PEER_RATES:
        end, small = f"steady.{rate}.late.p99_ms", f"small.{rate}.acknowledged.p99_ms"
        yield f"lateness p99 at {rate:,}/s", "ms", end, f"rocketmq.{end}", "", small


def _most(results: Results) -> str:
    """Return the name of RocketMQ's highest rate out; none if it held the highest rate asked, so might do more."""
    steady = "rocketmq.steady."
    names = [f"{steady}{rate}.out_per_s" for rate in results.places(steady, ".out_per_s")]
    is_limit = names and results.places(steady, ".out_per_s")[-1] not in held(results, steady)
    return max(names, key=lambda name: results.median(name) or 0.0) if is_limit else ""


def _value(results: Results, name: str) -> float | None:
    """Return the measurement, None for the lateness of a rate that was not held."""
    late = re.fullmatch(r"(.*steady\.)(\d+)\.(seen_)?late\..*", name)
    return None if late and late[2] not in held(results, late[1]) else results.median(name)
