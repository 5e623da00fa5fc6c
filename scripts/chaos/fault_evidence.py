"""All records about timers with a fault or without an outcome in an audit, for people to judge.

OUT/requests: rows with a fault      --+
every record that is about such a row  +--> for each row: the row, and the records in order of time
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Message

from kafka_timer import headers as names
from schemas.receipts import Receipt
from schemas.tables import AuditClass
from scripts.common.kafka_io import read_all

MOST = 20
_CLOCKS = {1: "CreateTime", 2: "LogAppendTime"}


def exceptions(bootstrap_servers: str, out: Path, topics: Collection[str], receipts_topic: str) -> list[dict[str, Any]]:
    """Return the first `MOST` rows, faults before rows without an outcome, each with `row` and `records`.

    Raises BridgeError if the topics cannot be read.
    """
    table = pq.read_table(out / "requests")
    has_fault = pc.greater(pc.list_value_length(table["faults"]), 0)
    is_open = pc.and_(pc.invert(has_fault), pc.equal(table["class"], AuditClass.PENDING))
    rows = pa.concat_tables([table.filter(has_fault), table.filter(is_open)]).slice(0, MOST).to_pylist()
    found: list[dict[str, Any]] = [
        {"row": {name: value for name, value in row.items() if value not in (None, [])}, "records": []} for row in rows
    ]
    for message in read_all(bootstrap_servers, {*topics, receipts_topic}) if found else ():
        origins = _origins(message, is_receipt=message.topic() == receipts_topic)
        for each in found:
            if origins & {each["row"]["origin"], each["row"].get("ended_by")}:
                each["records"].append(_shown(message))
    for each in found:
        each["records"].sort(key=lambda record: record["at_ms"])
    return found


def _origins(message: Message, *, is_receipt: bool) -> set[str]:
    """Return the origins that a record concerns: its own place, its `timer-origin`, and those in a receipt."""
    origins = {_place(message)}
    origins |= {(value or b"").decode(errors="replace") for name, value in _headers(message) if name == names.ORIGIN}
    if is_receipt:
        receipt = Receipt.model_validate_json(message.value() or b"")
        origins |= {origin for origin in (receipt.request, receipt.origin) if origin is not None}
    return origins


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
