"""docs/engines.md with its plots: the engines of the store side by side. A part of `make bench-page`.

    .run/bench/results.json    a whole bridge, from `make bench` or `make bench ARGS="--only engines"`
    .run/bench/pending.json    one store with many pending timers, from `make bench-pending TIMERS=10000000`

Without one of them the page stays as it is.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.bench.pending import FOLDER as PENDING_FOLDER
from scripts.bench.pending import OF_A_YEAR
from scripts.bench.report.figures import number_text
from scripts.bench.report.markdown import render, table
from scripts.bench.report.plots import svg
from scripts.bench.report.results import Results, load
from scripts.bench.run import RESULTS
from scripts.bench.suite import ENGINES, GOAL_RATES
from spark_jobs.report.plots import BLUE, ORANGE, STYLE

PAGE = Path("docs/engines.md")
PENDING = PENDING_FOLDER.with_suffix(".json")
COLOURS = dict(zip(ENGINES, (BLUE, ORANGE), strict=True))
STORE_ROWS = {
    "add_cpu_us_a_timer": "CPU to store a timer, us",
    "drain_cpu_us_a_timer": "CPU to take a timer that is due, with its body, us",
    "rebuild_per_s": "rebuild from requests in memory, timers/s",
    "replace_by_id_per_s": "replacements by id, timers/s",
    "look_up_p99_ms": "look-up of one by its id with its body, p99 ms",
    "bytes_of_memory_a_timer": "memory, bytes a timer",
    "bytes_of_disk_a_timer": "disk, bytes a timer",
    "write_amplification": "bytes written to the disk a byte of a frame",
    "ready_after_stop_s": "start after a stop, s",
    "ready_after_kill_s": "start after kill -9, s",
    "longest_wait_for_a_checkpoint_ms": "longest wait of a turn for a checkpoint, ms",
    "year_copies_a_timer": "copies of a timer that waits for a year",
    "year_cpu_us_a_timer": "CPU of a timer that waits for a year, us",
    "year_written_bytes_a_timer": "bytes written to the disk for a timer that waits for a year",
}
"""What is measured of one store, by its name in pending.json."""
PLOTTED = ("add_cpu_us_a_timer", "drain_cpu_us_a_timer", "ready_after_kill_s", "bytes_of_disk_a_timer")
Store = Mapping[str, Mapping[str, float]]
"""Figures of one store, by engine."""


def page(results: Results, store: Store) -> str:
    return render(
        "engines.md.jinja",
        machine=results.machine,
        timers=f"{next(iter(store.values()))['timers']:,.0f}",
        of_a_year=f"{OF_A_YEAR:,}",
        bridge=table(("a whole bridge", *ENGINES), _bridge_rows(results)),
        store=table(
            ("one store", *ENGINES),
            [(what, *(number_text(store[engine][name]) for engine in ENGINES)) for name, what in STORE_ROWS.items()],
        ),
    )


def _bridge_rows(results: Results) -> list[tuple[str, ...]]:
    def row(what: str, end: str) -> tuple[str, ...]:
        return (what, *(results.text(f"engines.{engine}.{end}") for engine in ENGINES))

    rows = [row("drain of a burst, messages/s", "burst.drain_per_s")]
    for rate in GOAL_RATES:
        rows.append(row(f"lateness p50 at {rate:,}/s, ms", f"steady.{rate}.late.p50_ms"))
        rows.append(row(f"lateness p99 at {rate:,}/s, ms", f"steady.{rate}.late.p99_ms"))
        each = (results.us_per_message(f"engines.{engine}.steady.{rate}", "cost.cpu_s") for engine in ENGINES)
        rows.append((f"CPU a message in and out at {rate:,}/s, us", *(f"{us:.0f}" for us in each)))
    return rows


def plots(store: Store) -> dict[str, str]:
    """Return SVG by file name: some of the figures of one store."""
    with rc_context(STYLE | {"svg.hashsalt": "bench"}):
        figure = Figure(figsize=(7.2, 2.4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(PLOTTED)), PLOTTED, strict=True):
            _bars(axes, STORE_ROWS[name], {engine: store[engine][name] for engine in ENGINES})
        return {"store.svg": svg(figure)}


def _bars(axes: Axes, title: str, values: Mapping[str, float]) -> None:
    drawn = axes.bar(list(values), list(values.values()), color=[COLOURS[engine] for engine in ENGINES], width=0.6)
    axes.bar_label(drawn, [number_text(value) for value in values.values()], padding=2, fontsize=8)
    axes.set_title(title.replace(", ", ",\n", 1), fontsize=8)
    axes.set_ylim(0, max(values.values()) * 1.2)
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=0)


def main(argv: Sequence[str] = ()) -> int:
    target = Path(argv[0]) if argv else PAGE
    results = load(RESULTS)
    is_measured = all(f"engines.{engine}.burst.drain_per_s" in results.measured for engine in ENGINES)
    if not is_measured or not PENDING.exists():
        sys.stderr.write(f"{target} stays as it is: the engines were not measured (see the module)\n")
        return 0
    store: Store = json.loads(PENDING.read_text())
    folder = target.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in plots(store).items():
        (folder / name).write_text(drawn)
    target.write_text(page(results, store))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
