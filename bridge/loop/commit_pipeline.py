"""Commit up to two transactions in order; the second is filled while the first commits.

    submit --> in flight (at most 2) --reap--> committed: advance its partitions
                                     --reap--> aborted: it and every later one are retried, one by one, in order

A retry drops records that the broker will never accept (they go to the rejected topic) and partitions that this
instance no longer owns. Retries run before new transactions start, so progress is always committed in request order.
"""

import logging
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from bridge.errors import BridgeError
from bridge.observe.metrics import Metrics
from bridge.partition.draft import FrozenDraft
from bridge.partition.limits import CircuitBreakers
from bridge.partition.partition import Damaged, Partition
from bridge.ports import (
    MAX_IN_FLIGHT,
    Aborted,
    Clock,
    Committed,
    Membership,
    Outgoing,
    Sink,
    SubmittedTransaction,
    Transaction,
)
from kafka_timer.origin import TimerPartition
from schemas.progress import Progress
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

Part = tuple[Partition, FrozenDraft]


class _InFlight(NamedTuple):
    parts: list[Part]
    submitted: SubmittedTransaction


@dataclass(eq=False)
class CommitPipeline:
    """The commit pipeline of one loop. Not thread-safe."""

    _sink: Sink
    _clock: Clock
    _metrics: Metrics
    _breakers: CircuitBreakers
    _membership: Membership

    def __post_init__(self) -> None:
        self._in_flight: deque[_InFlight] = deque()
        self._aborted: deque[list[Part]] = deque()
        self.waited_ms = 0
        """Time of waits until now for transactions that were not aborted before."""

    @property
    def is_idle(self) -> bool:
        """True if no transaction is in flight or has to be retried."""
        return not self._in_flight and not self._aborted

    @property
    def must_retry(self) -> bool:
        """True if transactions were aborted. Call `retry_oldest` until it is False, before a new one starts."""
        return bool(self._aborted)

    def submit(self, parts: list[Part]) -> Damaged | None:
        """Start a transaction. After an abort it is queued instead, and `retry_oldest` sends it in order.

        Call `wait_for_room` first. If a partition's store turns out to be damaged, return it: the others are queued.
        """
        assert len(self._in_flight) < MAX_IN_FLIGHT, "no room"
        sent = None if self._aborted else self._send(parts)
        if sent is None or isinstance(sent, Damaged):
            self.drain()  # aborted ones are queued before this one
            self._aborted.append(parts)
            return sent
        self._in_flight.append(_InFlight(parts, sent))
        return None

    def reap(self) -> None:
        """Advance the partitions of every transaction that has committed so far; queue aborted ones. Does not block."""
        while self._in_flight and self._in_flight[0].submitted.is_done():
            self._reap_oldest()

    def wait_for_room(self) -> None:
        """Reap transactions until another one may start, or one has to be retried. Blocks."""
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            self._reap_oldest()

    def drain(self) -> None:
        """Reap all transactions in flight. Blocks until the last one has ended."""
        while self._in_flight:
            self._reap_oldest()

    def retry_oldest(self, owned: Container[Partition]) -> Damaged | None:
        """Retry the oldest aborted transaction once, and wait for its outcome. Apply pending rebalances first.

        owned: the open partitions. Parts of others are left out: they may be another member's by now. If a store turns
        out to be damaged, return it with nothing sent.
        """
        parts = [part for part in self._aborted.popleft() if part[0] in owned]
        if not parts:
            return None
        for partition, frozen in parts:
            partition.recheck(frozen, self._clock.now_ms())
        sent = self._send(parts)
        if isinstance(sent, Damaged):
            self._aborted.appendleft(parts)
            return sent
        self._metrics.transaction_retries.inc()
        outcome = self._outcome_of(sent)
        if isinstance(outcome, Committed):
            self._advance(parts)
        else:
            self._record_abort(parts, outcome)
            self._aborted.appendleft(parts)
        return None

    def _reap_oldest(self) -> None:
        parts, submitted = self._in_flight[0]
        began_ms = self._clock.now_ms()
        outcome = self._outcome_of(submitted)
        self.waited_ms += self._clock.now_ms() - began_ms
        self._in_flight.popleft()
        if isinstance(outcome, Committed):
            assert not self._aborted, "a transaction was committed after one that was aborted"
            self._advance(parts)
            return
        self._record_abort(parts, outcome)
        self._aborted.append(parts)
        self.drain()  # the later ones are aborted, too

    def _outcome_of(self, submitted: SubmittedTransaction) -> Committed | Aborted:
        """Wait for the outcome. If it cannot be known, forget all transactions in flight: this bridge ends."""
        try:
            outcome = submitted.wait()
        except BridgeError:
            self._in_flight.clear()
            raise
        self._metrics.transaction_ended(outcome)
        return outcome

    def _advance(self, parts: list[Part]) -> None:
        now_ms = self._clock.now_ms()
        for owned, frozen in parts:
            owned.committed(frozen)
        self._metrics.transaction_committed(parts, now_ms)
        if self._breakers:
            topics = {record.topic for _, frozen in parts for record in frozen.records}
            for target in self._breakers.committed(topics, now_ms):
                log.info("%s: it takes records again; its timers leave", target)

    def _send(self, parts: list[Part]) -> SubmittedTransaction | Damaged:
        """Submit the transaction. If a partition's store turns out to be damaged, return it with nothing sent."""
        outgoing: list[Outgoing] = []
        journal: dict[TimerPartition, bytes] = {}
        progress: dict[TimerPartition, Progress] = {}
        for owned, frozen in parts:
            try:
                outgoing += frozen.outgoing()
            except CorruptStoreError as error:
                return Damaged(owned, error)
            progress[owned.partition] = frozen.progress
            if frozen.journal is not None:
                journal[owned.partition] = frozen.journal.to_bytes()
        return self._sink.submit(Transaction(outgoing, journal, progress, self._membership.group_metadata))

    def _record_abort(self, parts: list[Part], outcome: Aborted) -> None:
        """Prepare the retry: park refused records, open circuit breakers."""
        for _, frozen in parts if outcome.refused else ():
            if (own := frozen.reject(outcome.refused)) is not None:
                raise BridgeError(
                    f"{own.topic} refuses a record of the bridge's own ({outcome.refused[own]}): the bridge"
                    f" stops, so that no record is lost; fix the topic, then start again"
                )
        self._breakers.refuse(outcome.refusing, self._clock.now_ms())
        for target in self._breakers.trip(outcome.unavailable, self._clock.now_ms()):
            log.warning(
                "%s: it takes no records (no leader, too few in-sync replicas, or a quota); its timers wait, all others"
                " go on, and it is tried again; check its brokers",
                target,
            )
