"""Read Kafka topics, write and read tables: large ones by Spark, those of a few rows (`..._rows`) as one file.

records   topic partition offset timestamp_ms clock key value headers      within fixed spans

Rows that are read more than once are kept in files, so that memory does not grow with them. Files end the plan of a
query, which Spark's cache does not. Spark analyses the whole plan for each step that is added to it, so a plan that
grows soon takes longer than the work.

All of it needs a Spark session.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from schemas.tables import Table
from spark_jobs.audit_rules.headers import HEADERS_DDL, headers_or_empty
from spark_jobs.kafka.admin import Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform import files
from spark_jobs.platform.files import Location

RECORDS_DDL = (
    "topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, clock STRING, "
    f"key BINARY, value BINARY, headers {HEADERS_DDL}"
)
Row = dict[str, Any]
Batches = Iterable[pa.RecordBatch]
"""What a task that mapInArrow calls gets and returns."""
_ROWS_PER_BATCH = 4_096
_ONE_FILE = "part.parquet"
_RECORDS_PER_TASK = 250_000
_FETCHES = {
    # Larger than Kafka's defaults: a task does not fetch while it works, so it waits for each fetch.
    "kafka.max.partition.fetch.bytes": 2 << 20,
    "kafka.max.poll.records": 2_000,
    # All records to be read exist. By default, a fetch at the end of a log is answered after half a second, and a task
    # waits for it if a transaction's marker is the last entry.
    "kafka.fetch.max.wait.ms": 10,
}


def read_records(access: KafkaAccess, spans: Sequence[Span], *, committed: bool = True) -> DataFrame:
    """Return the records of the spans, by default only committed ones. Several tasks read a long partition."""
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for topic, partition, start, end in spans:
        if start < end:
            starts.setdefault(topic, {})[partition], ends.setdefault(topic, {})[partition] = start, end
    if not starts:
        return empty_table(cast(StructType, StructType.fromDDL(RECORDS_DDL)))
    options: dict[str, str | int] = {
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "maxRecordsPerPartition": _RECORDS_PER_TASK,
        "assign": json.dumps({topic: list(of) for topic, of in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    return _records(SparkSession.active().read.options(**_FETCHES), access, options)


def follow_records(access: KafkaAccess, topic: str, most_per_batch: int) -> DataFrame:
    """Return the stream of a topic's committed records, from its start."""
    options: dict[str, str | int] = {"subscribe": topic, "startingOffsets": "earliest"}
    options |= {"kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": most_per_batch}
    return _records(SparkSession.active().readStream, access, options)


def empty_table(schema: StructType) -> DataFrame:
    """Return no rows. The optimizer knows that it is empty, and removes joins and unions with it."""
    columns = (F.lit(None).cast(field.dataType).alias(field.name) for field in schema)
    return SparkSession.active().range(1).where(F.lit(False)).select(*columns)


def _records(
    reader: DataFrameReader | DataStreamReader, access: KafkaAccess, options: Mapping[str, str | int]
) -> DataFrame:
    """Return rows of Spark's Kafka source as RECORDS_DDL."""
    source = reader.format("kafka").options(**access.for_spark()).options(includeHeaders="true", **options).load()
    return source.select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.when(F.col("timestampType") == 1, "LogAppendTime").otherwise("CreateTime").alias("clock"),
        "key",
        "value",
        headers_or_empty(F.col("headers")).alias("headers"),
    )


def folder(out: Location, table: Table, part: str | None = None) -> Location:
    """Return OUT/requests, or its part OUT/requests/day=2026-01-31: other tools read the day as a column."""
    return out / table.name if part is None else out / table.name / part


def as_table(rows: DataFrame, table: Table) -> DataFrame:
    """Return `rows` with the columns of the table; null for those that `rows` lack. Raises if a type does not fit.

    `DataFrame.to` would copy each struct and array of each row. If all types are those of the table, none is copied.
    """
    schema = spark_schema(table)
    given, wanted = dict(rows.dtypes), {field.name: field.dataType.simpleString() for field in schema}
    if any(given.get(name, kind) != kind for name, kind in wanted.items()):
        return rows.to(schema)
    return rows.select(
        *(name if name in given else F.lit(None).cast(kind).alias(name) for name, kind in wanted.items())
    )


def write_table(rows: DataFrame, out: Location, table: Table, part: str | None = None) -> None:
    """Overwrite the table, or its part. Raises if a column is missing or of another type."""
    named = rows.select(table.arrow().names)
    as_table(named, table).write.mode("overwrite").parquet(str(folder(out, table, part)))


def read_table(out: Location, table: Table, part: str | None = None) -> DataFrame:
    return SparkSession.active().read.schema(spark_schema(table)).parquet(str(folder(out, table, part)))


def read_tables(table: Table, places: Sequence[Location]) -> DataFrame:
    """Return the rows of some files or folders of a table; folders below them are not columns."""
    if not places:
        return empty_table(spark_schema(table))
    reader = SparkSession.active().read.schema(spark_schema(table)).option("recursiveFileLookup", "true")
    return reader.parquet(*map(str, places))


def write_rows(out: Location, table: Table, part: str | None, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a few rows atomically, as one file."""
    data = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=table.arrow()), data)
    files.write(folder(out, table, part) / _ONE_FILE, data.getvalue())


def read_rows(out: Location, table: Table, part: str | None) -> list[Row]:
    """Return the rows that `write_rows` wrote; none if it did not."""
    data = files.read(folder(out, table, part) / _ONE_FILE)
    return [] if data is None else list(pq.ParquetFile(io.BytesIO(data)).read().to_pylist())


def parts_of(out: Location, table: Table, pattern: str) -> list[str]:
    """Return the parts that match, sorted, and have the file of `write_rows`."""
    return [name.removesuffix(f"/{_ONE_FILE}") for name in files.found(out / table.name, f"{pattern}/{_ONE_FILE}")]


def spark_schema(table: Table) -> StructType:
    return from_arrow_schema(table.arrow())


Keep: TypeAlias = Callable[..., DataFrame]
"""Writes rows to files and returns these. `apart`: a column; rows with different values are in different files."""


@contextmanager
def written(folder: Location) -> Iterator[Keep]:
    """Yield a function that writes rows to files below `folder`, and returns these, until the end of the block.

    Files that a killed run left are deleted first.
    """
    files.delete(folder)
    numbers = count()

    def keep(rows: DataFrame, *, apart: str | None = None) -> DataFrame:
        place = str(folder / str(next(numbers)))
        rows.write.parquet(place, partitionBy=apart)
        return rows.sparkSession.read.schema(rows.schema).parquet(place)

    try:
        yield keep
    finally:
        files.delete(folder)


def rows_of(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def batches_of(rows: Iterator[Row], schema: pa.Schema) -> Batches:
    while some := [*islice(rows, _ROWS_PER_BATCH)]:
        yield pa.RecordBatch.from_pylist(some, schema=schema)
