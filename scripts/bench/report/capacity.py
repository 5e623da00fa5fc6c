"""`python -m scripts.bench.report.capacity` writes docs/capacity.md: what loads up to 1 M/s need, by results.json.

Which part of it was measured and which is calculated is told by each figure; the model is scripts.bench.report.sizing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.report.results import RESULTS, Results, load
from scripts.bench.report.sizing import (
    BUSY,
    COPIES,
    DAY_S,
    MEMORY_MB,
    WINDOW_S,
    Cpu,
    Model,
    Run,
    fit,
    rebuild_s,
    runs,
    size,
)
from scripts.bench.suite import SLICE_CORES, SLICED_PARTITIONS, SLICES
from scripts.common import command
from spark_jobs.report.plots import span_text

PAGE = Path("docs/capacity.md")
RATES = (1_000, 10_000, 100_000, 1_000_000)
PENDING = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
WINDOWS_S = (DAY_S // 2, 2 * DAY_S, 7 * DAY_S, 24 * DAY_S)


def page(model: Model, results: Results) -> str:
    return "\n".join([*_opening(model, results), *_sizes(model), *_rebuilds(model), *_linearity(results), ""])


def _opening(model: Model, results: Results) -> list[str]:
    cpu, steady = model.cpu, f"{model.instance_per_s:,.0f}"
    observed = sorted(runs(results), key=lambda run: run.requests)
    rows = (
        ("CPU of a request in", f"{cpu.request_us:.1f} us"),
        ("CPU of a delivery out", f"{cpu.delivery_us:.1f} us"),
        ("CPU of a transaction", f"{cpu.transaction_us:.0f} us"),
        ("CPU of a KB in or out", f"{cpu.kilobyte_us:.2f} us"),
        (f"CPU of a message of {model.body_bytes:.0f} bytes, in and out", f"{model.message_us:.1f} us"),
        ("transactions of an instance at its most", f"{model.transactions_per_s:,.0f}/s"),
        ("memory of a pending timer, half of them with ids", f"{model.memory_bytes:.0f} bytes"),
        ("memory of an instance without any", f"{model.base_mb:.0f} MB"),
        ("disk of a pending timer", f"{model.disk_bytes:.0f} bytes"),
        ("disk of a partition without any", f"{model.partition_disk_mb:.0f} MB"),
        ("rebuild without the data directory, an instance", f"{model.rebuild_per_s:,.0f}/s"),
        ("in and out at once, an instance", f"{steady}/s"),
        ("in and out, a partition (taken as half of its burst)", f"{model.partition_per_s:,.0f}/s"),
    )
    return [
        "# Capacity",
        "",
        "Written by `python -m scripts.bench.report.capacity` from one run of `make bench`"
        f" ({results.machine['cpu']}, {results.machine['cores']} cores, which brokers and senders used too).",
        "",
        "## What was measured",
        "",
        f"Least squares over the bench's runs; the model is off by {cpu.worst:.0%} at the worst of them.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "| steady load, CPU a message | measured, us | by the model, us |",
        "|---|---|---|",
        *(_checked(cpu, run) for run in observed if run.name.startswith("steady.")),
        "",
    ]


def _checked(cpu: Cpu, run: Run) -> str:
    """Return a row with the measured CPU and the model's."""
    rate = float(run.name.removeprefix("steady."))
    return f"| {rate:,.0f}/s asked | {run.message_us:.1f} | {cpu.message_us(run):.1f} |"


def _sizes(model: Model) -> list[str]:
    lines = [
        "## What a load asks for",
        "",
        f"All of it is calculated from the costs above; upright is what lies within their range: one instance, up to"
        f" {model.instance_per_s:,.0f} messages/s and {model.most_pending:,.0f} pending. *Slanted* lies beyond."
        f" Instances of one core and {MEMORY_MB // 1024} GB, planned at {BUSY:.0%}; roll window"
        f" {WINDOW_S // DAY_S} days; {COPIES} copies on the brokers; bodies of {model.body_bytes:.0f} bytes."
        " All timers wait alike, pending / rate; where that is longer than a window they roll. Where few wait long and"
        " most do not, more roll, and a lost disk takes up to the second figure, as all since the oldest is read. The"
        " timer topic is kept for three windows, or a week. Brokers write the journal and receipts beside.",
        "",
        "| messages/s | pending | rolls/s | instances | partitions | memory each | disk each"
        " | brokers write | transactions/s | timer topic | a lost disk | at most |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return [*lines, *(_row(model, per_s, pending) for per_s in RATES for pending in PENDING), ""]


def _row(model: Model, per_s: int, pending: int) -> str:
    of = size(model, per_s, pending)
    is_measured = of.instances == 1 and pending <= model.most_pending and not of.rolls_per_s
    ours = [
        f"{of.rolls_per_s:,.0f}",
        f"{of.instances:,}",
        f"{of.partitions:,}",
        f"{of.memory_mb_each:,.0f} MB",
        f"{of.disk_gb_each:,.1f} GB",
    ]
    theirs = [f"*{of.broker_mb_per_s:,.1f} MB/s*", f"*{of.transactions_per_s:,.0f}*", f"*{of.topic_tb:,.2f} TB*"]
    rebuild, longest = _span(of.rebuild_s), f"*{_span(of.longest_rebuild_s)}*"
    cells = [
        *(text if is_measured else f"*{text}*" for text in ours),
        *theirs,
        rebuild if is_measured else f"*{rebuild}*",
        longest,
    ]
    return f"| {per_s:,} | {pending:,} | {' | '.join(cells)} |"


def _rebuilds(model: Model) -> list[str]:
    return [
        "## A lost disk",
        "",
        "Calculated: every timer waits a whole roll window, so all of a window is read again. All instances have lost"
        " theirs; one alone reads its share in the same time. Whoever has more cores prepares partitions side by side"
        " and is faster by as much.",
        "",
        "| messages/s | " + " | ".join(f"window {_span(window_s)}" for window_s in WINDOWS_S) + " |",
        "|---" * (len(WINDOWS_S) + 1) + "|",
        *(
            f"| {per_s:,} | " + " | ".join(f"*{_span(rebuild_s(model, per_s, w))}*" for w in WINDOWS_S) + " |"
            for per_s in RATES
        ),
        "",
    ]


def _linearity(results: Results) -> list[str]:
    """Return the lines on one and two instances, each on its own core if there are enough."""
    found = []
    for partitions in ("1", "4", "16"):
        one, two = (results.median(f"instances.{partitions}x{count}.from_due_per_s") for count in (1, 2))
        if one and two:
            found.append(f"| {partitions} | {one:,.0f} | {two:,.0f} | {two / one:.2f} |")
    return [
        "## From one instance to two",
        "",
        "Measured: a burst, from its due time to its last; each instance is pinned to a core, with broker and sender on"
        " the same cores. One partition has one owner: the second instance is a spare.",
        "",
        "| partitions | one instance, msg/s | two | ratio |",
        "|---|---|---|---|",
        *found,
        "",
        *_slices(results),
    ]


def _slices(results: Results) -> list[str]:
    """Return the lines on instances that each have a fixed part of a core."""
    drains = {count: results.median(f"slices.{count}.from_due_per_s") for count in SLICES}
    one = drains[1]
    if not one:
        return []
    return [
        f"Measured too: the same by instances that the kernel holds to {SLICE_CORES} cores each, with"
        f" {SLICED_PARTITIONS} partitions, so that broker and sender have what they need beside them.",
        "",
        "| instances | msg/s | to as many times that of one |",
        "|---|---|---|",
        *(f"| {count} | {drain:,.0f} | {drain / (count * one):.2f} |" for count, drain in drains.items() if drain),
    ]


def _span(span_s: float) -> str:
    return span_text(span_s * 1000)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="capacity", description="Sizes by the bench's measurements.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(argv)

    def write() -> int:
        results = load(asked.results)
        text = page(fit(results), results)
        asked.page.write_text(text)
        print(text)
        return 0

    return command.run("capacity", write)


if __name__ == "__main__":
    sys.exit(main())
