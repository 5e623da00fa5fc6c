"""One librdkafka producer, one transaction at a time: its methods from `start_sending` to `commit`, in their order.

    READY -> begin -> OPEN: produce all, offsets, acknowledged -> commit -> READY    None: acknowledged; committed
                         \\___________________________\\-> abort -> READY             SendFailure: aborted, and why
                                                            \\-> BROKEN             the next producer aborts it

Behaviour of librdkafka (tested with 2.16 and Kafka 4.3), and how this module handles it:
1. A failed record makes the commit fail. Later records of its partition would be waited for until the transaction
   times out, so the first failure ends the wait.
2. `produce` itself may refuse a record (topic or partition unknown to cached metadata). librdkafka would commit without
   that record; this module aborts.
3. After a record that is too large, the next transaction that writes to its partition fails once, with OUT_OF_ORDER.
4. A denied topic fails the transaction, not a record: every record that was not sent yet is purged. In a producer's
   first transaction the abort is then a fatal error.
5. The coordinator aborts a transaction that outlives its timeout. The producer then reports that a newer instance
   fenced it, though there is none. The transaction's age tells the two cases apart.
6. `send_offsets_to_transaction` loses its answer if the group's coordinator leaves the metadata meanwhile, and then
   ignores its timeout (issues 5456 and 5511, open as of 2.16). It runs on a thread that is abandoned then.
7. A fatal error during a commit leaves its outcome unknown. The next start of the bridge reads it from Kafka.
8. A retriable call may fail forever. A new producer with the same id ends the old one's transaction. But a decided
   transaction is complete only when each of its partitions has accepted the marker. If one cannot (too few in-sync
   replicas), Kafka answers CONCURRENT_TRANSACTIONS to that id until it can: only another id goes on.
9. librdkafka repeats a request after a timeout, and a slow broker may execute the first one after the second. Starts
   and aborts change the epoch, so the producer then fences itself. Until a commit has succeeded, a fence after a
   timeout does not prove that there is another process; the next producer finds out.
10. While a transaction is open, a second `begin_transaction` is refused: with the error of the transaction if a broker
   has refused a record, else with _STATE. A record that librdkafka itself gives up shows only at the commit.
11. A record may get no report at all: seen once, for 10 minutes, with a topic that was deleted meanwhile on a machine
   under heavy load.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from bridge.errors import SAME_INSTANCE, BridgeError, FencedError, OutcomeUnknownError
from bridge.kafka.client_config import Config, make
from bridge.kafka.errors import error_of, explained, is_passing, unwrapped
from bridge.kafka.retry import CALL_S, Retrier, WorkerThread, serve_idle, without_old_lines
from bridge.kafka.transactions.record_sender import (
    SendFailure,
    TransactionContents,
    await_acknowledgements,
    limited,
    send_records,
)
from bridge.kafka.transactions.rejection_finder import RejectionFinder
from bridge.ports import Outgoing

_FLUSH_S = 0.05
_HUNG_SHARE = 0.6
"""Share of the transaction timeout after which a call counts as hung."""
_OLD_SHARE = 0.9
"""Share of its timeout after which a transaction counts as timed out: records time out slightly before it does."""

_LOST_SHARE = 2.0
"""Share of its timeout after which a transaction is given up: Kafka has aborted it."""

_NAMES_S = 10.0
"""Seconds with names after a failure. Else a sender of bad records would make each transaction fail twice."""
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}  # noqa: SLF001
)


class IdHeldError(BridgeError):
    """Kafka cannot complete the last transaction of this transactional.id (rule 8): go on with another id.

    The transaction cannot change any more: it is decided, and our request to start has fenced its producer.
    """


class TimeoutRefusedError(BridgeError):
    """The transaction timeout is above the brokers' transaction.max.timeout.ms."""


class _RecordFailedError(Exception):
    """A record has failed: the transaction can only be aborted."""


class _TopicsUnavailableError(Exception):
    """Records are not acknowledged: some topics accept none now. Without topics: their records are lost (rule 11)."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__(topics)
        self.topics = topics


class ProducerState(Enum):
    READY = auto()
    """No transaction is open."""
    OPEN = auto()
    """From the beginning of a transaction to its commit or abort."""
    BROKEN = auto()
    """Only a new producer with the same id can go on. Its start aborts a transaction that is open."""
    FENCED_ITSELF = auto()
    """Broken, by a fence that rule 9 may explain."""


class TransactionalProducer:
    """A transactional producer. Not for use by two threads at a time."""

    def __init__(
        self,
        config: Config,
        retrier: Retrier,
        rejection_finder: RejectionFinder | None = None,
        *,
        tolerates_self_fence: bool = True,
        replaces_broken: bool = False,
    ) -> None:
        """Start the producer, which ends the last transaction of its id. Raises IdHeldError.

        rejection_finder: finds topics that accept no records; None: their records are waited for.
        tolerates_self_fence: True to become FENCED_ITSELF instead of raising FencedError if rule 9 may explain it.
        replaces_broken: True if this producer replaces a broken one.
        """
        self.state = ProducerState.READY
        self.has_committed = False
        """True if this producer has committed a transaction."""
        self._tolerates_self_fence = tolerates_self_fence
        self._had_timeout = replaces_broken
        """True if a broker did not answer in time since the last commit."""
        self._timeout_s: float = config["transaction.timeout.ms"] / 1000
        self._retrier = retrier
        self._rejection_finder = rejection_finder
        self._records: Sequence[Outgoing] = ()
        self._topics: frozenset[str] = frozenset()
        """Topics of the current transaction."""
        self._topics_before: frozenset[str] = frozenset()
        """Topics of the transaction before, whose markers may not be written yet."""
        self._names_failures = True
        """True if the transaction is sent with callbacks, which say which records fail."""
        self._names_until_s = math.inf if replaces_broken else 0.0
        self._send_error: KafkaException | None = None
        self._has_sent_offsets = False
        self._began_s = 0.0
        self._offset_sender = WorkerThread("sends offsets")
        self._producer: Any = make(Producer, config, retrier)
        self._failures: dict[Outgoing, int] = {}
        """Error codes of the current transaction's records, as far as they are named."""
        self._start()

    def start_sending(self, batch: TransactionContents) -> None:
        """Begin a transaction and hand its records to librdkafka, without waiting.

        It may run on another thread than the other methods. `await_acknowledgements` reports its errors.
        Failed records are named only after a failure, until `_NAMES_S` after the next commit. A transaction that fails
        without names is repeated with them.
        """
        self._send_error = None
        self._names_failures = time.monotonic() < self._names_until_s
        try:
            with unwrapped():
                self._begin(batch.records)
                send_records(self._producer, batch.records, self._failures, names_failures=self._names_failures)
        except KafkaException as failure:
            self._send_error = failure

    def send_offsets(self, batch: TransactionContents) -> SendFailure | None:
        """Send the offsets while the records of `start_sending` are in flight, which saves two waits for a broker.

        Not while failures are named, as this call would fail by a refused record, too: `commit` sends them then.
        """
        if self._names_failures or not self._is_sending(batch) or self._send_error is not None:
            return None
        return self._abort_on_error(lambda: self._send_offsets(batch))

    def await_acknowledgements(self, batch: TransactionContents) -> SendFailure | None:
        """Wait until all records are acknowledged. Return None on success: call `commit` next.

        Sends them first if `start_sending` was not called for this batch.
        """
        return self._abort_on_error(lambda: self._await_all(batch))

    def commit(self, batch: TransactionContents) -> SendFailure | None:
        """Commit, with the offsets. Return None if committed. Raises FencedError, OutcomeUnknownError."""
        return self._abort_on_error(lambda: self._send_offsets(batch)) or self._commit()

    @property
    def is_broken(self) -> bool:
        return self.state in {ProducerState.BROKEN, ProducerState.FENCED_ITSELF}

    def retire(self) -> None:
        """Begin no further transaction."""
        if not self.is_broken:
            self.state = ProducerState.BROKEN

    def close(self) -> None:
        """Close. The next producer with this id, or the transaction timeout, ends an open transaction."""
        self._offset_sender.close()
        with suppress(KafkaException, SystemError), without_old_lines():  # a fatal error that was reported before
            self._producer.purge()
            self._producer.flush(0)

    # -- the steps

    def _start(self) -> None:
        what = "starting the producer"
        try:
            self._retry(what, lambda: self._producer.init_transactions(CALL_S), _may_start_later)
        except KafkaException as failure:
            error = error_of(failure)
            if error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                self.close()
                raise IdHeldError(f"{what}: {error.str()}") from failure
            if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise TimeoutRefusedError(str(explained(what, error))) from failure
            raise explained(what, error) from failure

    def _abort_on_error(self, step: Callable[[], None]) -> SendFailure | None:
        """Run `step`. If it fails, abort the transaction and return why."""
        try:
            with unwrapped():
                step()
        except _RecordFailedError:
            is_late = KafkaError._MSG_TIMED_OUT in self._failures.values()  # noqa: SLF001
            is_late |= not self._names_failures and self._is_old()
            return self._timed_out() if is_late else self._abort(self._transaction_error())
        except _TopicsUnavailableError as found:
            return self._abandon(found.topics)
        except KafkaException as failure:
            return self._abort(error_of(failure))
        except TimeoutError:
            self.retire()
            hung = KafkaError(KafkaError._TIMED_OUT, "sending offsets hung")  # noqa: SLF001
            return SendFailure(cause=hung, is_slow=self._is_old())  # a quota delays every answer of that broker
        return None

    def _await_all(self, batch: TransactionContents) -> None:
        if not self._is_sending(batch):
            self._names_failures = True
            self._begin(batch.records)
            others = [record for record in batch.records if record.topic not in batch.max_batch_bytes]
            for chunk in (others, *limited(batch.records, batch.max_batch_bytes)):
                send_records(self._producer, chunk, self._failures, names_failures=True)
                self._await_acknowledgements()
        elif self._send_error is not None:
            raise self._send_error
        else:
            self._await_acknowledgements()

    def _is_sending(self, batch: TransactionContents) -> bool:
        """Return True if `start_sending` was called for this batch."""
        return self.state is ProducerState.OPEN and self._records is batch.records

    def _begin(self, records: Sequence[Outgoing]) -> None:
        if self.state is not ProducerState.READY:
            raise AssertionError(f"begin of a producer that is {self.state.name}")
        self.state = ProducerState.OPEN
        serve_idle(self._producer)
        self._failures, self._has_sent_offsets = {}, False
        self._records = records
        self._topics_before, self._topics = self._topics, frozenset(record.topic for record in records)
        self._began_s = time.monotonic()
        self._producer.begin_transaction()

    def _await_acknowledgements(self) -> None:
        await_acknowledgements(self._producer, self._retrier, self._has_failed, self._require_available)
        if self._has_failed():
            raise _RecordFailedError

    def _has_failed(self) -> bool:
        return bool(self._failures) or (not self._names_failures and self._transaction_error() is not None)

    def _require_available(self, is_early: bool) -> None:  # noqa: FBT001
        """Raise _TopicsUnavailableError if a topic takes no records, or if a record is lost.

        A topic of the transaction before delays this one if it accepts no markers. A transaction without names is given
        up early: the repeated one finds out which topics get no acknowledgement.
        """
        if self._rejection_finder is not None:
            topics = self._topics | self._topics_before
            if found := self._rejection_finder.unavailable(topics, is_early=is_early):
                raise _TopicsUnavailableError(found)
        if not is_early and (not self._names_failures or self._age_s() > _LOST_SHARE * self._timeout_s):
            raise _TopicsUnavailableError(frozenset())

    def _timed_out(self) -> SendFailure:
        """End a transaction of which some records were not acknowledged in time.

        If all records to some topics were acknowledged, the others are the reason. If none were, it may be the cluster.
        """
        is_slow = self._is_old()
        failed = self._abandon(frozenset())
        late = frozenset(record.topic for record in self._failures)
        failed.is_slow = is_slow and len(self._failures) < len(self._records)
        failed.unavailable = late if late < self._topics else frozenset()
        return failed

    def _abandon(self, unavailable: frozenset[str]) -> SendFailure:
        """Leave the transaction to the next producer, which aborts it. An abort here might never return (rule 8)."""
        self.retire()
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(_FLUSH_S)
        return SendFailure(self._named(), unavailable=unavailable)

    def _send_offsets(self, batch: TransactionContents) -> None:
        """Send the offsets, unless there are none or this transaction has them."""
        if self._has_sent_offsets or not batch.progress:
            return
        offsets = [
            TopicPartition(partition.topic, partition.partition, reached.next_offset, reached.metadata())
            for partition, reached in batch.progress.items()
        ]

        def send() -> None:
            self._producer.send_offsets_to_transaction(offsets, batch.group_metadata, CALL_S)

        def call() -> None:
            self._offset_sender.submit(send).result(_HUNG_SHARE * self._timeout_s)

        self._retry_for(self._timeout_s, "sending offsets", call)
        self._has_sent_offsets = True

    def _commit(self) -> SendFailure | None:
        try:
            self._retry_for(2 * self._timeout_s, "committing", lambda: self._producer.commit_transaction(CALL_S))
        except KafkaException as failure:
            error = error_of(failure)
            if error.txn_requires_abort():
                failed = self._abort(error)
                if not self.is_broken:  # the broker has agreed that it is aborted, so it was not committed
                    return failed
            self._break(error)
            why = f"a commit broke off ({error.str()}): its outcome is read from Kafka"
            raise OutcomeUnknownError(why) from failure
        self.state, self.has_committed, self._had_timeout = ProducerState.READY, True, False
        if self._names_until_s == math.inf:
            self._names_until_s = time.monotonic() + _NAMES_S
        return None

    def _abort(self, cause: KafkaError | None) -> SendFailure:
        """Abort; if that fails, the next producer aborts."""
        is_old = self._is_old()
        self._names_until_s = math.inf
        if cause is not None and cause.fatal():
            self._break(cause)
        else:
            try:
                self._retry_for(2 * self._timeout_s, "aborting", lambda: self._producer.abort_transaction(CALL_S))
                self.state = ProducerState.READY
            except KafkaException as failure:
                cause = cause or error_of(failure)
                self._break(error_of(failure))
        return SendFailure(self._named(), cause, is_slow=is_old and len(self._failures) < len(self._records))

    def _named(self) -> dict[Outgoing, int]:
        return {record: code for record, code in self._failures.items() if code not in _PURGED}

    def _age_s(self) -> float:
        return time.monotonic() - self._began_s

    def _is_old(self) -> bool:
        return self._age_s() > _OLD_SHARE * self._timeout_s

    def _transaction_error(self) -> KafkaError | None:
        """Return the error of the whole transaction, or None. A second begin is refused, with that error."""
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            error = error_of(failure)
            return None if error.code() == KafkaError._STATE else error  # noqa: SLF001
        raise AssertionError("a transaction within a transaction")

    def _break(self, error: KafkaError) -> None:
        """Become broken by a fatal error. Raises FencedError."""
        is_fenced = error.code() in _FENCED and self._age_s() < self._timeout_s
        if is_fenced and not (self._tolerates_self_fence and self._had_timeout):
            raise FencedError(SAME_INSTANCE)
        if is_fenced:
            self.state = ProducerState.FENCED_ITSELF
        self.retire()

    def _retry_for(self, seconds: float, what: str, call: Callable[[], object]) -> None:
        """Call again while the error is retriable, and the transaction is younger than `seconds`.

        An abort may stay retriable forever, though the broker answers all other clients (rule 8).
        """
        self._retry(what, call, lambda error: error.retriable() and self._age_s() < seconds)

    def _retry(self, what: str, call: Callable[[], object], is_retriable: Callable[[KafkaError], bool]) -> None:
        def is_asked_again(error: KafkaError) -> bool:
            is_passing = is_retriable(error)
            self._had_timeout |= is_passing
            return is_passing

        self._retrier.retry_until_success(what, call, is_asked_again)


def _may_start_later(error: KafkaError) -> bool:
    """Return False if Kafka holds the id: within CALL_S it would have ended the former producer's transaction (1 s)."""
    return is_passing(error) and error.code() != KafkaError.CONCURRENT_TRANSACTIONS
