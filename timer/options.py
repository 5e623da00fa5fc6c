"""The shape of a store."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of one shard's store. The tick is that of the whole store, the slots may differ at each opening."""

    tick_ms: int = 1000
    slots: int = 2 * 604_800
    """A lap, in ticks: the roll window plus the longest stand-still of delivery that does not pause intake."""
    segment_bytes: int = 64 << 20
    checkpoint_interval_ms: int = 2000
    compact_below: float = 0.1
    """A body file of which a smaller part lives is given up, what lives moves to the end."""
    compact_ahead_ms: int = 600_000
    """But not if all of it leaves within this time anyway."""
