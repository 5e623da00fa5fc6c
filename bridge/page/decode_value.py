"""Decode one value of a message by its schema. A program of its own, as the value may be a bomb: see schema_registry.

    question    url (of the registry), auth (user:password, or null), value (base64)
    answer      kind and text; or reason

A value begins with a zero byte and the 4-byte id of its schema, as Confluent's serializers write it (docs.confluent.io,
"Wire format"). A value of Protobuf then has the indexes of its message type.
"""

import base64
import json
import resource
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from importlib import import_module
from io import BytesIO
from typing import Any
from urllib.parse import quote, urlsplit

_MEMORY_BYTES = 1 << 30
_CPU_S = 4
_TIMEOUT_S = 4
_MAX_SCHEMA_BYTES = 4 << 20
_MAIN = "\n"
"""Our name for a schema of Protobuf, which no file that it imports can have."""
_MAX_TEXT = 256 << 10
_HEAD_BYTES = 5

Get = Callable[[str], Any]
"""Return the JSON of a path of the registry."""


def schema_id(raw: bytes) -> int | None:
    """Return the id of the schema, None if the value does not name one."""
    return int.from_bytes(raw[1:_HEAD_BYTES], "big") if len(raw) >= _HEAD_BYTES and raw[0] == 0 else None


def decoded(raw: bytes, get: Get) -> tuple[str, str]:
    """Return how the value is encoded, and its JSON. Raises ValueError, EOFError, OSError and what libraries raise."""
    id_ = schema_id(raw)
    found = get(f"/schemas/ids/{id_}")
    kind, payload = found.get("schemaType", "AVRO"), raw[_HEAD_BYTES:]
    named = f"by schema {id_} of the registry"
    if kind == "JSON":
        return f"JSON, {named}", _text(json.loads(payload))
    if kind == "AVRO":
        if found.get("references"):
            found = get(f"/schemas/ids/{id_}?format=resolved")
        return f"Avro, {named}", _text(_avro(payload, json.loads(found["schema"])))
    if kind == "PROTOBUF":
        return f"Protobuf, {named}", _protobuf(payload, get, f"/schemas/ids/{id_}")
    raise ValueError(f"schema {id_} is of the unknown type {kind}")


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    """Return what JSON can hold of a value of Avro's logical types."""
    return f"hex: {value.hex(' ')}" if isinstance(value, bytes) else str(value)


def _avro(payload: bytes, schema: Any) -> object:
    from fastavro import parse_schema, schemaless_reader

    stream = BytesIO(payload)
    value: object = schemaless_reader(stream, parse_schema(schema), None)
    if left := len(payload) - stream.tell():
        raise ValueError(f"{left} bytes are left after the value")
    return value


def _protobuf(payload: bytes, get: Get, path: str) -> str:
    from google.protobuf import json_format, message_factory
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool(_Files(get, path))
    types = pool.FindFileByName(_MAIN).message_types_by_name
    indexes, begin = _indexes(payload)
    message = list(types.values())[indexes[0]]
    for index in indexes[1:]:
        message = message.nested_types[index]
    parsed = message_factory.GetMessageClass(message).FromString(payload[begin:])
    text: str = json_format.MessageToJson(parsed, preserving_proto_field_name=True, descriptor_pool=pool)
    return text


class _Files:
    """A pool of descriptors asks it for a schema and the files that it imports; Google's own come with the library."""

    def __init__(self, get: Get, path: str) -> None:
        self._get = get
        self._paths = {_MAIN: path}

    def FindFileByName(self, name: str) -> Any:  # noqa: N802  (the library's name)
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        if name not in self._paths and name.startswith("google/protobuf/"):
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        path = self._paths[name]
        for each in self._get(path).get("references") or ():
            self._paths[each["name"]] = f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}"
        file = FileDescriptorProto.FromString(base64.b64decode(self._get(f"{path}?format=serialized")["schema"]))
        file.name = name
        return file


def _indexes(payload: bytes) -> tuple[list[int], int]:
    """Return the path of the message type in its file, and where the message begins. 0 alone means the first type."""
    count, at = _zigzag(payload, 0)
    indexes = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        indexes.append(index)
    if min(count, 0, *indexes) < 0:
        raise ValueError(f"{count} message indexes: {indexes}")
    return indexes or [0], at


def _zigzag(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at


def _getter(url: str, auth: str | None) -> Get:
    """Return a GET that follows no redirect and uses no proxy: either would send the password to another host."""
    parts = urlsplit(url)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if auth is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"

    def get(path: str) -> Any:
        with closing(connect(parts.netloc, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise OSError(f"HTTP Error {answer.status}: {answer.reason}")
            return json.loads(answer.read(_MAX_SCHEMA_BYTES))

    return get


def answer(asked: dict[str, Any]) -> dict[str, str]:
    """Answer the question of the program."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    try:
        kind, text = decoded(base64.b64decode(asked["value"]), _getter(asked["url"], asked["auth"]))
    except OSError as wrong:
        return {"reason": f"the schema registry gave no schema: {wrong}"}
    except Exception as wrong:  # noqa: BLE001 - whatever a library says of a sender's bytes is the answer
        return {"reason": f"it does not fit its schema: {type(wrong).__name__}: {wrong}"[:500]}
    return {"kind": kind, "text": text[:_MAX_TEXT]}
