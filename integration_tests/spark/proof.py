"""Many histories, judged by the audit in one run of Spark: which faults it finds in each."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from unittest import mock

from cronsim import CronSim
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bridge.tests.simulation.option_generator import OWN_TOPICS
from bridge.tests.simulation.request_generator import CRON_UNIT_MS
from integration_tests.support.simulated_topics import LEVELS_MS, Simulated
from kafka_timer import headers as names
from spark_jobs.audit_rules import evidence, series
from spark_jobs.audit_rules.evidence import Observations
from spark_jobs.audit_rules.judgement import OUT_OF_ORDER, build_outcomes, is_receipt_only, out_of_order
from spark_jobs.audit_rules.requests import requests
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.tests.records import History, Record

_PLACES = 8
"""Partitions of the timer topic that a history gets: the second timer topic begins at the fifth."""
_TOPICS = {b"timer.requests": 0, b"timer.more": 4}
_ORIGIN = re.compile(rb"(timer\.requests|timer\.more)/(\d+)/")
_CLOCKS_MS, _NEVER_MS = 60_000, 10**9
"""Simulated clocks jump, so times prove little: cancels are judged by receipts, and by the order of requests."""


def faults(spark: SparkSession, histories: Mapping[str, Simulated]) -> dict[str, Counter[str]]:
    """Return the faults of each history, counted by class; as "" those whose origin names no history."""
    places = dict(enumerate(histories))
    together = History(profiles=("native",))
    for place, name in places.items():
        together.add(histories[name].history, partial(_moved, place=place))
    with mock.patch.object(series, "match_ms", small_match_ms), mock.patch.object(names, "LEAST_EVERY_MS", 1):
        return _faults(spark, histories, places, together)


def small_match_ms(expression: str, _zone: str, after_ms: int) -> int:
    """Return the next match of the simulation's cron, which has smaller units. Raises CronSimError."""
    CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    step_ms = int(expression.split()[0].removeprefix("*/")) * CRON_UNIT_MS
    return (after_ms // step_ms + 1) * step_ms


def _faults(
    spark: SparkSession, histories: Mapping[str, Simulated], places: Mapping[int, str], together: History
) -> dict[str, Counter[str]]:
    asked, came, back, told, _ = (spark.createDataFrame(topic, RECORDS_DDL) for topic in together.topics)
    seen = Observations(
        parsed=requests(asked, levels_ms=LEVELS_MS, own_topics=OWN_TOPICS, profiles=("native",)).localCheckpoint(),
        rejections=evidence.rejections(back, ("native",)),
        ends=[evidence.deliveries(came, counts=[*together.counts]), evidence.receipts(told)],
        has=together.features,
        skew_ms=_CLOCKS_MS,
    )
    outcomes = build_outcomes(seen).where(~is_receipt_only()).persist(StorageLevel.MEMORY_AND_DISK)
    as_of_ms = max(record.timestamp_ms for topic in together.topics for record in topic) + _NEVER_MS
    limits = {"as_of_ms": as_of_ms, "settle_ms": 0, "skew_ms": _CLOCKS_MS, "max_delay_ms": -(10**15)}
    found: dict[str, Counter[str]] = {name: Counter() for name in (*histories, "")}
    for tolerance_ms in (_NEVER_MS, 0):
        table = classify(outcomes, AuditLimits(tolerance_ms=tolerance_ms, **limits))
        faulty = table.where(F.size("faults") > 0).select("origin", "faults")
        if tolerance_ms:
            disordered = out_of_order(table, tolerance_ms=_NEVER_MS, skew_ms=0)
            faulty = faulty.unionByName(disordered.select("origin", F.array(F.lit(OUT_OF_ORDER)).alias("faults")))
        for row in faulty.collect():
            name = places.get(int(row.origin.split("/")[1]) // _PLACES, "") if row.origin[0] != "?" else ""
            # Expiry, unlike cancels, is judged by one clock.
            found[name].update(row.faults if tolerance_ms else {"expired-but-delivered"}.intersection(row.faults))
    return found


def _moved(record: Record, place: int) -> Record:
    """Return the record, and the origins that it names, in the partitions of its history."""

    def number(topic: bytes, partition: int) -> int:
        return place * _PLACES + min(_TOPICS[topic] + partition, _PLACES - 1)

    def moved(text: bytes | None) -> bytes | None:
        return text and _ORIGIN.sub(lambda at: b"timer.requests/%d/" % number(at[1], int(at[2])), text)

    named = (names.ORIGIN, names.OF)
    headers = tuple((name, moved(value) if name in named else value) for name, value in record.headers)
    if record.topic.encode() in _TOPICS:
        at = number(record.topic.encode(), record.partition)
        return record._replace(topic="timer.requests", partition=at, headers=headers)
    value = moved(record.value) if record.topic == "timer.receipts" else record.value
    return record._replace(headers=headers, value=value)
