"""What a scenario of the bench measures, of the bridge and of its peer alike; `flat` gives each number a name.

{"burst": Burst(drain_per_s=90000.0, account=Account(requested=100000, ...))}
-> {"burst.drain_per_s": 90000.0, "burst.account.requested": 100000.0, ...}
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass

from scripts.common.delivery_figures import Account, Lateness


@dataclass(frozen=True)
class Sizes:
    messages: int
    spread_seconds: float
    body_bytes: int
    partitions: int

    @property
    def head_start_ms(self) -> int:
        """Return the time from the first send to the first due time, enough for intake on a slow machine."""
        return 3_000 + self.messages // 12


@dataclass(frozen=True)
class CpuCost:
    """Cost of the bridge's process, or of a peer's broker. `transactions`: 0 if there are none."""

    cpu_s: float
    transactions: float

    def __add__(self, other: "CpuCost") -> "CpuCost":
        return CpuCost(self.cpu_s + other.cpu_s, self.transactions + other.transactions)


NO_COST = CpuCost(0.0, 0.0)


@dataclass(frozen=True)
class Copy:
    """Cost of a copy loop. `cpu_us`: per record, with librdkafka's threads."""

    per_s: float
    cpu_us: float


@dataclass(frozen=True)
class Spread:
    """Lateness: `late` by the broker's clock, `seen_late` at the consumer."""

    late: Lateness
    seen_late: Lateness
    account: Account
    cost: CpuCost


@dataclass(frozen=True)
class Burst:
    """By the broker's clock; no consumer runs meanwhile.

    `drain_per_s` is from the first to the last, `from_due_per_s` from the due time to the last: of few transactions,
    the one says little, as most is done before the first stands.
    """

    drain_per_s: float
    from_due_per_s: float
    first_late_ms: int
    last_late_ms: int
    account: Account
    cost: CpuCost


@dataclass(frozen=True)
class IdFigures:
    """`account`: of the timers without a cancel; `cancelled_but_delivered`: of the others."""

    drain_per_s: float
    account: Account
    cancelled: int
    cancelled_but_delivered: int
    cost: CpuCost


@dataclass(frozen=True)
class IntakeFigures:
    per_s: float
    requests: int
    cost: CpuCost


@dataclass(frozen=True)
class Steady:
    """`out_per_s` is while others were still sent. `seen_late` is of rates at which a consumer beside it takes little
    of the machine; else all 0.
    """

    asked_per_s: int
    sent_per_s: float
    out_per_s: float
    late: Lateness
    seen_late: Lateness
    account: Account
    cost: CpuCost
    broker_cpu_s: float


@dataclass(frozen=True)
class Small:
    """Transactions of so many records, ms since their begin; nothing is read. `cpu_us`: a record, as of `Copy`."""

    records: int
    cpu_us: float
    acknowledged: Lateness
    committed: Lateness


@dataclass(frozen=True)
class Outage:
    """Killed with timers pending, 1 s before they are due, started when all are.

    `per_s` is from the start to the last delivery, each timer counted once.
    """

    ready_s: float
    per_s: float
    drain_per_s: float
    account: Account


@dataclass(frozen=True)
class PendingFigures:
    """Starts are from the launch to the ready line: after SIGTERM, after SIGKILL, without the data directory.

    Behind a SIGKILL the group waits until the dead member's session is over, unless its name is known to be the same
    (`static`, by the setting static_membership). A look-up is of one timer by its id, with its value, over HTTP.
    """

    timers: int
    taken_in_per_s: float
    rss_empty_mb: float
    rss_mb: float
    disk_empty_mb: float
    disk_mb: float
    burst_before: Burst
    burst: Burst
    look_up_p99_ms: float
    ready_after_stop_s: float
    ready_after_kill_s: float
    ready_after_kill_static_s: float
    ready_after_loss_s: float


Flat = dict[str, float]


def flat(measured: Mapping[str, object]) -> Flat:
    """Return the numbers by name, with a dot for each level."""
    found: Flat = {}
    for name, value in measured.items():
        match value:
            case int() | float():
                found[name] = float(value)
            case Mapping():
                found |= flat({f"{name}.{part}": inner for part, inner in value.items()})
            case tuple() if hasattr(value, "_asdict"):
                found |= flat({name: value._asdict()})
            case _:
                assert is_dataclass(value)
                assert not isinstance(value, type)
                found |= flat({name: asdict(value)})
    return found
