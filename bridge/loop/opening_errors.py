"""Errors of partitions that cannot be opened: what to log, and when a store that cannot be read is given up."""

import errno
import logging

from bridge.errors import PartitionUnreadableError
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.ports import Clock
from schemas.origin import Shard
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

OpeningError = CorruptStoreError | PartitionUnreadableError | OSError

_UNREADABLE_MS = 60_000
"""A store that cannot be read is kept for this long if a rebuild would lose what Kafka no longer has."""
_FREE_ROOM = "free room on the disk of data_dir, or name another directory; nothing is lost, Kafka has it all"


class OpeningErrors:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unreadable: dict[Shard, tuple[int, CorruptStoreError]] = {}
        """Since when (epoch ms) a store cannot be read, and the last error."""
        self._warnings = LogRateLimit(log)

    def note(self, shard: Shard, error: OpeningError) -> None:
        """Log that the partition is opened later, and what to do."""
        now_ms = self._clock.now_ms()
        match error:
            case CorruptStoreError():
                since_ms, _ = self._unreadable.get(shard, (now_ms, error))
                self._unreadable[shard] = min(since_ms, now_ms), error
                text = (
                    "%s: its local store cannot be read (%s), so its timers wait: check the disk of data_dir. It"
                    " is opened again every 5 s, and after a minute rebuilt from Kafka, without what retention has"
                    " taken"
                )
                self._warnings.warn(now_ms, f"disk {shard}", text, shard, error)
            case PartitionUnreadableError():
                text = "%s: its partition cannot be read (%s), so its timers wait; it is tried again every 5 s"
                self._warnings.warn(now_ms, f"unreadable {shard}", text, shard, error)
            case OSError():
                is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
                remedy = "let it open more files (ulimit -n, LimitNOFILE)" if is_limit else _FREE_ROOM
                text = "%s: its local store cannot be made ready (%s), so its timers wait: %s"
                self._warnings.warn(now_ms, f"disk {shard}", text, shard, error, remedy)

    def note_opened(self, shard: Shard) -> None:
        if shard not in self._unreadable:  # else the fault may come back
            self._warnings.clear(f"disk {shard}")
        self._warnings.clear(f"unreadable {shard}")

    def lasting(self, shard: Shard) -> CorruptStoreError | None:
        """Return the error of a store that has been unreadable for too long."""
        now_ms = self._clock.now_ms()
        since_ms, error = self._unreadable.get(shard, (now_ms, None))
        return error if now_ms - since_ms >= _UNREADABLE_MS else None

    def forget_unreadable(self, shard: Shard) -> None:
        self._unreadable.pop(shard, None)
