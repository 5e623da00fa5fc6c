"""Decide which polled records are taken in now, and which wait.

Reasons to wait: a rate, a full disk or wheel, too many held timers, an undecodable record. A partition whose journal
has no confirmed claim of our group is not read at all.

A record that waits stays in its partition's backlog, in order. The consumer pauses the partition, unless the wait ends
within the turn. Timers leave meanwhile.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bridge.loop.assigned_partition import AssignedPartition, Phase
from bridge.loop.assigned_partitions import AssignedPartitions
from bridge.loop.control_state import ControlState
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Metrics
from bridge.observe.pause_reasons import COUNTED, PauseReasons, Reason
from bridge.observe.status import undecodable_text
from bridge.partition.limits import TokenBucket
from bridge.partition.partition import IntakeStop
from bridge.ports import Clock, Polled, Record, Source, UndecodableRecord
from kafka_timer.origin import TimerPartition
from schemas.units import size_text

log = logging.getLogger(__name__)

_PARTITION_MS = 20
_TURN_MS = 40
"""CPU time for parsing and intake of one partition in a turn, and of all: timers of all partitions leave after it."""
_MOST_WAIT = 4
"""It may last this many times as long. If the time itself were the limit, an instance that gets a fifth of a core would
take in a few requests in each turn, whose other costs stay the same.
"""


@dataclass(eq=False)
class Admission:
    """Intake of a turn (steps 2 and 3 of `Bridge.turn`) for all partitions. For the loop's thread alone."""

    _clock: Clock
    _source: Source
    _control: ControlState
    _partitions: AssignedPartitions
    _pauses: PauseReasons
    _metrics: Metrics

    def __post_init__(self) -> None:
        self._rate_limits: dict[str, TokenBucket] = {}
        """By timer topic, those with a rate."""
        self._turn_ends_ms = self._turn_cpu_ends_ms = 0
        self._skips_read = False
        """True if the next turn is for the rest of what this one has read."""
        self._warnings = LogRateLimit(log)

    def admit(self, opened: AssignedPartition, records: list[Record], now_ms: int, *, has_read: bool) -> None:
        """Take in the backlog of a partition, then `records`, as far as they may. has_read: records were asked for."""
        timer_partition, partition, waited = opened.name, opened.partition, bool(opened.partition.backlog)
        if opened.phase is Phase.CLAIMING or not (records or waited or opened.phase is Phase.CATCHING_UP):
            return  # as nearly always in a turn without a read
        if records:
            records = opened.missed_records(records[0].offset) or records
        if (records or waited) and partition.is_frozen and opened.is_checkpoint_overdue(now_ms):
            partition.wait_for_commit(records)
            self._pause(timer_partition, IntakeStop.TURN_FULL.value)
            return
        is_over = self._is_over()
        stop, detail = self._take_in_some(opened, records, now_ms, is_over)
        match stop:
            case IntakeStop.DISK_FULL | IntakeStop.WHEEL_FULL | IntakeStop.TOO_MANY_HELD:
                self._pause(timer_partition, stop.value, detail)
                self._warnings.warn(now_ms, str(timer_partition), "%s: intake pauses: %s", timer_partition, detail)
            case IntakeStop.TURN_FULL if records and is_over(1):
                self._skips_read = True  # a pause would cost another fetch of what the client has
            case IntakeStop.TURN_FULL:
                self._pause(timer_partition, stop.value)
            case None if partition.backlog:
                self._pause(timer_partition, "rate")
                topic, text = timer_partition.topic, "%s: intake keeps to max_requests_per_s, %s; more than that waits"
                self._warnings.warn(now_ms, f"rate {topic}", text, topic, self._rate_limits[topic].per_s)
            case None:
                if waited:
                    self._pauses.resume(timer_partition)
                    self._warnings.clear(str(timer_partition))
                was_empty, is_undecodable = has_read and not records, timer_partition in self._pauses.undecodable
                opened.check_caught_up(now_ms, was_empty=was_empty, is_undecodable=is_undecodable)

    def _pause(self, timer_partition: TimerPartition, reason: Reason, detail: str = "") -> None:
        if self._pauses.pause(timer_partition, reason, detail) and reason in COUNTED:
            self._metrics.pauses.labels(reason).inc()

    def _take_in_some(
        self, opened: AssignedPartition, records: list[Record], now_ms: int, is_over: Callable[[float], bool]
    ) -> tuple[IntakeStop | None, str]:
        """Take in as many records as rate and disk allow. Return why not all, with a text."""
        partition, owners = opened.partition, self._partitions.open
        per_s = partition.options.max_requests_per_s
        if per_s is not None and opened.name.topic not in self._rate_limits:
            self._rate_limits[opened.name.topic] = TokenBucket(per_s, now_ms)
        limit = self._rate_limits.get(opened.name.topic)
        most = None if limit is None else limit.allowance(now_ms, len(partition.backlog) + len(records))
        taken, stop, detail = partition.take_in(records, now_ms, most, no_room=self._no_room(opened), is_over=is_over)
        if limit is not None:
            limit.spend(taken)
        if taken and (limit is not None or is_over(1)):  # the next turn begins with another partition
            owners[opened.name] = owners.pop(opened.name)
        return stop, detail

    @property
    def max_poll_records(self) -> int:
        """Requests to read in the next turn."""
        return 0 if self._skips_read else self._partitions.options.max_poll_records

    def _is_over(self) -> Callable[[float], bool]:
        """Return a check whether the partition that is admitted now has had a part (0 to 1) of its time."""
        now_ms, cpu_ms = self._clock.now_ms, self._clock.cpu_ms
        began_ms, began_cpu_ms = now_ms(), cpu_ms()
        most_ms = min(_MOST_WAIT * _PARTITION_MS, self._turn_ends_ms - began_ms)
        most_cpu_ms = min(_PARTITION_MS, self._turn_cpu_ends_ms - began_cpu_ms)
        return lambda part: cpu_ms() - began_cpu_ms >= part * most_cpu_ms or now_ms() - began_ms >= part * most_ms

    def _no_room(self, opened: AssignedPartition) -> str:
        """Return why the disk has no room for bodies; empty if it has."""
        least = opened.partition.options.min_free_bytes
        try:
            free = opened.disk.free_bytes()
        except OSError as error:
            return str(error)
        if free < least and free < self._least_free_bytes(opened.name):
            return f"{free} bytes are free, min_free_bytes is {size_text(least)}"
        return ""

    def _least_free_bytes(self, timer_partition: TimerPartition) -> int:
        """Return the free room below which intake pauses: half, for a topic with less than its share of all bytes."""
        held: Counter[str] = Counter()
        for each, opened in self._partitions.open.items():
            held[each.topic] += opened.partition.store.queries.size_bytes
        least = self._partitions.options.min_free_bytes
        return least if held[timer_partition.topic] * len(held) >= held.total() else least // 2

    def next_ms(self, now_ms: int) -> list[int]:
        """Return when the rates let in the next requests that wait for them."""
        owners, buckets = self._partitions.open, self._rate_limits
        waiting = [each for each in self._pauses.of("rate") if each in owners]
        return [buckets[each.topic].next_ms(now_ms, len(owners[each].partition.backlog)) for each in waiting]

    def begin_turn(self, polled: Polled, now_ms: int) -> None:
        """Report records that cannot be decoded. Append a stand-in to `polled` for those that an operator skips."""
        self._turn_ends_ms, self._skips_read = now_ms + _MOST_WAIT * _TURN_MS, False
        self._turn_cpu_ends_ms = self._clock.cpu_ms() + _TURN_MS
        records, undecodable = polled.records, polled.undecodable
        if not undecodable and not self._pauses.undecodable:
            return
        waiting: dict[TimerPartition, int] = {}
        owners = self._partitions.open
        for timer_partition, offset in undecodable.items():
            # A backlog goes first: while there is one, the source is paused.
            if not owners[timer_partition].partition.backlog and self._control.is_skipped(timer_partition, offset):
                log.warning("%s: offset %d cannot be decoded, and is skipped", timer_partition, offset)
                records.setdefault(timer_partition, []).append(UndecodableRecord(offset, 0, None, None, ()))
                self._source.rewind(timer_partition, offset + 1)
                continue
            waiting[timer_partition] = offset
            text = undecodable_text(timer_partition, offset)
            self._warnings.warn(now_ms, f"undecodable {timer_partition}", "%s", text)
            if not owners[timer_partition].partition.backlog:  # which has a reason of its own
                self._pause(timer_partition, "undecodable", text)
        for timer_partition in self._pauses.undecodable.keys() - waiting.keys():
            self._warnings.clear(f"undecodable {timer_partition}")
            if timer_partition in owners and not owners[timer_partition].partition.backlog:
                self._pauses.resume(timer_partition)
        self._pauses.note_undecodable(waiting)
