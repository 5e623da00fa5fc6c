"""What a bridge holds at a moment, for metrics: looked at by the turn's thread when somebody asks, at no cost else."""

from collections.abc import Callable
from dataclasses import dataclass

from bridge.meters import Names
from bridge.shard import OwnedShard
from bridge.turn import Bridge
from schemas.origin import Shard


@dataclass(frozen=True, slots=True)
class ShardSeen:
    """Timers, requests that were read and wait to be taken in, and bytes of the store's files."""

    pending: int
    held: int
    rolling: int
    backlog: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Seen:
    """`pending`: timers by real topic, or its label. `first_due_ms`: None where none is pending, or where it was not
    found in time. `free_bytes`: where the stores lie; None: there is none.
    """

    shards: dict[Shard, ShardSeen]
    pending: dict[str, int]
    first_due_ms: int | None
    free_bytes: int | None


NOTHING = Seen({}, {}, None, None)


def see(bridge: Bridge, targets: Names, is_over: Callable[[], bool]) -> Seen:
    """`is_over` ends the search for the first due time."""
    ends: list[bool] = []

    def is_cut() -> bool:
        ends.append(is_over())
        return ends[-1]

    ranges, owned = bridge.due_ranges(is_cut), bridge.shards
    first_due_ms = min((own.first_ms for own in ranges.values()), default=None)
    return Seen(
        shards={shard: _of(each) for shard, each in owned.items()},
        pending=targets.labelled({topic: own.pending for topic, own in ranges.items()}),
        first_due_ms=None if any(ends) else first_due_ms,
        free_bytes=min((each.disk.free_bytes() for each in owned.values()), default=None),
    )


def _of(owned: OwnedShard) -> ShardSeen:
    rolling, store = len(owned.flights.alive()), owned.store
    return ShardSeen(store.pending + rolling, store.held, rolling, len(owned.backlog), store.size_bytes)
