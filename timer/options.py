"""Settings of a store."""

from dataclasses import dataclass
from typing import Literal

Engine = Literal["wheel", "rocksdb"]
"""wheel: TimerLog, TimerWheel and body log, as in RIP-43. rocksdb: a RocksDB database, as in RIP-82."""

TICK_MS = 1000


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of one partition's store. Engine and tick never change; the slots may differ at each opening.

    slots, segment_bytes and compact_*: of the engine `wheel`.
    """

    engine: Engine = "wheel"
    tick_ms: int = TICK_MS
    slots: int = 2 * 604_800
    """Ticks in a lap: two roll windows plus the longest standstill of delivery that does not pause intake."""
    segment_bytes: int = 64 << 20
    checkpoint_interval_ms: int = 2000
    compact_below: float = 0.1
    """A body file with a smaller pending part is compacted."""
    compact_ahead_ms: int = 600_000
    """A body file whose timers all leave within this time is not compacted."""
