"""Count the bridge's work after it is committed to Kafka, once per transaction instead of once per record.

The loop's thread writes, any thread reads (bridge.observe.metric_types). One object serves the process through all its
runs. Names and meanings of the metrics: bridge.observe.metric_definitions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import get_args

import numpy as np

from bridge.loop.open_transactions import Hang
from bridge.observe.metric_types import Histogram, LabelledSums, LabelNames
from bridge.observe.recent_traffic import TrafficMeter
from bridge.ports import Aborted, AbortReason, Committed, Ownership
from bridge.recovery.recover import RecoveryPlan
from bridge.release.draft import FrozenDraft
from bridge.release.partition import OwnedPartition
from schemas.origin import Shard
from schemas.receipts import Kind
from timer.format.body import Body

MOST_TARGETS = 100
"""Target topics with a label of their own."""
LATENESS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)
WAITED_S = (1, 10, 60, 300, 900, 3600, 14_400, 86_400, 604_800)
TRANSACTION_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
RECOVERY_S = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800)

REFUSALS = (
    *("missing-time", "ambiguous-time", "bad-header", "too-far", "missing-topic", "missing-id", "unknown-action"),
    *("bad-target", "denied-target", "denied-action", "too-large", "not-ours", "quota-exceeded", "undecodable"),
)
"""Codes of requests that intake refuses."""
PARKED = ("unknown-topic", "unknown-partition", "not-authorized", "too-large", "bad-target", "expired")
"""Codes of timers that their target does not accept."""
PAUSES = ("disk", "wheel", "held", "rate", "undecodable")

_TARGET, _DUE_MS = (itemgetter(Body._fields.index(name)) for name in ("target", "due_ms"))
_CODE = itemgetter(0)


@dataclass(frozen=True, slots=True)
class End:
    """Lag of a timer partition. hidden: the part of it that an open transaction hides."""

    lag: int
    hidden: int


class Metrics:
    """now_s: seconds of a monotonic clock. traffic: counts recent traffic too."""

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0, traffic: TrafficMeter | None = None) -> None:
        self._now_s = now_s
        self.traffic = traffic or TrafficMeter()
        self.targets = LabelNames(MOST_TARGETS)
        self.lateness = Histogram(LATENESS_S)
        self.waited = Histogram(WAITED_S)
        """Lateness of timers that waited for their target."""
        self.transactions = Histogram(TRANSACTION_S)
        self.aborts = LabelledSums(("refused", *get_args(AbortReason)))
        self.retries = LabelledSums()
        self.last_commit_ms: int | None = None
        """By the bridge's clock."""
        self.requests = LabelledSums()
        self.deliveries = LabelledSums()
        self.refused = LabelledSums(REFUSALS)
        self.parked = LabelledSums(PARKED)
        self.receipts = LabelledSums(get_args(Kind))
        self.rolled = LabelledSums()
        self.landed = LabelledSums()
        self.rebalances = LabelledSums()
        self.moves = LabelledSums(("assigned", "revoked", "lost"))
        self.recovery = Histogram(RECOVERY_S)
        self.recovery_work = LabelledSums(("directory", "kafka"))
        self.undecided = LabelledSums()
        self.pauses = LabelledSums(PAUSES)
        self.paused: Mapping[Shard, str] = {}
        """Partitions whose intake pauses, and why."""
        self.ends: Mapping[Shard, End] = {}
        self.hanging: Mapping[Shard, Hang] = {}
        self.undecodable: Mapping[Shard, int] = {}
        """Partitions whose next record cannot be decoded, with its offset."""
        self.skew_ms: Mapping[Shard, int] = {}
        """How far the clock of the broker that leads a journal partition is ahead of ours."""
        self.lost_to_retention: Mapping[Shard, int] = {}
        """Offsets from the oldest pending timer on that Kafka no longer holds."""
        self.partitions: Mapping[str, int] = {}
        """Number of partitions of each timer topic."""
        self.retention_ms: Mapping[str, int] = {}
        """Retention of timer topics and journals; -1: unlimited."""
        self.needed_retention_ms = 0
        self.decided_ms: dict[Shard, tuple[int, int]] = {}
        """Times (our clock) between which our newest committed journal record was written."""
        self._began_s: dict[Shard, float] = {}

    # -- transactions

    def ended(self, fate: Committed | Aborted) -> None:
        match fate:
            case Committed():
                self.transactions.add_one(fate.took_s)
            case Aborted(refused):
                self.aborts.add("refused" if refused else fate.why)

    def stands(self, parts: Sequence[tuple[OwnedPartition, FrozenDraft]], now_ms: int) -> None:
        """Count a committed transaction."""
        for owned, frozen in parts:
            self._count(owned, frozen, now_ms)
        self._count_deliveries([frozen for _, frozen in parts if frozen.draft.bodies], now_ms)

    def _count(self, owned: OwnedPartition, frozen: FrozenDraft, now_ms: int) -> None:
        draft, at_ms = frozen.draft, frozen.at_ms
        self.last_commit_ms = at_ms
        self.requests.add(owned.shard.topic, amount=draft.requests)
        _add(self.parked, map(_CODE, draft.parked.values()))
        _add(self.refused, (refusal.code for _, refusal in draft.refused))
        for kind, count in frozen.receipt_counts().items():
            self.receipts.add(kind, amount=count)
        self.rolled.add(amount=len(draft.copies))
        self.landed.add(amount=len(draft.landed))
        if frozen.journal is not None:
            self.decided_ms[owned.shard] = (at_ms, now_ms)

    def _count_deliveries(self, parts: list[FrozenDraft], now_ms: int) -> None:
        """Count the deliveries of all parts together, because each numpy call has a fixed cost."""
        delivered: list[Body] = []
        counts: list[int] = []
        waited: list[bool] = []
        for frozen in parts:
            draft = frozen.draft
            bodies, out = draft.bodies, draft.parked
            left = [body for row, body in enumerate(bodies) if row not in out] if out else bodies
            delivered += left
            counts.append(len(left))
            late = draft.waited
            waited += [body.origin in late for body in left] if late else [False] * len(left)
        if not delivered:
            return
        for target, count in self.targets.labelled(Counter(map(_TARGET, delivered))).items():
            self.deliveries.add(target, amount=count)
        due_ms = np.fromiter(map(_DUE_MS, delivered), np.int64, len(delivered))
        late_s = np.maximum(np.repeat([frozen.at_ms for frozen in parts], counts) - due_ms, 0) / 1000
        if not any(waited):
            self.lateness.add(late_s)
            self.traffic.delivered(due_ms, now_ms)
            return
        has_waited = np.array(waited, np.bool_)
        self.lateness.add(late_s[~has_waited])
        self.waited.add(late_s[has_waited])
        self.traffic.delivered(due_ms[~has_waited], now_ms, waited=int(has_waited.sum()))

    def read(self, requests: int, now_ms: int) -> None:
        """Count requests that were polled."""
        self.traffic.took_in(requests, now_ms)

    # -- shards

    def moved(self, ownership: Ownership) -> None:
        """Count a rebalance."""
        self.rebalances.add()
        self.moves.add("assigned", amount=len(ownership.assigned))
        self.moves.add("revoked", amount=len(ownership.revoked))
        self.moves.add("lost", amount=len(ownership.lost))

    def recovering(self, shard: Shard) -> None:
        self.goes_on(shard)
        self._began_s[shard] = self._now_s()

    def waits_for_former_owner(self, shard: Shard) -> None:
        """Count a partition that waits, because its former owner's transaction is open."""
        self.undecided.add(shard.topic)

    def looked(self, outlook: RecoveryPlan) -> None:
        """Count the work of a recovery that starts."""
        self.recovery_work.add("kafka" if outlook.found is None else "directory", amount=outlook.work)

    def recovered(self, shard: Shard) -> None:
        if shard in self._began_s:
            self.recovery.add_one(self._now_s() - self._began_s.pop(shard))

    def pauses_intake(self, shard: Shard, reason: str) -> None:
        if self.paused.get(shard) != reason:
            self.paused = {**self.paused, shard: reason}
            self.pauses.add(reason)

    def goes_on(self, shard: Shard) -> None:
        """Note that intake goes on."""
        if shard in self.paused:
            self.paused = {each: reason for each, reason in self.paused.items() if each != shard}

    def gone(self, shard: Shard) -> None:
        """Forget a partition that is no longer owned."""
        self.goes_on(shard)
        self._began_s.pop(shard, None)
        self.decided_ms.pop(shard, None)


def _add(tally: LabelledSums, labels: Iterable[str]) -> None:
    for label in labels:
        tally.add(label)
