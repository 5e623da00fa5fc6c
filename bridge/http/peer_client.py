"""GET from an address that a group member announced. The answering server cannot block or mislead the caller.

A thread only resolves the name, redirects are not followed, at most `max_bytes` are read, and a cancel (such as
a timeout) ends it at once.

    10.1.2.3:8321            an instance          10.1.2.3:8321/worker-2   one of its workers (bridge.workers)
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterable
from concurrent.futures import Executor
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import NamedTuple

import h11
from starlette.requests import ClientDisconnect

_CHUNK_BYTES = 1 << 16
_MAX_PORT = 65535
_ADDRESS = re.compile(r"([^/]+)((?:/worker-[1-9][0-9]?)?)")
"""A member may choose no other path."""


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


async def fetch(
    address: str, target: str, headers: dict[str, str], resolver: Executor, max_bytes: int, allowed: PeerNetworks
) -> HttpResponse:
    """GET `target` from `address`, a host:port and perhaps a worker. `resolver`: its threads resolve names.

    Raises OSError, ValueError if `address` is malformed, h11.ProtocolError if the answer is not HTTP.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise ValueError(f"{address} is no host:port")
    sent = list({"Host": parts[1], "Connection": "close", "Accept": "application/json", **headers}.items())
    request = h11.Request(method="GET", target=parts[2] + target, headers=sent)
    host, port = await _resolve(parts[1], resolver)
    if not allowed.allows(host):
        raise OSError(f"{host} is not an address of an instance by peer_networks")
    return await exchange(*await asyncio.open_connection(host, port), request, max_bytes)


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: h11.Request,
    max_bytes: int,
    body: AsyncIterable[bytes] | None = None,
) -> HttpResponse:
    """Send a request and return its response; then the connection is closed. Raises as `fetch` does.

    The response may come before the whole body is sent.
    """
    connection = h11.Connection(h11.CLIENT)
    sending = asyncio.ensure_future(_send(writer, connection, request, body))
    try:
        return await _read_response(reader, connection, max_bytes)
    finally:
        sending.cancel()
        writer.transport.abort()


async def _send(
    writer: asyncio.StreamWriter,
    connection: h11.Connection,
    request: h11.Request,
    body: AsyncIterable[bytes] | None,
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
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise OSError(f"its answer is larger than {max_bytes} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return HttpResponse(status, bytes(body), headers)


async def _resolve(address: str, resolver: Executor) -> tuple[str, int]:
    host, _, port_text = address.rpartition(":")
    host, port = host.removeprefix("[").removesuffix("]"), int(port_text)
    if not host or not 0 < port <= _MAX_PORT:
        raise ValueError(f"{address} is no host:port")
    try:
        return str(ip_address(host)), port
    except ValueError:
        looked_up = asyncio.get_running_loop().run_in_executor(resolver, _getaddrinfo, host, port)
        return await looked_up, port


def _getaddrinfo(host: str, port: int) -> str:
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
