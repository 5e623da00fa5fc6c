"""Made-up results of a bench, with known costs, for tests."""

from collections.abc import Sequence
from typing import Any

from scripts.bench.measurements import (
    Burst,
    Copy,
    CpuCost,
    Flat,
    IntakeFigures,
    Outage,
    PendingFigures,
    Spread,
    Steady,
    flat,
)
from scripts.bench.report.figures import FIGURES
from scripts.bench.suite import (
    AT_LEAST_ONCE_RATES,
    BODIES,
    INSTANCES,
    PENDING,
    PENDING_FULL,
    PUBLISHING,
    RATES,
    SLICES,
    TICKS_MS,
)
from scripts.common.delivery_figures import Account, Lateness

REQUEST_US, DELIVERY_US, TRANSACTION_US, KILOBYTE_US = 5.0, 6.0, 100.0, 1.5
MEMORY_BYTES, DISK_BYTES, BASE_MB = 40.0, 500.0, 60.0
BODY_BYTES, COUNT, SECONDS = 256, 100_000, 10


def cost(requests: float, deliveries: float, transactions: float, body_bytes: int = BODY_BYTES) -> CpuCost:
    kilobytes = (requests + deliveries) * body_bytes / 1024
    parts = (requests * REQUEST_US, deliveries * DELIVERY_US, transactions * TRANSACTION_US, kilobytes * KILOBYTE_US)
    return CpuCost(sum(parts) / 1e6, transactions)


def burst(drain_per_s: float, body_bytes: int = BODY_BYTES) -> Burst:
    spent = cost(COUNT, COUNT, COUNT / 3_000, body_bytes)
    return Burst(drain_per_s, 0.9 * drain_per_s, 100, 1_000, Account(COUNT, 0, 0, 0, 0), spent)


def steady(per_s: int, late: Lateness) -> Steady:
    count = per_s * SECONDS
    return Steady(per_s, per_s, per_s, late, late, Account(count, 0, 0, 0, 0), cost(count, count, 180 * SECONDS), 1.0)


def spread(late: Lateness) -> Spread:
    return Spread(late, late, Account(COUNT, 0, 0, 0, 0), cost(COUNT, COUNT, 5_000))


def pending(timers: int) -> PendingFigures:
    grown_mb, disk_mb = timers * MEMORY_BYTES / 2**20, 160 + timers * DISK_BYTES / 2**20
    return PendingFigures(
        timers,
        60_000.0,
        BASE_MB,
        BASE_MB + grown_mb,
        160.0,
        disk_mb,
        burst(90_000),
        burst(88_000),
        20.0,
        1.0,
        6.0,
        5.0,
        21.0,
    )


def measured(speed: float) -> Flat:
    """Return a round's measurements. `speed`: 1 is normal."""
    found: dict[str, object] = {
        "copy": Copy(100_000 * speed, 20.0 / speed),
        "spread": spread(Lateness(5, 12, 30)),
        "burst": burst(90_000 * speed),
        "intake": IntakeFigures(70_000.0, COUNT, cost(COUNT, 0, 100)),
        "core.peak_rss_mb": 200.0,
        "at-least-once.spread": spread(Lateness(3, 8, 20)),
        "at-least-once.burst": burst(110_000 * speed),
        "outage": Outage(4.0, 15_000.0, 60_000.0, Account(COUNT, 0, 0, 0, 0)),
        **{f"steady.{rate}": steady(rate, Lateness(4, 10 + rate // 2_000, 60)) for rate in RATES},
        **{f"at-least-once.steady.{rate}": steady(rate, Lateness(2, 7, 30)) for rate in AT_LEAST_ONCE_RATES},
        **{f"bodies.{size}": burst(90_000, size) for size in BODIES},
        **{f"publishing.{name}": burst(90_000) for name in PUBLISHING},
        **{f"instances.{p}x{count}": burst(30_000.0 * min(p, count)) for p, count in INSTANCES},
        **{f"slices.{count}": burst(15_000.0 * count) for count in SLICES},
        **{f"pending.{timers}": pending(timers) for timers in (PENDING, PENDING_FULL)},
        **{f"rocketmq.{tick}.spread": spread(Lateness(tick // 2, tick + 50, tick + 90)) for tick in TICKS_MS},
        **{f"rocketmq.{tick}.burst": burst(100_000 * speed) for tick in TICKS_MS},
        **{f"rocketmq.1000.steady.{rate}": steady(rate, Lateness(600, 1_100, 1_200)) for rate in RATES},
        "rocketmq.100.steady.10000": steady(10_000, Lateness(60, 130, 150)),
        "rocketmq.1000.outage": Outage(9.0, 10_000.0, 12_000.0, Account(COUNT, 0, 0, 0, 0)),
    }
    return flat(found)


def made_up(speeds: Sequence[float] = (0.9, 1.0, 1.1), without: str = "") -> dict[str, Any]:
    """Return the content of results.json, without names that begin with `without`."""
    rounds = [
        {name: value for name, value in measured(speed).items() if not without or not name.startswith(without)}
        for speed in speeds
    ]
    values = {figure.key: figure.value(rounds) for figure in FIGURES}
    return {
        **values,
        "reasons": {key: "it was left out" for key, value in values.items() if value is None},
        "machine": {
            "cpu": "Abacus",
            "cores": 2,
            "memory_gb": 4.0,
            "kernel": "1",
            "busy_before": 0.0,
            "others_share": 0.02,
        },
        "versions": {"kafka": "4.3.0", "rocketmq": "5.5.0", "python": "3.11"},
        "settings": {
            "messages": COUNT,
            "body_bytes": BODY_BYTES,
            "partitions": 4,
            "repeat": len(speeds),
            "memory": None,
            "add": [],
        },
        "rounds": [{"measured": one, "failed": {}, "parts": {}} for one in rounds],
    }
