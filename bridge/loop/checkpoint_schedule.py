"""Schedule of checkpoints: in a quiet moment of each partition, and at the latest 10 s after one is due."""

import logging
from collections.abc import Iterable

from bridge.errors import BridgeError, PartitionUnreadableError
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.partition.options import has_passed
from bridge.partition.partition import Damaged, Partition
from bridge.ports import Clock, History
from kafka_timer.origin import TimerPartition
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

_LATEST_MS = 10_000
"""Wait at most this long for a quiet moment. Forcing one costs a few ms; a start never reads much more than this."""
_REST_MS = 60_000
"""Pause after a read of Kafka without an answer: each try holds up all partitions."""


class CheckpointSchedule:
    def __init__(self, clock: Clock, history: History, interval_ms: int) -> None:
        self._clock = clock
        self._history = history
        self._interval_ms = interval_ms
        self._started_ms: dict[TimerPartition, int] = {}
        self._failed_ms: dict[TimerPartition, int] = {}
        """When Kafka last gave no answer to a checkpoint."""
        self._warnings = LogRateLimit(log)

    def forget(self, partition: TimerPartition) -> None:
        """Forget a partition that is given up."""
        self._started_ms.pop(partition, None)
        self._failed_ms.pop(partition, None)

    def is_due(self, owned: Partition, now_ms: int) -> bool:
        started_ms = self._started_ms.setdefault(owned.partition, now_ms - self._interval_ms)
        return has_passed(started_ms, now_ms, self._interval_ms)

    def is_overdue(self, owned: Partition, now_ms: int) -> bool:
        """True if a quiet moment has to be forced: under a steady load something is always drafted or not committed."""
        started_ms = self._started_ms.get(owned.partition, now_ms)
        return has_passed(started_ms, now_ms, self._interval_ms + _LATEST_MS) and not owned.is_quiet

    def step(self, owners: Iterable[Partition], now_ms: int) -> list[Damaged]:
        """Compact a little, continue the checkpoints that are being written, and start those that are due.

        Return the partitions whose store is damaged.
        """
        damaged: list[Damaged] = []
        for owned in owners:
            try:
                self._step(owned, now_ms)
            except (OSError, PartitionUnreadableError) as wrong:
                self._warnings.warn(
                    now_ms, f"checkpoint {owned.partition}", "%s: no checkpoint: %s", owned.partition, wrong
                )
                if isinstance(wrong, PartitionUnreadableError):
                    self._failed_ms[owned.partition] = self._clock.now_ms()
                    break  # the other partitions come first
            except CorruptStoreError as wrong:
                damaged.append((owned, wrong))
        return damaged

    def _step(self, owned: Partition, now_ms: int) -> None:
        is_due, failed_ms = self.is_due(owned, now_ms), self._failed_ms.get(owned.partition)
        owned.store.compact_some()
        may_read = failed_ms is None or has_passed(failed_ms, now_ms, _REST_MS)
        if owned.store.continue_checkpoint() and is_due and owned.is_quiet and may_read:
            self._started_ms[owned.partition] = now_ms
            if owned.store.may_checkpoint:
                self.start(owned)

    def start(self, owned: Partition) -> None:
        """Start a checkpoint, unless another owner has gone on: its decisions may lie below the journal's end.

        The order matters: the progress that is read includes all decisions below the journal's stable end.
        """
        _, journal_offset = self._history.journal_bounds(owned.partition)
        if self._history.progress(owned.partition) == owned.committed_progress:
            owned.start_checkpoint(journal_offset)

    def finish(self, owned: Partition) -> None:
        """Write a last checkpoint before the store is closed. Logs what prevents it: the next start reads more."""
        try:
            owned.store.finish_checkpoint()  # one in progress may know less
            if owned.store.may_checkpoint:
                self.start(owned)
                owned.store.finish_checkpoint()
        except (OSError, BridgeError, CorruptStoreError) as wrong:  # an error that ends the bridge is raised elsewhere
            log.warning("%s: no checkpoint at the end (%s); the next start reads more", owned.partition, wrong)
