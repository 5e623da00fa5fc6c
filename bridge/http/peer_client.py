"""One GET from an address that somebody announced: nothing that answers there can hold or mislead who asks.

No thread is taken but for looking up a name, no redirect is followed, no more than `most_bytes` are read, and whoever
cancels it, as a time-out does, has ended it.
"""

import asyncio
import socket
from concurrent.futures import Executor
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import NamedTuple

import h11

_CHUNK_BYTES = 1 << 16
_HIGHEST_PORT = 65535


class Fetched(NamedTuple):
    status: int
    body: bytes


class Peers(NamedTuple):
    """Which IP addresses may be asked: those in `networks`; if there are none, those that an instance can have."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    is_loopback: bool = True
    """We announce a loopback address ourselves, so the others may."""

    def include(self, host: str) -> bool:
        address = ip_address(host)
        address = getattr(address, "ipv4_mapped", None) or address
        if self.networks:
            return any(address in network for network in self.networks)
        is_special = address.is_link_local or address.is_multicast or address.is_unspecified
        return self.is_loopback if address.is_loopback else not is_special


async def fetch(
    address: str, target: str, headers: dict[str, str], names: Executor, most_bytes: int, peers: Peers
) -> Fetched:
    """`names`: looks up names. Raises OSError, ValueError for what is no address, h11.ProtocolError for no HTTP."""
    host, port = await _place(address, names)
    if not peers.include(host):
        raise OSError(f"{host} is no address of an instance by peer_networks")
    reader, writer = await asyncio.open_connection(host, port)
    try:
        connection = h11.Connection(h11.CLIENT)
        sent = list({"Host": address, "Connection": "close", "Accept": "application/json", **headers}.items())
        writer.write(connection.send(h11.Request(method="GET", target=target, headers=sent)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        return await _answer(reader, connection, most_bytes)
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, connection: h11.Connection, most_bytes: int) -> Fetched:
    status, body = 0, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > most_bytes:
                raise OSError(f"it tells more than {most_bytes} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Fetched(status, bytes(body))


async def _place(address: str, names: Executor) -> tuple[str, int]:
    host, _, port_text = address.rpartition(":")
    host, port = host.removeprefix("[").removesuffix("]"), int(port_text)
    if not host or not 0 < port <= _HIGHEST_PORT:
        raise ValueError(f"{address} is no host:port")
    try:
        return str(ip_address(host)), port
    except ValueError:
        looked_up = asyncio.get_running_loop().run_in_executor(names, _look_up, host, port)
        return await looked_up, port


def _look_up(host: str, port: int) -> str:
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
