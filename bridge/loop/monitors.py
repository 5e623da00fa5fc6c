"""Checks of a running bridge that are made now and then: retention, open transactions, clocks. They only warn."""

import logging

from bridge.loop.assigned_partitions import AssignedPartitions
from bridge.loop.clock_skew import skew_ms
from bridge.loop.open_transactions import OpenTransactions
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Lag
from bridge.publish.commit_pipeline import CommitPipeline
from bridge.release.owned_partition import LagSample, OwnedPartition

log = logging.getLogger(__name__)

_LAG_OFFSETS = 5000
"""Most offsets that are read to find out whether they hold any record."""


class Monitors:
    """Warn in the log, and set the metrics, of what Kafka shows about our partitions."""

    def __init__(self, partitions: AssignedPartitions, pipeline: CommitPipeline) -> None:
        self._partitions = partitions
        self._pipeline = pipeline
        self._clock = partitions.clock
        self._history = partitions.history
        self._metrics = partitions.metrics
        self._open_transactions = OpenTransactions()
        self._warnings = LogRateLimit(log)

    def check_retention(self) -> None:
        """Warn if retention has taken requests that are pending: only the local disk has them now."""
        known, owners = self._metrics.lost_to_retention, self._partitions.open
        taken = {shard: known[shard] for shard in owners if shard in known}
        for shard, first in self._history.first_offsets(list(owners)).items():
            owned = owners[shard]
            low = owned.committed_progress.low_offset
            taken[shard] = max(0, first - low) if owned.store.pending else 0
            if first > low and owned.store.pending:
                log.error(
                    "%s: retention has taken requests that are pending, from offset %d to %d: they are still delivered,"
                    " but a lost disk would lose them; raise retention.ms to 3 roll windows",
                    shard,
                    low,
                    first - 1,
                )
        self._metrics.lost_to_retention = taken

    def check_open_transactions(self) -> None:
        """Warn if an open transaction of a sender has hidden later records since the last check."""
        owners = self._partitions.open
        now_ms, before = self._clock.now_ms(), self._open_transactions.now
        ends = self._history.stable_and_end_offsets(list(owners)) if owners else {}
        silent = owners.keys() - ends.keys()
        self._open_transactions.look(ends, now_ms, silent)
        self._metrics.lags = {shard: lag for shard, lag in self._metrics.lags.items() if shard in silent} | {
            shard: Lag(self._lag(owners[shard], stable, end), end - stable) for shard, (stable, end) in ends.items()
        }
        self._metrics.hanging_transactions = self._open_transactions.now
        for shard, _, since_ms, waiting, _ in self._open_transactions.now.values():
            self._warnings.warn(
                now_ms,
                f"hanging {shard}",
                "%s: a sender's transaction has been open for %d s: the %d offsets after its first record, requests"
                " and cancels, are not read before it ends; find the sender, or end it by kafka-transactions.sh"
                " find-hanging and abort",
                *(shard, (now_ms - since_ms) // 1000, waiting),
            )
        for shard in before.keys() - self._open_transactions.now.keys():
            self._warnings.clear(f"hanging {shard}")

    def _lag(self, owned: OwnedPartition, stable: int, end: int) -> int:
        """Return the number of offsets that are not read; 0 if they hold only markers and aborted records.

        Such offsets are never polled. Therefore Kafka is asked if the position has not moved since the last check.
        """
        start, before = owned.store.next_offset, owned.lag_sample
        if start >= end:
            return 0
        owned.lag_sample = LagSample(start, end, before.is_empty if (start, end) == before[:2] else None)
        is_little = end - start <= _LAG_OFFSETS  # the loop waits meanwhile
        is_asked = owned.lag_sample == before and before.is_empty is None and stable == end and is_little
        if is_asked and owned.shard not in self._metrics.undecodable:
            owned.lag_sample = owned.lag_sample._replace(is_empty=self._partitions.is_empty(owned.shard, start, end))
        return 0 if owned.lag_sample.is_empty else end - start

    def check_clocks(self) -> None:
        """Measure the brokers' clocks against ours, and warn if they are far apart."""
        owners = self._partitions.open
        written = {shard: times for shard, times in self._metrics.journal_written_ms.items() if shard in owners}
        stamped = self._history.newest_journal_times(list(written)) if written else {}
        now_ms = self._clock.now_ms()
        # A transaction in flight may have written a newer record.
        last_ms = None if self._pipeline.is_idle else now_ms
        skews = {shard: skew for shard, skew in self._metrics.clock_skew_ms.items() if shard in written}
        skews |= {shard: skew_ms(at, written[shard][0], last_ms or written[shard][1]) for shard, at in stamped.items()}
        self._metrics.clock_skew_ms = skews
        most_ms = max(skews.values(), key=abs, default=0)
        if abs(most_ms) <= self._partitions.options.max_clock_skew_ms:
            self._warnings.clear("skew")
            return
        self._warnings.warn(
            now_ms,
            "skew",
            "a broker's clock is %d ms %s of ours: timers leave by ours, delays count from the brokers': keep all of"
            " them in time (NTP)",
            *(abs(most_ms), "ahead" if most_ms > 0 else "behind"),
        )
