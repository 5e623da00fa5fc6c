"""Which of the records that say they are copies are copies: told from the topics alone.

    origin t/0/7 asks for X   claim says X, rolls 1, not refused       a copy
                              claim says X, rolls 1, on timer.rejected a forgery that was refused: a request of its own
                              claim says Y, or rolls 3 before 2        none: has to be refused, or is missing there
                              claim says X, rolls 1, a second time     none: the same

A copy has all in common with its request, stands behind it in its partition, and its `timer-rolls` is the next number.
Its time may be another, where a request moved what has its id to that.
A forgery with the very bytes of a copy that is awaited stands in for it: the bridge takes it, and nothing differs.
Where the request itself is gone (retention; the audit begins at the log's start), its earliest copy speaks for it.
Where the audit begins later, what names a request from before that is of another time: it makes no row.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.audit_rules.requests import ASKED, says_of
from spark_jobs.kafka.admin import Span

_MOVED = ("move", "moved_low", "moved_high")


def claims(parsed: DataFrame) -> DataFrame:
    """Records among `parsed` (spark_jobs.audit_rules.requests) that say they are copies."""
    return parsed.where(F.col("asked.kind") == "copy").select(
        F.col("origin").alias("place"),
        *(F.col(f"asked.{name}") for name in ("topic", "partition", "offset", "requested_ms")),
        F.col("claimed").alias("origin"),
        F.get(F.split("claimed", "/"), F.lit(2)).try_cast("bigint").alias("origin_offset"),
        "rolls",
        "says",
        "asked",
    )


def judged(
    claimed: DataFrame,
    asked: DataFrame,
    refused: DataFrame,
    gone: Sequence[Span],
    unread: Sequence[Span],
    moves: DataFrame,
) -> DataFrame:
    """`claimed` with `is_copy`, and `is_witness` where the request itself is gone.

    `asked`: origin, asked, moved_low and moved_high of every request in sight, and rolls of copies that were told.
    `refused`: the places on the rejected topic, as `place`. `moves`: parsed requests, of which those that move are
    looked at.
    `gone`: of these partitions everything before the span's start is gone; `unread`: was not asked for.
    """
    told = {"wanted": says_of(F.col("asked")), "is_known": F.lit(True), "before": F.col("rolls")}
    known = asked.select("origin", *(column.alias(name) for name, column in told.items()), "moved_low", "moved_high")
    turned_down = refused.select("place").distinct().withColumn("is_refused", F.lit(True))
    found = claimed.join(known, "origin", "left").join(turned_down, "place", "left")
    says, wanted = F.col("says"), F.col("wanted")
    # Those without an id meet no move. Each has a key of its own: Spark would send all to one task.
    key = F.when(says["id"].isNotNull(), F.concat(F.lit(b"="), says["id"])).otherwise(F.col("place").cast("binary"))
    of_move = (F.col("partition") == F.col("move.partition")) & (says["due_ms"] == F.col("move.due_ms"))
    of_move &= key == F.concat(F.lit(b"="), F.col("move.id"))
    looked = found.join(_times(moves), of_move, "left")
    is_moved = F.col("move").isNotNull() | says["due_ms"].between(F.col("moved_low"), F.col("moved_high"))
    as_moved = is_moved & wanted["id"].isNotNull() & says.eqNullSafe(wanted.withField("due_ms", says["due_ms"]))
    witness, unknown = _is_before(gone), F.col("is_known").isNull()
    agrees = F.when(unknown, witness).otherwise(says.eqNullSafe(wanted) | F.coalesce(as_moved, F.lit(False)))
    stands = F.col("is_refused").isNull() & F.col("origin").isNotNull()
    may_be = stands & agrees
    # One that cannot be a copy stands for itself, so that a flood of forgeries makes no long partition.
    group = F.when(F.col("may_be"), F.col("origin")).otherwise(F.col("place"))
    flagged = looked.withColumns({"is_witness": witness, "may_be": F.coalesce(may_be, F.lit(False))})
    numbered = flagged.withColumn("group", group)
    by_rolls = Window.partitionBy("group").orderBy("rolls", "offset")
    first_of_number = F.coalesce(F.lag("rolls").over(by_rolls) != F.col("rolls"), F.lit(True))
    first = F.first("rolls").over(by_rolls) - 1
    before = F.when(F.col("is_witness"), first).otherwise(F.coalesce("before", F.lit(0)))
    in_turn = F.col("rolls") - before == F.dense_rank().over(Window.partitionBy("group").orderBy("rolls"))
    is_copy = (F.col("may_be") & first_of_number & in_turn) | (stands & _is_before(unread))
    counted = numbered.withColumn("is_copy", is_copy)
    return counted.drop("group", "may_be", "wanted", "is_known", "is_refused", "before", *_MOVED)


def _times(moves: DataFrame) -> DataFrame:
    """To which times an id was moved, each once, as `move`."""
    asked = F.col("asked")
    times = moves.where((asked["kind"] == "move") & asked["id"].isNotNull())
    return times.select(
        F.struct(*(asked[name].alias(name) for name in ("partition", "id", "due_ms"))).alias("move")
    ).distinct()


def evidence(told: DataFrame) -> DataFrame:
    """What `judged` means for the origins: copies for their request, all else a request of its own at its place."""
    # Built field by field: a chain of withField on a struct would double the plan with each link.
    own, said = F.col("asked"), F.col("says")
    fields = {name: own[name] for name in ASKED}
    fields |= {name: said[name] for name in ("due_ms", "id")} | {"expected_ms": said["due_ms"]}
    fields |= {"offset": F.col("origin_offset"), "kind": said["action"], "malformed": F.lit(False)}
    stands_in = F.struct(*(column.alias(name) for name, column in fields.items()))
    is_copy = F.col("is_copy")
    # One pass, not one for each kind: what is decided here rests on all requests.
    return told.select(
        F.when(is_copy, F.col("origin")).otherwise(F.col("place")).alias("origin"),
        F.when(~is_copy, own).when(F.col("is_witness"), stands_in).alias("asked"),
        F.when(is_copy, F.lit(1).cast("bigint")).alias("copies"),
        F.when(is_copy, F.col("rolls")).alias("rolls"),
    )


def _is_before(spans: Sequence[Span]) -> Column:
    if not spans:
        return F.lit(False)
    starts = F.create_map(*(column for s in spans for column in (F.lit(s.partition), F.lit(s.start).cast("bigint"))))
    return F.coalesce(F.col("origin_offset") < F.try_element_at(starts, F.col("partition")), F.lit(False))
