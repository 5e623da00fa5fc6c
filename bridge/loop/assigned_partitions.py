"""The partitions that the group has assigned to us: opened when they are assigned, closed when they are given up.

    assigned --> known to be small: opened at once ---------------------------------> open
             --> much to read, or undecided: recovery in a process of its own ------>
             --> cannot be opened (disk, broker): tried again every 5 s ------------>
    open     --> revoked: a last checkpoint, closed
             --> lost: closed; it may be another instance's by now
             --> damaged: closed, rebuilt from Kafka

A partition reads and releases only after its journal is known to be our group's (bridge.partition.journal). The phases
of one partition: bridge.loop.assigned_partition.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from bridge.errors import PartitionUnreadableError, TopicGrownError
from bridge.loop.assigned_partition import AssignedPartition, Phase, after
from bridge.loop.control_state import ControlState
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.partition.journal import ours
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
from bridge.ports import Clock, History, Ownership, Ports, Since
from kafka_timer.origin import TimerPartition
from timer.disk import Disk
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

_OPENING_MS = 500
"""Time for openings in a turn, of which there is at least one; the others wait, so that timers leave."""
_SOUND_MS = 15_000
"""A store that was open for this long had no trouble with its disk."""
RETRY_MS = 5000
"""Time between two tries to open a partition: a try may take long, and the loop's thread serves all partitions."""
_UNREADABLE_MS = 60_000
"""A store that cannot be read is kept for this long if a rebuild would lose what Kafka no longer has."""
_UNREADABLE = (
    "%s: its local store cannot be read (%s), so its timers wait: check the disk of data_dir. It is opened again every"
    " 5 s, and after a minute rebuilt from Kafka, without what retention has taken"
)
_FREE_ROOM = "free room on the disk of data_dir, or name another directory; nothing is lost, Kafka has it all"

OpeningError = CorruptStoreError | PartitionUnreadableError | OSError


@contextmanager
def asked_ahead(history: History, partitions: Sequence[TimerPartition], since: Since | None = None) -> Iterator[None]:
    """Ask Kafka about all of these partitions at once. The answers are for the calls inside the `with`."""
    if not partitions:
        yield
        return
    history.ask_ahead(partitions, since)
    try:
        yield
    finally:
        history.ask_ahead([])


@dataclass(eq=False)
class JournalClaims:
    """The assigned partitions whose journal is known to be ours."""

    _clock: Clock
    _history: History
    _journal_of: Callable[[str], str]

    def __post_init__(self) -> None:
        self._known: set[TimerPartition] = set()
        self._may_read: Callable[[], bool] = lambda: True
        self._may_claim: Callable[[], bool] | None = None

    def __contains__(self, partition: TimerPartition) -> bool:
        return partition in self._known

    def forget(self, partition: TimerPartition) -> None:
        self._known.discard(partition)

    def look(self, partitions: Sequence[TimerPartition]) -> set[TimerPartition]:
        """Return those whose journal is known to be ours. Raises ForeignJournalError.

        Without an answer in time none is known, and the next read follows after 5 s: it holds up all partitions.
        """
        if not partitions or not self._may_read():
            return set()
        try:
            found = ours(partitions, self._history, self._journal_of)
        except PartitionUnreadableError as wrong:
            log.warning("the owner of journals is not known: %s; asking again in 5 s", wrong)
            self._may_read = after(self._clock, RETRY_MS)
            return set()
        self._may_read = lambda: True
        self._known |= found
        return found

    def confirm(self, written: Sequence[TimerPartition]) -> tuple[set[TimerPartition], set[TimerPartition]]:
        """Look for claims that were written. Return the partitions whose claim is first, and those to write again."""
        confirmed = self.look(written)
        missing = set(written) - confirmed
        if not missing:
            self._may_claim = None
        elif self._may_claim is None:
            self._may_claim = after(self._clock, RETRY_MS)
        elif self._may_claim():  # retention may have taken a claim before it was read
            self._may_claim = None
            return confirmed, missing
        return confirmed, set()


class OpeningErrors:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unreadable: dict[TimerPartition, tuple[int, CorruptStoreError]] = {}
        """Since when (epoch ms) a store cannot be read, and the last error."""
        self._warnings = LogRateLimit(log)

    def note(self, partition: TimerPartition, error: OpeningError) -> None:
        """Log that the partition is opened later, and what to do."""
        now_ms = self._clock.now_ms()
        match error:
            case CorruptStoreError():
                since_ms, _ = self._unreadable.get(partition, (now_ms, error))
                self._unreadable[partition] = min(since_ms, now_ms), error
                self._warnings.warn(now_ms, f"disk {partition}", _UNREADABLE, partition, error)
            case PartitionUnreadableError():
                text = "%s: its partition cannot be read (%s), so its timers wait; it is tried again every 5 s"
                self._warnings.warn(now_ms, f"unreadable {partition}", text, partition, error)
            case OSError():
                is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
                remedy = "let it open more files (ulimit -n, LimitNOFILE)" if is_limit else _FREE_ROOM
                text = "%s: its local store cannot be made ready (%s), so its timers wait: %s"
                self._warnings.warn(now_ms, f"disk {partition}", text, partition, error, remedy)

    def note_opened(self, partition: TimerPartition) -> None:
        if partition not in self._unreadable:  # else the fault may come back
            self._warnings.clear(f"disk {partition}")
        self._warnings.clear(f"unreadable {partition}")

    def lasting(self, partition: TimerPartition) -> CorruptStoreError | None:
        """Return the error of a store that has been unreadable for too long."""
        now_ms = self._clock.now_ms()
        since_ms, error = self._unreadable.get(partition, (now_ms, None))
        return error if now_ms - since_ms >= _UNREADABLE_MS else None

    def forget_unreadable(self, partition: TimerPartition) -> None:
        self._unreadable.pop(partition, None)


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
        self.options = options
        for timer_partition, opened in self.open.items():
            opened.partition.use(options.of(timer_partition.topic), self._breakers, self._clock.now_ms())
        self.wake(self.open)

    def wake(self, partitions: Iterable[TimerPartition]) -> None:
        """End the rest of these open partitions."""
        for timer_partition in partitions:
            self.open[timer_partition].wake()

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
                    self._metrics.undecided_recoveries.labels(timer_partition.topic).inc()
                    text = "%s: a former owner's transaction is still open: waiting for it in the background"
                    log.info(text, timer_partition)
                    assigned.recover(self._ports.prepare(timer_partition))
                elif has_passed(began_ms, self._clock.now_ms(), _OPENING_MS):
                    assigned.wait(0)
                else:
                    self._step(assigned)

    def _require_known(self, timer_partition: TimerPartition) -> None:
        """Raise TopicGrownError for a partition that was added after this run began: producers may not know it yet."""
        known = self._began_with.of(timer_partition.topic).partitions
        if known is not None and timer_partition.partition >= known:
            text = f"the topic has grown, it had {known} partitions: starting again with all"
            raise TopicGrownError(f"{timer_partition}: {text}")

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
        done = [each for each in self.opening.values() if each.may_open]
        if done and not self._control.is_current:
            self._control.catch_up()
        began_ms = self._clock.now_ms()
        with asked_ahead(self._history, [each.name for each in done], self._since):
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
            self._metrics.recovery_work.labels("kafka" if plan.found is None else "directory").inc(plan.work)
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
            partition = Partition(
                timer_partition, recovered, self._options_of(assigned), self._breakers, self._clock.now_ms()
            )
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
        """Return those whose claim of the journal is committed and the first: call `start_reading` for each.

        Claims that cannot be found are written again after a while. Raises ForeignJournalError.
        """
        claiming = [each for each in self.open.values() if each.phase is Phase.CLAIMING and each.partition.is_quiet]
        if not claiming:
            return []
        confirmed, missing = self._claims.confirm([each.name for each in claiming])
        for each in claiming:
            if each.name in missing:
                each.partition.claim()
        return [each for each in claiming if each.name in confirmed]

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
