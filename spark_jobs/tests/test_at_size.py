"""One stream of 100,000 requests with every class in it, most of it for one hot topic among a thousand.

A template of some twenty requests is repeated 5,000 times by Spark itself: offsets move by 100, ids get a number.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from schemas.tables import AuditClass
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules.evidence import Observations, pauses
from spark_jobs.audit_rules.judgement import build_outcomes, is_receipt_only
from spark_jobs.audit_rules.requests import requests
from spark_jobs.audit_rules.tests.test_series import again, came, numbered
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.session import fit_plans
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.report import summary
from spark_jobs.tests.records import (
    AS_OF_MS,
    OWN,
    History,
    cancel,
    copy,
    delivery,
    move,
    pause,
    pausing,
    receipt,
    rejection,
    request,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOT_BY_RECORDS = {AuditClass.WAIVED, AuditClass.UNJUDGED, AuditClass.UNSTAMPED}
"""Classes that a table of waivers or a gap makes (spark_jobs/audit_run/tests/test_days.py), or without an offset."""
TIMES = 5_000
STEP = 100
LIMITS = AuditLimits(as_of_ms=AS_OF_MS, settle_ms=0, tolerance_ms=1_000, late_ms=1_000)


def template() -> tuple[History, dict[int, str]]:
    """Requests, copies and what became of them; offset -> class."""
    asked = {n: request(n) for n in range(10)}
    until = (("timer-expire-ms", b"6000"),)
    ided = {n: request(n, id=b"%d" % n, due_ms=50_000) for n in (20, 21, 22, 23, 24)}
    replaces = request(30, id=b"21", due_ms=60_000, at_ms=2_000)
    ends = [cancel(b"20", 40), cancel(b"22", 41), cancel(b"none", 42), cancel(b"24", 45)]
    late_cancel = cancel(b"21", 43, at_ms=80_000)
    malformed, expired, over = request(50, due_ms=None), request(51, also=until), request(52, also=until)
    future = request(53, due_ms=AS_OF_MS + 1)
    rolled = [copy(asked[0], 60), copy(asked[0], 61, rolls=2)]
    forged = copy(asked[1], 62, value=b"forged")
    ghost, moves = request(90), move(b"23", 44, 9_000)
    history = History(
        [*asked.values(), *ided.values(), replaces, *ends, late_cancel, malformed, expired, over, future],
        [
            delivery(asked[0], rolls=2),
            delivery(asked[1]),
            delivery(asked[1], offset=91),
            delivery(asked[2], at_ms=4_999),
            delivery(asked[3], at_ms=6_001),
            delivery(asked[4], value=b"other"),
            delivery(asked[5]),
            delivery(asked[6], foreign=()),
            delivery(ided[22]),
            delivery(replaces),
            delivery(ided[23], due_ms=9_000, rolls=1),
            delivery(malformed, due_ms=1_000),
            delivery(over, at_ms=9_000),
            delivery(ghost),
        ],
        [
            *(rejection(asked[n], code) for n, code in ((5, "too-large"), (7, "too-large"), (9, "bad-header"))),
            rejection(expired, "expired", at_ms=6_100),
        ],
        [
            *(receipt("cancelled", ends[0], ided[n]) for n in (20, 24)),
            *(receipt("too-late", late_cancel), receipt("moved", moves, ided[23])),
        ],
    )
    switch = request(54, due_ms=None, also=((names.ACTION, b"pause"),))
    history.requests += [*rolled, forged, switch, moves, copy(ided[23], 63, due_ms=b"9000")]
    named = ["delivered", "duplicate", "early", "late", "altered", "rejected-but-delivered", "altered", "rejected"]
    classes = dict(enumerate([*named, "missing", "wrongly-rejected"]))
    classes |= {20: "cancelled", 21: "replaced", 22: "cancelled-but-delivered", 23: "moved", 24: "false-receipt"}
    classes |= {30: "delivered", 40: "cancel-done", 41: "cancel-too-late", 42: "cancel-not-found"}
    classes |= {43: "cancel-too-late", 44: "move", 45: "cancel-done"}
    classes |= {50: "malformed-but-delivered", 51: "expired", 52: "expired-but-delivered", 53: "pending"}
    history.requests.append(request(55, target="paused"))
    history.control.append(pause("paused", 0, 2_000))
    traced = request(56, foreign=((names.TRACE_ID, b"a"),))
    history.requests.append(traced)
    history.deliveries.append(delivery(traced, foreign=((names.TRACE_ID, b"b"),)))
    paused = request(25, id=b"25")
    history.requests += [paused, pausing("pause", b"25", 46)]
    history.deliveries.append(delivery(paused))
    stops, beyond = again(57, count=None), again(58, count=1)
    history.requests += [stops, beyond, numbered(beyond, 64, 2)]
    history.deliveries += [came(stops, 1, offset=57), came(beyond, 1, offset=58), came(beyond, 2, offset=64)]
    classes |= {25: "paused-but-delivered", 46: "move"}
    classes |= {54: "switch", 55: "held", 56: "wrong-origin", 57: "broken-off", 58: "delivered", 64: "off-rule"}
    return history, classes | {62: "missing", 90: "unexplained"}


def repeated(spark: SparkSession, records: list[object]) -> DataFrame:
    """Each record TIMES times, in its own hundred of offsets; nine in ten for the hot topic."""
    rows = spark.createDataFrame(records, RECORDS_DDL).crossJoin(spark.range(TIMES).withColumnRenamed("id", "k"))
    shift = F.col("k") * STEP
    cold = F.concat(F.lit("orders-"), F.col("k") % 1_000)
    target = F.when(F.col("k") % 10 == 0, cold).otherwise(F.lit("orders"))

    def moved(text: Column) -> Column:
        """timer.requests/0/7 -> timer.requests/0/507"""
        return F.concat(F.lit("timer.requests/0/"), F.substring_index(text, "/", -1).cast("bigint") + shift)

    def header(h: Column) -> Column:
        text = h["value"].cast("string")
        value = (
            F.when(h["key"] == "timer-origin", moved(text).cast("binary"))
            .when(h["key"] == "timer-id", F.concat(text, F.lit("-"), F.col("k")).cast("binary"))
            .when((h["key"] == "timer-topic") & (text == "orders"), target.cast("binary"))
            .otherwise(h["value"])
        )
        return F.struct(h["key"].alias("key"), value.alias("value"))

    said = F.from_json(F.col("value").cast("string"), "kind STRING, request STRING, origin STRING")
    about = F.when(said["origin"].isNotNull(), moved(said["origin"]))
    told = F.to_json(
        F.struct(said["kind"].alias("kind"), moved(said["request"]).alias("request"), about.alias("origin"))
    )
    is_receipt = F.col("topic") == "timer.receipts"
    return rows.withColumns(
        {
            "headers": F.transform("headers", header),
            "value": F.when(is_receipt, told.cast("binary")).otherwise(F.col("value")),
            "topic": F.when(F.col("topic") == "orders", target).otherwise(F.col("topic")),
            "offset": F.col("offset") + shift,
        }
    ).drop("k")


@pytest.fixture(scope="module", autouse=True)
def compiled(spark: SparkSession) -> Iterator[None]:
    """Compile queries, and plan them again while they run, as jobs do."""
    fit_plans(TIMES * STEP)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    fit_plans(0)


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession) -> DataFrame:
    history, _ = template()
    asked, came, back, told = (
        repeated(spark, list(part))
        for part in (history.requests, history.deliveries, history.rejections, history.receipts)
    )
    seen = Observations(
        parsed=requests(asked, own_topics=OWN).persist(),
        rejections=evidence.rejections(back),
        ends=[evidence.deliveries(came), evidence.receipts(told)],
        pauses=pauses(spark.createDataFrame(history.control, RECORDS_DDL), "timer.requests"),
        deleted_before=[Span("timer.requests", 0, 0, TIMES * STEP)],
        has=history.features,
    )
    return build_outcomes(seen).where(~is_receipt_only())


def test_planted_faults_of_every_class_are_all_found(spark: SparkSession, outcomes: DataFrame) -> None:
    _, classes = template()
    assert set(classes.values()) == set(AuditClass) - NOT_BY_RECORDS
    found = classify(outcomes, LIMITS).groupBy("class").count().collect()
    counts: Counter[str] = Counter()
    for row in found:
        counts[row["class"]] += row["count"]
    assert counts == {name: count * TIMES for name, count in Counter(classes.values()).items()}
    assert counts.total() >= 100_000


def test_a_hot_topic_is_not_one_task_s_work(spark: SparkSession, outcomes: DataFrame) -> None:
    """Rows are spread by origin and by id, never by topic; what is told by topic is folded before it is moved."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", 8)
    spark.conf.set("spark.sql.debug.maxToStringFields", 1000)  # a plan tells 25 of the sums, else
    try:
        table = classify(outcomes, LIMITS)
        with job_group(spark) as group:
            table.write.format("noop").mode("overwrite").save()
        read = [rows for rows in rows_moved(spark, group) if sum(rows) >= 10_000]
        counts = summary.latenesses(table)
        plans = [str(rows._jdf.queryExecution().executedPlan()) for rows in (counts, summary.topics(table, counts))]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        spark.conf.set("spark.sql.adaptive.enabled", "true")
    assert sum(map(sum, read)) >= 2 * 100_000, "each record, by its origin and by its id"
    for rows in read:
        assert len(rows) >= 8
        assert max(rows) <= sum(rows) / 4, "an eighth each, where one part is read alone; half is of the hot topic"
    for plan in plans:
        assert "partial_count" in plan


@contextmanager
def job_group(spark: SparkSession) -> Iterator[str]:
    """Of the jobs in it."""
    name = uuid4().hex
    spark.sparkContext.setJobGroup(name, "a test")
    try:
        yield name
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def rows_moved(spark: SparkSession, group: str) -> list[list[int]]:
    """For each stage that reads shuffles, by Spark's own metrics: how many rows came to each task that does."""
    tracker, store = spark.sparkContext.statusTracker(), spark._jsc.sc().statusStore()
    found = []
    for job in tracker.getJobIdsForGroup(group):
        told = tracker.getJobInfo(job)
        for stage in told.stageIds if told is not None else ():
            if store.lastStageAttempt(stage).status().toString() == "COMPLETE":
                tasks = store.taskList(stage, 0, 1_000)
                metrics = [tasks.apply(at).taskMetrics().get() for at in range(tasks.size())]
                read = [each.shuffleReadMetrics().recordsRead() for each in metrics]
                found.append([rows for rows in read if rows])
    return found
