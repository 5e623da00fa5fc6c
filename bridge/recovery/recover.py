"""Bring a partition's store to Kafka's committed progress (design, invariant 5).

    progress (C, K, L)        stable, from Kafka
    checkpoint on disk        usable if it has the same era, L <= its C <= C, its K <= K, and the journal after it is
                              still kept: takes the store back to a committed state
    journal                   from the checkpoint's offset, else from the time of L's record minus the clock skew
    requests                  from the checkpoint's C, else from L, up to C: each by the journal, else by the rules

Without a usable checkpoint, or with another tick or damaged files, the store is rebuilt from L into empty files.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.config.loop_options import TurnOptions
from bridge.errors import (
    BridgeError,
    PartitionUnreadableError,
    ProgressLostError,
    SettingsError,
    truncated_partition_message,
)
from bridge.intake.copies_in_flight import CopiesInFlight
from bridge.intake.decide import replay
from bridge.ports import History
from schemas.headers import Rules
from schemas.journal import Decisions, JournalRecord, Wait
from schemas.origin import Shard, origin
from schemas.progress import NOTHING_SETTLED, ForeignProgressError, Progress
from timer.errors import CorruptStoreError, UnreadableError, WheelFullError
from timer.files.disk import Disk
from timer.format.checkpoint import MOST_SLOTS, NAME, Checkpoint
from timer.format.file_names import UNITS
from timer.maintenance.shutdown_snapshot import is_closed_as
from timer.options import StoreOptions
from timer.store import Store

log = logging.getLogger(__name__)

_LOOK_BACK = 1000


def read_checkpoint(disk: Disk) -> Checkpoint | None:
    """Return the checkpoint, or None if there is none or it is invalid."""
    data = disk.read(NAME)
    return Checkpoint.from_bytes(data) if data else None


class Recovered(NamedTuple):
    """A partition in the state of its committed progress."""

    store: Store
    flights: CopiesInFlight
    is_adopted: bool
    """True if the progress comes from --adopt-progress and is not committed to Kafka yet."""


class RecoveryPlan(NamedTuple):
    """Where a recovery starts, and how much it has to read."""

    progress: Progress
    found: Checkpoint | None
    """The checkpoint on disk, if it is usable."""
    work: int
    """Timers and requests to read."""
    is_adopted: bool
    """True if `progress` comes from --adopt-progress."""


def plan_recovery(shard: Shard, disk: Disk, history: History, options: TurnOptions) -> RecoveryPlan:
    """Return the plan; change nothing.

    Raises ProgressLostError if the operator has to decide how to go on. Raises SettingsError if the tick has changed
    and retention has deleted requests that the store may still hold.
    """
    found = read_checkpoint(disk)
    progress, is_adopted = _progress(shard, history, options, found)
    if found is not None and (is_adopted or not _usable(found, progress, history.journal_bounds(shard)[0])):
        log.warning("%s: the local store is of another time and is rebuilt from offset %d", shard, progress.low_offset)
        found = None
    if found is not None and found.tick_ms != options.store.tick_ms:
        _require_rebuild_possible(shard, history, progress.low_offset, found.tick_ms, options.store.tick_ms)
        found = None
    if found is None:
        return RecoveryPlan(progress, None, progress.next_offset - progress.low_offset, is_adopted)
    was_closed = is_closed_as(disk, found)
    unread = progress.next_offset - found.progress.next_offset
    return RecoveryPlan(progress, found, unread + (0 if was_closed else found.pending), is_adopted)


def recover(
    shard: Shard,
    disk: Disk,
    history: History,
    options: TurnOptions,
    plan: RecoveryPlan | None = None,
) -> Recovered:
    """Return the partition's store in the state of the committed progress. plan: a new result of `plan_recovery`.

    Raises OSError if the disk is full or broken; CorruptStoreError if the store is unreadable and the last copy, or if
    the disk does not return what was just written; PartitionUnreadableError if another owner commits meanwhile. After
    an error no store is open.
    """
    plan = plan or plan_recovery(shard, disk, history, options)
    recovery = _Recovery(shard, disk, history, options, plan.progress, plan.is_adopted)
    try:
        recovered = recovery.run(plan.found)
    except _UncoveredError:
        log.warning(
            "%s: the local store is of another journal and is rebuilt from offset %d", shard, plan.progress.low_offset
        )
        recovered = recovery.run(None)
    except CorruptStoreError as wrong:
        if plan.found is None:
            raise
        require_rebuildable(shard, history, plan.progress.low_offset, wrong)
        invalidate_store(shard, disk, wrong)
        recovered = recovery.run(None)
    try:  # the journal may be newer than the progress, which was read before it
        if not plan.is_adopted and history.progress(shard) not in (None, plan.progress):
            raise PartitionUnreadableError(f"{shard}: another owner has committed progress meanwhile")
    except BaseException:
        recovered.store.close()
        raise
    return recovered


def prepare_store(shard: Shard, disk: Disk, history: History, options: TurnOptions) -> None:
    """Recover the store on `disk` and close it, so that the next `recover` has little to do."""
    # In this order: progress read later includes all decisions below the journal's last stable offset.
    _, journal_offset = history.journal_bounds(shard)
    store, flights, _ = recover(shard, disk, history, options)
    try:
        store.start_checkpoint(journal_offset, flights.all(), sorted(flights.ended))
        store.finish_checkpoint()
    finally:
        store.close()


def invalidate_store(shard: Shard, disk: Disk, wrong: CorruptStoreError) -> None:
    """Delete the checkpoint of a closed, damaged store, so that the next `recover` rebuilds it from Kafka."""
    log.error("%s: the local store is damaged (%s): rebuilding it from Kafka; lost requests are logged", shard, wrong)
    disk.start_replace(NAME, b"").wait()


def require_rebuildable(shard: Shard, history: History, low_offset: int, wrong: CorruptStoreError) -> None:
    """Raise `wrong` if it may pass, and retention has deleted requests that may be pending: only this disk has them."""
    if isinstance(wrong, UnreadableError) and history.bounds(shard)[0] > low_offset:
        raise wrong


def _usable(found: Checkpoint, progress: Progress, journal_first: int) -> bool:
    """Return True if a recovery may start from the checkpoint.

    journal_first: first kept offset of the journal. Earlier decisions, perhaps on this checkpoint's timers, are lost.
    """
    known = found.progress
    is_known = known.next_offset <= progress.next_offset and known.settled <= progress.settled
    is_near = progress.low_offset <= known.next_offset and journal_first <= found.journal_offset
    return known.era == progress.era and is_known and is_near


def _require_rebuild_possible(shard: Shard, history: History, low_offset: int, old_ms: int, new_ms: int) -> None:
    """Raise SettingsError if a rebuild would lose timers that only the sound local store still holds."""
    first, _ = history.bounds(shard)
    told = f"{shard}: tick_ms was {old_ms}, is {new_ms}, so the local store has to be rebuilt from offset {low_offset}"
    if first > low_offset:
        raise SettingsError(
            f"{told}, but retention has taken the requests before {first}: start with tick_ms {old_ms}, and change it"
            f" when the timers of these requests have been delivered or rolled"
        )
    log.warning("%s; if the rebuild is refused, tick_ms %d keeps the store", told, old_ms)


def _progress(shard: Shard, history: History, options: TurnOptions, found: Checkpoint | None) -> tuple[Progress, bool]:
    """Return the progress to recover to, and whether it comes from --adopt-progress."""
    why = "the group has no committed offset, but timers were delivered before (if by another group: use that --group)"
    try:
        committed = history.progress(shard)
        if committed is None:
            nothing_left = found is None or found.progress.settled == NOTHING_SETTLED
            values = history.journal(shard, from_offset=None, since_ms=None)
            if nothing_left and all(_parse_record(shard, value).is_claim for value in values):
                first, _ = history.bounds(shard)
                return Progress(first, NOTHING_SETTLED, first, era=options.era_ms), False
            committed = history.progress(shard)  # another owner may have committed the first one since the first read
    except ForeignProgressError as wrong:
        committed, why = None, str(wrong)
    if committed is None:
        return _adopted(shard, history, options, why), True
    _require_not_truncated(shard, history, committed)
    return committed, False


def _require_not_truncated(shard: Shard, history: History, progress: Progress) -> None:
    """Raise ProgressLostError if the partition ends before C. The end includes open transactions."""
    _, stable = history.bounds(shard)
    if progress.next_offset > stable:
        _, end = history.stable_and_end_offsets([shard]).get(shard, (stable, stable))
        if progress.next_offset > end:
            raise ProgressLostError(truncated_partition_message(*shard, end, progress.next_offset))


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
    return Progress(offset, NOTHING_SETTLED, offset, era=options.era_ms)


def _parse_record(shard: Shard, value: bytes) -> JournalRecord:
    try:
        return JournalRecord.from_bytes(value)
    except ValueError as wrong:
        raise BridgeError(
            f"{shard}: a record of the journal was written by a newer bridge, or by none: upgrade this one"
        ) from wrong


class _UncoveredError(Exception):
    """The journal does not continue where the store on disk ends: the store belongs to another journal."""


@dataclass(eq=False)
class _Recovery:
    """One recovery, from a checkpoint or from empty files, to the committed progress."""

    _shard: Shard
    _disk: Disk
    _history: History
    _options: TurnOptions
    _progress: Progress
    _is_adopted: bool

    def run(self, found: Checkpoint | None) -> Recovered:
        """Recover; use more slots than the settings say if the pending timers span more than a lap of the wheel."""
        options = self._options.store
        while True:
            try:
                return self._run(found, options)
            except WheelFullError as full:
                if found is not None and 2 * options.slots > MOST_SLOTS:
                    raise CorruptStoreError(UNITS, f"visits further apart than {MOST_SLOTS} ticks") from full
                options = replace(options, slots=2 * options.slots)
                log.warning("%s: %s: starting with %d slots", self._shard, full, options.slots)

    def _run(self, found: Checkpoint | None, options: StoreOptions) -> Recovered:
        progress = self._progress
        if found is None:
            decisions = self._decisions()
            store, start = Store.create(self._disk, options, progress, decisions.waits), progress.low_offset
        else:
            known = (found.held, found.flights, found.progress.next_offset, found.waits)
            decisions = Decisions(self._journal(found), *known)
            if not self._covers(decisions, found.progress.next_offset):
                raise _UncoveredError
            live = (decisions.waiting, decisions.ended | decisions.gone, decisions.waits)
            store = Store.open(self._disk, options, found, progress, *live)
            start = found.progress.next_offset
        try:
            self._catch_up(store, start, decisions)
            store.progress()  # finds L; a damaged store can still be rebuilt here
        except BaseException:
            store.close()
            raise
        store.committed(progress)
        ended = decisions.ended | set(found.ended_flights if found else ())
        flights = CopiesInFlight(self._shard, decisions.flights.values(), ended)
        log.info(
            "%s: recovered to offset %d, %d timers pending; %s, read from offset %d",
            *(self._shard, progress.next_offset, store.pending),
            *("from Kafka alone" if found is None else "from its directory", start),
        )
        return Recovered(store, flights, self._is_adopted)

    def _decisions(self) -> Decisions:
        """Return the journal's decisions for a rebuild. Raises BridgeError, before any change, if they are lost."""
        first, _ = self._history.bounds(self._shard)
        for since_ms in (self._since_ms(), None):  # the whole journal if brokers' clocks differed by more
            decisions = Decisions(self._journal(None, since_ms), waits=self._last_waits())
            if self._covers(decisions, max(first, self._progress.low_offset)):
                return decisions
        raise BridgeError(
            f"{self._shard}: the journal says nothing of what may be pending from offset"
            f" {self._progress.low_offset} on: it was deleted, or forgets sooner than the timer topic. Nobody can tell"
            f" what was cancelled or delivered, so do as where progress is lost, and keep the directories:"
            f" `timer-bridge export` first, delete the group's offset of {self._shard}, start with --adopt-progress"
        )

    def _covers(self, decisions: Decisions, start: int) -> bool:
        """Return True if the journal covers the requests from `start` to C. Its ranges are contiguous."""
        return start >= self._progress.next_offset or decisions.rules_from(start)[0] is not None

    def _catch_up(self, store: Store, start: int, decisions: Decisions) -> None:
        progress = self._progress
        if start >= progress.next_offset:
            return
        self._log_lost_requests(start)

        def rules_from(offset: int) -> tuple[Rules, int]:
            rules, until = decisions.rules_from(offset)
            if rules is None:
                raise ValueError(f"offset {offset} was taken once, but nothing tells by which rules")
            return rules, until

        for records in self._history.requests(self._shard, start, progress.next_offset, decisions.refused):
            try:
                batch = replay(records, store.is_unreleased, rules_from, decisions, self._offset_of)
            except ValueError as wrong:
                raise BridgeError(f"{self._shard}: {wrong}. The journal no longer covers the request") from wrong
            store.add(batch, progress.next_offset)

    def _log_lost_requests(self, start: int) -> None:
        first, _ = self._history.bounds(self._shard)
        if first > start:
            log.error(
                "%s: retention has taken up to %d requests that are not in the local store, offsets %d to %d: those of"
                " them that were pending are lost; raise retention.ms to 3 roll windows",
                self._shard,
                min(first, self._progress.next_offset) - start,
                start,
                min(first, self._progress.next_offset) - 1,
            )

    def _offset_of(self, origin_: bytes) -> int:
        return int(origin_.removeprefix(origin(self._shard, 0)[:-1]))

    def _journal(self, found: Checkpoint | None, since_ms: int | None = None) -> Iterator[JournalRecord]:
        from_offset = None if found is None else found.journal_offset
        values = self._history.journal(self._shard, from_offset=from_offset, since_ms=since_ms)
        for value in values:
            yield _parse_record(self._shard, value)

    def _last_waits(self) -> tuple[Wait, ...]:
        """Return the waiting targets of the journal's last record. A paused target may have no timers."""
        first, end = self._history.journal_bounds(self._shard)
        for start in (max(first, end - _LOOK_BACK), first):
            last = None
            for value in self._history.journal(self._shard, from_offset=start, since_ms=None):
                last = value
            if last is not None:
                return _parse_record(self._shard, last).waits
        return ()

    def _since_ms(self) -> int | None:
        """Return the time from which the journal is needed: of L's record, minus the clock skew. None: all of it.

        If no timer is pending, copies may still be in flight, hidden by a transaction that hangs. They were written
        after the last record that can be read.
        """
        low = self._progress.low_offset
        first, end = self._history.bounds(self._shard)
        for start in (low, max(first, low - _LOOK_BACK)):
            try:
                records = next(self._history.requests(self._shard, start, end), None)
            except PartitionUnreadableError as wrong:
                if wrong.undecodable is None:
                    raise
                continue
            if records:
                at_ms = (records[0] if start == low else records[-1]).timestamp_ms
                return max(0, at_ms - self._options.clock_skew_margin_ms)
        return None
