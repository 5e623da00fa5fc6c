"""The loop: one thread, one turn after the other.

    1 poll      wait for a request, or until the next due time
    2 intake    requests -> timers, overdue ones, refusals     bridge.loop.admission, bridge.partition
    3 store     timers to disk                                 no reader sees anything of 2-4 before 5
    4 due       timers whose time has come                     bridge.partition
    5 publish   a transaction: deliveries, rejected, journal, progress of the partitions that have none in flight.
                Each freezes its part (Partition.freeze), CommitPipeline.submit puts them together
    6 advance   at the start of a later turn: what is committed is settled in the stores; now and then a checkpoint

After a crash before the commit of 5 the next run takes the store back to its checkpoint and reads again from C; no
reader saw anything. After a later crash it reads (C, K) and the journal, and settles what was delivered. C is the next
offset to read, K the last settled key (schemas.progress).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from bridge.errors import PartitionUnreadableError
from bridge.garbage_collection import trim_malloc
from bridge.loop.admission import Admission
from bridge.loop.assigned_partition import AssignedPartition, Phase
from bridge.loop.assigned_partitions import AssignedPartitions, asked_ahead
from bridge.loop.commit_pipeline import CommitPipeline, Part
from bridge.loop.control_state import ControlState
from bridge.loop.monitors import Monitors
from bridge.loop.standbys import Standbys
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.partition.limits import CircuitBreakers
from bridge.partition.options import TurnOptions
from bridge.partition.partition import Partition
from bridge.ports import BackgroundRecovery, Clock, History, Ownership, Polled, Ports, Sink, Source
from kafka_timer.origin import TimerPartition
from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.index.due_counts import DueRange, joined_hours, joined_ranges

log = logging.getLogger(__name__)

_READING_FIRST_WAIT_MS = 10
_PREPARING_WAIT_MS = 50
_TRANSACTION_WAIT_MS = 10
"""Soon enough to notice that a transaction was aborted."""
TURN_MS = 80
"""Time of a turn for timers that leave, without waits for transactions in flight. Intake has its own (admission.py)."""
FLOODED_TURN_MS = 320
"""The same while all partitions have more timers due: none waits for a short turn, and large transactions cost less."""
LEAST_TIMERS = 32


class ReleasePace:
    """How many timers of each partition may leave in a turn, so that a burst of some does not make others late.

        4 partitions have 4,000 timers due at once    the turn takes 900 ms, and timers of others are as late
        with a pace                                   some hundreds of each leave in a turn of 80 ms

    A turn drafts the timers of all partitions, sends them in one transaction, and settles those of an earlier one. What
    that takes depends on partitions, sizes, disk and brokers, so it is measured.
    """

    def __init__(self, most_timers: int) -> None:
        """most_timers: of one partition in one transaction."""
        self._most = most_timers
        self.timers = LEAST_TIMERS

    def adapt(self, took_ms: int, partitions: int, full: int) -> None:
        """Set the pace of the next turn.

        took_ms: for timers that left in this turn. full: number of partitions that may have had more of them due.
        """
        most_ms = TURN_MS if full < partitions else FLOODED_TURN_MS
        if full or took_ms > most_ms:
            fitting = self.timers * most_ms // max(1, took_ms)
            self.timers = max(LEAST_TIMERS, min(fitting, 2 * self.timers, self._most))
        else:  # the next burst may be one of all partitions
            self.timers = max(LEAST_TIMERS, self._most // max(1, partitions), self.timers // 2)


class Bridge:
    """All partitions that this instance owns, over its ports. For one thread, except `request_stop` and `wake`."""

    def __init__(
        self,
        *,
        clock: Clock,
        source: Source,
        history: History,
        sink: Sink,
        disk_for: Callable[[TimerPartition], Disk],
        options: TurnOptions,
        prepare: Callable[[TimerPartition], BackgroundRecovery],
        control: ControlState,
        status: Status,
        metrics: Metrics,
        standbys: Standbys | None = None,
    ) -> None:
        """control: what operators ask for. status, metrics: outlive this run."""
        self._clock, self._source, self._history, self._control = clock, source, history, control
        self._metrics, self._status, self._standbys = metrics, status, standbys
        self._breakers = CircuitBreakers(options.rules.own_topics)
        ports = Ports(clock, source, history, disk_for, prepare)
        self._partitions = AssignedPartitions(ports, options, control, status, metrics, self._breakers)
        self._admission = Admission(clock, source, control, self._partitions, status.pauses, metrics)
        self._pipeline = CommitPipeline(sink, clock, metrics, self._breakers, source.membership)
        self.monitors = Monitors(clock, history, metrics, status.pauses, self._partitions, self._pipeline)
        self._pace = ReleasePace(options.max_due_records)
        self._stopping = False
        self._now_ms = 0
        """Time of the turn, or of the wait before it."""
        self._is_busy = False
        """True if the last turn left timers that are due, or a transaction of an earlier turn, as others may wait."""

    # -- for other modules

    @property
    def ready(self) -> bool:
        """True if partitions are assigned, and all of them are recovered."""
        phases = self.phases.values()
        return bool(phases) and all(phase in (Phase.CATCHING_UP, Phase.OPEN) for phase in phases)

    @property
    def phases(self) -> dict[TimerPartition, Phase]:
        return {name: each.phase for name, each in (self._partitions.opening | self._partitions.open).items()}

    @property
    def partitions(self) -> Mapping[TimerPartition, Partition]:
        return {name: opened.partition for name, opened in self._partitions.open.items()}

    @property
    def pending(self) -> dict[TimerPartition, int]:
        return {name: owned.store.pending + owned.flights.alive_count for name, owned in self.partitions.items()}

    @property
    def lags(self) -> dict[TimerPartition, int]:
        """The offsets that are not read yet, of each partition for which they are known."""
        return {name: each.lag for name, each in self._metrics.lags.items()}

    def due_ranges(self, is_over: Callable[[], bool] = lambda: False) -> dict[str, DueRange]:
        """As `Partition.due_ranges`, of all our partitions together."""
        return joined_ranges(owned.due_ranges(is_over) for owned in self.partitions.values())

    def due_hours(self) -> dict[str, Counter[int]]:
        """As `Partition.due_hours`, of all our partitions together."""
        return joined_hours(owned.due_hours() for owned in self.partitions.values())

    def free_bytes(self) -> int | None:
        """Return the least free room on the disks of the open partitions, or None."""
        return min((opened.disk.free_bytes() for opened in self._partitions.open.values()), default=None)

    @property
    def options(self) -> TurnOptions:
        return self._partitions.options

    def use(self, options: TurnOptions) -> None:
        """Share the limits out again, after a timer topic has got more partitions."""
        self._partitions.use(options)

    @property
    def is_idle(self) -> bool:
        """True if nothing is drafted or in a transaction in flight: what was read and what has left is committed."""
        return self._pipeline.is_idle and not any(each.partition.has_news() for each in self._awake)

    def release_memory(self) -> None:
        """Give memory back that only the next work will need."""
        for owned in self.partitions.values():
            owned.store.release_memory()
        trim_malloc()

    def wake(self) -> None:
        """End a waiting poll soon; for any thread."""
        self._source.wake()

    def request_stop(self) -> None:
        """End a waiting poll and any retry of a transaction; for a signal handler."""
        self._stopping = True
        self._source.wake()

    def finish(self) -> None:
        """Make the last turn of a clean end: all that is stored is committed, so that the next start reads little."""
        self.request_stop()
        self._pipeline.drain()
        if not self.is_idle:
            self.turn()

    def stop(self) -> None:
        """Close everything, between two turns. Stored requests are committed already or will be read again.

        Raises what a transaction's outcome raises, after all is closed and others may have our partitions.
        """
        with ExitStack() as ends:
            if self._standbys is None:
                ends.callback(self._source.close)
            self._partitions.give_up_all(ends)
            if self._standbys is not None:  # others take over at once, while our stores are closed
                ends.callback(self._source.close)
                ends.callback(self._partitions.start_last_checkpoints)
                ends.callback(self._standbys.give_up)
            self._pipeline.drain()

    # -- a turn

    def turn(self) -> None:
        """Make one turn. Waits in step 1 until there is something to do, at most `max_wait_ms`."""
        paused = self._status.pauses.unfetched
        most, is_busy = self._admission.max_poll_records, self._is_busy
        polled = self._source.poll(self._wait_ms(), most, paused, is_busy=is_busy)  # 1
        began_ms = self._clock.now_ms() - self._pipeline.waited_ms
        self._status.polled(is_member=self._source.membership.is_member)
        self._open_and_close(polled.ownership)
        opened = dict(self._partitions.open)
        self._now_ms = now_ms = self._clock.now_ms()
        self._maintain(now_ms)
        for name in polled.records.keys() | polled.undecodable.keys():
            if name not in opened or self._partitions.open.get(name) is not opened[name]:
                # The records of a partition that was opened again meanwhile are read again.
                polled.records.pop(name, None)
                polled.undecodable.pop(name, None)
        self._admit(polled, now_ms)  # 2, 3
        admitted_ms = self._clock.now_ms()
        group = self._publish(now_ms)  # 4, 5
        is_full = any(each.is_full for each in group)
        took_ms = self._clock.now_ms() - self._pipeline.waited_ms - admitted_ms + now_ms - began_ms
        if group:  # else all have a transaction in flight, which says nothing of the pace
            full = sum(each.is_full for each in self._partitions.open.values())
            self._pace.adapt(took_ms, len(self._partitions.open), full)
        self._pipeline.reap()
        self._is_busy = is_full or self._pipeline.oldest_ms < now_ms
        if self._breakers or self._status.unavailable_targets:
            self._status.targets_checked(self._breakers.unavailable(self._clock.now_ms()))

    @property
    def _awake(self) -> list[AssignedPartition]:
        """Those that do not rest. A turn makes no call for the others."""
        return [each for each in self._partitions.open.values() if self._now_ms not in each.rest]

    def _each(
        self, step: Callable[[AssignedPartition], object], partitions: Iterable[AssignedPartition] | None = None
    ) -> None:
        """Call `step` for these open partitions, or for all awake ones. A damaged or unreadable one is opened again."""
        for opened in list(self._awake if partitions is None else partitions):
            try:
                step(opened)
            except (CorruptStoreError, PartitionUnreadableError) as wrong:
                self._pipeline.drain([opened.partition])  # its outcome is known before it is closed
                self._partitions.reopen(opened, wrong)

    def _open_and_close(self, ownership: Ownership) -> None:
        """Apply a rebalance, open what was prepared, and bring all open partitions to the control topic's state."""
        partitions = self._partitions
        if ownership:
            self._pipeline.drain()  # every outcome is known before a partition changes hands
        self._pipeline.reap()
        if self._standbys is not None and (ownership or partitions.opening):
            self._standbys.give_up()
        elif self._standbys is not None:
            self._standbys.step(partitions.open)
        partitions.apply(ownership)
        if not self._stopping:  # else a long recovery would hold up the end
            partitions.open_prepared()
        if confirmed := partitions.confirmed():
            self._each(lambda opened: opened.start_reading(self._history.bounds(opened.name)), confirmed)
        if self._control.poll():
            partitions.wake(partitions.open)
            self._each(lambda opened: partitions.apply_pauses(opened.partition))

    def _admit(self, polled: Polled, now_ms: int) -> None:
        """Take in what was polled, and the backlogs, as far as they may."""
        records = polled.records
        self._admission.begin_turn(polled, now_ms)
        if records:
            self._partitions.wake(records)
            self._metrics.traffic.requests_polled(sum(map(len, records.values())), now_ms)
        self._each(
            lambda opened: self._admission.admit(opened, records.get(opened.name, []), now_ms, has_read=polled.has_read)
        )

    def _publish(self, now_ms: int) -> list[AssignedPartition]:
        """Draft the timers that leave now, and submit transactions. Return the partitions whose timers might leave."""
        self._pipeline.reap()  # intake may have taken long
        if not self._stopping:
            for partition, wrong in self._pipeline.retry(self.partitions.values()).items():
                self._partitions.reopen(self._partitions.open[partition.partition], wrong)
        parts = list[Part]()

        def draft(opened: AssignedPartition) -> None:
            opened.draft_due(now_ms, self._pace.timers)
            at_ms = max(now_ms, self._clock.now_ms())
            if frozen := opened.freeze(now_ms, at_ms, is_all=self._stopping):
                parts.append((opened.partition, frozen))

        group = self._next_group()
        self._each(draft, group)
        self._pipeline.submit(parts)
        return group

    def _next_group(self) -> list[AssignedPartition]:
        """Return the partitions of the next transaction: all that have none in flight, as it costs its targets.

        But at most half of those that have more timers due than the pace allows, so that two transactions overlap.
        """
        if not self._pipeline.has_room:
            return []
        opened = self._awake
        ready = [each for each in opened if not each.partition.is_frozen]
        if self._stopping:
            return ready
        full = sorted((each for each in ready if each.is_full), key=lambda each: each.partition.frozen_ms)
        others = [each for each in ready if not each.is_full]
        return others + full[: (sum(each.is_full for each in opened) + 1) // 2]

    def _maintain(self, now_ms: int) -> None:
        """Continue checkpoints, and start those that are due: one question to Kafka, until it gives no answer."""
        answers = True
        starting = [each.name for each in self._awake if each.starts_checkpoint(now_ms)]

        def maintain(opened: AssignedPartition) -> None:
            nonlocal answers
            answers = answers and opened.maintain(now_ms)

        with asked_ahead(self._history, starting if len(starting) > 1 else []):
            self._each(maintain)

    def _wait_ms(self) -> int:
        """Return how long the poll may wait until something is to be done without a new record."""
        self._now_ms = now_ms = self._clock.now_ms()
        partitions, awake = self._partitions, self._awake
        is_reading_first = any(each.phase is not Phase.OPEN and not each.partition.backlog for each in awake)
        wait_ms = _READING_FIRST_WAIT_MS if is_reading_first else self.options.max_wait_ms
        if partitions.opening:
            wait_ms = min(wait_ms, _PREPARING_WAIT_MS)
        until_ms = now_ms + (wait_ms if self._pipeline.is_idle else min(wait_ms, _TRANSACTION_WAIT_MS))
        if not self._pipeline.has_room:
            return until_ms - now_ms
        for each in awake:
            each.look(now_ms)
        next_ms = [each.look_ms for each in partitions.open.values()] + self._admission.next_ms(now_ms)
        return max(0, min([until_ms, *next_ms]) - now_ms)
