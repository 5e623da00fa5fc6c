"""One librdkafka producer, one transaction at a time, in two stages: `fill` and `settle`.

    begin -> produce all -> acknowledged  |  offsets -> commit         None: filled; it stands
                  \\____________\\________|_____\\_________\\-> abort     Failed: nothing of it stands, and why

What librdkafka does (tried on 2.16 and Kafka 4.3), and what is made of it:
1. A record that fails makes the commit fail. Others in flight behind it in its partition would be waited for until the
   transaction's time-out, so the first failure ends the wait.
2. `produce` itself may refuse (unknown topic or partition, by cached metadata); the transaction could still be
   committed without that record. It never is.
3. After a record too large, the next transaction that touches its partition fails once, with OUT_OF_ORDER.
4. A denied topic fails the transaction, not a record: every record that was not sent yet is purged. In a producer's
   first transaction the abort is then a fatal error.
5. A transaction that outlives its time-out is aborted by the coordinator; the producer is then told that it is fenced
   "by a newer instance", though there is none. The age of the transaction tells the two apart.
6. `send_offsets_to_transaction` may never return: see bridge.kafka.call_timeout.
7. A fatal error in the middle of a commit leaves its fate unknown. Only Kafka knows: the next life asks it.
8. What may be called again may have to be called for ever. A new producer of the same id ends what the old one left.
   But a transaction that is decided is over only when each of its partitions has taken the marker. If one cannot (too
   few in-sync replicas), Kafka answers CONCURRENT_TRANSACTIONS to that id until it can: only another id goes on.
9. What a broker does not answer in time is asked for again, and one that had stood still may carry the first request
   out behind the second: starts and aborts change the epoch, so the producer is then fenced by itself. Until a commit
   has come through, a fence behind such trouble says nothing of others; the next producer tells.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from bridge.errors import BridgeError, FencedError, OutcomeUnknownError
from bridge.kafka.call_timeout import HungError, Timely
from bridge.kafka.client_config import Config, explained, is_passing, make
from bridge.kafka.retry import CALL_S, Patience, error_of, unwrapped
from bridge.kafka.transactions.produce import PendingSends
from bridge.ports import Outgoing
from schemas.origin import Shard
from schemas.progress import Progress

_MORE_S = 0.05
_MOST_NAMED = 3
_HUNG = 0.6
"""A call that takes this part of a transaction's time-out never returns."""
_OLD = 0.9
"""This part of its time-out: records time out a little before their transaction does."""

_ECHO = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
_ECHO_TRIES = 4
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}  # noqa: SLF001
)


Unavailable = Callable[[Collection[str]], frozenset[str]]
"""Asks the cluster which of some topics take no records now."""


def none_unavailable(_: Collection[str]) -> frozenset[str]:
    return frozenset()


class IdHeldError(BridgeError):
    """Kafka cannot complete the last transaction of this transactional.id (rule 8): go on with another id.

    The transaction is decided, and the request to start has fenced the producer that began it, so nothing of it can
    change any more.
    """


class UnavailableError(Exception):
    """Some topics take no records now."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(topics)))
        self.topics = topics


class TimeoutRefusedError(BridgeError):
    """Brokers allow no transaction that takes so long (transaction.max.timeout.ms)."""


@dataclass(slots=True)
class TransactionContents:
    """What one transaction carries. Of a topic in `narrow`, at most so many bytes are on their way at a time."""

    records: Sequence[Outgoing]
    progress: Mapping[Shard, Progress]
    fence: object
    narrow: Mapping[str, int]


@dataclass(slots=True)
class Failed:
    """Nothing stands. `named`: error codes by index of the record; `cause`: what ended the transaction as a whole."""

    named: dict[int, int] = field(default_factory=dict)
    cause: KafkaError | None = None
    unavailable: frozenset[str] = frozenset()
    """Topics that took no record in time, as far as they are the reason."""

    @property
    def codes(self) -> set[int]:
        return set(self.named.values()) | ({self.cause.code()} if self.cause is not None else set())

    @property
    def is_followup_error(self) -> bool:
        """It failed for what was sent before it (rule 3)."""
        return not self.named and self.cause is not None and self.cause.code() == _ECHO

    def __str__(self) -> str:
        if self.unavailable:
            return f"no records are taken by {', '.join(sorted(self.unavailable)[:_MOST_NAMED])}"
        return self.cause.str() if self.cause is not None else f"{len(self.named)} records failed"


class _DoomedError(Exception):
    """A record has failed: the transaction can only be aborted."""


@dataclass(slots=True)
class _Ended:
    failed: Failed | None = None


class TransactionalProducer:
    """`is_broken` after a fatal error: only a new one of the same id goes on. `is_successor`: of one that was broken.

    `forgives`: if rule 9 may explain a fence, it is such an error and no more; then `self_fence_suspected` is set.

    `timed_out_while_sending`: a transaction timed out though the broker took some of it (a slow broker, or a quota).
    """

    def __init__(
        self,
        config: Config,
        patience: Patience,
        unavailable: Unavailable = none_unavailable,
        *,
        forgives: bool = True,
        is_successor: bool = False,
    ) -> None:
        """`unavailable`: asks the cluster which of some topics take no records. Raises IdHeldError."""
        self.is_broken = False
        self.self_fence_suspected = False
        self.is_proven = False
        """A transaction of its own has been committed."""
        self._forgives = forgives
        self._was_troubled = is_successor
        """Since its last commit a broker did not answer in time."""
        self.timed_out_while_sending = False
        self._life_s: float = config["transaction.timeout.ms"] / 1000
        self._patience = patience
        self._unavailable = unavailable
        self._records: Sequence[Outgoing] = ()
        self._topics: frozenset[str] = frozenset()
        """Topics of this transaction."""
        self._topics_before: frozenset[str] = frozenset()
        """Topics of the transaction before, whose markers may be on their way."""
        self._loaded: TransactionContents | None = None
        self._wrong: KafkaException | None = None
        self._began_s = 0.0
        self._timely = Timely("sends offsets")
        self._producer: Any = make(Producer, config, patience)
        self._sending = PendingSends(self._producer, patience)
        self.partitions_of = self._sending.partitions_of
        self._insist("starting the producer", lambda: self._producer.init_transactions(CALL_S), _may_start_later)

    def load(self, batch: TransactionContents) -> None:
        """What of `fill` takes no waiting, for another thread to do. What goes wrong, `fill` tells."""
        self._loaded = batch
        self._wrong = None
        try:
            with unwrapped():
                self._begin(batch.records)
                self._sending.send(enumerate(batch.records))
        except KafkaException as failure:
            self._wrong = failure

    def fill(self, batch: TransactionContents) -> Failed | None:
        """Everything but offsets and commit: its records are acknowledged. None: to be settled or given up."""
        with self._unless_over() as ended:
            if batch is not self._loaded:
                self._begin(batch.records)
                self._produce(batch.records, batch.narrow)
            elif self._wrong is not None:
                raise self._wrong
            self._demand_none_failed()
            self._await_acknowledgements()
        return ended.failed

    def settle(self, batch: TransactionContents) -> Failed | None:
        """The rest of what was filled. None: it stands. Raises FencedError, OutcomeUnknownError."""
        with self._unless_over() as ended:
            if batch.progress:
                self._send_offsets(batch)
        return ended.failed or self._commit()

    def give_up(self) -> None:
        """Aborts what was filled."""
        self._abort(None)

    def probe(self, records: Sequence[Outgoing]) -> Failed | None:
        """Whether the broker would take `records`: sent in a transaction that is aborted in any case."""
        failed = self._probe(records)
        for _ in range(_ECHO_TRIES):
            if failed is None or not failed.is_followup_error:
                break
            failed = self._probe(records)
        return failed

    def close(self) -> None:
        """What is open is left to the next producer of this id, or to the time-out."""
        self._timely.close()
        with suppress(KafkaException, SystemError):  # a fatal error was told before
            self._producer.purge()
            self._producer.flush(0)

    # -- the steps

    @contextmanager
    def _unless_over(self) -> Iterator[_Ended]:
        """Aborts where a step fails, and tells why."""
        ended = _Ended()
        try:
            with unwrapped():
                yield ended
        except _DoomedError:
            is_late = KafkaError._MSG_TIMED_OUT in self._sending.failures.values()  # noqa: SLF001
            ended.failed = self._timed_out() if is_late else self._abort(self._cause())
        except UnavailableError as found:
            ended.failed = self._abandon(found.topics)
        except KafkaException as failure:
            ended.failed = self._abort(error_of(failure))
        except HungError:
            self.is_broken = True  # and with it the transaction is over: the next producer of this id aborts it
            self.timed_out_while_sending |= self._is_old()  # a quota holds back whatever is asked of that broker
            ended.failed = Failed(cause=KafkaError(KafkaError._TIMED_OUT, "sending offsets hung"))  # noqa: SLF001

    def _begin(self, records: Sequence[Outgoing]) -> None:
        self._sending.begin()
        self._records = records
        self._topics_before, self._topics = self._topics, frozenset(record.topic for record in records)
        self._began_s = time.monotonic()
        self._producer.begin_transaction()

    def _produce(self, records: Sequence[Outgoing], narrow: Mapping[str, int]) -> None:
        for _ in self._sending.send_narrowly([*enumerate(records)], narrow):
            self._await_acknowledgements()

    def _demand_none_failed(self) -> None:
        if self._sending.failures:
            self._producer.flush(_MORE_S)  # who else would fail
            raise _DoomedError

    def _await_acknowledgements(self) -> None:
        self._sending.await_acknowledgements(self._records, beyond_failures=False, on_stall=self._demand_available)
        if self._sending.failures:
            raise _DoomedError

    def _demand_available(self) -> None:
        """Raise UnavailableError if a topic takes no records.

        A topic of the transaction before holds this one up if it takes no markers.
        """
        if found := self._unavailable(self._topics | self._topics_before):
            raise UnavailableError(found)

    def _timed_out(self) -> Failed:
        """End a transaction of which some records were not acknowledged in time.

        If all records to some topics were acknowledged, the others are the reason. If none were, it may be the cluster.
        """
        is_old = self._is_old()
        failed = self._abandon(frozenset())
        late = frozenset(self._records[index].topic for index in self._sending.failures)
        self.timed_out_while_sending |= is_old and len(self._sending.failures) < len(self._records)
        failed.unavailable = late if late < self._topics else frozenset()
        return failed

    def _abandon(self, unavailable: frozenset[str]) -> Failed:
        """Leave the transaction to the next producer, which aborts it. An abort here might never return (rule 8)."""
        self.is_broken = True
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(_MORE_S)
        named = {i: code for i, code in self._sending.failures.items() if code not in _PURGED}
        return Failed(named, unavailable=unavailable)

    def _send_offsets(self, batch: TransactionContents) -> None:
        offsets = [
            TopicPartition(shard.topic, shard.partition, reached.next_offset, reached.metadata())
            for shard, reached in batch.progress.items()
        ]

        def send() -> None:
            self._producer.send_offsets_to_transaction(offsets, batch.fence, CALL_S)

        self._insist(
            "sending offsets", lambda: self._timely.call(send, _HUNG * self._life_s), self._within(self._life_s)
        )

    def _commit(self) -> Failed | None:
        try:
            self._insist(
                "committing", lambda: self._producer.commit_transaction(CALL_S), self._within(2 * self._life_s)
            )
        except KafkaException as failure:
            error = error_of(failure)
            if error.txn_requires_abort():
                failed = self._abort(error)
                if not self.is_broken:  # the broker has agreed that it is aborted, so it was not committed
                    return failed
            self._demand_not_fenced(error)
            self.is_broken = True
            why = f"a commit broke off ({error.str()}): what stands is read from Kafka"
            raise OutcomeUnknownError(why) from failure
        self.is_proven, self._was_troubled = True, False
        return None

    def _abort(self, cause: KafkaError | None) -> Failed:
        """Ends it, whatever that takes."""
        is_old = self._is_old()
        if cause is None or not cause.fatal():
            try:
                self._insist(
                    "aborting", lambda: self._producer.abort_transaction(CALL_S), self._within(2 * self._life_s)
                )
            except KafkaException as failure:
                error = error_of(failure)
                self.is_broken = True
                self._demand_not_fenced(error)
                cause = cause or error
        else:
            self.is_broken = True
            self._demand_not_fenced(cause)
        failures = self._sending.failures
        self.timed_out_while_sending |= is_old and len(failures) < len(self._records)
        return Failed({i: code for i, code in failures.items() if code not in _PURGED}, cause)

    def _is_old(self) -> bool:
        return time.monotonic() - self._began_s > _OLD * self._life_s

    def _probe(self, records: Sequence[Outgoing]) -> Failed | None:
        with self._unless_over() as ended:
            self._begin(records)
            self._sending.send(enumerate(records))
            self._await_acknowledgements()
        return ended.failed or self._ended_well()

    def _ended_well(self) -> Failed | None:
        """The abort of a transaction without a fault; None, or what went wrong in it after all."""
        failed = self._abort(None)
        return failed if failed.named or failed.cause is not None else None

    def _cause(self) -> KafkaError | None:
        """Why the transaction as a whole has failed, if it has: a second begin is refused, and the refusal tells."""
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            error = error_of(failure)
            return None if error.code() == KafkaError._STATE else error  # noqa: SLF001
        raise AssertionError("a transaction within a transaction")

    def _demand_not_fenced(self, error: KafkaError) -> None:
        is_young = time.monotonic() - self._began_s < self._life_s
        if error.code() in _FENCED and is_young:
            if self._forgives and self._was_troubled:
                self.self_fence_suspected = True
                return
            raise FencedError(
                "another process runs with this instance's id, perhaps on a copy of the data directory: this one ends."
                " Give each its own --data-dir, and delete the file instance-id in the copy"
            )

    def _within(self, seconds: float) -> Callable[[KafkaError], bool]:
        """Whether to call again: librdkafka says that one may, and the transaction is not older than this.

        An abort was seen to ask for it for ever, with a broker that answered everybody else (rule 8).
        """
        return lambda error: error.retriable() and time.monotonic() - self._began_s < seconds

    def _insist(self, what: str, call: Callable[[], object], is_passing: Any) -> None:
        tries = 0

        def again() -> object:
            nonlocal tries
            tries += 1
            self._was_troubled |= tries > 1
            return call()

        try:
            self._patience.retry_until_success(what, again, is_passing)
        except KafkaException as failure:
            if self._began_s == 0.0:  # not one transaction yet
                if error_of(failure).code() == KafkaError.CONCURRENT_TRANSACTIONS:
                    self.close()
                    raise IdHeldError(f"{what}: {error_of(failure).str()}") from failure
                if error_of(failure).code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                    raise TimeoutRefusedError(f"{what}: {error_of(failure).str()}") from failure
                raise explained(what, error_of(failure)) from failure
            raise


def _may_start_later(error: KafkaError) -> bool:
    """True unless Kafka holds the id: within CALL_S it ends what a former producer left open, if it can (1 s)."""
    return is_passing(error) and error.code() != KafkaError.CONCURRENT_TRANSACTIONS
