"""Missing timers that must not be sent, as a bridge may still deliver them. By progress and journal (docs/formats.md).

    C 9800   K (due 5000, 7431)   journal: held 8, rolled (3, 1), ended 5, waits orders (4000, 2]..(4500, 9]
    origin 7, expected 3900       below C, (3900, 7) <= K, and not in the journal                  settled
    origin 9801                   not read yet                                                      unread
    origin 9, expected 6000       (6000, 9) > K: it waits in a store                                live
    origin 8, 3                   held, or a copy in flight                                         held, rolling
    origin 6, expected 4200       its key is in the backlog of its target                           held
    origin 5                      a cancel ended it, which always wins                              ended

The key of a copy has its due time from the journal, or the copy's own time, which is at most that of the journal record
that lists it as landed. The key of a timer that is or was rolled may have any time from its request's up to that one:
in a target backlog it may have waited under the key of its roll.

All of it is joins in Spark, so neither the timers nor the decisions of the journal have to fit into memory. If a record
of the journal begins below the end of the one before, an operator has set progress back, and earlier decisions about
offsets from there on do not count (schemas.journal.Decisions).
"""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from schemas.journal import JournalRecord
from schemas.progress import Progress
from spark_jobs.audit_rules import headers as c

SKEW_MS = 60_000
"""Largest difference between the clocks of two brokers."""
_RECORD = (
    "v INT, from_offset BIGINT, next_offset BIGINT, rules STRUCT<roll_window_ms: BIGINT>, refused ARRAY<BIGINT>,"
    " ended ARRAY<BIGINT>, dropped ARRAY<BIGINT>, held ARRAY<BIGINT>, released ARRAY<BIGINT>,"
    " rolled ARRAY<ARRAY<STRING>>, landed ARRAY<ARRAY<BIGINT>>, waits ARRAY<ARRAY<STRING>>"
)
_STRETCHES = "ARRAY<ARRAY<ARRAY<BIGINT>>>"
_STRICT = {"mode": "FAILFAST"}
_DECISIONS = {"ended": "ended", "dropped": "ended", "refused": "refused", "held": "held", "released": "released"}


def journal_entries(journal: DataFrame) -> DataFrame:
    """Parse records of the journal: `partition`, its offset `at`, its time `at_ms`, and the fields of JournalRecord.

    Spark raises for a record of another version: an unknown decision could mean that a timer waits.
    """
    text = F.col("value").cast("string")
    told = F.from_json(text, _RECORD, _STRICT)
    known = F.array(*map(F.lit, sorted(JournalRecord.model_fields)))
    required = (told["from_offset"], told["next_offset"], told["rules"]["roll_window_ms"])
    is_ours = (told["v"] == 1) & (F.size(F.array_except(F.json_object_keys(text), known)) == 0)
    for field in required:
        is_ours &= field.isNotNull()
    place = F.concat_ws("/", "topic", "partition", "offset")
    remedy = ": not a journal record of this version: run the release of the bridge that writes it"
    checked = F.when(is_ours, told).otherwise(F.raise_error(F.concat(place, F.lit(remedy))))
    rows = journal.select(
        "partition", F.col("offset").alias("at"), F.col("timestamp_ms").alias("at_ms"), checked.alias("told")
    )
    return rows.select("partition", "at", "at_ms", "told.*")


def with_reasons(asked: DataFrame, entries: DataFrame, progress: Mapping[int, Progress | None]) -> DataFrame:
    """Return `asked` with `waits`: why the timer must not be sent; null: it is settled, and not ended.

    asked: origin, partition, offset, requested_ms, due_ms, target. entries: `journal_entries` from before the first
    request in question. progress: of each partition, from before the journal was read.
    """
    decided = asked.join(_decisions(asked, entries), ["partition", "offset"], "left")
    high = _key(F.greatest("due_ms", "requested_ms", "visit_ms"))
    read_to = _of(progress, lambda at: at.next_offset)
    settled = F.struct(
        _of(progress, lambda at: at.settled.visit_ms).alias("ms"),
        _of(progress, lambda at: at.settled.origin_offset).alias("origin"),
    )
    reason = (
        F.when(read_to.isNull(), "no-progress")
        .when(F.col("offset") >= read_to, "unread")
        .when(F.col("is_ended"), "ended")
        .when(F.col("is_refused"), "refused")
        .when(F.col("is_held"), "held")
        .when(F.col("is_rolling"), "rolling")
        .when(high > settled, "live")
    )
    judged = decided.withColumns({"waits": reason, "high": high})
    backlog = _backlog(entries)
    if not backlog.isEmpty():
        open_ones = judged.where(F.col("waits").isNull())
        held = _in_backlog(open_ones, backlog, entries).withColumn("in_backlog", F.lit("held"))
        judged = judged.join(held, ["partition", "offset"], "left").withColumn(
            "waits", F.coalesce("waits", "in_backlog")
        )
    return judged.select(*asked.columns, "waits")


def _of(progress: Mapping[int, Progress | None], value: Callable[[Progress], int]) -> Column:
    told = {partition: value(at) for partition, at in progress.items() if at is not None}
    return c.lookup(told, F.col("partition")).cast("bigint")


def _key(ms: Column) -> Column:
    """Return the position in the order of release (schemas.progress.Key); Spark compares structs field by field."""
    return F.struct(ms.alias("ms"), F.col("offset").alias("origin"))


def _decisions(asked: DataFrame, entries: DataFrame) -> DataFrame:
    """Return what the journal says of each of these timers that it names, by partition and offset."""
    events = _events(entries).join(asked.select("partition", "offset"), ["partition", "offset"], "left_semi")
    events = events.join(_resets(entries), "partition", "left")
    counts = ~_is_forgotten()

    def last(kind: str) -> Column:
        return F.max(F.when(counts & (F.col("kind") == kind), F.col("at"))).alias(kind)

    kinds = ("ended", "refused", "held", "released", "rolled", "landed")
    copies = events.groupBy("partition", "offset", "rolls").agg(F.max("visit_ms").alias("visit_ms"), *map(last, kinds))
    # In one record, a timer is held before it is released, and a copy has landed before the next one is rolled.
    is_held = F.max("held") > F.coalesce(F.max("released"), F.lit(-1))
    return copies.groupBy("partition", "offset").agg(
        F.max("visit_ms").alias("visit_ms"),
        F.max("ended").isNotNull().alias("is_ended"),
        F.max("refused").isNotNull().alias("is_refused"),
        F.coalesce(is_held, F.lit(False)).alias("is_held"),
        F.coalesce(F.bool_or(F.col("rolled") >= F.coalesce("landed", F.lit(-1))), F.lit(False)).alias("is_rolling"),
    )


def _events(entries: DataFrame) -> DataFrame:
    """Return a row for each decision: partition, offset of the timer, kind, `at`; of copies `rolls` and `visit_ms`.

    visit_ms: the latest possible wake-up time of the copy.
    """

    def each(column: str, kind: str, offset: Column, rolls: Column, visit_ms: Column) -> DataFrame:
        rows = entries.select("partition", "at", "at_ms", F.explode(column).alias("item"))
        told = {"offset": offset, "rolls": rolls, "visit_ms": visit_ms}
        columns = (value.cast("bigint").alias(name) for name, value in told.items())
        return rows.select("partition", "at", F.lit(kind).alias("kind"), *columns)

    item, none = F.col("item"), F.lit(None)
    events = each("rolled", "rolled", item[0], item[1], item[2])
    events = events.unionByName(each("landed", "landed", item[0], item[1], F.col("at_ms") + SKEW_MS))
    for column, kind in _DECISIONS.items():
        events = events.unionByName(each(column, kind, item, none, none))
    return events


def _resets(entries: DataFrame) -> DataFrame:
    """Return for each partition the records before which progress was set back. There are few: operators do that."""
    before = F.lag("next_offset").over(Window.partitionBy("partition").orderBy("at"))
    found = entries.withColumn("before", before).where(F.col("from_offset") < F.col("before"))
    return found.groupBy("partition").agg(F.collect_list(F.struct("at", "from_offset")).alias("resets"))


def _is_forgotten() -> Column:
    """True if progress was set back to before `offset` after the record `at`."""

    def forgets(reset: Column) -> Column:
        return (reset["at"] > F.col("at")) & (reset["from_offset"] <= F.col("offset"))

    return F.coalesce(F.exists("resets", forgets), F.lit(False))


def _backlog(entries: DataFrame) -> DataFrame:
    """Return the ranges (after, until] of pending keys of each target, as of the last record of each partition."""
    last = entries.groupBy("partition").agg(F.max_by("waits", "at").alias("waits"))
    targets = last.select("partition", F.explode("waits").alias("wait"))
    stretches = F.from_json(F.col("wait")[2], _STRETCHES, _STRICT)
    rows = targets.select("partition", _hash(F.col("wait")[0]).alias("hash"), F.explode(stretches).alias("stretch"))
    bounds = {"after": F.col("stretch")[0], "until": F.col("stretch")[1]}
    keys = (F.struct(key[0].alias("ms"), key[1].alias("origin")).alias(name) for name, key in bounds.items())
    return rows.select("partition", "hash", *keys)


def _in_backlog(judged: DataFrame, backlog: DataFrame, entries: DataFrame) -> DataFrame:
    """Return partition and offset of the timers whose key is, or may be, in a range of the backlog of their target."""
    hashed = judged.withColumn("hash", _hash(F.col("target")))
    named = hashed.join(backlog.select("partition", "hash").distinct(), ["partition", "hash"], "left_semi")
    is_covered = (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("end"))
    rules = _rules(entries).join(_resets(entries), "partition", "left").withColumnRenamed("partition", "of")
    ruled = named.join(rules, (F.col("partition") == F.col("of")) & is_covered & ~_is_forgotten(), "left")
    same = ("partition", "offset", "hash", "requested_ms", "due_ms", "visit_ms", "high")
    known = ruled.groupBy(*same).agg(F.max_by("roll_window_ms", "at").alias("roll_window_ms"))
    # The key is known if the timer was not rolled, and did not have to be.
    delay_ms = F.greatest("due_ms", "requested_ms") - F.col("requested_ms")
    is_exact = F.col("visit_ms").isNull() & (delay_ms <= F.col("roll_window_ms"))
    low = F.when(is_exact, F.col("high")).otherwise(_key(F.col("requested_ms") - SKEW_MS))
    is_between = (F.col("after") < F.col("high")) & (F.col("low") <= F.col("until"))
    keyed, ranges = known.withColumn("low", low), backlog.withColumnsRenamed({"partition": "of", "hash": "of_hash"})
    is_same = (F.col("partition") == F.col("of")) & (F.col("hash") == F.col("of_hash"))
    return keyed.join(ranges, is_same & is_between, "left_semi").select("partition", "offset")


def _rules(entries: DataFrame) -> DataFrame:
    """Return ranges [first, end) of offsets with their roll window; of two with an offset, the later `at` counts."""
    rows = entries.where(F.col("next_offset") > F.col("from_offset"))
    rows = rows.withColumn("roll_window_ms", F.col("rules.roll_window_ms"))
    in_order = Window.partitionBy("partition").orderBy("at")
    is_next = (F.lag("next_offset").over(in_order) == F.col("from_offset")) & (
        F.lag("roll_window_ms").over(in_order) == F.col("roll_window_ms")
    )
    numbered = rows.withColumn("is_new", F.coalesce(~is_next, F.lit(True)).cast("int"))
    ranges = numbered.withColumn("range", F.sum("is_new").over(in_order)).groupBy("partition", "range")
    bounds = F.min("from_offset").alias("first"), F.max("next_offset").alias("end"), F.max("at").alias("at")
    return ranges.agg(*bounds, F.first("roll_window_ms").alias("roll_window_ms")).drop("range")


def _hash(target: Column) -> Column:
    """Return Java's String.hashCode of a topic's name: targets with the same hash share a backlog."""
    letters = F.split(target, "")
    return F.aggregate(
        letters, F.lit(0).cast("bigint"), lambda found, letter: (found * 31 + F.ascii(letter)) % (1 << 32)
    )
