"""One stream of 36,000 requests with every class in it, most of it for one hot topic among a hundred.

A template of some forty requests is repeated: offsets move by 100, ids get a number.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_timer import headers as names
from schemas.tables import AuditClass
from spark_jobs.audit_rules.judgement import build_outcomes, is_receipt_only
from spark_jobs.audit_rules.tests.test_series import again, came, numbered
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.session import fit_plans
from spark_jobs.report import summary
from spark_jobs.tests.records import (
    AS_OF_MS,
    History,
    Record,
    asking,
    cancel,
    copy,
    delivery,
    move,
    pause,
    receipt,
    rejection,
    request,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOT_BY_RECORDS = {AuditClass.WAIVED, AuditClass.UNJUDGED, AuditClass.UNSTAMPED}
"""Classes that a table of waivers or a gap makes (spark_jobs/audit_run/tests/test_days.py), or without an offset."""
TIMES = 1_000
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
    history.requests += [paused, asking("pause", b"25", 46)]
    history.deliveries.append(delivery(paused))
    stops, beyond = again(57, count=None), again(58, count=1)
    history.requests += [stops, beyond, numbered(beyond, 64, 2)]
    history.deliveries += [came(stops, 1, offset=57), came(beyond, 1, offset=58), came(beyond, 2, offset=64)]
    classes |= {25: "paused-but-delivered", 46: "move"}
    classes |= {54: "switch", 55: "held", 56: "wrong-origin", 57: "broken-off", 58: "delivered", 64: "off-rule"}
    return history, classes | {62: "missing", 90: "unexplained"}


def shifted(record: Record, k: int) -> Record:
    """Return the record of repetition `k`: in its own hundred of offsets; nine in ten are for the hot topic."""

    def moved(text: bytes) -> bytes:
        return re.sub(rb"timer\.requests/0/(\d+)", lambda at: b"timer.requests/0/%d" % (int(at[1]) + k * STEP), text)

    target = f"orders-{k}" if k % 10 == 0 else "orders"
    own = {names.TOPIC: target.encode() if record.header(names.TOPIC) == b"orders" else record.header(names.TOPIC)}
    own[names.ID] = b"%b-%d" % (record.header(names.ID) or b"", k)
    headers = [(name, own.get(name, value and moved(value))) for name, value in record.headers]
    value = moved(record.value) if record.topic == "timer.receipts" and record.value else record.value
    topic = target if record.topic == "orders" else record.topic
    return record._replace(topic=topic, offset=record.offset + k * STEP, headers=headers, value=value)


@pytest.fixture(scope="module", autouse=True)
def compiled(spark: SparkSession) -> Iterator[None]:
    """Compile queries, and plan them again while they run, as jobs do."""
    fit_plans(TIMES * STEP)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    fit_plans(0)


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession) -> DataFrame:
    history, together = template()[0], History()
    for k in range(TIMES):
        together.add(replace(history, control=[]), partial(shifted, k=k))
    together.control = history.control
    return build_outcomes(together.seen(spark, [Span("timer.requests", 0, 0, TIMES * STEP)])).where(~is_receipt_only())


def test_planted_faults_of_every_class_are_all_found(spark: SparkSession, outcomes: DataFrame) -> None:
    _, classes = template()
    assert set(classes.values()) == set(AuditClass) - NOT_BY_RECORDS
    found = classify(outcomes, LIMITS).groupBy("class").count().collect()
    counts: Counter[str] = Counter()
    for row in found:
        counts[row["class"]] += row["count"]
    assert counts == {name: count * TIMES for name, count in Counter(classes.values()).items()}
    assert counts.total() >= 30_000


def test_a_hot_topic_is_not_one_task_s_work(spark: SparkSession, outcomes: DataFrame) -> None:
    """Rows are spread by origin and by id, never by topic; what is told by topic is folded before it is moved."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", 8)
    spark.conf.set("spark.sql.debug.maxToStringFields", 1000)  # a plan tells 25 of the sums, else
    try:
        table = classify(outcomes, LIMITS)
        with job_group(spark) as group:
            table.write.format("noop").mode("overwrite").save()
        read = [rows for rows in rows_moved(spark, group) if sum(rows) >= 3_000]
        counts = summary.latenesses(table)
        plans = [str(rows._jdf.queryExecution().executedPlan()) for rows in (counts, summary.topics(table, counts))]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        spark.conf.set("spark.sql.adaptive.enabled", "true")
    assert sum(map(sum, read)) >= 2 * 30_000, "each record, by its origin and by its id"
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
