"""One GET from an address that a group member announced. What answers there cannot block or mislead the caller.

A thread is used only to resolve a name, redirects are not followed, at most `max_bytes` are read, and a cancel (such as
a timeout) ends it at once.
"""

import asyncio
import socket
from concurrent.futures import Executor
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import NamedTuple

import h11

_CHUNK_BYTES = 1 << 16
_MAX_PORT = 65535


class PeerResponse(NamedTuple):
    status: int
    body: bytes


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
) -> PeerResponse:
    """GET `target` from `address`, a host:port. `resolver`: its threads resolve names.

    Raises OSError, ValueError if `address` is not host:port, h11.ProtocolError if the answer is not HTTP.
    """
    host, port = await _resolve(address, resolver)
    if not allowed.allows(host):
        raise OSError(f"{host} is no address of an instance by peer_networks")
    reader, writer = await asyncio.open_connection(host, port)
    try:
        connection = h11.Connection(h11.CLIENT)
        sent = list({"Host": address, "Connection": "close", "Accept": "application/json", **headers}.items())
        writer.write(connection.send(h11.Request(method="GET", target=target, headers=sent)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        return await _read_response(reader, connection, max_bytes)
    finally:
        writer.transport.abort()


async def _read_response(reader: asyncio.StreamReader, connection: h11.Connection, max_bytes: int) -> PeerResponse:
    status, body = 0, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise OSError(f"it tells more than {max_bytes} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return PeerResponse(status, bytes(body))


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
