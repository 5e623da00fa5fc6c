"""Commit transactions that are independent of each other. A partition is in at most one of them.

    submit --> in flight (at most MAX_IN_FLIGHT) --reap--> committed: advance its partitions
                                                 --reap--> aborted: sent again with the same partitions, alone

A transaction costs its targets and waits for brokers, so several overlap nearly freely. As a partition waits for the
outcome of its own, its progress is committed in request order. A slow transaction delays all partitions in it, so
costly partitions are not put together with others: those with many records, or with targets that are new or have failed
lately. Nor are a timer topic of more than a few records and those of few. A retry drops records that the broker will
never accept (they go to the rejected topic) and partitions that this instance no longer owns.
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.errors import BridgeError
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Metrics
from bridge.partition.draft import Draft, FrozenDraft
from bridge.partition.limits import CircuitBreakers
from bridge.partition.names import is_by_crc32, other_place
from bridge.partition.partition import Partition
from bridge.ports import MAX_IN_FLIGHT, Aborted, Clock, Committed, Membership, Sink, SubmittedTransaction, Transaction
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

Part = tuple[Partition, FrozenDraft]
MAX_RETRIES_IN_FLIGHT = MAX_IN_FLIGHT // 2
"""They may wait for long; the other producers are for all other partitions."""
_COSTLY_RECORDS = 500
_BUSY_RECORDS = 32
"""A timer topic with more leaves apart from timer topics with fewer."""
_REFUSALS_LOGGED_MS = 1000


class _InFlight(NamedTuple):
    """tries: number of times that it was aborted before."""

    parts: Sequence[Part]
    tries: int
    submitted: SubmittedTransaction
    since_ms: int


@dataclass(eq=False)
class CommitPipeline:
    """The transactions of one loop. Not thread-safe."""

    _sink: Sink
    _clock: Clock
    _metrics: Metrics
    _breakers: CircuitBreakers
    _membership: Membership

    def __post_init__(self) -> None:
        self._in_flight: list[_InFlight] = []
        self._waiting: list[tuple[Sequence[Part], int]] = []
        """Aborted ones, with the number of times, and those for which there was no room."""
        self._refusals = LogRateLimit(log, _REFUSALS_LOGGED_MS)
        self._warned: set[str] = set()
        """Timer topics of which a misplaced id was logged."""
        self.waited_ms = 0
        """Time of waits until now for transactions."""

    @property
    def is_idle(self) -> bool:
        """True if no transaction is in flight or waits."""
        return not self._in_flight and not self._waiting

    @property
    def has_room(self) -> bool:
        return len(self._in_flight) < MAX_IN_FLIGHT

    @property
    def oldest_ms(self) -> float:
        """Start (epoch ms) of the oldest transaction in flight; infinite if there is none."""
        return min((each.since_ms for each in self._in_flight), default=math.inf)

    def submit(self, parts: Sequence[Part]) -> None:
        """Start up to three transactions: of few records, of busy timer topics, of costly partitions."""
        costly, others = list[Part](), list[Part]()
        records = Counter[str]()
        for owned, frozen in parts:
            (costly if self._is_costly(frozen) else others).append((owned, frozen))
        for owned, frozen in others:
            records[owned.partition.topic] += len(frozen.records)
        topics = {topic for topic, count in records.items() if count > _BUSY_RECORDS} if len(+records) > 1 else ()
        busy = [part for part in others if part[0].partition.topic in topics]
        few = [part for part in others if part[0].partition.topic not in topics]
        for each in (few, busy, costly):
            if each and self.has_room:
                self._send(each, 0)
            elif each:
                self._waiting.append((each, 0))

    def _is_costly(self, frozen: FrozenDraft) -> bool:
        if len(frozen.records) > _COSTLY_RECORDS or self._sink.needs_look_up(frozen.records):
            return True
        return bool(self._breakers) and self._breakers.have_failed({record.topic for record in frozen.records})

    def reap(self) -> None:
        """Advance the partitions of every transaction that has committed so far; queue aborted ones. Does not block."""
        for each in list(self._in_flight):
            if each.submitted.is_done():
                self._reap(each)

    def drain(self, of: Collection[Partition] | None = None) -> None:
        """Wait for all transactions in flight, or for those with one of these partitions. Aborted ones are queued."""
        began_ms = self._clock.now_ms()
        for each in list(self._in_flight):
            if of is None or any(partition in of for partition, _ in each.parts):
                self._reap(each)
        self.waited_ms += self._clock.now_ms() - began_ms

    def retry(self, owned: Container[Partition]) -> dict[Partition, CorruptStoreError]:
        """Send what waits, oldest first, as far as there is room. Apply pending rebalances first.

        owned: the open partitions. Parts of others are left out: they may be another member's by now. Returns the
        partitions whose store is damaged; their parts are left out, and will be made again from Kafka.
        """
        damaged: dict[Partition, CorruptStoreError] = {}
        waiting, self._waiting = self._waiting, []
        for waited, tries in waiting:
            retries = sum(each.tries > 0 for each in self._in_flight)
            if not self.has_room or (tries > 0 and retries >= MAX_RETRIES_IN_FLIGHT):
                self._waiting.append((waited, tries))
                continue
            parts = [part for part in waited if part[0] in owned]
            for partition, frozen in parts:
                try:
                    partition.recheck(frozen, self._clock.now_ms())
                except CorruptStoreError as wrong:
                    damaged[partition] = wrong
            parts = [part for part in parts if part[0] not in damaged]
            if parts:
                self._send(parts, tries)
                self._metrics.transaction_retries.inc(tries > 0)
        return damaged

    def _reap(self, flown: _InFlight) -> None:
        """Wait for the outcome of a transaction. If it cannot be known, forget all in flight: this bridge ends."""
        try:
            outcome = flown.submitted.wait()
        except BridgeError:
            self._in_flight.clear()
            raise
        self._metrics.transaction_ended(outcome)
        self._in_flight.remove(flown)
        if isinstance(outcome, Committed):
            self._advance(flown.parts)
        else:
            self._record_abort(flown.parts, outcome)
            self._waiting.append((flown.parts, flown.tries + 1))

    def _advance(self, parts: Sequence[Part]) -> None:
        now_ms = self._clock.now_ms()
        for owned, frozen in parts:
            owned.committed(frozen)
            self._log_refusals(frozen.draft, now_ms)
            if frozen.receipt_kinds["not-found"]:
                self._warn_of_partitioner(frozen.draft)
        self._metrics.transaction_committed(parts, now_ms)
        if self._breakers:
            topics = {record.topic for _, frozen in parts for record in frozen.records}
            for target in self._breakers.committed(topics, now_ms):
                log.info("%s: it takes records again; its timers leave", target)

    def _log_refusals(self, draft: Draft, now_ms: int) -> None:
        """Log refused requests and timers: one line a second for each timer topic and code."""
        at, refused = draft.partition, [(record.offset, why) for record, why in draft.decisions.refused]
        refused += draft.parked.items()
        for code, times in Counter(why.code for _, why in refused).items():
            offset, detail = next((offset, why.detail) for offset, why in refused if why.code == code)
            text = "%s/%d: rejected as %s: %s"
            self._refusals.warn(now_ms, f"{at.topic} {code}", text, at, offset, code, detail, times=times)

    def _warn_of_partitioner(self, draft: Draft) -> None:
        """Warn once for each timer topic of a sender that places ids by CRC32: its cancels miss the others' timers."""
        at, count = draft.partition, draft.options.partitions
        if count is None or at.topic in self._warned:
            return
        for each in draft.decisions.receipts:
            if each.kind == "not-found" and each.id and is_by_crc32(each.id, at.partition, count):
                self._warned.add(at.topic)
                log.warning("%s/%d: not found: %s", at, each.request, other_place(each.id, at.partition, count))
                break

    def _send(self, parts: Sequence[Part], tries: int) -> None:
        outgoing = [record for _, frozen in parts for record in frozen.records]
        progress = {owned.partition: frozen.progress for owned, frozen in parts}
        journal = {owned.partition: each.journal.to_bytes() for owned, each in parts if each.journal is not None}
        transaction = Transaction(outgoing, journal, progress, self._membership.group_metadata, tries)
        self._in_flight.append(_InFlight(parts, tries, self._sink.submit(transaction), self._clock.now_ms()))

    def _record_abort(self, parts: Sequence[Part], outcome: Aborted) -> None:
        """Prepare the retry: park refused records, open circuit breakers."""
        for _, frozen in parts if outcome.refused else ():
            if (own := frozen.reject(outcome.refused)) is not None:
                raise BridgeError(
                    f"{own.topic} refuses a record of the bridge's own ({outcome.refused[own]}): the bridge"
                    f" stops, so that no record is lost; fix the topic, then start again"
                )
        self._breakers.refuse(outcome.refusing, self._clock.now_ms())
        for target in self._breakers.trip(outcome.unavailable, self._clock.now_ms(), is_known=outcome.is_known):
            log.warning(
                "%s: it takes no records (no leader, too few in-sync replicas, or a quota); its timers wait, all others"
                " go on, and it is tried again; check its brokers",
                target,
            )
