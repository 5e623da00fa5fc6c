"""Bring a partition's store to Kafka's committed progress (design, invariant 5).

    checkpoint on disk        if it is usable (bridge.recovery.recovery_plan): takes the store back to a committed state
    journal                   from the checkpoint's offset, else from the time of L's record minus the clock skew
    requests                  from the checkpoint's C, else from L, up to C: each by the journal, else by the rules

Without a usable checkpoint, or with damaged files, the store is rebuilt from L into empty files.
"""

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.config.loop_options import TurnOptions
from bridge.errors import BridgeError, PartitionUnreadableError
from bridge.intake.copies_in_flight import CopiesInFlight
from bridge.ports import History
from bridge.recovery.journal_reader import JournalReader
from bridge.recovery.recovery_plan import RecoveryPlan, plan_recovery
from bridge.recovery.replay import replay
from schemas.headers import Rules
from schemas.journal import Decisions
from schemas.origin import Shard, origin
from timer.disk import Disk
from timer.engines import create_store, open_store
from timer.errors import CorruptStoreError, UnreadableError, WheelFullError
from timer.format.checkpoint import MOST_SLOTS, NAME, UNITS, Checkpoint
from timer.options import StoreOptions
from timer.store import Store

log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """A partition in the state of its committed progress."""

    store: Store
    flights: CopiesInFlight
    is_adopted: bool
    """True if the progress comes from --adopt-progress and is not committed to Kafka yet."""


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
    journal = JournalReader(shard, history, options, plan.progress)
    recovery = _Recovery(shard, disk, history, options, plan)
    found, decisions = plan.found, None
    if found is not None and (decisions := journal.since(found)) is None:
        low_offset = plan.progress.low_offset
        log.warning("%s: the local store is of another journal and is rebuilt from offset %d", shard, low_offset)
        found = None
    try:
        recovered = recovery.run(found, decisions or journal.for_rebuild())
    except CorruptStoreError as wrong:
        if found is None:
            raise
        require_rebuildable(shard, history, plan.progress.low_offset, wrong)
        invalidate_store(shard, disk, wrong)
        recovered = recovery.run(None, journal.for_rebuild())
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


@dataclass(eq=False)
class _Recovery:
    """One recovery, from a checkpoint or from empty files, to the committed progress."""

    _shard: Shard
    _disk: Disk
    _history: History
    _options: TurnOptions
    _plan: RecoveryPlan

    def run(self, found: Checkpoint | None, decisions: Decisions) -> Recovered:
        """Recover; use more slots than the settings say if the pending timers span more than a lap of the wheel."""
        options = self._options.store
        while True:
            try:
                return self._run(found, decisions, options)
            except WheelFullError as full:
                if found is not None and 2 * options.slots > MOST_SLOTS:
                    raise CorruptStoreError(UNITS, f"visits further apart than {MOST_SLOTS} ticks") from full
                options = replace(options, slots=2 * options.slots)
                log.warning("%s: %s: starting with %d slots", self._shard, full, options.slots)

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
        flights = CopiesInFlight(self._shard, decisions.flights.values(), ended)
        log.info(
            "%s: recovered to offset %d, %d timers pending; %s, read from offset %d",
            *(self._shard, progress.next_offset, store.pending),
            *("from Kafka alone" if found is None else "from its directory", start),
        )
        return Recovered(store, flights, self._plan.is_adopted)

    def _catch_up(self, store: Store, start: int, decisions: Decisions) -> None:
        progress = self._plan.progress
        if start >= progress.next_offset:
            return
        self._log_lost_requests(start)

        def rules_from(offset: int) -> tuple[Rules, int]:
            rules, until = decisions.rules_from(offset)
            if rules is None:
                raise ValueError(f"offset {offset} was taken in before, by unknown rules")
            return rules, until

        for records in self._history.requests(self._shard, start, progress.next_offset, decisions.refused):
            try:
                batch = replay(records, store.release_queue.is_unreleased, rules_from, decisions, self._offset_of)
            except ValueError as wrong:
                raise BridgeError(f"{self._shard}: {wrong}. The journal no longer covers the request") from wrong
            store.add(batch, progress.next_offset)

    def _log_lost_requests(self, start: int) -> None:
        first, _ = self._history.bounds(self._shard)
        end = min(first, self._plan.progress.next_offset)
        if end > start:
            log.error(
                "%s: retention has taken up to %d requests that are not in the local store, offsets %d to %d: those of"
                " them that were pending are lost; raise retention.ms to 3 roll windows",
                self._shard,
                end - start,
                start,
                end - 1,
            )

    def _offset_of(self, origin_: bytes) -> int:
        return int(origin_.removeprefix(origin(self._shard, 0)[:-1]))
