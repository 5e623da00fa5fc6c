"""Records of every kind of topic -> evidence about origins -> one row per origin.

    timer topic      -> asked, copies                 \\
    real topics      -> deliveries, place, got         \\
    rejected topic   -> rejections, error               >  fold(...): counts add up, minima and maxima stay
    receipts topic   -> answered_ms, told_...          /
    the last run     -> all of these                  /

Every function here is DataFrame -> DataFrame and reads nothing by itself. What it gives has the columns of
schemas.audit_state.EVIDENCE: a duplicate adds a count and never a row, and no side has to be there first.
"""

from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from schemas import headers as names
from schemas.audit_state import EVIDENCE
from spark_jobs.audit_rules import headers as c

_BRIDGE_ADDS = (names.ORIGIN, names.DELIVER_MS, names.RELEASED_MS, names.ROLLS)
_REASON = (names.ERROR, names.ERROR_DETAIL, names.ORIGIN)
_ENDS = ("cancelled", "replaced")
_MISSES = ("not-found", "too-late")
_ANSWERS = ("accepted", *_ENDS, *_MISSES)
_SUMS = ("copies", "deliveries", "rejections", "told_done", "told_ended")
_HIGHEST = ("rolls", "got_high", "returned_high", "moved_high")


def evidence(rows: DataFrame) -> DataFrame:
    """`rows` with every column of EVIDENCE; null where they say nothing."""
    return rows.to(cast(StructType, StructType.fromDDL(EVIDENCE.spark_ddl())))


def fold(rows: DataFrame) -> DataFrame:
    """One row per origin. Nearly each stands once or twice: to fold before the shuffle would only sort twice."""
    folds = []
    for name in EVIDENCE.arrow().names[1:]:
        how = F.sum if name in _SUMS else F.max if name in _HIGHEST else F.min
        folds.append(how(name).alias(name))
    # Origins begin alike, and a sort looks at the first 8 bytes first: so their offsets go before them.
    offset = F.substring_index("origin", "/", -1).try_cast("bigint").alias("offset")
    return rows.repartition("origin").groupBy(offset, "origin").agg(*folds).drop("offset")


def deliveries(records: DataFrame) -> DataFrame:
    """The records of the real topics that the bridge says are its own; other traffic there is none of ours."""
    h = F.col("headers")
    place = F.struct(
        F.col("timestamp_ms").alias("delivered_ms"),
        F.col("topic").alias("delivered_topic"),
        F.col("partition").alias("delivered_partition"),
        F.col("offset").alias("delivered_offset"),
        "clock",
        c.decimal(c.value_of(h, names.RELEASED_MS)).alias("released_ms"),
        c.partition_number(c.value_of(h, names.ROLLS)).alias("delivered_rolls"),
    )
    contents = c.contents(F.col("key"), F.col("value"), h)
    got = F.struct(
        F.col("topic").alias("topic"),
        *(contents[part].alias(part) for part in ("key", "value", "headers")),
        c.decimal(c.value_of(h, names.DELIVER_MS)).alias("deliver_ms"),
        (F.sort_array(c.control_names(h)) == F.array(*map(F.lit, sorted(_BRIDGE_ADDS)))).alias("control"),
    )
    ours = records.where(c.has(h, names.ORIGIN))
    seen = ours.select(
        _last_origin().alias("origin"), F.lit(1).alias("deliveries"), place.alias("place"), got.alias("got")
    )
    return evidence(seen.select("*", F.col("got").alias("got_low"), F.col("got").alias("got_high")).drop("got"))


def origins(records: DataFrame) -> DataFrame:
    """Those that the records name, each once, as `origin`."""
    return records.where(c.has(F.col("headers"), names.ORIGIN)).select(_last_origin().alias("origin")).distinct()


def rejections(records: DataFrame) -> DataFrame:
    """The records of the rejected topic. One that was too large for it, too, has no contents there."""
    contents = F.when(~_is_bare(), c.contents(F.col("key"), F.col("value"), _without_reason(F.col("headers"))))
    code = c.readable(c.last_value_of(F.col("headers"), names.ERROR))
    seen = records.select(
        _last_origin().alias("origin"),
        F.lit(1).alias("rejections"),
        F.coalesce(code, F.lit("(no code)")).alias("error"),
        F.col("timestamp_ms").alias("rejected_ms"),
        contents.alias("returned_low"),
    )
    return evidence(seen.withColumn("returned_high", F.col("returned_low")))


def receipts(records: DataFrame) -> DataFrame:
    """What receipts say, for the request that each answers and for the timer that it is about. Others say nothing."""
    said = F.from_json(F.col("value").cast("string"), "kind STRING, request STRING, origin STRING")
    told = records.select(F.col("timestamp_ms").alias("answered_ms"), said.alias("said")).select("*", "said.*")
    answers = told.where(F.col("kind").isin(*_ANSWERS) & F.col("request").isNotNull()).select(
        F.col("request").alias("origin"),
        "answered_ms",
        F.when(F.col("kind").isin(*_ENDS), F.lit(1)).alias("told_done"),
        F.when(F.col("kind").isin(*_MISSES), F.col("kind")).alias("told_missed"),
    )
    ended = told.where(F.col("kind").isin(*_ENDS) & F.col("origin").isNotNull()).select(
        "origin", F.lit(1).alias("told_ended")
    )
    return evidence(answers.unionByName(ended, allowMissingColumns=True))


def requests(parsed: DataFrame) -> DataFrame:
    """Those of `parsed` (spark_jobs.audit_rules.requests) that do not say they are copies."""
    return evidence(parsed.where(F.col("asked.kind") != "copy").select("origin", "asked"))


def _without_reason(headers: Column) -> Column:
    """What the bridge adds stands last; a sender's own headers may have the same names."""
    rest = F.size(headers) - len(_REASON)
    last = F.slice(headers, F.greatest(rest + 1, F.lit(1)), F.lit(len(_REASON)))
    is_there = (rest >= 0) & (last["key"] == F.array(*map(F.lit, _REASON)))
    return F.when(is_there, F.slice(headers, F.lit(1), F.greatest(rest, F.lit(0)))).otherwise(headers)


def _is_bare() -> Column:
    reasons = F.array(*map(F.lit, _REASON))
    detail = c.value_of(F.col("headers"), names.ERROR_DETAIL).cast("string")
    says_so = (F.col("headers")["key"] == reasons) & detail.endswith(names.BARE.decode())
    return F.col("key").isNull() & F.col("value").isNull() & F.coalesce(says_so, F.lit(False))


def _last_origin() -> Column:
    """What the bridge adds stands behind what the sender sent."""
    return c.origin_name(F.coalesce(c.last_value_of(F.col("headers"), names.ORIGIN), F.lit(b"")))
