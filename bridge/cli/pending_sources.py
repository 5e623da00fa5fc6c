"""Where `timer-bridge pending` gets its answers: by HTTP from running bridges, or from the stores of a stopped one."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from bridge.cli.api_client import Answer, RunningBridge
from bridge.cli.offline_stores import look_into, reading
from bridge.query.summary import (
    InstanceNamed,
    InstancePending,
    Named,
    OfInstance,
    Pending,
    joined,
    named_in_store,
    of_store,
)
from schemas.origin import Shard
from timer.inspect.offline_store import StoppedStore

_PATH = "/pending"
_REMEDY = "ask it by its --http-port (or --url); where it was started without one, stop it first"


class PendingSource(Protocol):
    """Raises BridgeError, SettingsError. `not_seen`: partitions that could not be looked into at the last question."""

    @property
    def not_seen(self) -> list[str]: ...

    def pending(self, bucket_ms: int, topic: str | None) -> Pending: ...

    def named(self, id_: str) -> Named: ...


class RunningBridges:
    """Instances of one group, by their addresses; together they have all its partitions. `token`: asked for by id."""

    def __init__(self, urls: list[str], token: str | None = None) -> None:
        self._bridges = [RunningBridge(url, "--http-port", token) for url in urls]
        self.not_seen: list[str] = []

    def pending(self, bucket_ms: int, topic: str | None) -> Pending:
        asked = {"bucket": str(bucket_ms)} | ({} if topic is None else {"topic": topic})
        found = [each.get(_PATH, asked, InstancePending) for each in self._bridges]
        self._note(found)
        return joined(found)

    def named(self, id_: str) -> Named:
        found = [each.get(_PATH, {"id": id_}, InstanceNamed) for each in self._bridges]
        self._note(found)
        return Named(at_ms=found[0].at_ms, id=id_, timers=[timer for each in found for timer in each.timers])

    def _note(self, found: Iterable[OfInstance]) -> None:
        self.not_seen = sorted({name for each in found for name in each.recovering})


class Directory:
    """The stores of a stopped bridge, as of their checkpoints; they are only read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.not_seen: list[str] = []

    def pending(self, bucket_ms: int, topic: str | None) -> Pending:
        now_ms = _now_ms()
        nothing = Pending(at_ms=now_ms, pending=0, topics={}, shards={})
        return joined(
            [
                nothing,
                *self._each(lambda shard, store: of_store(shard, store, now_ms, bucket_ms=bucket_ms, topic=topic)),
            ]
        )

    def named(self, id_: str) -> Named:
        now_ms = _now_ms()
        found = self._each(lambda shard, store: named_in_store(shard, store, id_, now_ms))
        return Named(at_ms=now_ms, id=id_, timers=[timer for each in found for timer in each.timers])

    def _each(self, look: Callable[[Shard, StoppedStore], Answer]) -> list[Answer]:
        """What `look` finds in each store that holds anything."""
        found: list[Answer] = []
        with reading(self._folder, remedy=_REMEDY) as stores:
            unfinished = look_into(stores, lambda shard, store: found.append(look(shard, store)))
        self.not_seen = [*map(str, unfinished)]
        return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
