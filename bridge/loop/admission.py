"""Decide which polled records are taken in now, and which wait.

Reasons to wait: a rate, a full disk or wheel, too many held timers, an undecodable record. A partition whose journal
has no confirmed claim of our group is not read at all.

A record that waits stays in its partition's backlog, in order. The consumer pauses the partition, unless the wait ends
within the turn. Timers leave meanwhile.
"""

import logging

from bridge.config.durations import has_passed
from bridge.intake.partition_intake import IntakeOutcome, IntakeStop
from bridge.loop.assigned_partitions import AssignedPartitions
from bridge.loop.control_state import ControlState
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.status import undecodable_text
from bridge.ports import Record, UndecodableRecord
from bridge.release.owned_partition import OwnedPartition, StallProbe
from bridge.token_bucket import TokenBucket
from schemas.origin import Shard

log = logging.getLogger(__name__)

_STALL_MS = 5000
"""A client that fetches has brought something by then. If brokers throttle it, after twice the time, and so on."""


class Admission:
    """Intake of a turn (steps 2 and 3 of `Bridge.turn`) for all partitions. For the loop's thread alone."""

    def __init__(self, partitions: AssignedPartitions, control: ControlState) -> None:
        self._partitions = partitions
        self._control = control
        self._clock = partitions.clock
        self._source = partitions.source
        self._history = partitions.history
        self._status = partitions.status
        self._metrics = partitions.metrics
        self._rate_limits: dict[str, TokenBucket] = {}
        """By timer topic, those with a rate."""
        self._rate_limited: set[Shard] = set()
        """Partitions whose intake waits for a rate."""
        self._undecodable: dict[Shard, int] = {}
        """Partitions whose next record cannot be decoded and is not skipped: its offset."""
        self._warnings = LogRateLimit(log)

    def take_in(self, records: dict[Shard, list[Record]], now_ms: int, *, has_read: bool) -> list[OwnedPartition]:
        """Take in `records` and the backlogs, as far as they may. Return partitions that wait for an outcome.

        Those have a request for a timer of a transaction in flight: call `take_in_waiting` when its outcome is known.
        has_read: False if the poll asked for no records.
        """
        waiting: list[OwnedPartition] = []

        def take_in(owned: OwnedPartition) -> None:
            stop = self._take_in_one(owned, records.get(owned.shard, []), now_ms, has_read=has_read)
            if stop is IntakeStop.UNDECIDED:
                waiting.append(owned)

        self._partitions.each(take_in)
        return waiting

    def take_in_waiting(self, waiting: list[OwnedPartition], now_ms: int) -> None:
        """Take in the backlogs of `waiting`, when no transaction is in flight any more."""

        def take_in(owned: OwnedPartition) -> None:
            if owned in waiting:
                self._take_in_one(owned, [], now_ms)

        self._partitions.each(take_in)

    def _take_in_one(
        self, owned: OwnedPartition, records: list[Record], now_ms: int, *, has_read: bool = True
    ) -> IntakeStop | None:
        waited = bool(owned.backlog)
        if not owned.is_claimed or not (records or waited or owned.release_barrier is not None):
            return None  # as nearly always in a turn without a read
        self._rate_limited.discard(owned.shard)
        if records:
            records = self._read_missed_records(owned, records[0].offset) or records
        _, stop, detail = self._admit(owned, records, now_ms)
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
                    self._go_on(owned, now_ms, waited=waited, was_empty=has_read and not records)
        return stop

    def _pause(self, owned: OwnedPartition, why: str, detail: str) -> None:
        self._source.pause(owned.shard)
        self._status.intake_paused(owned.shard, why, detail)
        self._metrics.intake_paused(owned.shard, why)

    def _go_on(self, owned: OwnedPartition, now_ms: int, *, waited: bool, was_empty: bool) -> None:
        """Everything is taken in: read more. waited: there was a backlog. was_empty: Kafka brought nothing."""
        if waited:
            self._source.resume(owned.shard)
            self._metrics.intake_resumed(owned.shard)
            self._warnings.clear(str(owned.shard))
        self._check_caught_up(owned, now_ms, was_empty=was_empty)

    def _admit(self, owned: OwnedPartition, records: list[Record], now_ms: int) -> IntakeOutcome:
        """Take in as many records as the rate of the timer topic allows."""
        per_s = self._partitions.options.of(owned.shard.topic).max_requests_per_s
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
        waiting = [owners[shard] for shard in self._rate_limited if shard in owners]
        return [self._rate_limits[owned.shard.topic].next_ms(now_ms, len(owned.backlog)) for owned in waiting]

    # -- what the client does not bring

    def _read_missed_records(self, owned: OwnedPartition, first: int) -> list[Record]:
        """Return records between the start position and the first polled record: nearly always none, or markers.

        librdkafka 2.16 once began one record too late, because an assignment had just been given up. Returns at most
        one batch; the source yields what follows it.
        """
        start, owned.starts_at = owned.starts_at, None
        if start is None or start >= first:
            return []
        found = next(self._history.requests(owned.shard, start, first), [])
        if found:
            text = "%s: the Kafka client left out %d requests at its start: reading them again"
            log.warning(text, owned.shard, len(found))
            owned.starts_at = found[-1].offset + 1
            self._source.rewind(owned.shard, owned.starts_at)
        return found

    def _check_caught_up(self, owned: OwnedPartition, now_ms: int, *, was_empty: bool) -> None:
        """After an opening: lift the release barrier when all records of that time are read. Markers are never polled.

        If Kafka holds more and the client brings nothing, read from there again (see `_read_missed_records`).
        """
        end = owned.release_barrier
        if end is None:
            return
        if owned.shard in self._undecodable:  # it cannot be read, so nothing waits for it
            owned.note_read(nothing_more=True)
            return
        start, nothing_more = owned.store.next_offset, False
        last = owned.stall_probe
        is_stalled = start == last.offset and now_ms >= last.at_ms
        if was_empty and (not is_stalled or has_passed(last.at_ms, now_ms, last.enough_for_ms)):
            owned.stall_probe = StallProbe(start, now_ms, 2 * last.enough_for_ms if is_stalled else _STALL_MS)
            is_empty = self._partitions.is_empty(owned.shard, start, end)
            nothing_more = is_empty is True
            if is_stalled and is_empty is False:
                text = "%s: the Kafka client returns nothing from offset %d on, though there is more: reading again"
                log.warning(text, owned.shard, start)
                owned.starts_at = max(start, owned.starts_at or 0)  # retention has taken what is below
                self._source.rewind(owned.shard, owned.starts_at)
        owned.note_read(nothing_more=nothing_more)

    # -- undecodable records

    def skip(self, undecodable: dict[Shard, int], records: dict[Shard, list[Record]], now_ms: int) -> None:
        """Report records that cannot be decoded. Append a stand-in to `records` for those that an operator skips."""
        waiting: dict[Shard, int] = {}
        owners = self._partitions.open
        for shard, offset in undecodable.items():
            # A backlog goes first: while there is one, the source is paused.
            if not owners[shard].backlog and self._control.is_skipped(shard, offset):
                log.warning("%s: offset %d cannot be decoded, and is skipped", shard, offset)
                records[shard] = [*records.get(shard, []), UndecodableRecord(offset, 0, None, None, ())]
                self._source.rewind(shard, offset + 1)
            else:
                waiting[shard] = offset
        for shard, offset in waiting.items():
            text = undecodable_text(shard, offset)
            self._warnings.warn(now_ms, f"undecodable {shard}", "%s", text)
            if not owners[shard].backlog:  # which has a reason of its own
                self._status.intake_paused(shard, "undecodable", text)
                self._metrics.intake_paused(shard, "undecodable")
        for shard in self._undecodable.keys() - waiting.keys():
            self._warnings.clear(f"undecodable {shard}")
            if shard in owners and not owners[shard].backlog:
                self._status.partition_running(shard)
                self._metrics.intake_resumed(shard)
        self._metrics.undecodable = self._undecodable = waiting
