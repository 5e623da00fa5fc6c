"""What keeps a partition from being opened: the time of the next try, the claim of its journal, an error.

A partition reads and releases only after its journal is known to be our group's (bridge.partition.journal).
"""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bridge.errors import PartitionUnreadableError
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.partition.journal import ours
from bridge.partition.options import has_passed
from bridge.ports import Clock, History, Since
from kafka_timer.origin import TimerPartition
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

OpeningError = CorruptStoreError | PartitionUnreadableError | OSError

RETRY_MS = 5000
"""Time between two tries to open a partition: a try may take long, and the loop's thread serves all partitions."""
_UNREADABLE_MS = 60_000
"""A store that cannot be read is kept for this long if a rebuild would lose what Kafka no longer has."""
_FREE_ROOM = "free room on the disk of data_dir, or name another directory; nothing is lost, Kafka has it all"


@contextmanager
def asked_ahead(history: History, partitions: Sequence[TimerPartition], since: Since | None = None) -> Iterator[None]:
    """Ask Kafka about all of these partitions at once. The answers are for the calls inside the `with`."""
    history.ask_ahead(partitions, since)
    try:
        yield
    finally:
        history.ask_ahead([])


class RetryDelay:
    """A wait before the next try of something that blocks the loop's thread."""

    def __init__(self, clock: Clock, wait_ms: int = RETRY_MS) -> None:
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._wait_ms = wait_ms

    def is_done(self) -> bool:
        return has_passed(self._since_ms, self._clock.now_ms(), self._wait_ms)


@dataclass(eq=False)
class JournalClaims:
    """The assigned partitions whose journal is known to be ours. journal_of: returns the journal of a timer topic."""

    _clock: Clock
    _history: History
    _journal_of: Callable[[str], str]

    def __post_init__(self) -> None:
        self._known: set[TimerPartition] = set()
        self._next_read: RetryDelay | None = None
        self._next_claims: RetryDelay | None = None

    def __contains__(self, partition: TimerPartition) -> bool:
        return partition in self._known

    def forget(self, partition: TimerPartition) -> None:
        self._known.discard(partition)

    def look(self, partitions: Sequence[TimerPartition]) -> set[TimerPartition]:
        """Return those whose journal is known to be ours. Raises ForeignJournalError.

        Without an answer in time none is known, and the next read follows after 5 s: it holds up all partitions.
        """
        if not partitions or (self._next_read is not None and not self._next_read.is_done()):
            return set()
        self._next_read = None
        try:
            found = ours(partitions, self._history, self._journal_of)
        except PartitionUnreadableError as wrong:
            log.warning("the owner of journals is not known: %s; asking again in 5 s", wrong)
            self._next_read = RetryDelay(self._clock)
            return set()
        self._known |= found
        return found

    def confirm(self, written: Sequence[TimerPartition]) -> tuple[set[TimerPartition], set[TimerPartition]]:
        """Look for claims that were written. Return the partitions whose claim is first, and those to write again.

        Raises ForeignJournalError if the claim of another group is the first.
        """
        confirmed = self.look(written)
        missing = set(written) - confirmed
        if not missing:
            self._next_claims = None
        elif self._next_claims is None:
            self._next_claims = RetryDelay(self._clock)
        elif self._next_claims.is_done():  # retention may have taken a claim before it was read
            self._next_claims = None
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
                text = (
                    "%s: its local store cannot be read (%s), so its timers wait: check the disk of data_dir. It"
                    " is opened again every 5 s, and after a minute rebuilt from Kafka, without what retention has"
                    " taken"
                )
                self._warnings.warn(now_ms, f"disk {partition}", text, partition, error)
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
