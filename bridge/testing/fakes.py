"""A bridge without a broker, for tests: its ports over a Kafka in memory and a clock that the test moves.

    kafka = FakeKafka(Timeline())
    for topic in ("timer.requests", "timer.rejected", "timer.journal", "orders"): kafka.create(topic)
    bridge = FakeInstance(kafka, FakeGroup("timers", [Shard("timer.requests", 0)]), options)
    kafka.produce("timer.requests", b"hello", headers=[("timer-topic", b"orders"), ("timer-delay-ms", b"500")])
    bridge.run(499);  assert kafka.read("orders") == []
    bridge.run(1);    assert [record.value for record in kafka.read("orders")] == [b"hello"]
    bridge.lose_power();  bridge.start();  bridge.run(1000);  assert len(kafka.read("orders")) == 1

Waiting moves the time to the next event, so hours pass in no time. A `Fuse` ends an instance at any call through its
ports, before or after the effect (`Crash`). `FakeInstance.start` starts a new one on the remaining data.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType

from bridge.config.loop_options import Delivery, TurnOptions
from bridge.errors import (
    BridgeError,
    BrokerUnavailableError,
    FencedError,
    OutcomeUnknownError,
    PartitionUnreadableError,
)
from bridge.loop.control_state import ControlState
from bridge.loop.loop import Bridge
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.ports import (
    MAX_IN_FLIGHT,
    Aborted,
    AbortReason,
    Committed,
    Outgoing,
    Ownership,
    Polled,
    Record,
    Transaction,
)
from bridge.recovery.recover import prepare_store
from bridge.testing.fake_kafka import Entry as Entry
from bridge.testing.fake_kafka import FakeGroup as FakeGroup
from bridge.testing.fake_kafka import FakeKafka as FakeKafka
from bridge.testing.fake_kafka import FakeTransaction as FakeTransaction
from bridge.testing.fake_kafka import Partition, State
from bridge.testing.fake_kafka import Timeline as Timeline
from schemas.control import DEFAULT_TOPIC as CONTROL_TOPIC
from schemas.headers import Headers
from schemas.journal import writer_key
from schemas.origin import Shard
from schemas.progress import Progress
from timer.errors import UnreadableError
from timer.testing import Crash as Crash
from timer.testing import Fuse as Fuse
from timer.testing import SimDisk as SimDisk

RECORD_OVERHEAD_BYTES = 70
_NONE: Mapping[str, str] = MappingProxyType({})


class FakeClock:
    """A machine's clock: the true time plus an error, which may change at any moment."""

    def __init__(self, timeline: Timeline, error_ms: int = 0) -> None:
        self.timeline = timeline
        self.error_ms = error_ms

    def now_ms(self) -> int:
        return max(0, self.timeline.now_ms + self.error_ms)


class FakeSource:
    """A member of the group. `poll` without news lets time pass to the next event, or to the time-out.

    With `rng` a poll takes a part of what is there, as a fetch does.
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
    def paused(self) -> frozenset[Shard]:
        return frozenset(self._paused)

    @property
    def member(self) -> str:
        """Its member id; a new one after it was expelled and joined again."""
        return self._member

    def poll(self, timeout_ms: int, max_records: int) -> Polled:
        self._fuse.step("source.poll")
        self._kafka.timeline.wait(max(0, timeout_ms), self._has_news)
        self._woken = False
        ownership = self._serve()
        records, group_metadata = self._take(max_records), (self._member, self._group.generation)
        polled = Polled(ownership, records, group_metadata, undecodable=self._undecodable.copy())
        self._fuse.step("source.poll done")
        return polled

    def serve_rebalance(self) -> Polled:
        self._fuse.step("source.check")
        polled = Polled(self._serve(), {}, (self._member, self._group.generation))
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

    def pause(self, shard: Shard) -> None:
        self._fuse.step("source.pause")
        self._paused.add(shard)

    def resume(self, shard: Shard) -> None:
        self._fuse.step("source.resume")
        self._paused.discard(shard)

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


def record_of(entry: Entry) -> Record:
    return Record(entry.offset, entry.append_ms, entry.key, entry.value, list(entry.headers))


def nothing_happens(_where: str) -> None: ...


class FakeHistory:
    """Implements History. other_journals: by timer topic with its own journal. With `rng`, batch sizes are random."""

    def __init__(
        self,
        kafka: FakeKafka,
        group: FakeGroup,
        journal_topic: str,
        *,
        other_journals: Mapping[str, str] = _NONE,
        fuse: Fuse | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
    ) -> None:
        self._kafka = kafka
        self._group = group
        self._journal_topic = journal_topic
        self._other_journals = other_journals
        self._fuse = fuse or Fuse()
        self._rng = rng
        self._meanwhile = meanwhile
        self.silent: set[Shard] = set()
        """Partitions without an answer in time."""

    def in_process(self, fuse: Fuse) -> "FakeHistory":
        """Return a History for another process."""
        twin = copy(self)
        twin._fuse = fuse  # noqa: SLF001  (its own)
        twin.silent = set()  # it waits
        return twin

    def progress(self, shard: Shard) -> Progress | None:
        self._step("history.progress")
        found = self._kafka.stable_offset(self._group.name, shard)
        return None if found is None else Progress.committed(*found)

    def bounds(self, shard: Shard) -> tuple[int, int]:
        self._step("history.bounds")
        self._demand_answer(shard)
        log = self._kafka.partition(shard)
        return log.first, log.last_stable

    def with_open_transactions(self, shards: Sequence[Shard]) -> set[Shard]:
        self._step("history.with_open_transactions")
        return {shard for shard in shards if self.must_wait(shard)}

    def must_wait(self, shard: Shard) -> bool:
        """Wait for open transactions."""
        log = self._journal(shard)
        return log.last_stable < log.end or not self._kafka.is_stable(self._group.name, shard)

    def first_offsets(self, shards: Sequence[Shard]) -> dict[Shard, int]:
        self._step("history.first_offsets")
        return {shard: self._kafka.partition(shard).first for shard in shards}

    def stable_and_end_offsets(self, shards: Sequence[Shard]) -> dict[Shard, tuple[int, int]]:
        self._step("history.stable_and_end_offsets")
        logs = {shard: self._kafka.partition(shard) for shard in shards}
        return {shard: (log.last_stable, log.end) for shard, log in logs.items()}

    def newest_journal_times(self, shards: Sequence[Shard]) -> dict[Shard, int]:
        self._step("history.newest_journal_times")
        written = {shard: [entry.append_ms for entry in self._journal(shard).everything()] for shard in shards}
        return {shard: max(times) for shard, times in written.items() if times}

    def offset_at(self, shard: Shard, timestamp_ms: int) -> int:
        self._step("history.offset_at")
        log = self._kafka.partition(shard)
        return next((e.offset for e in log.everything() if e.append_ms >= timestamp_ms), log.end)

    def requests(
        self, shard: Shard, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        self._step("history.requests")
        self._demand_answer(shard)
        log = self._kafka.partition(shard)
        self._kafka.wait_readable(log, min(to_offset, log.end))
        entries = [e for e in log.committed(from_offset, to_offset) if not e.is_undecodable or e.offset not in skipped]
        stop = next((at for at, entry in enumerate(entries) if entry.is_undecodable), len(entries))
        yield from self._batches([record_of(entry) for entry in entries[:stop]])
        if stop < len(entries):
            offset = entries[stop].offset
            raise PartitionUnreadableError(f"{shard}: offset {offset} cannot be decoded", offset)

    def _demand_answer(self, shard: Shard) -> None:
        if shard in self.silent:
            raise PartitionUnreadableError(f"{shard}: no answer in time")

    def journal_end(self, shard: Shard) -> int:
        self._step("history.journal_end")
        return self._journal(shard).end

    def journal_bounds(self, shard: Shard) -> tuple[int, int]:
        self._step("history.journal_bounds")
        self._demand_answer(shard)
        log = self._journal(shard)
        return log.first, log.last_stable

    def journal(self, shard: Shard, *, from_offset: int | None, since_ms: int | None) -> Iterator[bytes]:
        self._step("history.journal")
        log = self._journal(shard)
        self._kafka.wait_readable(log, log.end)
        start = log.first if from_offset is None else from_offset
        if from_offset is None and since_ms is not None:
            start = next((e.offset for e in log.everything() if e.append_ms >= since_ms), log.end)
        for entry in list(log.committed(start, log.end)):
            self._step("history.journal next")
            assert entry.value is not None
            yield entry.value

    def journal_tails(self, shards: Sequence[Shard], look_back: int) -> dict[Shard, list[tuple[bytes | None, bytes]]]:
        self._step("history.journal_tails")
        logs = {shard: self._journal(shard) for shard in shards}
        return {
            shard: [
                (each.key, each.value or b"") for each in log.committed(log.last_stable - look_back, log.last_stable)
            ]
            for shard, log in logs.items()
        }

    def journal_key(self, shard: Shard) -> bytes:
        return writer_key(self._group.name, shard.topic)

    def _step(self, where: str) -> None:
        self._fuse.step(where)
        self._meanwhile(where)

    def _journal(self, shard: Shard) -> Partition:
        topic = self._other_journals.get(shard.topic, self._journal_topic)
        return self._kafka.partition(Shard(topic, shard.partition))

    def _batches(self, records: list[Record]) -> Iterator[list[Record]]:
        waiting = deque(records)
        while waiting:
            self._step("history.requests next")
            size = 1000 if self._rng is None else self._rng.choice((1, 2, 5, 20))
            yield [waiting.popleft() for _ in range(min(size, len(waiting)))]


class FakeControl:
    """Implements Control. Creates the topic if it is missing. With `rng`, a poll may miss the newest records."""

    def __init__(self, kafka: FakeKafka, *, fuse: Fuse | None = None, rng: Random | None = None) -> None:
        if CONTROL_TOPIC not in kafka.topics:
            kafka.create(CONTROL_TOPIC)
        self._log = kafka.partition(Shard(CONTROL_TOPIC, 0))
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


class FakeSink:
    """Two transactional producers in turn. Transactions end badly where the test says so, or where `rng` draws it.

    Without `rng` what is begun comes to its end at once (but see `is_slow`); with it, when it is drawn.
    `meanwhile` is called at each step: others may act, time may pass. What `note` says when
    it begins stays with the transaction in FakeKafka. `other_journals`: of timer topics that have another.
    `own_topics`: given for at-least-once, where records to all others stand before their transaction ends.
    """

    def __init__(
        self,
        kafka: FakeKafka,
        group: FakeGroup,
        transactional_id: str,
        journal_topic: str,
        *,
        other_journals: Mapping[str, str] = _NONE,
        own_topics: frozenset[str] | None = None,
        fuse: Fuse | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
        note: Callable[[], object] = lambda: None,
    ) -> None:
        self._kafka = kafka
        self._group = group
        self._journal_topic = journal_topic
        self.own_topics = own_topics or frozenset()
        self._is_doubled = own_topics is not None
        self._standing: dict[bytes, tuple[Partition, Entry]] = {}
        """Newest delivery of each origin, even if its transaction was aborted."""
        self._other_journals = other_journals
        self._fuse = fuse or Fuse()
        self._rng = rng
        self._meanwhile = meanwhile
        self._note = note
        self.fault_chance = 0.0
        """How often a transaction is aborted by a passing fault, where there is an `rng`.

        As often, a part of an at-least-once batch is not acknowledged; some of that stands.
        """
        self.unknown_chance = 0.0
        """Share of commits whose answer is lost (needs `rng`): the commit succeeds now, later or never."""
        self._apart = Random(f"{transactional_id} {kafka.timeline.now_ms}")
        """A random source of its own for later additions, so that old seeds keep their histories."""
        self.faults = 0
        """Number of next transactions that a passing fault aborts."""
        self.is_slow = False
        """True to end a transaction only in `wait`."""
        self._producers = deque((own, kafka.init(own)) for own in producer_ids(transactional_id))
        self._under_way: list[FakePublishing] = []

    def submit(self, transaction: Transaction) -> "FakePublishing":
        _check(transaction)
        self._under_way = [each for each in self._under_way if not each.is_told]
        assert len(self._under_way) < MAX_IN_FLIGHT, "too many are under way"
        note = self._note()
        self._step("sink.submit")
        self._producers.rotate()
        owner, epoch = self._producers[0]
        if self._kafka.is_fenced(owner, epoch):
            raise FencedError(f"another process runs as {owner}")
        self._kafka.finish(owner)
        begun = self._kafka.begin(owner, epoch)
        begun.note = note
        earlier = self._under_way[-1] if self._under_way else None
        made = FakePublishing(self, begun, transaction, earlier)
        self._produce(made)
        self._under_way.append(made)
        if self._rng is None and not self.is_slow:
            made.finish()
        return made

    def journal_of(self, shard: Shard) -> str:
        return self._other_journals.get(shard.topic, self._journal_topic)

    def drift(self) -> None:
        """Let transactions in flight advance, or not."""
        for each in self._under_way:
            if self._draw(0.4):
                each.finish()

    def end(self, under_way: "FakePublishing") -> Committed | Aborted:
        """Send the offsets and commit, or abort. Earlier transactions have ended."""
        begun, transaction = under_way.begun, under_way.transaction
        self._step("sink.end")
        if under_way.earlier is not None and isinstance(under_way.earlier.fate, Aborted):
            return self._abort(begun, {}, "earlier")
        if under_way.unavailable:
            self._kafka.timeline.advance(1)  # a real one waits for seconds
            return replace(self._abort(begun, {}), unavailable=under_way.unavailable)
        if under_way.refused or under_way.lost or self._draw(self.fault_chance):
            return self._abort(begun, under_way.refused)
        if self.faults:
            self.faults -= 1
            return self._abort(begun, {})
        self._step("sink.offsets")
        if not self._group.accepts(transaction.group_metadata):
            return self._abort(begun, {}, "stale-member")
        if begun.state is not State.OPEN:
            return self._abort(begun, {})
        self._kafka.send_offsets(begun, self._group.name, transaction.progress)
        self._step("sink.offsets done")
        return self._abort(begun, {}) if self._draw(self.fault_chance) else self._commit(begun)

    def is_done(self, under_way: "FakePublishing") -> bool:
        if under_way.fate is None and (self._draw(0.5) if self._rng is not None else not self.is_slow):
            under_way.finish()
        return under_way.fate is not None

    def close(self) -> None:
        self._fuse.step("sink.close")

    def _produce(self, under_way: "FakePublishing") -> None:
        begun, transaction = under_way.begun, under_way.transaction
        is_in_part = self._is_doubled and self._apart.random() < self.fault_chance
        for index, record in enumerate(transaction.outgoing):
            self._step("sink.produce")
            is_sent = index in transaction.acknowledged
            code = None if is_sent else self._kafka.refusal(record.topic, record.partition, size_of(record))
            if code is not None:
                under_way.refused[index] = code
            elif not is_sent and self._kafka.topics[record.topic].unavailable:
                under_way.unavailable |= {record.topic}
            elif not self._is_doubled or record.topic in self.own_topics:
                self._append(begun, record)
            elif is_in_part and not is_sent and self._apart.random() < 0.5:
                under_way.lost.add(index)
                if self._apart.random() < 0.5:
                    self._kafka.send_ahead(record)
            else:
                self._stand_ahead(begun, record, is_sent=is_sent)
        for shard, value in transaction.journal.items():
            self._step("sink.journal")
            key = writer_key(self._group.name, shard.topic)
            now_ms = self._kafka.timeline.now_ms
            self._append(begun, Outgoing(self.journal_of(shard), shard.partition, key, value, [], now_ms))

    def _append(self, begun: FakeTransaction, record: Outgoing) -> None:
        if begun.state is State.OPEN:
            self._kafka.produce(
                record.topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                transaction=begun,
            )

    def _stand_ahead(self, begun: FakeTransaction, record: Outgoing, *, is_sent: bool) -> None:
        origin = dict(record.headers)["timer-origin"] or b""
        if not is_sent:
            self._standing[origin] = self._kafka.send_ahead(record)
        begun.ahead.append(self._standing[origin])

    def _commit(self, begun: FakeTransaction) -> Committed | Aborted:
        self._step("sink.commit")
        try:
            self._fuse.step("sink.commit asked")
        except Crash:
            self._kafka.leave_in_flight(begun)
            raise
        if self._rng is not None and self._apart.random() < self.unknown_chance:
            self._kafka.leave_in_flight(begun)
            raise OutcomeUnknownError("a commit broke off")
        self._kafka.commit(begun)
        committed = begun.state is State.COMMITTED
        self._step("sink.commit done")
        took_s = (self._kafka.timeline.now_ms - begun.begun_ms) / 1000
        return Committed(took_s) if committed else self._abort(begun, {})

    def _abort(self, begun: FakeTransaction, refused: dict[int, str], why: AbortReason = "fault") -> Aborted:
        """Return some of the records that can never be accepted, as a real broker may name any of them."""
        self._step("sink.abort")
        self._kafka.abort(begun)
        self._step("sink.abort done")
        if self._rng is not None and refused:
            named = self._rng.sample(sorted(refused), self._rng.randint(1, len(refused)))
            refused = {index: refused[index] for index in named}
        return Aborted(refused, why)

    def _draw(self, chance: float) -> bool:
        return self._rng is not None and self._rng.random() < chance

    def _step(self, where: str) -> None:
        self._fuse.step(where)
        self._meanwhile(where)


def producer_ids(transactional_id: str) -> list[str]:
    """Return the ids of the producers that take turns."""
    return [f"{transactional_id}-{number}" for number in range(MAX_IN_FLIGHT)]


@dataclass(eq=False)
class FakePublishing:
    """A transaction in flight of a FakeSink."""

    sink: FakeSink
    begun: FakeTransaction
    transaction: Transaction
    earlier: "FakePublishing | None"
    refused: dict[int, str] = field(default_factory=dict)
    unavailable: frozenset[str] = frozenset()
    lost: set[int] = field(default_factory=set)
    """Deliveries of at-least-once that are not acknowledged yet."""
    fate: Committed | Aborted | OutcomeUnknownError | None = None
    is_told: bool = False
    """True if the caller knows its outcome."""

    def is_done(self) -> bool:
        return self.sink.is_done(self)

    def wait(self) -> Committed | Aborted:
        fate = self.finish()
        self.is_told = True
        if isinstance(fate, OutcomeUnknownError):
            raise fate
        return fate

    def finish(self) -> Committed | Aborted | OutcomeUnknownError:
        """End it, after the earlier one."""
        if self.earlier is not None:
            self.earlier.finish()
        if self.fate is None:
            fate = self._end()
            if isinstance(fate, Aborted) and self.begun.ahead:
                refused, own = self.refused.keys() | self.lost, self.sink.own_topics
                own |= self.unavailable
                deliveries = (index for index, sent in enumerate(self.transaction.outgoing) if sent.topic not in own)
                fate = replace(fate, acknowledged=frozenset(index for index in deliveries if index not in refused))
            self.fate = fate
            self.earlier = None
        return self.fate

    def _end(self) -> Committed | Aborted | OutcomeUnknownError:
        if self.earlier is not None and isinstance(self.earlier.fate, OutcomeUnknownError):
            return self.earlier.fate
        try:
            return self.sink.end(self)
        except OutcomeUnknownError as wrong:
            return wrong


def size_of(record: Outgoing) -> int:
    """Return about the bytes of the record in a batch of its own."""
    headers = sum(len(name) + len(value or b"") + 2 for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _check(transaction: Transaction) -> None:
    """Check what the port requires of its caller."""
    assert transaction.journal.keys() <= transaction.progress.keys(), "a journal record without its shard's progress"
    origins = (_origin_shard(record.headers) for record in transaction.outgoing)
    assert all(shard is None or shard in transaction.progress for shard in origins), "output without its progress"


def _origin_shard(headers: Headers) -> Shard | None:
    found = [value for name, value in headers if name == "timer-origin" and value]
    topic, _, rest = found[-1].decode().partition("/") if found else ("", "", "")
    return Shard(topic, int(rest.partition("/")[0])) if rest else None


@dataclass(eq=False)
class FakePreparation:
    """A recovery process on the instance's disk. With `rng` it takes some time and may die at any call."""

    _instance: "FakeInstance"
    _shard: Shard
    _history: FakeHistory
    _rng: Random | None
    refused: OSError | UnreadableError | None = None

    def is_done(self) -> bool:
        rng = self._rng
        if self._instance.holds_preparations or (rng is not None and rng.random() < 0.6):
            return False
        if self._history.must_wait(self._shard):
            return False
        self._work(rng.randint(1, 60) if rng is not None and rng.random() < 0.3 else None)
        return True

    def give_up(self) -> None:
        if self._rng is not None:
            self._work(self._rng.randint(1, 60))

    def _work(self, steps: int | None) -> None:
        instance, shard, fuse = self._instance, self._shard, Fuse()
        if steps is not None:
            fuse.arm(steps)
        disk = instance.disk_for(shard).reopen(fuse)
        with suppress(Crash, BridgeError):  # it has an exit code, of which nothing follows
            try:
                prepare_store(shard, disk, self._history.in_process(fuse), instance.options.of(shard.topic))
            except (OSError, UnreadableError) as wrong:
                self.refused = wrong
        instance.disks[shard] = disk.reopen(instance.fuse)


class FakeInstance:
    """A bridge process and its data directory. Tests call `turn`, `run` and `start`; see the module."""

    def __init__(
        self,
        kafka: FakeKafka,
        group: FakeGroup,
        options: TurnOptions,
        *,
        name: str = "bridge",
        clock: FakeClock | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
        note: Callable[[], object] = lambda: None,
        on_start: Callable[[Shard], None] = lambda _: None,
        delivery: Delivery = "exactly-once",
    ) -> None:
        self.name = name
        self.delivery = delivery
        """For later starts."""
        self.options = options
        self.clock = clock or FakeClock(kafka.timeline)
        self.disks: dict[Shard, SimDisk] = {}
        self.fuse = Fuse()
        self.holds_preparations = False
        """True to let no background recovery end."""
        self.bridge: Bridge | None = None
        self.status = Status()
        self.metrics = Metrics(lambda: kafka.timeline.now_ms / 1000, self.status.traffic)
        self._last_member = ""
        self._fault_chance = self._unknown_chance = 0.0
        self._kafka = kafka
        self._group = group
        self._rng = rng
        self._meanwhile = meanwhile
        self._note = note
        self._on_start = on_start
        self.source: FakeSource | None = None
        self.history: FakeHistory | None = None
        self.sink: FakeSink | None = None
        self.control: FakeControl | None = None
        self.start()

    def start(self) -> None:
        """Start a new process on the current disks. A running one is killed."""
        self.kill()
        self._group.expire(self._last_member)
        kafka, group, topic = self._kafka, self._group, self.options.journal_topic
        others = {timer_topic: own.journal_topic for timer_topic, own in self.options.topics.items()}
        fuse, rng = self.fuse, self._rng
        self.source = FakeSource(kafka, group, self.name, fuse=fuse, rng=rng)
        self.source.on_start = self._on_start
        self._last_member = self.source.member
        own = frozenset({self.options.rejected_topic, self.options.receipts_topic})
        own |= {shard.topic for shard in group.owner}
        sink = FakeSink(
            *(kafka, group, self.name, topic),
            other_journals=others,
            own_topics=own if self.delivery == "at-least-once" else None,
            fuse=fuse,
            rng=rng,
            meanwhile=self._meanwhile,
            note=self._note,
        )
        sink.fault_chance, sink.unknown_chance = self._fault_chance, self._unknown_chance
        self.sink = sink
        self.history = history = FakeHistory(
            kafka, group, topic, other_journals=others, fuse=fuse, rng=rng, meanwhile=self._meanwhile
        )
        self.control = FakeControl(kafka, fuse=fuse, rng=rng)
        self.source.has_other_news = self.control.has_news
        self.status = Status(lambda: kafka.timeline.now_ms / 1000)
        self.status.traffic = self.metrics.traffic
        self.bridge = Bridge(
            clock=self.clock,
            source=self.source,
            history=history,
            sink=sink,
            disk_for=self.disk_for,
            options=self.options,
            prepare=lambda shard: FakePreparation(self, shard, history, rng),
            control=ControlState(self.control, others.keys() | {shard.topic for shard in group.owner}),
            status=self.status,
            metrics=self.metrics,
        )

    def turn(self) -> None:
        """Run one turn. Raises the bridge's errors, and `Crash` if the fuse was armed."""
        assert self.bridge is not None, "not started"
        assert self.sink is not None
        self.sink.drift()
        self.bridge.turn()
        self.status.turn_ended()

    def run(self, ms: int) -> None:
        """Run turns until `ms` have passed and no work is left."""
        end_ms = self._kafka.timeline.now_ms + ms
        self._kafka.timeline.at(end_ms, self._wake)
        while self._kafka.timeline.now_ms < end_ms:
            self.turn()
        for _ in range(3):
            self._wake()
            self.turn()

    def set_faults(self, chance: float, unknown: float = 0.0) -> None:
        """Set the shares of transactions that end by a passing fault or with an unknown outcome. Needs an `rng`."""
        self._fault_chance, self._unknown_chance = chance, unknown
        if self.sink is not None:
            self.sink.fault_chance, self.sink.unknown_chance = chance, unknown

    def stop(self) -> None:
        """Stop cleanly, as by SIGTERM."""
        assert self.bridge is not None, "not started"
        self.bridge.finish()
        self.bridge.stop()
        self.kill()

    def kill(self, *, noticed: bool = True) -> None:
        """kill -9: what was written stays. Not `noticed`: it is the test that ends its membership of the group."""
        if self.source is not None:
            self._last_member = self.source.member
        if noticed:
            self._group.expire(self._last_member)
        self.source = self.bridge = None
        self.fuse = Fuse()
        self.disks = {shard: disk.reopen(self.fuse) for shard, disk in self.disks.items()}

    def leave_the_group(self) -> None:
        """Expire its session. It notices at its next poll."""
        if self.source is not None:
            self._group.expire(self.source.member)

    def lose_power(self) -> None:
        """Stop the machine. Data that was not synced is torn or lost."""
        for disk in self.disks.values():
            disk.lose_power(self._rng)
        self.kill()

    def lose_disks(self) -> None:
        """Delete the data directory."""
        self.kill()
        self.disks = {}

    def disk_for(self, shard: Shard) -> SimDisk:
        if shard not in self.disks:
            self.disks[shard] = SimDisk(self._rng, self.fuse)
        return self.disks[shard]

    def _wake(self) -> None:
        if self.source is not None:
            self.source.wake()
