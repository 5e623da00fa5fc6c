"""Records of the timer topic -> requests.

    timer-topic, one time header           schedule | replace     a timer; ends what is pending under its id
    timer-action: cancel, timer-id         cancel                 ends what is pending under its id
    timer-action: move, timer-id, a time   move                   gives what is pending under its id another time
    timer-action: pause, resume, timer-id  pause, resume          holds what is pending under its id, and no longer
    timer-of instead of the id             (all but replace)      the same for the timer of the request at that place
    timer-action: pause, resume            switch                 about a target topic; not a timer
    timer-origin or timer-rolls            copy                   a claim: see spark_jobs.audit_rules.roll_copies
    anything else                          malformed: only the rejected topic may hold it

Headers of other schedulers are translated first (profiles.py). The same rules as kafka_timer.headers, written a second
time on purpose (see headers.py). `malformed` has no code: any refusal will do.
"""

from collections.abc import Sequence, Set
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from kafka_timer.levels import DEFAULT_MS
from schemas.profiles import DEFAULT_PROFILES
from schemas.tables import Kind
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.profiles import translated

ASKED = tuple(field.name for field in Kind.ASKED.value)
RECORD, REQUEST, CLAIM = "record", "request", "claim"
"""Column that says what a record is, and its values. No flag: Spark makes Bloom filters from comparisons only."""
_MAX_DIGITS = 18
"""Most digits of an offset in `timer-of`."""
_UNKNOWN = rf"(?m)^(?!({'|'.join(sorted(names.KNOWN))})$)(?i:timer-)"
"""A header that looks like one of ours, and is none."""
_MOST_HEADERS_READ = 100_000
"""librdkafka returns none of a record's headers if there are more."""
_SWITCHES = ("pause", "resume")
MOVES = ("move", *_SWITCHES)
"""Kinds of requests that end nothing. Those to pause and resume are about a target topic if they name no timer."""
_ACTIONS = ("schedule", "cancel", "replace", *MOVES)
_COPIED_FIELDS = ("target", "due_ms", "expire_ms", "want_partition", "id", "own_key", "want", "occurrence")
SAID = ("action", *_COPIED_FIELDS, "rule", "scheduled_ms")
"""Fields of `says`, in their order."""


class Feature(StrEnum):
    """A kind of request, or a header. The audit leaves out the steps for kinds that no request of the run has."""

    IDS = "ids"
    CLAIMS = "claims"
    MOVES = "moves"
    PAUSES = "pauses"
    WHOLE_IDS = "whole_ids"
    BY_ORIGIN = "by_origin"
    TRACES = "traces"
    SERIES = "series"


EVERY_FEATURE = frozenset(Feature)


def requests(
    records: DataFrame,
    *,
    levels_ms: Sequence[int] = DEFAULT_MS,
    own_topics: Set[str] = frozenset(),
    profiles: Sequence[str] = DEFAULT_PROFILES,
    trace_header: str = names.TRACE_ID,
) -> DataFrame:
    """Return one row per record: `origin` (its place), `asked` (Kind.ASKED), and `record`: a request, or a claim to
    be a copy, which alone has `claimed`, `rolls` and `says`.

    own_topics: the bridge's own, which are not legal targets. profiles: the bridge's setting. trace_header: the foreign
    header with the sender's trace id; empty: none.
    """
    h = F.col("headers")
    key = F.when(c.has(h, names.KEY), c.value_of(h, names.KEY)).otherwise(F.col("key"))
    action = F.when(c.has(h, names.ACTION), c.value_of(h, names.ACTION).cast("string")).otherwise("schedule")
    is_copy = c.has(h, names.ORIGIN) | c.has(h, names.ROLLS)
    target = c.topic_name(c.value_of(h, names.TOPIC))
    id_length = F.coalesce(F.length(c.value_of(h, names.ID)), F.lit(0))
    read = translated(c.with_value_hash(records), profiles).select(
        F.concat_ws("/", "topic", "partition", "offset").alias("origin"),
        "topic",
        "partition",
        "offset",
        F.col("timestamp_ms").alias("requested_ms"),
        F.when(is_copy, "copy").when(action.isin(*_ACTIONS), action).otherwise("schedule").alias("kind"),
        F.coalesce(action.isin(*_ACTIONS), F.lit(False)).alias("known_action"),
        action.alias("action"),
        (F.when(~target.isin(*own_topics), target) if own_topics else target).alias("target"),
        _due_ms(h, levels_ms).alias("due_ms"),
        c.decimal(c.value_of(h, names.EXPIRE_MS)).alias("expire_ms"),
        c.partition_number(c.value_of(h, names.PARTITION)).alias("want_partition"),
        F.when(c.has(h, names.ID), c.digest(c.value_of(h, names.ID))).alias("id"),
        _want(h, key).alias("want"),
        F.xxhash64("own_key").alias("own_key"),
        F.when(F.col("whole_id").isNotNull(), c.digest(F.col("whole_id"))).alias("whole_id"),
        F.when(action.isin("cancel", *MOVES) & ~c.has(h, names.ID), _of_origin(h)).alias("of_origin"),
        c.trace(h, trace_header).alias("trace"),
        _is_dubious(h).alias("dubious"),
        c.has_duplicates("headers").alias("doubled"),
        (c.has(h, names.ID) & ~id_length.between(1, names.MAX_ID_BYTES)).alias("bad_id"),
        _bad_schedule(h).alias("bad_schedule"),
        (action.isin(*_SWITCHES) & ~c.has_any(h, (names.ID, names.OF))).alias("is_switch"),
        series.is_malformed(h).alias("bad_rule"),
        series.rule_of(h).alias("rule"),
        series.number_of(h).alias("occurrence"),
        c.decimal(c.value_of(h, names.SCHEDULED_MS)).alias("moved_from_ms"),
        (c.has(h, names.KEY) & c.value_of(h, names.KEY).isNull()).alias("null_key"),
        c.origin_name(c.value_of(h, names.ORIGIN)).alias("says_origin"),
        c.partition_number(c.value_of(h, names.ROLLS)).alias("rolls"),
        c.has(h, names.DELIVER_MS).alias("is_absolute"),
    )
    return _described(read.withColumn("malformed", _malformed()))


def _described(read: DataFrame) -> DataFrame:
    """Return the rows of `requests`. `expected_ms` of cancels, moves and malformed requests is their timestamp."""
    says_due, is_timer = F.col("due_ms"), ~F.col("kind").isin("cancel", *_SWITCHES)
    due_ms = F.when(~F.col("malformed") & is_timer, says_due)
    asked = {"due_ms": due_ms, "expected_ms": F.greatest("requested_ms", F.when(F.col("kind") != "move", due_ms))}
    asked["occurrence"] = F.when(F.col("rule").isNotNull() & F.col("kind").isin("schedule", "replace"), 1)
    asked["id"] = F.when(~F.col("malformed"), F.col("id"))
    struct = F.struct(*(asked.get(name, F.col(name)).alias(name) for name in ASKED))
    is_claim = F.col("kind") == "copy"
    return read.select(
        "origin",
        struct.alias("asked"),
        F.when(is_claim, _claimed()).alias("claimed"),
        F.when(is_claim, F.col("rolls")).alias("rolls"),
        F.when(is_claim, F.struct("action", *_COPIED_FIELDS, *_of_series())).alias("says"),
        F.when(is_claim, CLAIM).otherwise(REQUEST).alias(RECORD),
    )


def _of_series() -> tuple[Column, Column]:
    """Return `rule`, and the time by it that a copy of a recurring timer gives: its due time, unless it was moved."""
    scheduled_ms = F.coalesce("moved_from_ms", F.when(F.col("rule").isNotNull(), F.col("due_ms") % names.PAUSED_MS))
    return series.of_copies(F.col("rule")).alias("rule"), scheduled_ms.alias("scheduled_ms")


def copy_claim_of(asked: Column) -> Column:
    fields = (asked[name].alias(name) for name in _COPIED_FIELDS)
    rule, no_time = series.of_copies(asked["rule"]).alias("rule"), F.lit(None).cast("bigint").alias("scheduled_ms")
    return F.struct(asked["kind"].alias("action"), *fields, rule, no_time)


def _want(headers: Column, key: Column) -> Column:
    """Return `want`. Its `headers` are null if the bridge's client may read other names or none: its limit, a NUL that
    ends a name, and a name that is no UTF-8, which Java's client shows with U+FFFD."""
    want, written = c.contents(key), F.array_join(headers["key"], "\n")
    is_other = (F.size(headers) > _MOST_HEADERS_READ) | written.contains("\0") | written.contains("\ufffd")
    return want.withField("headers", F.when(~is_other, want["headers"]))


def _of_origin(headers: Column) -> Column:
    """Return the origin in the one `timer-of`; null if it is not of this partition, or not as the bridge writes it."""
    others = F.array_remove(headers["key"], names.OF)
    name = c.origin_name(c.value_of(headers, names.OF))
    fits = _own_origin(_offset_in(name)).eqNullSafe(name) & (_offset_in(name) < 10**_MAX_DIGITS)
    return F.when((F.size(headers) - F.size(others) == 1) & fits, name)


def _offset_in(origin: Column) -> Column:
    return F.get(F.split(origin, "/"), F.lit(2)).try_cast("bigint")


def _own_origin(number: Column) -> Column:
    return F.concat_ws("/", F.col("topic"), F.col("partition"), number)


def _due_ms(headers: Column, levels_ms: Sequence[int]) -> Column:
    """Return the due time by the one time header; null if there is none, several, or no number."""
    deliver, delay, level = (c.decimal(c.value_of(headers, name)) for name in names.TIMES)
    steps = F.array(*(F.lit(ms).cast("bigint") for ms in (0, *levels_ms)))
    # `least` skips nulls: without the check, no level would mean the last one.
    by_level = F.when(level.isNotNull(), F.get(steps, F.least(level, F.lit(len(levels_ms))).cast("int")))
    due = F.coalesce(deliver, F.try_add(F.col("timestamp_ms"), F.coalesce(delay, by_level)))
    count = sum((c.has(headers, name).cast("int") for name in names.TIMES), F.lit(0))
    is_move = c.value_of(headers, names.ACTION).eqNullSafe(F.lit(b"move"))
    recurs = (count == 0) & ~is_move & series.rule_of(headers).isNotNull()
    return F.when(count == 1, due).when(recurs, series.first_due_ms(headers))


def _bad_schedule(headers: Column) -> Column:
    """Return True if a header of a schedule does not parse, is null and may not be, or is the bridge's own."""
    wrong = c.has(headers, names.PROFILE)
    wrong |= c.has(headers, names.PARTITION) & c.partition_number(c.value_of(headers, names.PARTITION)).isNull()
    wrong |= c.has(headers, names.EXPIRE_MS) & c.decimal(c.value_of(headers, names.EXPIRE_MS)).isNull()
    return wrong


def _is_dubious(headers: Column) -> Column:
    """Return True if a header may be misspelt, or its time in another unit: older bridges do not refuse it."""
    times = F.array(*(c.decimal(c.value_of(headers, name)) for name in names.EPOCHS))
    has_other = F.coalesce(F.exists(times, lambda each: ~each.between(10**11, 10**15 - 1)), F.lit(False))
    return ((F.col("timestamp_ms") >= 10**11) & has_other) | F.array_join(headers["key"], "\n").rlike(_UNKNOWN)


def _malformed() -> Column:
    """Return True if the request must be refused. A cancel or a pause needs only its id, a move its id and time.

    A claim is either a copy or malformed.
    """
    kind = F.col("kind")
    no_id = (kind != "schedule") & F.col("id").isNull() & F.col("of_origin").isNull()
    never = F.coalesce(F.col("expire_ms") <= F.col("due_ms"), F.lit(False))
    wrong_header = F.col("bad_schedule") | F.col("bad_rule") | F.col("null_key")
    schedule = F.col("target").isNull() | F.col("due_ms").isNull() | wrong_header | never
    wrong = F.col("doubled") | ~F.col("known_action") | F.col("bad_id") | no_id
    no_timer = F.when(kind == "move", F.col("due_ms").isNull()).otherwise(kind.isin("schedule", "replace") & schedule)
    timer = (kind == "copy") | wrong | no_timer
    return F.when(F.col("is_switch"), F.col("doubled") | F.col("target").isNull()).otherwise(timer)


def _claimed() -> Column:
    """Return the claimed origin if it is an earlier request in the same partition; else null."""
    number = _offset_in(F.col("says_origin"))
    own = _own_origin(number) == F.col("says_origin")
    told = (F.col("rolls") >= 1) & F.col("is_absolute") & F.col("due_ms").isNotNull() & F.col("target").isNotNull()
    fits = own & (number < F.col("offset")) & told & ~F.col("doubled") & ~F.col("bad_schedule") & ~F.col("bad_id")
    return F.when(fits, F.col("says_origin"))
