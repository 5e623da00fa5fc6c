"""Made-up results of a bench, with known costs, for tests."""

from collections.abc import Sequence
from typing import Any

from scripts.bench.measurements import CpuCost, Flat, Measured, flat
from scripts.bench.report.figures import FIGURES, counted
from scripts.bench.suite import BODIES, FULL_PER_S, GOAL_RATES, LIMIT_PER_S, PEER_RATES, RATES, SLICES, WORKERS
from scripts.common.delivery_figures import Account, Lateness

REQUEST_US, DELIVERY_US, TRANSACTION_US, KILOBYTE_US = 5.0, 6.0, 100.0, 1.5
MEMORY_BYTES, DISK_BYTES, BASE_MB = 40.0, 500.0, 60.0
ENGINE_DRAINS = {"wheel": 100_000.0, "rocksdb": 90_000.0}
BODY_BYTES, COUNT, SECONDS, PENDING = 256, 100_000, 10, 10_000_000


def cost(requests: float, deliveries: float, transactions: float, body_bytes: int = BODY_BYTES) -> CpuCost:
    kilobytes = (requests + deliveries) * body_bytes / 1024
    parts = (requests * REQUEST_US, deliveries * DELIVERY_US, transactions * TRANSACTION_US, kilobytes * KILOBYTE_US)
    return CpuCost(sum(parts) / 1e6, transactions)


def burst(drain_per_s: float, body_bytes: int = BODY_BYTES) -> Measured:
    return {
        "drain_per_s": drain_per_s,
        "from_due_per_s": 0.9 * drain_per_s,
        "first_late_ms": 100,
        "account": Account(COUNT, 0, 0, 0, 0),
        "cost": cost(COUNT, COUNT, COUNT / 3_000, body_bytes),
    }


def steady(per_s: int, late: Lateness) -> Measured:
    count = per_s * SECONDS
    return {
        **dict.fromkeys(("asked_per_s", "sent_per_s", "out_per_s"), per_s),
        **dict.fromkeys(("late", "seen_late"), late),
        "account": Account(count, 0, 0, 0, 0),
        "cost": cost(count, count, 180 * SECONDS),
        "broker_cpu_s": 1.0,
    }


def pending() -> Measured:
    return {
        "timers": PENDING,
        "taken_in_per_s": 60_000.0,
        "rss_empty_mb": BASE_MB,
        "rss_mb": BASE_MB + PENDING * MEMORY_BYTES / 2**20,
        "disk_empty_mb": 160.0,
        "disk_mb": 160 + PENDING * DISK_BYTES / 2**20,
        "burst_before": burst(90_000),
        "burst": burst(88_000),
        "look_up_p99_ms": 20.0,
        "ready_after_stop_s": 1.0,
        "ready_after_kill_s": 6.0,
        "ready_after_loss_s": 21.0,
    }


def measured(speed: float) -> Flat:
    """Return a round's measurements. `speed`: 1 is normal."""
    found: dict[str, object] = {
        "copy": {"per_s": 80_000 * speed, "cpu_us": 20.0 / speed},
        "g1.copy": {"per_s": 60_000 * speed, "cpu_us": 20.0 / speed},
        "burst": burst(120_000 * speed),
        "g1.burst": burst(90_000 * speed),
        "intake": {"per_s": 70_000.0, "requests": COUNT, "cost": cost(COUNT, 0, 100)},
        "at-least-once.burst": burst(110_000 * speed),
        **{f"steady.{rate}": steady(rate, Lateness(4, 10 + rate // 2_000, 60)) for rate in (*RATES, FULL_PER_S)},
        **{f"small.{rate}": {"cpu_us": 30.0, "acknowledged": Lateness(5, 10, 20)} for rate in GOAL_RATES},
        f"at-least-once.steady.{LIMIT_PER_S}": steady(LIMIT_PER_S, Lateness(2, 7, 30)),
        **{f"bodies.{size}": burst(90_000, size) for size in BODIES},
        "partitions.1": burst(30_000.0),
        **{f"slices.{count}": burst(15_000.0 * count) for count in SLICES},
        **{f"workers.{count}": burst(14_000.0 * count) for count in WORKERS},
        **{f"engines.{engine}.burst": burst(per_s * speed) for engine, per_s in ENGINE_DRAINS.items()},
        **{
            f"engines.{engine}.steady.{rate}": steady(rate, Lateness(4, 10, 60))
            for engine in ENGINE_DRAINS
            for rate in GOAL_RATES
        },
        "idle.cpu_percent": 0.8,
        "pending": pending(),
        "rocketmq.burst": burst(100_000 * speed),
        "rocketmq.g1.burst": burst(110_000 * speed),
        **{f"rocketmq.steady.{rate}": steady(rate, Lateness(60, 130, 150)) for rate in PEER_RATES},
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
        "figures": {key: value for key, value in values.items() if value is not None},
        "reasons": {key: "it was left out" for key, value in values.items() if value is None},
        "counted": counted(rounds),
        "machine": {
            "cpu": "Abacus",
            "cores": 2,
            "memory_gb": 4.0,
            "kernel": "1",
            "busy_before": 0.0,
            "others_share": 0.02,
        },
        "versions": {"kafka": "4.3.0", "rocketmq": "5.5.0", "kafka-timer-bridge": "7.0.0"},
        "settings": {
            "messages": COUNT,
            "body_bytes": BODY_BYTES,
            "partitions": 4,
            "tries": len(speeds),
            "memory": False,
            "quick": False,
            "add": [],
        },
        "rounds": [{"measured": one} for one in rounds],
    }
