"""Kafka's partitioner for keys as a Spark expression, written a second time: the audit must not repeat a mistake.

    h = seed ^ length;   for each word of 4 bytes, little-endian: h = h*m ^ mix(word*m)*m;   the rest; then two shifts

Source: murmur2 of Kafka's Java client (org.apache.kafka.common.utils.Utils), which librdkafka's murmur2_random follows.
"""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

_SEED, _M, _MASK, _POSITIVE = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF, 0x7FFFFFFF


def partition_of(key: Column, partitions: Column) -> Column:
    """Return the partition that a producer of Kafka chooses for the key, which is not null."""
    return F.try_mod(murmur2(key).bitwiseAND(_POSITIVE), partitions).cast("int")


def murmur2(key: Column) -> Column:
    """Return the hash of the bytes, unsigned."""
    length = F.length(key)
    places = F.when(length > 0, F.sequence(F.lit(0), F.floor((length - 1) / 4).cast("int"))).otherwise(F.array())
    return _let(F.transform(places.cast("array<int>"), lambda place: _word(key, place)), lambda w: _hash(w, length))


def _hash(words: Column, length: Column) -> Column:
    whole = F.floor(length / 4).cast("int")
    start = F.lit(_SEED).bitwiseXOR(length.cast("bigint"))
    mixed = F.aggregate(F.slice(words, F.lit(1), whole), start, _step)
    rest = F.get(words, whole)
    all_in = _let(mixed, lambda h: F.when(rest.isNull(), h).otherwise(_times_m(h.bitwiseXOR(rest))))
    first = _let(all_in, lambda h: _times_m(_shifted_in(h, 13)))
    return _let(first, lambda h: _shifted_in(h, 15))


def _step(h: Column, word: Column) -> Column:
    return _times_m(h).bitwiseXOR(_times_m(_shifted_in(_times_m(word), 24)))


def _word(key: Column, place: Column) -> Column:
    """Return 4 bytes of the key, little-endian; the last word has zeros in place of bytes that are not there."""
    digits = F.rpad(F.hex(F.substring(key, place * 4 + 1, F.lit(4))), 8, "0")
    swapped = F.concat(*(F.substring(digits, at, 2) for at in (7, 5, 3, 1)))
    return F.conv(swapped, 16, 10).cast("bigint")


def _times_m(value: Column) -> Column:
    return (value * F.lit(_M).cast("bigint")).bitwiseAND(_MASK)


def _shifted_in(value: Column, bits: int) -> Column:
    return value.bitwiseXOR(F.shiftright(value, bits))


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return `use(value)`, with `value` computed once: Spark would compute it at each place where it is used."""
    return F.get(F.transform(F.array(value), use), F.lit(0))
