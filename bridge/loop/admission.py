"""Decide which polled records are taken in now, and which wait.

Reasons to wait: a rate, a full disk or wheel, too many held timers, an undecodable record. A partition whose journal
has no confirmed claim of our group is not read at all.

A record that waits stays in its partition's backlog, in order. The consumer pauses the partition, unless the wait ends
within the turn. Timers leave meanwhile.
"""

import logging

from bridge.intake.partition_intake import IntakeOutcome, IntakeStop
from bridge.loop.assigned_partition import AssignedPartition, Phase
from bridge.loop.assigned_partitions import AssignedPartitions
from bridge.loop.control_state import ControlState
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status, undecodable_text
from bridge.ports import Record, Source, UndecodableRecord
from bridge.release.owned_partition import OwnedPartition
from bridge.token_bucket import TokenBucket
from schemas.origin import Shard

log = logging.getLogger(__name__)


class Admission:
    """Intake of a turn (steps 2 and 3 of `Bridge.turn`) for all partitions. For the loop's thread alone."""

    def __init__(
        self,
        *,
        source: Source,
        control: ControlState,
        partitions: AssignedPartitions,
        status: Status,
        metrics: Metrics,
    ) -> None:
        self._source = source
        self._control = control
        self._partitions = partitions
        self._status = status
        self._metrics = metrics
        self._rate_limits: dict[str, TokenBucket] = {}
        """By timer topic, those with a rate."""
        self._rate_limited: set[Shard] = set()
        """Partitions whose intake waits for a rate."""
        self._undecodable: dict[Shard, int] = {}
        """Partitions whose next record cannot be decoded and is not skipped: its offset."""
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
        self._rate_limited.discard(owned.shard)
        if records:
            records = opened.missed_records(records[0].offset) or records
        _, stop, detail = self._take_in(owned, records, now_ms)
        match stop:
            case IntakeStop.UNDECIDED:
                pass
            case IntakeStop.DISK_FULL | IntakeStop.WHEEL_FULL | IntakeStop.TOO_MANY_HELD:
                self._pause(owned, stop.value, detail)
                self._warnings.warn(now_ms, str(owned.shard), "%s: intake pauses: %s", owned.shard, detail)
            case IntakeStop.TRANSACTION_FULL | None:
                if waited:
                    self._status.partition_running(owned.shard)
                if stop is not None:  # only until the next commit, so neither status nor metrics show it
                    self._source.pause(owned.shard)
                    self._metrics.intake_resumed(owned.shard)
                elif owned.backlog:
                    self._wait_for_rate(owned, now_ms)
                else:
                    self._go_on(opened, now_ms, waited=waited, was_empty=has_read and not records)
        return stop

    def _pause(self, owned: OwnedPartition, why: str, detail: str) -> None:
        self._source.pause(owned.shard)
        self._status.intake_paused(owned.shard, why, detail)
        self._metrics.intake_paused(owned.shard, why)

    def _go_on(self, opened: AssignedPartition, now_ms: int, *, waited: bool, was_empty: bool) -> None:
        """Everything is taken in: read more. waited: there was a backlog. was_empty: Kafka brought nothing."""
        shard = opened.shard
        if waited:
            self._source.resume(shard)
            self._metrics.intake_resumed(shard)
            self._warnings.clear(str(shard))
        opened.check_caught_up(now_ms, was_empty=was_empty, is_undecodable=shard in self._undecodable)

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

    def _wait_for_rate(self, owned: OwnedPartition, now_ms: int) -> None:
        self._rate_limited.add(owned.shard)
        self._source.pause(owned.shard)
        self._metrics.intake_paused(owned.shard, "rate")
        topic = owned.shard.topic
        text = "%s: intake keeps to max_requests_per_s, %s; more than that waits"
        self._warnings.warn(now_ms, f"rate {topic}", text, topic, self._rate_limits[topic].per_s)

    def next_ms(self, now_ms: int) -> list[int]:
        """Return when the rates let in the next requests that wait for them."""
        owners = self._partitions.open
        waiting = [owners[shard].partition for shard in self._rate_limited if shard in owners]
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
                self._status.intake_paused(shard, "undecodable", text)
                self._metrics.intake_paused(shard, "undecodable")
        for shard in self._undecodable.keys() - waiting.keys():
            self._warnings.clear(f"undecodable {shard}")
            if shard in owners and not owners[shard].partition.backlog:
                self._status.partition_running(shard)
                self._metrics.intake_resumed(shard)
        self._metrics.undecodable = self._undecodable = waiting
