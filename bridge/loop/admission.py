"""Decide which polled records are taken in now, and which wait.

Reasons to wait: a rate, a full disk or wheel, too many held timers, an undecodable record. A partition whose journal
has no confirmed claim of our group is not read at all.

A record that waits stays in its partition's backlog, in order. The consumer pauses the partition, unless the wait ends
within the turn. Timers leave meanwhile.
"""

import logging

from bridge.loop.assigned_partition import AssignedPartition, Phase
from bridge.loop.assigned_partitions import AssignedPartitions
from bridge.loop.control_state import ControlState
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Metrics
from bridge.observe.pause_reasons import PauseReasons, Reason
from bridge.observe.status import undecodable_text
from bridge.partition.intake import IntakeOutcome, IntakeStop
from bridge.partition.limits import TokenBucket
from bridge.partition.partition import OwnedPartition
from bridge.ports import Record, Source, UndecodableRecord
from kafka_timer.origin import Shard

log = logging.getLogger(__name__)


class Admission:
    """Intake of a turn (steps 2 and 3 of `Bridge.turn`) for all partitions. For the loop's thread alone."""

    def __init__(
        self,
        *,
        source: Source,
        control: ControlState,
        partitions: AssignedPartitions,
        pauses: PauseReasons,
        metrics: Metrics,
    ) -> None:
        self._source = source
        self._control = control
        self._partitions = partitions
        self._pauses = pauses
        self._metrics = metrics
        self._rate_limits: dict[str, TokenBucket] = {}
        """By timer topic, those with a rate."""
        self._warnings = LogRateLimit(log)

    def admit(
        self, opened: AssignedPartition, records: list[Record], now_ms: int, *, has_read: bool = True
    ) -> IntakeStop | None:
        """Take in the backlog of a partition and then `records`, as far as they may. Return why not all.

        After IntakeStop.UNDECIDED, call again without records when no transaction is in flight.
        has_read: False if the poll asked for no records.
        """
        owned = opened.partition
        waited = bool(owned.backlog)
        if opened.phase is Phase.CLAIMING or not (records or waited or opened.phase is Phase.CATCHING_UP):
            return None  # as nearly always in a turn without a read
        shard = owned.shard
        if records:
            records = opened.missed_records(records[0].offset) or records
        _, stop, detail = self._take_in(owned, records, now_ms)
        match stop:
            case IntakeStop.DISK_FULL | IntakeStop.WHEEL_FULL | IntakeStop.TOO_MANY_HELD:
                self._pause(shard, stop.value, detail)
                self._warnings.warn(now_ms, str(shard), "%s: intake pauses: %s", shard, detail)
            case IntakeStop.TRANSACTION_FULL:
                self._pause(shard, stop.value)
            case None if owned.backlog:
                self._wait_for_rate(shard, now_ms)
            case None:
                if waited:
                    self._pauses.resume(shard)
                    self._warnings.clear(str(shard))
                was_empty, is_undecodable = has_read and not records, shard in self._pauses.undecodable
                opened.check_caught_up(now_ms, was_empty=was_empty, is_undecodable=is_undecodable)
        return stop

    def _pause(self, shard: Shard, reason: Reason, detail: str = "") -> None:
        if self._pauses.pause(shard, reason, detail):
            self._metrics.intake_paused(reason)

    def _take_in(self, owned: OwnedPartition, records: list[Record], now_ms: int) -> IntakeOutcome:
        """Take in as many records as the rate of the timer topic allows."""
        per_s = owned.options.max_requests_per_s
        if per_s is None:
            return owned.take_in(records, now_ms)
        limit = self._rate_limits.get(owned.shard.topic)
        if limit is None:
            limit = self._rate_limits[owned.shard.topic] = TokenBucket(per_s, now_ms)
        outcome = owned.take_in(records, now_ms, limit.allowance(now_ms, len(owned.backlog) + len(records)))
        limit.spend(outcome.taken)
        if outcome.taken:  # after the others of its topic, so that they take turns
            owners = self._partitions.open
            owners[owned.shard] = owners.pop(owned.shard)
        return outcome

    def _wait_for_rate(self, shard: Shard, now_ms: int) -> None:
        self._pause(shard, "rate")
        text = "%s: intake keeps to max_requests_per_s, %s; more than that waits"
        limit = self._rate_limits[shard.topic].per_s
        self._warnings.warn(now_ms, f"rate {shard.topic}", text, shard.topic, limit)

    def next_ms(self, now_ms: int) -> list[int]:
        """Return when the rates let in the next requests that wait for them."""
        owners = self._partitions.open
        waiting = [owners[shard].partition for shard in self._pauses.of("rate") if shard in owners]
        return [self._rate_limits[owned.shard.topic].next_ms(now_ms, len(owned.backlog)) for owned in waiting]

    # -- undecodable records

    def skip(self, undecodable: dict[Shard, int], records: dict[Shard, list[Record]], now_ms: int) -> None:
        """Report records that cannot be decoded. Append a stand-in to `records` for those that an operator skips."""
        waiting: dict[Shard, int] = {}
        owners = self._partitions.open
        for shard, offset in undecodable.items():
            # A backlog goes first: while there is one, the source is paused.
            if not owners[shard].partition.backlog and self._control.is_skipped(shard, offset):
                log.warning("%s: offset %d cannot be decoded, and is skipped", shard, offset)
                records[shard] = [*records.get(shard, []), UndecodableRecord(offset, 0, None, None, ())]
                self._source.rewind(shard, offset + 1)
            else:
                waiting[shard] = offset
        for shard, offset in waiting.items():
            text = undecodable_text(shard, offset)
            self._warnings.warn(now_ms, f"undecodable {shard}", "%s", text)
            if not owners[shard].partition.backlog:  # which has a reason of its own
                self._pause(shard, "undecodable", text)
        for shard in self._pauses.undecodable.keys() - waiting.keys():
            self._warnings.clear(f"undecodable {shard}")
            if shard in owners and not owners[shard].partition.backlog:
                self._pauses.resume(shard)
        self._pauses.note_undecodable(waiting)
