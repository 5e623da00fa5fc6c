"""The partitions that this instance owns: opened when they are assigned, closed when they are given up.

    assigned --> known to be small: opened at once ---------------------------------> open
             --> much to read, or undecided: recovery in a process of its own ------>
             --> cannot be opened (disk, broker): tried again every 5 s ------------>
    open     --> revoked: a last checkpoint, closed
             --> lost: closed; it may be another instance's by now
             --> damaged: closed, rebuilt from Kafka

Before a partition reads or releases anything, our group claims its journal (bridge.recovery.journal_owner).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bridge.config.durations import has_passed
from bridge.config.loop_options import TurnOptions
from bridge.errors import PartitionUnreadableError, TopicGrownError
from bridge.intake.quota import MOST_PAUSED
from bridge.loop.checkpoint_schedule import CheckpointSchedule
from bridge.loop.control_state import ControlState
from bridge.loop.journal_claims import JournalClaims
from bridge.loop.opening_errors import OpeningErrors
from bridge.loop.retry_delay import RetryDelay
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.ports import BackgroundRecovery, Clock, History, Ownership, Source
from bridge.recovery.recover import Recovered, invalidate_store, recover, require_rebuildable
from bridge.recovery.recovery_plan import plan_recovery
from bridge.release.circuit_breaker import CircuitBreakers
from bridge.release.owned_partition import OwnedPartition
from schemas.origin import Shard
from timer.disk import Disk
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

_OPENING_MS = 3000
"""Openings of one turn take at most about this long; the others wait for the next turns, so that timers leave."""
_SOUND_MS = 15_000
"""A store that was open for this long had no trouble with its disk."""


class AssignedPartitions:
    """Open, replace and close partitions. For the loop's thread alone."""

    def __init__(
        self,
        *,
        clock: Clock,
        source: Source,
        history: History,
        disk_for: Callable[[Shard], Disk],
        options: TurnOptions,
        prepare: Callable[[Shard], BackgroundRecovery],
        control: ControlState,
        status: Status,
        metrics: Metrics,
        breakers: CircuitBreakers,
        drain: Callable[[], None],
    ) -> None:
        """drain: waits for the outcome of all transactions in flight."""
        self.clock = clock
        self.source = source
        self.history = history
        self.metrics = metrics
        self.status = status
        self.options = self._began_with = options
        self.open: dict[Shard, OwnedPartition] = {}
        self.preparing: dict[Shard, BackgroundRecovery] = {}
        self.checkpoints = CheckpointSchedule(clock, history, options.store.checkpoint_interval_ms)
        self.was_opened = False
        self._disk_for = disk_for
        self._prepare = prepare
        self._control = control
        self._breakers = breakers
        self._drain = drain
        self._claims = JournalClaims(clock, history, lambda topic: self.options.of(topic).journal_topic)
        self._errors = OpeningErrors(clock)

    def use(self, options: TurnOptions) -> None:
        """Apply the limits of `options`: a timer topic has more partitions, so each has a smaller share."""
        self.options = options
        for shard, owned in self.open.items():
            owned.use(options.of(shard.topic))

    def each(self, step: Callable[[OwnedPartition], None]) -> None:
        """Call `step` for each open partition. One with a damaged disk is rebuilt; it joins the next turn."""
        for owned in list(self.open.values()):
            try:
                step(owned)
            except CorruptStoreError as wrong:
                self.replace(owned, wrong)
            except PartitionUnreadableError as wrong:
                self._close(owned)
                with self._retry_opening_later(owned.shard):
                    raise wrong

    # -- ownership

    def apply(self, ownership: Ownership) -> None:
        """Apply a rebalance: close what was lost or revoked, open what was assigned."""
        if ownership:
            self.metrics.rebalanced(ownership)
        for shard in ownership.lost:
            log.warning("%s: the group has removed us: another member may own it by now", shard)
            self.give_up(shard, checkpoint=False)
        for shard in ownership.revoked:
            log.info("%s: given up", shard)
            self.give_up(shard, checkpoint=True)
        for shard in ownership.assigned:
            self._require_known(shard)
            self.give_up(shard, checkpoint=False)
            self._note_recovering(shard)
        self._claims.look(ownership.assigned)
        if ownership.assigned:
            self._control.catch_up()  # a former owner may know of pauses that we do not
        undecided = self.history.with_open_transactions(ownership.assigned) if ownership.assigned else set()
        began_ms = self.clock.now_ms()
        for shard in ownership.assigned:
            if shard in undecided:
                self.metrics.recovery_blocked(shard)
                log.info("%s: a former owner's transaction is still open: waiting for it in the background", shard)
                self.preparing[shard] = self._prepare(shard)
            elif has_passed(began_ms, self.clock.now_ms(), _OPENING_MS):
                self.preparing[shard] = RetryDelay(self.clock, 0)
            else:
                self._begin(shard)

    def _require_known(self, shard: Shard) -> None:
        """Raise TopicGrownError for a partition that was added after this run began.

        Its journal partition may be missing, and the producers of this run may not know it yet.
        """
        known = self._began_with.of(shard.topic).partitions
        if known is not None and shard.partition >= known:
            raise TopicGrownError(f"{shard}: the topic has grown, it had {known} partitions: starting again with all")

    def give_up(self, shard: Shard, *, checkpoint: bool) -> None:
        """Close the partition, if it is ours; with a last checkpoint if asked for."""
        self.status.partition_closed(shard)
        self.metrics.partition_closed(shard)
        preparation = self.preparing.pop(shard, None)
        if preparation is not None:
            preparation.give_up()
        owned = self.open.pop(shard, None)
        self.checkpoints.forget(shard)
        self._claims.forget(shard)
        self._errors.forget_unreadable(shard)
        if owned is None:
            return
        try:
            if checkpoint:
                self.checkpoints.finish(owned)
        finally:
            owned.store.close()

    def forget_all(self) -> None:
        """Clear status and metrics, which outlive this run, of all partitions, also of those being opened."""
        for shard in self.status.shards():
            self.status.partition_closed(shard)
            self.metrics.partition_closed(shard)

    # -- opening

    def _begin(self, shard: Shard) -> None:
        """Open the partition, or prepare it in the background if that takes long."""
        if not self._control.is_current:
            self.preparing[shard] = RetryDelay(self.clock)
            return
        options = self.options.of(shard.topic)
        with self._retry_opening_later(shard):
            disk = self._disk_for(shard)
            if (wrong := self._errors.lasting(shard)) is not None:
                invalidate_store(shard, disk, wrong)
                self._errors.forget_unreadable(shard)
            try:
                plan = plan_recovery(shard, disk, self.history, options)
                self.metrics.recovery_planned(plan)
                if plan.work < self.options.prepare_from:
                    self._open(shard, disk, recover(shard, disk, self.history, options, plan))
                    return
            except PartitionUnreadableError as slow:
                log.warning("%s: %s; a process of its own goes on with it", shard, slow)
            self.preparing[shard] = self._prepare(shard)

    def open_prepared(self) -> None:
        """Open the partitions whose preparation, or wait, is over."""
        done = [each for each in self.preparing.items() if each[1].is_done()]
        if done and not self._control.is_current:
            self._control.catch_up()
        began_ms = self.clock.now_ms()
        for shard, preparation in done:
            if has_passed(began_ms, self.clock.now_ms(), _OPENING_MS):
                return
            del self.preparing[shard]
            if shard not in self._claims:  # a transaction may have hidden the owner
                self._claims.look([shard])
            if isinstance(preparation, RetryDelay) or not self._control.is_current:
                self._begin(shard)
                continue
            with self._retry_opening_later(shard):
                if preparation.refused is not None:
                    raise preparation.refused
                disk = self._disk_for(shard)
                self._open(shard, disk, recover(shard, disk, self.history, self.options.of(shard.topic)))

    @contextmanager
    def _retry_opening_later(self, shard: Shard) -> Iterator[None]:
        """If the disk is full or broken, or Kafka cannot be read, open the partition later; the others go on."""
        try:
            yield
        except (CorruptStoreError, PartitionUnreadableError, OSError) as error:
            self._errors.note(shard, error)
            self.preparing[shard] = RetryDelay(self.clock)

    def _open(self, shard: Shard, disk: Disk, recovered: Recovered) -> None:
        options = self.options.of(shard.topic)
        try:
            bounds = self.history.bounds(shard)
            owned = OwnedPartition(
                *(shard, disk, recovered, options, self._least_free_bytes),
                is_claimed=shard in self._claims,
                breakers=self._breakers,
            )
            self.apply_pauses(owned)
        except BaseException:
            recovered.store.close()
            raise
        self.open[shard] = owned
        owned.opened_ms = self.clock.now_ms()
        if owned.is_claimed:
            self._start_reading(owned, bounds)
        self._errors.note_opened(shard)
        self.status.partition_running(shard)
        self.metrics.recovery_finished(shard)
        self.was_opened = True

    def apply_pauses(self, owned: OwnedPartition) -> None:
        """Apply the control topic's pauses. The journal carries them from the next transaction on."""
        for target in owned.obey(self._control.pauses(owned.shard.topic)):
            text = "%s: %s is not paused: %d others are paused in this partition; resume some"
            log.error(text, owned.shard, target, MOST_PAUSED)

    def _start_reading(self, owned: OwnedPartition, bounds: tuple[int, int]) -> None:
        first, owned.release_barrier = bounds
        next_offset = owned.store.next_offset
        if first > next_offset:
            log.error(
                "%s: retention has taken %d offsets that were never read, from %d on: their requests are lost; raise"
                " retention.ms to 3 roll windows",
                owned.shard,
                first - next_offset,
                next_offset,
            )
        owned.starts_at = max(first, next_offset)
        self.source.start(owned.shard, owned.starts_at)

    def confirm_claims(self) -> None:
        """Start to read if our claims of journals are committed and the first. Raises ForeignJournalError if not."""
        confirmed = self._claims.confirm(self.open)

        def start(owned: OwnedPartition) -> None:
            if owned.shard in confirmed:
                bounds = self.history.bounds(owned.shard)
                owned.is_claimed = True
                self._start_reading(owned, bounds)

        if confirmed:
            self.each(start)

    # -- closing and rebuilding

    def _note_recovering(self, shard: Shard) -> None:
        self.status.partition_recovering(shard)
        self.metrics.recovery_started(shard)

    def _close(self, owned: OwnedPartition) -> None:
        """Close the partition without a checkpoint, to open it again."""
        self._drain()
        self._note_recovering(owned.shard)
        del self.open[owned.shard]
        owned.store.close()
        self.source.pause(owned.shard)

    def replace(self, owned: OwnedPartition, wrong: CorruptStoreError) -> None:
        """Rebuild a partition whose local store is damaged."""
        self._close(owned)
        with self._retry_opening_later(owned.shard):
            if has_passed(owned.opened_ms, self.clock.now_ms(), _SOUND_MS):
                self._errors.forget_unreadable(owned.shard)  # an earlier fault is over
            require_rebuildable(owned.shard, self.history, owned.committed_progress.low_offset, wrong)
            invalidate_store(owned.shard, owned.disk, wrong)
            self._begin(owned.shard)

    def _least_free_bytes(self, shard: Shard) -> int:
        """Return the free room below which intake of `shard` pauses.

        A timer topic with less than its equal share of the stores' bytes goes on until half of the reserve is left.
        """
        held: Counter[str] = Counter()
        for each, owned in self.open.items():
            held[each.topic] += owned.store.queries.size_bytes
        least = self.options.min_free_bytes
        return least if held[shard.topic] * len(held) >= held.total() else least // 2

    def is_empty(self, shard: Shard, start: int, end: int) -> bool | None:
        """True if only markers and aborted records are in [start, end), None if no answer comes in time."""
        try:
            return not any(self.history.requests(shard, start, end))
        except PartitionUnreadableError:
            return None
