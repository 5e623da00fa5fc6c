"""Sink over two transactional producers that take turns. What each transaction comes to:

    stands                          -> Committed
    some can never be taken         -> Aborted({index: code})
    a topic takes no records now    -> Aborted({}, unavailable={topic}); another transactional.id if Kafka holds ours
    stale fence, passing fault      -> Aborted({}), after a short wait where it comes again and again
    the earlier one is aborted      -> Aborted({})
    producer fatally ill            -> a new one with the same id (which ends what the old one had open), Aborted({})
    fenced by another process       -> FencedError
    fate of a commit unknown        -> OutcomeUnknownError: everything is rebuilt from what Kafka holds

Two stages, each for one transaction at a time and in the order of `begin`:

    T1  fill | settle |                  fill: records sent and acknowledged, so targets keep the order of transactions
    T2       | fill   | settle |         settle: offsets and commit, once the earlier one stands
    T3                | fill   |         who failed is searched in a fill, and only when no other is on its way

With `ahead` (at-least-once) a fill begins with the deliveries, which then stand whatever becomes of the transaction.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Event
from typing import NamedTuple

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import explained, is_denied
from bridge.kafka.group_metadata import is_member
from bridge.kafka.retry import CALL_S, Patience, log
from bridge.kafka.transactions.early_delivery import Ahead
from bridge.kafka.transactions.producer import (
    Failed,
    IdHeldError,
    TimeoutRefusedError,
    TransactionalProducer,
    TransactionContents,
    Unavailable,
    none_unavailable,
)
from bridge.kafka.transactions.rejection_finder import OF_DENIAL, Culprits
from bridge.kafka.transactions.topic_probe import Existence
from bridge.kafka.worker_thread import Worker
from bridge.ports import MOST_PUBLISHING, Aborted, Committed, Outgoing, Transaction
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
_BEHIND_ANOTHER = Aborted({}, "earlier")
_END_S = CALL_S + 1.0
_MOST_FORGIVEN = 3
"""In a row: two processes with one id, both in trouble, would put each other out for ever."""
_MOST_NAMED = 3
_MOST_IDS = 16
"""Of a lane, in turn. By the time the last one is held, the first is mostly free."""
_MOST_SUSPECTS = 10_000
_OWN_TOPIC_FROM = 4
"""Aborts in a row for topics that take no records, each time fewer if they are targets."""


class _Sent(NamedTuple):
    """Of a transaction: what is still to be sent, and the indices that these have for the caller.

    `places`: of the first records of the batch in `outgoing`; behind them comes the journal.
    """

    outgoing: Sequence[Outgoing]
    indices: Sequence[int]
    places: Sequence[int]


class InFlightTransaction:
    """A transaction from `begin` to its fate."""

    def __init__(
        self, sent: "_Sent", batch: TransactionContents, lane: "ProducerSlot", earlier: "InFlightTransaction | None"
    ) -> None:
        self.outgoing = sent.outgoing
        self.sent = sent
        self.batch = batch
        self.lane = lane
        self.is_loaded = False
        self.standing: list[int] = []
        """Deliveries that were sent ahead, by index of `outgoing`."""
        self._is_told = False
        self._began_s = time.monotonic()
        self._earlier = earlier
        self._is_past_filling = Event()
        self._fate: Future[Committed | Aborted] = Future()

    def is_done(self) -> bool:
        return self._fate.done()

    def wait(self) -> Committed | Aborted:
        self._is_told = True
        return self._fate.result()

    # -- for the sink

    def may_be_followed(self) -> bool:
        """Where it is done: it stands, or its caller knows that it does not. Raises what it ended with."""
        return isinstance(self._fate.result(), Committed) or self._is_told

    def may_fill(self) -> bool:
        """The earlier one is filled, and its fate is open."""
        earlier = self._earlier
        return earlier is None or (earlier._is_past_filling.is_set() and not earlier.is_done())  # noqa: SLF001

    def await_turn(self) -> bool:
        """Waits until the earlier one is filled; False where that will not stand."""
        if self._earlier is not None:
            self._earlier._is_past_filling.wait()  # noqa: SLF001
        return self.may_fill() or self.is_next()

    def is_next(self) -> bool:
        """Waits until the earlier one stands; False where it never will. Raises what that one ended with."""
        return self._earlier is None or isinstance(self._earlier._fate.result(), Committed)  # noqa: SLF001

    def note_filled(self) -> None:
        self._is_past_filling.set()

    def end(self, outcome: Committed | Aborted) -> None:
        self._fate.set_result(replace(outcome, took_s=self._took_s()) if isinstance(outcome, Committed) else outcome)
        self._over()

    def fail(self, wrong: Exception) -> None:
        self._fate.set_exception(wrong)
        self._over()

    def _took_s(self) -> float:
        return time.monotonic() - self._began_s

    def _over(self) -> None:
        self._earlier = None
        self._is_past_filling.set()


class ProducerSlot:
    """A producer, which is replaced when it is ill, and the thread that waits for it.

    `unavailable`: asks the cluster which of some topics take no records.
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        patience: Patience,
        unavailable: Unavailable = none_unavailable,
    ) -> None:
        self.number = number
        self._connection = connection
        self._config = clients.producer(connection, number)
        self._generation = 0
        self._patience = patience
        self._unavailable = unavailable
        self._longest_ms = clients.LONGEST_TRANSACTION_MS
        self._forgiven = 0
        """Fences in a row that might be of our own making."""
        self.producer = self._started(forgives=True, is_successor=False)
        self.worker = Worker(f"publishes {number}")

    def replace_if_broken(self) -> None:
        usual = self._config
        if self.producer.timed_out_while_sending and usual["transaction.timeout.ms"] < self._longest_ms:
            self._config = clients.patient(usual)
            self.producer.is_broken = True
            log.warning(
                "a transaction could not be written in time, perhaps for a quota: they may take %d s from now on",
                self._config["transaction.timeout.ms"] // 1000,
            )
        if self.producer.is_broken:
            self.producer.close()
            self._forgiven = 0 if self.producer.is_proven else self._forgiven + self.producer.self_fence_suspected
            try:
                self.producer = self._successor()
            except TimeoutRefusedError as refused:
                if self._config is usual:
                    raise
                log.warning("%s: brokers do not allow that, so it stays as it was", refused)
                self._config, self._longest_ms = usual, usual["transaction.timeout.ms"]
                self.producer = self._successor()

    def _successor(self) -> TransactionalProducer:
        return self._started(forgives=self._forgiven < _MOST_FORGIVEN, is_successor=True)

    def _started(self, *, forgives: bool, is_successor: bool) -> TransactionalProducer:
        """Return a producer of this lane's id, or of the next one that Kafka does not hold."""
        tries = 0
        while True:
            told = (self._config, self._patience, self._unavailable)
            try:
                return TransactionalProducer(*told, forgives=forgives, is_successor=is_successor)
            except IdHeldError as held:
                tries += 1
                if tries >= _MOST_IDS:
                    self._patience.wait("starting the producer", f"{held}, as with {_MOST_IDS} other ids", tries)
                self._generation = (self._generation + 1) % _MOST_IDS
                own = clients.transactional_id(self._connection, self.number, self._generation)
                log.warning("%s: a topic takes no end of its last transaction; going on as %s", held, own)
                self._config = {**self._config, "transactional.id": own}

    def close(self) -> None:
        self.worker.close(_END_S)
        self.producer.close()


class ConfluentSink:
    """`journal_topics`: timer topic -> its journal topic. One with the same instance in another process fences us.

    `own_topics`: given for at-least-once; records to all others are deliveries, which go ahead of their transaction.
    """

    def __init__(
        self,
        connection: Connection,
        journal_topics: Mapping[str, str],
        patience: Patience,
        own_topics: frozenset[str] | None = None,
    ) -> None:
        self._group = connection.group
        self._journal_topics = journal_topics
        self._patience = Patience(patience)
        self._existence = Existence(connection, self._patience)
        unavailable = self._existence.unavailable
        self._ahead = None if own_topics is None else Ahead(connection, own_topics, self._patience, unavailable)
        self._lanes = [
            ProducerSlot(connection, number, self._patience, unavailable) for number in range(MOST_PUBLISHING)
        ]
        self._suspects: set[str] = set()
        """Topics that took no records when they were last tried: the cluster is asked before they are tried again."""
        self._last: InFlightTransaction | None = None
        self._committed = 0
        self._asking = self._lanes[0]
        self._culprits = Culprits(self._probe, self._partitions_of, compresses=clients.compresses(connection))
        self._fruitless = 0

    def begin(self, transaction: Transaction) -> InFlightTransaction:
        earlier = self._last
        if earlier is not None and earlier.is_done() and earlier.may_be_followed():
            earlier = None
        # By turns, as a producer has to wait after each commit; but it is the same again after an abort.
        lane = self._lanes[(self._committed if earlier is None else earlier.lane.number + 1) % len(self._lanes)]
        sent, batch = self._batch(transaction)
        self._last = way = InFlightTransaction(sent, batch, lane, earlier)
        # Here, as a worker would have to wait for the interpreter again and again while the caller goes on.
        is_sure = not self._culprits.needs_check(way.outgoing) and not self._suspects_in(way)
        if way.may_fill() and is_member(way.batch.fence) and is_sure:
            if self._ahead is not None:
                self._ahead.load(way.outgoing)
            lane.producer.load(way.batch)
            way.is_loaded = True
        lane.worker.do(lambda: self._carry(way))
        return way

    def close(self) -> None:
        self._patience.give_up_in(0)
        for lane in self._lanes:
            lane.close()
        if self._ahead is not None:
            self._ahead.close()

    # -- what a worker does

    def _carry(self, way: InFlightTransaction) -> None:
        try:
            outcome = self._outcome(way)
            if self._ahead is not None and isinstance(outcome, Aborted):
                outcome = _for_caller(way, outcome)
            way.lane.replace_if_broken()  # at once: what an ill producer left open hides what stands behind it
        except Exception as wrong:  # noqa: BLE001  (handed over, not swallowed)
            way.fail(wrong)
        else:
            self._committed += isinstance(outcome, Committed)
            way.end(outcome)

    def _outcome(self, way: InFlightTransaction) -> Committed | Aborted:
        producer = way.lane.producer
        aborted = None if way.is_loaded else self._aborted_before(way)
        if aborted is not None:
            return aborted
        failed = self._sent_ahead(way) or self._filled(way)
        if failed is not None:
            return self._judged(way, failed) if way.is_next() else _BEHIND_ANOTHER
        way.note_filled()
        if not way.is_next():
            producer.give_up()
            return _BEHIND_ANOTHER
        failed = producer.settle(way.batch)
        if failed is not None:
            self._note_fruitless(failed)
            return Aborted({}, "stale-member" if _is_stale(failed) else "fault")
        self._fruitless = 0
        return Committed()

    def _sent_ahead(self, way: InFlightTransaction) -> Failed | None:
        """None: the deliveries stand, or they go with the rest."""
        if self._ahead is None:
            return None
        way.standing, failed = self._ahead.fill(way.outgoing, way.batch.narrow)
        if failed is not None and way.is_loaded:
            way.lane.producer.give_up()
        return failed

    def _filled(self, way: InFlightTransaction) -> Failed | None:
        """`named` is by index of `outgoing`; what lies beyond is of the journal."""
        failed, most = way.lane.producer.fill(way.batch), len(way.outgoing)
        if failed is not None and self._ahead is not None:
            places = [*way.sent.places, *range(most, most + len(way.batch.records))]
            failed.named = {places[index]: code for index, code in failed.named.items()}
        return failed

    def _aborted_before(self, way: InFlightTransaction) -> Aborted | None:
        """Waits for its turn. None: it may be sent."""
        if not way.await_turn():
            return _BEHIND_ANOTHER
        if self._culprits.needs_check(way.outgoing):
            if not way.is_next():
                return _BEHIND_ANOTHER
            self._asking = way.lane
            refused = self._culprits.known(way.outgoing)
            if refused:
                return Aborted(refused)
        if suspects := self._suspects_in(way):
            if not way.is_next():
                return _BEHIND_ANOTHER
            unavailable = self._existence.unavailable(suspects, unless_told=True)
            self._suspects -= suspects - unavailable
            if unavailable:
                # Timers of a target are left out of the repetition; what still waits needs a topic of the bridge's own.
                is_of_targets = self._fruitless < _OWN_TOPIC_FROM
                self._wait(str(Failed(unavailable=unavailable)), quietly=is_of_targets)
                return Aborted({}, unavailable=unavailable)
        if not is_member(way.batch.fence):
            if way.is_next():
                self._wait("we are no member of the group", quietly=True)
            return Aborted({}, "stale-member")
        return None

    def _batch(self, transaction: Transaction) -> tuple[_Sent, TransactionContents]:
        outgoing: Sequence[Outgoing] = transaction.outgoing
        indices: Sequence[int] = range(len(outgoing))
        if transaction.standing:
            indices = [index for index in indices if index not in transaction.standing]
            outgoing = [outgoing[index] for index in indices]
        records, places = outgoing, indices
        if self._ahead is not None:
            places = self._ahead.left(outgoing)
            records = [outgoing[index] for index in places]
        if transaction.journal:
            records = [*records, *self._journal_records(transaction)]
        batch = TransactionContents(records, transaction.progress, transaction.fence, self._culprits.narrow)
        return _Sent(outgoing, indices, places), batch

    def _journal_records(self, transaction: Transaction) -> list[Outgoing]:
        return [
            Outgoing(self._journal_topics[shard.topic], shard.partition, key, value, [], 0)
            for shard, value in transaction.journal.items()
            for key in [writer_key(self._group, shard.topic)]
        ]

    def _suspects_in(self, way: InFlightTransaction) -> set[str]:
        return self._suspects & {record.topic for record in way.outgoing} if self._suspects else set()

    # -- what follows from a failure

    def _judged(self, way: InFlightTransaction, failed: Failed) -> Aborted:
        if failed.unavailable:
            way.lane.producer.timed_out_while_sending = (
                False  # more time would not help, and all others would wait for longer
            )
            if len(self._suspects) < _MOST_SUSPECTS:
                self._suspects |= failed.unavailable
        return Aborted(self._refused_by(way, failed), unavailable=failed.unavailable)

    def _refused_by(self, way: InFlightTransaction, failed: Failed) -> dict[int, str]:
        """Nothing else is on its way: the one behind waits until this is over."""
        self._asking = way.lane
        outgoing = way.outgoing
        of_journal = {code for index, code in failed.named.items() if index >= len(outgoing)}
        named = {index: code for index, code in failed.named.items() if index < len(outgoing)}
        refused = self._culprits.find(outgoing, Failed(named, failed.cause))
        if not refused:
            if failed.codes & OF_DENIAL:
                of_journal |= self._denied_journal(way)
            self._demand_journal(of_journal)
            self._note_fruitless(failed, {outgoing[index].topic for index in named})
        return refused

    def _denied_journal(self, way: InFlightTransaction) -> set[int]:
        """Who is denied is not named; of a target it passes, or is proved when it comes again."""
        journal = way.batch.records[len(way.sent.places) :]
        failed = self._probe(journal) if journal else None
        return set() if failed is None else failed.codes & OF_DENIAL

    def _demand_journal(self, codes: set[int]) -> None:
        """Raises BridgeError for what only the operator can mend."""
        lasting = codes & {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE}
        if lasting:
            journals = ", ".join(sorted(set(self._journal_topics.values())))
            why = KafkaError(lasting.pop()).str()
            raise BridgeError(f"{journals} does not take the journal ({why}): mend the topic")

    def _note_fruitless(self, failed: Failed, topics: Collection[str] = ()) -> None:
        """`topics`: of records that failed. Raises BridgeError for what only the operator can mend."""
        if failed.is_followup_error:
            return
        if failed.cause is not None and is_denied(failed.cause) and failed.cause.code() not in OF_DENIAL:
            raise explained("publishing", failed.cause)
        of = f", of {', '.join(sorted(topics)[:_MOST_NAMED])}" if topics and failed.cause is None else ""
        self._wait(f"{failed}{of}", quietly=_is_stale(failed))

    def _wait(self, why: str, *, quietly: bool) -> None:
        """The first time at once again: it may be over."""
        self._fruitless += 1
        log.info("transaction aborted: %s", why)
        if self._fruitless > 1:
            self._patience.wait("publishing", why, self._fruitless - 2, quietly=quietly)

    # -- how culprits are asked

    def _probe(self, records: Sequence[Outgoing]) -> Failed | None:
        self._asking.replace_if_broken()
        return self._asking.producer.probe(records)

    def _partitions_of(self, topic: str) -> "int | KafkaError":
        """By all producers, as each remembers by itself that a topic was unknown; but first whether it is there."""
        there = self._existence.partitions_of(topic)
        if isinstance(there, KafkaError):
            return there
        self._asking.replace_if_broken()
        answers = [lane.producer.partitions_of(topic) for lane in self._lanes]
        if self._ahead is not None:
            self._ahead.look_at(topic)
        return answers[self._asking.number]


def _is_stale(failed: Failed) -> bool:
    return failed.cause is not None and failed.cause.code() in _STALE


def _for_caller(way: InFlightTransaction, fate: Aborted) -> Aborted:
    """By its indices, and with what stands."""
    indices, standing = way.sent.indices, set(way.standing)
    refused = {indices[index]: code for index, code in fate.refused.items() if index not in standing}
    return replace(fate, refused=refused, standing=frozenset(indices[index] for index in way.standing))
