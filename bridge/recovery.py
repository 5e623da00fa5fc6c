"""A shard at start: what the disk still knows, caught up by the journal and by reading (design, invariant 5).

    progress (C, K, L)        stable, from Kafka
    checkpoint on disk        usable when L <= its C <= C and its K <= K: takes the store back to a commit it knows
    journal                   from where the checkpoint left it, else from the time of L's record minus a clock's skew
    requests                  from the checkpoint's C, else from L, up to C: each by the journal, else by the rule

No usable checkpoint, or one whose bytes cannot be right: the same from L into an empty store.
"""

import logging
from collections.abc import Iterator

from bridge.errors import BridgeError, ProgressLostError
from bridge.intake import replay
from bridge.options import TurnOptions
from bridge.ports import History
from schemas.headers import Rules
from schemas.journal import Decisions, JournalRecord
from schemas.origin import Shard
from schemas.progress import NOTHING_SETTLED, ForeignProgressError, Progress
from timer.checkpoint import NAME, Checkpoint
from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.store import Store

log = logging.getLogger(__name__)


def recover(shard: Shard, disk: Disk, history: History, options: TurnOptions) -> Store:
    """The shard's store as Kafka's committed progress says it must be."""
    data = disk.read(NAME)
    found = Checkpoint.from_bytes(data) if data else None
    progress, adopted = _progress(shard, history, options, found)
    if found is not None and (adopted or not _usable(found, progress)):
        log.warning("%s: the local store is of another time and is rebuilt from offset %d", shard, progress.low_offset)
        found = None
    try:
        return _Recovery(shard, disk, history, options, progress).run(found)
    except CorruptStoreError as wrong:
        return rebuild(shard, disk, history, options, progress, wrong)


def rebuild(
    shard: Shard, disk: Disk, history: History, options: TurnOptions, progress: Progress, wrong: CorruptStoreError
) -> Store:
    """The store made anew from Kafka alone, as the one on disk is `wrong`."""
    log.error("%s: the local store is damaged (%s): rebuilding it from Kafka, nothing is lost", shard, wrong)
    return _Recovery(shard, disk, history, options, progress).run(None)


def _usable(found: Checkpoint, progress: Progress) -> bool:
    known = found.progress
    return progress.low_offset <= known.next_offset <= progress.next_offset and known.settled <= progress.settled


def _progress(shard: Shard, history: History, options: TurnOptions, found: Checkpoint | None) -> tuple[Progress, bool]:
    """The committed progress, and whether it is the operator's word instead."""
    try:
        committed = history.progress(shard)
    except ForeignProgressError as wrong:
        return _adopted(shard, history, options, str(wrong)), True
    if committed is not None:
        return committed, False
    if found is None and next(iter(history.journal(shard, from_offset=None, since_ms=None)), None) is None:
        first, _ = history.bounds(shard)
        return Progress(first, NOTHING_SETTLED, first), False
    return _adopted(
        shard, history, options, "the group has no committed offset, but timers were delivered before"
    ), True


def _adopted(shard: Shard, history: History, options: TurnOptions, why: str) -> Progress:
    first, end = history.bounds(shard)
    match options.adopt_progress:
        case None:
            raise ProgressLostError(
                f"{shard}: progress is lost: {why}. Start once with --adopt-progress earliest (deliver again what is"
                f" still on the topic), latest (skip it) or an epoch ms to begin at"
            )
        case "earliest":
            offset = first
        case "latest":
            offset = end
        case timestamp_ms:
            offset = history.offset_at(shard, int(timestamp_ms))
    log.warning("%s: progress adopted at offset %d by the operator's word", shard, offset)
    return Progress(offset, NOTHING_SETTLED, offset)


class _Recovery:
    """One way from a checkpoint, or from nothing, to the committed progress."""

    def __init__(self, shard: Shard, disk: Disk, history: History, options: TurnOptions, progress: Progress) -> None:
        self._shard = shard
        self._disk = disk
        self._history = history
        self._options = options
        self._progress = progress

    def run(self, found: Checkpoint | None) -> Store:
        progress = self._progress
        decisions = Decisions(self._journal(found))
        held = (decisions.held | set(found.held if found else ())) - decisions.released
        if found is None:
            store = Store.create(self._disk, self._options.store, progress)
            start = progress.low_offset
        else:
            store = Store.open(self._disk, self._options.store, found, progress, held)
            start = found.progress.next_offset
        try:
            self._catch_up(store, start, decisions, held)
        except BaseException:
            store.close()
            raise
        log.info("%s: recovered to offset %d, %d timers pending", self._shard, progress.next_offset, store.pending)
        return store

    def _catch_up(self, store: Store, start: int, decisions: Decisions, held: set[int]) -> None:
        progress = self._progress
        if start >= progress.next_offset:
            return
        for records in self._history.requests(self._shard, start, progress.next_offset):
            try:
                batch = replay(
                    records, progress.settled, lambda o: self._rules_at(decisions, o), decisions.refused, held
                )
            except ValueError as wrong:
                raise BridgeError(f"{self._shard}: {wrong}. The journal no longer covers the request") from wrong
            store.add(batch, progress.next_offset)

    def _rules_at(self, decisions: Decisions, offset: int) -> Rules:
        return decisions.rules_at(offset) or self._options.rules

    def _journal(self, found: Checkpoint | None) -> Iterator[JournalRecord]:
        if found is not None:
            values = self._history.journal(self._shard, from_offset=found.journal_offset, since_ms=None)
        else:
            since_ms = self._time_of_low()
            if since_ms is None:
                return
            values = self._history.journal(self._shard, from_offset=None, since_ms=since_ms)
        for value in values:
            yield JournalRecord.from_bytes(value)

    def _time_of_low(self) -> int | None:
        """When L's record was appended, minus the skew of clocks; None where nothing below C can live."""
        low, end = self._progress.low_offset, self._progress.next_offset
        for records in self._history.requests(self._shard, low, end):
            if records:
                return max(0, records[0].timestamp_ms - self._options.clock_skew_margin_ms)
        return None
