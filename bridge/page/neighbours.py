"""A read is put to every instance of the group, each of which knows its own partitions.

    group (Kafka) -> who has which partition, and the address that each member tells in its client.id
    own ones from here, the others' by HTTP with `local=true` and a pass in the name of who asks -> joined
    whatever nobody has answered for is told as missing, with the reason

A pass is signed with the caller's token and good for this one read: whoever announces a false address learns nothing
that is of use elsewhere.
"""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from bridge.errors import BridgeError
from bridge.page.access import Access, Caller
from bridge.page.answers import Missing, Refused
from bridge.page.kafka_side import Group, KafkaSide
from bridge.page.questions import Read
from schemas.origin import Shard

Part = TypeVar("Part", bound=BaseModel)

_ANSWER_WITHIN_S = 15.0
_GROUP_GOOD_FOR_S = 2.0
_MOST_BYTES = 64 << 20


class Neighbours:
    """`address`: our own, as the group sees it."""

    def __init__(
        self,
        address: str,
        kafka: KafkaSide,
        access: Access,
        within_s: float = _ANSWER_WITHIN_S,
        good_for_s: float = _GROUP_GOOD_FOR_S,
    ) -> None:
        self._address = address
        self._kafka = kafka
        self._access = access
        self._within_s = within_s
        self._good_for_s = good_for_s
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._group = Group(frozenset(), ())
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
        covers: Callable[[Part], Iterable[str]],
    ) -> tuple[list[Part], list[Missing]]:
        """What each instance tells, and partitions that are in none of it. Raises HTTPException where none answers."""
        group, unknown = await self._look()
        others = [each for each in group.members if each.address not in ("", self._address) and each.shards]
        answers = await asyncio.gather(
            self._own(own), *(self._other(each.address, caller, path, asked, kind) for each in others)
        )
        parts = [each for each in answers if not isinstance(each, str)]
        addresses = [self._address, *(each.address for each in others)]
        failed = {address: why for address, why in zip(addresses, answers, strict=True) if isinstance(why, str)}
        if not parts:
            raise HTTPException(503, failed[self._address])
        covered = {partition for part in parts for partition in covers(part)}
        left = [shard for shard in sorted(group.shards) if str(shard) not in covered]
        return parts, [Missing(partition=str(shard), why=unknown or self._why(group, shard, failed)) for shard in left]

    async def owners(self) -> dict[Shard, str]:
        """Address of the instance that has it, as far as known; else its name."""
        group, _ = await self._look()
        return {shard: each.address or each.name for each in group.members for shard in each.shards}

    async def _look(self) -> tuple[Group, str]:
        """The group as of a moment ago, and why it is not known where it is not."""
        async with self._lock:
            if self._looked_s is None or time.monotonic() - self._looked_s >= self._good_for_s:
                try:
                    self._group = await asyncio.to_thread(self._kafka.group)
                except BridgeError as wrong:
                    return Group(self._group.shards, ()), f"who has it is not known: {wrong}"
                self._looked_s = time.monotonic()
            return self._group, ""

    def _why(self, group: Group, shard: Shard, failed: dict[str, str]) -> str:
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

    async def _other(self, address: str, caller: Caller, path: str, asked: Read, kind: type[Part]) -> Part | str:
        told = asked.model_dump(mode="json", exclude_defaults=True) | {"local": "true"}
        query = f"{path}?{urlencode({name: str(value) for name, value in told.items()})}"
        request = urllib.request.Request(f"http://{address}{query}")
        if caller.token is not None:
            request.add_header("Authorization", f"Pass {self._access.pass_for(caller, query)}")
        try:
            text = await asyncio.to_thread(self._fetch, request)
            return kind.model_validate_json(text)
        except urllib.error.HTTPError as refused:
            return _reason(refused)
        except OSError as wrong:
            return f"does not answer ({getattr(wrong, 'reason', wrong)}): is its --advertised-http right?"
        except ValidationError:
            return "does not answer as a bridge of this version does"

    def _fetch(self, request: urllib.request.Request) -> bytes:
        with self._opener.open(request, timeout=self._within_s) as answer:
            text: bytes = answer.read(_MOST_BYTES)
        return text


def _reason(refused: urllib.error.HTTPError) -> str:
    try:
        return Refused.model_validate_json(refused.read(_MOST_BYTES)).reason
    except (ValidationError, OSError):
        return f"answers {refused.code}"
