"""Proof of the proof: planted bugs of the bridge, and mistakes in what was delivered, are run through the audit.

If the simulated world changes, other seeds show a bug: the assertion names those that no longer do, and `played`
searches for others.
"""

from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from bridge.tests.simulation.planted_bugs import MUTATIONS
from integration_tests.spark.proof import faults
from integration_tests.support.simulated_topics import Simulated, played
from kafka_timer import headers as names
from spark_jobs.audit_rules.evidence import PartitionCount
from spark_jobs.tests.records import History, cancel, copy, delivery, foreign_of, pausing, receipt, rejection, request

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SEEN: Mapping[str, int] = {
    "offset before store": 0,
    "cut inside equal times": 2,
    "late not settled": 1,
    "ahead not taken back": 20,
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
    "copies judged again": 23,
    "lost shards repeated": 5,
    "expired one delivered": 0,
    "stale fence accepted": 2,
    "K left out": 2,
    "unordered commits": 1,
    "ended not journalled": 2,
    "rolled not journalled": 0,
    "one target that fails holds all": 3,
    "rules of now for old requests": 0,
    "id missing in flights": 5,
    "origin missing in flights": 21,
    "markers not read at a start": 5,
    "a paused timer is delivered at its time": 22,
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
    "rocksdb: ended ones are in the checkpoint": 0,
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


def mistakes() -> dict[str, tuple[History, str]]:
    """Return what may go wrong with a delivery, and the fault that it is; empty for what nothing shows."""
    asked, named, bad = request(0), request(0, id=b"x"), request(0, due_ms=None)
    came, stop = delivery(asked), cancel(b"x", 1)
    until, later = ((names.EXPIRE_MS, b"6000"),), ((names.EXPIRE_MS, b"90000000"),)
    expiring, waiting, pinned = (
        request(0, also=until),
        request(0, also=later),
        request(0, also=((names.PARTITION, b"2"),)),
    )
    keyed, plain = request(0, target="keyed"), came._replace(headers=foreign_of(asked))
    half = came._replace(offset=9, headers=(*foreign_of(asked), (names.ROLLS, b"0")))
    far, pauses = request(0, id=b"x", due_ms=100_000), pausing("pause", b"x", 1)
    told_falsely = receipt("cancelled", cancel(b"x", 2), named)
    return {
        "two of one due time in the wrong order": (
            History([asked, request(1)], [came._replace(offset=1), delivery(request(1), offset=0)]),
            "out-of-order",
        ),
        "dropped": (History([asked]), "missing"),
        "doubled": (History([asked], [came, came._replace(offset=9)]), "duplicate"),
        "early": (History([asked], [delivery(asked, at_ms=4_999)]), "early"),
        "other value": (History([asked], [delivery(asked, value=b"other")]), "altered"),
        "other key": (History([asked], [delivery(asked, key=b"other")]), "altered"),
        "other header": (History([asked], [delivery(asked, foreign=())]), "altered"),
        "other topic": (History([asked], [delivery(asked, topic="bills")]), "altered"),
        "other due time": (History([asked], [delivery(asked, due_ms=5_001)]), "altered"),
        "other partition than asked for": (History([pinned], [delivery(pinned, partition=1)]), "altered"),
        "another partition than its key's": (
            History([keyed], [delivery(keyed, topic="keyed", partition=2)], counts={PartitionCount("keyed", 3, 0)}),
            "altered",
        ),
        "rolls that were none": (History([asked], [delivery(asked, rolls=3)]), "altered"),
        "only delivery unstamped": (History([asked], [plain]), "missing"),
        "second delivery half stamped": (History([asked], [came, half]), ""),
        "second delivery unstamped": (History([asked], [came, plain._replace(offset=9)]), ""),
        "forged origin": (History([asked], [came, delivery(request(99))]), "unexplained"),
        "refused, though well-formed": (History([asked], [], [rejection(asked)]), "wrongly-rejected"),
        "refused and delivered": (History([asked], [came], [rejection(asked, "too-large")]), "rejected-but-delivered"),
        "delivered, though malformed": (History([bad], [delivery(bad, due_ms=1_000)]), "malformed-but-delivered"),
        "refused without a trace": (History([bad]), "missing"),
        "refused with another value": (
            History([asked], [], [rejection(asked, "too-large", value=b"other")]),
            "altered",
        ),
        "refused twice": (History([bad], [], [rejection(bad), rejection(bad, offset=9)]), "duplicate"),
        "delivered after its cancel": (
            History([named, stop], [delivery(named)], [], [receipt("cancelled", stop, named)]),
            "cancelled-but-delivered",
        ),
        "delivered while paused": (
            History([far, pauses], [delivery(far)], [], [receipt("paused", pauses, far)]),
            "paused-but-delivered",
        ),
        "lost after its resume": (History([far, pauses, pausing("resume", b"x", 2)]), "missing"),
        "paused": (History([far, pauses]), ""),
        "lost before its cancel": (History([named, stop], [], [], [receipt("not-found", stop)]), "missing"),
        "lost, with a false receipt": (
            History([named, stop], [], [], [receipt("not-found", stop), told_falsely]),
            "missing",
        ),
        "receipt names the wrong cancel": (History([named, stop], [], [], [told_falsely]), "false-receipt"),
        "delivered after its expiry": (History([expiring], [delivery(expiring, at_ms=6_001)]), "expired-but-delivered"),
        "expired before its time": (History([waiting], [], [rejection(waiting, "expired", at_ms=5_003)]), "missing"),
        "forged copy taken in": (History([asked, copy(asked, 1, value=b"other")], [came]), "missing"),
        "an hour late": (History([asked], [delivery(asked, at_ms=3_605_000, partition=1)]), ""),  # that of its key
    }


def test_the_audit_finds_what_it_must_find_and_nothing_else(spark: SparkSession) -> None:
    planted = {name: played(seed, name) for name, seed in SEEN.items()}
    clean = {f"seed {seed}": played(seed) for seed in CLEAN_SEEDS}
    wrong = {name: Simulated("", history) for name, (history, _) in mistakes().items()}
    found = faults(spark, {**planted, **clean, **wrong})
    assert {name: dict(found[name]) for name in clean if found[name]} == {}
    assert [name for name in planted if not found[name]] == [], "no longer seen with this seed"
    missed = {
        name: dict(found[name])
        for name, (_, fault) in mistakes().items()
        if (fault not in found[name] if fault else found[name])
    }
    assert missed == {}
    assert found[""] == {"unexplained": 1}, "half stamped: its origin names no history"


def test_each_planted_bug_is_seen_or_has_a_reason() -> None:
    assert SEEN.keys() | UNSEEN.keys() == MUTATIONS.keys()
