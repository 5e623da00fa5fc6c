"""Redrive over Kafka: send records of the rejected topic again, each with its marker in one transaction.

    begin   start the producer `<group>-redrive-0`, which fences an earlier one and ends its transaction
    look    read the markers, then the rejected topic up to its end as of now
    apply   send requests and their markers, transaction by transaction

Whenever this ends, a record was sent with its marker, or neither is committed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.config.settings import Settings
from bridge.errors import BridgeError, FencedError, OutcomeUnknownError
from bridge.kafka import client_config as clients
from bridge.kafka.errors import explained, is_denied
from bridge.kafka.history import ConfluentHistory
from bridge.kafka.retry import Retrier
from bridge.kafka.topics import ConfluentTopics
from bridge.kafka.transactions.producer import TransactionalProducer
from bridge.kafka.transactions.record_sender import SendFailure, TransactionContents
from bridge.kafka.transactions.rejection_finder import RejectionFinder, TopicProbe
from bridge.ports import Outgoing, Record
from bridge.redrive import rules
from bridge.redrive.marks import MarkIndex
from bridge.redrive.rules import KeyAndHeaders, Parked, RedriveFilter, RedrivePlan
from kafka_timer.origin import TimerPartition
from schemas import resent
from schemas.chunks import chunks

_MOST_RECORDS = 500
_MOST_BYTES = 8 << 20
_RUN_AGAIN = "run it again: what was sent is marked and not sent twice"
_FENCED = "another `timer-bridge redrive --apply` has begun meanwhile and goes on where this one ended"


@dataclass(slots=True)
class RedriveResult:
    """Result of `apply`. refused: records that the timer topic does not accept, with the code."""

    count: int = 0
    refused: list[tuple[Parked, str]] = field(default_factory=list)
    gone: int = 0
    """Records that retention deleted from the rejected topic meanwhile."""


class TopicHistory(ConfluentHistory):
    """A TopicReader of any topics."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        super().__init__(connection, {}, retrier)
        self.topics = ConfluentTopics(connection, retrier)
        self.partitions = self.topics.partitions


class ConfluentRedrive:
    """One `look` and optionally one `apply`. Waits for a broker up to `startup_timeout`, to send without limit.

    ending: ends waits. Raises BridgeError.
    """

    def __init__(self, settings: Settings, ending: Retrier | None = None) -> None:
        self._settings = settings
        self._connection = settings.connection("redrive")
        self._marks, self._rules = settings.redrive_marks, settings.rules()
        self._retrier = Retrier(ending)
        self._retrier.give_up_in(settings.startup_timeout / 1000)
        self._history = TopicHistory(self._connection, self._retrier)
        self._topics = self._history.topics
        self._producer: TransactionalProducer | None = None
        probe = TopicProbe(self._connection, self._retrier)
        self._rejection_finder = RejectionFinder(probe, compresses=clients.compresses(self._connection))

    def begin(self) -> None:
        """Start the producer. Call it before `look` if `apply` is to follow."""
        topic = self._marks.topic
        if self._topics.partitions(topic) is None:
            self._topics.create(topic, resent.PARTITIONS, self._settings.replication_factor, resent.CONFIG)
        if (fault := resent.policy_fault(topic, self._topics.config(topic)["cleanup.policy"])) is not None:
            raise BridgeError(fault)
        self._producer = TransactionalProducer(clients.producer(self._connection, 0), self._retrier)

    def look(self, selection: RedriveFilter) -> RedrivePlan:
        """Return what `apply` would send, up to the last stable offset as of now."""
        topic = self._settings.rejected_topic
        count = self._topics.partitions(topic)
        if count is None:
            raise BridgeError(
                f"{topic} does not exist: name the bridge's with --rejected-topic; `timer-bridge run` makes it"
            )
        found = self._plan(selection)
        for place in (TimerPartition(topic, number) for number in range(count)):
            first, end = self._history.bounds(place)
            if selection.from_ms is not None:
                first = max(first, self._history.offset_at(place, selection.from_ms))
            if selection.places is not None:
                chosen = [at for partition, at in selection.places if partition == place and first <= at < end]
                first, end = min(chosen, default=end), max(chosen, default=end - 1) + 1
            for records in self._history.requests(place, first, end):
                for record in records:
                    found.add(rules.parked(place, record, self._rules))
        self._require_partitions(found.selected)
        return found

    def apply(
        self, records: Sequence[Parked], on_sent: Callable[[Sequence[Parked]], None] = lambda _: None
    ) -> RedriveResult:
        """Send the records in this order; wait for a broker as long as it takes.

        on_sent: called with records after their transaction has committed. Raises FencedError if another redrive began.
        """
        self._retrier.go_on()
        sent = RedriveResult()
        for chunk in chunks(records, lambda each: each.size, most=_MOST_RECORDS, most_bytes=_MOST_BYTES):
            requests = self._requests(chunk)
            sent.gone += len(chunk) - len(requests)
            self._send(requests, sent, on_sent)
        return sent

    def close(self) -> None:
        self._history.close()
        if self._producer is not None:
            self._producer.close()

    # -- looking

    def _plan(self, selection: RedriveFilter) -> RedrivePlan:
        return RedrivePlan(selection, MarkIndex(self._marks).update(self._history))

    def _require_partitions(self, records: Sequence[Parked]) -> None:
        for topic in sorted({record.partition.topic for record in records}):
            count = self._topics.partitions(topic)
            highest = max(record.partition.partition for record in records if record.partition.topic == topic)
            if count is None:
                raise BridgeError(f"{topic}: the timer topic does not exist: start `timer-bridge run`, which makes it")
            if highest >= count:
                raise BridgeError(
                    f"{topic}: the timer topic has {count} partitions, but requests came from partition {highest}:"
                    f" give it {highest + 1}, or leave those out with --origin"
                )

    def _requests(self, chunk: Sequence[Parked]) -> dict[Parked, Outgoing]:
        """Return the requests of the records that are still on the rejected topic, in order."""
        wanted: defaultdict[TimerPartition, dict[int, Parked]] = defaultdict(dict)
        for each in chunk:
            wanted[each.place][each.offset] = each
        requests: dict[Parked, Outgoing] = {}
        for place, at in wanted.items():
            for records in self._history.requests(place, min(at), max(at) + 1):
                for record in records:
                    found = at.get(record.offset)
                    if found is not None and (request := self._request(found, record)) is not None:
                        key, headers = request
                        requests[found] = Outgoing(*found.partition, key, record.value, headers, 0)
        return {each: requests[each] for each in chunk if each in requests}

    def _request(self, found: Parked, record: Record) -> KeyAndHeaders | None:
        """Return what to send; None if `record` is another one by now."""
        return rules.request_of(record, found.code) if rules.parked(found.place, record, self._rules) == found else None

    # -- sending

    def _send(
        self, requests: dict[Parked, Outgoing], sent: RedriveResult, on_sent: Callable[[Sequence[Parked]], None]
    ) -> None:
        tries = 0
        while requests:
            failed = self._publish(requests)
            if failed is None:
                sent.count += len(requests)
                on_sent([*requests])
                return
            # Markers are never too large for their topic.
            named = {record: code for record, code in failed.named.items() if record.topic != self._marks.topic}
            refused = self._rejection_finder.find([*requests.values()], SendFailure(named, failed.cause))
            sent.refused += [(each, refused[request]) for each, request in requests.items() if request in refused]
            requests = {each: request for each, request in requests.items() if request not in refused}
            if not refused and not failed.is_followup_error:
                self._retrier.wait("sending again", str(failed), tries)
                tries += 1

    def _publish(self, requests: Mapping[Parked, Outgoing]) -> SendFailure | None:
        """Send the requests and their markers. Return None if committed.

        Raises BridgeError if only the operator can fix the failure, or if the producer broke: another redrive may have
        sent our records meanwhile.
        """
        assert self._producer is not None, "begin() first"
        marks, now_ms = self._marks, time.time_ns() // 1_000_000
        marked = [(marks.key(each.name), rules.marker_of(each)) for each in requests]
        markers = [Outgoing(marks.topic, 0, key, value, [], now_ms) for key, value in marked]
        records = [*requests.values(), *markers]
        batch = TransactionContents(records, {}, b"", self._rejection_finder.max_batch_bytes)
        try:
            failed = self._producer.await_acknowledgements(batch) or self._producer.commit(batch)
        except FencedError as wrong:
            raise FencedError(_FENCED) from wrong
        except OutcomeUnknownError as wrong:
            raise OutcomeUnknownError(f"{wrong}; {_RUN_AGAIN}") from wrong
        for error in () if failed is None else (*map(KafkaError, failed.named.values()), failed.cause):
            if error is not None and is_denied(error):
                raise explained("sending again", error)
        if self._producer.is_broken:
            raise BridgeError(f"sending again broke off; {_RUN_AGAIN}")
        return failed
