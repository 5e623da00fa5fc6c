"""Which missing timers a later request has ended meanwhile, told from the timer topic."""

import pytest
from pyspark.sql import SparkSession

from kafka_timer import headers as names
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules.requests import requests
from spark_jobs.backfill.outcomes import superseded, with_ids
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.tests.records import Record, asking, cancel, copy, move, rejection, request

pytestmark = pytest.mark.spark


BY_TEXT = (b"bills+2", b"orders+3", b"orders+9")
"""RocketMQ's cancels: for another topic, for the one with id 3, and for the one whose id is the whole text."""


def found(spark: SparkSession, asked: list[Record], rejected: list[Record], missing: list[Record]) -> dict[int, str]:
    """Offset of a missing one -> what has superseded it."""
    parsed = requests(spark.createDataFrame(asked, RECORDS_DDL)).persist()
    rejections = evidence.rejections(spark.createDataFrame(rejected, RECORDS_DDL)).persist()
    rows = spark.createDataFrame([(r.origin, r.timestamp_ms) for r in missing], "origin STRING, requested_ms BIGINT")
    told = superseded(with_ids(parsed), rejections.select("origin", "error", "rejected_ms"), rows).collect()
    return {int(row.origin.split("/")[2]): row.ended_by for row in told}


def test_the_next_request_with_its_id_in_its_partition_supersedes_a_timer(spark: SparkSession) -> None:
    lost = [request(offset, id=b"%d" % offset) for offset in range(4)]
    nameless = [request(4), request(5)]
    later = [cancel(b"0", 10), request(11, id=b"0"), request(12, id=b"1"), cancel(b"2", 13, partition=1)]
    whole = request(6, id=b"orders+9")
    by_text = (cancel(None, 14 + n)._replace(headers=[("TIMER_DEL_UNIQKEY", t)]) for n, t in enumerate(BY_TEXT))
    told = found(spark, [*lost, *nameless, whole, *later, *by_text], [], [*lost, *nameless, whole])
    assert told == {
        0: "timer.requests/0/10",
        1: "timer.requests/0/12",
        3: "timer.requests/0/15",
        6: "timer.requests/0/16",
    }


def test_a_request_that_ends_nothing_supersedes_nothing(spark: SparkSession) -> None:
    lost = [request(offset, id=b"%d" % offset) for offset in range(6)]
    malformed = request(10, id=b"0", due_ms=None)
    refused, moves, copied = request(11, id=b"1"), move(b"2", 12, 9_000), copy(lost[3], 13)
    twice = cancel(b"4", 14)._replace(headers=[*cancel(b"4", 14).headers, (names.ID, b"4")])
    too_late = request(15, id=b"5")
    rejections = [rejection(refused, "bad-target"), rejection(too_late, "expired", at_ms=9_000)]
    asked = [*lost, malformed, refused, moves, copied, twice, too_late]
    told = found(spark, asked, rejections, lost)
    assert told == {5: too_late.origin}, "taken, and refused when it was due"


def test_a_cancel_by_origin_supersedes_its_timer(spark: SparkSession) -> None:
    lost = [request(0), request(1, id=b"x"), request(2), request(3), request(4)]
    refused, moved = cancel(lost[2].origin, 12), move(lost[3].origin, 13, 9_000)
    elsewhere = cancel(lost[4].origin, 14, partition=1)
    later = [cancel(lost[0].origin, 10), cancel(lost[1].origin, 11), refused, moved, elsewhere]
    told = found(spark, [*lost, *later], [rejection(refused, "denied-action")], lost)
    assert told == {0: "timer.requests/0/10", 1: "timer.requests/0/11"}


def test_a_timer_that_is_paused_is_not_sent(spark: SparkSession) -> None:
    """Also if the bridge had lost it by then, so that its journal has no pause."""
    lost = [request(offset, id=b"%d" % offset) for offset in range(6)] + [request(6), request(7)]
    before, refused = asking("pause", b"4", 3), asking("pause", b"5", 30)
    later = [
        asking("pause", b"0", 10),
        *(asking("pause", b"1", 11), asking("resume", b"1", 12)),
        *(asking("pause", b"2", 13), asking("resume", lost[2].origin, 14), asking("pause", b"2", 15)),
        *(asking("pause", b"3", 16), move(lost[3].origin, 17, 9_000)),
        *(asking("pause", lost[6].origin, 18), asking("pause", lost[7].origin, 19), cancel(lost[7].origin, 20)),
    ]
    told = found(spark, [*lost, before, *later, refused], [rejection(refused, "denied-action")], lost)
    assert {n: told.pop(n) for n in (0, 2, 6)} == {n: f"timer.requests/0/{at}" for n, at in ((0, 10), (2, 15), (6, 18))}
    assert told.keys() == {7}


def test_a_request_of_another_topic_of_that_name_is_ignored(spark: SparkSession) -> None:
    lost = request(0, id=b"x")
    assert found(spark, [lost, cancel(b"x", 1)], [], [lost._replace(timestamp_ms=7)]) == {}
