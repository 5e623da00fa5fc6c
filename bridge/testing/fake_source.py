"""Source over the fake Kafka."""

from collections.abc import Callable, Iterator, Sequence, Set
from random import Random

from bridge.ports import Membership, Ownership, Polled, Record
from bridge.testing.fake_group import FakeGroup
from bridge.testing.fake_kafka import FakeKafka
from bridge.testing.fake_log import Entry, record_of
from kafka_timer.origin import Shard
from timer.testing import Fuse


class FakeSource:
    """Implements Source. `poll` lets time pass until a record or a rebalance comes, or the timeout.

    With `rng` a poll returns a part of the records, as a fetch does.
    """

    def __init__(
        self, kafka: FakeKafka, group: FakeGroup, member: str, *, fuse: Fuse | None = None, rng: Random | None = None
    ) -> None:
        self._kafka = kafka
        self._group = group
        self._name = member
        self._member = group.join(member)
        self._fuse = fuse or Fuse()
        self._rng = rng
        self._held: set[Shard] = set()
        self._positions: dict[Shard, int] = {}
        self._paused: set[Shard] = set()
        self._undecodable: dict[Shard, int] = {}
        self._woken = False
        self.membership = Membership()
        self.opened: dict[Shard, int] = {}
        """The readable end of each partition when it was started."""
        self.on_start: Callable[[Shard], None] = lambda _: None
        """Called when a partition is started."""
        self.has_other_news: Callable[[], bool] = lambda: False
        """Returns True to end a waiting poll. A real one returns after `max_wait_ms` at the latest."""
        self.leaves_out = 0
        """Number of offsets after the requested one at which reading starts."""
        self.lag = 0 if rng is None else rng.choice((0, 0, 1, 5))
        """Number of polls before it notices that the group has expelled it; random with `rng`."""

    @property
    def member(self) -> str:
        """Its member id; a new one after it was expelled and joined again."""
        return self._member

    def poll(self, timeout_ms: int, max_records: int, paused: Set[Shard] = frozenset()) -> Polled:
        if paused != self._paused:
            self._fuse.step("source.pause")
        self._paused = set(paused)
        self._fuse.step("source.poll")
        self._kafka.timeline.wait(max(0, timeout_ms), self._has_news)
        self._woken = False
        ownership = self._serve()
        polled = Polled(ownership, self._take(max_records), undecodable=self._undecodable.copy())
        self._refresh()
        self._fuse.step("source.poll done")
        return polled

    def serve_rebalance(self) -> Polled:
        self._fuse.step("source.check")
        polled = Polled(self._serve(), {})
        self._refresh()
        self._fuse.step("source.check done")
        return polled

    def start(self, shard: Shard, offset: int) -> None:
        self._fuse.step("source.start")
        assert shard in self._held, f"{shard} is not ours"
        self._positions[shard] = offset + self.leaves_out
        self._undecodable.pop(shard, None)
        self._paused.discard(shard)
        log = self._kafka.partition(shard)
        bad = (e.offset for e in log.committed(self._positions[shard], log.last_stable) if e.is_undecodable)
        self.opened[shard] = next(bad, log.last_stable)
        self.on_start(shard)

    def rewind(self, shard: Shard, offset: int) -> None:
        self._fuse.step("source.rewind")
        if shard in self._held:
            self._positions[shard] = offset
            self._undecodable.pop(shard, None)

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        self._fuse.step("source.close")
        self._group.expire(self._member)

    def _has_news(self) -> bool:
        if self._woken or self.has_other_news() or self._group.has_change(self._member, self._held):
            return True
        for shard, position in self._positions.items():
            is_behind = position < self._kafka.partition(shard).end and shard not in self._paused
            ahead = next(self._ahead(shard), None) if is_behind else None
            if ahead is not None and self._undecodable.get(shard) != ahead.offset:
                return True
        return False

    def _refresh(self) -> None:
        self.membership.refresh((self._member, self._group.generation), is_member=True)

    def _serve(self) -> Ownership:
        if self._member not in self._group.members:
            if self.lag > 0:
                self.lag -= 1
                return Ownership()
            return self._join_again()
        if not self._group.has_change(self._member, self._held):
            return Ownership()
        revoked, assigned = self._group.serve(self._member, self._held)
        self._forget(revoked)
        self._held |= set(assigned)
        return Ownership(revoked=revoked, assigned=assigned)

    def _join_again(self) -> Ownership:
        """Join as a new member after an expulsion; all partitions are lost."""
        lost = sorted(self._held)
        self._forget(lost)
        self._member = self._group.join(self._name)
        return Ownership(lost=lost)

    def _forget(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self._held.discard(shard)
            self._positions.pop(shard, None)
            self._undecodable.pop(shard, None)
            self._paused.discard(shard)

    def _readable(self) -> list[Shard]:
        return [shard for shard in sorted(self._positions) if shard not in self._paused]

    def _ahead(self, shard: Shard) -> Iterator[Entry]:
        log, position = self._kafka.partition(shard), self._positions[shard]
        return log.committed(position, log.last_stable) if position < log.end else iter(())

    def _take(self, room: int) -> dict[Shard, list[Record]]:
        taken: dict[Shard, list[Record]] = {}
        shards = self._readable()
        if self._rng is not None:
            self._rng.shuffle(shards)
            room = min(room, self._rng.choice((1, 3, 10, room)))
        for shard in shards:
            records = []
            for entry, _ in zip(self._ahead(shard), range(room), strict=False):
                if entry.is_undecodable:
                    self._undecodable[shard] = entry.offset
                    break
                records.append(record_of(entry))
            if records:
                taken[shard] = records
                self._positions[shard] = records[-1].offset + 1
                room -= len(records)
        return taken
