"""A read is put to every instance of the group, each of which knows its own partitions.

    group (Kafka) -> who has which partition, and the address that each member tells in its client.id
    own ones from here, the others' by HTTP with `local=true` and a pass in the name of who asks -> joined
    whatever nobody has answered for is told as missing, with the reason

A pass is signed with a key that all instances share, and good for this one read at this one address: a member that
announces a false address learns nothing that is of use elsewhere. Of its answer nothing is taken but what is about its
own partitions.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlencode

import h11
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from bridge.errors import BridgeError
from bridge.http.api.ports import GroupView, KafkaSide
from bridge.http.api.requests import Read
from bridge.http.api.responses import GroupFound, GroupListing, Instance, Missing, Refused
from bridge.http.auth.sessions import Authenticator, Caller
from bridge.http.peer_client import Peers, fetch
from bridge.query.summary import Pending
from schemas.origin import Shard

Part = TypeVar("Part", bound=BaseModel)

_ANSWER_WITHIN_S = 15.0
_GROUP_GOOD_FOR_S = 2.0
_MOST_BYTES = 64 << 20
_OK = 200
_MOST_REASON = 500
_NAMES_AT_ONCE = 4
_NO_BRIDGE = "does not answer as a bridge of this version does"


class Neighbours:
    """`address`: our own, as the group sees it."""

    def __init__(
        self,
        address: str,
        kafka: KafkaSide,
        access: Authenticator,
        peers: Peers,
        within_s: float = _ANSWER_WITHIN_S,
        good_for_s: float = _GROUP_GOOD_FOR_S,
    ) -> None:
        self._address = address
        self._kafka = kafka
        self._access = access
        self._peers = peers
        self._within_s = within_s
        self._good_for_s = good_for_s
        self._names = ThreadPoolExecutor(_NAMES_AT_ONCE, "names")  # of its own: a cancel waits for none of them
        self._group = GroupView(frozenset(), ())
        self._looked_s: float | None = None
        self._lock = asyncio.Lock()

    @property
    def address(self) -> str:
        return self._address

    async def ask_all(
        self,
        caller: Caller,
        path: str,
        asked: Read,
        kind: type[Part],
        own: Callable[[], Awaitable[Part]],
    ) -> tuple[list[Part], list[Missing]]:
        """What each instance tells, and partitions that are in none of it; of a local read, what `own` tells.

        Raises HTTPException if no instance answers.
        """
        if asked.local:
            return [await own()], []
        group, unknown = await self._look()
        others = self._others(group)
        answers = await asyncio.gather(
            self._own(own), *(self._other(place, caller, path, asked, kind, its) for place, its in others.items())
        )
        parts = [each for each in answers if not isinstance(each, str)]
        addresses = [self._address, *others]
        failed = {address: why for address, why in zip(addresses, answers, strict=True) if isinstance(why, str)}
        if not parts:
            raise HTTPException(503, failed[self._address])
        covered = {partition for part in parts for partition in _covered(part)}
        left = [shard for shard in sorted(group.shards) if str(shard) not in covered]
        return parts, [Missing(partition=str(shard), why=unknown or self._why(group, shard, failed)) for shard in left]

    def _others(self, group: GroupView) -> dict[str, frozenset[str]]:
        """Partitions by address; each is asked once, however many tell it."""
        found: dict[str, frozenset[str]] = {}
        for each in group.members:
            if each.address not in ("", self._address) and each.shards:
                found[each.address] = found.get(each.address, frozenset()) | {str(shard) for shard in each.shards}
        return found

    async def _look(self) -> tuple[GroupView, str]:
        """The group as of a moment ago, and why it is not known where it is not."""
        async with self._lock:
            if self._looked_s is None or time.monotonic() - self._looked_s >= self._good_for_s:
                try:
                    self._group = await asyncio.to_thread(self._kafka.group)
                except BridgeError as wrong:
                    return GroupView(self._group.shards, ()), f"who has it is not known: {wrong}"
                self._looked_s = time.monotonic()
            return self._group, ""

    def _why(self, group: GroupView, shard: Shard, failed: dict[str, str]) -> str:
        owner = next((each for each in group.members if shard in each.shards), None)
        if owner is None:
            return "no instance has it just now: ask again, or start one"
        if not owner.address:
            return f"{owner.name} has it, which tells no address: start it with --http-port and --page true"
        told = failed.get(owner.address, "it is not open there: it is being recovered, or changes hands")
        if owner.address == self._address and owner.address not in failed:
            return "it is not open here: it is being recovered, or two instances tell one address (--advertised-http)"
        return f"{owner.address}: {told}"

    async def _own(self, own: Callable[[], Awaitable[Part]]) -> Part | str:
        try:
            return await own()
        except HTTPException as refused:
            return refused.detail

    async def _other(
        self, address: str, caller: Caller, path: str, asked: Read, kind: type[Part], its: frozenset[str]
    ) -> Part | str:
        told = asked.model_dump(mode="json", exclude_defaults=True) | {"local": "true"}
        query = f"{path}?{urlencode({name: str(value) for name, value in told.items()})}"
        headers = {}
        if not self._access.is_open:
            headers["Authorization"] = f"Pass {self._access.pass_for(caller, address, query)}"
        try:
            async with asyncio.timeout(self._within_s):
                status, text = await fetch(address, query, headers, self._names, _MOST_BYTES, self._peers)
            if status != _OK:
                return _reason(status, text)
            return _only(kind.model_validate_json(text), address, its)
        except TimeoutError:
            return f"does not answer within {self._within_s:g} s: is its --advertised-http right?"
        except OSError as wrong:
            return f"does not answer ({_in_system_words(wrong)}): is its --advertised-http right?"
        except (ValidationError, h11.ProtocolError):
            return _NO_BRIDGE
        except ValueError:
            return "is no address: give that instance host:port as --advertised-http"


def _covered(part: BaseModel) -> Iterable[str]:
    """Return the partitions that the answer is about."""
    assert isinstance(part, Instance | Pending | GroupListing | GroupFound)
    return part.shards if isinstance(part, Pending) else part.partitions


def _only(part: Part, address: str, its: frozenset[str]) -> Part | str:
    """What it tells of its own partitions; why nothing is taken where its sums are about others too."""
    if isinstance(part, Instance):
        own = {name: state for name, state in part.partitions.items() if name in its}
        return part.model_copy(update={"address": address, "partitions": own})
    if isinstance(part, GroupFound):
        timers = [timer for timer in part.timers if timer.shard in its]
        return part.model_copy(update={"timers": timers, "partitions": sorted(its.intersection(part.partitions))})
    told = {*_covered(part)}
    if isinstance(part, GroupListing):
        told.update(timer.shard for timer in part.timers)
    if told <= its:
        return part
    return f"tells of {min(told - its)}, which is another's by the group: it changes hands, so ask again"


def _in_system_words(wrong: OSError) -> str:
    """Without asyncio's around them; errors of names are negative."""
    return os.strerror(wrong.errno) if wrong.errno is not None and wrong.errno > 0 else wrong.strerror or str(wrong)


def _reason(status: int, text: bytes) -> str:
    try:
        return Refused.model_validate_json(text).reason[:_MOST_REASON]
    except ValidationError:
        return f"answers {status}"
