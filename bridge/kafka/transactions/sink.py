"""Sink over transactional producers, each with one transaction at a time, independent of the others.

committed                                    -> Committed
records that can never be accepted           -> Aborted({record: code})
a topic accepts no records now, or is gone   -> Aborted({}, unavailable={topic})
stale group metadata, passing fault          -> Aborted({}); waits before it returns if faults repeat
fatal error of the producer                  -> Aborted({}); a new producer with the same id ends its transaction
fenced by another process                    -> FencedError
outcome of a commit unknown                  -> OutcomeUnknownError: the bridge starts again from Kafka
"""

import random
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.errors import explained, is_denied
from bridge.kafka.group import is_member
from bridge.kafka.retry import CALL_S, Retrier, WorkerThread, log
from bridge.kafka.transactions.producer import IdHeldError, ProducerState, TimeoutRefusedError, TransactionalProducer
from bridge.kafka.transactions.record_sender import SendFailure, TransactionContents, first_of
from bridge.kafka.transactions.rejection_finder import (
    OF_METADATA,
    OF_RECORDS,
    TOPIC_DENIED,
    RejectionFinder,
    TopicProbe,
)
from bridge.ports import MAX_IN_FLIGHT, Aborted, Committed, Outgoing, Transaction
from schemas.journal import writer_key

_STALE = frozenset(
    {
        *(KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS),
        *(KafkaError.FENCED_INSTANCE_ID, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH),
    }
)
_OF_OPERATOR = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE})
MAX_SUSPECTS = 10_000
_OWN_TOPIC_TRIES = 4
"""Tries after which unavailable topics must be the bridge's own: each try leaves out unavailable targets."""
_KNOWN_S = 1.0
"""A later answer of the cluster has delayed the transaction's other records."""
_CLOSE_S = CALL_S + 1.0
_MAX_SELF_FENCES = 3
"""Fences in a row. Without a limit, two processes with the same id and a slow broker would fence each other forever."""
_MAX_IDS = 16
"""Transactional ids of a slot, used in turn. When the last one is held, the first one is usually free again."""


@dataclass(eq=False)
class ProducerSlot:
    """A transactional producer that is replaced when it breaks, and the thread that makes its blocking calls."""

    _connection: Connection
    _number: int
    _retrier: Retrier
    _rejection_finder: RejectionFinder | None = None

    def __post_init__(self) -> None:
        self._generation = self._self_fences = 0
        """Of the transactional id; fences in a row that this process may have caused itself."""
        self._timeout_ms = self._allowed_ms = clients.TRANSACTION_TIMEOUT_MS
        self._max_timeout_ms = clients.LONGEST_TRANSACTION_MS
        self.producer = self._start(replaces_broken=False)
        self.worker = WorkerThread(f"publishes {self._number}")

    def use_longer_timeout(self) -> None:
        """Double the transaction timeout up to a limit, after a transaction that was too slow for it."""
        if self._timeout_ms < self._max_timeout_ms:
            self._allowed_ms = self._timeout_ms
            self._timeout_ms = min(2 * self._timeout_ms, self._max_timeout_ms)
            self.producer.retire()
            text = "a transaction could not be written in time, perhaps because of a quota: the timeout is now %d s"
            log.warning(text, self._timeout_ms // 1000)

    def replace_if_broken(self) -> None:
        if not self.producer.is_broken:
            return
        self.producer.close()
        is_self_fence = self.producer.state is ProducerState.FENCED_ITSELF
        self._self_fences = 0 if self.producer.has_committed else self._self_fences + is_self_fence
        try:
            self.producer = self._start(replaces_broken=True)
        except TimeoutRefusedError as refused:
            if self._timeout_ms == self._allowed_ms:
                raise
            self._max_timeout_ms = self._timeout_ms = self._allowed_ms
            text = "%s: brokers do not allow that: the transaction timeout stays at %d s"
            log.warning(text, refused, self._timeout_ms // 1000)
            self.producer = self._start(replaces_broken=True)

    def replace_early(self) -> None:
        try:
            self.replace_if_broken()
        except Exception as error:  # noqa: BLE001  (the next transaction of this slot tries again, and raises it)
            log.warning("a producer could not be replaced: %s", error)

    def close(self) -> None:
        self.worker.close(_CLOSE_S)
        self.producer.close()

    def _start(self, *, replaces_broken: bool) -> TransactionalProducer:
        """Return a producer with this slot's transactional id, or with the next one that Kafka does not hold."""
        tries = 0
        while True:
            config = clients.producer(self._connection, self._number, self._generation)
            try:
                return TransactionalProducer(
                    config | {"transaction.timeout.ms": self._timeout_ms},
                    self._retrier,
                    self._rejection_finder,
                    tolerates_self_fence=self._self_fences < _MAX_SELF_FENCES,
                    replaces_broken=replaces_broken,
                )
            except IdHeldError as held:
                tries += 1
                if tries >= _MAX_IDS:
                    self._retrier.wait("starting the producer", f"{held}, as with {_MAX_IDS} other ids", tries)
                self._generation = (self._generation + 1) % _MAX_IDS
                next_id = clients.transactional_id(self._connection, self._number, self._generation)
                log.warning("%s: a topic does not accept the end of its transaction; going on as %s", held, next_id)


@dataclass(eq=False)
class InFlightTransaction:
    """One transaction from `submit` to its outcome. Implements bridge.ports.SubmittedTransaction."""

    outgoing: Sequence[Outgoing]
    tries: int
    batch: TransactionContents
    slot: ProducerSlot
    outcome: Future[Committed | Aborted] = field(init=False)
    began_s: float = field(default_factory=time.monotonic)

    def is_done(self) -> bool:
        return self.outcome.done()

    def wait(self) -> Committed | Aborted:
        return self.outcome.result()


class ConfluentSink:
    """Implements bridge.ports.Sink. A second process with the same instance id fences this one.

    journal_topics: journal topic by timer topic.
    """

    def __init__(self, connection: Connection, journal_topics: Mapping[str, str], retrier: Retrier) -> None:
        self._group = connection.group
        self._journal_topics = journal_topics
        self._retrier = Retrier(retrier)
        self._topic_probe = TopicProbe(connection, self._retrier)
        self._rejection_finder = RejectionFinder(self._topic_probe, compresses=clients.compresses(connection))
        self._suspects: set[str] = set()
        """Topics that accepted no records at the last try. The cluster is asked before the next one."""

        def start(number: int) -> ProducerSlot:
            return ProducerSlot(connection, number, self._retrier, self._rejection_finder)

        with ThreadPoolExecutor(MAX_IN_FLIGHT) as starting:
            self._slots = list(starting.map(start, range(MAX_IN_FLIGHT)))
        self._free = self._slots.copy()
        """Producers without a transaction. The one that has rested longest is the first: each rests after a commit."""

    def needs_look_up(self, outgoing: Sequence[Outgoing]) -> bool:
        return self._rejection_finder.needs_check(outgoing) or bool(self._suspects_in(outgoing))

    def submit(self, transaction: Transaction) -> InFlightTransaction:
        # One that is being replaced may take a second.
        slot = next((each for each in self._free if not each.producer.is_broken), self._free[0])
        self._free.remove(slot)
        records = [*transaction.outgoing, *self._journal_records(transaction)]
        batch = TransactionContents(records, transaction.progress, transaction.group_metadata)
        submitted = InFlightTransaction(transaction.outgoing, transaction.tries, batch, slot)
        # Send on this thread: a worker would wait for the interpreter lock again and again.
        may_send = is_member(batch.group_metadata) and not slot.producer.is_broken
        is_sent = may_send and not self.needs_look_up(submitted.outgoing)
        if is_sent:
            slot.producer.start_sending(batch)
        submitted.outcome = slot.worker.submit(lambda: self._run(submitted, is_sent=is_sent))
        return submitted

    def close(self) -> None:
        self._retrier.give_up_in(0)
        for slot in self._slots:
            slot.close()

    def _journal_records(self, transaction: Transaction) -> list[Outgoing]:
        return [
            Outgoing(self._journal_topics[partition.topic], partition.partition, key, value, [], 0)
            for partition, value in transaction.journal.items()
            for key in [writer_key(self._group, partition.topic)]
        ]

    def _suspects_in(self, outgoing: Sequence[Outgoing]) -> set[str]:
        return self._suspects & {record.topic for record in outgoing} if self._suspects else set()

    # -- on a worker thread

    def _run(self, submitted: InFlightTransaction, *, is_sent: bool) -> Committed | Aborted:
        slot = submitted.slot
        try:
            slot.replace_if_broken()
            aborted = None if is_sent else self._aborted_before_send(submitted)
            outcome = aborted or self._outcome(submitted)
            # Without delay: an open transaction of a broken producer hides all later records from readers.
            slot.worker.submit(slot.replace_early)
            return outcome
        finally:
            self._free.append(slot)

    def _outcome(self, submitted: InFlightTransaction) -> Committed | Aborted:
        producer, batch = submitted.slot.producer, submitted.batch
        failed = producer.send_offsets(batch) or producer.await_acknowledgements(batch)
        if failed is not None and not _is_stale(failed):
            return self._sending_failed(submitted, failed)
        failed = failed or producer.commit(batch)
        if failed is None:
            return Committed(time.monotonic() - submitted.began_s)
        if failed.is_slow:
            submitted.slot.use_longer_timeout()
        self._wait_before_retry(failed, submitted.tries)
        return Aborted({}, "stale-member" if _is_stale(failed) else "fault")

    def _aborted_before_send(self, submitted: InFlightTransaction) -> Aborted | None:
        """Return None if the transaction may be sent."""
        if self.needs_look_up(submitted.outgoing) and (aborted := self._checked(submitted)) is not None:
            return aborted
        if is_member(submitted.batch.group_metadata):
            return None
        self._wait("we are no member of the group", submitted.tries, quietly=True)
        return Aborted({}, "stale-member")

    def _checked(self, submitted: InFlightTransaction) -> Aborted | None:
        """Look its topics up. Return None if all of them take its records."""
        if refused := self._rejection_finder.known(submitted.outgoing):
            return Aborted(refused)
        may_be_targets = submitted.tries < _OWN_TOPIC_TRIES
        limits = submitted.batch.max_batch_bytes = self._rejection_finder.max_batch_bytes.copy()  # others change it
        if may_be_targets and (crowded := self._rejection_finder.crowded(submitted.outgoing, limits)):
            self._wait(f"too many batches for {first_of(crowded)}", submitted.tries, quietly=True)
            return Aborted({}, unavailable=crowded)
        suspects = self._suspects_in(submitted.outgoing)
        unavailable = self._topic_probe.unavailable(suspects, include_unanswered=True)
        self._suspects -= suspects - unavailable
        if not unavailable:
            return None
        self._wait(str(SendFailure(unavailable=unavailable)), submitted.tries, quietly=may_be_targets)
        is_known = time.monotonic() - submitted.began_s < _KNOWN_S
        return Aborted({}, unavailable=unavailable, is_known=is_known)

    def _sending_failed(self, submitted: InFlightTransaction, failed: SendFailure) -> Aborted:
        """Wait before a retry, unless the failure's targets are known.

        Raises BridgeError if only the operator can fix the fault.
        """
        topics, unavailable = {record.topic for record in submitted.outgoing}, failed.unavailable
        if not unavailable and not failed.is_followup_error and failed.codes - OF_RECORDS:
            unavailable = self._rejection_finder.unavailable(topics, is_early=True)
        if unavailable and len(self._suspects) < MAX_SUSPECTS:
            self._suspects |= unavailable
        if unavailable or OF_METADATA & failed.codes:
            submitted.slot.producer.retire()  # it remembers for long what a topic was
        if failed.is_slow and not unavailable:  # else a longer timeout would hold up all other records
            submitted.slot.use_longer_timeout()
        journals = self._journal_topics.values()
        named = {record: code for record, code in failed.named.items() if record.topic not in journals}
        refused = self._rejection_finder.find(submitted.outgoing, SendFailure(named, failed.cause))
        if not refused:
            if failed.codes & TOPIC_DENIED:
                self._require_writable_journal({failed.named[record] for record in failed.named.keys() - named})
                # Half of the topics: tries find the denied one if the broker does not report what our user may do.
                unavailable = unavailable or frozenset(random.sample(sorted(topics), (len(topics) + 1) // 2))
            self._wait_before_retry(failed, submitted.tries, {record.topic for record in named})
        return Aborted(refused, refusing=frozenset(record.topic for record in refused), unavailable=unavailable)

    def _require_writable_journal(self, codes: set[int]) -> None:
        """Raise BridgeError if only the operator can fix the journal topic."""
        journals = set(self._journal_topics.values())
        found = self._topic_probe.describe(journals).values()
        lasting = (codes | {each.code() for each in found if isinstance(each, KafkaError)}) & _OF_OPERATOR
        if lasting:
            why = KafkaError(lasting.pop()).str()
            raise BridgeError(f"{', '.join(sorted(journals))} does not accept journal records ({why}): fix the topic")

    def _wait_before_retry(self, failed: SendFailure, tries: int, topics: Collection[str] = ()) -> None:
        """Log and wait. Raises BridgeError if only the operator can fix the fault. topics: of the failed records."""
        if failed.is_followup_error:
            return
        if failed.cause is not None and is_denied(failed.cause) and failed.cause.code() not in TOPIC_DENIED:
            raise explained("publishing", failed.cause)
        of = f", of {first_of(topics)}" if topics and failed.cause is None else ""
        self._wait(f"{failed}{of}", tries, quietly=_is_stale(failed))

    def _wait(self, why: str, tries: int, *, quietly: bool) -> None:
        """Log an abort and wait, longer after each try; not at all after the first one."""
        log.info("transaction aborted: %s", why)
        if tries:
            self._retrier.wait("publishing", why, tries - 1, quietly=quietly)


def _is_stale(failed: SendFailure) -> bool:
    return failed.cause is not None and failed.cause.code() in _STALE
