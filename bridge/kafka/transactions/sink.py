"""Sink over transactional producers, each with one transaction at a time, independent of the others.

committed                                    -> Committed
records that can never be accepted           -> Aborted({record: code})
a topic accepts no records now, or is gone   -> Aborted({}, unavailable={topic})
stale group metadata, passing fault          -> Aborted({}); waits before it returns if faults repeat
fatal error of the producer                  -> Aborted({}); a new producer with the same id ends its transaction
fenced by another process                    -> FencedError
outcome of a commit unknown                  -> OutcomeUnknownError: the bridge starts again from Kafka
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bridge.config.kafka_config import Connection
from bridge.kafka.group import is_member
from bridge.kafka.retry import Retrier, log
from bridge.kafka.transactions.contents import TransactionContents
from bridge.kafka.transactions.failure_handler import FailureHandler
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.kafka.transactions.submitted import InFlightTransaction
from bridge.ports import MAX_IN_FLIGHT, Aborted, Committed, Outgoing, Transaction
from schemas.journal import writer_key


class ConfluentSink:
    """Implements bridge.ports.Sink. A second process with the same instance id fences this one.

    journal_topics: journal topic by timer topic.
    """

    def __init__(self, connection: Connection, journal_topics: Mapping[str, str], retrier: Retrier) -> None:
        self._group = connection.group
        self._journal_topics = journal_topics
        self._retrier = Retrier(retrier)
        self._failures = FailureHandler(connection, journal_topics, self._retrier)
        find_unavailable = self._failures.find_unavailable

        def start(number: int) -> ProducerSlot:
            return ProducerSlot(connection, number, self._retrier, find_unavailable)

        with ThreadPoolExecutor(MAX_IN_FLIGHT) as starting:
            self._slots = list(starting.map(start, range(MAX_IN_FLIGHT)))
        self._free = self._slots.copy()
        """Producers without a transaction. The one that has rested longest is the first: each rests after a commit."""

    def needs_look_up(self, outgoing: Sequence[Outgoing]) -> bool:
        return self._failures.needs_check(outgoing)

    def submit(self, transaction: Transaction) -> InFlightTransaction:
        # One that is being replaced may take a second.
        slot = next((each for each in self._free if not each.producer.is_broken), self._free[0])
        self._free.remove(slot)
        batch = TransactionContents(
            [*transaction.outgoing, *self._journal_records(transaction)],
            transaction.progress,
            transaction.group_metadata,
            self._failures.max_batch_bytes,
        )
        submitted = InFlightTransaction(transaction, batch, slot)
        # Send on this thread: a worker would wait for the interpreter lock again and again.
        may_send = is_member(batch.group_metadata) and not slot.producer.is_broken
        if may_send and not self._failures.needs_check(submitted.outgoing):
            slot.producer.start_sending(submitted.batch)
            submitted.is_loaded = True
        slot.worker.do(lambda: self._run(submitted))
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

    # -- on a worker thread

    def _run(self, submitted: InFlightTransaction) -> None:
        try:
            submitted.slot.replace_if_broken()
            outcome = self._outcome(submitted)
        except Exception as error:  # noqa: BLE001  (handed over, not swallowed)
            self._free.append(submitted.slot)
            submitted.fail(error)
        else:
            self._free.append(submitted.slot)
            submitted.end(outcome)
            # Without delay: an open transaction of a broken producer hides all later records from readers.
            self._replace(submitted.slot)

    def _replace(self, slot: ProducerSlot) -> None:
        try:
            slot.replace_if_broken()
        except Exception as error:  # noqa: BLE001  (the next transaction of this slot tries again, and raises it)
            log.warning("a producer could not be replaced: %s", error)

    def _outcome(self, submitted: InFlightTransaction) -> Committed | Aborted:
        if not submitted.is_loaded and (aborted := self._aborted_before_send(submitted)) is not None:
            return aborted
        failed = submitted.slot.producer.await_acknowledgements(submitted.batch)
        if failed is not None:
            return self._failures.sending_failed(submitted, failed)
        failed = submitted.slot.producer.commit(submitted.batch)
        if failed is not None:
            return self._failures.commit_failed(submitted, failed)
        return Committed()

    def _aborted_before_send(self, submitted: InFlightTransaction) -> Aborted | None:
        """Return None if the transaction may be sent."""
        if self._failures.needs_check(submitted.outgoing) and (aborted := self._failures.check(submitted)) is not None:
            return aborted
        if is_member(submitted.batch.group_metadata):
            return None
        self._failures.wait_as_no_member(submitted.tries)
        return Aborted({}, "stale-member")
