"""Sink over the fake Kafka."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from random import Random

from bridge.errors import FencedError, OutcomeUnknownError
from bridge.ports import MAX_IN_FLIGHT, Aborted, AbortReason, Committed, Outgoing, Transaction
from bridge.testing.fake_kafka import FakePort, FakeTransaction, State, draw
from kafka_timer.headers import ORIGIN
from kafka_timer.origin import TimerPartition
from schemas.journal import writer_key
from timer.testing import Crash

RECORD_OVERHEAD_BYTES = 70
_LOOK_UP_SHARE = 0.1


@dataclass(eq=False, repr=False)
class FakeSink(FakePort):
    """Implements Sink with several transactional producers. A transaction fails if the test or `rng` says so.

    Without `rng` a transaction ends at once (but see `slow_turns`); with it, at a random time.

    other_journals: by timer topic with its own journal.
    note: its answer at `submit` is kept in the transaction of FakeKafka.
    """

    transactional_id: str
    journal_topic: str
    _: KW_ONLY
    other_journals: Mapping[str, str] = field(default_factory=dict)
    note: Callable[[], object] = lambda: None
    fault_chance: float = 0.0
    """Share of transactions that a passing fault aborts (needs `rng`)."""
    unknown_chance: float = 0.0
    """Share of commits whose answer is lost (needs `rng`): the commit succeeds now, later or never."""
    faults: int = field(default=0, init=False)
    """Number of next transactions that a passing fault aborts."""
    failure_ms: int = field(default=1, init=False)
    """Duration of a transaction that fails for an unavailable target; a real one waits for seconds."""
    slow_turns: int = field(default=0, init=False)
    """For how many turns after its own a transaction stays in flight, unless `wait` ends it."""

    def __post_init__(self) -> None:
        self._own_rng = Random(f"{self.transactional_id} {self.kafka.timeline.now_ms}")
        """A random source of its own for later additions, so that old seeds keep their histories."""
        producers = (f"{self.transactional_id}-{number}" for number in range(MAX_IN_FLIGHT))
        self._free = deque((own, self.kafka.init(own)) for own in producers)
        self._in_flight: list[FakePublishing] = []
        self._suspects: set[str] = set()
        """Topics that accepted no records at the last try."""

    def needs_look_up(self, outgoing: Sequence[Outgoing]) -> bool:
        return bool(outgoing) and self.rng is not None and self._own_rng.random() < _LOOK_UP_SHARE

    def submit(self, transaction: Transaction) -> "FakePublishing":
        self._in_flight = [each for each in self._in_flight if not each.is_reported]
        assert len(self._in_flight) < MAX_IN_FLIGHT, "too many transactions in flight"
        for each in self._in_flight:
            assert each.transaction.progress.keys().isdisjoint(transaction.progress), "a partition is in two at once"
        _check(transaction)
        note = self.note()
        self.step("sink.submit")
        owner, epoch = self._free[0]
        if self.kafka.is_fenced(owner, epoch):
            raise FencedError(f"another process runs as {owner}")
        self.kafka.finish(owner)
        begun = self.kafka.begin(owner)
        begun.note = note
        made = FakePublishing(self, begun, transaction, self._free.popleft())
        self._produce(made)
        self._in_flight.append(made)
        if self.rng is None and not self.slow_turns:
            made.finish()
        return made

    def journal_of(self, timer_partition: TimerPartition) -> str:
        return self.other_journals.get(timer_partition.topic, self.journal_topic)

    def drift(self) -> None:
        """Let transactions in flight advance, or not."""
        for each in self._in_flight:
            if draw(self.rng, 0.4):
                each.finish()

    def end(self, submitted: "FakePublishing") -> Committed | Aborted:
        """Send the offsets and commit, or abort."""
        self._free.append(submitted.producer)
        begun, transaction = submitted.begun, submitted.transaction
        self.step("sink.end")
        if submitted.unavailable:
            is_known = submitted.unavailable <= self._suspects
            self._suspects |= submitted.unavailable
            self.kafka.timeline.advance(1 if is_known else self.failure_ms)
            return replace(self._abort(begun, {}), unavailable=submitted.unavailable, is_known=is_known)
        if submitted.refused or draw(self.rng, self.fault_chance):
            return self._abort(begun, submitted.refused)
        if self.faults:
            self.faults -= 1
            return self._abort(begun, {})
        self.step("sink.offsets")
        if not self.group.accepts(transaction.group_metadata):
            return self._abort(begun, {}, "stale-member")
        if begun.state is not State.OPEN:
            return self._abort(begun, {})
        self.kafka.send_offsets(begun, self.group.name, transaction.progress)
        self.step("sink.offsets done")
        return self._abort(begun, {}) if draw(self.rng, self.fault_chance) else self._commit(begun)

    def close(self) -> None:
        self.fuse.step("sink.close")

    def _produce(self, submitted: "FakePublishing") -> None:
        begun, transaction = submitted.begun, submitted.transaction
        for record in transaction.outgoing:
            self.step("sink.produce")
            code = self.kafka.refusal(record.topic, record.partition, size_of(record))
            if code is not None:
                submitted.refused[record] = code
            elif self.kafka.topics[record.topic].unavailable:
                submitted.unavailable |= {record.topic}
            else:
                self._suspects.discard(record.topic)
                self._append(begun, record)
        for timer_partition, value in transaction.journal.items():
            self.step("sink.journal")
            key = writer_key(self.group.name, timer_partition.topic)
            now_ms = self.kafka.timeline.now_ms
            self._append(
                begun, Outgoing(self.journal_of(timer_partition), timer_partition.partition, key, value, [], now_ms)
            )

    def _append(self, begun: FakeTransaction, record: Outgoing) -> None:
        if begun.state is State.OPEN:
            self.kafka.produce(
                record.topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                transaction=begun,
            )

    def _commit(self, begun: FakeTransaction) -> Committed | Aborted:
        self.step("sink.commit")
        try:
            self.fuse.step("sink.commit asked")
        except Crash:
            self.kafka.leave_in_flight(begun)
            raise
        if self.rng is not None and self._own_rng.random() < self.unknown_chance:
            self.kafka.leave_in_flight(begun)
            raise OutcomeUnknownError("a commit broke off")
        self.kafka.commit(begun)
        committed = begun.state is State.COMMITTED
        self.step("sink.commit done")
        took_s = (self.kafka.timeline.now_ms - begun.begun_ms) / 1000
        return Committed(took_s) if committed else self._abort(begun, {})

    def _abort(self, begun: FakeTransaction, refused: dict[Outgoing, str], why: AbortReason = "fault") -> Aborted:
        """Return some of the records that can never be accepted, as a real broker may name any of them."""
        self.step("sink.abort")
        self.kafka.abort(begun)
        self.step("sink.abort done")
        if self.rng is not None and refused:
            named = {*self.rng.sample(list(refused), self.rng.randint(1, len(refused)))}
            # The limit of a topic decides about all of its records.
            refused = {record: code for record, code in refused.items() if record in named or code == "too-large"}
        # All other refusals are known before a real sink sends anything.
        return Aborted(refused, why, refusing=frozenset(r.topic for r, code in refused.items() if code == "too-large"))


@dataclass(eq=False)
class FakePublishing:
    """A transaction in flight of a FakeSink."""

    sink: FakeSink
    begun: FakeTransaction
    transaction: Transaction
    producer: tuple[str, int]
    """Transactional id and epoch."""
    refused: dict[Outgoing, str] = field(default_factory=dict)
    unavailable: frozenset[str] = frozenset()
    outcome: Committed | Aborted | OutcomeUnknownError | None = None
    looks: int = 0
    """Number of times that the caller has looked whether it is over."""
    is_reported: bool = False
    """True if the caller knows its outcome."""

    def is_done(self) -> bool:
        self.looks += 1
        rng = self.sink.rng
        if self.outcome is None and (draw(rng, 0.5) if rng is not None else self.looks > 4 * self.sink.slow_turns):
            self.finish()
        return self.outcome is not None

    def wait(self) -> Committed | Aborted:
        outcome = self.finish()
        self.is_reported = True
        if isinstance(outcome, OutcomeUnknownError):
            raise outcome
        return outcome

    def finish(self) -> Committed | Aborted | OutcomeUnknownError:
        if self.outcome is None:
            try:
                self.outcome = self.sink.end(self)
            except OutcomeUnknownError as wrong:
                self.outcome = wrong
        return self.outcome


def size_of(record: Outgoing) -> int:
    """Return the approximate bytes of the record in a batch of its own."""
    headers = sum(len(name) + len(value or b"") + 2 for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _check(transaction: Transaction) -> None:
    assert transaction.journal.keys() <= transaction.progress.keys(), "journal without progress"
    places = {str(partition).encode() for partition in transaction.progress}
    for record in transaction.outgoing:
        place, slash, _ = (dict(record.headers).get(ORIGIN) or b"").rpartition(b"/")
        assert not slash or place in places, "a record without progress"
