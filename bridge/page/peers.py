"""Send a read to every instance of the group, because each knows only its own partitions.

    consumer group (Kafka)  -> the owner of each partition, and the address in each member's client.id
    own partitions locally, the others by HTTP with `local=true` and a peer token for the caller  -> merged
    partitions without an answer are listed as missing, with the reason

A peer token is signed with a key that all instances share and is valid for this one read at this one address, so a
member that announces a false address learns nothing of use elsewhere. Only its own partitions in its answer count.

    10.1.2.3:8321            an instance          10.1.2.3:8321/worker-2   one of its workers (bridge.workers)

The server at such an address cannot block or mislead the caller: a thread only resolves the name, redirects are not
followed, at most `max_bytes` are read, and a cancel (such as a timeout) ends a read at once.
"""

import asyncio
import math
import os
import re
import socket
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

import h11
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from bridge.config.http_address import host_of
from bridge.errors import BridgeError
from bridge.page.api.kafka import ConfluentKafkaPort, GroupView
from bridge.page.api.requests import Read
from bridge.page.api.responses import GroupFound, Instance, Missing, Refused
from bridge.page.sessions import Authenticator, Caller
from bridge.query.search import Listing
from bridge.query.summary import Pending
from kafka_timer.origin import TimerPartition

_CHUNK_BYTES = 1 << 16
_ADDRESS = re.compile(r"([^/]+)((?:/worker-[1-9][0-9]?)?)")
"""A member may choose no other path."""
Part = TypeVar("Part", bound=BaseModel)
Own: TypeAlias = Callable[[], Awaitable[Part]]
_MAX_BYTES = 64 << 20
_MAX_REASON_CHARS = 500
_RESOLVER_THREADS = 4


class HttpResponse(NamedTuple):
    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


class PeerNetworks(NamedTuple):
    """The IP addresses that may be asked: those in `networks`, or if that is empty, those that an instance can have."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    is_loopback: bool = True
    """True if we announce a loopback address ourselves, so others may too."""

    def allows(self, host: str) -> bool:
        address = ip_address(host)
        address = getattr(address, "ipv4_mapped", None) or address
        if self.networks:
            return any(address in network for network in self.networks)
        is_special = address.is_link_local or address.is_multicast or address.is_unspecified
        return self.is_loopback if address.is_loopback else not is_special


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: h11.Request,
    max_bytes: int,
    body: AsyncIterable[bytes] | None = None,
) -> HttpResponse:
    """Send a request and return its response; then the connection is closed.

    The response may come before the whole body is sent. Raises OSError, h11.ProtocolError if the answer is not HTTP.
    """
    connection = h11.Connection(h11.CLIENT)
    sending = asyncio.ensure_future(_send(writer, connection, request, body))
    try:
        return await _read_response(reader, connection, max_bytes)
    finally:
        sending.cancel()
        writer.transport.abort()


async def _send(
    writer: asyncio.StreamWriter, connection: h11.Connection, request: h11.Request, body: AsyncIterable[bytes] | None
) -> None:
    with suppress(OSError, h11.LocalProtocolError, ClientDisconnect):  # no response comes then
        writer.write(connection.send(request) or b"")
        if body is not None:
            async for chunk in body:
                writer.write(connection.send(h11.Data(data=chunk)) or b"")
                await writer.drain()
        writer.write(connection.send(h11.EndOfMessage()) or b"")


async def _read_response(reader: asyncio.StreamReader, connection: h11.Connection, max_bytes: int) -> HttpResponse:
    status, body, headers = 0, bytearray(), list[tuple[bytes, bytes]]()
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise OSError(f"its answer is larger than {max_bytes} bytes")
    return HttpResponse(status, bytes(body), headers)


@dataclass
class Peers:
    """`address`: ours, as the group sees it."""

    address: str
    _kafka: ConfluentKafkaPort
    _access: Authenticator
    _networks: PeerNetworks
    timeout_s: float = 15.0
    cache_s: float = 2.0
    _resolver: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_RESOLVER_THREADS, "names"))
    """Its own: a cancel does not wait for it."""
    _group: GroupView = field(default_factory=lambda: GroupView(frozenset(), ()))
    _group_read_s: float = -math.inf
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask_all(
        self, caller: Caller, path: str, question: Read, kind: type[Part], own: Own[Part], more_s: float = 0.0
    ) -> tuple[list[Part], list[Missing]]:
        """Return the answer of each instance, and the partitions that no answer covers. more_s: time for a long one.

        A local read returns only the result of `own`. Raises HTTPException if no instance answers.
        """
        if question.local:
            return [await own()], []
        group, unknown = await self._current_group()
        others = self._peer_partitions(group)
        parameters = question.model_dump(mode="json", exclude_defaults=True) | {"local": "true"}
        ask = partial(self._ask_peer, caller, f"{path}?{urlencode(parameters)}", kind, self.timeout_s + more_s)
        answers = await asyncio.gather(self._ask_self(own), *(ask(address, its) for address, its in others.items()))
        parts = [each for each in answers if not isinstance(each, str)]
        found = zip([self.address, *others], answers, strict=True)
        failed = {address: why for address, why in found if isinstance(why, str)}
        if not parts:
            raise HTTPException(503, failed[self.address])
        covered = {name for part in parts for name in _partitions_of(part)}
        missing = {str(each): each for each in sorted(group.partitions) if str(each) not in covered}
        why = partial(self._missing_reason, group, failed)
        return parts, [Missing(partition=name, why=unknown or why(each)) for name, each in missing.items()]

    def _peer_partitions(self, group: GroupView) -> dict[str, frozenset[str]]:
        """Return the partitions of each other address. An address is asked once, even if two members announce it."""
        found: dict[str, frozenset[str]] = {}
        for each in group.members:
            if each.address not in ("", self.address) and each.partitions:
                found[each.address] = found.get(each.address, frozenset()).union(map(str, each.partitions))
        return found

    async def _current_group(self) -> tuple[GroupView, str]:
        """Return the group as of at most 2 s ago, and the reason if its members are unknown."""
        async with self._lock:
            if time.monotonic() - self._group_read_s >= self.cache_s:
                try:
                    self._group = await asyncio.to_thread(self._kafka.group)
                except BridgeError as error:
                    return GroupView(self._group.partitions, ()), f"its owner is not known: {error}"
                self._group_read_s = time.monotonic()
            return self._group, ""

    def _missing_reason(self, group: GroupView, failed: dict[str, str], timer_partition: TimerPartition) -> str:
        owner = next((each for each in group.members if timer_partition in each.partitions), None)
        if owner is None:
            return "no instance owns it now: ask again, or start one"
        if not owner.address:
            return f"{owner.name} has it, which announces no address: start it with --http-port and --page"
        reason = failed.get(owner.address, "it is not open there: it is being recovered, or moves to another")
        if owner.address == self.address and owner.address not in failed:
            return "it is not open here: it recovers, or two instances announce one address (--advertised-http)"
        return f"{owner.address}: {reason}"

    async def _ask_self(self, own: Own[Part]) -> Part | str:
        try:
            return await own()
        except HTTPException as refused:
            return refused.detail

    async def _ask_peer(
        self, caller: Caller, query: str, kind: type[Part], timeout_s: float, address: str, its: frozenset[str]
    ) -> Part | str:
        headers = {}
        if not self._access.is_open:
            headers["Authorization"] = f"Pass {self._access.sign_peer_token(caller, address, query)}"
        try:
            async with asyncio.timeout(timeout_s):
                status, text, _ = await self._fetch(address, query, headers)
            if status != 200:
                with suppress(ValidationError):
                    return Refused.model_validate_json(text).reason[:_MAX_REASON_CHARS]
                return f"answers {status}"
            return _restrict_to(kind.model_validate_json(text), address, its)
        except TimeoutError:
            return f"does not answer within {timeout_s:g} s: is its --advertised-http right?"
        except OSError as error:
            return f"does not answer ({_system_text(error)}): is its --advertised-http right?"
        except (ValidationError, h11.ProtocolError):
            return "does not answer as a bridge of this version does"
        except ValueError:
            return "is not an address: give that instance host:port as --advertised-http"

    async def _fetch(self, address: str, target: str, headers: dict[str, str]) -> HttpResponse:
        """GET `target` from `address`, a host:port and perhaps a worker. Raises ValueError, and as `exchange` does."""
        parts = _ADDRESS.fullmatch(address)
        host, port = ("", 0) if parts is None else (host_of(parts[1]), int(parts[1].rpartition(":")[2]))
        if parts is None or not host or not 0 < port <= 65535:
            raise ValueError(f"{address} is no host:port")
        sent = list({"Host": parts[1], "Connection": "close", "Accept": "application/json", **headers}.items())
        request = h11.Request(method="GET", target=parts[2] + target, headers=sent)
        try:
            host = str(ip_address(host))
        except ValueError:
            look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            found = await asyncio.get_running_loop().run_in_executor(self._resolver, look_up)
            host = str(found[0][4][0])
        if not self._networks.allows(host):
            raise OSError(f"{host} is not an address of an instance by peer_networks")
        return await exchange(*await asyncio.open_connection(host, port), request, _MAX_BYTES)


def _partitions_of(part: BaseModel) -> Iterable[str]:
    assert isinstance(part, Instance | Pending | Listing | GroupFound)
    return part.shards if isinstance(part, Pending) else part.partitions


def _restrict_to(part: Part, address: str, its: frozenset[str]) -> Part | str:
    """Return the answer cut down to the peer's own partitions, or a reason if its sums include others."""
    if isinstance(part, Instance):
        own = {name: state for name, state in part.partitions.items() if name in its}
        return part.model_copy(update={"address": address, "partitions": own})
    if isinstance(part, GroupFound):
        timers = [timer for timer in part.timers if timer.shard in its]
        return part.model_copy(update={"timers": timers, "partitions": sorted(its.intersection(part.partitions))})
    partitions = {*_partitions_of(part)}
    if isinstance(part, Listing):
        partitions.update(timer.shard for timer in part.timers)
    if partitions <= its:
        return part
    return f"answers for {min(partitions - its)}, which the group has assigned to another: ask again"


def _system_text(error: OSError) -> str:
    """Return the system's text without asyncio's; errors of name resolution have negative numbers."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)
