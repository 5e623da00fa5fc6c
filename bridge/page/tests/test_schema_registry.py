"""Tests of values that name their schema: a registry that answers as Confluent's does, and real serializers."""

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from bridge.dev.embedded_kafka import free_port
from bridge.page.lookups import SchemaRegistry
from bridge.page.server import serving
from bridge.query.search import Content, content

pytestmark = pytest.mark.thorough

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
    ],
}
USER = "reader:secret"


class Registry:
    """Answers by path, and notes who asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "?".join(each.decode() for each in (scope["raw_path"], scope["query_string"]) if each)
        self.asked.append((path, Headers(scope=scope).get("authorization")))
        found, status = self.answers.get(path, {"error_code": 40403}), 200 if path in self.answers else 404
        response = RedirectResponse(found, 302) if isinstance(found, str) else JSONResponse(found, status)
        await response(scope, receive, send)


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    with serving("127.0.0.1", made.port, Starlette(routes=[Mount("/", made.answer)])):
        yield made


def shown(registry: Registry, raw: bytes, auth_file: Path | None = None) -> tuple[str, str]:
    found = content(raw)
    assert found is not None
    return asyncio.run(SchemaRegistry(registry.url, auth_file).text_of(found))


def named(id_: int, payload: bytes) -> bytes:
    return b"\0" + id_.to_bytes(4, "big") + payload


def avro(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro_is_shown_as_json(registry: Registry, tmp_path: Path) -> None:
    registry.answers["/schemas/ids/7"] = {"schema": json.dumps(ORDER)}
    order = {"id": "Ä1", "price": Decimal("12.50"), "at": datetime(2026, 1, 2, tzinfo=UTC), "raw": b"\xff\0"}
    auth_file = tmp_path / "auth"
    auth_file.write_text(USER + "\n")
    auth_file.chmod(0o600)
    kind, text = shown(registry, named(7, avro(ORDER, order)), auth_file)
    assert kind == "Avro, by schema 7 of the registry"
    assert json.loads(text) == {"id": "Ä1", "price": "12.50", "at": "2026-01-02 00:00:00+00:00", "raw": "hex: ff 00"}
    assert registry.asked == [("/schemas/ids/7", "Basic " + base64.b64encode(USER.encode()).decode())]


def test_a_redirect_is_not_followed_as_it_would_get_the_password(registry: Registry, tmp_path: Path) -> None:
    auth_file = tmp_path / "auth"
    auth_file.write_text(USER)
    auth_file.chmod(0o600)
    registry.answers = {"/schemas/ids/7": "/elsewhere", "/elsewhere": {"schema": json.dumps(ORDER)}}
    kind, _ = shown(registry, named(7, b"x"), auth_file)
    assert "302" in kind
    assert [path for path, _ in registry.asked] == ["/schemas/ids/7"]


def test_references_of_avro_are_resolved_by_the_registry(registry: Registry) -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
    whole = {"type": "array", "items": line}
    references = [{"name": "Line", "subject": "line", "version": 1}]
    registry.answers["/schemas/ids/8"] = {"schema": '{"type":"array","items":"Line"}', "references": references}
    registry.answers["/schemas/ids/8?format=resolved"] = {"schema": json.dumps(whole)}
    assert json.loads(shown(registry, named(8, avro(whole, [{"n": 1}, {"n": 2}])))[1]) == [{"n": 1}, {"n": 2}]


def test_json_schema_is_shown_as_json(registry: Registry) -> None:
    registry.answers["/schemas/ids/9"] = {"schemaType": "JSON", "schema": "{}"}
    assert shown(registry, named(9, b'{"a":1}')) == ("JSON, by schema 9 of the registry", '{\n  "a": 1\n}')


def files_of_protobuf() -> tuple[Any, Any]:
    """Return a file whose second type has a nested one, and the file that it imports."""
    common = descriptor_pb2.FileDescriptorProto(name="common.proto", package="shop", syntax="proto3")
    money = common.message_type.add(name="Money")
    money.field.add(name="cents", number=1, type=3, label=1)
    main = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    main.dependency.extend(["common.proto", "google/protobuf/timestamp.proto"])
    main.message_type.add(name="Other")
    order = main.message_type.add(name="Order")
    inner = order.nested_type.add(name="Line")
    inner.field.add(name="price", number=1, type=11, label=1, type_name=".shop.Money")
    inner.field.add(name="sent_at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    return main, common


def test_protobuf_is_shown_as_json(registry: Registry) -> None:
    """The message is of a nested type, and uses a type of another file and one of Google's."""
    main, common = files_of_protobuf()

    def serialized(file: Any) -> str:
        return base64.b64encode(file.SerializeToString()).decode()

    references = [{"name": "common.proto", "subject": "shop/common", "version": 2}]
    registry.answers |= {
        "/schemas/ids/5": {"schemaType": "PROTOBUF", "schema": "...", "references": references},
        "/schemas/ids/5?format=serialized": {"schema": serialized(main)},
        "/subjects/shop%2Fcommon/versions/2": {"schema": "..."},
        "/subjects/shop%2Fcommon/versions/2?format=serialized": {"schema": serialized(common)},
    }
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(common)
    pool.Add(main)
    line = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order.Line"))()
    line.price.cents = 1250
    line.sent_at.FromJsonString("2026-01-02T00:00:00Z")
    second_type_first_nested = bytes((4, 2, 0))  # count and indexes, zigzag: 2, 1, 0
    kind, text = shown(registry, named(5, second_type_first_nested + line.SerializeToString()))
    assert kind == "Protobuf, by schema 5 of the registry"
    assert json.loads(text) == {"price": {"cents": "1250"}, "sent_at": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    ("id_", "payload", "reason"),
    [
        (7, b"\x05", "does not fit its schema"),
        (7, avro(ORDER, {"id": "a", "price": Decimal(1), "at": 0, "raw": b""}) + b"x", "1 bytes are left"),
        (99, b"x", "the schema registry gave no schema: HTTP Error 404"),
        (10, b"x", "of the unknown type THRIFT"),
    ],
)
def test_what_cannot_be_decoded_is_shown_in_hex_with_the_reason(
    registry: Registry, id_: int, payload: bytes, reason: str
) -> None:
    registry.answers["/schemas/ids/7"] = {"schema": json.dumps(ORDER)}
    registry.answers["/schemas/ids/10"] = {"schemaType": "THRIFT", "schema": ""}
    kind, text = shown(registry, named(id_, payload))
    assert kind.startswith("hex, as it could not be decoded: ")
    assert reason in kind
    assert text.startswith("00000000  00 00 00 00")


def test_a_bomb_of_avro_ends_in_its_own_process(registry: Registry) -> None:
    """Nine bytes that name an array of 2^50 nulls."""
    registry.answers["/schemas/ids/7"] = {"schema": '{"type":"array","items":"null"}'}
    bomb = named(7, avro("long", 1 << 50) + b"\0")
    kind, _ = shown(registry, bomb)
    assert "it takes more than 1 GB of memory, or too long" in kind or "MemoryError" in kind


@pytest.mark.parametrize("raw", [b'{"a": 1}', b"plain", b"\xff\xfe", b"\0\0\0"])
def test_other_values_are_shown_as_without_a_registry(registry: Registry, raw: bytes) -> None:
    kind, _ = shown(registry, raw)
    assert kind in ("JSON, indented", "text", "hex, as it is not UTF-8")
    assert registry.asked == []


def test_a_value_that_is_cut_is_not_decoded(registry: Registry) -> None:
    cut = Content(bytes=1 << 20, base64=base64.b64encode(named(7, b"\xff")).decode(), is_cut=True)
    assert asyncio.run(SchemaRegistry(registry.url).text_of(cut))[0] == "hex, as it is not UTF-8"
    assert registry.asked == []
