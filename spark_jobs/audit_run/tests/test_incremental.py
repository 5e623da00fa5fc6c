"""A day at a time comes to the same as all at once, and reads no history unless something names it."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kafka_timer import headers as names
from schemas.audit_state import OPEN
from spark_jobs.audit_rules.tests.test_against_oracle import PLAIN, drawn
from spark_jobs.audit_rules.tests.test_series import again, came, due, numbered, whole
from spark_jobs.audit_rules.verdicts import AuditLimits
from spark_jobs.audit_run import incremental
from spark_jobs.audit_run.open_timers import OpenTimers
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.tables import written
from spark_jobs.tests.records import (
    AS_OF_MS,
    History,
    asking,
    cancel,
    copy,
    delivery,
    move,
    paused_copy,
    receipt,
    rejection,
    request,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DAYS_MS = (0, 6_000, 40_000, AS_OF_MS)
TOLERANCE_MS = 50_000
PARTITIONS = 40


def audited(
    spark: SparkSession, history: History, out: Path, partitions: int, cuts_ms: Sequence[int], width: int = 100
) -> tuple[dict[str, str], OpenTimers]:
    """Day by day; the class of the last day that names an origin."""
    found: dict[str, str] = {}
    ends = dict.fromkeys(range(partitions), 0)
    state = OpenTimers(out)
    for number, (first_ms, behind_ms) in enumerate(pairwise(cuts_ms), 1):
        part = history.between(first_ms, behind_ms)
        earlier = [Span("timer.requests", p, 0, end) for p, end in ends.items()]
        for asked in part.requests:
            ends[asked.partition] = max(ends[asked.partition], asked.offset + 1)
        if behind_ms == cuts_ms[-1]:
            ends = dict.fromkeys(ends, width)
        today = [Span("timer.requests", p, 0, end) for p, end in ends.items()]
        plan = incremental.PartPlan(f"day=2026-01-0{number}", number, state.part, behind_ms)
        day = incremental.Part(plan, state, "timer.requests", earlier, today)
        limits = AuditLimits(as_of_ms=behind_ms, settle_ms=100, tolerance_ms=TOLERANCE_MS, skew_ms=1_000)
        with written(out / "scratch") as keep:
            due = None if state.part is None else keep(state.due(behind_ms))
            seen = part.seen(spark, [s._replace(end=width) for s in today])
            _, state = incremental.judge(seen, day, limits, due, keep)
        rows = pq.read_table(out / "requests" / plan.name).to_pylist()
        assert len({row["origin"] for row in rows}) == len(rows)
        found |= {row["origin"]: row["class"] for row in rows}
    return found, state


@pytest.mark.slow
@pytest.mark.parametrize("example", range(int(os.environ.get("EXAMPLES", "1"))))
def test_day_by_day_is_the_same_as_all_at_once(spark: SparkSession, example: int) -> None:
    """But for cancels without a receipt: what had left on an earlier day is not looked up for them."""
    seed = int(os.environ.get("SEED", Random().randrange(10**9))) + example
    print(f"SEED={seed}")
    rng, history = Random(seed), History()
    for one in (drawn(rng, partition, PLAIN) for partition in range(PARTITIONS)):
        history.add(one)
    history = history.between(0, AS_OF_MS)
    spans = [Span("timer.requests", partition, 0, 100) for partition in range(PARTITIONS)]
    limits: dict[str, Any] = {"settle_ms": 100, "tolerance_ms": TOLERANCE_MS, "skew_ms": 1_000}
    rows = history.judged(spark, spans=spans, **limits).collect()
    with TemporaryDirectory() as out:
        found, _ = audited(spark, history, Path(out), PARTITIONS, DAYS_MS)
    expected = {r.origin: r["class"] for r in rows if not (r.kind == "cancel" and r["proof"] == "order")}
    wrong = {origin: (found.get(origin), name) for origin, name in expected.items() if found.get(origin) != name}
    assert not wrong, wrong
    # What was a forgery at first may turn out a copy, when the one before it is refused on a later day.
    claims = {asked.origin for asked in history.requests if asked.header(names.ORIGIN)}
    assert found.keys() - {r.origin for r in rows} <= claims


@pytest.mark.slow
def test_a_recurring_timer_is_judged_over_several_days(spark: SparkSession, tmp_path: Path) -> None:
    """Each of its occurrences falls due on another day: the classes are those of all at once."""
    lost, stopped, broken, twice = (again(offset, id=b"%d" % offset) for offset in (1, 2, 3, 4))
    stops = cancel(b"2", 60, at_ms=due(1) + 4_000)
    history = whole(again(0))
    for more in (whole(lost), whole(twice)):
        history.add(more)
    history.deliveries.remove(came(lost, 3))
    history.deliveries.append(came(twice, 1, at_ms=due(3) + 5_000)._replace(offset=900))
    history.requests += [stopped, numbered(stopped, 22, 2), stops, broken]
    history.deliveries += [came(stopped, 1), came(broken, 1)]
    history.receipts.append(receipt("cancelled", stops, stopped, at_ms=due(1) + 4_001))
    rows = history.judged(spark, settle_ms=100, tolerance_ms=TOLERANCE_MS, skew_ms=1_000).collect()
    expected = {row.origin: row["class"] for row in rows}
    assert {*expected.values()} == {*("broken-off", "cancel-done", "cancelled", "delivered", "duplicate", "missing")}
    found, _ = audited(spark, history, tmp_path, 1, [0, due(1) + 5_000, due(2) + 5_000, AS_OF_MS])
    assert found == expected


@pytest.mark.slow
def test_a_pause_of_one_day_holds_for_the_next_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Resumes, moves, deliveries and a receipt come on later days: the classes are those of all at once."""
    held, resumed, lost, wrong, moved, overdue, twice = timers = [request(n, id=b"%d" % n) for n in range(7)]
    series, nameless = again(8, id=b"8"), again(9)
    pauses = [asking("pause", b"%d" % n, 10 + n) for n in (0, 1, 2, 3, 4, 6)]
    pauses += [asking("pause", b"8", 18, 15_000), asking("pause", nameless.origin, 19, 15_000)]
    pauses.append(asking("pause", b"5", 60, 60_000))
    later = [asking("resume", b"%d" % n, 30 + n, at_ms) for n, at_ms in ((1, 20_000), (2, 20_000), (3, 40_000))]
    later += [move(b"4", 34, 25_000, at_ms=20_000), asking("resume", b"8", 38, 35_000)]
    later += [asking("resume", b"6", 36, 20_000), asking("pause", b"6", 46, 20_500)]
    copies = [paused_copy(each, 20 + n) for n, each in enumerate((held, resumed, lost, wrong, moved))]
    copies += [copy(resumed, 51, rolls=2, at_ms=20_001), copy(moved, 54, rolls=2, at_ms=20_001, due_ms=b"25000")]
    copies += [numbered(nameless, 27, 2), numbered(series, 28, 2), numbered(series, 70, 2, rolls=3, at_ms=35_001)]
    copies.append(numbered(series, 29, 2, names.PAUSED_MS + due(2), rolls=2, at_ms=15_001, scheduled_ms=due(2)))
    copies.append(numbered(series, 71, 3, 41_000, rolls=4, at_ms=35_003))
    came_on = [delivery(resumed, at_ms=20_003, rolls=2), delivery(wrong, at_ms=15_000)]
    came_on += [delivery(moved, due_ms=25_000, rolls=2), came(series, 1), came(nameless, 1)]
    came_on += [came(series, 2, at_ms=35_003, rolls=3), came(series, 3, 41_000, rolls=4)]
    told = [receipt("paused", each) for each in pauses[:-1]]
    told.append(receipt("paused", pauses[-1], overdue, at_ms=61_000))
    history = History([*timers, series, nameless, *pauses, *later, *copies], came_on, [], told)
    rows = history.judged(spark, settle_ms=100, tolerance_ms=TOLERANCE_MS, skew_ms=1_000).collect()
    expected = {row.origin: row["class"] for row in rows}
    assert {expected[each] for each in (held.origin, overdue.origin, twice.origin, f"{nameless.origin}#2")} == {"held"}
    others = [expected[each.origin] for each in (resumed, lost, wrong, moved, series)]
    assert others == ["delivered", "missing", "paused-but-delivered", "moved", "delivered"]
    found, state = audited(spark, history, tmp_path, 1, [0, 10_000, 30_000, 60_500, AS_OF_MS])
    assert found == expected
    late = {row.origin: row.lateness_ms for row in rows}
    by_day = pq.read_table(tmp_path / "requests", columns=["origin", "lateness_ms"]).to_pylist()
    assert all(row["lateness_ms"] in (None, late[row["origin"]]) for row in by_day)
    assert late[resumed.origin] == late[f"{series.origin}#2"] == 3
    assert state.open == 5, "held ones, and the missing one"


@pytest.mark.slow
def test_only_open_timers_are_carried_and_closed_ones_are_found_again(spark: SparkSession, tmp_path: Path) -> None:
    """Each on day 1 well, and wrong by what comes on day 3; one that is open throughout."""
    twice, ended, refused, rolled = request(0), request(1, id=b"x"), request(2, due_ms=None), request(3, due_ms=50_000)
    stops, waits = cancel(b"x", 10, at_ms=2_000), request(60, due_ms=AS_OF_MS + 1)
    copies = [copy(rolled, 11), copy(rolled, 12, rolls=2, at_ms=20_000), copy(waits, 61)]
    came_on = [delivery(twice), delivery(twice, offset=50, at_ms=60_000), delivery(ended, at_ms=60_001)]
    came_on += [delivery(refused, due_ms=0, at_ms=60_002), delivery(rolled, rolls=2)]
    history = History([twice, ended, refused, rolled, stops, waits, *copies], came_on, [rejection(refused)])
    found, _ = audited(spark, history, tmp_path, 1, [0, 10_000, 30_000, AS_OF_MS])
    assert {origin.rpartition("/")[2]: name for origin, name in found.items()} == {
        "0": "duplicate",
        "1": "cancelled-but-delivered",
        "2": "rejected-but-delivered",
        "3": "delivered",
        "10": "cancel-too-late",
        "60": "pending",
    }
    kept = pq.read_table(tmp_path / "open" / "day=2026-01-02", partitioning=None)
    # What a cancel ended, without a receipt, is open for as long as the tolerance.
    assert set(kept.column("origin").to_pylist()) == {r.origin for r in (rolled, waits, ended, stops)}
    assert kept.schema.names == OPEN.arrow().names
    days = [pq.read_table(tmp_path / "requests" / f"day=2026-01-0{day}").to_pylist() for day in (1, 2, 3)]
    assert [[row["copies"] for row in day if row["origin"] == waits.origin] for day in days] == [[1], [], []]


@pytest.mark.slow
def test_copies_of_a_timer_that_was_closed_on_an_earlier_day_are_its_copies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The bridge read its cancel late, and rolled it meanwhile; what is not its next copy is still missing there."""
    ended = request(0, id=b"x", due_ms=90_000)
    stops = cancel(b"x", 10, at_ms=2_000)
    first, second = copy(ended, 5), copy(ended, 500, rolls=2, at_ms=20_000)
    third, forged = copy(ended, 600, rolls=3, at_ms=50_000), copy(ended, 601, rolls=5, at_ms=50_000)
    told = receipt("cancelled", stops, ended)
    history = History([ended, first, stops, second, third, forged], [], [], [told])
    found, _ = audited(spark, history, tmp_path, 1, [0, 10_000, 30_000, AS_OF_MS], width=1_000)
    assert {origin.rpartition("/")[2]: name for origin, name in found.items()} == {
        "0": "cancelled",
        "10": "cancel-done",
        "601": "missing",
    }
    assert not any(pq.read_table(tmp_path / "open" / "day=2026-01-02", partitioning=None)["claims"].to_pylist())
