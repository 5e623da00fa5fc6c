"""Measurements of the bench: a number for each dotted name.

flat({"burst": {"drain_per_s": 90000, "account": Account(requested=100000, ...)}})
-> {"burst.drain_per_s": 90000.0, "burst.account.requested": 100000.0, ...}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Measured = Mapping[str, object]
"""Numbers by name. A value may also be a mapping or a NamedTuple of numbers."""
Flat = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """Size of a scenario. `partitions`: of each topic."""

    messages: int
    body_bytes: int
    partitions: int

    @property
    def head_start_ms(self) -> int:
        """Return the time from the first send to the first due time, enough for intake on a slow machine."""
        return 3_000 + self.messages // 12


class CpuCost(NamedTuple):
    """CPU of the bridge's process, or of RocketMQ's broker. `transactions`: 0 if there are none."""

    cpu_s: float
    transactions: float


def flat(measured: Measured) -> Flat:
    """Return the numbers by name, with a dot for each level."""
    found: Flat = {}
    for name, value in measured.items():
        if isinstance(value, int | float):
            found[name] = float(value)
            continue
        inner = value if isinstance(value, Mapping) else value._asdict()  # type: ignore[attr-defined]
        found |= {f"{name}.{part}": number for part, number in flat(inner).items()}
    return found
