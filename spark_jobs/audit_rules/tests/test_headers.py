"""Headers and digests as Spark sees them, beside the same rules in Python."""

from collections.abc import Sequence
from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from kafka_timer import headers as names
from spark_jobs.audit_rules import headers as c

pytestmark = pytest.mark.spark

NUMBERS: list[tuple[bytes | None, int | None]] = [
    (b"0", 0),
    (b"5000", 5000),
    (b"0000000000000000007", 7),
    (b"9223372036854775807", 2**63 - 1),
    (b"9223372036854775808", None),
    (b"9999999999999999999", None),
    (b"00000000000000000007", None),
    (b"18446744073709551616", None),
    (b"+5", None),
    (b"-5", None),
    (b"", None),
    (b" 5", None),
    (b"5 ", None),
    (b"5\n", None),
    (b"5.0", None),
    (b"5e3", None),
    (b"0x5", None),
    (b"1_000", None),
    (b"5\x00", None),
    ("٥".encode(), None),
    (b"\xff\xfe", None),
    (b"NaN", None),
    (None, None),
]


def over(spark: SparkSession, values: Sequence[bytes | None], column: Column) -> list[object]:
    """`column`, of each value in `v`, in order."""
    numbered = spark.createDataFrame(list(enumerate(values)), "n INT, v BINARY")
    return [row[0] for row in numbered.orderBy("n").select(column).collect()]


def test_a_number_is_plain_decimal_or_nothing(spark: SparkSession) -> None:
    found = over(spark, [value for value, _ in NUMBERS], c.decimal(F.col("v")))
    assert dict(zip([value for value, _ in NUMBERS], found, strict=True)) == dict(NUMBERS)


def test_the_bridges_own_parser_agrees() -> None:
    for value, expected in NUMBERS:
        try:
            assert names.decimal("timer-delay-ms", value) == expected, value
        except names.RefusedError:
            assert expected is None, value


def test_a_partition_is_an_int32(spark: SparkSession) -> None:
    values = [b"0", b"2147483647", b"2147483648", b"-1", b""]
    assert over(spark, values, c.partition_number(F.col("v"))) == [0, 2**31 - 1, None, None, None]


def test_a_topic_has_a_legal_name(spark: SparkSession) -> None:
    legal = [b"orders", b"a.B_c-9", b"_own", b"x" * 249]
    illegal = [b"", b".", b"..", b"__consumer_offsets", b"x" * 250, b"a b", b"orders\n", b"\xff", "ö".encode(), None]
    assert over(spark, [*legal, *illegal], c.topic_name(F.col("v"))) == [
        *(name.decode() for name in legal),
        *(None for _ in illegal),
    ]


def test_a_malformed_origin_stays_visible(spark: SparkSession) -> None:
    values = [b"timer.requests/3/17", b"timer.requests/3", b"\xff/1/1", b"", None]
    assert over(spark, values, c.origin_name(F.col("v"))) == [
        "timer.requests/3/17",
        "?74696D65722E72657175657374732F33",
        "?FF2F312F31",
        "?",
        None,
    ]


def test_headers_by_name(spark: SparkSession) -> None:
    record = [([("a", b"1"), ("timer-id", None), ("a", b"2"), ("timer-id", b"x")],), ([],), (None,)]
    headers = F.col("h")
    records = spark.createDataFrame(record, f"h {c.HEADERS_DDL}").withColumn("h", c.headers_or_empty(headers))
    frame = records.select(
        c.value_of(headers, "a"),
        c.last_value_of(headers, "a"),
        c.has(headers, "timer-id"),
        c.value_of(headers, "timer-id"),
        F.size(c.foreign(headers)),
    )
    assert [tuple(row) for row in frame.collect()] == [
        (b"1", b"2", True, None, 2),
        (None, None, False, None, 0),
        (None, None, False, None, 0),
    ]


def test_headers_of_ours_are_counted_however_many_headers_there_are(spark: SparkSession) -> None:
    ours: list[tuple[str, bytes | None]] = [("timer-id", b"1"), ("timer-topic", b"t")]
    twice: list[tuple[str, bytes | None]] = [("timer-id", b"1"), ("timer-id", None)]
    lists = [ours, twice, [], [*ours, *twice]]
    for count in (0, 1, 2, 9):
        others = [("a", b"x")] * count
        frame = spark.createDataFrame([([*each, *others],) for each in lists], f"h {c.HEADERS_DDL}")
        found = frame.select(c.count_of_ours("h"), c.has_duplicates("h")).collect()
        assert [tuple(row) for row in found] == [(2, False), (2, True), (0, False), (4, True)]


def test_null_and_empty_have_different_digests(spark: SparkSession) -> None:
    null, empty, other = over(spark, [None, b"", b"x"], c.digest(F.col("v")))
    assert null == b""
    assert len({bytes(d) for d in (null, empty, other)}) == 3  # type: ignore[call-overload]
    null, empty, other = over(spark, [None, b"", b"x"], F.xxhash64("v"))
    assert len({null, empty, other}) == 3


def test_a_hash_of_headers_tells_every_difference(spark: SparkSession) -> None:
    lists: list[list[tuple[str, bytes | None]]] = [
        [],
        [("a", None)],
        [("a", b"")],
        [("a", b"x"), ("a", b"y")],
        [("a", b"y"), ("a", b"x")],
        [("a", b"x,61=79")],
        [("a", b"-")],
        [("a=", b"")],
        [("", b"a")],
        [("a", b"\xff")],
        [("a", b"b"), ("x", None)],
        [("a", None), ("b", b"x")],
        [("ab", b"c")],
        [("a", b"bc")],
        [("a", b"x")] * 8,
        [("a", b"x")] * 9,
    ]
    lists += [[*each, *[("many", b"")] * 9] for each in lists]
    frame = spark.createDataFrame([(each,) for each in lists], f"h {c.HEADERS_DDL}")
    assert len({row[0] for row in frame.select(c.foreign_hash("h")).collect()}) == len(lists)


def test_what_is_ours_is_in_no_hash_however_many_headers_there_are(spark: SparkSession) -> None:
    theirs = [(f"h{n}", b"x") for n in range(12)]
    for count in (0, 3, 8, 9, 12):
        alone, among = theirs[:count], [(names.TOPIC, b"t"), *theirs[:count], (names.ORIGIN, b"o")]
        frame = spark.createDataFrame([(alone,), (among,)], f"h {c.HEADERS_DDL}")
        assert len({row[0] for row in frame.select(c.foreign_hash("h")).collect()}) == 1


def test_rows_are_fitted_to_a_schema_and_not_built_again_without_need(spark: SparkSession) -> None:
    ddl = "name STRING, tags ARRAY<STRING>, place STRUCT<at: BIGINT>, deliveries BIGINT"
    schema = cast(StructType, StructType.fromDDL(ddl))
    rows = spark.sql("SELECT named_struct('at', bigint(3)) AS place, array('x') AS tags, 'a' AS name FROM range(1)")
    fitted = c.fitted(rows, schema)
    assert fitted.dtypes == [(field.name, field.dataType.simpleString()) for field in schema]
    assert fitted.collect() == [("a", ["x"], (3,), None)]
    assert "lambda" not in fitted._jdf.queryExecution().toString()
    widened = c.fitted(spark.sql("SELECT 'a' AS name, 1 AS deliveries"), schema)
    assert widened.collect() == [("a", None, None, 1)]
    with pytest.raises(AnalysisException, match="deliveries"):
        c.fitted(spark.sql("SELECT 'x' AS deliveries"), schema)
