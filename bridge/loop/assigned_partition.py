"""One partition that the group has assigned to us: its phase, and what is open around its timers.

    phase         what runs                                         until
    WAITING       nothing                                           the next try to open it
    RECOVERING    a process of its own reads what the store lacks   that has ended
    CLAIMING      the store is open, our claim is written           the claim of the journal is committed, and the first
    CATCHING_UP   requests are read, stored timers wait             all requests from before the opening are read
    OPEN          everything                                        the partition is given up

In CATCHING_UP, a cancel that was sent during downtime wins. A partition whose store is damaged begins again in WAITING,
as a new object: records that were polled for the old object are polled again.

An open partition has a checkpoint in a quiet moment of each interval, and at the latest 10 s after one is due. If
nothing is to be done for it, it rests until its next checkpoint or timer: turns without its records skip it.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple

from bridge.errors import BridgeError, PartitionUnreadableError
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.partition.draft import FrozenDraft
from bridge.partition.options import has_passed
from bridge.partition.partition import Partition
from bridge.ports import BackgroundRecovery, Clock, Ports, Record
from kafka_timer.origin import TimerPartition
from schemas.progress import Progress
from timer.disk import Disk
from timer.errors import CorruptStoreError, UnreadableError

log = logging.getLogger(__name__)

_STALL_MS = 5000
"""A client that fetches has brought something by then. If brokers throttle it, after twice the time, and so on."""
_LATEST_MS = 10_000
"""Wait at most this long for a quiet moment. Forcing one costs a few ms; a start never reads much more than this."""
_REST_MS = 60_000
"""Pause of checkpoints after a read of Kafka without an answer: each try holds up all partitions."""
_LAG_OFFSETS = 5000
"""Most offsets that are read to find out whether they hold any record."""
_NO_REST = range(0)


class Phase(Enum):
    WAITING = auto()
    RECOVERING = auto()
    CLAIMING = auto()
    CATCHING_UP = auto()
    OPEN = auto()


_NEXT: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.WAITING: (Phase.WAITING, Phase.RECOVERING, Phase.CLAIMING),
    Phase.RECOVERING: (Phase.WAITING, Phase.RECOVERING, Phase.CLAIMING),
    Phase.CLAIMING: (Phase.CATCHING_UP,),
    Phase.CATCHING_UP: (Phase.OPEN,),
    Phase.OPEN: (),
}


class _StallProbe(NamedTuple):
    """At `at_ms` (epoch ms), Kafka was asked whether it holds more than was read, up to `offset`."""

    offset: int
    at_ms: int
    enough_for_ms: int


class _LagSample(NamedTuple):
    """Offsets [start, end) that were not read yet. is_empty: True if they hold no records, None: unknown."""

    start: int
    end: int
    is_empty: bool | None


def after(clock: Clock, wait_ms: int) -> Callable[[], bool]:
    """Return a check whether `wait_ms` have passed since now."""
    since_ms = clock.now_ms()
    return lambda: has_passed(since_ms, clock.now_ms(), wait_ms)


class AssignedPartition:
    """For the loop's thread alone. `partition` and `disk` exist from CLAIMING on."""

    partition: Partition
    disk: Disk

    def __init__(self, timer_partition: TimerPartition, ports: Ports, checkpoint_interval_ms: int) -> None:
        self.name = timer_partition
        self.phase = Phase.WAITING
        self.opened_ms = 0
        self.is_full = False
        """True if more timers were due at the last draft than it took."""
        self.rest = _NO_REST
        """Times (epoch ms) of turns that have nothing to do for it, unless they bring records or pauses."""
        self.look_ms = 0
        """When something is to be done without a new record, as of the last `look`."""
        self._maintained: Progress | None = None
        """The committed progress at which `maintain` had nothing left to do."""
        self._clock, self._source, self._history = ports.clock, ports.source, ports.history
        self._warnings = LogRateLimit(log)
        self._may_retry: Callable[[], bool] = lambda: True
        self._recovery: BackgroundRecovery | None = None
        self._barrier = 0
        """All requests from before the opening are below this offset."""
        self._starts_at: int | None = None
        """The offset at which the source was started, until its first record is polled."""
        self._stall = _StallProbe(-1, 0, 0)
        self._lag_sample = _LagSample(-1, -1, None)
        self._copies_end = math.inf
        """All copies from before the opening are below this offset."""
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._checkpoint_ms: int | None = None
        """When a checkpoint was last due, and nothing prevented it."""
        self._unanswered_ms: int | None = None
        """When Kafka last gave no answer to a checkpoint."""

    def _step(self, phase: Phase) -> None:
        assert phase in _NEXT[self.phase], f"{self.name}: {phase} after {self.phase}"
        self.phase = phase

    # -- before it is open

    def wait(self, ms: int) -> None:
        """Wait for this long before the next try."""
        self._step(Phase.WAITING)
        self._may_retry, self._recovery = after(self._clock, ms), None

    def recover(self, recovery: BackgroundRecovery) -> None:
        self._step(Phase.RECOVERING)
        self._recovery = recovery

    @property
    def may_open(self) -> bool:
        """True if the wait or the recovery is over."""
        return self._may_retry() if self._recovery is None else self._recovery.is_done()

    def end_recovery(self) -> OSError | UnreadableError | None:
        """Forget the recovery, which is done. Return the error of the disk that ended it, or None."""
        recovery, self._recovery = self._recovery, None
        return None if recovery is None else recovery.refused

    def give_up(self) -> None:
        """Stop a recovery that is under way."""
        if self._recovery is not None:
            self._recovery.give_up()

    # -- open

    def open(self, partition: Partition, disk: Disk) -> None:
        self._step(Phase.CLAIMING)
        self.partition, self.disk = partition, disk
        self.opened_ms = self._clock.now_ms()

    def start_reading(self, bounds: tuple[int, int]) -> None:
        """Read requests: our group owns the journal. bounds: of the timer partition, as `History.bounds`."""
        first, self._barrier = bounds
        next_offset = self.partition.store.next_offset
        self._step(Phase.CATCHING_UP)
        if first > next_offset:
            log.error(
                "%s: retention has taken %d offsets that were never read, from %d on: requests among them are lost;"
                " raise retention.ms to 3 roll windows",
                *(self.name, first - next_offset, next_offset),
            )
        self._starts_at = max(first, next_offset)
        self._source.start(self.name, self._starts_at)

    @property
    def _may_release(self) -> bool:
        """True if stored timers may leave. If intake is blocked, they do not wait for it: room has to be made."""
        return self.phase is Phase.OPEN or (self.phase is Phase.CATCHING_UP and self.partition.is_blocked)

    def draft_due(self, now_ms: int, most: int) -> None:
        if self.phase is not Phase.CLAIMING:
            self.is_full = self.partition.draft_due(now_ms, most, may_release=self._may_release)

    def freeze(self, now_ms: int, at_ms: int, *, is_all: bool) -> FrozenDraft | None:
        """Freeze the draft of a turn at `now_ms` for a transaction at `at_ms`. None if nothing is to be published."""
        if not self.partition.is_urgent(now_ms) and not (is_all and self.partition.has_news()):
            return None
        whole = is_all or self.is_checkpoint_due(now_ms)  # a checkpoint needs an empty draft
        return self.partition.freeze(now_ms, at_ms, is_all=whole, is_caught_up=self.phase is Phase.OPEN)

    def look(self, now_ms: int) -> None:
        """Find out when something is to be done without a new record, and whether it may rest until then."""
        until_ms = now_ms + self._checkpoint_interval_ms + self.partition.options.max_wait_ms
        self.look_ms = self.partition.next_look_ms(now_ms, until_ms, may_release=self._may_release)
        is_resting = self.phase is Phase.OPEN and self.partition.is_resting
        if is_resting and self._checkpoint_ms is not None and self._maintained is self.partition.committed_progress:
            self.rest = range(now_ms, min(self.look_ms, self._checkpoint_ms + self._checkpoint_interval_ms))

    def wake(self) -> None:
        self.rest, self._maintained = _NO_REST, None

    # -- what the Kafka client does not bring

    def _is_empty(self, start: int, end: int) -> bool | None:
        """True if only markers and aborted records are in [start, end), None if no answer comes in time."""
        try:
            return not any(self._history.requests(self.name, start, end))
        except PartitionUnreadableError:
            return None

    def missed_records(self, first: int) -> list[Record]:
        """Return records between the start position and the first polled record: nearly always none, or markers.

        librdkafka 2.16 once began one record too late, because an assignment had just been given up. One batch at most.
        """
        start, self._starts_at = self._starts_at, None
        if start is None or start >= first:
            return []
        found = next(self._history.requests(self.name, start, first), [])
        if found:
            text = "%s: the Kafka client left out %d requests at its start: reading them again"
            log.warning(text, self.name, len(found))
            self._read_from(found[-1].offset + 1)
        return found

    def _read_from(self, offset: int) -> None:
        self._starts_at = offset
        self._source.rewind(self.name, offset)

    def lag(self, stable: int, end: int, *, is_undecodable: bool) -> int:
        """Return the number of offsets up to `end` that are not read; 0 if they hold only markers and aborted records.

        Such offsets are never polled: Kafka is asked if the position has not moved since the last check.
        """
        start, before = self.partition.store.next_offset, self._lag_sample
        if start >= end:
            return 0
        sample = _LagSample(start, end, before.is_empty if (start, end) == before[:2] else None)
        is_little = end - start <= _LAG_OFFSETS  # the loop waits meanwhile
        if sample == before and before.is_empty is None and stable == end and is_little and not is_undecodable:
            sample = sample._replace(is_empty=self._is_empty(start, end))
        self._lag_sample = sample
        return 0 if sample.is_empty else end - start

    def end_lost_copies(self, end: int, lag: int) -> None:
        """End the timers whose copies were skipped before they were read: nothing else would ever end them.

        end: end of the log now, behind open transactions, which may hide copies. lag: unread offsets up to `end`.
        """
        self._copies_end = min(self._copies_end, end)
        is_read = self.phase is Phase.OPEN and (not lag or self.partition.store.next_offset >= self._copies_end)
        if is_read and (lost := self.partition.end_lost_copies()):
            self.wake()
            log.warning(
                "%s: %d timers are lost: retention or --adopt-progress has skipped their rolled copies before they were"
                " read; the first timer-origins are %s: send them again, and raise retention.ms to 3 roll windows",
                *(self.name, len(lost), ", ".join(f"{self.name}/{offset}" for offset in lost[:10])),
            )

    def check_caught_up(self, now_ms: int, *, was_empty: bool, is_undecodable: bool) -> None:
        """Go on to OPEN when all records from before the opening are read. Markers are never polled.

        was_empty: the last poll brought nothing. is_undecodable: the next record cannot be read, so nothing waits.
        """
        if self.phase is not Phase.CATCHING_UP:
            return
        is_read = is_undecodable or self.partition.store.next_offset >= self._barrier
        if is_read or (was_empty and self._is_at_end(now_ms)):
            self._step(Phase.OPEN)

    def _is_at_end(self, now_ms: int) -> bool:
        """True if Kafka says that no records are left below the barrier. Kafka is asked again if the client stalls."""
        start, last = self.partition.store.next_offset, self._stall
        is_stalled = start == last.offset and now_ms >= last.at_ms
        if is_stalled and not has_passed(last.at_ms, now_ms, last.enough_for_ms):
            return False
        self._stall = _StallProbe(start, now_ms, 2 * last.enough_for_ms if is_stalled else _STALL_MS)
        is_empty = self._is_empty(start, self._barrier)
        if is_stalled and is_empty is False:
            text = "%s: the Kafka client returns nothing from offset %d on, though there is more: reading again"
            log.warning(text, self.name, start)
            self._read_from(max(start, self._starts_at or 0))  # retention has taken what is below
        return is_empty is True

    # -- checkpoints

    def is_checkpoint_due(self, now_ms: int) -> bool:
        if self._checkpoint_ms is None:
            self._checkpoint_ms = now_ms - self._checkpoint_interval_ms
        return has_passed(self._checkpoint_ms, now_ms, self._checkpoint_interval_ms)

    def is_checkpoint_overdue(self, now_ms: int) -> bool:
        """True if a quiet moment has to be forced: under a steady load something is always drafted or not committed."""
        if self._checkpoint_ms is None or self.partition.is_quiet:
            return False
        return has_passed(self._checkpoint_ms, now_ms, self._checkpoint_interval_ms + _LATEST_MS)

    def _is_time_for_checkpoint(self, now_ms: int) -> bool:
        may_read = self._unanswered_ms is None or has_passed(self._unanswered_ms, now_ms, _REST_MS)
        return may_read and self.is_checkpoint_due(now_ms) and self.partition.is_quiet

    def starts_checkpoint(self, now_ms: int) -> bool:
        """True if `maintain` would start a checkpoint, for which it asks Kafka."""
        return self._is_time_for_checkpoint(now_ms) and self.partition.store.may_checkpoint

    def maintain(self, now_ms: int) -> bool:
        """Compact a little, continue the checkpoint that is being written, or start one that is due.

        Return False if Kafka gave no answer in time: other partitions come first. Raises CorruptStoreError.
        """
        store, self._maintained = self.partition.store, None
        try:
            store.compact_some()
            if store.continue_checkpoint() and self._is_time_for_checkpoint(now_ms):
                self._checkpoint_ms = now_ms
                self._start_checkpoint()
            if not store.is_writing:
                self._maintained = self.partition.committed_progress
        except (OSError, PartitionUnreadableError) as wrong:
            self._warnings.warn(now_ms, "checkpoint", "%s: no checkpoint: %s", self.name, wrong)
            if isinstance(wrong, PartitionUnreadableError):
                self._unanswered_ms = self._clock.now_ms()
                return False
        return True

    def _start_checkpoint(self) -> None:
        """Start a checkpoint if something is new, unless another owner has gone on.

        The order matters: the progress that is read includes all decisions below the journal's stable end.
        """
        if not self.partition.store.may_checkpoint:
            return
        _, journal_offset = self._history.journal_bounds(self.name)
        if self._history.progress(self.name) == self.partition.committed_progress:
            self.partition.start_checkpoint(journal_offset)

    def start_last_checkpoint(self) -> None:
        """Start the checkpoint that `finish_checkpoint` waits for."""
        with self._last_checkpoint():
            self.partition.store.finish_checkpoint()  # one in progress may know less
            self._start_checkpoint()

    def finish_checkpoint(self) -> None:
        """Write a last checkpoint before the store is closed."""
        with self._last_checkpoint():
            self.start_last_checkpoint()
            self.partition.store.finish_checkpoint()

    @contextmanager
    def _last_checkpoint(self) -> Iterator[None]:
        """Log what prevents a last checkpoint: the next start reads more. Other calls raise what ends the bridge."""
        try:
            yield
        except (OSError, BridgeError, CorruptStoreError) as wrong:
            log.warning("%s: no checkpoint at the end (%s); the next start reads more", self.name, wrong)
