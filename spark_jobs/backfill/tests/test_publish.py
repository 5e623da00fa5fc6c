"""What a backfill sends of the rows that it was given, by the clock of that moment."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from schemas.resent import Job, MarkTopics
from spark_jobs.backfill import publish as backfill_tasks
from spark_jobs.backfill.publish import BODIES, MOST_RECORDS, PublishTask, _PartitionProducer
from spark_jobs.kafka import resend
from spark_jobs.kafka.resend import CommittedRecord, OutgoingRecord
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import Row

MARKS = MarkTopics(Job.BACKFILL, "marks", "former")
JOB = PublishTask(KafkaAccess("localhost:9092"), "backfill", "t", MARKS, 1, None)


class World:
    """A broker that takes what is not to `refused`, while time passes with each attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now_ms: int, step_ms: int = 0) -> None:
        self.now_ms, self.step_ms = now_ms, step_ms
        self.sent: list[OutgoingRecord] = []
        self.code = "MSG_SIZE_TOO_LARGE"
        self.senders = 0
        self.former: list[bytes] = []
        monkeypatch.setattr(resend, "Producer", lambda _: self._another())
        monkeypatch.setattr(resend.Resender, "_commit", lambda _, records: self.send(records))
        monkeypatch.setattr(resend, "Cluster", lambda _: SimpleNamespace(partitions={"marks": 1, "former": 1}))
        monkeypatch.setattr(resend, "read_committed", lambda _, topic, *__: self._marks(topic))
        monkeypatch.setattr(backfill_tasks, "now_ms", lambda: self.now_ms)
        self.producer = self.producer_of_a_later_run()

    def producer_of_a_later_run(self) -> _PartitionProducer:
        return _PartitionProducer(JOB, 0)

    def _another(self) -> SimpleNamespace:
        self.senders += 1
        return SimpleNamespace(init_transactions=lambda _: None)

    def _marks(self, topic: str) -> list[CommittedRecord]:
        if topic == "former":
            return [CommittedRecord(key, b"{}") for key in self.former]
        return [CommittedRecord(record.key, record.value) for record in self.sent if record.topic == "marks"]

    def send(self, records: Iterable[OutgoingRecord]) -> str | None:
        self.now_ms += self.step_ms
        records = list(records)
        if any(record.topic == "refused" for record in records):
            return self.code
        self.sent += records
        return None

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.sent if record.topic != "marks"]


def row(offset: int, expire_ms: int | None, target: str = "orders") -> Row:
    told: Row = {"origin": f"t/0/{offset}", "partition": 0, "offset": offset, "requested_ms": 1, "due_ms": 2}
    told |= {"expire_ms": expire_ms, "target": target, "want_partition": None, "key": None, "headers": []}
    told |= {"occurrence": None}
    return {**told, "value": b"%d" % offset}


def outcomes(producer: _PartitionProducer, rows: list[Row]) -> dict[int, str]:
    return {int(told["origin"].split("/")[2]): told["outcome"] for told in producer.send(rows)}


def test_a_timer_that_expires_during_a_backfill_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, now_ms=1_000)
    rows = [row(1, 1_000), row(2, 1_001), row(3, None), row(4, 999)]
    assert outcomes(world.producer, rows) == {1: "expired", 2: "sent", 3: "sent", 4: "expired"}
    assert world.values() == [b"2", b"3"]
    world.now_ms += 1
    told = {1: "expired", 2: "backfilled-before", 3: "backfilled-before", 4: "expired"}
    assert outcomes(world.producer_of_a_later_run(), rows) == told, "what stands is no longer asked about"
    assert world.values() == [b"2", b"3"]


def test_what_a_former_version_has_marked_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, now_ms=1_000)
    world.former += [b"t/0/1", b"other/0/2"]
    producer = world.producer_of_a_later_run()
    assert outcomes(producer, [row(1, None), row(2, None)]) == {1: "backfilled-before", 2: "sent"}
    assert world.values() == [b"2"]


def test_the_first_occurrence_of_a_recurring_timer_is_sent_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, now_ms=1_000)
    assert outcomes(world.producer, [row(1, None), row(2, None) | {"occurrence": 1}]) == {1: "sent", 2: "sent"}
    numbers = [dict(record.headers).get("timer-occurrence") for record in world.sent if record.topic == "orders"]
    assert numbers == [None, b"1"]


def test_a_timer_that_expires_during_single_sends_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, now_ms=1_000, step_ms=1)
    rows = [row(1, None, "refused"), row(2, 1_002), row(3, 1_004)]
    assert outcomes(world.producer, rows) == {1: "failed", 2: "expired", 3: "sent"}
    assert world.values() == [b"3"]


def test_a_target_that_takes_nothing_is_asked_twice_and_others_get_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refusal costs a producer and a look at all marks."""
    world = World(monkeypatch, now_ms=1_000)
    world.code = "TOPIC_AUTHORIZATION_FAILED"
    for first in (0, 100):
        rows = [row(first + at, None, "refused" if at % 2 else "orders") for at in range(100)]
        told = outcomes(world.producer, rows)
        assert told == {first + at: "failed" if at % 2 else "sent" for at in range(100)}
    assert len(world.values()) == 100
    assert world.senders == 3


def test_rows_pass_through_and_only_new_marks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows, no more are there at a time than one transaction takes; a mark takes 8 bytes."""
    world, waiting = World(monkeypatch, now_ms=1_000), 0
    job = replace(JOB, marks_read={("marks", 0): 7})
    looked_from: list[int] = []
    others = [b"backfill/t/1/5", b"backfill/t2/0/5", b"backfill/t/0/9", b"backfill/t/0/3", b"redrive/t/0/4", b"t/0/6"]

    def marks(_: object, topic: str, __: int, from_offset: int) -> list[CommittedRecord]:
        if topic == "former":
            return []
        looked_from.append(from_offset)
        return [CommittedRecord(key, b"{}", from_offset + at) for at, key in enumerate(others)]

    def rows() -> Iterable[pa.RecordBatch]:
        nonlocal waiting
        for first in range(0, 20_000, MOST_RECORDS):
            waiting += MOST_RECORDS
            yield pa.RecordBatch.from_pylist([row(first + at, None) for at in range(MOST_RECORDS)], schema=BODIES)

    monkeypatch.setattr(resend, "read_committed", marks)
    told: list[str] = []
    for batch in job(rows()):
        told += batch.column("outcome").to_pylist()
        assert waiting - len(told) <= 4_096 + 2 * MOST_RECORDS
        world.sent.clear()
    assert (len(told), told.count("backfilled-before"), looked_from) == (20_000, 2, [7])
    world.code = "MSG_SIZE_TOO_LARGE"
    producer = _PartitionProducer(job, 0)
    assert outcomes(producer, [row(1, None, "refused"), row(3, None)]) == {1: "failed", 3: "backfilled-before"}
    assert looked_from[1:] == [7, 7 + len(others)], "after an abort, only what is new"
