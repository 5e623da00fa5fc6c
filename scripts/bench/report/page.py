"""`python -m scripts.bench.report.page`: docs/benchmarks.md and its plots, from results.json of `make bench`.

Where the bridge loses is not written by hand: comparisons and goals find it.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.bench.report.comparisons import comparisons, held, missed
from scripts.bench.report.figures import FIGURES, number_text
from scripts.bench.report.plots import WAYS, plots
from scripts.bench.report.results import RESULTS, MedianValue, Results, load
from scripts.bench.run import BUSY_SHARE
from scripts.bench.suite import SLICE_CORES, SLICED_PARTITIONS, TICKS_MS
from scripts.common import command

PAGE = Path("docs/benchmarks.md")
ACCOUNT = ("requested", "lost", "duplicates", "early")

METHOD = """\
Each part has a new embedded broker on loopback, one copy of each topic, and a bridge with its
defaults in a process of its own; broker, bridge and sender share the machine. The broker has Kafka's defaults but for
what one node needs: 4 partitions of the topics for offsets and transactions, 2 and 4 threads for network and disk, and
no wait for more members of a new group (3 s by default, which a start of the first instance has to add). What is sent
is taken in before the first timer is due, else the part fails. Each server is warmed up alike: 20,000 messages, then
2,000 and 30,000 a second.

{servers}
- **Counted**: each delivery is matched with its request by `timer-origin`, by a read_committed reader. Lost, double,
  early.
- **Lateness** is the append time on the real topic less the due time, by the broker's clock; *at the consumer* it is
  when a reader is handed the record, with the commit in it.
- **Drain** is from the first to the last of a burst due in one millisecond, by the broker's clock, with no reader
  meanwhile; *from its due time* counts the wait for the first too. Our last commit is in neither.
- **Steady**: each message is due 2 s after it is sent, so that in and out go on at once. *out* is the rate while
  others are still sent. At 1,000/s a reader is beside it; beyond, one in Python would take the CPU that is measured.
- **Small transactions**: what falls due at 10,000/s between two turns, sent at the bridge's pace by two producers in
  turn, with no bridge and no other load: from begin to acknowledged. Lateness cannot be less than half a pace and that.
- **Copy loop**: one thread that consumes, produces and commits in transactions of 2,000, and waits for each: a
  reference. With a second producer under way a bridge may pass it.
- **Steady rates** are compared where both sent and delivered at least 95 % of what was asked.
- **Outage**: killed (-9) 1 s before all timers are due, started 3 s after that; from the start to the last
  delivery, each timer counted once. The bridge's brokers stay up; RocketMQ's broker is its timer, so it is what is
  killed there.
- **Pending**: half of the timers have ids. Starts are from the launch to the ready line: after SIGTERM, after SIGKILL
  (the group's session has to expire), without the data directory.
- **Instances of {slice_cores} cores**: held to it by the kernel's cgroups from when all is taken in, so that from one
  to four neither the cores nor the broker are the limit.
- **CPU** is of the bridge's process (user and system); of the copy loop and of small transactions, of theirs. Bodies
  repeat, so compression looks better than it is.
- **RocketMQ**: name server, broker and Java client in a network namespace of their own, its defaults but for the tick,
  1 to 2 GB of heap with the same collector as Kafka's, and 256 messages a fetch from memory (32). 256 sends are in
  flight, by one client: that may be what limits its steady rates. Judged by the same code. Its broker, as Kafka's,
  answers before the disk has it; its timer delivers at least once, ours in transactions.

Again: `make bench ARGS=--full`, then `make bench-page`. Where the time goes, and what was tried:
[performance.md](performance.md)."""
IN_MEMORY = """\
- **Servers**: what brokers write lies in memory, and the collector is Java's ZGC, with 1 GB of heap for Kafka: neither
  this machine's disk nor a collector is to be measured here. The bridge's own store is on the disk. What Kafka on that
  disk costs is measured too (`disk_`)."""
ON_DISK = "- **Servers** write to the disk; the collector is Java's ZGC, with 1 GB of heap for Kafka."


def page(results: Results, pictures: Iterable[str]) -> str:
    sections = (
        _opening(results),
        _losses(results),
        _figures(results),
        [f"![{name.removesuffix('.svg')}](benchmarks/{name})" for name in pictures],
        _beside(results),
        _steady(results),
        _pending(results),
        _bursts(results),
        _accounts(results),
        [
            "## Method",
            "",
            METHOD.format(slice_cores=SLICE_CORES, servers=IN_MEMORY if results.settings["memory"] else ON_DISK),
        ],
        _not_measured(results),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _opening(results: Results) -> list[str]:
    machine, versions, settings = results.machine, results.versions, results.settings
    lines = [
        "# Benchmarks",
        "",
        f"`make bench` on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux"
        f" {machine['kernel']}; {settings['messages']:,} messages of {settings['body_bytes']} bytes a scenario,"
        f" {settings['partitions']} partitions; "
        + ("one round." if settings["repeat"] == 1 else f"medians of {settings['repeat']} rounds, lowest and highest."),
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
    if settings.get("add"):
        lines += ["", f"Measured behind the others, on the same machine: {', '.join(settings['add'])}."]
    others = max(machine["busy_before"], machine["others_share"])
    if others > BUSY_SHARE:
        lines += [
            "",
            f"**The machine was not quiet: others used up to {others:.0%} of it. Ratios say more than figures.**",
        ]
    return lines


def _losses(results: Results) -> list[str]:
    lost = [c for c in comparisons(results) if c.is_lost]
    rows = [
        (f"{c.what}, {c.of}", c.beside, _amount(c.ours, c.unit), _amount(c.theirs, c.unit), f"{c.ratio:.2f}")
        for c in lost
    ]
    goals = [(m.key, f"{number_text(m.value)} {m.unit}", m.goal) for m in missed(results)]
    lines = ["## Where we lose", ""]
    lines += _table(("", "beside", "ours", "theirs", "ratio"), rows) if rows else ["In no comparison of this run."]
    return [*lines, "", *(_table(("goal missed", "is", "should be"), goals) if goals else ["Every goal was reached."])]


def _figures(results: Results) -> list[str]:
    rows = []
    for figure in FIGURES:
        value = results.figures.get(figure.key)
        if value is not None:
            goal = figure.goal
            verdict = "" if goal is None else f"{goal.text} {'reached' if goal.reached(value) else '**missed**'}"
            rows.append((f"`{figure.key}`", number_text(value), figure.unit, verdict))
    return ["## Figures", "", *_table(("figure", "median", "unit", "goal"), rows)]


def _beside(results: Results) -> list[str]:
    rows = [
        (c.what, c.of, c.beside, _amount(c.ours, c.unit), _amount(c.theirs, c.unit), f"{c.ratio:.2f}")
        for c in comparisons(results)
    ]
    heading = ("", "mode", "beside", "ours", "theirs", "ratio, above 1 is better")
    return ["## Beside others", "", *_table(heading, rows)] if rows else []


def _steady(results: Results) -> list[str]:
    rows = []
    for begin, (name, _) in WAYS.items():
        for rate in results.places(begin, ".asked_per_s"):
            of = f"{begin}{rate}."
            own_us, all_us = results.cpu_us(f"{begin}{rate}"), results.broker_cpu_us(f"{begin}{rate}")
            is_peer = begin.startswith("rocketmq")  # whose broker is its timer
            cpu = ["" if is_peer else f"{own_us:.1f}", f"{all_us if is_peer else own_us + all_us:.1f}"]
            late = [_of(results, f"{of}late.{part}") for part in ("p50_ms", "p99_ms", "max_ms")]
            rates = [_of(results, f"{of}{end}_per_s") for end in ("sent", "out")]
            kept = "yes" if rate in held(results, begin) else "no"
            rows.append((name, f"{int(rate):,}", *rates, kept, *late, *cpu))
    heading = (
        "",
        "asked/s",
        "sent/s",
        "out/s",
        "held",
        "p50 ms",
        "p99 ms",
        "max ms",
        "CPU us",
        "with its broker",
    )
    return ["## Steady load", "", *_table(heading, rows)] if rows else []


def _pending(results: Results) -> list[str]:
    places = results.places("pending.", ".timers")
    told = {
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
    rows = [(name, *(_of(results, f"pending.{place}.{end}") for place in places)) for name, end in told.items()]
    heading = ("", *(f"{int(place):,} timers" for place in places))
    return ["## Pending timers", "", *_table(heading, rows)] if places else []


def _bursts(results: Results) -> list[str]:
    rows = []
    for begin, name in (
        ("instances.", "partitions x instances"),
        ("slices.", f"instances of {SLICE_CORES} cores, {SLICED_PARTITIONS} partitions"),
        ("bodies.", "body, bytes"),
        ("publishing.", "setting"),
    ):
        for place in results.places(begin, ".drain_per_s"):
            cpu = f"{results.cpu_us(f'{begin}{place}'):.1f}"
            at = f"{begin}{place}."
            figures = [_of(results, f"{at}{end}") for end in ("drain_per_s", "from_due_per_s", "first_late_ms")]
            rows.append((name, place, *figures, cpu))
    heading = ("", "", "drain msg/s", "from its due time msg/s", "first after ms", "CPU us, all instances")
    return ["## Partitions, instances, bodies, publishing", "", *_table(heading, rows)] if rows else []


def _accounts(results: Results) -> list[str]:
    """Return the table of faults, over all scenarios."""
    rows = []
    for name, prefix in (
        ("the bridge", ""),
        *((f"RocketMQ, tick {tick} ms", f"rocketmq.{tick}.") for tick in TICKS_MS),
    ):
        told = {
            key: value.median
            for key, value in results.measured.items()
            if ".account." in key and (key.startswith(prefix) if prefix else not key.startswith("rocketmq."))
        }
        sums = [sum(v for k, v in told.items() if k.endswith(f".{end}")) for end in ACCOUNT]
        if told:
            rows.append((name, *map(number_text, sums)))
    heading = ("", *ACCOUNT)
    return ["## Counted, over all scenarios", "", *_table(heading, rows)] if rows else []


def _not_measured(results: Results) -> list[str]:
    rows = [(f"`{key}`", why) for key, why in results.reasons.items()]
    return ["## Not measured", "", *_table(("figure", "why"), rows)] if rows else []


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _of(results: Results, name: str) -> str:
    """Return the median, and the spread if there is one."""
    value = results.measured.get(name)
    return "" if value is None else _spread(value)


def _spread(value: MedianValue) -> str:
    if value.low == value.high:
        return number_text(value.median)
    return f"{number_text(value.median)} ({number_text(value.low)}–{number_text(value.high)})"


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
    parser = argparse.ArgumentParser(
        prog="bench_page", description="Write docs/benchmarks.md from the bench's results."
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(argv)

    def job() -> int:
        write(load(asked.results), asked.page)
        return 0

    return command.run("bench_page", job)


if __name__ == "__main__":
    sys.exit(main())
