"""Bring a partition's store to Kafka's committed progress (design, invariant 5).

    progress (C, K, L)        stable, from Kafka; or adopted by the operator's word
    checkpoint on disk        takes the store back to a committed state. It is usable if it has the same progress
                              generation, tick and engine, L <= its C <= C, its K <= K, and the journal after it is kept
    journal                   from the checkpoint's offset, else from the time of L's record minus the clock skew
    requests                  from the checkpoint's C, else from L, up to C: each by the journal, else by the rules

Without a usable checkpoint, or with damaged files, the store is rebuilt from L into empty files.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.errors import (
    BridgeError,
    PartitionUnreadableError,
    ProgressLostError,
    SettingsError,
    truncated_partition_message,
)
from bridge.partition.copies import CopiesInFlight
from bridge.partition.journal import JournalReader, parse_record
from bridge.partition.options import TurnOptions
from bridge.partition.request import ask_of, body_of
from bridge.ports import History, Record
from kafka_timer.headers import Claim, Refusal, Schedule
from kafka_timer.origin import TimerPartition
from schemas.journal import Decisions
from schemas.progress import NOTHING_SETTLED, ForeignProgressError, Progress
from schemas.rules import Rules
from timer.disk import Disk
from timer.engines import create_store, open_store
from timer.errors import CorruptStoreError, UnreadableError, WheelFullError
from timer.format.batch import Batch
from timer.format.checkpoint import MOST_SLOTS, NAME, UNITS, Checkpoint
from timer.options import StoreOptions
from timer.schedule.release_policy import visit_ms
from timer.store import Store
from timer.wheel.shutdown_snapshot import is_closed_as

log = logging.getLogger(__name__)


def read_checkpoint(disk: Disk) -> Checkpoint | None:
    """Return the checkpoint, or None if there is none or it is invalid."""
    data = disk.read(NAME)
    return Checkpoint.from_bytes(data) if data else None


class RecoveryPlan(NamedTuple):
    """The start of a recovery, and how much it has to read.

    found: the checkpoint on disk, if it is usable. work: timers and requests to read. is_adopted: True if `progress`
    comes from --adopt-progress.
    """

    progress: Progress
    found: Checkpoint | None
    work: int
    is_adopted: bool


def plan_recovery(partition: TimerPartition, disk: Disk, history: History, options: TurnOptions) -> RecoveryPlan:
    """Return the plan; change nothing.

    Raises ProgressLostError if the operator has to decide how to go on. Raises SettingsError if the tick or the engine
    has changed and retention has deleted requests that the store may still hold.
    """
    found = read_checkpoint(disk)
    progress, is_adopted = _progress(partition, history, options, found)
    if found is not None and (is_adopted or not _usable(found, progress, history.journal_bounds(partition)[0])):
        is_outdated = found.progress.era == progress.era and found.progress.next_offset < progress.low_offset
        text = "holds no timer that is pending" if is_outdated else "does not match Kafka's progress"
        level = logging.INFO if is_outdated else logging.WARNING
        log.log(level, "%s: the local store %s; it is rebuilt from offset %d", partition, text, progress.low_offset)
        found = None
    for setting, keeps in (("engine", "engine"), ("tick_ms", "version 0.2.0 and tick_ms")):
        if found is not None and getattr(found, setting) != getattr(options.store, setting):
            changed = (setting, getattr(found, setting), getattr(options.store, setting))
            _require_rebuild_possible(partition, history, progress.low_offset, *changed, keeps=keeps)
            found = None
    if found is None:
        return RecoveryPlan(progress, None, progress.next_offset - progress.low_offset, is_adopted)
    opens_at_once = found.engine == "rocksdb" or is_closed_as(disk, found)
    unread = progress.next_offset - found.progress.next_offset
    return RecoveryPlan(progress, found, unread + (0 if opens_at_once else found.pending), is_adopted)


def _usable(found: Checkpoint, progress: Progress, journal_first: int) -> bool:
    """True if a recovery may start from the checkpoint.

    journal_first: first kept offset of the journal. Earlier decisions, perhaps on this checkpoint's timers, are lost.
    """
    known = found.progress
    is_known = known.next_offset <= progress.next_offset and known.settled <= progress.settled
    is_near = progress.low_offset <= known.next_offset and journal_first <= found.journal_offset
    return known.era == progress.era and is_known and is_near


def _require_rebuild_possible(
    partition: TimerPartition, history: History, low_offset: int, setting: str, old: object, new: object, keeps: str
) -> None:
    """Raise SettingsError if a rebuild would lose timers that only the local store holds. keeps: what keeps it."""
    first, _ = history.bounds(partition)
    told = f"{partition}: {setting} was {old}, is {new}, so the local store has to be rebuilt from offset {low_offset}"
    if first > low_offset:
        raise SettingsError(
            f"{told}, but retention has taken the requests before {first}: start with {keeps} {old}, and change it"
            f" when the timers of these requests have been delivered or rolled"
        )
    log.warning("%s; if the rebuild is refused, %s %s keeps the store", told, keeps, old)


def _progress(
    partition: TimerPartition, history: History, options: TurnOptions, found: Checkpoint | None
) -> tuple[Progress, bool]:
    """Return the progress to recover to, and whether it is adopted."""
    why = "the group has no committed offset, but its journal had records (if by another group: use that --group)"
    try:
        committed = history.progress(partition)
        if committed is None:
            nothing_left = found is None or found.progress.settled == NOTHING_SETTLED
            values = history.journal(partition, from_offset=None, since_ms=None)
            if nothing_left and all(parse_record(partition, value).is_claim for value in values):
                first, end = history.bounds(partition)
                if first == end or history.journal_bounds(partition)[0] == 0:  # no decisions that retention has deleted
                    return Progress(first, NOTHING_SETTLED, first, era=options.era_ms), False
            # Another owner may have committed the first one since the first read.
            committed = history.progress(partition)
    except ForeignProgressError as wrong:
        committed, why = None, str(wrong)
    if committed is None:
        return _adopted(partition, history, options, why), True
    _require_not_truncated(partition, history, committed)
    return committed, False


def _require_not_truncated(partition: TimerPartition, history: History, progress: Progress) -> None:
    """Raise ProgressLostError if the partition ends before C. The end includes open transactions."""
    if progress.next_offset <= history.bounds(partition)[1]:
        return
    ends = history.stable_and_end_offsets([partition])
    if partition not in ends:
        raise PartitionUnreadableError(f"{partition}: no answer in time about its end offset")
    _, end = ends[partition]
    if progress.next_offset > end:
        raise ProgressLostError(truncated_partition_message(*partition, end, progress.next_offset))


def _adopted(partition: TimerPartition, history: History, options: TurnOptions, why: str) -> Progress:
    first, end = history.bounds(partition)
    match options.adopt_progress:
        case None:
            raise ProgressLostError(
                f"{partition}: progress is lost: {why}. Start once with --adopt-progress earliest (deliver again what"
                f" is still on the topic), latest (skip it; the store's pending timers are lost, unless `timer-bridge"
                f" export` saves them first) or an epoch ms to begin at"
            )
        case "earliest":
            offset = first
        case "latest":
            offset = end
        case timestamp_ms:
            offset = history.offset_at(partition, int(timestamp_ms))
    log.warning("%s: progress adopted at offset %d by the operator's word", partition, offset)
    return Progress(offset, NOTHING_SETTLED, offset, era=options.era_ms)


def replay(
    records: Iterable[Record], is_unreleased: Callable[[str, tuple[int, int]], bool], decisions: Decisions
) -> Batch:
    """Return the timers of `records` that are still pending by the journal's decisions.

    is_unreleased(target, (visit_ms, origin offset)): True if a timer with this key has not left.
    Raises ValueError if a request that the journal calls a timer does not parse as one, or has no rules there.
    """
    batch = Batch()
    ended, released, rolled = decisions.ended, decisions.released, decisions.rolled
    rules: Rules | None = None
    until = 0
    for record in records:
        offset = record.offset
        if offset in decisions.refused or offset in decisions.dropped:
            continue
        if rules is None or offset >= until:
            rules, until = _rules_from(offset, decisions)
        asked = ask_of(record, rules)
        if type(asked) is Schedule:
            schedule, origin_offset, rolls = asked, offset, 0
        elif isinstance(asked, Claim):
            schedule, origin_offset, rolls = asked.schedule, int(asked.origin.rpartition(b"/")[2]), asked.rolls
        elif isinstance(asked, Refusal):
            raise ValueError(f"offset {offset} was taken in before, but now reads as {asked.code}: {asked.detail}")
        else:
            continue
        if origin_offset in ended or origin_offset in released or (rolled and (origin_offset, rolls + 1) in rolled):
            continue
        visit = visit_ms(schedule.due_ms, record.timestamp_ms, rules.roll_window_ms)
        if origin_offset in decisions.held:
            batch.hold(body_of(record, schedule, origin_offset, rolls), visit)
        elif is_unreleased(schedule.target, (visit, origin_offset)):
            batch.add(body_of(record, schedule, origin_offset, rolls), visit)
    return batch


def _rules_from(offset: int, decisions: Decisions) -> tuple[Rules, int]:
    rules, until = decisions.rules_from(offset)
    if rules is None:
        raise ValueError(f"offset {offset} was taken in before, by unknown rules")
    return rules, until


class Recovered(NamedTuple):
    """A partition in the state of its committed progress; if `is_adopted`, that is not committed to Kafka yet."""

    store: Store
    flights: CopiesInFlight
    is_adopted: bool


def recover(
    partition: TimerPartition, disk: Disk, history: History, options: TurnOptions, plan: RecoveryPlan | None = None
) -> Recovered:
    """Return the partition's store in the state of the committed progress. plan: a new result of `plan_recovery`.

    Raises OSError if the disk is full or broken; CorruptStoreError if the store is unreadable and the last copy, or if
    the disk does not return what was just written; PartitionUnreadableError if another owner commits meanwhile.
    """
    plan = plan or plan_recovery(partition, disk, history, options)
    recovery = _Recovery(partition, disk, history, options, plan)
    recovered = recovery.recover()
    try:
        recovery.require_current()
    except BaseException:
        recovered.store.close()
        raise
    return recovered


def prepare_store(partition: TimerPartition, disk: Disk, history: History, options: TurnOptions) -> None:
    """Recover the store on `disk` and close it, so that the next `recover` has little to do."""
    # In this order: progress read later includes all decisions below the journal's last stable offset.
    _, journal_offset = history.journal_bounds(partition)
    _close_durably(recover(partition, disk, history, options), journal_offset)


def refresh_standby(partition: TimerPartition, disk: Disk, history: History, options: TurnOptions) -> None:
    """Bring the store of a partition that another instance owns to its committed progress, and close it.

    The owner goes on meanwhile, so the store may lack timers that have ended since that progress. The next `recover`
    reads the same decisions, and then the progress that includes them. Does nothing before the first commit, or if
    less than twice min_free_bytes is free, as an owner's store comes first.
    """
    _, journal_offset = history.journal_bounds(partition)
    try:
        is_begun = history.progress(partition) is not None
    except ForeignProgressError as wrong:
        raise BridgeError(str(wrong)) from wrong
    if not is_begun or disk.free_bytes() < 2 * options.min_free_bytes:
        return
    options = replace(options, adopt_progress=None)  # an owner's decision
    plan = plan_recovery(partition, disk, history, options)
    if plan.found is None or plan.work or plan.found.progress != plan.progress:
        _close_durably(_Recovery(partition, disk, history, options, plan, is_standby=True).recover(), journal_offset)


def _close_durably(recovered: Recovered, journal_offset: int) -> None:
    """Close a recovered store after a checkpoint. journal_offset: end of the journal before the progress was read."""
    store, flights, _ = recovered
    try:
        store.start_checkpoint(journal_offset, flights.all(), sorted(flights.ended))
        store.finish_checkpoint()
    finally:
        store.close()


def invalidate_store(partition: TimerPartition, disk: Disk, wrong: CorruptStoreError) -> None:
    """Delete the checkpoint of a closed, damaged store, so that the next `recover` rebuilds it from Kafka."""
    text = "%s: the local store is damaged (%s): rebuilding it from Kafka; lost requests are logged"
    log.error(text, partition, wrong)
    disk.start_replace(NAME, b"").wait()


def require_rebuildable(partition: TimerPartition, history: History, low_offset: int, wrong: CorruptStoreError) -> None:
    """Raise `wrong` if it may pass, and retention has deleted requests that may be pending: only this disk has them."""
    if isinstance(wrong, UnreadableError) and history.bounds(partition)[0] > low_offset:
        raise wrong


@dataclass(eq=False)
class _Recovery:
    """From a checkpoint or from empty files to the committed progress."""

    _partition: TimerPartition
    _disk: Disk
    _history: History
    _options: TurnOptions
    _plan: RecoveryPlan
    is_standby: bool = False
    """Another instance owns the partition, and commits meanwhile."""

    def recover(self) -> Recovered:
        """Recover by the plan. The journal may be newer than the plan's progress."""
        partition, low_offset = self._partition, self._plan.progress.low_offset
        journal = JournalReader(partition, self._history, self._options, self._plan.progress)
        found, decisions = self._plan.found, None
        if found is not None and (decisions := journal.since(found)) is None:
            text = "%s: the local store is of another journal and is rebuilt from offset %d"
            log.warning(text, partition, low_offset)
            found = None
        try:
            return self._fit(found, decisions or journal.for_rebuild())
        except CorruptStoreError as wrong:
            if found is None:
                raise
            if not self.is_standby:
                self.require_current()
            require_rebuildable(partition, self._history, low_offset, wrong)
            invalidate_store(partition, self._disk, wrong)
            return self._fit(None, journal.for_rebuild())

    def require_current(self) -> None:
        """Raise PartitionUnreadableError if the journal may be newer than the plan's progress: they may not fit."""
        if not self._plan.is_adopted and self._history.progress(self._partition) not in (None, self._plan.progress):
            raise PartitionUnreadableError(f"{self._partition}: another owner has committed progress meanwhile")

    def _fit(self, found: Checkpoint | None, decisions: Decisions) -> Recovered:
        """Recover; use more slots than the settings say if the pending timers span more than a lap of the wheel."""
        options = self._options.store
        while True:
            try:
                return self._run(found, decisions, options)
            except WheelFullError as full:
                if found is not None and 2 * options.slots > MOST_SLOTS:
                    raise CorruptStoreError(UNITS, f"visits further apart than {MOST_SLOTS} ticks") from full
                options = replace(options, slots=2 * options.slots)
                log.warning("%s: %s: starting with %d slots", self._partition, full, options.slots)

    def _run(self, found: Checkpoint | None, decisions: Decisions, options: StoreOptions) -> Recovered:
        progress = self._plan.progress
        if found is None:
            store, start = create_store(self._disk, options, progress, decisions.waits), progress.low_offset
        else:
            live = (decisions.waiting, decisions.ended | decisions.gone, decisions.waits)
            store, start = open_store(self._disk, options, found, progress, *live), found.progress.next_offset
        try:
            self._catch_up(store, start, decisions)
            store.advance_progress()  # finds L; a damaged store can still be rebuilt here
        except BaseException:
            store.close()
            raise
        store.committed(progress)
        ended = decisions.ended | set(found.ended_flights if found else ())
        flights = CopiesInFlight(self._partition, decisions.flights.values(), ended)
        log.log(
            logging.DEBUG if self.is_standby else logging.INFO,
            "%s: recovered to offset %d, %d timers pending; %s, read from offset %d",
            *(self._partition, progress.next_offset, store.pending),
            *("from Kafka alone" if found is None else "from its directory", start),
        )
        return Recovered(store, flights, self._plan.is_adopted)

    def _catch_up(self, store: Store, start: int, decisions: Decisions) -> None:
        progress = self._plan.progress
        if start >= progress.next_offset:
            return
        self._log_lost_requests(start)
        for records in self._history.requests(self._partition, start, progress.next_offset, decisions.refused):
            try:
                batch = replay(records, store.release_queue.is_unreleased, decisions)
            except ValueError as wrong:
                raise BridgeError(f"{self._partition}: {wrong}. The journal no longer covers the request") from wrong
            store.add(batch, progress.next_offset)

    def _log_lost_requests(self, start: int) -> None:
        first, _ = self._history.bounds(self._partition)
        end = min(first, self._plan.progress.next_offset)
        if end > start:
            log.error(
                "%s: retention has taken up to %d requests that are not in the local store, offsets %d to %d: those of"
                " them that were pending are lost; raise retention.ms to 3 roll windows",
                *(self._partition, end - start, start, end - 1),
            )
