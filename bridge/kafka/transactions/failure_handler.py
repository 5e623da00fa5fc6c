"""Decide what becomes of a transaction that fails: refused records, topics that wait, time before a retry."""

from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.errors import explained, is_denied
from bridge.kafka.retry import Retrier, log
from bridge.kafka.transactions.contents import SendFailure
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.kafka.transactions.rejection_finder import TOPIC_DENIED, RejectionFinder
from bridge.kafka.transactions.submitted import InFlightTransaction
from bridge.kafka.transactions.topic_probe import TopicProbe
from bridge.ports import Aborted, Outgoing

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
_MAX_TOPICS_IN_LOG = 3
_MAX_SUSPECTS = 10_000
_OWN_TOPIC_FAILURES = 4
"""Aborts in a row for unavailable topics after which the reason must be one of the bridge's own topics.

Each retry leaves out the timers of unavailable targets.
"""


class FailureHandler:
    """Checks transactions before they are sent, and finds out why they failed. One call at a time.

    journal_topics: journal topic by timer topic.
    """

    def __init__(
        self,
        connection: Connection,
        journal_topics: Mapping[str, str],
        retrier: Retrier,
        topic_probe: TopicProbe,
        slots: Sequence[ProducerSlot],
    ) -> None:
        self._journal_topics = journal_topics
        self._retrier = retrier
        self._topic_probe = topic_probe
        self._slots = slots
        self._suspects: set[str] = set()
        """Topics that accepted no records at the last try. The cluster is asked before the next one."""
        self._probing_slot = slots[0]
        self._rejection_finder = RejectionFinder(
            self._probe, self._partitions_of, compresses=clients.compresses(connection)
        )
        self.max_batch_bytes = self._rejection_finder.max_batch_bytes
        self._failures_in_a_row = 0

    # -- before a transaction is sent

    def needs_check(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return True if `check` has to be called, or records have to be sent in small batches."""
        return self._rejection_finder.needs_check(outgoing) or bool(self._suspects_in(outgoing))

    def check(self, submitted: InFlightTransaction) -> Aborted | None:
        """Return None if the transaction may be sent. Call it when the earlier transaction is committed."""
        self._probing_slot = submitted.slot
        if refused := self._rejection_finder.known(submitted.outgoing):
            return Aborted(refused)
        if not (suspects := self._suspects_in(submitted.outgoing)):
            return None
        unavailable = self._topic_probe.unavailable(suspects, include_unanswered=True)
        self._suspects -= suspects - unavailable
        if not unavailable:
            return None
        may_be_targets = self._failures_in_a_row < _OWN_TOPIC_FAILURES
        self._wait(str(SendFailure(unavailable=unavailable)), quietly=may_be_targets)
        return Aborted({}, unavailable=unavailable)

    def wait_as_no_member(self) -> None:
        self._wait("we are no member of the group", quietly=True)

    def _suspects_in(self, outgoing: Sequence[Outgoing]) -> set[str]:
        return self._suspects & {record.topic for record in outgoing} if self._suspects else set()

    # -- after it was sent

    def note_committed(self) -> None:
        self._failures_in_a_row = 0

    def sending_failed(self, submitted: InFlightTransaction, failed: SendFailure) -> Aborted:
        """Wait before a retry, unless records are refused. Call it when the earlier transaction is committed.

        Raises BridgeError if only the operator can fix the fault.
        """
        if failed.unavailable:
            # A longer timeout would not help, and would hold up all other records.
            submitted.slot.producer.timed_out_while_sending = False
            if len(self._suspects) < _MAX_SUSPECTS:
                self._suspects |= failed.unavailable
        return Aborted(self._refused_by(submitted, failed), unavailable=failed.unavailable)

    def commit_failed(self, failed: SendFailure) -> Aborted:
        """Wait before a retry. Raises BridgeError if only the operator can fix the fault."""
        self._wait_before_retry(failed)
        return Aborted({}, "stale-member" if _is_stale(failed) else "fault")

    def _refused_by(self, submitted: InFlightTransaction, failed: SendFailure) -> dict[Outgoing, str]:
        """Return the records that can never be accepted. No other transaction is in flight: the next one waits."""
        self._probing_slot = submitted.slot
        journal = frozenset(submitted.journal)
        journal_codes = {code for record, code in failed.named.items() if record in journal}
        named = {record: code for record, code in failed.named.items() if record not in journal}
        refused = self._rejection_finder.find(submitted.outgoing, SendFailure(named, failed.cause))
        if not refused:
            if failed.codes & TOPIC_DENIED:
                journal_codes |= self._journal_denials(submitted)
            self._require_writable_journal(journal_codes)
            self._wait_before_retry(failed, {record.topic for record in named})
        return refused

    def _journal_denials(self, submitted: InFlightTransaction) -> set[int]:
        """Return the codes with which the journal denies its records: a denial does not name its topic."""
        failed = self._probe(submitted.journal) if submitted.journal else None
        return set() if failed is None else failed.codes & TOPIC_DENIED

    def _require_writable_journal(self, codes: set[int]) -> None:
        """Raise BridgeError if only the operator can fix the journal topic."""
        lasting = codes & {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE}
        if lasting:
            journals = ", ".join(sorted(set(self._journal_topics.values())))
            why = KafkaError(lasting.pop()).str()
            raise BridgeError(f"{journals} does not accept journal records ({why}): fix the topic")

    def _wait_before_retry(self, failed: SendFailure, topics: Collection[str] = ()) -> None:
        """Log and wait. Raises BridgeError if only the operator can fix the fault. topics: of the failed records."""
        if failed.is_followup_error:
            return
        if failed.cause is not None and is_denied(failed.cause) and failed.cause.code() not in TOPIC_DENIED:
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

    def _partitions_of(self, topic: str) -> int | KafkaError:
        """Return the number of partitions, or the broker's error.

        Asks all producers, because each one remembers an unknown topic; but only if the topic exists.
        """
        found = self._topic_probe.partitions_of(topic)
        if isinstance(found, KafkaError):
            return found
        self._probing_slot.replace_if_broken()
        answers = [slot.producer.partitions_of(topic) for slot in self._slots]
        return answers[self._probing_slot.number]


def _is_stale(failed: SendFailure) -> bool:
    return failed.cause is not None and failed.cause.code() in _STALE
