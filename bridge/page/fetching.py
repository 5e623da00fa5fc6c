"""One GET from an address that somebody announced: nothing that answers there can hold or mislead who asks.

No thread is taken but for looking up a name, no redirect is followed, no more than `most_bytes` are read, and whoever
cancels it, as a time-out does, has ended it.
"""

import asyncio
import ipaddress
import socket
from concurrent.futures import Executor
from typing import NamedTuple

import h11

_CHUNK_BYTES = 1 << 16
_HIGHEST_PORT = 65535


class Fetched(NamedTuple):
    status: int
    body: bytes


async def fetch(address: str, target: str, headers: dict[str, str], names: Executor, most_bytes: int) -> Fetched:
    """`names`: looks up names. Raises OSError, ValueError for what is no address, h11.ProtocolError for no HTTP."""
    host, port = await _place(address, names)
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
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        looked_up = asyncio.get_running_loop().run_in_executor(names, _look_up, host, port)
        return await looked_up, port


def _look_up(host: str, port: int) -> str:
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
