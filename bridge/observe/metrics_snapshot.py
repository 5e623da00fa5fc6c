"""Snapshot of a bridge's stores for metrics, taken by the loop's thread on demand."""

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from bridge.loop.loop import Bridge
from bridge.observe.metric_types import LabelNames, Labels
from bridge.release.partition import OwnedPartition
from schemas.origin import Shard
from timer.index.due_counts import joined_ranges
from timer.schedule.backlog_summary import Backlog


@dataclass(frozen=True, slots=True)
class ShardSeen:
    """Snapshot of one partition. backlog: requests read and not taken in. pending_bytes: of pending bodies."""

    pending: int
    held: int
    rolling: int
    backlog: int
    store_bytes: int
    pending_bytes: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Snapshot of a bridge.

    pending: timers by label of the target. first_due_ms: of targets that do not wait; None if no timer is pending, or
    if it was not found in time. free_bytes: of the stores' disk; None without stores. paused: number of paused targets.
    waiting, since_ms: timers that wait, and since when the first does, by label and reason. unavailable_since_ms: since
    when a target accepts no records (epoch ms), by label.
    """

    shards: dict[Shard, ShardSeen]
    pending: dict[str, int]
    first_due_ms: int | None
    free_bytes: int | None
    paused: int = 0
    waiting: dict[Labels, int] = field(default_factory=dict)
    since_ms: dict[Labels, int] = field(default_factory=dict)
    unavailable_since_ms: dict[Labels, int] = field(default_factory=dict)


NOTHING = MetricsSnapshot({}, {}, None, None)


def see(bridge: Bridge, targets: LabelNames, now_ms: int, is_over: Callable[[], bool]) -> MetricsSnapshot:
    """Take a snapshot. The search for the first due time ends when `is_over` returns True."""
    ends: list[bool] = []

    def is_cut() -> bool:
        ends.append(is_over())
        return ends[-1]

    owned = bridge.shards
    backlogs = {shard: each.store.backlogs(now_ms) for shard, each in owned.items()}
    ranges = {shard: each.due_ranges(is_cut, needs_last=False) for shard, each in owned.items()}
    firsts: list[int] = []
    for shard, found in ranges.items():
        waiting = {each.target for each in backlogs[shard]}
        firsts += [own.first_ms for target, own in found.items() if target not in waiting]
    of_all = [each for of_shard in backlogs.values() for each in of_shard]
    unavailable = bridge.unavailable_targets()
    counts, since_ms = _waiting(of_all, targets, unavailable)
    unavailable_since_ms: dict[Labels, int] = {}
    for target, at_ms in unavailable.items():
        label = (targets.label(target),)
        unavailable_since_ms[label] = min(at_ms, unavailable_since_ms.get(label, at_ms))
    return MetricsSnapshot(
        shards={shard: _of(each) for shard, each in owned.items()},
        pending=targets.labelled({topic: own.pending for topic, own in joined_ranges(ranges.values()).items()}),
        first_due_ms=None if any(ends) else min(firsts, default=None),
        free_bytes=min((each.disk.free_bytes() for each in owned.values()), default=None),
        paused=len({each.target for each in of_all if each.is_paused}),
        waiting=counts,
        since_ms=since_ms,
        unavailable_since_ms=unavailable_since_ms,
    )


def _waiting(
    backlogs: list[Backlog], targets: LabelNames, unavailable: Container[str]
) -> tuple[dict[Labels, int], dict[Labels, int]]:
    counts: Counter[Labels] = Counter()
    since_ms: dict[Labels, int] = {}
    for each in backlogs:
        reason = "paused" if each.is_paused else "unavailable" if each.target in unavailable else "limited"
        labels = targets.label(each.target), reason
        counts[labels] += each.timers
        if each.since_ms is not None:
            since_ms[labels] = min(each.since_ms, since_ms.get(labels, each.since_ms))
    return counts, since_ms


def _of(owned: OwnedPartition) -> ShardSeen:
    rolling, store = len(owned.flights.alive()), owned.store
    sizes = store.size_bytes, store.pending_bytes
    return ShardSeen(store.pending + rolling, store.held, rolling, len(owned.backlog), *sizes)
