"""Resources for a load: CPU, memory, disk, brokers, and the time that a lost disk costs.

    costs.json (bench, by least squares) -> Model -> size(messages/s, pending timers, roll window) -> Sizing

By Little's law timers wait pending / rate on the average. A timer that waits longer than a roll window rolls once a
window, which is one more message in and out: rolls = pending / window a second. All timers wait equally long in this
model: if a few wait long and most do not, more roll, and a rebuild reads more.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

COSTS = Path(__file__).with_name("costs.json")
"""The costs of the last published bench: docs/capacity.md shows them."""
DAY_S = 86_400
WINDOW_S = 2 * DAY_S
"""The bridge's default roll window."""
BUSY = 0.7
"""Planned share of a core or of a measured maximum; the rest is for peaks and for a failed instance."""
MEMORY_MB = 16_384
"""Memory of an instance for its index of ids."""
LEAST_KEPT_S = 7 * DAY_S
"""Least retention of the timer topic, for any window."""
COPIES = 3
"""Copies of each record on the brokers."""
RECORD_BYTES = 150
"""Bytes of a record besides its body: headers and framing, about."""
LEAST_PARTITIONS = 16


class Cpu(NamedTuple):
    """CPU model, in microseconds; `worst`: its largest relative error of a run."""

    request_us: float
    delivery_us: float
    transaction_us: float
    kilobyte_us: float
    worst: float


@dataclass(frozen=True)
class Model:
    """`most_pending`: was measured; beyond it, all is calculated. `partition_per_s`, `instance_per_s`: in and out."""

    cpu: Cpu
    body_bytes: float
    transactions_per_s: float
    instance_per_s: float
    partition_per_s: float
    base_mb: float
    memory_bytes: float
    disk_bytes: float
    partition_disk_mb: float
    rebuild_per_s: float
    most_pending: float

    @property
    def message_us(self) -> float:
        """Return the CPU of a message in and out, in microseconds."""
        return self.cpu.request_us + self.cpu.delivery_us + 2 * self.body_bytes / 1024 * self.cpu.kilobyte_us

    @classmethod
    def published(cls) -> "Model":
        """Return the model of the bench that docs/capacity.md shows."""
        told = json.loads(COSTS.read_text())
        return cls(**told | {"cpu": Cpu(**told["cpu"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"cpu": self.cpu._asdict()}, indent=2) + "\n"

    def for_bodies(self, body_bytes: float) -> "Model":
        """Return the model for other bodies than those of the bench."""
        return replace(self, body_bytes=body_bytes, disk_bytes=self.disk_bytes + body_bytes - self.body_bytes)


@dataclass(frozen=True)
class Sizing:
    """`..._each`: of an instance. `broker_mb_per_s`: written, all copies, without journal and receipts.

    `topic_tb`: kept for three windows, or LEAST_KEPT_S. `rebuild_s`: if all wait equally long. `longest_rebuild_s`: if
    one waits for a whole window, so that everything since is read.
    """

    rolls_per_s: float
    instances: int
    partitions: int
    memory_mb_each: float
    disk_gb_each: float
    broker_mb_per_s: float
    transactions_per_s: float
    topic_tb: float
    rebuild_s: float
    longest_rebuild_s: float


def size(model: Model, per_s: float, pending: float, window_s: float = WINDOW_S) -> Sizing:
    """Return the resources for an evenly shared load."""
    rolls_per_s = pending / window_s if pending / per_s > window_s else 0.0
    moved_per_s, record_bytes = per_s + rolls_per_s, model.body_bytes + RECORD_BYTES
    room_us = max(BUSY * 1e6 - model.transactions_per_s * model.cpu.transaction_us, 1e5)
    instances = max(
        math.ceil(moved_per_s * model.message_us / room_us),
        math.ceil(moved_per_s / (BUSY * model.instance_per_s)),
        math.ceil(pending * model.memory_bytes / 2**20 / MEMORY_MB),
    )
    partitions = max(LEAST_PARTITIONS, 2 * instances, math.ceil(moved_per_s / (BUSY * model.partition_per_s)))
    disk_bytes = pending * model.disk_bytes + partitions * model.partition_disk_mb * 2**20
    return Sizing(
        rolls_per_s=rolls_per_s,
        instances=instances,
        partitions=partitions,
        memory_mb_each=model.base_mb + pending * model.memory_bytes / instances / 2**20,
        disk_gb_each=disk_bytes / instances / 1e9,
        broker_mb_per_s=(2 * per_s + rolls_per_s) * record_bytes * COPIES / 1e6,
        transactions_per_s=instances * model.transactions_per_s,
        topic_tb=moved_per_s * record_bytes * max(3 * window_s, LEAST_KEPT_S) * COPIES / 1e12,
        rebuild_s=min(pending, moved_per_s * window_s) / (instances * model.rebuild_per_s),
        longest_rebuild_s=moved_per_s * window_s / (instances * model.rebuild_per_s),
    )


def rebuild_s(model: Model, per_s: float, window_s: float) -> float:
    """Return the time to rebuild lost disks, if every timer waits a whole window: all instances read at once."""
    return size(model, per_s, per_s * window_s, window_s).longest_rebuild_s
