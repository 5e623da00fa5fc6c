"""Where `timer-bridge pending` gets its answers: by HTTP from running bridges, or from the stores of a stopped one."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import typer
from pydantic import BaseModel, ValidationError

from bridge.errors import BridgeError, SettingsError
from bridge.pending import Named, Pending, joined, named_in_store, of_store
from bridge.stopped_stores import opened, reading
from schemas.origin import Shard
from timer.inspection import EmptyStoreError, StoppedStore

Answer = TypeVar("Answer", bound=BaseModel)

_TIMEOUT_S = 30.0
_NOT_FOUND = 404
_UNAUTHORIZED = 401
_REMEDY = "ask it by its --http-port (or --url); where it was started without one, stop it first"


class PendingSource(Protocol):
    """Raises BridgeError, SettingsError."""

    def pending(self, bucket_ms: int, topic: str | None) -> Pending: ...

    def named(self, id_: str) -> Named: ...


class _Reason(BaseModel):
    reason: str


class RunningBridges:
    """Instances of one group, by their addresses; together they have all its partitions. `token`: asked for by id."""

    def __init__(self, urls: list[str], token: str | None = None) -> None:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise SettingsError(f"--url {url}: write http://host:port")
        self._urls = urls
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a bridge is a neighbour

    def pending(self, bucket_ms: int, topic: str | None) -> Pending:
        asked = {"bucket": str(bucket_ms)} | ({} if topic is None else {"topic": topic})
        return joined(self._ask(url, asked, Pending) for url in self._urls)

    def named(self, id_: str) -> Named:
        found = [self._ask(url, {"id": id_}, Named) for url in self._urls]
        return Named(at_ms=found[0].at_ms, id=id_, timers=[timer for each in found for timer in each.timers])

    def _ask(self, url: str, asked: dict[str, str], kind: type[Answer]) -> Answer:
        where = f"{url.rstrip('/')}/pending?{urlencode(asked)}"
        request = urllib.request.Request(where, headers=self._headers)  # noqa: S310  (http or https, as checked)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as refusal:
            text = refusal.read()
            if refusal.code == _UNAUTHORIZED:
                raise BridgeError(f"{url}: give a token of it in a file, --token-file") from refusal
            if refusal.code != _NOT_FOUND:
                raise BridgeError(f"{url}: {_reason(text) or refusal}") from refusal
        except OSError as wrong:
            why = wrong.reason if isinstance(wrong, urllib.error.URLError) else wrong
            why = why.strerror if isinstance(why, OSError) and why.strerror else why
            raise BridgeError(f"{url}: {why}: is a bridge running there, with --http-port?") from wrong
        try:
            return kind.model_validate_json(text)
        except ValidationError as wrong:
            raise BridgeError(f"{url} does not answer as a bridge does: give the address of its --http-port") from wrong


def _reason(text: bytes) -> str | None:
    try:
        return _Reason.model_validate_json(text).reason
    except ValidationError:
        return None


class Directory:
    """The stores of a stopped bridge, as of their checkpoints; they are only read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
            for shard, path in stores:
                with suppress(EmptyStoreError), opened(path) as store:
                    if not store.closed:
                        typer.echo(f"note: {shard} was not closed cleanly: as of its last checkpoint", err=True)
                    found.append(look(shard, store))
        return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
