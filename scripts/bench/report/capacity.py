"""docs/capacity.md: resources for loads up to 1 M/s, from results.json. The model is in bridge.capacity.sizing.

Each figure shows if it was measured or calculated.
"""

from bridge.capacity.sizing import BUSY, COPIES, DAY_S, MEMORY_MB, WINDOW_S, Model, rebuild_s, size
from schemas.durations import span_text
from scripts.bench.report.markdown import render, table
from scripts.bench.report.results import Results
from scripts.bench.report.sizing import runs
from scripts.bench.suite import SLICE_CORES, SLICED_PARTITIONS, SLICES, WORKERS

RATES = (1_000, 10_000, 100_000, 1_000_000)
PENDING = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
WINDOWS_S = (DAY_S // 2, 2 * DAY_S, 7 * DAY_S, 24 * DAY_S)
NEEDS = (
    *("messages/s", "pending", "rolls/s", "instances", "partitions", "memory each", "disk each", "brokers write"),
    *("transactions/s", "timer topic", "a lost disk", "at most"),
)


def page(results: Results, model: Model) -> str:
    """Return the page. model: fitted to the results."""
    return render(
        "capacity.md.jinja",
        machine=results.machine,
        worst=f"{model.cpu.worst:.0%}",
        costs=table(("", ""), _costs(model)),
        checked=table(("steady load, CPU a message", "measured, us", "by the model, us"), _checked(model, results)),
        most_per_s=f"{model.instance_per_s:,.0f}",
        most_pending=f"{model.most_pending:,.0f}",
        memory_gb=MEMORY_MB // 1024,
        busy=f"{BUSY:.0%}",
        window_days=WINDOW_S // DAY_S,
        copies=COPIES,
        body_bytes=f"{model.body_bytes:.0f}",
        needs=table(NEEDS, [_needs(model, per_s, pending) for per_s in RATES for pending in PENDING]),
        rebuilds=table(("messages/s", *(f"window {_span(each)}" for each in WINDOWS_S)), _rebuilds(model)),
        slices=_slices(results, "slices", "instances", SLICES),
        workers=_slices(results, "workers", "workers", WORKERS),
        slice_cores=SLICE_CORES,
        sliced_partitions=SLICED_PARTITIONS,
    )


def _costs(model: Model) -> list[tuple[str, str]]:
    cpu = model.cpu
    return [
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
        ("in and out at once, an instance", f"{model.instance_per_s:,.0f}/s"),
        ("in and out, a partition (taken as half of its burst)", f"{model.partition_per_s:,.0f}/s"),
    ]


def _checked(model: Model, results: Results) -> list[tuple[str, str, str]]:
    """Return the steady rates with the measured CPU and the model's."""
    return [
        (
            f"{float(run.name.removeprefix('steady.')):,.0f}/s asked",
            f"{run.message_us:.1f}",
            f"{run.modelled_us(model.cpu):.1f}",
        )
        for run in sorted(runs(results), key=lambda run: run.requests)
        if run.name.startswith("steady.")
    ]


def _needs(model: Model, per_s: int, pending: int) -> list[str]:
    of = size(model, per_s, pending)
    is_measured = of.instances == 1 and pending <= model.most_pending and not of.rolls_per_s
    upright = "{}" if is_measured else "*{}*"
    return [
        f"{per_s:,}",
        f"{pending:,}",
        upright.format(f"{of.rolls_per_s:,.0f}"),
        upright.format(f"{of.instances:,}"),
        upright.format(f"{of.partitions:,}"),
        upright.format(f"{of.memory_mb_each:,.0f} MB"),
        upright.format(f"{of.disk_gb_each:,.1f} GB"),
        f"*{of.broker_mb_per_s:,.1f} MB/s*",
        f"*{of.transactions_per_s:,.0f}*",
        f"*{of.topic_tb:,.2f} TB*",
        upright.format(_span(of.rebuild_s)),
        f"*{_span(of.longest_rebuild_s)}*",
    ]


def _rebuilds(model: Model) -> list[list[str]]:
    return [[f"{per_s:,}", *(f"*{_span(rebuild_s(model, per_s, each))}*" for each in WINDOWS_S)] for per_s in RATES]


def _slices(results: Results, name: str, heading: str, counts: tuple[int, ...]) -> str:
    """Return the table of processes that each have a fixed part of a core; empty if not measured."""
    drains = {count: results.median(f"{name}.{count}.from_due_per_s") for count in counts}
    one = drains[1]
    if not one:
        return ""
    rows = [(count, f"{drain:,.0f}", f"{drain / (count * one):.2f}") for count, drain in drains.items() if drain]
    return table((heading, "msg/s", "to as many times that of one"), rows)


def _span(span_s: float) -> str:
    return span_text(span_s * 1000)
