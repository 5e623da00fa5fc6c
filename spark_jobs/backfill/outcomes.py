"""Steps of a backfill that leave out timers: delivered or marked since the audit, expired, superseded, or unknown."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import EVIDENCE
from schemas.resent import MarkTopics
from spark_jobs.archive import archive_ends, archived
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules import headers as c
from spark_jobs.audit_rules.id_chains import link_ids
from spark_jobs.audit_rules.requests import EVERY_FEATURE, MOVES, Feature, requests
from spark_jobs.audit_run.audit_folder import done_parts
from spark_jobs.audit_run.positions import Positions, read_positions
from spark_jobs.audit_run.read_plan import CLOCK_SKEW_MS
from spark_jobs.backfill.arguments import BackfillArguments
from spark_jobs.backfill.publish import now_ms
from spark_jobs.kafka.admin import FOREVER_MS, Cluster, Span
from spark_jobs.platform.tables import Keep, as_table, read_records


def with_later_outcomes(
    judged: DataFrame, cluster: Cluster, arguments: BackfillArguments, marks: Sequence[Span]
) -> DataFrame:
    """Return `judged` with the outcome of timers that a bridge or an earlier run has settled since the audit."""
    # Senders choose topic names: keep only topics of the cluster, so that the driver's memory is bounded.
    known = F.when(F.col("target").isin(*cluster.partitions), F.col("target"))
    bounds = judged.agg(F.min("requested_ms"), F.collect_set(known)).collect()[0]
    since = max(0, (bounds[0] if bounds[0] is not None else FOREVER_MS) - CLOCK_SKEW_MS)
    targets = sorted(bounds[1])
    real = read_records(arguments.access, cluster.stable_spans(targets, from_ms=since))
    refused = _refused(cluster, arguments, since)
    came = evidence.deliveries(real).select("origin").unionByName(evidence.rejections(refused).select("origin"))
    seen = came.join(judged.select("origin"), "origin", "left_semi").distinct()  # most deliveries are of other timers
    sent = marked(read_records(arguments.access, marks), judged, arguments.marks)
    found = judged.join(seen.withColumn("has_come", F.lit(True)), "origin", "left")
    found = found.join(sent.withColumn("is_marked", F.lit(True)), "origin", "left")
    # After the spans are fixed: Spark fails if retention deletes any of them from now on.
    part = next(reversed(done_parts(arguments.audit)), None)
    broken = unreliable_topics(cluster, read_positions(arguments.audit, part), [*targets, arguments.rejected_topic])
    is_refusal_known = arguments.rejected_topic not in broken
    is_whole = {topic: topic not in broken and is_refusal_known for topic in targets}
    return with_outcomes(found, is_whole, arguments.although_unknown, now_ms())


def marked(records: DataFrame, judged: DataFrame, marks: MarkTopics) -> DataFrame:
    """Return `origin` of the timers in `judged` (origin, requested_ms) that an earlier run has marked.

    A mark from before its request is about an earlier topic of that name.
    """
    key, prefix = F.col("key").cast("string"), marks.key("").decode()
    is_ours = (F.col("topic") == marks.topic) & key.startswith(prefix)
    named = F.when(is_ours, F.substring(key, len(prefix) + 1, 2**31 - 1)).when(F.col("topic") == marks.former, key)
    at_ms = F.from_json(F.col("value").cast("string"), "at_ms BIGINT")["at_ms"]
    found = records.select(named.alias("origin"), at_ms.alias("at_ms")).join(judged, "origin")
    is_older = F.col("at_ms") < F.col("requested_ms") - CLOCK_SKEW_MS
    return found.where(~F.coalesce(is_older, F.lit(False))).select("origin").distinct()


def _refused(cluster: Cluster, arguments: BackfillArguments, since_ms: int) -> DataFrame:
    spans = cluster.stable_spans([arguments.rejected_topic], from_ms=since_ms)
    return read_records(arguments.access, spans)


def unreliable_topics(cluster: Cluster, reached: Positions, topics: Sequence[str]) -> set[str]:
    """Return the topics that were created again since the audit read them (`reached`), have lost records that it has
    not read, or are compacted; or may be so, as we may not read their ids or settings."""
    ids, ends = cluster.topic_ids(topics), {place: at.end for place, at in reached.items()}
    lost = {log.topic for log in cluster.spans(topics) if log.start > ends.get(log[:2], 0)}
    known = {(topic, at.topic_id) for (topic, _), at in reached.items() if at.topic_id is not None}
    lost |= {*cluster.compacted(topics, if_unknown=True)}
    return {topic for topic in topics if topic in lost or (topic, ids.get(topic)) not in known}


def with_outcomes(
    found: DataFrame, is_whole: Mapping[str, bool], although_unknown: Sequence[str], now_ms: int
) -> DataFrame:
    """Return `found` with the outcome of timers that are not to be sent.

    found: has `is_marked`, `has_come`, `waits`, `ended_by`, and `is_unread`: the audit could not read their outcome.
    is_whole: True if a target still has all that it got since the audit, and the rejected topic has, too.
    """
    has_all = c.lookup(is_whole, F.col("target"))
    is_known = has_all & ~F.col("is_unread") | F.col("target").isin(*although_unknown)
    outcome = (
        F.when(F.col("origin").contains("#"), "occurrence")  # journal and progress speak of the timer as a whole
        .when(F.col("is_marked"), "backfilled-before")
        .when(F.col("has_come"), "came")
        .when(F.col("waits").isNotNull(), F.col("waits"))
        .when(F.col("ended_by").isNotNull(), "superseded")
        .when(F.col("expire_ms") <= now_ms, "expired")
        .when(has_all.isNull(), "no-topic")
        .when(~is_known, "cannot-tell")
    )
    told = found.withColumn("outcome", outcome)
    remedy = F.concat(F.lit("ask the consumers, then give --although-unknown "), "target")
    detail = F.when(F.col("outcome") == "superseded", F.col("ended_by"))
    detail = detail.when(F.col("outcome") == "cannot-tell", remedy)
    return told.withColumn("detail", detail).drop("is_marked", "has_come", "waits", "ended_by", "is_unread")


def with_superseding(came: DataFrame, cluster: Cluster, arguments: BackfillArguments, keep: Keep) -> DataFrame:
    """Return `came` with the outcome `superseded` for timers that a later request has ended, up to now.

    If a bridge has lost a timer, nothing is pending under its id: neither journal nor progress shows its end. The timer
    topic does, as in the audit.
    """
    is_open = F.col("outcome").isNull()
    bounds = came.where(is_open).groupBy("partition").agg(F.min("offset"), F.min("requested_ms")).collect()
    if not bounds:
        return came
    first = {row.partition: row[1] for row in bounds}
    spans = [
        span.within(first[span.partition], span.end)
        for span in cluster.stable_spans([arguments.timer_topic])
        if span.partition in first
    ]
    timers = timer_records(spans, arguments)
    own = {arguments.timer_topic, arguments.rejected_topic}
    refused = _refused(cluster, arguments, max(0, min(row[2] for row in bounds) - CLOCK_SKEW_MS))
    # Kept first: Spark would repeat the whole parsing wherever one of its columns is used.
    parsed = keep(requests(timers, own_topics=own, profiles=arguments.profiles))
    named = keep(with_ids(parsed))
    codes = keep(evidence.rejections(refused, arguments.profiles).select("origin", "error", "rejected_ms"))
    found = superseded(named, codes, came.where(is_open))
    joined = came.join(found, "origin", "left")
    outcome = F.when(F.col("ended_by").isNotNull(), "superseded").otherwise(F.col("outcome"))
    return joined.withColumns({"outcome": outcome, "detail": F.coalesce("ended_by", "detail")}).drop("ended_by")


def with_archive_gaps(looked: DataFrame, cluster: Cluster, arguments: BackfillArguments) -> DataFrame:
    """Return `looked` with `cannot-tell` for timers before a gap between archive and log: it may hide a cancel."""
    if arguments.archive is None:
        return looked
    ends = archive_ends(arguments.archive, arguments.timer_topic)
    spans = cluster.spans([arguments.timer_topic])
    holes = {span.partition: span.start for span in spans if ends.get(span.partition, 0) < span.start}
    if not holes:
        return looked
    is_before = F.col("outcome").isNull() & (F.col("offset") < c.lookup(holes, F.col("partition")))
    told = {"outcome": "cannot-tell", "detail": "a cancel may lie between the archive's end and the log's start"}
    return looked.withColumns({name: F.when(is_before, text).otherwise(F.col(name)) for name, text in told.items()})


def timer_records(spans: Sequence[Span], arguments: BackfillArguments) -> DataFrame:
    """Return the records of these spans of the timer topic, and those of the archive."""
    records = read_records(arguments.access, spans)
    if arguments.archive is None:
        return records
    return records.unionByName(archived(arguments.archive, arguments.timer_topic).select(records.columns))


_NEEDED = (
    *("topic", "partition", "offset", "requested_ms", "kind", "id"),
    *("malformed", "expected_ms", "target", "whole_id", "of_origin"),
)


def with_ids(parsed: DataFrame) -> DataFrame:
    """Return the columns of parsed requests with an id or `of_origin`, without copies."""
    asked = F.col("asked")
    has_name = asked["id"].isNotNull() | asked["of_origin"].isNotNull()
    named = parsed.where(has_name & (asked["kind"] != "copy"))
    return named.select("origin", *(asked[name].alias(name) for name in _NEEDED))


def superseded(named: DataFrame, rejections: DataFrame, rows: DataFrame) -> DataFrame:
    """Return `origin` and `ended_by` of the `rows` (origin, requested_ms) that a later accepted request has ended.

    Or paused: the last pause, move or resume about it is a pause, even if the bridge found nothing to pause.
    named: `with_ids` of all requests from `rows` on. rejections: origin, error and rejected_ms of rejected records.
    """
    own = named.join(rows.select("origin", "requested_ms"), ["origin", "requested_ms"])
    ids, is_move = own.select("partition", "id"), F.col("kind").isin(*MOVES)
    refused = rejections.groupBy("origin").agg(F.min("error").alias("error"), F.min("rejected_ms").alias("rejected_ms"))
    paused = _paused(named.where(is_move).join(refused, "origin", "left_anti"), own)
    named = named.where(~is_move)
    by_whole_id = ids.select("partition", F.col("id").alias("whole_id")).distinct()
    same_id = named.where(F.col("id").isNotNull()).join(ids.distinct(), ["partition", "id"], "left_semi")
    whole = named.where(F.col("whole_id").isNotNull())
    same_whole_id = whole.join(by_whole_id, ["partition", "whole_id"], "left_semi")
    of_them = same_id.unionByName(same_whole_id).dropDuplicates(["origin"])
    told = of_them.select("origin", F.struct(*_NEEDED).alias("asked")).join(refused, "origin", "left")
    linked = link_ids(as_table(told, EVIDENCE), EVERY_FEATURE - {Feature.MOVES, Feature.PAUSES})
    found = linked.where(F.col("next").isNotNull()).select("origin", F.col("next.origin").alias("ended_by"))
    by_origin = named.where(F.col("of_origin").isNotNull() & ~F.col("malformed")).join(refused, "origin", "left_anti")
    cancelled = by_origin.groupBy(F.col("of_origin").alias("origin")).agg(F.min("origin").alias("ended_by"))
    ended = found.unionByName(cancelled).unionByName(paused).dropDuplicates(["origin"])
    return ended.join(rows.select("origin"), "origin", "left_semi")


def _paused(moves: DataFrame, own: DataFrame) -> DataFrame:
    """Return `origin` of the timers that are paused, and the pause as `ended_by`. moves: accepted ones. own: timers."""
    told = moves.select(F.struct("offset", "kind", "origin").alias("move"), "partition", "id", "of_origin")
    by_id = told.drop("of_origin").join(own.select("partition", "id", "origin", "offset"), ["partition", "id"])
    by_origin = told.where(F.col("of_origin").isNotNull()).select(F.col("of_origin").alias("origin"), "move")
    named = by_id.where(F.col("move.offset") > F.col("offset")).select("origin", "move").unionByName(by_origin)
    last = named.groupBy("origin").agg(F.max("move").alias("move")).where(F.col("move.kind") == "pause")
    return last.select("origin", F.col("move.origin").alias("ended_by"))
