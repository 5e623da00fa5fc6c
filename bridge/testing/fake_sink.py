"""Sink over the fake Kafka."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from bridge.errors import FencedError, OutcomeUnknownError
from bridge.ports import MAX_IN_FLIGHT, Aborted, AbortReason, Committed, Outgoing, Transaction
from bridge.testing.fake_group import FakeGroup
from bridge.testing.fake_kafka import FakeKafka, FakeTransaction, State
from bridge.testing.timeline import nothing_happens
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.journal import writer_key
from timer.testing import Crash, Fuse

RECORD_OVERHEAD_BYTES = 70
_LOOK_UP_SHARE = 0.1


class FakeSink:
    """Implements Sink with several transactional producers. A transaction fails if the test or `rng` says so.

    Without `rng` a transaction ends at once (but see `is_slow`); with it, at a random time.

    other_journals: by timer topic with its own journal.
    meanwhile: called at each step; others may act, and time may pass.
    note: its answer at `submit` is kept in the transaction of FakeKafka.
    """

    def __init__(
        self,
        kafka: FakeKafka,
        group: FakeGroup,
        transactional_id: str,
        journal_topic: str,
        *,
        other_journals: Mapping[str, str] | None = None,
        fuse: Fuse | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
        note: Callable[[], object] = lambda: None,
    ) -> None:
        self._kafka = kafka
        self._group = group
        self._journal_topic = journal_topic
        self._other_journals = other_journals or {}
        self._fuse = fuse or Fuse()
        self._rng = rng
        self._meanwhile = meanwhile
        self._note = note
        self.fault_chance = 0.0
        """Share of transactions that a passing fault aborts (needs `rng`)."""
        self.unknown_chance = 0.0
        """Share of commits whose answer is lost (needs `rng`): the commit succeeds now, later or never."""
        self._own_rng = Random(f"{transactional_id} {kafka.timeline.now_ms}")
        """A random source of its own for later additions, so that old seeds keep their histories."""
        self.faults = 0
        """Number of next transactions that a passing fault aborts."""
        self.failure_ms = 1
        """Duration of a transaction that fails for an unavailable target; a real one waits for seconds."""
        self.is_slow = False
        """True to keep a transaction in flight for the turn after its own, or until `wait`."""
        self._free = deque((own, kafka.init(own)) for own in producer_ids(transactional_id))
        self._in_flight: list[FakePublishing] = []

    def needs_look_up(self, outgoing: Sequence[Outgoing]) -> bool:
        return bool(outgoing) and self._rng is not None and self._own_rng.random() < _LOOK_UP_SHARE

    def submit(self, transaction: Transaction) -> "FakePublishing":
        self._in_flight = [each for each in self._in_flight if not each.is_reported]
        assert len(self._in_flight) < MAX_IN_FLIGHT, "too many transactions in flight"
        for each in self._in_flight:
            assert each.transaction.progress.keys().isdisjoint(transaction.progress), "a partition is in two at once"
        _check(transaction)
        note = self._note()
        self._step("sink.submit")
        owner, epoch = self._free[0]
        if self._kafka.is_fenced(owner, epoch):
            raise FencedError(f"another process runs as {owner}")
        self._kafka.finish(owner)
        begun = self._kafka.begin(owner)
        begun.note = note
        made = FakePublishing(self, begun, transaction, self._free.popleft())
        self._produce(made)
        self._in_flight.append(made)
        if self._rng is None and not self.is_slow:
            made.finish()
        return made

    def journal_of(self, timer_partition: TimerPartition) -> str:
        return self._other_journals.get(timer_partition.topic, self._journal_topic)

    def drift(self) -> None:
        """Let transactions in flight advance, or not."""
        for each in self._in_flight:
            if self._draw(0.4):
                each.finish()

    def end(self, submitted: "FakePublishing") -> Committed | Aborted:
        """Send the offsets and commit, or abort."""
        self._free.append(submitted.producer)
        begun, transaction = submitted.begun, submitted.transaction
        self._step("sink.end")
        if submitted.unavailable:
            self._kafka.timeline.advance(self.failure_ms)
            return replace(self._abort(begun, {}), unavailable=submitted.unavailable)
        if submitted.refused or self._draw(self.fault_chance):
            return self._abort(begun, submitted.refused)
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

    def is_done(self, submitted: "FakePublishing") -> bool:
        submitted.looks += 1
        if submitted.outcome is None and (
            self._draw(0.5) if self._rng is not None else submitted.looks > 4 * self.is_slow
        ):
            submitted.finish()
        return submitted.outcome is not None

    def close(self) -> None:
        self._fuse.step("sink.close")

    def _produce(self, submitted: "FakePublishing") -> None:
        begun, transaction = submitted.begun, submitted.transaction
        for record in transaction.outgoing:
            self._step("sink.produce")
            code = self._kafka.refusal(record.topic, record.partition, size_of(record))
            if code is not None:
                submitted.refused[record] = code
            elif self._kafka.topics[record.topic].unavailable:
                submitted.unavailable |= {record.topic}
            else:
                self._append(begun, record)
        for timer_partition, value in transaction.journal.items():
            self._step("sink.journal")
            key = writer_key(self._group.name, timer_partition.topic)
            now_ms = self._kafka.timeline.now_ms
            self._append(
                begun, Outgoing(self.journal_of(timer_partition), timer_partition.partition, key, value, [], now_ms)
            )

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

    def _commit(self, begun: FakeTransaction) -> Committed | Aborted:
        self._step("sink.commit")
        try:
            self._fuse.step("sink.commit asked")
        except Crash:
            self._kafka.leave_in_flight(begun)
            raise
        if self._rng is not None and self._own_rng.random() < self.unknown_chance:
            self._kafka.leave_in_flight(begun)
            raise OutcomeUnknownError("a commit broke off")
        self._kafka.commit(begun)
        committed = begun.state is State.COMMITTED
        self._step("sink.commit done")
        took_s = (self._kafka.timeline.now_ms - begun.begun_ms) / 1000
        return Committed(took_s) if committed else self._abort(begun, {})

    def _abort(self, begun: FakeTransaction, refused: dict[Outgoing, str], why: AbortReason = "fault") -> Aborted:
        """Return some of the records that can never be accepted, as a real broker may name any of them."""
        self._step("sink.abort")
        self._kafka.abort(begun)
        self._step("sink.abort done")
        if self._rng is not None and refused:
            named = {*self._rng.sample(list(refused), self._rng.randint(1, len(refused)))}
            # The limit of a topic decides about all of its records.
            refused = {record: code for record, code in refused.items() if record in named or code == "too-large"}
        # All other refusals are known before a real sink sends anything.
        return Aborted(refused, why, refusing=frozenset(r.topic for r, code in refused.items() if code == "too-large"))

    def _draw(self, chance: float) -> bool:
        return self._rng is not None and self._rng.random() < chance

    def _step(self, where: str) -> None:
        self._fuse.step(where)
        self._meanwhile(where)


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
        return self.sink.is_done(self)

    def wait(self) -> Committed | Aborted:
        outcome = self.finish()
        self.is_reported = True
        if isinstance(outcome, OutcomeUnknownError):
            raise outcome
        return outcome

    def finish(self) -> Committed | Aborted | OutcomeUnknownError:
        """End it."""
        if self.outcome is None:
            try:
                self.outcome = self.sink.end(self)
            except OutcomeUnknownError as wrong:
                self.outcome = wrong
        return self.outcome


def producer_ids(transactional_id: str) -> list[str]:
    """Return the ids of the producers that take turns."""
    return [f"{transactional_id}-{number}" for number in range(MAX_IN_FLIGHT)]


def size_of(record: Outgoing) -> int:
    """Return the approximate bytes of the record in a batch of its own."""
    headers = sum(len(name) + len(value or b"") + 2 for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _check(transaction: Transaction) -> None:
    """Check what the port requires of its caller."""
    assert transaction.journal.keys() <= transaction.progress.keys(), "journal without progress"
    origins = (_origin_partition(record.headers) for record in transaction.outgoing)
    assert all(timer_partition is None or timer_partition in transaction.progress for timer_partition in origins), (
        "a record without progress"
    )


def _origin_partition(headers: Headers) -> TimerPartition | None:
    found = [value for name, value in headers if name == "timer-origin" and value]
    topic, _, rest = found[-1].decode().partition("/") if found else ("", "", "")
    return TimerPartition(topic, int(rest.partition("/")[0])) if rest else None
