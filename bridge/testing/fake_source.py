"""Source and Control over the fake Kafka."""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from random import Random

from bridge.errors import BrokerUnavailableError
from bridge.ports import Membership, Ownership, Polled, Record
from bridge.testing.fake_kafka import Entry, FakeKafka, FakePort, record_of
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.origin import TimerPartition
from timer.testing import Fuse


@dataclass(eq=False, repr=False)
class FakeSource(FakePort):
    """Implements Source. `poll` lets time pass until a record or a rebalance comes, or the timeout.

    With `rng` a poll returns a part of the records, as a fetch does.
    """

    member: str
    """Its member id; a new one after it was expelled and joined again."""
    _: KW_ONLY
    on_start: Callable[[TimerPartition], None] = lambda _: None
    """Called when a partition is started."""
    has_other_news: Callable[[], bool] = lambda: False
    """Returns True to end a waiting poll. A real one returns after `max_wait_ms` at the latest."""
    membership: Membership = field(default_factory=Membership, init=False)
    is_busy: bool = field(default=False, init=False)
    """As of the last poll."""
    opened: dict[TimerPartition, int] = field(default_factory=dict, init=False)
    """The readable end of each partition when it was started."""
    leaves_out: int = field(default=0, init=False)
    """Number of offsets after the requested one at which reading starts."""

    def __post_init__(self) -> None:
        self._name = self.member
        self.member = self.group.join(self._name)
        self._held: set[TimerPartition] = set()
        self._positions: dict[TimerPartition, int] = {}
        self._paused: set[TimerPartition] = set()
        self._undecodable: dict[TimerPartition, int] = {}
        self._woken = False
        self.lag = 0 if self.rng is None else self.rng.choice((0, 0, 1, 5))
        """Number of polls before it notices that the group has expelled it; random with `rng`."""

    def poll(
        self, timeout_ms: int, max_records: int, paused: Set[TimerPartition] = frozenset(), *, is_busy: bool = False
    ) -> Polled:
        self.is_busy = is_busy
        if paused != self._paused:
            self.fuse.step("source.pause")
        self._paused = set(paused)
        self.fuse.step("source.poll")
        self.kafka.timeline.wait(max(0, timeout_ms), self._has_news)
        self._woken = False
        ownership = self._serve()
        polled = Polled(ownership, self._take(max_records), undecodable=self._undecodable.copy())
        self.membership.refresh((self.member, self.group.generation), is_member=True)
        self.fuse.step("source.poll done")
        return polled

    def start(self, partition: TimerPartition, offset: int) -> None:
        self.fuse.step("source.start")
        assert partition in self._held, f"{partition} is not ours"
        self._positions[partition] = offset + self.leaves_out
        self._undecodable.pop(partition, None)
        self._paused.discard(partition)
        log = self.kafka.partition(partition)
        bad = (e.offset for e in log.committed(self._positions[partition], log.last_stable) if e.is_undecodable)
        self.opened[partition] = next(bad, log.last_stable)
        self.on_start(partition)

    def rewind(self, partition: TimerPartition, offset: int) -> None:
        self.fuse.step("source.rewind")
        if partition in self._held:
            self._positions[partition] = offset
            self._undecodable.pop(partition, None)

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        self.fuse.step("source.close")
        self.group.expire(self.member)

    def _has_news(self) -> bool:
        if self._woken or self.has_other_news() or self.group.has_change(self.member, self._held):
            return True
        for partition, position in self._positions.items():
            is_behind = position < self.kafka.partition(partition).end and partition not in self._paused
            ahead = next(self._ahead(partition), None) if is_behind else None
            if ahead is not None and self._undecodable.get(partition) != ahead.offset:
                return True
        return False

    def _serve(self) -> Ownership:
        if self.member not in self.group.members:
            if self.lag > 0:
                self.lag -= 1
                return Ownership()
            self._forget(lost := sorted(self._held))
            self.member = self.group.join(self._name)
            return Ownership(lost=lost)
        if not self.group.has_change(self.member, self._held):
            return Ownership()
        revoked, assigned = self.group.serve(self.member, self._held)
        self._forget(revoked)
        self._held |= set(assigned)
        return Ownership(revoked=revoked, assigned=assigned)

    def _forget(self, partitions: Sequence[TimerPartition]) -> None:
        for partition in partitions:
            self._held.discard(partition)
            self._positions.pop(partition, None)
            self._undecodable.pop(partition, None)
            self._paused.discard(partition)

    def _ahead(self, partition: TimerPartition) -> Iterator[Entry]:
        log, position = self.kafka.partition(partition), self._positions[partition]
        return log.committed(position, log.last_stable) if position < log.end else iter(())

    def _take(self, room: int) -> dict[TimerPartition, list[Record]]:
        taken: dict[TimerPartition, list[Record]] = {}
        partitions = [partition for partition in sorted(self._positions) if partition not in self._paused]
        if self.rng is not None:
            self.rng.shuffle(partitions)
            room = min(room, self.rng.choice((1, 3, 10, room)))
        for partition in partitions:
            records = []
            for entry, _ in zip(self._ahead(partition), range(room), strict=False):
                if entry.is_undecodable:
                    self._undecodable[partition] = entry.offset
                    break
                records.append(record_of(entry))
            if records:
                taken[partition] = records
                self._positions[partition] = records[-1].offset + 1
                room -= len(records)
        return taken


class FakeControl:
    """Implements Control. Creates the topic if it is missing. With `rng`, a poll may miss the newest records."""

    def __init__(self, kafka: FakeKafka, *, fuse: Fuse | None = None, rng: Random | None = None) -> None:
        if CONTROL_TOPIC not in kafka.topics:
            kafka.create(CONTROL_TOPIC)
        self._log = kafka.partition(TimerPartition(CONTROL_TOPIC, 0))
        self._fuse = fuse or Fuse()
        self._rng = rng
        self.position = 0
        self.is_silent = False
        """True if no broker answers."""

    def has_news(self) -> bool:
        return self.position < self._log.last_stable and not self.is_silent

    def poll(self) -> list[Record]:
        self._fuse.step("control.poll")
        if not self.has_news():
            return []
        end = self._log.last_stable
        return self._take(self._rng.randint(self.position, end) if self._rng else end)

    def catch_up(self) -> list[Record]:
        self._fuse.step("control.catch_up")
        if self.is_silent:
            raise BrokerUnavailableError("no broker answers")
        return self._take(self._log.last_stable)

    def _take(self, end: int) -> list[Record]:
        start, self.position = self.position, end
        return [record_of(entry) for entry in self._log.committed(start, end)] if start < end else []
