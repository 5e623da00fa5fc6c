"""`make bench-page`: docs/benchmarks.md with its plots, and docs/capacity.md, from results.json of `make bench`.

Losses and missed goals are computed from the results, not written by hand.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bridge.capacity.sizing import COSTS
from bridge.errors import SettingsError
from scripts.bench.report import capacity, last_release
from scripts.bench.report.comparisons import PEER, SIDES, comparisons, held
from scripts.bench.report.figures import FAULTS, FIGURES, number_text
from scripts.bench.report.last_release import LastRelease
from scripts.bench.report.markdown import render, table
from scripts.bench.report.plots import WAYS, plots
from scripts.bench.report.results import Results, load
from scripts.bench.report.sizing import fit
from scripts.bench.rocketmq.servers import FINE_TICK_MS
from scripts.bench.run import BUSY_SHARE, RESULTS
from scripts.bench.suite import SLICE_CORES, SLICED_PARTITIONS
from scripts.common import command

PAGE = Path("docs/benchmarks.md")
COUNTS = ("requested", *FAULTS)
PENDING_ROWS = {
    "memory, MB": "rss_mb",
    "memory with 10,000, MB": "rss_empty_mb",
    "disk, MB": "disk_mb",
    "taken in, msg/s": "taken_in_per_s",
    "look-up of one by its id, HTTP, p99 ms": "look_up_p99_ms",
    "start after SIGTERM, s": "ready_after_stop_s",
    "start after SIGKILL, s": "ready_after_kill_s",
    "start without its stores, s": "ready_after_loss_s",
    "drain of a burst among them, msg/s": "burst.drain_per_s",
    "drain of a burst among 10,000, msg/s": "burst_before.drain_per_s",
}
BURST_ROWS = {
    "partitions.": "partitions",
    "slices.": f"instances of {SLICE_CORES} cores, {SLICED_PARTITIONS} partitions",
    "workers.": f"workers of {SLICE_CORES} cores, {SLICED_PARTITIONS} partitions",
    "bodies.": "body, bytes",
}


def page(results: Results, pictures: Iterable[str], last: LastRelease) -> str:
    return render(
        "benchmarks.md.jinja",
        machine=results.machine,
        versions=results.versions,
        settings=results.settings,
        others=max(results.machine["busy_before"], results.machine["others_share"]),
        busy_share=BUSY_SHARE,
        slice_cores=SLICE_CORES,
        tick_ms=FINE_TICK_MS,
        release=last.release,
        losses=_losses(results),
        missed=_missed(results),
        worse=_worse(results, last),
        figures=_figures(results, last),
        pictures=[*pictures],
        tables={
            "Beside others": _beside(results),
            "Steady load": _steady(results),
            "Pending timers": _pending(results),
            "Partitions, instances, bodies": _bursts(results),
            "Counted, over all scenarios and tries": _counts(results),
        },
        not_measured=_table(("figure", "why"), [(f"`{key}`", why) for key, why in results.reasons.items()]),
    )


def _losses(results: Results) -> str:
    rows = [
        (f"{c.what}, {mode}", *(f"{_number(c.values[side])} {c.unit}" for side in (mode, PEER)), f"{ratio:.2f}")
        for c in comparisons(results)
        for mode, ratio in c.losses()
    ]
    return _table(("slower than RocketMQ", "ours", "theirs", "ratio"), rows)


def _missed(results: Results) -> str:
    rows = [
        (f"`{figure.key}`", value.text, figure.unit, figure.goal)
        for figure in FIGURES
        if (value := results.figures.get(figure.key)) and figure.is_missed(value)
    ]
    ours = results.counted.get("the bridge", {})
    rows += [(name, number_text(ours[name]), "", "0") for name in FAULTS if ours.get(name)]
    return _table(("goal missed", "is", "unit", "should be"), rows)


def _worse(results: Results, last: LastRelease) -> str:
    rows = [
        (f"`{figure.key}`", value.text, *last.columns(figure, value))
        for figure in FIGURES
        if (value := results.figures.get(figure.key)) and last.is_worse(figure, value)
    ]
    return _table((f"worse than in {last.release}", "is", "was", "change"), rows)


def _figures(results: Results, last: LastRelease) -> str:
    rows = []
    for figure in FIGURES:
        value = results.figures.get(figure.key)
        if value is not None:
            verdict = f"{figure.goal} {'**missed**' if figure.is_missed(value) else 'reached'}" if figure.goal else ""
            rows.append((f"`{figure.key}`", value.text, figure.unit, verdict, *last.columns(figure, value)))
    return table(("figure", "median", "unit", "goal", last.release, "change"), rows)


def _beside(results: Results) -> str:
    rows = [(c.what, *(_number(c.values[side]) for side in SIDES), c.unit) for c in comparisons(results)]
    return _table(("", *SIDES, "unit"), rows)


def _steady(results: Results) -> str:
    rows = []
    for begin, (name, _) in WAYS.items():
        for rate in results.places(begin, ".asked_per_s"):
            scenario = f"{begin}{rate}"
            own_us = results.us_per_message(scenario, "cost.cpu_s")
            broker_us = results.us_per_message(scenario, "broker_cpu_s")
            is_peer = begin.startswith("rocketmq")  # its broker is its timer
            rates = [results.text(f"{scenario}.{end}") for end in ("sent_per_s", "out_per_s")]
            late = [results.text(f"{scenario}.late.{end}") for end in ("p50_ms", "p99_ms", "max_ms")]
            cpu = ["" if is_peer else f"{own_us:.1f}", f"{broker_us if is_peer else own_us + broker_us:.1f}"]
            rows.append((name, f"{int(rate):,}", *rates, "yes" if rate in held(results, begin) else "no", *late, *cpu))
    for rate in results.places("small.", ".cpu_us"):
        late = [results.text(f"small.{rate}.acknowledged.{end}") for end in ("p50_ms", "p99_ms", "max_ms")]
        rows.append(
            ("small transactions", f"{int(rate):,}", "", "", "", *late, results.text(f"small.{rate}.cpu_us"), "")
        )
    heading = ("asked/s", "sent/s", "out/s", "held", "p50 ms", "p99 ms", "max ms", "CPU us", "with its broker")
    return _table(("", *heading), rows)


def _pending(results: Results) -> str:
    rows = [(name, results.text(f"pending.{end}")) for name, end in PENDING_ROWS.items()]
    timers = results.median("pending.timers")
    return _table(("", f"{timers or 0:,.0f} timers"), rows if timers else [])


def _bursts(results: Results) -> str:
    rows = []
    for begin, name in BURST_ROWS.items():
        for place in results.places(begin, ".drain_per_s"):
            numbers = [
                results.text(f"{begin}{place}.{end}") for end in ("drain_per_s", "from_due_per_s", "first_late_ms")
            ]
            rows.append((name, place, *numbers, f"{results.us_per_message(begin + place, 'cost.cpu_s'):.1f}"))
    heading = ("drain msg/s", "from its due time msg/s", "first after ms", "CPU us, all instances")
    return _table(("", "", *heading), rows)


def _counts(results: Results) -> str:
    rows = [(whose, *(number_text(of[count]) for count in COUNTS)) for whose, of in results.counted.items()]
    return _table(("", *COUNTS), rows)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(heading, rows) if rows else ""


def _number(value: float | None) -> str:
    return "" if value is None else number_text(value)


def write(results: Results, target: Path, last: LastRelease) -> None:
    """Write the page and its plots; plots of earlier runs are removed."""
    folder, pictures = target.with_suffix(""), plots(results)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, svg in pictures.items():
        (folder / name).write_text(svg)
    target.write_text(page(results, pictures, last))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_page", description="Write docs from the bench's results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--costs", type=Path, default=COSTS, help="file of costs for `timer-bridge size`")
    parser.add_argument("--release", action="store_true", help="also keep the figures as those of the last release")
    args = parser.parse_args(argv)

    def job() -> int:
        results, kept = load(args.results), args.page.with_suffix("") / last_release.PATH.name
        if not results.settings["quick"]:
            write(results, args.page, last_release.read("whole", kept))
            model = fit(results)
            args.page.with_name("capacity.md").write_text(capacity.page(results, model))
            args.costs.write_text(model.to_json())
        elif not args.release:
            raise SettingsError("the last run was quick: run `make bench` without --quick")
        if args.release:
            last_release.write("quick" if results.settings["quick"] else "whole", results, kept)
        return 0

    return command.run("bench_page", job)


if __name__ == "__main__":
    sys.exit(main())
