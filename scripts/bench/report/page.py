"""`make bench-page`: docs/benchmarks.md with its plots, and docs/capacity.md, from results.json of `make bench`.

Losses and missed goals are computed from the results, not written by hand.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.bench.report import capacity
from scripts.bench.report.comparisons import comparisons, held
from scripts.bench.report.figures import FIGURES, number_text
from scripts.bench.report.markdown import render, table
from scripts.bench.report.plots import WAYS, plots
from scripts.bench.report.results import Results, load
from scripts.bench.run import BUSY_SHARE, RESULTS
from scripts.bench.suite import SLICE_CORES, SLICED_PARTITIONS, TICKS_MS
from scripts.common import command

PAGE = Path("docs/benchmarks.md")
COUNTS = ("requested", "lost", "duplicates", "early")
PENDING_ROWS = {
    "memory, MB": "rss_mb",
    "memory without them, MB": "rss_empty_mb",
    "disk, MB": "disk_mb",
    "taken in, msg/s": "taken_in_per_s",
    "look-up of one by its id, HTTP, p99 ms": "look_up_p99_ms",
    "start after SIGTERM, s": "ready_after_stop_s",
    "start after SIGKILL, s": "ready_after_kill_s",
    "the same with static_membership, s": "ready_after_kill_static_s",
    "start without its directory, s": "ready_after_loss_s",
    "drain of a burst among them, msg/s": "burst.drain_per_s",
    "drain of a burst before, msg/s": "burst_before.drain_per_s",
}
BURST_ROWS = {
    "instances.": "partitions x instances",
    "slices.": f"instances of {SLICE_CORES} cores, {SLICED_PARTITIONS} partitions",
    "bodies.": "body, bytes",
    "publishing.": "setting",
}


def page(results: Results, pictures: Iterable[str]) -> str:
    return render(
        "benchmarks.md.jinja",
        machine=results.machine,
        versions=results.versions,
        settings={"add": [], **results.settings},
        others=max(results.machine["busy_before"], results.machine["others_share"]),
        busy_share=BUSY_SHARE,
        slice_cores=SLICE_CORES,
        losses=_losses(results),
        missed=_missed(results),
        figures=_figures(results),
        pictures=[*pictures],
        tables={
            "Beside others": _beside(results),
            "Steady load": _steady(results),
            "Pending timers": _pending(results),
            "Partitions, instances, bodies, publishing": _bursts(results),
            "Counted, over all scenarios": _counts(results),
        },
        not_measured=_table(("figure", "why"), [(f"`{key}`", why) for key, why in results.reasons.items()]),
    )


def _losses(results: Results) -> str:
    rows = [
        (f"{c.what}, {c.mode}", c.beside, _amount(c.ours, c.unit), _amount(c.theirs, c.unit), f"{c.ratio:.2f}")
        for c in comparisons(results)
        if c.is_lost
    ]
    return _table(("", "beside", "ours", "theirs", "ratio"), rows)


def _missed(results: Results) -> str:
    rows = [
        (figure.key, _amount(value, figure.unit), figure.goal)
        for figure in FIGURES
        if (value := results.figures.get(figure.key)) is not None and figure.is_missed(value)
    ]
    return _table(("goal missed", "is", "should be"), rows)


def _figures(results: Results) -> str:
    rows = []
    for figure in FIGURES:
        value = results.figures.get(figure.key)
        if value is not None:
            verdict = f"{figure.goal} {'**missed**' if figure.is_missed(value) else 'reached'}" if figure.goal else ""
            rows.append((f"`{figure.key}`", number_text(value), figure.unit, verdict))
    return table(("figure", "median", "unit", "goal"), rows)


def _beside(results: Results) -> str:
    rows = [
        (c.what, c.mode, c.beside, _amount(c.ours, c.unit), _amount(c.theirs, c.unit), f"{c.ratio:.2f}")
        for c in comparisons(results)
    ]
    return _table(("", "mode", "beside", "ours", "theirs", "ratio, above 1 is better"), rows)


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
    heading = ("asked/s", "sent/s", "out/s", "held", "p50 ms", "p99 ms", "max ms", "CPU us", "with its broker")
    return _table(("", *heading), rows)


def _pending(results: Results) -> str:
    places = results.places("pending.", ".timers")
    rows = [(name, *(results.text(f"pending.{place}.{end}") for place in places)) for name, end in PENDING_ROWS.items()]
    return _table(("", *(f"{int(place):,} timers" for place in places)), rows if places else [])


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
    """Return the table of faults, over all scenarios."""
    peers = {f"rocketmq.{tick}.": f"RocketMQ, tick {tick} ms" for tick in TICKS_MS}
    sums: dict[str, dict[str, float]] = {}
    for name, value in results.measured.items():
        scenario, _, count = name.rpartition(".account.")
        if scenario:
            whose = next((peer for begin, peer in peers.items() if name.startswith(begin)), "the bridge")
            of = sums.setdefault(whose, dict.fromkeys(COUNTS, 0.0))
            of[count] = of.get(count, 0.0) + value.median
    rows = [
        (whose, *(number_text(sums[whose][count]) for count in COUNTS))
        for whose in ("the bridge", *peers.values())
        if whose in sums
    ]
    return _table(("", *COUNTS), rows)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(heading, rows) if rows else ""


def _amount(value: float, unit: str) -> str:
    return f"{number_text(value)} {unit}"


def write(results: Results, target: Path) -> None:
    """Write the page and its plots; plots of earlier runs are removed."""
    folder, pictures = target.with_suffix(""), plots(results)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, svg in pictures.items():
        (folder / name).write_text(svg)
    target.write_text(page(results, pictures))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_page", description="Write docs from the bench's results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)

    def job() -> int:
        results = load(args.results)
        write(results, args.page)
        args.page.with_name("capacity.md").write_text(capacity.page(results))
        return 0

    return command.run("bench_page", job)


if __name__ == "__main__":
    sys.exit(main())
