"""Headers and contents as Spark expressions: no Python runs for a row.

    headers  [("timer-topic", "orders"), ("tenant", "a"), ("timer-delay-ms", "5000")]
    value_of(headers, "timer-topic")          "orders"   (binary; null if it is absent)
    decimal(value_of(..., "timer-delay-ms"))  5000       (null for "+5", " 5", "", "5.0", 2^63: never a guess)
    foreign(headers)                          [("tenant", "a")], to be delivered unchanged

The same rules as kafka_timer.headers, written a second time on purpose: with the bridge's parser, the audit would
repeat its mistakes.

Names that senders choose (ids, traces) are compared among all requests, by a digest: 16 bytes of SHA-256. Contents are
compared with those of one request only, by an xxHash of 8 bytes: one altered record in 2^64 has the same. Null and
empty differ in both.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from kafka_timer.headers import CONTROL

HEADERS_DDL = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
_FEW = 8
_OURS = ", ".join(f"'{name}'" for name in sorted(CONTROL))
_DIGITS = r"\A[0-9]{1,19}\z"
# In Java, \w is ASCII only, and faster than a class of ranges.
_LEGAL_TOPIC = r"\A(?!__)(?!\.{1,2}\z)[\w.-]{1,249}\z"
_ORIGIN = r"\A[\w.-]{1,249}/[0-9]{1,10}/[0-9]{1,19}\z"


def headers_or_empty(headers: Column) -> Column:
    """Return `headers`, or an empty array for the null that Spark's Kafka source gives for no headers."""
    return F.coalesce(headers, F.array().cast(HEADERS_DDL))


def has(headers: Column, name: str) -> Column:
    return _position(headers, name) > 0


def has_any(headers: Column, wanted: Iterable[str]) -> Column:
    return reduce(or_, (has(headers, name) for name in wanted))


def value_of(headers: Column, name: str) -> Column:
    """Return the value of the first header with that name, as bytes."""
    return F.get(headers["value"], _position(headers, name).cast("int") - 1)


def _position(headers: Column, name: str) -> Column:
    return F.array_position(headers["key"], F.lit(name))


def last_value_of(headers: Column, name: str) -> Column:
    """Return the value of the last header with that name: the bridge adds its own after the sender's."""
    from_end = F.array_position(F.reverse(headers["key"]), F.lit(name)).cast("int")
    return F.get(headers["value"], F.size(headers) - from_end)


def decimal(value: Column) -> Column:
    """Return plain ASCII digits, 0 to 2^63 - 1, as a number; else null."""
    return _from_digits(value, "bigint")


def partition_number(value: Column) -> Column:
    """Return a partition, 0 to 2^31 - 1; else null."""
    return _from_digits(value, "int")


def _from_digits(value: Column, kind: str) -> Column:
    digits = value.cast("string")
    number = digits.try_cast(kind)
    is_usual = (number >= 0) & (number.cast("string") == digits)  # spares most values the regular expression
    return F.when(is_usual, number).when(digits.rlike(_DIGITS), number)


def topic_name(value: Column) -> Column:
    """Return a legal name of a topic that is not internal; else null."""
    name = value.cast("string")
    return F.when(name.rlike(_LEGAL_TOPIC), name)


def origin_name(value: Column) -> Column:
    """Return `topic/partition/offset`; for other bytes `?` and their hex, which joins with no origin; null for null."""
    name = value.cast("string")
    return F.when(value.isNotNull(), F.when(name.rlike(_ORIGIN), name).otherwise(F.concat(F.lit("?"), F.hex(value))))


def has_duplicates(headers: str) -> Column:
    """Return True if two headers of ours have the same name. headers: name of the column.

    Few records have any name twice. Behind IF, the rest is evaluated for these alone; behind AND, for all.
    """
    names = f"{headers}.key", _ours_of(headers)
    any_twice, ours_twice = (f"size(array_distinct({each})) < size({each})" for each in names)
    return F.expr(f"IF({any_twice}, {ours_twice}, false)")


def count_of_ours(headers: str) -> Column:
    """Return the number of headers of ours, with duplicates. headers: name of the column. See `foreign_hash`."""
    few = " + ".join(f"coalesce(int({_is_ours(name)}), 0)" for name in _first_of(f"{headers}.key"))
    return F.expr(f"IF(size({headers}) <= {_FEW}, {few}, size({_ours_of(headers)}))")


def foreign(headers: Column) -> Column:
    """Return every header that is not ours, in order, with duplicates."""
    return F.filter(headers, lambda header: ~header["key"].isin(*CONTROL))


def trace(headers: Column, name: str) -> Column:
    """Return the digest of the trace id in the header `name`; null if there is none. An empty name means no header."""
    return _hash(value_of(headers, name)) if name else F.lit(None).cast("binary")


def digest(value: Column) -> Column:
    """Return the digest of a name. Null has an empty digest, so that digests can always be compared."""
    return F.coalesce(_hash(value), F.lit(b""))


def _hash(value: Column) -> Column:
    return F.substring(F.unhex(F.sha2(value, 256)), 1, 16)


def foreign_hash(headers: str) -> Column:
    """Return the hash of names and values of every header that is not ours, in order. headers: name of the column.

    Spark's hash ignores nulls. Therefore headers of ours are replaced by null, and a separate field says whether a
    value is null. Spark compiles no lambda: the usual case, up to `_FEW` headers, is spelled out instead. It is SQL, as
    each call of a function of pyspark asks the JVM several times.
    """
    few = zip(_first_of(f"{headers}.key"), _first_of(f"{headers}.value"), strict=True)
    few_hashed = ", ".join(f"IF(NOT {_is_ours(name)}, {_hashed(name, value)}, NULL)" for name, value in few)
    foreign = f"filter({headers}, header -> NOT {_is_ours('header.key')})"
    many = f"transform({foreign}, header -> {_hashed('header.key', 'header.value')})"
    return F.expr(f"IF(size({headers}) <= {_FEW}, xxhash64({few_hashed}), xxhash64({many}))")


def _first_of(array: str) -> list[str]:
    return [f"get({array}, {at})" for at in range(_FEW)]


def _is_ours(name: str) -> str:
    return f"{name} IN ({_OURS})"


def _ours_of(headers: str) -> str:
    return f"filter({headers}.key, name -> {_is_ours('name')})"


def _hashed(name: str, value: str) -> str:
    return f"struct({name}, coalesce({value}, X''), {value} IS NULL)"


def lookup(values: Mapping[Any, Any], key: Column) -> Column:
    """Return the value of `key`; null if there is none."""
    entries = (F.lit(each) for pair in values.items() for each in pair)
    return F.try_element_at(F.create_map(*entries), key) if values else F.lit(None)


def distinct_non_null(texts: Iterable[Column]) -> Column:
    """Return the distinct texts that are not null. `array_compact` would evaluate its input without compiled code."""
    return F.array_except(F.array(*texts), F.array(F.lit(None).cast("string")))


def with_value_hash(records: DataFrame) -> DataFrame:
    """Return `records` with `value_hash`; `value` stays null or gets empty, as most steps of Spark copy their rows."""
    is_empty = F.when(F.col("value").isNotNull(), F.lit(b""))
    return records.withColumns({"value_hash": F.xxhash64("value"), "value": is_empty})


def contents(key: Column) -> Column:
    """Return hashes of `key`, `value` and `headers` of a record, which must arrive unchanged, as one struct.

    That of the value is a column (`with_value_hash`). Structs are ordered: min and max work.
    """
    parts = {"key": F.xxhash64(key), "value": F.col("value_hash"), "headers": foreign_hash("headers")}
    return F.struct(*(part.alias(name) for name, part in parts.items()))
