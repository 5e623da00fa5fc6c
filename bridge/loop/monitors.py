"""Checks of a running bridge that are made now and then: retention, open transactions, clocks. They only warn.

An open transaction of a sender hides all records after its first one in the partition:

    10:00:00   last stable offset 40, end 55        some transaction is open: common
    10:00:30   last stable offset 40, end 71        the same one: it hangs since 10:00:00, and 31 offsets wait

One that hangs for less than the time between two checks may go unseen.

The clock of a broker is compared by a record of our own that it has stamped (LogAppendTime):

    ours      begun 10:00:00.000 ... committed 10:00:00.012      the record was written in between
    stamped   10:00:00.005 -> 0      10:00:03.000 -> ahead by 2988 ms at the least      09:59:58.000 -> behind by 2000

A slow transaction makes the result less exact, not wrong. The end of a transaction is stamped too, some ms after the
commit: a broker that takes long for that seems to be ahead until the next check.
"""

import logging
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from bridge.loop.assigned_partitions import AssignedPartitions
from bridge.loop.commit_pipeline import CommitPipeline
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.metrics import Hang, Lag, Metrics
from bridge.observe.pause_reasons import PauseReasons
from bridge.partition.options import MAX_CLOCK_SKEW_MS
from bridge.ports import Clock, History
from kafka_timer.origin import TimerPartition

log = logging.getLogger(__name__)

_JUMP_MS = 60_000


def skew_ms(stamped_ms: int, begun_ms: int, committed_ms: int) -> int:
    """Return how far a broker's clock is ahead of ours; negative if it is behind, 0 if no difference can be seen."""
    return max(0, stamped_ms - committed_ms) + min(0, stamped_ms - begun_ms)


class OpenTransactions:
    """State of the last check."""

    def __init__(self) -> None:
        self._seen: dict[TimerPartition, tuple[int, int]] = {}
        self.now: dict[TimerPartition, Hang] = {}
        """Open transactions that hang, as of the last check."""

    def look(
        self, ends: Mapping[TimerPartition, tuple[int, int]], now_ms: int, silent: Set[TimerPartition] = frozenset()
    ) -> None:
        """Compare with the last check.

        ends: last stable offset and end of each partition. silent: partitions without an answer; they stay as they are.
        """
        kept = {partition: hang for partition, hang in self.now.items() if partition in silent}
        self.now = kept | {hang.partition: hang for hang in self._compared(ends, now_ms)}
        open_ = {partition: stable for partition, (stable, end) in ends.items() if stable < end}
        known = self._seen
        self._seen = {partition: seen for partition, seen in known.items() if partition in silent} | {
            partition: known[partition] if known.get(partition, (-1, 0))[0] == stable else (stable, now_ms)
            for partition, stable in open_.items()
        }

    def _compared(self, ends: Mapping[TimerPartition, tuple[int, int]], now_ms: int) -> Iterator[Hang]:
        for partition, (stable, end) in ends.items():
            offset, since_ms = self._seen.get(partition, (-1, 0))
            if offset == stable < end:
                yield Hang(partition, stable, since_ms, end - stable, now_ms)


@dataclass(eq=False)
class Monitors:
    """Warn in the log, and set the metrics, of what Kafka shows about our partitions."""

    _clock: Clock
    _history: History
    _metrics: Metrics
    _pauses: PauseReasons
    _partitions: AssignedPartitions
    _pipeline: CommitPipeline

    def __post_init__(self) -> None:
        self._open_transactions = OpenTransactions()
        self._ahead_ms: int | None = None
        self._warnings = LogRateLimit(log)

    def check_retention(self) -> None:
        """Warn if retention has taken requests that are pending: only the local disk has them now."""
        known, owners = self._metrics.lost_to_retention, self._partitions.open
        taken = {partition: known[partition] for partition in owners if partition in known}
        for partition, first in self._history.first_offsets(list(owners)).items():
            owned = owners[partition].partition
            low = owned.committed_progress.low_offset
            taken[partition] = max(0, first - low) if owned.store.pending else 0
            if first > low and owned.store.pending:
                log.error(
                    "%s: retention has taken requests that are pending, from offset %d to %d: they are still delivered,"
                    " but a lost disk would lose them; raise retention.ms to 3 roll windows",
                    partition,
                    low,
                    first - 1,
                )
        self._metrics.lost_to_retention_checked(taken)

    def check_open_transactions(self) -> None:
        """Warn if an open transaction of a sender has hidden later records since the last check."""
        owners = self._partitions.open
        now_ms, before = self._clock.now_ms(), self._open_transactions.now
        ends = self._history.stable_and_end_offsets(list(owners)) if owners else {}
        silent = owners.keys() - ends.keys()
        self._open_transactions.look(ends, now_ms, silent)
        lags = {partition: lag for partition, lag in self._metrics.lags.items() if partition in silent} | {
            partition: Lag(
                owners[partition].lag(stable, end, is_undecodable=partition in self._pauses.undecodable), end - stable
            )
            for partition, (stable, end) in ends.items()
        }
        self._metrics.lags_checked(lags, self._open_transactions.now)
        for partition, _, since_ms, waiting, _ in self._open_transactions.now.values():
            self._warnings.warn(
                now_ms,
                f"hanging {partition}",
                "%s: a sender's transaction has been open for %d s: the %d offsets after its first record, requests"
                " and cancels, are not read before it ends; find the sender, or end it by kafka-transactions.sh"
                " find-hanging and abort",
                *(partition, (now_ms - since_ms) // 1000, waiting),
            )
        for partition in before.keys() - self._open_transactions.now.keys():
            self._warnings.clear(f"hanging {partition}")

    def check_jump(self, monotonic_ms: int) -> None:
        """Warn if our clock has jumped since the last call. monotonic_ms: the monotonic clock, which cannot jump."""
        before_ms, self._ahead_ms = self._ahead_ms, self._clock.now_ms() - monotonic_ms
        jump_ms = 0 if before_ms is None else self._ahead_ms - before_ms
        if abs(jump_ms) > _JUMP_MS:
            self._metrics.clock_jumps.inc()
            log.warning("our clock jumped by %d s: timers leave by it; keep it in time (NTP)", jump_ms / 1000)

    def check_clocks(self) -> None:
        """Measure the brokers' clocks against ours, and warn if they are far apart."""
        owners = self._partitions.open
        written = {
            partition: times for partition, times in self._metrics.journal_written_ms.items() if partition in owners
        }
        stamped = self._history.newest_journal_times(list(written)) if written else {}
        now_ms = self._clock.now_ms()
        # A transaction in flight may have written a newer record.
        last_ms = None if self._pipeline.is_idle else now_ms
        skews = {partition: skew for partition, skew in self._metrics.clock_skew_ms.items() if partition in written}
        skews |= {
            partition: skew_ms(at, written[partition][0], last_ms or written[partition][1])
            for partition, at in stamped.items()
        }
        self._metrics.clocks_checked(skews)
        most_ms = max(skews.values(), key=abs, default=0)
        if abs(most_ms) <= MAX_CLOCK_SKEW_MS:
            self._warnings.clear("skew")
            return
        self._warnings.warn(
            now_ms,
            "skew",
            "a broker's clock is %d ms %s of ours: timers leave by ours, delays count from the brokers': keep all of"
            " them in time (NTP)",
            *(abs(most_ms), "ahead" if most_ms > 0 else "behind"),
        )
