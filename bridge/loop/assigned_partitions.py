"""The partitions that the group has assigned to us: opened when they are assigned, closed when they are given up.

    assigned --> known to be small: opened at once ---------------------------------> open
             --> much to read, or undecided: recovery in a process of its own ------>
             --> cannot be opened (disk, broker): tried again every 5 s ------------>
    open     --> revoked: a last checkpoint, closed
             --> lost: closed; it may be another instance's by now
             --> damaged: closed, rebuilt from Kafka

The phases of one partition: bridge.loop.assigned_partition.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from bridge.errors import PartitionUnreadableError, TopicGrownError
from bridge.loop.assigned_partition import AssignedPartition, Phase
from bridge.loop.control_state import ControlState
from bridge.loop.opening import RETRY_MS, JournalClaims, OpeningErrors, asked_ahead
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.partition.limits import MOST_PAUSED, CircuitBreakers
from bridge.partition.options import TurnOptions, has_passed
from bridge.partition.partition import Partition
from bridge.partition.recover import (
    Recovered,
    invalidate_store,
    plan_recovery,
    read_checkpoint,
    recover,
    require_rebuildable,
)
from bridge.ports import Ownership, Ports
from kafka_timer.origin import TimerPartition
from timer.disk import Disk
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

_OPENING_MS = 3000
"""Openings of one turn take at most about this long; the others wait for the next turns, so that timers leave."""
_SOUND_MS = 15_000
"""A store that was open for this long had no trouble with its disk."""


@dataclass(eq=False)
class AssignedPartitions:
    """Open, reopen and close partitions. For the loop's thread alone.

    The caller waits for the outcomes of all transactions in flight before a partition is closed.
    """

    _ports: Ports
    options: TurnOptions
    _control: ControlState
    _status: Status
    _metrics: Metrics
    _breakers: CircuitBreakers

    def __post_init__(self) -> None:
        self._began_with = self.options
        self._clock, self._history = self._ports.clock, self._ports.history
        self.open: dict[TimerPartition, AssignedPartition] = {}
        self.opening: dict[TimerPartition, AssignedPartition] = {}
        """Those in WAITING or RECOVERING."""
        self._claims = JournalClaims(self._clock, self._history, lambda topic: self.options.of(topic).journal_topic)
        self._errors = OpeningErrors(self._clock)

    def use(self, options: TurnOptions) -> None:
        """Apply the limits of `options`: a timer topic has more partitions, so each has a smaller share."""
        self.options = options
        for timer_partition, opened in self.open.items():
            opened.partition.use(options.of(timer_partition.topic), self._breakers)

    # -- ownership

    def apply(self, ownership: Ownership) -> None:
        """Apply a rebalance: close what was lost or revoked, open what was assigned."""
        if ownership:
            self._metrics.rebalanced(ownership)
        for timer_partition in ownership.lost:
            log.warning("%s: the group has removed us: another member may own it by now", timer_partition)
            self.give_up(timer_partition, checkpoint=False)
        for timer_partition in ownership.revoked:
            log.info("%s: given up", timer_partition)
            self.give_up(timer_partition, checkpoint=True)
        if ownership.assigned:
            self._assign(ownership.assigned)

    def _assign(self, partitions: list[TimerPartition]) -> None:
        for timer_partition in partitions:
            self._require_known(timer_partition)
            self.give_up(timer_partition, checkpoint=False)
            self._begin_opening(timer_partition)
        self._claims.look(partitions)
        self._control.catch_up()  # a former owner may know of pauses that we do not
        undecided = self._history.with_open_transactions(partitions)
        began_ms = self._clock.now_ms()
        with asked_ahead(self._history, [each for each in partitions if each not in undecided], self._since):
            for timer_partition in partitions:
                assigned = self.opening[timer_partition]
                if timer_partition in undecided:
                    self._metrics.recovery_blocked(timer_partition)
                    text = "%s: a former owner's transaction is still open: waiting for it in the background"
                    log.info(text, timer_partition)
                    assigned.recover(self._ports.prepare(timer_partition))
                elif has_passed(began_ms, self._clock.now_ms(), _OPENING_MS):
                    assigned.wait(0)
                else:
                    self._step(assigned)

    def _require_known(self, timer_partition: TimerPartition) -> None:
        """Raise TopicGrownError for a partition that was added after this run began.

        Its journal partition may be missing, and the producers of this run may not know it yet.
        """
        known = self._began_with.of(timer_partition.topic).partitions
        if known is not None and timer_partition.partition >= known:
            raise TopicGrownError(
                f"{timer_partition}: the topic has grown, it had {known} partitions: starting again with all"
            )

    def give_up(self, timer_partition: TimerPartition, *, checkpoint: bool) -> None:
        """Close the partition, if it is ours; with a last checkpoint if asked for."""
        self._status.partition_closed(timer_partition)
        self._metrics.partition_closed(timer_partition)
        opening = self.opening.pop(timer_partition, None)
        if opening is not None:
            opening.give_up()
        opened = self.open.pop(timer_partition, None)
        self._claims.forget(timer_partition)
        self._errors.forget_unreadable(timer_partition)
        if opened is None:
            return
        try:
            if checkpoint:
                opened.finish_checkpoint()
        finally:
            opened.partition.store.close()

    def give_up_all(self, ends: ExitStack) -> None:
        """Let `ends` close all partitions, and clear status and metrics, which outlive this run, of all of them."""
        ends.callback(self._forget_all)
        for timer_partition in reversed([*self.open, *self.opening]):
            ends.callback(self.give_up, timer_partition, checkpoint=True)

    def start_last_checkpoints(self) -> None:
        """Start a checkpoint of each open partition while it is still ours."""
        with asked_ahead(self._history, [*self.open]):
            for opened in self.open.values():
                opened.start_last_checkpoint()

    def _forget_all(self) -> None:
        for timer_partition in self._status.partitions():
            self._status.partition_closed(timer_partition)
            self._metrics.partition_closed(timer_partition)

    # -- opening

    def _begin_opening(self, timer_partition: TimerPartition) -> None:
        self._status.partition_recovering(timer_partition)
        self._metrics.recovery_started(timer_partition)
        interval_ms = self.options.store.checkpoint_interval_ms
        self.opening[timer_partition] = AssignedPartition(timer_partition, self._ports, interval_ms)

    def open_prepared(self) -> None:
        """Open the partitions whose recovery, or wait, is over."""
        done = [each for each in self.opening.values() if each.may_open()]
        if done and not self._control.is_current:
            self._control.catch_up()
        began_ms = self._clock.now_ms()
        with asked_ahead(self._history, [each.name for each in done], self._since) if done else nullcontext():
            for assigned in done:
                if has_passed(began_ms, self._clock.now_ms(), _OPENING_MS):
                    return
                if assigned.name not in self._claims:  # a transaction may have hidden the owner
                    self._claims.look([assigned.name])
                self._step(assigned)

    def _since(self, timer_partition: TimerPartition) -> tuple[int, int] | None:
        found = None
        with suppress(OSError):  # the opening meets it, too
            found = read_checkpoint(self._ports.disk_for(timer_partition))
        return None if found is None else (found.progress.next_offset, found.journal_offset)

    def _step(self, assigned: AssignedPartition) -> None:
        """Open the partition, whose recovery or wait is over. If that takes long, recover it in the background.

        If the disk is full or broken, or Kafka cannot be read, it waits; the others go on.
        """
        refused = assigned.end_recovery()
        if not self._control.is_current:
            assigned.wait(RETRY_MS)
            return
        with self._retry_later(assigned):
            if refused is not None:
                raise refused
            disk = self._ports.disk_for(assigned.name)
            if assigned.phase is Phase.RECOVERING:
                self._open(assigned, disk, recover(assigned.name, disk, self._history, self._options_of(assigned)))
            else:
                self._plan(assigned, disk)

    def _plan(self, assigned: AssignedPartition, disk: Disk) -> None:
        timer_partition, options = assigned.name, self._options_of(assigned)
        if (wrong := self._errors.lasting(timer_partition)) is not None:
            invalidate_store(timer_partition, disk, wrong)
            self._errors.forget_unreadable(timer_partition)
        try:
            plan = plan_recovery(timer_partition, disk, self._history, options)
            self._metrics.recovery_planned(plan)
            if plan.work < self.options.prepare_from:
                self._open(assigned, disk, recover(timer_partition, disk, self._history, options, plan))
                return
        except PartitionUnreadableError as slow:
            log.warning("%s: %s; a process of its own goes on with it", timer_partition, slow)
        assigned.recover(self._ports.prepare(timer_partition))

    def _options_of(self, assigned: AssignedPartition) -> TurnOptions:
        return self.options.of(assigned.name.topic)

    @contextmanager
    def _retry_later(self, assigned: AssignedPartition) -> Iterator[None]:
        try:
            yield
        except (CorruptStoreError, PartitionUnreadableError, OSError) as error:
            self._errors.note(assigned.name, error)
            self.opening[assigned.name] = self.opening.pop(assigned.name)  # after the others, if time is short
            assigned.wait(RETRY_MS)

    def _open(self, assigned: AssignedPartition, disk: Disk, recovered: Recovered) -> None:
        timer_partition = assigned.name
        try:
            bounds = self._history.bounds(timer_partition)
            partition = Partition(timer_partition, recovered, self._options_of(assigned), self._breakers)
            self.apply_pauses(partition)
        except BaseException:
            recovered.store.close()
            raise
        del self.opening[timer_partition]
        self.open[timer_partition] = assigned
        assigned.open(partition, disk)
        if timer_partition in self._claims:
            assigned.start_reading(bounds)
        else:
            partition.claim()
        self._errors.note_opened(timer_partition)
        self._status.partition_running(timer_partition)
        self._metrics.recovery_finished(timer_partition)

    def confirmed(self) -> list[AssignedPartition]:
        """Return those whose claim of the journal is committed and the first. Raises ForeignJournalError if it is not.

        Call `start_reading` for each. Claims that cannot be found are written again after a while.
        """
        claiming = [each for each in self.open.values() if each.phase is Phase.CLAIMING and each.partition.is_quiet]
        if not claiming:
            return []
        confirmed, missing = self._claims.confirm([each.name for each in claiming])
        for each in claiming:
            if each.name in missing:
                each.partition.claim()
        return [each for each in claiming if each.name in confirmed]

    def start_reading(self, opened: AssignedPartition) -> None:
        """Read requests of a partition whose claim is confirmed."""
        opened.start_reading(self._history.bounds(opened.name))

    def apply_pauses(self, partition: Partition) -> None:
        """Apply the control topic's pauses. The journal carries them from the next transaction on."""
        for target in partition.obey(self._control.pauses(partition.partition.topic)):
            text = "%s: %s is not paused: %d others are paused in this partition; resume some"
            log.error(text, partition.partition, target, MOST_PAUSED)

    def reopen(self, opened: AssignedPartition, wrong: CorruptStoreError | PartitionUnreadableError) -> None:
        """Close a partition without a checkpoint and open it again. A damaged store is rebuilt from Kafka."""
        timer_partition = opened.name
        del self.open[timer_partition]
        self._begin_opening(timer_partition)
        opened.partition.store.close()
        assigned = self.opening[timer_partition]
        with self._retry_later(assigned):
            if isinstance(wrong, PartitionUnreadableError):
                raise wrong
            if has_passed(opened.opened_ms, self._clock.now_ms(), _SOUND_MS):
                self._errors.forget_unreadable(timer_partition)  # an earlier fault is over
            require_rebuildable(timer_partition, self._history, opened.partition.committed_progress.low_offset, wrong)
            invalidate_store(timer_partition, opened.disk, wrong)
            self._step(assigned)
