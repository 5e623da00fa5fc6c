"""Histories of the simulation, judged by the audit in one run of Spark: which faults it finds in each.

    played(17, "K left out")  ->  requests, deliveries, rejected records and receipts of seed 17 with that bug

The oracle stops at the first violation. Here the history goes on until no record is written, as an audit
judges whole histories. It includes records that retention deletes. The delay levels never change, as an audit knows one
setting of them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from random import Random
from unittest import mock

from cronsim import CronSim
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import bridge.tests.simulation.option_generator as options
from bridge.testing.fake_kafka import Entry, Partition
from bridge.tests.simulation.oracle import RECEIPTS, REJECTED, Violation
from bridge.tests.simulation.planted_bugs import applied, engines_for
from bridge.tests.simulation.request_generator import (
    BILLS,
    CRON_UNIT_MS,
    MORE_TIMERS,
    NOWHERE,
    ORDERS,
    ORDERS_PARTITIONS,
    SECRET,
    SMALL,
    TIMERS,
)
from bridge.tests.simulation.run import small_intervals
from bridge.tests.simulation.world import World
from kafka_timer import headers as names
from kafka_timer.control import Paused
from schemas.rules import Rules
from spark_jobs.audit_rules import evidence, series
from spark_jobs.audit_rules.evidence import Observations, PartitionCount
from spark_jobs.audit_rules.judgement import OUT_OF_ORDER, build_outcomes, is_receipt_only, out_of_order
from spark_jobs.audit_rules.requests import requests
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.tests.records import History, Record

_BEGIN_MS = 500_000
"""Before any delivery of the simulation."""
TARGETS = (ORDERS, BILLS, NOWHERE, SECRET, SMALL)
LEVELS_MS = (10, 100, 400)
_QUIET_TURNS, _MOST_TURNS = 60, 1_500
_PLACES = 8
"""Partitions of the timer topic that a history gets: the second timer topic begins at the fifth."""
_TOPICS = {b"timer.requests": 0, b"timer.more": 4}
_ORIGIN = re.compile(rb"(timer\.requests|timer\.more)/(\d+)/")
_CLOCKS_MS, _NEVER_MS = 60_000, 10**9
"""Simulated clocks jump, so times prove little: cancels are judged by receipts, and by the order of requests."""


def played(seed: int, mutation: str = "") -> History:
    """Play a seed, with a planted bug if one is named, to its end."""
    gone: dict[Partition, list[Entry]] = {}
    planted = applied(mutation) if mutation else nullcontext()
    with small_intervals(), planted, _nothing_lost(gone), _same_levels():
        world = World(seed, engines=engines_for(mutation))
        try:
            world.run()
        except Violation:
            _go_on(world)
        except Exception:
            if not mutation:  # else it is the bug's, and the records so far count
                raise
    return _exported(world, gone)


def _go_on(world: World) -> None:
    """End all faults and run until no record is written for a while. The oracle is off: its state is wrong by now."""
    world.oracle.only_outputs = True
    with mock.patch.object(world.oracle, "observe", return_value=0):
        try:
            for life in world.instances:
                life.instance.kill()
            world.mend()
            for timer_partition in world.partitions:
                for target in TARGETS:
                    world.control(Paused(timer_partition.topic, target), on=False)
            quiet, seen = 0, -1
            for _ in range(_MOST_TURNS):
                for life in world.instances:
                    life.turn()
                written = len(world.kafka.commits)
                quiet, seen = (quiet + 1 if written == seen and not world.planned else 0), written
                if quiet > _QUIET_TURNS:
                    return
        except Exception:  # noqa: BLE001  (of the bug)
            return


@contextmanager
def _nothing_lost(gone: dict[Partition, list[Entry]]) -> Iterator[None]:
    """Keep in `gone` the records that retention deletes: a daily audit would have read them in time."""
    delete_before = Partition.delete_before

    def delete(self: Partition, offset: int) -> None:
        gone.setdefault(self, []).extend(self.everything()[: max(0, offset - self.first)])
        delete_before(self, offset)

    with mock.patch.object(Partition, "delete_before", delete):
        yield


def _same_levels() -> AbstractContextManager[object]:
    drawn = options.draw_rules

    def draw(rng: Random, reach_ms: int) -> Rules:
        return drawn(rng, reach_ms).model_copy(update={"levels_ms": LEVELS_MS})

    return mock.patch.object(options, "draw_rules", draw)


def _exported(world: World, gone: dict[Partition, list[Entry]]) -> History:
    records: dict[str, list[Record]] = defaultdict(list)
    for name, topic in world.kafka.topics.items():
        for log in topic.partitions:
            every = [*gone.get(log, ()), *log.everything()]
            records[name] += [_record(name, log.number, entry) for entry in every if entry.is_committed]
    delivered = [record for target in TARGETS for record in records[target]]
    asked = records[TIMERS] + records[MORE_TIMERS]
    counts = {PartitionCount(ORDERS, ORDERS_PARTITIONS, _BEGIN_MS)}
    return History(asked, delivered, records[REJECTED], records[RECEIPTS], profiles=("native",), counts=counts)


def _record(topic: str, partition: int, entry: Entry) -> Record:
    """Return the record. On target topics its time is that of the release, by the bridge's clock."""
    at_ms = entry.timestamp_ms if topic in TARGETS else entry.append_ms
    key, value, headers = (None, None, ()) if entry.is_undecodable else (entry.key, entry.value, tuple(entry.headers))
    return Record(topic, partition, entry.offset, at_ms, "LogAppendTime", key, value, headers)


def faults(spark: SparkSession, histories: Mapping[str, History]) -> dict[str, Counter[str]]:
    """Return the faults of each history, counted by class; as "" those whose origin names no history."""
    places = dict(enumerate(histories))
    together = History(profiles=("native",))
    for place, name in places.items():
        together.add(histories[name], partial(_moved, place=place))
    with mock.patch.object(series, "match_ms", small_match_ms), mock.patch.object(names, "LEAST_EVERY_MS", 1):
        return _faults(spark, histories, places, together)


def small_match_ms(expression: str, _zone: str, after_ms: int) -> int:
    """Return the next match of the simulation's cron, which has smaller units. Raises CronSimError."""
    CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    step_ms = int(expression.split()[0].removeprefix("*/")) * CRON_UNIT_MS
    return (after_ms // step_ms + 1) * step_ms


def _faults(
    spark: SparkSession, histories: Mapping[str, History], places: Mapping[int, str], together: History
) -> dict[str, Counter[str]]:
    asked, came, back, told, _ = (spark.createDataFrame(topic, RECORDS_DDL) for topic in together.topics)
    seen = Observations(
        parsed=requests(
            asked, levels_ms=LEVELS_MS, own_topics=options.OWN_TOPICS, profiles=("native",)
        ).localCheckpoint(),
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
