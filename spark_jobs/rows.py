"""Records of the three kinds of topics -> one row per origin, with all that the rules look at.

    timer topic      -> requests    origin, target, due_ms, ... and digests of what has to arrive   \\
    real topics      -> deliveries  origin, where, when, digests of what did arrive                   >  outcomes(...)
    rejected topic   -> rejections  origin, code, digests                                            /

Every function here is DataFrame -> DataFrame and reads nothing by itself. Deliveries and rejections are folded by
origin before the join, so that a duplicate adds a count and never a row.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas import headers as names
from spark_jobs import columns as c
from spark_jobs.brokers import Span

_BRIDGE_ADDS = (names.ORIGIN, names.DELIVER_MS, names.RELEASED_MS, names.ROLLS)
_DELIVERED_PARTS = ("topic", "key", "value", "headers", names.DELIVER_MS, "control-headers")


def requests(records: DataFrame) -> DataFrame:
    """What each record of the timer topic asks for. `malformed`: only the rejected topic may hold it."""
    headers = F.col("headers")
    deliver, delay = (c.value_of(headers, name) for name in (names.DELIVER_MS, names.DELAY_MS))
    key = F.when(c.has(headers, names.KEY), c.value_of(headers, names.KEY)).otherwise(F.col("key"))
    read = records.select(
        F.concat_ws("/", "topic", "partition", "offset").alias("origin"),
        "topic",
        "partition",
        "offset",
        F.col("timestamp_ms").alias("requested_ms"),
        c.topic_name(c.value_of(headers, names.TOPIC)).alias("target"),
        F.coalesce(c.decimal(deliver), F.try_add(F.col("timestamp_ms"), c.decimal(delay))).alias("due_ms"),
        c.partition_number(c.value_of(headers, names.PARTITION)).alias("want_partition"),
        _header_fault(headers).alias("header_fault"),
        c.contents(key, F.col("value"), headers).alias("want"),
        c.digest(F.col("key")).alias("own_key"),
    )
    malformed = F.col("header_fault") | F.col("target").isNull() | F.col("due_ms").isNull()
    due_ms = F.when(~malformed, F.col("due_ms"))
    return read.select(
        *(name for name in read.columns if name not in ("header_fault", "due_ms")),
        due_ms.alias("due_ms"),
        F.greatest("requested_ms", due_ms).alias("expected_ms"),
        malformed.alias("malformed"),
        F.lit(True).alias("requested"),
    )


def _header_fault(headers: Column) -> Column:
    """One of our headers stands twice, does not parse, contradicts another, or is the bridge's alone to write."""
    ours = c.control_names(headers)
    partition, key = c.value_of(headers, names.PARTITION), c.value_of(headers, names.KEY)
    return (
        (F.size(ours) != F.size(F.array_distinct(ours)))
        | (c.has(headers, names.DELIVER_MS) & c.has(headers, names.DELAY_MS))
        | (c.has(headers, names.KEY) & key.isNull())
        | (c.has(headers, names.PARTITION) & c.partition_number(partition).isNull())
        | c.has(headers, names.ORIGIN)
        | c.has(headers, names.ROLLS)
    )


def deliveries(records: DataFrame) -> DataFrame:
    """The records of the real topics that the bridge says are its own; other traffic there is none of ours."""
    headers = F.col("headers")
    place = F.struct(
        F.col("timestamp_ms").alias("delivered_ms"),
        F.col("topic").alias("delivered_topic"),
        F.col("partition").alias("delivered_partition"),
        F.col("offset").alias("delivered_offset"),
        "clock",
        c.decimal(c.value_of(headers, names.RELEASED_MS)).alias("released_ms"),
    )
    contents = c.contents(F.col("key"), F.col("value"), headers)
    got = F.struct(
        F.col("topic").alias("topic"),
        *(contents[part].alias(part) for part in ("key", "value", "headers")),
        c.decimal(c.value_of(headers, names.DELIVER_MS)).alias(names.DELIVER_MS),
        (F.array_sort(c.control_names(headers)) == F.array(*map(F.lit, sorted(_BRIDGE_ADDS)))).alias("control-headers"),
    )
    return records.where(c.has(headers, names.ORIGIN)).select(
        c.origin_name(F.coalesce(c.last_value_of(headers, names.ORIGIN), F.lit(b""))).alias("origin"),
        place.alias("place"),
        got.alias("got"),
    )


def rejections(records: DataFrame) -> DataFrame:
    """The records of the rejected topic."""
    headers = F.col("headers")
    return records.select(
        c.origin_name(F.coalesce(c.last_value_of(headers, names.ORIGIN), F.lit(b""))).alias("origin"),
        F.coalesce(c.readable(c.last_value_of(headers, names.ERROR)), F.lit("(no code)")).alias("error"),
        c.contents(F.col("key"), F.col("value"), headers).alias("returned"),
    )


def outcomes(requested: DataFrame, delivered: DataFrame, rejected: DataFrame) -> DataFrame:
    """One row for each origin that a request has or a record names."""
    ends = (
        delivered.unionByName(rejected, allowMissingColumns=True)
        .repartition("origin")  # nearly every origin stands once: to fold before the shuffle would only sort twice
        .groupBy("origin")
        .agg(
            F.count("place").alias("deliveries"),
            F.count("returned").alias("rejections"),
            F.min("place").alias("place"),
            F.min("got").alias("got_low"),
            F.max("got").alias("got_high"),
            F.min("returned").alias("returned_low"),
            F.max("returned").alias("returned_high"),
            F.min("error").alias("error"),
        )
    )
    joined = (
        requested.join(ends, "origin", "full_outer")
        .select("*", "place.*")
        .withColumns(
            {
                "requested": F.coalesce("requested", F.lit(False)),
                "deliveries": F.coalesce("deliveries", F.lit(0)),
                "rejections": F.coalesce("rejections", F.lit(0)),
                "lateness_ms": F.col("delivered_ms") - F.col("due_ms"),
            }
        )
    )
    return joined.withColumn("altered", F.when(F.col("requested") & ~F.col("malformed"), _altered()))


def _altered() -> Column:
    """The parts in which any of the records that name the origin differs from the request."""
    want = {part: F.col("want")[part] for part in ("key", "value", "headers")}
    want |= {"topic": F.col("target"), names.DELIVER_MS: F.col("due_ms"), "control-headers": F.lit(True)}
    parts = [_differs("got", part, want[part]) for part in _DELIVERED_PARTS]
    parts.append(F.when(F.col("delivered_partition") != F.col("want_partition"), "partition"))
    parts += [_differs("returned", part, want[part]) for part in ("value", "headers")]
    # Parked after intake or refused at it: the rejected record may have either key.
    parts.append(F.when(F.col("own_key") != F.col("returned_low.key"), _differs("returned", "key", want["key"])))
    return F.array_distinct(F.array_compact(F.array(*parts)))


def _differs(record: str, part: str, want: Column) -> Column:
    low, high = F.col(f"{record}_low"), F.col(f"{record}_high")
    return F.when(low.isNotNull() & ~(low[part].eqNullSafe(want) & high[part].eqNullSafe(want)), part)


def outside(timer_topic: str, spans: Sequence[Span]) -> Column:
    """True where an origin lies outside the requests that were read: of another time, or of another timer topic.

    What lies inside and has no request is unexplained; so is what is no origin at all, or of no partition.
    """
    parts = F.split("origin", "/")
    partition, offset = (F.get(parts, F.lit(at)) for at in (1, 2))
    bounds = F.create_map(
        *(column for s in spans for column in (F.lit(s.partition), F.array(F.lit(s.start), F.lit(s.end))))
    )
    bound = F.try_element_at(bounds, partition.try_cast("int"))
    at = offset.try_cast("bigint")
    elsewhere = (parts[0] != timer_topic) | (at < bound[0]) | (at >= bound[1])
    return ~F.col("origin").startswith("?") & F.coalesce(elsewhere, F.lit(False))
