"""CSV, JSON lines or Parquet -> the mapped columns of each row, by rules that do not depend on the form.

    form      a text's bytes          null                  the empty text
    CSV       read one to one         nothing, "a,,b"       quoted, 'a,"",b'
    JSON      whole lines             null, or no field     ""
    Parquet   UTF-8, by its format    null                  ""

A text that is not in the encoding makes its row a reject. Spark sees only the mapped columns, under names of ours:
its rules about names, and the types of other columns, do not matter.
"""

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.errors import UsageError
from spark_jobs.importer.rows import ColumnMapping, InvalidRowError, is_export, json_fields, older_partitions
from spark_jobs.kafka.resend import RECORD
from spark_jobs.platform import files
from spark_jobs.platform.files import Uri
from spark_jobs.platform.tables import Batches, Row

UTF_8 = "utf-8"
BROKEN = "_broken_line"
"""Column with the text of a line that is not JSON, or has other fields than the CSV's heading; null otherwise."""
_BROKEN = "the line is broken: it has more or fewer fields than the heading"
_ONE_TO_ONE = "iso-8859-1"
_NEVER = "\u2205"
"""A letter that no text has that is read one to one."""
STAGED = pa.schema(
    [*RECORD, ("reason", pa.string()), ("row", pa.string()), ("found", pa.list_(pa.field("element", pa.string())))]
)
"""found: the mapped columns of a row, if the file has no heading."""
_SETTINGS = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # 007 in a folder's name is no 7
}


def parse_encoding(text: str) -> str:
    """Return the name of an encoding in which line ends, commas and quotes have the bytes of ASCII. Raises ValueError.

    In other encodings, bytes of a quote or comma are parts of letters, or change all that follows: a letter of several
    bytes has none below "0", and begins with none of ASCII.
    """
    with suppress(LookupError, UnicodeError):
        others = (chr(code).encode(text, "ignore") for code in range(0x80, 0x10000))
        is_apart = all(len(other) < 2 or (other[0] >= 0x80 and min(other) >= 0x30) for other in others)
        if '{",}\r\n'.encode(text) == b'{",}\r\n' and is_apart:
            return text
    raise ValueError(f"{text!r} is unknown, or has not the bytes of ASCII for just commas and lines: convert to UTF-8")


@dataclass(frozen=True)
class ConvertTask:
    """Makes requests of rows, or a reason; called by mapInArrow. columns: by position, before that of a broken line."""

    mapped: ColumnMapping
    form: str
    columns: tuple[str, ...]
    encoding: str

    def __call__(self, batches: Batches) -> Batches:
        now_ms = time.time_ns() // 1_000_000
        for batch in batches:
            rows = [self._staged(row, fault, now_ms) for row, fault in self.rows(batch)]
            yield pa.RecordBatch.from_pylist(rows, schema=STAGED)

    def _staged(self, row: Row, fault: str | None, now_ms: int) -> Row:
        found = {"found": [*row] if self.form == "json" and BROKEN not in row else []}
        try:
            if fault is not None:
                raise InvalidRowError(fault)
            asked = self.mapped.request(row, now_ms)
        except (InvalidRowError, UnicodeEncodeError) as wrong:
            told = json.dumps(row, default=_printed).encode(errors="replace").decode()
            return found | {"reason": str(wrong), "row": told}
        headers = [{"key": name, "value": value} for name, value in asked.headers]
        return found | {"key": asked.key, "value": asked.value, "headers": headers}

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Row, str | None]]:
        """Yield each row, with the reason if it cannot be read."""
        try:
            values = [*zip(*(column.to_pylist() for column in batch.columns), strict=True)]
        except (ValueError, OverflowError) as wrong:  # a text of a Parquet file, or a time that no calendar has
            if batch.num_rows > 1:
                for at in range(batch.num_rows):
                    yield from self.rows(batch.slice(at, 1))
            else:
                yield dict.fromkeys(self.columns), f"a value cannot be read: {wrong}"
            return
        if self.form == "json":
            yield from (self._of_line(line) for (line,) in values if line.strip())
        else:
            yield from map(self._of_fields, values)

    def _of_line(self, line: bytes) -> tuple[Row, str | None]:
        text, fault = self._text(line)
        if fault is None:
            try:
                found = json_fields(text.removeprefix("\ufeff"))
                return {name: found[name] for name in self.columns if name in found}, None
            except InvalidRowError as wrong:
                fault = f"the line is broken: {wrong}"
        return {**dict.fromkeys(self.columns), BROKEN: text}, fault

    def _of_fields(self, values: Sequence[Any]) -> tuple[Row, str | None]:
        *fields, broken = values
        row: Row = dict(zip(self.columns, fields, strict=True))
        fault: str | None = None
        if self.form == "csv":
            for name, text in row.items():
                if text is not None:
                    row[name], wrong = self._text(text.encode(_ONE_TO_ONE))
                    fault = fault if wrong is None else f"{name}: {wrong}"
        if broken is not None:
            row[BROKEN], fault = self._text(broken.encode(_ONE_TO_ONE))[0], _BROKEN
        return row, fault

    def _text(self, data: bytes) -> tuple[str, str | None]:
        try:
            return data.decode(self.encoding), None
        except UnicodeDecodeError:
            return data.decode(self.encoding, "backslashreplace"), f"not {self.encoding}: give --encoding"


def _printed(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


@contextmanager
def opened(given: Sequence[str], form: str, mapped: ColumnMapping, encoding: str) -> Iterator[DataFrame]:
    """Yield the rows of the files as STAGED. Raises UsageError if they lack a mapped column."""
    spark = SparkSession.active()
    before = {name: spark.conf.get(name) for name in _SETTINGS}
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        wanted = sorted({*mapped.columns.values()})
        if form == "json":
            lines = spark.read.text([*given]).select(F.col("value").cast("binary"))
            yield lines.mapInArrow(ConvertTask(mapped, form, tuple(wanted), encoding), from_arrow_schema(STAGED))
            return
        rows, names = _parquet(spark, given, wanted) if form == "parquet" else _csv(spark, given, encoding)
        kept = wanted or names
        demand_columns(wanted, names)
        numbered = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
        columns = [f"c{names.index(name)}" for name in kept]
        broken = F.lit(None).cast("string").alias("broken") if form == "parquet" else F.col(f"c{len(names)}")
        task = ConvertTask(mapped, form, tuple(kept), encoding)
        yield numbered.select(*columns, broken).mapInArrow(task, from_arrow_schema(STAGED))
    finally:
        for name, was in before.items():
            spark.conf.set(name, str(was))


def demand_found(staged: DataFrame, mapped: ColumnMapping) -> None:
    """Raise UsageError if no row of a form without a heading has one of the columns. staged: has `found`."""
    found = [row.name for row in staged.select(F.explode("found").alias("name")).distinct().collect()]
    if found:
        demand_columns(sorted({*mapped.columns.values()}), sorted(found))


def demand_columns(wanted: Sequence[str], there: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UsageError(f"--map: {', '.join(missing)} is not a column of the file, which has {', '.join(there)}")


def _csv(spark: SparkSession, given: Sequence[str], encoding: str) -> tuple[DataFrame, list[str]]:
    reader = spark.read.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", BROKEN)
    reader = reader.options(header="true", multiLine="true", escape='"', encoding=_ONE_TO_ONE)
    reader = reader.options(nullValue=_NEVER, emptyValue="", enforceSchema="false")
    names = reader.csv([*given]).columns
    schema = StructType([StructField(name, StringType()) for name in (*names, BROKEN)])
    read = [name.encode(_ONE_TO_ONE).decode(encoding, "backslashreplace") for name in names]
    read = [re.sub(r'^\ufeff("([^"]*)"\Z|(?!"))', r"\2", name) for name in read]
    if len({*read}) < len(read) or any(name.startswith("\ufeff") for name in read):
        raise UsageError(f"{given[0]}: its byte order mark makes the heading unclear: save it without one")
    return reader.schema(schema).csv([*given]), read


def _parquet(spark: SparkSession, given: Sequence[str], wanted: Sequence[str]) -> tuple[DataFrame, list[str]]:
    listed = spark.read.schema("_ STRING").parquet(*given)
    found = sorted(map(unquote, listed.inputFiles()))  # each file once, if patterns overlap
    if not found:
        raise UsageError(f"{', '.join(given)}: no Parquet file there")
    if not wanted:
        rows = spark.read.parquet(*given)
        if (len(given) > 1 or len(found) > 1) and is_export(rows.columns):
            rows = _newest(spark, found)
        return rows, rows.columns
    types, schema = files.parquet_columns(Uri(found[0]), wanted)
    demand_columns(wanted, [*types, *listed.columns[1:]])
    for file, (others, _) in ((file, files.parquet_columns(Uri(file))) for file in found[1:]):
        for name in wanted:
            if others.get(name) != types.get(name):
                raise UsageError(f"{file}: {name} is {others.get(name)}, but {types.get(name)} in {found[0]}")
    rows = spark.read.schema(StructType.fromJson(json.loads(schema))).parquet(*given)
    names = rows.columns
    numbered = rows.toDF(*(f"c{at}" for at in range(len(names))))
    for at, kind in ((at, types.get(name, "")) for at, name in enumerate(names)):
        if kind.startswith("TIMESTAMP(NANOS"):
            time = F.expr(f"timestamp_micros(c{at} DIV 1000 + IF(c{at} % 1000 > 0, 1, 0))")  # never early
            column = time if kind.endswith(",true)") else time.cast("timestamp_ntz")
            numbered = numbered.withColumn(f"c{at}", column)
        elif kind.split()[1:2] == ["int96"]:  # nothing in it says a zone, and Spark takes it for UTC
            numbered = numbered.withColumn(f"c{at}", F.col(f"c{at}").cast("timestamp_ntz"))
    return numbered, names


def _newest(spark: SparkSession, exports: Sequence[str]) -> DataFrame:
    """Return the rows of several exports: each partition from the file with its newest store."""
    parts = []
    for file, older in older_partitions({file: files.parquet_metadata(Uri(file)) for file in exports}).items():
        names = [str(partition) for partition in older]
        if names:
            print(f"{file}: left out, as another file has them from later: {', '.join(names)}", file=sys.stderr)
        place = F.concat_ws("/", "topic", "partition")
        parts.append(spark.read.parquet(file).where(~place.isin(names)))
    return reduce(DataFrame.unionByName, parts)
