"""The report: one HTML file without external resources (report.html). The verdict first, then its details.

All data from Kafka is escaped: senders choose the bytes of topics, codes and origins. Plots of lateness are inline SVG,
about as wide as a phone, so that they fit there, and side by side on a larger screen. Their text stays text.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from io import StringIO
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib import rc_context
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pyspark.sql import Row

from schemas.units import span_text
from spark_jobs.audit_rules.judgement import OUT_OF_ORDER, OUT_OF_ORDER_MEANING
from spark_jobs.audit_rules.verdicts import RULES
from spark_jobs.audit_run.arguments import AuditArguments, iso
from spark_jobs.report.summary import AuditVerdict, Bin, Details

BLUE, ORANGE, RED, GREY = "#2563a8", "#d97706", "#b42318", "#9aa4b2"
_MOST_TICKS = 8
"""With fewer, matplotlib finds no step for some spans, such as 170 s, and warns."""
_LAST_DATE_MS = 253_402_300_799_000
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
}


def render(verdict: AuditVerdict, details: Details, arguments: AuditArguments, trend: Sequence[Row] = ()) -> str:
    """Return the page. `trend`: the earlier days of a daily audit, rows of DAYS and `day`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, extensions=["jinja2.ext.do"])
    environment.filters |= {"iso": iso, "span": span_text, "number": "{:,}".format}
    days = [*trend, Row(day=iso(verdict.as_of_ms)[:10], **verdict.day_row)] if trend else []
    deliveries = f"deliveries per {span_text(details.timeline_width_ms)}"
    return environment.from_string(files(__package__).joinpath("report.html").read_text(encoding="utf-8")).render(
        verdict=verdict,
        details=details,
        arguments=arguments,
        days=days,
        fault_names=verdict.fault_counts.keys(),
        meanings={rule.name.value: rule.meaning for rule in RULES} | {OUT_OF_ORDER: OUT_OF_ORDER_MEANING},
        histogram=histogram_svg(details.histogram) if details.histogram else "",
        timeline=lateness_svg(details.timeline, "at_ms", "deliveries", deliveries),
        trend=lateness_svg(days, "as_of_ms", "faults", "faults"),
    )


def histogram_svg(bins: Sequence[Bin]) -> str:
    """Draw deliveries by lateness; early ones are red."""
    with rc_context(STYLE | {"svg.hashsalt": "histogram"}):
        figure = Figure(figsize=(4.8, 0.7 + 0.27 * max(len(bins), 3)), layout="constrained")
        axes = figure.subplots()
        colours = [RED if b.high_ms is not None and b.high_ms <= 0 else BLUE for b in bins]
        bars = axes.barh([_bin_text(b) for b in bins], [b.deliveries for b in bins], color=colours, height=0.72)
        axes.bar_label(bars, [f"{b.deliveries:,}" if b.deliveries else "" for b in bins], padding=3, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, max(b.deliveries for b in bins) * 1.22)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        return _svg(figure, "Histogram: how many deliveries by lateness")


def lateness_svg(moments: Sequence[Row], at: str, lower: str, title: str) -> str:
    """Draw percentiles of lateness by the time `at` (epoch ms) above the column `lower`; empty if none can be drawn."""
    drawn = [m for m in moments if 0 <= m[at] <= _LAST_DATE_MS]
    if not drawn:
        return ""
    times = [datetime.fromtimestamp(m[at] / 1000, UTC) for m in drawn]
    with rc_context(STYLE | {"svg.hashsalt": lower}):
        figure = Figure(figsize=(4.8, 4.0), layout="constrained")
        late, count = figure.subplots(2, sharex=True, height_ratios=[2.4, 1])
        marker = "o" if len(drawn) < 40 else ""
        for name, colour in (("max", GREY), ("p99", ORANGE), ("p50", BLUE)):
            found = [m[f"lateness_{name}_ms"] for m in drawn]
            heights = [float("nan") if height is None else height for height in found]
            late.plot(times, heights, color=colour, label=name, marker=marker, markersize=3, linewidth=1.4)
        late.legend(ncols=3, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
        late.set_title("lateness")
        delivered = [m for m in drawn if m["lateness_p50_ms"] is not None]
        usual = sorted(m["lateness_p50_ms"] for m in delivered) or [0]
        highest = max((m["lateness_max_ms"] for m in delivered), default=0)
        if highest > 20 * max(usual[len(usual) // 2], 1):  # a peak would flatten the other values
            late.set_yscale("symlog", linthresh=1)
        if usual[0] >= 0:
            late.set_ylim(bottom=0)
        # Only now, as a change of the scale resets the labels.
        late.yaxis.set_major_formatter(FuncFormatter(lambda value, _: span_text(value)))
        late.grid(axis="y", color=GREY, alpha=0.25)
        colour = RED if lower == "faults" else BLUE
        count.fill_between(times, [m[lower] for m in drawn], step="mid", color=colour, alpha=0.35, linewidth=0)
        count.set_title(title)
        count.set_ylim(bottom=0)
        count.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        locator = AutoDateLocator(minticks=3, maxticks=_MOST_TICKS)  # type: ignore[no-untyped-call]
        count.xaxis.set_major_locator(locator)
        count.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        return _svg(figure, f"Lateness over time, and {lower}")


def _bin_text(bin_: Bin) -> str:
    if bin_.low_ms is None:
        return "early"
    if bin_.high_ms is None:
        return f"≥ {span_text(bin_.low_ms)}"
    low, high = span_text(bin_.low_ms).split(), span_text(bin_.high_ms).split()
    return f"{low[0]}–{high[0]} {high[1]}" if low[1] == high[1] else f"{' '.join(low)} – {' '.join(high)}"


def _svg(figure: Figure, title: str) -> str:
    """Return the <svg> element, without XML prolog and metadata."""
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True)
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2)
    width, height = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg).groups()  # type: ignore[union-attr]
    svg = svg.replace(f' width="{width}pt" height="{height}pt"', f' style="max-width:{width}pt"', 1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
