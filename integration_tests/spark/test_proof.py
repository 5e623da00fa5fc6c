"""Proof of the proof: planted bugs of the bridge are run through the audit. Single faults: spark_jobs/tests.

If the simulated world changes, other seeds show a bug: the assertion names those that no longer do, and `played`
searches for others.
"""

from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from bridge.tests.simulation.planted_bugs import MUTATIONS
from integration_tests.spark.proof import faults, played

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SEEN: Mapping[str, int] = {
    "offset before store": 0,
    "cut inside equal times": 2,
    "late not settled": 1,
    "ahead not taken back": 2,
    "C left behind what leaves": 1,
    "journal before the transaction": 15,
    "journal behind the transaction": 4,
    "unknown outcome taken for an abort": 16,
    "refused not journalled": 9,
    "held not journalled": 4,
    "waits not journalled": 5,
    "passed over while it waits": 5,
    "checkpoints not used": 8,
    "digest not compared": 30,
    "no skew margin": 11,
    "copies judged again": 15,
    "lost shards repeated": 5,
    "expired one delivered": 0,
    "stale fence accepted": 2,
    "K left out": 2,
    "unordered commits": 1,
    "ended not journalled": 2,
    "rolled not journalled": 0,
    "one target that fails holds all": 3,
    "rules of now for old requests": 2,
    "id missing in flights": 5,
    "origin missing in flights": 21,
    "markers not read at a start": 5,
    "a paused timer is delivered at its time": 27,
    "a resume forgets the due time": 15,
    "next occurrence in a later transaction": 2,
    "next occurrence lost by a retry": 2,
    "number not raised": 12,
    "one more than the count": 0,
    "missed ones left out though all are wanted": 0,
    "interval counted from the release": 0,
    "a move shifts what comes after it": 3,
    "request by cron delivered at once": 0,
    "rocksdb: backlogs are lost at an opening": 0,
    "rocksdb: ended ones are in the checkpoint": 4,
}
"""Planted bugs that the audit sees, each with a seed that shows it."""
CLEAN_SEEDS = sorted({*range(8), *SEEN.values()})
"""Seeds in which, without a bug, the audit must find nothing."""
UNSEEN = {
    "below L kept": "only the count of pending timers is wrong",
    "landed not journalled": "only the count of pending timers is wrong",
    "dropped not journalled": "in the seeds that show it, the timer never left",
    "moved one keeps its old time": "which of its times was valid is not proved",
    "pause forgotten by a start": "it is in the journal alone, and a delivery during a pause is no fault",
    "a wait that never ends": "it is in the journal alone; all timers leave",
    "twice the rate": "rates are settings of the bridge",
    "sleeps past the due time": "lateness is no fault",
    "a target that fails is tried at once": "lateness is no fault",
    "nothing read first": "when a cancel was read is the bridge's word: too-late",
    "unstable progress": "in the seeds that show it, each timer left once",
    "C left behind what has ended": "in the first 150 seeds no timer is lost by it or comes twice",
    "copies missing by origin": "in the 8 of the first 110 seeds that show it, no timer is lost or comes twice",
    "next occurrence without its id": "in the 10 of the first 110 seeds that show it, no timer is lost or comes twice",
    "released not journalled": "in the 5 of the first 62 seeds that show it, no timer is lost or comes twice",
    "units of moved ones kept": "in the 4 of the first 50 seeds that show it, no timer is lost or comes twice",
    "a standby claims what it has not read": "its store is found damaged, and rebuilt from Kafka",
    "quota without copies": "quotas are settings of the bridge",
    "repeated with the old release time": "timer-released-ms is the bridge's own word",
    "copies of this and of the next occurrence": "the bridge refuses one of both",
    "missed ones delivered though none is wanted": "the clocks of these histories jump by more than the intervals",
    "all missed ones delivered though one is wanted": "the clocks of these histories jump by more than the intervals",
}
"""Planted bugs that it does not see, and why."""


def test_the_audit_finds_what_it_must_find_and_nothing_else(spark: SparkSession) -> None:
    planted = {name: played(seed, name) for name, seed in SEEN.items()}
    clean = {f"seed {seed}": played(seed) for seed in CLEAN_SEEDS}
    found = faults(spark, {**planted, **clean})
    assert {name: dict(found[name]) for name in clean if found[name]} == {}
    assert [name for name in planted if not found[name]] == [], "no longer seen with this seed"
    assert not found[""], "each origin names a history"


def test_each_planted_bug_is_seen_or_has_a_reason() -> None:
    assert SEEN.keys() | UNSEEN.keys() == MUTATIONS.keys()
