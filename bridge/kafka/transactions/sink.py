"""Sink over two transactional producers that take turns.

    committed                                    -> Committed
    records that can never be accepted           -> Aborted({record: code})
    a topic accepts no records now, or is gone   -> Aborted({}, unavailable={topic})
    stale group metadata, passing fault          -> Aborted({}); waits before it returns if faults repeat
    the earlier transaction is aborted           -> Aborted({})
    fatal error of the producer                  -> Aborted({}); a new producer with the same id ends its transaction
    fenced by another process                    -> FencedError
    outcome of a commit unknown                  -> OutcomeUnknownError: the bridge starts again from Kafka

Two stages, each for one transaction at a time and in the order of `submit`:

    T1  send | commit |                  send: until records are acknowledged, so targets keep the order of transactions
    T2       | send   | commit |         commit: offsets and commit, after the earlier one has committed
    T3                | send   |         what a target refuses is looked up then, with no other transaction in flight
"""

from collections.abc import Mapping

from bridge.config.kafka_config import Connection
from bridge.kafka.group import is_member
from bridge.kafka.retry import Retrier, log
from bridge.kafka.transactions.contents import TransactionContents
from bridge.kafka.transactions.failure_handler import FailureHandler
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.kafka.transactions.submitted import InFlightTransaction
from bridge.ports import MAX_IN_FLIGHT, Aborted, Committed, Outgoing, Transaction
from schemas.journal import writer_key

_EARLIER_ABORTED = Aborted({}, "earlier")


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
        self._slots = [ProducerSlot(connection, each, self._retrier, find_unavailable) for each in range(MAX_IN_FLIGHT)]
        self._last: InFlightTransaction | None = None
        self._committed = 0

    def submit(self, transaction: Transaction) -> InFlightTransaction:
        earlier = self._last
        if earlier is not None and earlier.is_done() and earlier.is_settled_for_caller():
            earlier = None
        # Producers take turns, because each one has to wait after a commit. After an abort the same one goes on.
        slot = self._slots[(self._committed if earlier is None else earlier.slot.number + 1) % len(self._slots)]
        if earlier is None and slot.needs_replacement:  # it is being replaced, which may take a second
            slot = self._slots[(slot.number + 1) % len(self._slots)]
        batch = TransactionContents(
            [*transaction.outgoing, *self._journal_records(transaction)],
            transaction.progress,
            transaction.group_metadata,
            self._failures.max_batch_bytes,
        )
        self._last = submitted = InFlightTransaction(transaction.outgoing, batch, slot, earlier)
        # Send on this thread: a worker would wait for the interpreter lock again and again.
        may_send = submitted.may_send() and is_member(batch.group_metadata) and not slot.needs_replacement
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
            submitted.fail(error)
        else:
            self._committed += isinstance(outcome, Committed)
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
            if not submitted.earlier_committed():
                return _EARLIER_ABORTED
            return self._failures.sending_failed(submitted, failed)
        submitted.note_acknowledged()
        if not submitted.earlier_committed():
            submitted.slot.producer.give_up()
            return _EARLIER_ABORTED
        failed = submitted.slot.producer.commit(submitted.batch)
        if failed is not None:
            return self._failures.commit_failed(failed)
        self._failures.note_committed()
        return Committed()

    def _aborted_before_send(self, submitted: InFlightTransaction) -> Aborted | None:
        """Wait until the transaction may be sent. Return None if it may be sent."""
        if not submitted.await_send_turn():
            return _EARLIER_ABORTED
        if self._failures.needs_check(submitted.outgoing):
            if not submitted.earlier_committed():
                return _EARLIER_ABORTED
            if (aborted := self._failures.check(submitted)) is not None:
                return aborted
        if is_member(submitted.batch.group_metadata):
            return None
        if submitted.earlier_committed():
            self._failures.wait_as_no_member()
        return Aborted({}, "stale-member")
