"""Sources of `timer-bridge pending`: running bridges over HTTP, or the stores of a stopped one."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from bridge.cli.api_client import Answer, ApiClient
from bridge.cli.offline_stores import for_each_store, locked_stores
from bridge.query.summary import (
    InstanceNamed,
    InstancePending,
    Named,
    OfInstance,
    Pending,
    merge_pending,
    named_in_store,
    pending_in_store,
)
from schemas.origin import Shard
from timer.inspect.offline_store import StoppedStore

_PATH = "/pending"
_REMEDY = "ask it by its --http-port (or --url); where it was started without one, stop it first"


class PendingSource(Protocol):
    """Answer questions about pending timers. Raises BridgeError, SettingsError.

    unread_partitions: those that the last answer lacks, because they are still recovering.
    """

    @property
    def unread_partitions(self) -> list[str]: ...

    def pending(self, bucket_ms: int, topic: str | None) -> Pending: ...

    def named(self, id_: str) -> Named: ...


class RunningInstances:
    """All instances of a group, so all its partitions. `token`: needed for a question by id."""

    def __init__(self, urls: list[str], token: str | None = None) -> None:
        self._bridges = [ApiClient(url, "--http-port", token) for url in urls]
        self.unread_partitions: list[str] = []

    def pending(self, bucket_ms: int, topic: str | None) -> Pending:
        asked = {"bucket": str(bucket_ms)} | ({} if topic is None else {"topic": topic})
        found = [each.get(_PATH, asked, InstancePending) for each in self._bridges]
        self._note(found)
        return merge_pending(found)

    def named(self, id_: str) -> Named:
        found = [each.get(_PATH, {"id": id_}, InstanceNamed) for each in self._bridges]
        self._note(found)
        return Named(at_ms=found[0].at_ms, id=id_, timers=[timer for each in found for timer in each.timers])

    def _note(self, found: Iterable[OfInstance]) -> None:
        self.unread_partitions = sorted({name for each in found for name in each.recovering})


class StoppedBridge:
    """The stores of a stopped bridge, as of their checkpoints, read only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.unread_partitions: list[str] = []

    def pending(self, bucket_ms: int, topic: str | None) -> Pending:
        now_ms = _now_ms()
        nothing = Pending(at_ms=now_ms, pending=0, topics={}, shards={})
        return merge_pending(
            [
                nothing,
                *self._each(
                    lambda shard, store: pending_in_store(shard, store, now_ms, bucket_ms=bucket_ms, topic=topic)
                ),
            ]
        )

    def named(self, id_: str) -> Named:
        now_ms = _now_ms()
        found = self._each(lambda shard, store: named_in_store(shard, store, id_, now_ms))
        return Named(at_ms=now_ms, id=id_, timers=[timer for each in found for timer in each.timers])

    def _each(self, look: Callable[[Shard, StoppedStore], Answer]) -> list[Answer]:
        """Return the result of `look` for each store that is not empty."""
        found: list[Answer] = []
        with locked_stores(self._folder, remedy=_REMEDY) as stores:
            unfinished = for_each_store(stores, lambda shard, store: found.append(look(shard, store)))
        self.unread_partitions = [*map(str, unfinished)]
        return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
