"""Kafka records as lines of JSON. Each character is one byte (Latin-1), so that text stays readable.

{"topic": "orders", "partition": -1, "key": null, "value": "hello", "headers": [["trace", "1"]], "timestamp_ms": 5}
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from bridge.ports import Outgoing
from bridge.testing import Entry


def text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("latin-1")


def raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def lines(objects: Iterable[object]) -> bytes:
    """Return one line of JSON for each of `objects`."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


def objects(data: bytes) -> list[Any]:
    """Return the objects of `lines`."""
    return [json.loads(line) for line in data.splitlines()]


def lines_of(records: Iterable[Outgoing]) -> bytes:
    names = [each.name for each in fields(Outgoing)]
    return lines({name: getattr(record, name) for name in names} | contents(record) for record in records)


def contents(record: Outgoing | Entry) -> dict[str, object]:
    headers = [[name, text(value)] for name, value in record.headers]
    return {"key": text(record.key), "value": text(record.value), "headers": headers}


def records_in(data: bytes) -> list[Outgoing]:
    """The reverse of `lines_of`."""
    return [_record(told) for told in objects(data)]


def _record(told: dict[str, Any]) -> Outgoing:
    headers = [(name, raw(value)) for name, value in told["headers"]]
    return Outgoing(**told | {"key": raw(told["key"]), "value": raw(told["value"]), "headers": headers})
