"""A proxy before one broker. While `hides_brokers` is set, Metadata responses name topics, but no broker.

A KRaft broker answers like that while it starts and is still fenced. librdkafka then drops every broker that it knows,
and may never connect again: the same response cancels the new bootstrap (librdkafka issues 5301, 5606).

    response: size int32 | correlation int32, tags | throttle int32 | brokers: count + 1 varint, items | cluster id, ...
    broker:   id int32 | host: length + 1 varint, bytes | port int32 | rack: length + 1 varint, bytes | tags
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from scripts.chaos.three_brokers import Link, Proxy

_METADATA = 3
_FIRST_COMPACT_VERSION = 9


class StartingBroker(Proxy):
    def __init__(self, port: int, target_port: int) -> None:
        super().__init__(port, target_port)
        self.hides_brokers = False
        self.hidden = 0
        """Responses that were changed."""

    async def _forward(self, client: Link, broker: Link) -> None:
        asked: set[bytes] = set()
        await asyncio.gather(self._requests(client[0], broker[1], asked), self._answers(broker[0], client[1], asked))

    async def _requests(self, client: asyncio.StreamReader, broker: asyncio.StreamWriter, asked: set[bytes]) -> None:
        async for frame in _frames(client):
            api, version = struct.unpack_from(">hh", frame)
            if api == _METADATA and version >= _FIRST_COMPACT_VERSION:
                asked.add(frame[4:8])
            _write(broker, frame)
        broker.close()

    async def _answers(self, broker: asyncio.StreamReader, client: asyncio.StreamWriter, asked: set[bytes]) -> None:
        async for frame in _frames(broker):
            if frame[:4] in asked and self.hides_brokers:
                self.hidden += 1
                _write(client, _without_brokers(frame))
            else:
                _write(client, frame)
            asked.discard(frame[:4])
        client.close()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            yield await reader.readexactly(size)


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)


def _without_brokers(frame: bytes) -> bytes:
    start = at = 4 + 1 + 4  # correlation, no tags, throttle
    count, at = _varint(frame, at)
    for _ in range(count - 1):
        host_bytes, at = _varint(frame, at + 4)
        rack_bytes, at = _varint(frame, at + host_bytes - 1 + 4)
        tags, at = _varint(frame, at + max(0, rack_bytes - 1))
        assert tags == 0, "tagged fields are not parsed"
    return frame[:start] + b"\x01" + frame[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
