"""Each form, type and oddity of a file: a row is sent as it was written, or rejected with the reason."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_jobs.errors import UsageError
from spark_jobs.importer.forms import ConvertTask, demand_found, opened, parse_encoding
from spark_jobs.importer.rows import ColumnMapping

pytestmark = pytest.mark.spark

DUE_MS = 4_000_000_000_000
FORMS = ("csv", "json", "parquet")
NAIVE = datetime(2096, 10, 2, 7, 6, 40)  # noqa: DTZ001 - in UTC it is DUE_MS
NEW_YORK_MS = DUE_MS + 4 * 3_600_000
MOST_MS = 200 * 366 * 86_400_000


def staged(
    spark: SparkSession, file: Path, columns: dict[str, str], *, zone: str | None = None, encoding: str = "utf-8"
) -> tuple[list[Any], list[str]]:
    """Due time, value and headers of the requests, and the reasons of the rejects."""
    form = file.suffix[1:]
    mapped = ColumnMapping(columns, {"topic": "orders"}, MOST_MS, zone)
    with opened([str(file)], form, mapped, encoding) as staging:
        demand_found(staging, mapped)
        found = staging.collect()
    told = [row.reason for row in found if row.reason is not None]
    good = [(dict(row.headers), row.value) for row in found if row.reason is None]
    return [(int(headers["timer-deliver-ms"]), value and bytes(value)) for headers, value in good], told


def written(folder: Path, form: str, columns: dict[str, Sequence[Any]], types: dict[str, pa.DataType]) -> Path:
    """Write the rows; in CSV None is nothing, and a text is quoted."""
    file = folder / f"rows.{form}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if form == "parquet":
        arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
        pq.write_table(pa.table(arrays), file)
        return file

    def text(value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else value

    if form == "json":
        file.write_text("".join(json.dumps({name: text(v) for name, v in row.items()}) + "\n" for row in rows))
        return file
    lines = [
        ",".join("" if v is None else f'"{text(v)}"' for v in row) for row in (columns, *(r.values() for r in rows))
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("form", FORMS)
def test_odd_columns_beside_the_mapped_ones_and_null_and_empty(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """Dots, letters of another case, quotes, and in Parquet types that Spark cannot read."""
    now = datetime.now(UTC)
    columns: dict[str, Sequence[Any]] = {"when.ms": [DUE_MS] * 3, "body": ["v", "", None]}
    columns |= {"order.id": [1] * 3, "Body": ["B"] * 3, "a`b": [1] * 3, "at": [now] * 3, "took": [1] * 3}
    types = {"at": pa.timestamp("ns", "UTC"), "took": pa.time64("us")}
    file = written(tmp_path, form, columns, types)
    good, told = staged(spark, file, {"due": "when.ms", "value": "body"})
    assert (good, told) == ([(DUE_MS, b"v"), (DUE_MS, b""), (DUE_MS, None)], [])
    assert spark.conf.get("spark.sql.caseSensitive") == "false"
    with pytest.raises(UsageError, match="--map: BODY is not a column of the file"):
        staged(spark, file, {"due": "when.ms", "value": "BODY"})


@pytest.mark.parametrize(
    ("form", "unit"), [("csv", "us"), ("json", "us"), *(("parquet", unit) for unit in ("ms", "us", "ns"))]
)
def test_a_time_without_a_zone_is_refused_or_read_by_the_one_given(
    spark: SparkSession, tmp_path: Path, form: str, unit: str
) -> None:
    given = {"when": [NAIVE, NAIVE.replace(tzinfo=UTC)]} if form != "parquet" else {"when": [NAIVE]}
    file = written(tmp_path, form, {**given, "body": ["v"] * len(given["when"])}, {"when": pa.timestamp(unit)})
    columns = {"due": "when", "value": "body"}
    good, told = staged(spark, file, columns)
    assert told == [f"due is {NAIVE.isoformat()}: give its time zone, such as Z or +01:00, or --zone"]
    assert good == [(DUE_MS, b"v")] * (len(given["when"]) - 1)
    good, told = staged(spark, file, columns, zone="America/New_York")
    assert (good[0], told) == ((NEW_YORK_MS, b"v"), [])


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_time_of_parquet_with_a_zone_is_never_early(spark: SparkSession, tmp_path: Path, unit: str) -> None:
    at = pa.array([DUE_MS * 1_000_000 + 1], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"when": at.cast(pa.timestamp(unit, "UTC"), safe=False)}), tmp_path / "rows.parquet")
    assert staged(spark, tmp_path / "rows.parquet", {"due": "when"})[0] == [(DUE_MS + (unit == "ns"), None)]


def test_a_time_of_int96_has_no_zone(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"when": [NAIVE]}), file, use_deprecated_int96_timestamps=True)
    told = f"due is {NAIVE.isoformat()}: give its time zone, such as Z or +01:00, or --zone"
    assert staged(spark, file, {"due": "when"}) == ([], [told])
    assert staged(spark, file, {"due": "when"}, zone="America/New_York") == ([(NEW_YORK_MS, None)], [])


def test_a_column_in_the_name_of_a_folder_is_text(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "rows.parquet" / "number=007"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"when": [DUE_MS]}), folder / "a.parquet")
    assert staged(spark, folder.parent, {"due": "when", "value": "number"}) == ([(DUE_MS, b"007")], [])


def test_a_quoted_heading_after_a_byte_order_mark(spark: SparkSession, tmp_path: Path) -> None:
    file, columns = tmp_path / "rows.csv", {"due": "when", "value": "body"}
    for heading in ('"when","body"', "when,body"):
        file.write_text(f"\ufeff{heading}\n{DUE_MS},v\n")
        assert staged(spark, file, columns) == ([(DUE_MS, b"v")], [])
    for heading in ('"a,b",when,body', "when,when,body"):
        file.write_text(f"\ufeff{heading}\n1,{DUE_MS},v\n")
        with pytest.raises(UsageError, match="byte order mark makes the heading unclear: save it"):
            staged(spark, file, columns)


@pytest.mark.parametrize("form", FORMS)
def test_bytes_that_are_not_the_encoding_refuse_their_row(spark: SparkSession, tmp_path: Path, form: str) -> None:
    file, good = tmp_path / f"rows.{form}", "Müller €5"
    bad = good.encode("cp1252")
    if form == "csv":
        file.write_bytes(b"\xef\xbb\xbfwhen,Gr\xc3\xb6\xc3\x9fe,note\n")
        with file.open("ab") as more:
            more.write(b"%d,%s,\xff\n%d,%s,x\n" % (DUE_MS, good.encode(), DUE_MS, bad))
    elif form == "json":
        rows = [b'{"when": %d, "Gr\xc3\xb6\xc3\x9fe": "%s"}' % (DUE_MS, each) for each in (good.encode(), bad)]
        file.write_bytes(b"\xef\xbb\xbf" + b"\n".join(rows))
    else:
        texts = pa.array([good.encode(), bad]).view(pa.binary())
        broken = pa.StringArray.from_buffers(2, *texts.buffers()[1:])
        pq.write_table(pa.table({"when": [DUE_MS] * 2, "Größe": broken}), file)
    found, told = staged(spark, file, {"due": "when", "value": "Größe"})
    assert (found, len(told)) == ([(DUE_MS, good.encode())], 1)
    assert "utf-8" in told[0]
    if form == "csv":
        whole = tmp_path / "whole.csv"
        whole.write_bytes(b"when,Gr\xf6\xdfe\n%d,%s\n" % (DUE_MS, bad))
        mapped = {"due": "when", "value": "Größe"}
        assert staged(spark, whole, mapped, encoding="cp1252") == ([(DUE_MS, good.encode())], [])


def test_values_of_json_are_sent_as_they_are_written() -> None:
    values = [
        "5.00",
        '{"ä": [1.5, null], "ä":1e400 }',
        "1e400",
        "-0",
        "9" * 5_000,
        "{ }",
        "[]",
        "true",
        "0.12345678901234567891",
    ]
    broken = [b"[1]", b'{"a": ', b'{"a": [NaN]}', b'{"a": 1} 2', b'{"a": 1, "b": 2, "a": 3}', b"[" * 9_000]
    lines = [f' {{"b":{{}} , "a" : {value}, "c" : "" }}'.encode() for value in values]
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array([*lines, b'{"a": "\\u20ac"}', b"{}", *broken, b"\xff", b"  "])}
    )
    mapped = ColumnMapping({"value": "a"}, {"topic": "t", "due": "1700000000000"}, MOST_MS)
    told = [*ConvertTask(mapped, "json", ("a",), "utf-8").rows(batch)]
    sent = [mapped.request(row, 0).value for row, fault in told if fault is None]
    assert sent == [*(value.encode() for value in values), "€".encode(), None]
    faults = [fault.partition(": ")[0] for _, fault in told if fault is not None]
    assert faults == ["the line is broken"] * len(broken) + ["not utf-8"]


ESCAPED = ["hz", "idna", "iso-2022-jp", "iso-2022-kr", "raw_unicode_escape", "utf-7"]
"""Encodings in which quotes, commas or lines may be bytes of other letters."""


@pytest.mark.parametrize("name", ["utf-16", "nonsense", "undefined", *ESCAPED])
def test_an_encoding_with_other_lines_than_ascii_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="convert to UTF-8"):
        parse_encoding(name)
    for lasting in ("cp1252", "cp864", "big5", "gb18030", "shift_jis", "euc_jis_2004"):
        assert parse_encoding(lasting) == lasting
