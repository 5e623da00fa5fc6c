"""Transactions one behind the other, a second under way while the first is committed.

    begin -> under way, at most MOST_PUBLISHING      the oldest stands -> its shards advance
                                                     the oldest is aborted -> so are those behind it: all to be repeated
    repeat: one by one and in order, without what the broker will never take, without shards that are no longer ours

What is to be repeated is repeated before anything new is begun, so progress is committed in the order of the requests.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bridge.errors import BridgeError
from bridge.ports import MOST_PUBLISHING, Aborted, Committed, Outgoing, Publishing, Sink, Transaction
from bridge.shard import OwnedShard, Sealed
from schemas.origin import Shard
from schemas.progress import Progress


@dataclass(slots=True)
class _Carried:
    """What one transaction carries: parts of shards, and for each part the index behind its last record."""

    parts: list[tuple[OwnedShard, Sealed]]
    outgoing: list[Outgoing]
    ends: list[int]
    publishing: Publishing | None = None


class Publisher:
    """Not for use by two threads."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._under_way: deque[_Carried] = deque()
        self._to_repeat: deque[_Carried] = deque()

    @property
    def is_idle(self) -> bool:
        """Nothing is under way or to be repeated."""
        return not self._under_way and not self._to_repeat

    @property
    def must_repeat(self) -> bool:
        """Some were aborted: nothing new is begun before `repeat`."""
        return bool(self._to_repeat)

    def begin(self, parts: list[tuple[OwnedShard, Sealed]], fence: object) -> None:
        """Where there is room (`make_room`) and nothing to repeat."""
        assert not self._to_repeat, "what was aborted goes first"
        assert len(self._under_way) < MOST_PUBLISHING, "no room"
        carried = _Carried(parts, [], [])
        self._under_way.append(carried)
        self._send(carried, fence)

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
        self, look: Callable[[], object], is_ours: Callable[[OwnedShard], bool], is_over: Callable[[], bool]
    ) -> None:
        """Until all stands, or `is_over`. `look` serves changes of ownership and returns a fresh fence."""
        while self._to_repeat and not is_over():
            fence = look()
            carried = self._to_repeat[0]
            carried.parts = [(owned, sealed) for owned, sealed in carried.parts if is_ours(owned)]
            if not carried.parts:
                self._to_repeat.popleft()
                continue
            self._send(carried, fence)
            match _publishing(carried).wait():
                case Committed():
                    self._to_repeat.popleft()
                    _advance(carried)
                case Aborted(refused):
                    _park(carried, refused)

    def _finish_oldest(self) -> None:
        carried = self._under_way[0]
        fate = _publishing(carried).wait()
        self._under_way.popleft()
        if isinstance(fate, Committed):
            _advance(carried)
            return
        _park(carried, fate.refused)
        self._to_repeat.append(carried)
        while self._under_way:
            later = self._under_way.popleft()
            assert isinstance(_publishing(later).wait(), Aborted), "one stands behind one that does not"
            self._to_repeat.append(later)

    def _send(self, carried: _Carried, fence: object) -> None:
        carried.outgoing, carried.ends = [], []
        journal: dict[Shard, bytes] = {}
        progress: dict[Shard, Progress] = {}
        for owned, sealed in carried.parts:
            carried.outgoing += owned.outgoing(sealed)
            carried.ends.append(len(carried.outgoing))
            progress[owned.shard] = sealed.progress
            if sealed.journal is not None:
                journal[owned.shard] = sealed.journal.to_bytes()
        carried.publishing = self._sink.begin(Transaction(carried.outgoing, journal, progress, fence))


def _publishing(carried: _Carried) -> Publishing:
    assert carried.publishing is not None, "not begun"
    return carried.publishing


def _advance(carried: _Carried) -> None:
    for owned, sealed in carried.parts:
        owned.committed(sealed)


def _park(carried: _Carried, refused: dict[int, str]) -> None:
    for index, code in refused.items():
        start = 0
        for (owned, sealed), end in zip(carried.parts, carried.ends, strict=True):
            if index < end:
                if not owned.park(sealed, index - start, code):
                    raise BridgeError(
                        f"{carried.outgoing[index].topic} refuses a record of the bridge's own ({code}): nothing may"
                        f" vanish, so the bridge stops; mend the topic, then start again"
                    )
                break
            start = end
