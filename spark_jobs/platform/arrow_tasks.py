"""Helpers of tasks that mapInArrow calls: rows of batches, rows in transactions, a schema as DDL."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from schemas.chunks import chunks
from schemas.tables import spark_name

Row = dict[str, Any]
Batches = Iterable[pa.RecordBatch]
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = [("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)]
"""Fields of a record to send: bytes, and headers in order."""
_MOST_BYTES = 8 << 20
_ROWS = 4_096


def ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {spark_name(field.type)}" for field in schema)


def rows_of(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def batches_of(rows: Iterator[Row], schema: pa.Schema) -> Batches:
    while some := [*islice(rows, _ROWS)]:
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def transactions(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Return the rows of RECORD in lists: at least one row, at most `most` rows, and 8 MiB if there are several."""
    return chunks(rows, _size_bytes, most_bytes=_MOST_BYTES, most=most)


def _size_bytes(row: Row) -> int:
    parts = (row["key"], row["value"], *(header["value"] for header in row["headers"]))
    return sum(len(part or b"") for part in parts)
