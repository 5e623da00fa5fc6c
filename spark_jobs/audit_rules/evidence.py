"""Records of every kind of topic -> evidence about origins -> one row per origin.

    timer topic      -> asked, copies                 \\
    target topics    -> deliveries, place, got         \\
    rejected topic   -> rejections, error               >  fold(...): counts add up, minima and maxima stay
    receipts topic   -> answered_ms, told_...          /
    the last run     -> all of these                  /

Every function is DataFrame -> DataFrame and reads no topic. Results have the columns of schemas.audit_state.EVIDENCE:
a duplicate adds to a count and never makes a row, and the order of the topics does not matter. Pauses of target topics
are no evidence about an origin: `pauses` reads them from the control topic.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from schemas.audit_state import EVIDENCE
from schemas.profiles import DEFAULT_PROFILES
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.murmur2 import partition_of
from spark_jobs.audit_rules.profiles import translated
from spark_jobs.audit_rules.requests import EVERY_FEATURE, RECORD, REQUEST, Feature
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.tables import as_table

_BRIDGE_ADDS = (names.ORIGIN, names.DELIVER_MS, names.RELEASED_MS, names.ROLLS)
DELIVERY_CODES = ("unknown-topic", "unknown-partition", "not-authorized", "expired", "missed")
"""Codes that only a due timer gets."""
AMBIGUOUS_CODES = ("too-large", "bad-target")
"""Codes of both intake and targets: a receipt, or else the time, decides which it was."""
_ERROR_HEADERS = (names.ERROR, names.ERROR_DETAIL, names.ORIGIN)
TRACE = "?trace/"
"""Stands in an `origin` before a trace id's digest. As it begins with `?`, it names no request."""
_ENDING_KINDS = ("cancelled", "replaced")
_MISSED_KINDS = ("not-found", "too-late")
_PAUSE_KINDS = ("paused", "resumed")
_ANSWER_KINDS = ("accepted", *_PAUSE_KINDS, *_ENDING_KINDS, *_MISSED_KINDS)
REFUSED = "rejected"
"""`told_missed` of a request that was refused at intake: such a receipt has no id."""
SUMS = ("copies", "deliveries", "rejections", "told_done", "told_ended")
_HIGHEST = ("rolls", "got_high", "returned_high", "told_by_high", "moved_high", "scheduled_ms", "pause")


def _once() -> Column:
    """Return the count of one record, of the type that counts have in EVIDENCE."""
    return F.lit(1).cast("bigint")


def fold(rows: DataFrame) -> DataFrame:
    """Return one row per origin. A partial aggregation would only sort twice: most origins have one or two rows."""
    how = dict.fromkeys(SUMS, F.sum) | dict.fromkeys(_HIGHEST, F.max)
    folds = (how.get(name, F.min)(name).alias(name) for name in EVIDENCE.arrow().names[1:])
    # A sort compares the first 8 bytes first, and these are the same for most origins: group by the offset, too.
    offset = F.substring_index("origin", "/", -1).try_cast("bigint").alias("offset")
    return rows.repartition("origin").groupBy(offset, "origin").agg(*folds).drop("offset")


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Everything that one run has read. `ends`: evidence of every other topic."""

    parsed: DataFrame
    rejections: DataFrame
    ends: Sequence[DataFrame] = ()
    carried: DataFrame | None = None
    """Evidence of open timers of earlier runs: those that are due, and those that a new record may concern."""
    carried_claims: DataFrame | None = None
    closed: DataFrame | None = None
    """Evidence of timers that earlier runs closed and a new record names; it includes their copies."""
    undecided: DataFrame | None = None
    """Origins named after the last stable offset of the target topics and the rejected one."""
    pauses: DataFrame | None = None
    """Pauses of target topics, by `pauses`."""
    waived: DataFrame | None = None
    """Origins whose faults are known."""
    deleted_before: Sequence[Span] = ()
    """Retention has deleted everything before these spans of the timer topic."""
    excluded_before: Sequence[Span] = ()
    """Requests before these spans are outside the audited range."""
    holes: Sequence[Span] = ()
    """Spans of the timer topic that were never read."""
    since_ms: Mapping[str, int] | None = None
    """Since when all records of each target topic were read, by name or name/partition. None: always."""
    rejected_since_ms: int = 0
    """Requests before then may have been refused."""
    rejected_gap_ms: int = 0
    """Timers that were due before then may have been rejected since the last run."""
    has: Set[Feature] = EVERY_FEATURE
    skew_ms: int = 1_000
    """See AuditLimits."""

    @property
    def kept(self) -> list[DataFrame]:
        """Return the evidence of earlier runs."""
        return [kept for kept in (self.carried, self.closed) if kept is not None]


class PartitionCount(NamedTuple):
    """Partitions of a topic, to compare those of deliveries with those of their keys.

    since_ms: deliveries after that time were sent by producers that knew of all partitions. every: deliveries whose
    offset is a multiple of it are compared.
    """

    topic: str
    partitions: int
    since_ms: int
    every: int = 1


def deliveries(
    records: DataFrame, trace_header: str = names.TRACE_ID, counts: Sequence[PartitionCount] = ()
) -> DataFrame:
    """Return evidence of the records of target topics with a `timer-origin`, or a header that only a bridge writes.

    Without an origin, the record's own place is used, with a `?`. A record with a trace id alone is evidence of
    that, and counts if a request has it (`traces`). Other records there are ignored. counts: of the topics
    in which the partition of a key is known.
    """
    records = _with_key_partition(c.with_value_hash(records), counts)
    h = F.col("headers")
    place = F.struct(
        F.col("timestamp_ms").alias("delivered_ms"),
        *(F.col(name).alias(f"delivered_{name}") for name in ("topic", "partition", "offset")),
        "clock",
        c.decimal(c.value_of(h, names.RELEASED_MS)).alias("released_ms"),
        c.partition_number(c.value_of(h, names.ROLLS)).alias("delivered_rolls"),
        "key_partition",
    )
    contents = c.contents(F.col("key"))
    got = F.struct(
        "topic",
        *(contents[part].alias(part) for part in ("key", "value", "headers")),
        c.decimal(c.value_of(h, names.DELIVER_MS)).alias("deliver_ms"),
        _has_control_headers().alias("control"),
        c.trace(h, trace_header).alias("trace"),
        series.number_of(h).alias("occurrence"),
    )
    has_origin = c.has(h, names.ORIGIN)
    is_ours = has_origin | c.has(h, names.RELEASED_MS) | c.has(h, names.ROLLS)
    place_name = F.concat(F.lit("?"), F.concat_ws("/", "topic", "partition", "offset"))
    trace_name = F.concat(F.lit(TRACE), F.hex(c.trace(h, trace_header)))
    numbered = series.occurrence_origin(_last_origin(), series.number_of(h))
    origin = F.when(has_origin, numbered).when(is_ours, place_name).otherwise(trace_name)
    ours = records.where(is_ours | c.value_of(h, trace_header).isNotNull() if trace_header else is_ours)
    seen = ours.select(origin.alias("origin"), _once().alias("deliveries"), place.alias("place"), got.alias("got_low"))
    return as_table(seen.withColumn("got_high", F.col("got_low")), EVIDENCE)


def _has_control_headers() -> Column:
    """Return True if our headers in `headers` are those that the bridge adds. Only an occurrence has a number."""
    headers = F.col("headers")
    has_all = reduce(and_, (c.has(headers, name) for name in _BRIDGE_ADDS))
    count = len(_BRIDGE_ADDS) + c.has(headers, names.OCCURRENCE).cast("int")
    return has_all & (c.count_of_ours("headers") == count)


def _with_key_partition(records: DataFrame, counts: Sequence[PartitionCount]) -> DataFrame:
    """Return the records with `key_partition`; null if it is not known, or not chosen."""
    if not counts:
        return records.withColumn("key_partition", F.lit(None).cast("int"))
    # A table of Arrow: for a list, Spark would start Python.
    table = pa.Table.from_pylist([count._asdict() for count in counts])
    known = records.sparkSession.createDataFrame(table)
    is_known = F.col("key").isNotNull() & (F.col("timestamp_ms") > F.col("since_ms"))
    is_chosen = F.try_mod("offset", "every") == 0
    found = F.when(is_known & is_chosen, partition_of(F.col("key"), F.col("partitions")))
    return records.join(F.broadcast(known), "topic", "left").withColumn("key_partition", found)


def origins(records: DataFrame) -> DataFrame:
    """Return the distinct origins that the records name, as `origin`."""
    named = records.where(c.has(F.col("headers"), names.ORIGIN))
    numbered = series.occurrence_origin(_last_origin(), series.number_of(F.col("headers")))
    return named.select(numbered.alias("origin")).distinct()


def origins_before(copies: DataFrame) -> DataFrame:
    """Return the distinct origins of the occurrences before those of these copies, as `origin`."""
    later = copies.where(series.number_of(F.col("headers")) >= 2)
    return origins(later).select(series.predecessor(F.col("origin")).alias("origin")).distinct()


def rejections(records: DataFrame, profiles: Sequence[str] = DEFAULT_PROFILES) -> DataFrame:
    """Return evidence of the records of the rejected topic, which say what they leave at the origin.

        too large for the rejected topic    null key, null value, reasons   ->  returned: null
        too many headers                    key, value, reasons             ->  returned: key, value, headers null

    profiles: the bridge's setting. The headers of the request's profile are not foreign.
    """
    sent_code = c.last_value_of(F.col("headers"), names.ERROR)
    code = F.coalesce(F.make_valid_utf8(sent_code.cast("string")), F.lit("(no code)"))
    # Only the rejected record of a timer that was due may have a number that the bridge wrote.
    number = F.when(code.isin(*DELIVERY_CODES, *AMBIGUOUS_CODES), series.number_of(F.col("headers")))
    told = c.with_value_hash(records).select(
        series.occurrence_origin(_last_origin(), number).alias("origin"),
        _once().alias("rejections"),
        code.alias("error"),
        F.col("timestamp_ms").alias("rejected_ms"),
        _left_at_origin().alias("left"),
        "key",
        "value",
        "value_hash",
        _without_error_headers(F.col("headers")).alias("headers"),
    )
    contents = c.contents(F.col("own_key"))
    without_headers = contents.withField("headers", F.lit(None).cast("bigint"))
    is_bare = (F.col("left") == names.BARE.decode()) & F.col("own_key").isNull() & F.col("value").isNull()
    kept = F.when(F.col("left").isNull(), contents).when(~is_bare, without_headers)
    seen = translated(told, profiles).withColumn("returned_low", kept)
    return as_table(seen.withColumn("returned_high", F.col("returned_low")), EVIDENCE)


def receipts(records: DataFrame) -> DataFrame:
    """Return evidence of receipts: for the request that each answers, and for the timer that it ended."""
    said = F.from_json(F.col("value").cast("string"), "kind STRING, request STRING, origin STRING, id STRING")
    told = records.select(F.col("timestamp_ms").alias("answered_ms"), said.alias("said")).select("*", "said.*")
    is_answer, is_refusal = F.col("kind").isin(*_ANSWER_KINDS), (F.col("kind") == REFUSED) & F.col("id").isNull()
    answers = told.where((is_answer | is_refusal) & F.col("request").isNotNull()).select(
        F.col("request").alias("origin"),
        F.when(is_answer, F.col("answered_ms")).alias("answered_ms"),
        F.when(F.col("kind").isin(*_ENDING_KINDS), _once()).alias("told_done"),
        F.when(F.col("kind").isin(*_MISSED_KINDS, REFUSED), F.col("kind")).alias("told_missed"),
    )
    is_end = F.col("kind").isin(*_ENDING_KINDS)
    by = F.when(is_end, F.concat_ws(" ", "kind", F.coalesce("request", F.lit("?"))))
    # Of a pause nothing but the timer's name, so that it is judged again.
    about = told.where((is_end | F.col("kind").isin(*_PAUSE_KINDS)) & F.col("origin").isNotNull()).select(
        "origin",
        F.when(is_end, _once()).alias("told_ended"),
        F.when(is_end, F.col("answered_ms")).alias("told_ended_ms"),
        by.alias("told_by_low"),
        by.alias("told_by_high"),
    )
    return as_table(answers.unionByName(about, allowMissingColumns=True), EVIDENCE)


def requests(parsed: DataFrame) -> DataFrame:
    """Return evidence of `parsed` (spark_jobs.audit_rules.requests) without the claims to be copies."""
    return as_table(parsed.where(F.col(RECORD) == REQUEST).select("origin", "asked"), EVIDENCE)


def traces(asked: DataFrame) -> DataFrame:
    """Return evidence of the trace ids of timers: which request has it. `asked`: rows with `asked`."""
    timers = asked.where(F.col("asked.trace").isNotNull() & F.col("asked.kind").isin("schedule", "replace"))
    # Without the id: a trace id is in no chain of ids.
    nameless = F.col("asked").withField("id", F.lit(None).cast("binary"))
    origin = F.concat(F.lit(TRACE), F.hex("asked.trace")).alias("origin")
    return as_table(timers.select(origin, nameless.alias("asked")), EVIDENCE)


def _without_error_headers(headers: Column) -> Column:
    """Return `headers` without the bridge's error headers, which are last. A sender's headers may have their names."""
    rest = F.size(headers) - len(_ERROR_HEADERS)
    last = F.slice(headers, F.greatest(rest + 1, F.lit(1)), F.lit(len(_ERROR_HEADERS)))
    is_there = (rest >= 0) & (last["key"] == F.array(*map(F.lit, _ERROR_HEADERS)))
    return F.when(is_there, F.slice(headers, F.lit(1), F.greatest(rest, F.lit(0)))).otherwise(headers)


def _left_at_origin() -> Column:
    """Return the words of a record with its reasons alone that tell what it leaves at its origin, else null."""
    reasons = F.array(*map(F.lit, _ERROR_HEADERS))
    detail = c.value_of(F.col("headers"), names.ERROR_DETAIL).cast("string")
    told, all_of_it, headers = F.col("headers")["key"] == reasons, names.BARE.decode(), names.LEFT.decode()
    return F.when(told & detail.endswith(all_of_it), all_of_it).when(told & detail.endswith(headers), headers)


def _last_origin() -> Column:
    """Return the last `timer-origin`: the bridge adds its own after the sender's headers."""
    return c.origin_name(F.coalesce(c.last_value_of(F.col("headers"), names.ORIGIN), F.lit(b"")))


_KEY = r"\Apause/([^/]+)/([^/]+)\z"


def pauses(records: DataFrame, timer_topic: str) -> DataFrame:
    """Return a row for each target of the timer topic that was paused: target, paused_ms, resumed_ms.

        pause/timer.requests/orders  on at 10:00, off at 10:20   ->  orders  10:00  10:20
        pause/timer.requests/bills   on at 11:00                 ->  bills   11:00  null

    The last pause of a target counts: the control topic is compacted, so earlier ones may be gone. The same format as
    kafka_timer.control, written a second time on purpose.
    """
    key = F.col("key").cast("string")
    is_on = F.from_json(F.col("value").cast("string"), "v INT, on BOOLEAN")["on"]
    told = records.select(
        F.regexp_extract(key, _KEY, 1).alias("timer_topic"),
        F.regexp_extract(key, _KEY, 2).alias("target"),
        "offset",
        F.col("timestamp_ms").alias("ms"),
        is_on.alias("is_on"),
    ).where((F.col("timer_topic") == timer_topic) & F.col("is_on").isNotNull())
    before = F.coalesce(F.lag("is_on").over(Window.partitionBy("target").orderBy("offset")), F.lit(False))
    turns = told.withColumn("before", before).where(F.col("is_on") != F.col("before"))
    last = turns.groupBy("target").agg(
        F.max_by(F.when(F.col("is_on"), F.col("ms")), F.when(F.col("is_on"), F.col("offset"))).alias("paused_ms"),
        F.max_by(F.struct("is_on", "ms"), "offset").alias("last"),
    )
    return last.select("target", "paused_ms", F.when(~F.col("last.is_on"), F.col("last.ms")).alias("resumed_ms"))
