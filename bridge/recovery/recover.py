"""A shard at start: what the disk still knows, caught up by the journal and by reading (design, invariant 5).

    progress (C, K, L)        stable, from Kafka
    checkpoint on disk        usable when it is of the same era, L <= its C <= C and its K <= K, and the journal behind
                              it is still kept: takes the store back to a commit it knows
    journal                   from where the checkpoint left it, else from the time of L's record minus a clock's skew
    requests                  from the checkpoint's C, else from L, up to C: each by the journal, else by the rule

No usable checkpoint, one of another tick, or one whose bytes cannot be right: the same from L into an empty store.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.config.loop_options import TurnOptions
from bridge.errors import BridgeError, PartitionUnreadableError, ProgressLostError, SettingsError, lost_end
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
    """None where there is none, or one that is of no use."""
    data = disk.read(NAME)
    return Checkpoint.from_bytes(data) if data else None


class Recovered(NamedTuple):
    """A shard as its committed progress says it must be."""

    store: Store
    flights: CopiesInFlight
    is_adopted: bool
    """That progress is the operator's word and does not stand in Kafka yet."""


class RecoveryPlan(NamedTuple):
    """What a start has before it."""

    progress: Progress
    found: Checkpoint | None
    """On disk, where it is of use."""
    work: int
    """Timers and requests to look through."""
    is_adopted: bool
    """`progress` is the operator's word."""


def look(shard: Shard, disk: Disk, history: History, options: TurnOptions) -> RecoveryPlan:
    """Changes nothing. Raises ProgressLostError where the operator has to say how to go on.

    Raises SettingsError if the tick has changed and retention has taken requests that the store may still hold.
    """
    found = read_checkpoint(disk)
    progress, is_adopted = _progress(shard, history, options, found)
    if found is not None and (is_adopted or not _usable(found, progress, history.journal_bounds(shard)[0])):
        log.warning("%s: the local store is of another time and is rebuilt from offset %d", shard, progress.low_offset)
        found = None
    if found is not None and found.tick_ms != options.store.tick_ms:
        _demand_all_is_kept(shard, history, progress.low_offset, found.tick_ms, options.store.tick_ms)
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
    outlook: RecoveryPlan | None = None,
) -> Recovered:
    """The shard's store as Kafka's committed progress says it must be. `outlook`: as `look` has just found it.

    Raises OSError where the disk is full or broken, and CorruptStoreError where it cannot be read and is the last copy,
    or gives back nothing that was just written; PartitionUnreadableError if another owner commits meanwhile: then none
    is open.
    """
    outlook = outlook or look(shard, disk, history, options)
    recovery = _Recovery(shard, disk, history, options, outlook.progress, outlook.is_adopted)
    try:
        recovered = recovery.run(outlook.found)
    except _UncoveredError:
        told = "%s: the local store is of another journal and is rebuilt from offset %d"
        log.warning(told, shard, outlook.progress.low_offset)
        recovered = recovery.run(None)
    except CorruptStoreError as wrong:
        if outlook.found is None:
            raise
        require_rebuildable(shard, history, outlook.progress.low_offset, wrong)
        invalidate_store(shard, disk, wrong)
        recovered = recovery.run(None)
    try:  # the journal may tell more than the progress that was read before it
        if not outlook.is_adopted and history.progress(shard) not in (None, outlook.progress):
            raise PartitionUnreadableError(f"{shard}: another owner has committed progress meanwhile")
    except BaseException:
        recovered.store.close()
        raise
    return recovered


def prepare(shard: Shard, disk: Disk, history: History, options: TurnOptions) -> None:
    """Leaves on `disk` a closed store as the committed progress says it must be, for the next `recover`."""
    # In this order: what was decided below the stable end of the journal is in the progress that is read then.
    _, journal_offset = history.journal_bounds(shard)
    store, flights, _ = recover(shard, disk, history, options)
    try:
        store.start_checkpoint(journal_offset, flights.all(), sorted(flights.ended))
        store.finish_checkpoint()
    finally:
        store.close()


def invalidate_store(shard: Shard, disk: Disk, wrong: CorruptStoreError) -> None:
    """The store on `disk`, which is closed, is `wrong`: the next `recover` makes it anew from Kafka alone."""
    log.error("%s: the local store is damaged (%s): rebuilding it from Kafka; what is not there is told", shard, wrong)
    disk.start_replace(NAME, b"").wait()


def require_rebuildable(shard: Shard, history: History, low_offset: int, wrong: CorruptStoreError) -> None:
    """Raises `wrong` where that may pass and retention has taken requests that may live: only this disk has them."""
    if isinstance(wrong, UnreadableError) and history.bounds(shard)[0] > low_offset:
        raise wrong


def _usable(found: Checkpoint, progress: Progress, journal_first: int) -> bool:
    """`journal_first`: what was decided before is gone, and perhaps what it says of this checkpoint's timers."""
    known = found.progress
    is_known = known.next_offset <= progress.next_offset and known.settled <= progress.settled
    is_near = progress.low_offset <= known.next_offset and journal_first <= found.journal_offset
    return known.era == progress.era and is_known and is_near


def _demand_all_is_kept(shard: Shard, history: History, low_offset: int, old_ms: int, new_ms: int) -> None:
    """Raise SettingsError if Kafka cannot give back what a sound store holds, which a rebuild would wipe."""
    first, _ = history.bounds(shard)
    told = f"{shard}: tick_ms was {old_ms}, is {new_ms}, so the local store has to be rebuilt from offset {low_offset}"
    if first > low_offset:
        raise SettingsError(
            f"{told}, but retention has taken the requests before {first}: start with tick_ms {old_ms}, and change it"
            f" when the timers of these requests have been delivered or rolled"
        )
    log.warning("%s; if the rebuild is refused, tick_ms %d keeps the store", told, old_ms)


def _progress(shard: Shard, history: History, options: TurnOptions, found: Checkpoint | None) -> tuple[Progress, bool]:
    """The committed progress, and whether it is the operator's word instead."""
    why = "the group has no committed offset, but timers were delivered before (if by another group: use that --group)"
    try:
        committed = history.progress(shard)
        if committed is None:
            nothing_left = found is None or found.progress.settled == NOTHING_SETTLED
            values = history.journal(shard, from_offset=None, since_ms=None)
            if nothing_left and all(_read(shard, value).is_claim for value in values):
                first, _ = history.bounds(shard)
                return Progress(first, NOTHING_SETTLED, first, era=options.era_ms), False
            committed = history.progress(shard)  # another owner may have committed the first one since the first read
    except ForeignProgressError as wrong:
        committed, why = None, str(wrong)
    if committed is None:
        return _adopted(shard, history, options, why), True
    _demand_its_end(shard, history, committed)
    return committed, False


def _demand_its_end(shard: Shard, history: History, progress: Progress) -> None:
    """Raises ProgressLostError where the partition ends before. Offsets that are not decided yet are no end."""
    _, stable = history.bounds(shard)
    if progress.next_offset > stable:
        _, end = history.open_ends([shard]).get(shard, (stable, stable))
        if progress.next_offset > end:
            raise ProgressLostError(lost_end(*shard, end, progress.next_offset))


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


def _read(shard: Shard, value: bytes) -> JournalRecord:
    try:
        return JournalRecord.from_bytes(value)
    except ValueError as wrong:
        raise BridgeError(
            f"{shard}: a record of the journal was written by a newer bridge, or by none: upgrade this one"
        ) from wrong


class _UncoveredError(Exception):
    """The journal does not go on where the store on disk leaves off: that is of another one."""


@dataclass(eq=False)
class _Recovery:
    """One way from a checkpoint, or from nothing, to the committed progress."""

    _shard: Shard
    _disk: Disk
    _history: History
    _options: TurnOptions
    _progress: Progress
    _is_adopted: bool

    def run(self, found: Checkpoint | None) -> Recovered:
        """With more slots than the settings say where the live timers span more than a lap of those."""
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
            store.progress()  # its L is looked for here, where what is damaged is still made anew
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
        """For a rebuild. Raises BridgeError where they are lost: nothing on disk is changed by then."""
        first, _ = self._history.bounds(self._shard)
        for since_ms in (self._since_ms(), None):  # all of it where brokers' clocks stood further apart
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
        """Whether it is told what became of the requests from `start` to C: ranges lie end to end."""
        return start >= self._progress.next_offset or decisions.rules_from(start)[0] is not None

    def _catch_up(self, store: Store, start: int, decisions: Decisions) -> None:
        progress = self._progress
        if start >= progress.next_offset:
            return
        self._say_what_is_gone(start)

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

    def _say_what_is_gone(self, start: int) -> None:
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
            yield _read(self._shard, value)

    def _last_waits(self) -> tuple[Wait, ...]:
        """What waits by the last record of the journal, wherever that stands: a paused target may have no timer."""
        first, end = self._history.journal_bounds(self._shard)
        for start in (max(first, end - _LOOK_BACK), first):
            last = None
            for value in self._history.journal(self._shard, from_offset=start, since_ms=None):
                last = value
            if last is not None:
                return _read(self._shard, last).waits
        return ()

    def _since_ms(self) -> int | None:
        """From when on the journal matters: the time of L's record, minus the skew of clocks; None: all of it.

        Where nothing lives, copies may still be on their way, and a transaction that hangs may hide them. They were
        written behind the last record that can be read.
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
