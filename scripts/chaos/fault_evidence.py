"""All records about timers with a fault or without an outcome in an audit, for people to judge.

OUT/requests, those of its rows      --+
every record that is about one of      +--> per row: the row, and the records in order of time
them, or about what follows its id   --+
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Message

from schemas import headers as names
from schemas.receipts import Receipt
from schemas.tables import AuditClass
from scripts.common.kafka_io import read_all

MOST = 20
_CLOCKS = {1: "CreateTime", 2: "LogAppendTime"}


def exceptions(bootstrap_servers: str, out: Path, topics: Collection[str], receipts_topic: str) -> list[dict[str, Any]]:
    """Return the first `MOST` rows, faults before rows without an outcome, each with `row` and `records`.

    Raises BridgeError where the topics cannot be read.
    """
    table = pq.read_table(out / "requests")
    has_fault = pc.greater(pc.list_value_length(table["faults"]), 0)
    is_open = pc.and_(pc.invert(has_fault), pc.equal(table["class"], AuditClass.PENDING))
    rows = pa.concat_tables([table.filter(has_fault), table.filter(is_open)]).slice(0, MOST).to_pylist()
    found = [({row["origin"], row["ended_by"]}, row, list[dict[str, Any]]()) for row in rows]
    for message in read_all(bootstrap_servers, {*topics, receipts_topic}) if found else ():
        about = {*_about(message, is_receipt=message.topic() == receipts_topic)}
        for origins, _, records in found:
            if origins & about:
                records.append(_shown(message))
    return [
        {
            "row": {name: value for name, value in row.items() if value not in (None, [])},
            "records": sorted(records, key=lambda record: record["at_ms"]),
        }
        for _, row, records in found
    ]


def _about(message: Message, *, is_receipt: bool) -> Iterator[str]:
    """Return the origins that a record concerns: its own place, its `timer-origin`, and those in a receipt."""
    yield _place(message)
    for name, value in _headers(message):
        if name == names.ORIGIN:
            yield (value or b"").decode(errors="replace")
    if is_receipt:
        said = Receipt.model_validate_json(message.value() or b"")
        yield from (origin for origin in (said.request, said.origin) if origin is not None)


def _shown(message: Message) -> dict[str, Any]:
    clock, at_ms = message.timestamp()
    headers = {name: value.decode(errors="replace") for name, value in _headers(message) if value is not None}
    value = (message.value() or b"")[:300].decode(errors="replace")
    return {"at_ms": at_ms, "clock": _CLOCKS.get(clock), "place": _place(message), "headers": headers, "value": value}


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    found: Any = message.headers()
    return found or []


def _place(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}"
