"""Helpers of tasks that mapInArrow calls: rows of batches, rows in transactions, a schema as DDL."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from schemas.tables import spark_name

Row = dict[str, Any]
Batches = Iterable[pa.RecordBatch]
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = [("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)]
"""Fields of a record to send: bytes, and headers in order."""
_MOST_BYTES = 8 << 20


def ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {spark_name(field.type)}" for field in schema)


def rows_of(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def transactions(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Yield the rows of RECORD in lists: at least one row, at most `most` rows, and 8 MiB if there are several."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        bytes_ = len(row["key"] or b"") + len(row["value"] or b"") + sum(len(h["value"] or b"") for h in row["headers"])
        if chunk and (len(chunk) == most or size + bytes_ > _MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += bytes_
    if chunk:
        yield chunk
