"""Requests of Kafka's protocol that no client library sends: a header name that is not UTF-8, a quota.

size int32 | api int16, version int16, correlation int32, client | body        (protocol guide, Produce v3)
batch: base offset int64, size int32, epoch int32, magic 2, CRC-32C, attributes int16, ... | records of varints
"""

import socket
import struct
from collections.abc import Sequence

from integration_tests.support.patience import PATIENCE_S

RawHeaders = Sequence[tuple[bytes, bytes | None]]

_NO_PRODUCER = struct.pack(">qhi", -1, -1, -1)
_CASTAGNOLI = 0x82F63B78


def produce_raw(bootstrap_servers: str, topic: str, partition: int, value: bytes, headers: RawHeaders) -> None:
    """Send one record to the only broker. Fail if it is refused."""
    records = _batch(_record(value, headers))
    in_partition = struct.pack(">iii", 1, partition, len(records)) + records
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">i", 1) + _string(topic) + in_partition
    told = _ask(bootstrap_servers, 0, 3, body)
    _demand_none(told, 4 + len(_string(topic)) + 4 + 4)


def _ask(bootstrap_servers: str, api: int, version: int, body: bytes) -> bytes:
    """Send a request to the only broker; return the answer without its header."""
    host, _, port = bootstrap_servers.partition(":")
    request = struct.pack(">hhi", api, version, 1) + _string("raw") + body
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    with connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">i", len(request)) + request)
        told = answer.read(struct.unpack(">i", answer.read(4))[0])
    return told[4:]


def _demand_none(told: bytes, at: int) -> None:
    (error,) = struct.unpack_from(">h", told, at)
    assert error == 0, f"the broker refuses it: error {error}"


def _record(value: bytes, headers: RawHeaders) -> bytes:
    told = b"".join(_varint(len(name)) + name + _bytes(content) for name, content in headers)
    record = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _bytes(value) + _varint(len(headers)) + told
    return _varint(len(record)) + record


def _batch(record: bytes) -> bytes:
    covered = struct.pack(">hiqq", 0, 0, 0, 0) + _NO_PRODUCER + struct.pack(">i", 1) + record
    rest = struct.pack(">ibI", -1, 2, _crc32c(covered)) + covered
    return struct.pack(">qi", 0, len(rest)) + rest


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _bytes(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Return the number as zigzag, 7 bits a byte, the lowest first."""
    left = number << 1 if number >= 0 else (-number << 1) - 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def limit_producer(bootstrap_servers: str, client_id: str, bytes_per_s: float) -> None:
    """Set a quota for all producers with this client id (AlterClientQuotas v0)."""
    entity = struct.pack(">i", 1) + _string("client-id") + _string(client_id)
    limit = struct.pack(">i", 1) + _string("producer_byte_rate") + struct.pack(">d?", bytes_per_s, False)
    told = _ask(bootstrap_servers, 49, 0, struct.pack(">i", 1) + entity + limit + struct.pack(">?", False))
    _demand_none(told, 4 + 4)
