"""One partition that the group has assigned to us: its phase, and what is open around its timers.

    phase         what runs                                         until
    WAITING       nothing                                           the next try to open it
    RECOVERING    a process of its own reads what the store lacks   that has ended
    CLAIMING      the store is open, our claim is written           the claim of the journal is committed, and the first
    CATCHING_UP   requests are read, stored timers wait             all requests from before the opening are read
    OPEN          everything                                        the partition is given up

In CATCHING_UP, a cancel that was sent during downtime wins. A partition whose store is damaged begins again in WAITING,
as a new object: records that were polled for the old object are polled again.
"""

import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from bridge.errors import PartitionUnreadableError
from bridge.loop.opening import RetryDelay
from bridge.partition.options import has_passed
from bridge.partition.partition import Partition
from bridge.ports import BackgroundRecovery, Clock, History, Record, Source
from kafka_timer.origin import TimerPartition
from timer.disk import Disk
from timer.errors import UnreadableError

log = logging.getLogger(__name__)

_STALL_MS = 5000
"""A client that fetches has brought something by then. If brokers throttle it, after twice the time, and so on."""


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
    """Kafka was asked at `at_ms` (epoch ms) whether it holds more than was read, up to `offset`."""

    offset: int
    at_ms: int
    enough_for_ms: int


class AssignedPartition:
    """For the loop's thread alone. `partition` and `disk` exist from CLAIMING on."""

    partition: Partition
    disk: Disk

    def __init__(self, timer_partition: TimerPartition, clock: Clock, source: Source, history: History) -> None:
        self.name = timer_partition
        self.phase = Phase.WAITING
        self.opened_ms = 0
        self._clock = clock
        self._source = source
        self._history = history
        self._retry: RetryDelay | None = None
        self._recovery: BackgroundRecovery | None = None
        self._barrier = 0
        """All requests from before the opening are below this offset."""
        self._starts_at: int | None = None
        """The offset at which the source was started, until its first record is polled."""
        self._stall = _StallProbe(-1, 0, 0)

    def _step(self, phase: Phase) -> None:
        assert phase in _NEXT[self.phase], f"{self.name}: {phase} after {self.phase}"
        self.phase = phase

    # -- before it is open

    def wait(self, ms: int) -> None:
        """Wait for this long before the next try."""
        self._step(Phase.WAITING)
        self._retry, self._recovery = RetryDelay(self._clock, ms), None

    def recover(self, recovery: BackgroundRecovery) -> None:
        self._step(Phase.RECOVERING)
        self._recovery = recovery

    def may_open(self) -> bool:
        """True if the wait or the recovery is over."""
        if self._recovery is not None:
            return self._recovery.is_done()
        return self._retry is None or self._retry.is_done()

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
        first, barrier = bounds
        next_offset = self.partition.store.next_offset
        self._step(Phase.CATCHING_UP)
        self._barrier = barrier
        if first > next_offset:
            log.error(
                "%s: retention has taken %d offsets that were never read, from %d on: their requests are lost; raise"
                " retention.ms to 3 roll windows",
                self.name,
                first - next_offset,
                next_offset,
            )
        self._starts_at = max(first, next_offset)
        self._source.start(self.name, self._starts_at)

    @property
    def _may_release(self) -> bool:
        """True if stored timers may leave. If intake is blocked, they do not wait for it: room has to be made."""
        return self.phase is Phase.OPEN or (self.phase is Phase.CATCHING_UP and self.partition.is_blocked)

    def draft_due(self, now_ms: int) -> None:
        """Draft the timers that leave now."""
        if self.phase is not Phase.CLAIMING:
            self.partition.draft_due(now_ms, may_release=self._may_release)

    def next_look_ms(self, now_ms: int, until_ms: int) -> int:
        """Return when something is to be done without a new record, at the latest `until_ms`."""
        return self.partition.next_look_ms(now_ms, until_ms, may_release=self._may_release)

    # -- what the Kafka client does not bring

    def is_empty(self, start: int, end: int) -> bool | None:
        """True if only markers and aborted records are in [start, end), None if no answer comes in time."""
        try:
            return not any(self._history.requests(self.name, start, end))
        except PartitionUnreadableError:
            return None

    def missed_records(self, first: int) -> list[Record]:
        """Return records between the start position and the first polled record: nearly always none, or markers.

        librdkafka 2.16 once began one record too late, because an assignment had just been given up. Returns at most
        one batch; the source yields what follows it.
        """
        start, self._starts_at = self._starts_at, None
        if start is None or start >= first:
            return []
        found = next(self._history.requests(self.name, start, first), [])
        if found:
            text = "%s: the Kafka client left out %d requests at its start: reading them again"
            log.warning(text, self.name, len(found))
            self._starts_at = found[-1].offset + 1
            self._source.rewind(self.name, self._starts_at)
        return found

    def check_caught_up(self, now_ms: int, *, was_empty: bool, is_undecodable: bool) -> None:
        """Go on to OPEN when all records from before the opening are read. Markers are never polled.

        If Kafka holds more and the client brings nothing, read from there again (see `missed_records`).
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
        is_empty = self.is_empty(start, self._barrier)
        if is_stalled and is_empty is False:
            text = "%s: the Kafka client returns nothing from offset %d on, though there is more: reading again"
            log.warning(text, self.name, start)
            self._starts_at = max(start, self._starts_at or 0)  # retention has taken what is below
            self._source.rewind(self.name, self._starts_at)
        return is_empty is True
