"""Decide how a partition is recovered: from which progress, and from the checkpoint on disk or from Kafka alone.

    progress (C, K, L)        stable, from Kafka; or adopted by the operator's word
    checkpoint on disk        usable if it has the same progress generation, L <= its C <= C, its K <= K, and the
                              journal after it is still kept

With another tick or engine the store is rebuilt.
"""

import logging
from typing import NamedTuple

from bridge.config.loop_options import TurnOptions
from bridge.errors import PartitionUnreadableError, ProgressLostError, SettingsError, truncated_partition_message
from bridge.ports import History
from bridge.recovery.journal_reader import parse_record
from schemas.origin import Shard
from schemas.progress import NOTHING_SETTLED, ForeignProgressError, Progress
from timer.disk import Disk
from timer.format.checkpoint import NAME, Checkpoint
from timer.wheel.shutdown_snapshot import is_closed_as

log = logging.getLogger(__name__)


def read_checkpoint(disk: Disk) -> Checkpoint | None:
    """Return the checkpoint, or None if there is none or it is invalid."""
    data = disk.read(NAME)
    return Checkpoint.from_bytes(data) if data else None


class RecoveryPlan(NamedTuple):
    """The start of a recovery, and how much it has to read."""

    progress: Progress
    found: Checkpoint | None
    """The checkpoint on disk, if it is usable."""
    work: int
    """Timers and requests to read."""
    is_adopted: bool
    """True if `progress` comes from --adopt-progress."""


def plan_recovery(shard: Shard, disk: Disk, history: History, options: TurnOptions) -> RecoveryPlan:
    """Return the plan; change nothing.

    Raises ProgressLostError if the operator has to decide how to go on. Raises SettingsError if the tick or the engine
    has changed and retention has deleted requests that the store may still hold.
    """
    found = read_checkpoint(disk)
    progress, is_adopted = _progress(shard, history, options, found)
    if found is not None and (is_adopted or not _usable(found, progress, history.journal_bounds(shard)[0])):
        log.warning(
            "%s: the local store does not match Kafka's progress; it is rebuilt from offset %d",
            shard,
            progress.low_offset,
        )
        found = None
    for setting in ("engine", "tick_ms"):
        if found is not None and getattr(found, setting) != getattr(options.store, setting):
            changed = (setting, getattr(found, setting), getattr(options.store, setting))
            _require_rebuild_possible(shard, history, progress.low_offset, *changed)
            found = None
    if found is None:
        return RecoveryPlan(progress, None, progress.next_offset - progress.low_offset, is_adopted)
    opens_at_once = found.engine == "rocksdb" or is_closed_as(disk, found)
    unread = progress.next_offset - found.progress.next_offset
    return RecoveryPlan(progress, found, unread + (0 if opens_at_once else found.pending), is_adopted)


def _usable(found: Checkpoint, progress: Progress, journal_first: int) -> bool:
    """Return True if a recovery may start from the checkpoint.

    journal_first: first kept offset of the journal. Earlier decisions, perhaps on this checkpoint's timers, are lost.
    """
    known = found.progress
    is_known = known.next_offset <= progress.next_offset and known.settled <= progress.settled
    is_near = progress.low_offset <= known.next_offset and journal_first <= found.journal_offset
    return known.era == progress.era and is_known and is_near


def _require_rebuild_possible(
    shard: Shard, history: History, low_offset: int, setting: str, old: object, new: object
) -> None:
    """Raise SettingsError if a rebuild would lose timers that only the sound local store still holds."""
    first, _ = history.bounds(shard)
    told = f"{shard}: {setting} was {old}, is {new}, so the local store has to be rebuilt from offset {low_offset}"
    if first > low_offset:
        raise SettingsError(
            f"{told}, but retention has taken the requests before {first}: start with {setting} {old}, and change it"
            f" when the timers of these requests have been delivered or rolled"
        )
    log.warning("%s; if the rebuild is refused, %s %s keeps the store", told, setting, old)


def _progress(shard: Shard, history: History, options: TurnOptions, found: Checkpoint | None) -> tuple[Progress, bool]:
    """Return the progress to recover to, and whether it comes from --adopt-progress."""
    why = "the group has no committed offset, but timers were delivered before (if by another group: use that --group)"
    try:
        committed = history.progress(shard)
        if committed is None:
            nothing_left = found is None or found.progress.settled == NOTHING_SETTLED
            values = history.journal(shard, from_offset=None, since_ms=None)
            if nothing_left and all(parse_record(shard, value).is_claim for value in values):
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
        ends = history.stable_and_end_offsets([shard])
        if shard not in ends:
            raise PartitionUnreadableError(f"{shard}: no answer in time about its end offset")
        _, end = ends[shard]
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
