"""Transactions one behind the other, a second under way while the first is committed.

    begin -> under way, at most MOST_PUBLISHING      the oldest stands -> its shards advance
                                                     the oldest is aborted -> so are those behind it: all to be repeated
    repeat: one by one and in order, without what the broker will never take, without shards that are no longer ours

What is to be repeated is repeated before anything new is begun, so progress is committed in the order of the requests.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bridge.errors import BridgeError
from bridge.observe.metrics import Metrics
from bridge.ports import MOST_PUBLISHING, Aborted, Clock, Committed, Outgoing, Publishing, Sink, Transaction
from bridge.release.circuit_breaker import CircuitBreakers
from bridge.release.draft import FrozenDraft
from bridge.release.partition import OwnedPartition
from schemas.origin import Shard
from schemas.progress import Progress
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

Part = tuple[OwnedPartition, FrozenDraft]


@dataclass(slots=True)
class _CommitUnit:
    """What one transaction carries: parts of shards, and for each part the index behind its last record."""

    parts: list[Part]
    outgoing: list[Outgoing]
    ends: list[int]
    publishing: Publishing | None = None


@dataclass(eq=False)
class CommitPipeline:
    """Not for use by two threads."""

    _sink: Sink
    _clock: Clock
    _metrics: Metrics
    _breakers: CircuitBreakers
    _replace: Callable[[OwnedPartition, CorruptStoreError], None]
    """Takes a shard whose local store is damaged; the shard is not ours after that. It may call `finish`."""

    def __post_init__(self) -> None:
        self._under_way: deque[_CommitUnit] = deque()
        self._to_repeat: deque[_CommitUnit] = deque()

    @property
    def is_idle(self) -> bool:
        """Nothing is under way or to be repeated."""
        return not self._under_way and not self._to_repeat

    @property
    def must_repeat(self) -> bool:
        """Some were aborted: nothing new is begun before `repeat`."""
        return bool(self._to_repeat)

    def begin(self, parts: list[Part], fence: object) -> None:
        """Where there is room (`make_room`). What was aborted goes first: behind it `repeat` sends this too."""
        assert len(self._under_way) < MOST_PUBLISHING, "no room"
        carried = _CommitUnit(parts, [], [])
        is_sent = not self._to_repeat and self._send(carried, fence)
        (self._under_way if is_sent else self._to_repeat).append(carried)

    def advance(self) -> None:
        """Those whose fate is known by now."""
        while self._under_way and _publishing(self._under_way[0]).is_done():
            self._finish_oldest()

    def make_room(self) -> None:
        """Waits until one more may be begun, or something is to be repeated."""
        while len(self._under_way) >= MOST_PUBLISHING:
            self._finish_oldest()

    def finish(self) -> None:
        """Waits until the fate of each is known."""
        while self._under_way:
            self._finish_oldest()

    def repeat(
        self,
        look: Callable[[], object],
        is_ours: Callable[[OwnedPartition], bool],
        is_over: Callable[[], bool],
    ) -> None:
        """Until all stands, or `is_over`. `look` serves changes of ownership and returns a fresh fence."""
        while self._to_repeat and not is_over():
            fence = look()
            carried = self._to_repeat[0]
            carried.parts = [(owned, sealed) for owned, sealed in carried.parts if is_ours(owned)]
            if not carried.parts:
                self._to_repeat.popleft()
                continue
            for owned, sealed in carried.parts:
                owned.recheck(sealed, self._clock.now_ms())
            if not self._send(carried, fence):
                continue
            self._metrics.retries.add()
            match self._fate_of(carried):
                case Committed():
                    self._to_repeat.popleft()
                    self._advance(carried)
                case Aborted() as fate:
                    self._note(carried, fate)

    def _finish_oldest(self) -> None:
        carried = self._under_way[0]
        fate = self._fate_of(carried)
        self._under_way.popleft()
        if isinstance(fate, Committed):
            self._advance(carried)
            return
        self._note(carried, fate)
        self._to_repeat.append(carried)
        while self._under_way:
            later = self._under_way.popleft()
            fate = self._fate_of(later)
            assert isinstance(fate, Aborted), "one stands behind one that does not"
            self._note(later, fate)
            self._to_repeat.append(later)

    def _fate_of(self, carried: _CommitUnit) -> Committed | Aborted:
        """Where that is not to be known, this life is over: nothing is waited for any more."""
        try:
            fate = _publishing(carried).wait()
        except BridgeError:
            self._under_way.clear()
            raise
        self._metrics.ended(fate)
        return fate

    def _advance(self, carried: _CommitUnit) -> None:
        now_ms = self._clock.now_ms()
        for owned, sealed in carried.parts:
            owned.committed(sealed)
        self._metrics.stands(carried.parts, now_ms)
        if self._breakers:
            for target in self._breakers.committed({record.topic for record in carried.outgoing}, now_ms):
                log.info("%s: it takes records again; its timers leave", target)

    def _send(self, carried: _CommitUnit, fence: object) -> bool:
        """False where a part is of a shard that had to be replaced: nothing was sent."""
        carried.outgoing, carried.ends = [], []
        journal: dict[Shard, bytes] = {}
        progress: dict[Shard, Progress] = {}
        standing: set[int] = set()
        for owned, sealed in carried.parts:
            standing.update(len(carried.outgoing) + row for row in sealed.staged.standing)
            try:
                carried.outgoing += sealed.outgoing()
            except CorruptStoreError as wrong:
                self._replace(owned, wrong)
                return False
            carried.ends.append(len(carried.outgoing))
            progress[owned.shard] = sealed.progress
            if sealed.journal is not None:
                journal[owned.shard] = sealed.journal.to_bytes()
        transaction = Transaction(carried.outgoing, journal, progress, fence, frozenset(standing))
        carried.publishing = self._sink.begin(transaction)
        return True

    def _note(self, carried: _CommitUnit, fate: Aborted) -> None:
        """What is to be made of it when it is repeated."""
        for index, code in fate.refused.items():
            _, sealed, row = _place(carried, index)
            if not sealed.reject(row, code):
                raise BridgeError(
                    f"{carried.outgoing[index].topic} refuses a record of the bridge's own ({code}): nothing may"
                    f" vanish, so the bridge stops; mend the topic, then start again"
                )
        for index in fate.standing:
            _, sealed, row = _place(carried, index)
            sealed.staged.standing.add(row)
        for target in self._breakers.trip(fate.unavailable, self._clock.now_ms()):
            log.warning(
                "%s: it takes no records (no leader, too few in-sync replicas, or a quota); its timers wait, all others"
                " go on, and it is tried again; look after its brokers",
                target,
            )


def _publishing(carried: _CommitUnit) -> Publishing:
    assert carried.publishing is not None, "not begun"
    return carried.publishing


def _place(carried: _CommitUnit, index: int) -> tuple[OwnedPartition, FrozenDraft, int]:
    """Of whose part a record is, and its row there."""
    at = bisect_right(carried.ends, index)
    return *carried.parts[at], index - (carried.ends[at - 1] if at else 0)
