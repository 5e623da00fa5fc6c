"""Daily runs, one after the other: from records on topics to the day's table."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_timer import headers as names
from spark_jobs.audit_run import audit_folder, read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.observe import begin_day, judge_part
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.tests.records import History, Record, cancel, copy, delivery, move, receipt, rejection, request

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

DAY_MS = 86_400_000
TOPICS = ("timer.requests", "timer.rejected", "timer.receipts", "orders")


class Topics(Cluster):
    """A cluster that holds a history, which may grow. `starts`: retention took partition 0 of a topic up to there."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.partitions = dict.fromkeys(TOPICS, 1)
        self.starts: dict[str, int] = {}
        self.latest: set[str] = set()
        """Compacted topics."""
        self.aborted: list[Record] = []
        self.after_requests = History()
        """What comes after the end of the timer topic was looked up, and before the others' ends."""

    def records(self) -> Iterable[Record]:
        held = self.history
        return (*held.requests, *held.deliveries, *held.rejections, *held.receipts)

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        if "timer.requests" not in topics:
            for kind in ("requests", "receipts"):
                getattr(self.history, kind).extend(getattr(self.after_requests, kind))
            self.after_requests = History()
        return [self._span(name, at, from_ms or 0) for name in sorted(topics) for at in range(self.partitions[name])]

    def _span(self, topic: str, partition: int, from_ms: int) -> Span:
        held = [record for record in self.records() if (record.topic, record.partition) == (topic, partition)]
        end = max((record.offset + 1 for record in held), default=0)
        later = [record.offset for record in held if record.timestamp_ms >= from_ms]
        start = self.starts.get(topic, 0) if partition == 0 else 0
        return Span(topic, partition, min(later, default=end) if from_ms else start, end)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: f"{topic}-1" for topic in topics}

    def unstable_spans(self, spans: Iterable[Span]) -> list[Span]:
        return []

    def last_partition_since_ms(self, topics: Iterable[str]) -> dict[str, int]:
        return {}

    def compacted(self, topics: Iterable[str], *, if_unknown: bool = False) -> list[str]:
        return [topic for topic in topics if topic in self.latest]

    def read(self, access: KafkaAccess, spans: Sequence[Span], *, committed: bool = True) -> DataFrame:
        """As `read_records` does."""
        bounds = {(span.topic, span.partition): range(span.start, span.end) for span in spans}
        held = [*self.records(), *(() if committed else self.aborted)]
        found = [r for r in held if r.offset in bounds.get((r.topic, r.partition), ())]
        return SparkSession.active().createDataFrame(found, RECORDS_DDL)


class Runs:
    """`audit --daily` in one folder."""

    def __init__(self, topics: Topics, out: Path, **arguments: Any) -> None:
        self.topics, self._out = topics, out
        self._arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=out, daily=True, **arguments)

    def run(self, as_of_ms: int, *, is_killed: bool = False) -> tuple[dict[int, str], Sequence[str]]:
        """The classes of the day, by offset, and the notes. One that is killed does not come to its end."""
        plan, _ = begin_day(self._arguments, as_of_ms)
        done = judge_part(self.topics, self._arguments, plan)
        if not is_killed:
            done.commit()
            audit_folder.end_part(self._out)
        rows = pq.read_table(self._out / "requests" / plan.name).to_pylist()
        self.gaps, self.open = done.remarks.gaps, done.state.open
        return {int(row["origin"].rpartition("/")[2]): row["class"] for row in rows}, tuple(done.remarks.notes)


Days = Callable[..., Runs]
"""A history, and more of the arguments of an audit -> its daily runs in one folder."""


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Days:
    def made(history: History, **arguments: Any) -> Runs:
        topics = Topics(history)
        monkeypatch.setattr(read_plan, "read_records", topics.read)
        return Runs(topics, tmp_path, **arguments)

    return made


@pytest.mark.slow
def test_a_run_that_repeats_a_day_and_is_killed_leaves_the_next_day_whole(days: Days) -> None:
    """What it had closed is no duplicate then."""
    done, waits = request(0), request(80, due_ms=50_000)
    history = History([done, waits], [delivery(done, offset=49)])
    runs = days(history)
    assert runs.run(40_000) == ({0: "delivered", 80: "pending"}, ())
    history.deliveries.append(delivery(waits, offset=70))
    assert runs.run(60_000, is_killed=True) == ({0: "delivered", 80: "delivered"}, ())
    assert runs.run(DAY_MS) == ({0: "delivered", 80: "delivered"}, ())


@pytest.mark.slow
def test_a_topic_that_one_day_does_not_see_is_read_on_by_the_next(days: Days) -> None:
    """Taken for a new one, what it got meanwhile would be read twice, or never."""
    asked = request(0, due_ms=100_000)
    history = History([asked])
    runs = days(history)
    assert runs.run(40_000)[0] == {0: "pending"}
    history.deliveries.append(delivery(asked, at_ms=100_001, offset=70))
    del runs.topics.partitions["orders"]
    assert runs.run(DAY_MS)[0] == {0: "missing"}
    runs.topics.partitions["orders"] = 1
    assert runs.run(2 * DAY_MS)[0] == {0: "delivered"}


@pytest.mark.slow
def test_copies_of_requests_before_the_first_day_are_not_judged(days: Days) -> None:
    before, inside = request(0, due_ms=50_000), request(12, at_ms=2_500)
    history = History([before, copy(before, 10, at_ms=3_000), inside, copy(inside, 14, at_ms=3_000)])
    history.deliveries.append(delivery(inside, rolls=1))
    runs = days(history, from_ms=2_000)
    note = "Not judged, as their requests lie before the first day: 1 origins."
    assert runs.run(40_000) == ({12: "delivered"}, (note,))
    history.requests.append(copy(before, 20, rolls=2, at_ms=45_000))
    assert runs.run(DAY_MS) == ({}, (note,))


@pytest.mark.slow
def test_a_receipt_or_a_refusal_that_is_read_before_its_request_is_there_when_that_comes(days: Days) -> None:
    """The timer topic's end is looked up first. Else a cancel would hide a lost timer, and a forgery be a copy."""
    lost, asked = request(0, id=b"x", due_ms=50_000), request(1, due_ms=50_000)
    stop, forged = cancel(b"x", 2, at_ms=40_001), copy(asked, 3, at_ms=40_001)
    told = [receipt("not-found", stop), receipt("replaced", request(5), request(6))]
    history = History([lost, asked], [], [rejection(forged, "not-ours")], told)
    runs = days(history)
    assert runs.run(40_000) == ({0: "pending", 1: "pending"}, ())
    history.requests += [stop, forged]
    history.deliveries.append(delivery(asked))
    assert runs.run(DAY_MS) == ({0: "missing", 1: "delivered", 2: "cancel-not-found", 3: "rejected"}, ())


@pytest.mark.slow
def test_a_gap_makes_no_fault_of_what_lies_in_it(days: Days) -> None:
    """Retention took 3 to 9: cancels, requests, one whose copy is left. A later one is missing."""
    waits, ended, twice, rolled = request(0, id=b"x", due_ms=50_000), request(3), request(4), request(5, id=b"r")
    told = request(1, id=b"t", due_ms=50_000)
    lost = [request(2, due_ms=50_000), request(21, id=b"y", due_ms=50_000)]
    history = History([waits, told, lost[0]])
    runs = days(history)
    assert runs.run(40_000)[0] == {0: "pending", 1: "pending", 2: "pending"}
    runs.topics.starts["timer.requests"] = 10
    history.requests += [copy(rolled, 12, at_ms=45_000), lost[1]]
    history.deliveries += [delivery(ended), delivery(twice), delivery(twice, offset=90), delivery(rolled, rolls=1)]
    history.receipts.append(receipt("cancelled", cancel(b"t", 6), told))
    found, _ = runs.run(DAY_MS)
    judged = {0: "unjudged", 1: "unjudged", 2: "unjudged", 3: "unjudged", 4: "duplicate", 5: "delivered"}
    assert found == judged | {21: "missing"}
    assert runs.gaps == ["Never read: 7 offsets of timer.requests were deleted since the last run. Run more often."]


@pytest.mark.slow
def test_what_may_have_left_in_a_gap_of_another_topic_is_not_missing(days: Days) -> None:
    """The gap in orders/0 ends at 60,000 ms, that in the rejected topic at 45,000: no outcome of later is in them.

    A timer that was moved may have left at its own time.
    """
    waits, later, ends = (request(n, due_ms=due_ms) for n, due_ms in enumerate((50_000, 70_000, 59_000)))
    others = [request(n, due_ms=n * 10_000, also=((names.PARTITION, b"1"),)) for n in (4, 5)]
    first, refused = request(6), request(7, due_ms=None)
    moved = [request(9, id=b"x", due_ms=50_000), move(b"x", 10, 70_000)]
    asked = [waits, later, ends, *others, first, refused, *moved]
    history = History(asked, [delivery(first, offset=0)], [rejection(refused)])
    runs = days(history)
    runs.topics.partitions["orders"] = 2
    waiting = dict.fromkeys((0, 1, 2, 4, 5, 9), "pending")
    assert runs.run(30_000)[0] == waiting | {6: "delivered", 7: "rejected", 10: "move"}
    runs.topics.starts = {"orders": 10, "timer.rejected": 9}
    history.deliveries.append(delivery(ends, at_ms=60_000, offset=10))
    history.requests.append(request(12, due_ms=None, at_ms=44_998))
    history.rejections.append(rejection(history.requests[-1], offset=9))
    found = {0: "unjudged", 1: "missing", 2: "delivered", 4: "unjudged", 5: "missing", 9: "unjudged", 12: "rejected"}
    assert runs.run(DAY_MS)[0] == found
    assert len(runs.gaps) == 2


def test_a_cancel_that_comes_while_a_part_is_read_leaves_no_missing_timer(days: Days) -> None:
    """Its receipt is read, and itself in the next part. A receipt from before without a cancel is no excuse.

    A cancel by origin is found in a later part too, though its timer is not due.
    """
    ended, lost = request(0, id=b"x", due_ms=30_001), request(1, id=b"y", due_ms=20_000)
    asleep, stop = request(2, due_ms=9 * DAY_MS), cancel(b"x", 3, at_ms=41_001)
    by_origin = cancel(asleep.origin, 4, at_ms=41_001)
    first = delivery(lost, at_ms=1_000, offset=0)._replace(value=b"first", headers=())  # the topic is older
    before = receipt("cancelled", cancel(b"y", 9, at_ms=30_000), lost)
    runs = days(History([ended, lost, asleep], [first], [], [before]))
    told = [receipt("cancelled", stop, ended), receipt("cancelled", by_origin, asleep)]
    runs.topics.after_requests = History([stop, by_origin], [], [], told)
    assert runs.run(41_000)[0] == {0: "pending", 1: "missing", 2: "pending"}
    found = {0: "cancelled", 1: "missing", 2: "cancelled", 3: "cancel-done", 4: "cancel-done"}
    assert runs.run(DAY_MS)[0] == found


@pytest.mark.slow
def test_what_is_missing_is_told_each_day_until_it_is_waived_and_what_is_pending_once(
    days: Days, tmp_path: Path
) -> None:
    lost, waits, first = request(0, due_ms=50_000), request(1, due_ms=9 * DAY_MS), request(2)
    runs = days(History([lost, waits, first], [delivery(first)]))
    assert [runs.run(DAY_MS - 1 + day * DAY_MS)[0] for day in range(3)] == [
        {0: "missing", 1: "pending", 2: "delivered"},
        {0: "missing"},
        {0: "missing"},
    ]
    (tmp_path / "waivers.csv").write_text("origin,reason,until\ntimer.requests/0/0,INC-77,1970-01-04\n")
    known = days(runs.topics.history, waivers=tmp_path / "waivers.csv")
    assert [known.run(DAY_MS - 1 + day * DAY_MS)[0] for day in (3, 4)] == [{0: "waived"}, {0: "missing"}]
    runs.topics.history.deliveries.append(delivery(lost, at_ms=5 * DAY_MS, offset=70))
    assert runs.run(6 * DAY_MS)[0] == {0: "delivered"}


@pytest.mark.slow
def test_the_state_holds_what_is_open_and_a_late_refusal_opens_what_it_replaced(days: Days) -> None:
    """One id, and a request each day without receipts. Days later two of them are told to have been refused."""
    chain = [request(10 + day, id=b"x", due_ms=20 * DAY_MS, at_ms=1_000 + day * DAY_MS) for day in range(5)]
    far = [request(n, due_ms=20 * DAY_MS) for n in range(3)]
    runs = days(History([chain[0], *far]))
    sizes = []
    for day in range(5):
        runs.topics.history.requests[:] = [*far, *chain[: day + 1]]
        runs.run(100_000 + day * DAY_MS)
        sizes.append(runs.open)
    assert sizes == [4] * 5
    runs.topics.history.rejections.append(rejection(chain[3], "quota-exceeded", at_ms=5 * DAY_MS))
    assert runs.run(6 * DAY_MS)[0] == {12: "replaced", 13: "rejected", 14: "pending"}
    runs.topics.history.rejections.append(rejection(chain[4], "quota-exceeded", at_ms=6 * DAY_MS))
    assert runs.run(7 * DAY_MS)[0] == {12: "pending", 14: "rejected"}
    assert runs.open == 4


def sent_to(topic: str, first: int, *due_ms: int) -> list[Record]:
    return [request(first + n, due_ms=each_ms, target=topic) for n, each_ms in enumerate(due_ms)]


def test_what_the_first_day_knows_of_target_topics_and_what_the_next_day_does(days: Days, tmp_path: Path) -> None:
    """Timers due before a topic's first record may have been delivered to an earlier topic of that name.

    again, clock, compacted: two timers were due before the first record, and two after it. In `clock`, a record with a
    sender's time precedes it, which proves nothing, and a compacted topic never proves that there was no delivery.
    fresh: the first delivery of a new installation is lost; a backfill still needs a look at the consumers.
    empty: the first day has read it, so that what was due before its first record on the next day is missing.
    """
    again, clock, compacted = (
        sent_to(topic, first, 5_000, 8_000, 10_000, 20_000, 50_000)
        for topic, first in (("again", 0), ("clock", 10), ("compacted", 20))
    )
    nowhere, fresh = sent_to("nowhere", 30, 5_000), sent_to("fresh", 40, 9_100, 10_001, 10_002, 10_003, 10_004)
    empty = sent_to("empty", 50, 5_000, 50_000, 60_000)
    came = [delivery(each[2], topic=name, offset=0) for name, each in (("again", again), ("compacted", compacted))]
    came.append(delivery(clock[2], topic="clock", offset=1, clock="CreateTime"))
    came.append(came[-1]._replace(offset=0, timestamp_ms=1, headers=()))
    came += [delivery(each, topic="fresh", offset=n) for n, each in enumerate(fresh[1:])]
    runs = days(History([*again, *clock, *compacted, *nowhere, *fresh, *empty], came))
    runs.topics.partitions |= dict.fromkeys(("again", "clock", "compacted", "fresh", "empty"), 1)
    runs.topics.latest = {"compacted"}
    assert runs.run(40_000)[0] == {
        **dict.fromkeys((0, 1, 10, 11, 20, 21, 23, 30, 50), "unjudged"),
        **dict.fromkeys((2, 12, 22, 41, 42, 43, 44), "delivered"),
        **dict.fromkeys((3, 13, 40), "missing"),
        **dict.fromkeys((4, 14, 24, 51, 52), "pending"),
    }
    rows = pq.read_table(tmp_path / "requests" / "day=1970-01-01").to_pylist()
    assert [row["proof"] for row in rows if row["offset"] == 40] == ["unread-outcome"]
    runs.topics.history.deliveries.append(delivery(empty[2], topic="empty", offset=0))
    found = dict.fromkeys((3, 4, 13, 14, 24, 40, 51), "missing")
    assert runs.run(DAY_MS)[0] == found | {52: "delivered"}


def test_an_aborted_delivery_proves_that_its_target_existed(days: Days) -> None:
    """A minute lies between what was lost and the first delivery, and a bridge took an aborted one for committed."""
    lost, later, gone = request(0, due_ms=9_000), request(1, due_ms=70_000), request(2, due_ms=7_000)
    runs = days(History([lost, later, gone], [delivery(later, offset=2)]))
    runs.topics.aborted = [delivery(lost, offset=0, clock="CreateTime")]
    assert runs.run(DAY_MS - 1)[0] == {0: "missing", 1: "delivered", 2: "unjudged"}


def test_what_was_sent_before_the_rejected_topic_begins_may_have_been_refused(days: Days) -> None:
    refused = request(9, due_ms=None, at_ms=3_000)
    old, new = request(0, due_ms=20_000, at_ms=1_000), request(10, due_ms=20_000, at_ms=5_000)
    first = request(1)
    history = History([old, first, refused, new], [delivery(first)], [rejection(refused, offset=7)])
    runs = days(history)
    runs.topics.starts["timer.rejected"] = 7
    assert runs.run(40_000)[0] == {0: "unjudged", 1: "delivered", 9: "rejected", 10: "missing"}
