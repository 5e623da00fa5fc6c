"""Plots of docs/benchmarks.md: small SVG files, the same bytes for the same results.

Drawn about as wide as half a page. A number that was not measured leaves its place empty.
"""

from collections.abc import Mapping, Sequence
from io import StringIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from scripts.bench.report.results import Results
from spark_jobs.report.plots import BLUE, GREY, ORANGE, RED, STYLE

WAYS = {
    "steady.": ("exactly once", BLUE),
    "at-least-once.steady.": ("at least once", ORANGE),
    "rocketmq.steady.": ("RocketMQ", RED),
}
"""Name and colour of each series of the steady load."""
BURSTS = {
    "copy loop, ZGC": ("copy.per_s", GREY),
    "copy loop, G1": ("g1.copy.per_s", GREY),
    "exactly once, ZGC": ("burst.drain_per_s", BLUE),
    "exactly once, G1": ("g1.burst.drain_per_s", BLUE),
    "at least once, ZGC": ("at-least-once.burst.drain_per_s", ORANGE),
    "RocketMQ, ZGC": ("rocketmq.burst.drain_per_s", RED),
    "RocketMQ, G1": ("rocketmq.g1.burst.drain_per_s", RED),
}
Lines = Mapping[str, Sequence[tuple[float, float]]]


def plots(results: Results) -> dict[str, str]:
    """Return SVG by file name, without plots that lack measurements."""
    with rc_context(STYLE | {"svg.hashsalt": "bench"}):
        drawn = {
            "lateness.svg": _lateness(results),
            "cpu.svg": _cpu(results),
            "drain.svg": _drain(results),
        }
        return {name: svg(figure) for name, figure in drawn.items() if figure is not None}


def _lateness(results: Results) -> Figure | None:
    lines = {
        begin: [
            (float(rate), results.median(f"{begin}{rate}.late.p99_ms") or 0.0)
            for rate in results.places(begin, ".asked_per_s")
        ]
        for begin in WAYS
    }
    return _lines("lateness p99 under a steady load, ms", lines, logarithmic=True)


def _cpu(results: Results) -> Figure | None:
    """Plot the bridge's process only; RocketMQ's broker also stores the messages."""
    lines = {
        begin: [
            (float(rate), results.us_per_message(f"{begin}{rate}", "cost.cpu_s"))
            for rate in results.places(begin, ".asked_per_s")
        ]
        for begin in list(WAYS)[:2]
    }
    return _lines("CPU of the bridge a message in and out, us", lines, logarithmic=False)


def _lines(title: str, lines: Lines, *, logarithmic: bool) -> Figure | None:
    if not any(lines.values()):
        return None
    figure, axes = _canvas(title, 3.0)
    for begin, points in lines.items():
        name, colour = WAYS[begin]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=name, marker="o", markersize=4, linewidth=1.4)
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("messages/s asked for")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color=GREY, alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _drain(results: Results) -> Figure | None:
    bars = [(name, results.measured[key], colour) for name, (key, colour) in BURSTS.items() if key in results.measured]
    if not bars:
        return None
    figure, axes = _canvas("drain of a burst, messages/s, with its spread", 0.8 + 0.4 * len(bars))
    names, values, colours = zip(*bars, strict=True)
    medians = [value.median for value in values]
    spread = [[value.median - value.low for value in values], [value.high - value.median for value in values]]
    drawn = axes.barh(names, medians, xerr=spread, color=colours, height=0.7, ecolor="black", capsize=3)
    axes.bar_label(drawn, [f"{median:,.0f}" for median in medians], padding=6, fontsize=9)
    axes.set_xlim(0, max(value.high for value in values) * 1.25)
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _canvas(title: str, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.8, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def svg(figure: Figure) -> str:
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
