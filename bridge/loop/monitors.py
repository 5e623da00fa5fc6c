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
        self._seen: dict[TimerPartition, tuple[int, int]] = {}
        """By partition with an open transaction: its last stable offset, and since when (epoch ms)."""
        self._hanging: dict[TimerPartition, Hang] = {}
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
                    *(partition, low, first - 1),
                )
        self._metrics.lost_to_retention_checked(taken)

    def check_open_transactions(self) -> None:
        """Warn if an open transaction of a sender has hidden later records since the last check."""
        owners, now_ms = self._partitions.open, self._clock.now_ms()
        before, seen = self._hanging, self._seen
        ends = self._history.stable_and_end_offsets(list(owners)) if owners else {}
        silent = owners.keys() - ends.keys()  # without an answer: they stay as they are
        self._hanging = {each: hang for each, hang in before.items() if each in silent}
        self._seen = {each: open_ for each, open_ in seen.items() if each in silent}
        lags = {each: lag for each, lag in self._metrics.lags.items() if each in silent}
        for partition, (stable, end) in ends.items():
            offset, since_ms = seen.get(partition, (-1, 0))
            if offset == stable < end:
                self._hanging[partition] = Hang(partition, stable, since_ms, end - stable, now_ms)
            if stable < end:
                self._seen[partition] = stable, since_ms if offset == stable else now_ms
            is_undecodable = partition in self._pauses.undecodable
            lag = owners[partition].lag(stable, end, is_undecodable=is_undecodable)
            owners[partition].end_lost_copies(end, lag)
            lags[partition] = Lag(lag, end - stable)
        self._metrics.lags_checked(lags, self._hanging)
        for partition, _, since_ms, waiting, _ in self._hanging.values():
            self._warnings.warn(
                now_ms,
                f"hanging {partition}",
                "%s: a sender's transaction has been open for %d s: the %d offsets after its first record, requests"
                " and cancels, are not read before it ends; find the sender, or end it by kafka-transactions.sh"
                " find-hanging and abort",
                *(partition, (now_ms - since_ms) // 1000, waiting),
            )
        for partition in before.keys() - self._hanging.keys():
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
        written = {each: times for each, times in self._metrics.journal_written_ms.items() if each in owners}
        stamped = self._history.newest_journal_times(list(written)) if written else {}
        now_ms = self._clock.now_ms()
        # A transaction in flight may have written a newer record.
        last_ms = None if self._pipeline.is_idle else now_ms
        skews = {each: skew for each, skew in self._metrics.clock_skew_ms.items() if each in written}
        skews |= {each: skew_ms(at, written[each][0], last_ms or written[each][1]) for each, at in stamped.items()}
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
