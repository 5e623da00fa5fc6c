"""Sink over two transactional producers that take turns.

    committed                                    -> Committed
    records that can never be accepted           -> Aborted({index: code})
    a topic accepts no records now               -> Aborted({}, unavailable={topic})
    stale group metadata, passing fault          -> Aborted({}); waits before it returns if faults repeat
    the earlier transaction is aborted           -> Aborted({})
    fatal error of the producer                  -> Aborted({}); a new producer with the same id ends its transaction
    fenced by another process                    -> FencedError
    outcome of a commit unknown                  -> OutcomeUnknownError: the bridge starts again from Kafka

Two stages, each for one transaction at a time and in the order of `submit`:

    T1  fill | settle |                  fill: records sent and acknowledged, so targets keep the order of transactions
    T2       | fill   | settle |         settle: offsets and commit, after the earlier one has committed
    T3                | fill   |         rejected records are searched for in a fill, with no other one in flight

With at-least-once, a fill begins with the deliveries. They stay delivered if the transaction is aborted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import explained, is_denied
from bridge.kafka.group_metadata import is_member
from bridge.kafka.retry import Retrier, log
from bridge.kafka.transactions.early_delivery import EarlyDeliverySender
from bridge.kafka.transactions.in_flight import InFlightTransaction, Selection
from bridge.kafka.transactions.producer import SendFailure, TransactionContents
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.kafka.transactions.rejection_finder import OF_DENIAL, RejectionFinder
from bridge.kafka.transactions.topic_probe import TopicProbe
from bridge.ports import MAX_IN_FLIGHT, Aborted, Committed, Outgoing, Transaction
from schemas.journal import writer_key

_STALE = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)
_EARLIER_ABORTED = Aborted({}, "earlier")
_MAX_TOPICS_IN_LOG = 3
_MAX_SUSPECTS = 10_000
_OWN_TOPIC_FAILURES = 4
"""Aborts in a row for unavailable topics after which the reason must be one of the bridge's own topics.

Each retry leaves out the timers of unavailable targets.
"""


class ConfluentSink:
    """Implements bridge.ports.Sink. A second process with the same instance id fences this one.

    journal_topics: journal topic by timer topic.
    own_topics: the bridge's topics, given for at-least-once. Records to all other topics are deliveries, which are sent
        before their transaction.
    """

    def __init__(
        self,
        connection: Connection,
        journal_topics: Mapping[str, str],
        retrier: Retrier,
        own_topics: frozenset[str] | None = None,
    ) -> None:
        self._group = connection.group
        self._journal_topics = journal_topics
        self._retrier = Retrier(retrier)
        self._topic_probe = TopicProbe(connection, self._retrier)
        find_unavailable = self._topic_probe.unavailable
        self._early_sender: EarlyDeliverySender | None = None
        if own_topics is not None:
            self._early_sender = EarlyDeliverySender(connection, own_topics, self._retrier, find_unavailable)
        self._slots = [ProducerSlot(connection, each, self._retrier, find_unavailable) for each in range(MAX_IN_FLIGHT)]
        self._suspects: set[str] = set()
        """Topics that accepted no records at the last try. The cluster is asked before the next one."""
        self._last: InFlightTransaction | None = None
        self._committed = 0
        self._probing_slot = self._slots[0]
        self._rejection_finder = RejectionFinder(
            self._probe, self._partitions_of, compresses=clients.compresses(connection)
        )
        self._failures_in_a_row = 0

    def submit(self, transaction: Transaction) -> InFlightTransaction:
        earlier = self._last
        if earlier is not None and earlier.is_done() and earlier.is_settled_for_caller():
            earlier = None
        # Producers take turns, because each one has to wait after a commit. After an abort the same one goes on.
        slot = self._slots[(self._committed if earlier is None else earlier.slot.number + 1) % len(self._slots)]
        selection, batch = self._batch(transaction)
        self._last = submitted = InFlightTransaction(selection, batch, slot, earlier)
        # Send on this thread: a worker would wait for the interpreter lock again and again.
        needs_no_check = not self._rejection_finder.needs_check(submitted.outgoing) and not self._suspects_in(submitted)
        if submitted.may_fill() and is_member(submitted.batch.group_metadata) and needs_no_check:
            if self._early_sender is not None:
                self._early_sender.load(submitted.outgoing)
            slot.producer.load(submitted.batch)
            submitted.is_loaded = True
        slot.worker.do(lambda: self._run(submitted))
        return submitted

    def close(self) -> None:
        self._retrier.give_up_in(0)
        for slot in self._slots:
            slot.close()
        if self._early_sender is not None:
            self._early_sender.close()

    # -- on a worker thread

    def _run(self, submitted: InFlightTransaction) -> None:
        try:
            outcome = self._outcome(submitted)
            if self._early_sender is not None and isinstance(outcome, Aborted):
                outcome = _with_caller_indices(submitted, outcome)
            # Without delay: an open transaction of a broken producer hides all later records from readers.
            submitted.slot.replace_if_broken()
        except Exception as error:  # noqa: BLE001  (handed over, not swallowed)
            submitted.fail(error)
        else:
            self._committed += isinstance(outcome, Committed)
            submitted.end(outcome)

    def _outcome(self, submitted: InFlightTransaction) -> Committed | Aborted:
        if not submitted.is_loaded and (aborted := self._aborted_before_send(submitted)) is not None:
            return aborted
        failed = self._send_early(submitted) or self._fill(submitted)
        if failed is not None:
            return self._aborted(submitted, failed) if submitted.earlier_committed() else _EARLIER_ABORTED
        submitted.note_filled()
        if not submitted.earlier_committed():
            submitted.slot.producer.give_up()
            return _EARLIER_ABORTED
        failed = submitted.slot.producer.settle(submitted.batch)
        if failed is not None:
            self._wait_before_retry(failed)
            return Aborted({}, "stale-member" if _is_stale(failed) else "fault")
        self._failures_in_a_row = 0
        return Committed()

    def _send_early(self, submitted: InFlightTransaction) -> SendFailure | None:
        """Send the deliveries of at-least-once. Return None if all are acknowledged, or for exactly-once."""
        if self._early_sender is None:
            return None
        submitted.acknowledged, failed = self._early_sender.fill(submitted.outgoing, submitted.batch.max_batch_bytes)
        if failed is not None and submitted.is_loaded:
            submitted.slot.producer.give_up()
        return failed

    def _fill(self, submitted: InFlightTransaction) -> SendFailure | None:
        """Fill the transaction. Indices of the failure are those of `outgoing`; higher ones are the journal's."""
        failed, count = submitted.slot.producer.fill(submitted.batch), len(submitted.outgoing)
        if failed is not None and self._early_sender is not None:
            places = [*submitted.selection.places, *range(count, count + len(submitted.batch.records))]
            failed.named = {places[index]: code for index, code in failed.named.items()}
        return failed

    # -- before sending

    def _aborted_before_send(self, submitted: InFlightTransaction) -> Aborted | None:
        """Wait until the transaction may be filled. Return None if it may be sent."""
        if not submitted.await_fill_turn():
            return _EARLIER_ABORTED
        return (
            self._aborted_by_known_rejections(submitted)
            or self._aborted_by_unavailable_topics(submitted)
            or self._aborted_as_stale(submitted)
        )

    def _aborted_by_known_rejections(self, submitted: InFlightTransaction) -> Aborted | None:
        if not self._rejection_finder.needs_check(submitted.outgoing):
            return None
        if not submitted.earlier_committed():
            return _EARLIER_ABORTED
        self._probing_slot = submitted.slot
        refused = self._rejection_finder.known(submitted.outgoing)
        return Aborted(refused) if refused else None

    def _aborted_by_unavailable_topics(self, submitted: InFlightTransaction) -> Aborted | None:
        suspects = self._suspects_in(submitted)
        if not suspects:
            return None
        if not submitted.earlier_committed():
            return _EARLIER_ABORTED
        unavailable = self._topic_probe.unavailable(suspects, include_unanswered=True)
        self._suspects -= suspects - unavailable
        if not unavailable:
            return None
        may_be_targets = self._failures_in_a_row < _OWN_TOPIC_FAILURES
        self._wait(str(SendFailure(unavailable=unavailable)), quietly=may_be_targets)
        return Aborted({}, unavailable=unavailable)

    def _aborted_as_stale(self, submitted: InFlightTransaction) -> Aborted | None:
        if is_member(submitted.batch.group_metadata):
            return None
        if submitted.earlier_committed():
            self._wait("we are no member of the group", quietly=True)
        return Aborted({}, "stale-member")

    def _suspects_in(self, submitted: InFlightTransaction) -> set[str]:
        return self._suspects & {record.topic for record in submitted.outgoing} if self._suspects else set()

    def _batch(self, transaction: Transaction) -> tuple[Selection, TransactionContents]:
        outgoing: Sequence[Outgoing] = transaction.outgoing
        indices: Sequence[int] = range(len(outgoing))
        if transaction.acknowledged:
            indices = [index for index in indices if index not in transaction.acknowledged]
            outgoing = [outgoing[index] for index in indices]
        records, places = outgoing, indices
        if self._early_sender is not None:
            places = self._early_sender.remaining(outgoing)
            records = [outgoing[index] for index in places]
        if transaction.journal:
            records = [*records, *self._journal_records(transaction)]
        batch = TransactionContents(
            records, transaction.progress, transaction.group_metadata, self._rejection_finder.max_batch_bytes
        )
        return Selection(outgoing, indices, places), batch

    def _journal_records(self, transaction: Transaction) -> list[Outgoing]:
        return [
            Outgoing(self._journal_topics[shard.topic], shard.partition, key, value, [], 0)
            for shard, value in transaction.journal.items()
            for key in [writer_key(self._group, shard.topic)]
        ]

    # -- after a failure

    def _aborted(self, submitted: InFlightTransaction, failed: SendFailure) -> Aborted:
        if failed.unavailable:
            # A longer timeout would not help, and would hold up all other records.
            submitted.slot.producer.timed_out_while_sending = False
            if len(self._suspects) < _MAX_SUSPECTS:
                self._suspects |= failed.unavailable
        return Aborted(self._refused_by(submitted, failed), unavailable=failed.unavailable)

    def _refused_by(self, submitted: InFlightTransaction, failed: SendFailure) -> dict[int, str]:
        """Return the records that can never be accepted. No other transaction is in flight: the next one waits."""
        self._probing_slot = submitted.slot
        outgoing = submitted.outgoing
        journal_codes = {code for index, code in failed.named.items() if index >= len(outgoing)}
        named = {index: code for index, code in failed.named.items() if index < len(outgoing)}
        refused = self._rejection_finder.find(outgoing, SendFailure(named, failed.cause))
        if not refused:
            if failed.codes & OF_DENIAL:
                journal_codes |= self._journal_denials(submitted)
            self._require_writable_journal(journal_codes)
            self._wait_before_retry(failed, {outgoing[index].topic for index in named})
        return refused

    def _journal_denials(self, submitted: InFlightTransaction) -> set[int]:
        """Return the codes with which the journal denies its records: a denial does not name its topic."""
        journal = submitted.batch.records[len(submitted.selection.places) :]
        failed = self._probe(journal) if journal else None
        return set() if failed is None else failed.codes & OF_DENIAL

    def _require_writable_journal(self, codes: set[int]) -> None:
        """Raise BridgeError if only the operator can fix the journal topic."""
        lasting = codes & {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE}
        if lasting:
            journals = ", ".join(sorted(set(self._journal_topics.values())))
            why = KafkaError(lasting.pop()).str()
            raise BridgeError(f"{journals} does not take the journal ({why}): mend the topic")

    def _wait_before_retry(self, failed: SendFailure, topics: Collection[str] = ()) -> None:
        """Log and wait. Raises BridgeError if only the operator can fix the fault. topics: of the failed records."""
        if failed.is_followup_error:
            return
        if failed.cause is not None and is_denied(failed.cause) and failed.cause.code() not in OF_DENIAL:
            raise explained("publishing", failed.cause)
        of = f", of {', '.join(sorted(topics)[:_MAX_TOPICS_IN_LOG])}" if topics and failed.cause is None else ""
        self._wait(f"{failed}{of}", quietly=_is_stale(failed))

    def _wait(self, why: str, *, quietly: bool) -> None:
        """Log an abort and wait, longer after each failure in a row; not at all after the first one."""
        self._failures_in_a_row += 1
        log.info("transaction aborted: %s", why)
        if self._failures_in_a_row > 1:
            self._retrier.wait("publishing", why, self._failures_in_a_row - 2, quietly=quietly)

    # -- for the rejection finder

    def _probe(self, records: Sequence[Outgoing]) -> SendFailure | None:
        self._probing_slot.replace_if_broken()
        return self._probing_slot.producer.probe(records)

    def _partitions_of(self, topic: str) -> "int | KafkaError":
        """Return the number of partitions, or the broker's error.

        Asks all producers, because each one remembers an unknown topic; but only if the topic exists.
        """
        found = self._topic_probe.partitions_of(topic)
        if isinstance(found, KafkaError):
            return found
        self._probing_slot.replace_if_broken()
        answers = [slot.producer.partitions_of(topic) for slot in self._slots]
        if self._early_sender is not None:
            self._early_sender.refresh_metadata(topic)
        return answers[self._probing_slot.number]


def _is_stale(failed: SendFailure) -> bool:
    return failed.cause is not None and failed.cause.code() in _STALE


def _with_caller_indices(submitted: InFlightTransaction, outcome: Aborted) -> Aborted:
    """Return the outcome with the caller's indices and the deliveries that were acknowledged."""
    indices, acknowledged = submitted.selection.indices, set(submitted.acknowledged)
    refused = {indices[index]: code for index, code in outcome.refused.items() if index not in acknowledged}
    return replace(outcome, refused=refused, acknowledged=frozenset(indices[index] for index in acknowledged))
