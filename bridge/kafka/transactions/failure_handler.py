"""Decide what becomes of a transaction that fails: refused records, topics that wait, time before a retry."""

import random
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.errors import explained, is_denied
from bridge.kafka.retry import Retrier, log
from bridge.kafka.transactions.contents import SendFailure
from bridge.kafka.transactions.rejection_finder import OF_METADATA, OF_RECORDS, TOPIC_DENIED, RejectionFinder
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
_OF_OPERATOR = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE})
_MAX_TOPICS_IN_LOG = 3
_MAX_SUSPECTS = 10_000
_OWN_TOPIC_TRIES = 4
"""Tries after which unavailable topics must be the bridge's own: each try leaves out unavailable targets."""


class FailureHandler:
    """Checks transactions before they are sent, and finds out why they failed. Thread-safe.

    journal_topics: journal topic by timer topic.
    """

    def __init__(
        self,
        connection: Connection,
        journal_topics: Mapping[str, str],
        retrier: Retrier,
    ) -> None:
        self._journal_topics = frozenset(journal_topics.values())
        self._retrier = retrier
        self._topic_probe = TopicProbe(connection, retrier)
        self._suspects: set[str] = set()
        """Topics that accepted no records at the last try. The cluster is asked before the next one."""
        self._rejection_finder = RejectionFinder(self._topic_probe, compresses=clients.compresses(connection))
        self.find_unavailable = self._rejection_finder.unavailable
        self.max_batch_bytes = self._rejection_finder.max_batch_bytes

    # -- before a transaction is sent

    def needs_check(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return True if `check` has to be called, or records have to be sent in small batches."""
        return self._rejection_finder.needs_check(outgoing) or bool(self._suspects_in(outgoing))

    def check(self, submitted: InFlightTransaction) -> Aborted | None:
        """Return None if the transaction may be sent."""
        if refused := self._rejection_finder.known(submitted.outgoing):
            return Aborted(refused)
        may_be_targets = submitted.tries < _OWN_TOPIC_TRIES
        if may_be_targets and (crowded := self._rejection_finder.crowded(submitted.outgoing)):
            why = f"too many batches for {', '.join(sorted(crowded)[:_MAX_TOPICS_IN_LOG])}"
            self._wait(why, submitted.tries, quietly=True)
            return Aborted({}, unavailable=crowded)
        if not (suspects := self._suspects_in(submitted.outgoing)):
            return None
        unavailable = self._topic_probe.unavailable(suspects, include_unanswered=True)
        self._suspects -= suspects - unavailable
        if not unavailable:
            return None
        self._wait(str(SendFailure(unavailable=unavailable)), submitted.tries, quietly=may_be_targets)
        return Aborted({}, unavailable=unavailable)

    def wait_as_no_member(self, tries: int) -> None:
        self._wait("we are no member of the group", tries, quietly=True)

    def _suspects_in(self, outgoing: Sequence[Outgoing]) -> set[str]:
        return self._suspects & {record.topic for record in outgoing} if self._suspects else set()

    # -- after it was sent

    def sending_failed(self, submitted: InFlightTransaction, failed: SendFailure) -> Aborted:
        """Wait before a retry, unless the failure's targets are known.

        Raises BridgeError if only the operator can fix the fault.
        """
        topics, unavailable = {record.topic for record in submitted.outgoing}, failed.unavailable
        if not unavailable and not failed.is_followup_error and failed.codes - OF_RECORDS:
            unavailable = self._rejection_finder.unavailable(topics, is_early=True)
        if unavailable and len(self._suspects) < _MAX_SUSPECTS:
            self._suspects |= unavailable
        if unavailable or OF_METADATA & failed.codes:
            submitted.slot.producer.retire()  # it remembers for long what a topic was
        if failed.is_slow and not unavailable:  # else a longer timeout would hold up all other records
            submitted.slot.use_longer_timeout()
        journal = {record: code for record, code in failed.named.items() if record.topic in self._journal_topics}
        named = {record: code for record, code in failed.named.items() if record not in journal}
        refused = self._rejection_finder.find(submitted.outgoing, SendFailure(named, failed.cause))
        if not refused:
            if failed.codes & TOPIC_DENIED:
                self._require_writable_journal(journal.values())
                unavailable = unavailable or _half(topics)
            self._wait_before_retry(failed, submitted.tries, {record.topic for record in named})
        return Aborted(refused, refusing=frozenset(record.topic for record in refused), unavailable=unavailable)

    def commit_failed(self, submitted: InFlightTransaction, failed: SendFailure) -> Aborted:
        """Wait before a retry. Raises BridgeError if only the operator can fix the fault."""
        if failed.is_slow:
            submitted.slot.use_longer_timeout()
        self._wait_before_retry(failed, submitted.tries)
        return Aborted({}, "stale-member" if _is_stale(failed) else "fault")

    def _require_writable_journal(self, codes: Collection[int]) -> None:
        """Raise BridgeError if only the operator can fix the journal topic."""
        found = self._topic_probe.describe(self._journal_topics).values()
        lasting = {*codes, *(each.code() for each in found if isinstance(each, KafkaError))} & _OF_OPERATOR
        if lasting:
            journals, why = ", ".join(sorted(self._journal_topics)), KafkaError(lasting.pop()).str()
            raise BridgeError(f"{journals} does not accept journal records ({why}): fix the topic")

    def _wait_before_retry(self, failed: SendFailure, tries: int, topics: Collection[str] = ()) -> None:
        """Log and wait. Raises BridgeError if only the operator can fix the fault. topics: of the failed records."""
        if failed.is_followup_error:
            return
        if failed.cause is not None and is_denied(failed.cause) and failed.cause.code() not in TOPIC_DENIED:
            raise explained("publishing", failed.cause)
        of = f", of {', '.join(sorted(topics)[:_MAX_TOPICS_IN_LOG])}" if topics and failed.cause is None else ""
        self._wait(f"{failed}{of}", tries, quietly=_is_stale(failed))

    def _wait(self, why: str, tries: int, *, quietly: bool) -> None:
        """Log an abort and wait, longer after each try; not at all after the first one."""
        log.info("transaction aborted: %s", why)
        if tries:
            self._retrier.wait("publishing", why, tries - 1, quietly=quietly)


def _half(topics: Collection[str]) -> frozenset[str]:
    """Return half of the topics, to find the denied one by tries if the broker does not report what our user may do."""
    return frozenset(random.sample(sorted(topics), (len(topics) + 1) // 2))


def _is_stale(failed: SendFailure) -> bool:
    return failed.cause is not None and failed.cause.code() in _STALE
