"""Backfill on a real broker beside a real bridge: a gap is found, filled once, and the audit is clean after that."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S, until
from kafka_timer import headers as names
from schemas.journal import END
from schemas.progress import Progress
from scripts.common.kafka_io import now_ms
from scripts.common.processes import BridgeProcess
from spark_jobs import archive, audit
from spark_jobs.audit_rules.verdicts import GRACE_MS
from spark_jobs.backfill import job as backfill
from spark_jobs.kafka.security import KafkaAccess

# Many small runs of Spark.
pytestmark = [pytest.mark.timeout(900), pytest.mark.spark, pytest.mark.broker, pytest.mark.usefixtures("spark")]


class World:
    """A timer topic, two targets, and the jobs of a day after."""

    def __init__(self, kafka: Broker, folder: Path) -> None:
        self.topics, self.cluster, self.folder = Names(), Cluster(kafka.bootstrap_servers), folder
        self.orders, self.bills = (self.cluster.topic(name, 2, message_timestamp_type="LogAppendTime") for name in "ob")
        self.marks, self.former = (f"{name}-{self.topics.timers}" for name in ("resent", "backfilled"))
        self.servers = kafka.bootstrap_servers
        self._where = ["--bootstrap-servers", kafka.bootstrap_servers]
        self._where += ["--timer-topic", self.topics.timers, "--rejected-topic", self.topics.rejected]
        self._of_audit = ["--receipts-topic", self.topics.receipts, "--settle-ms", "0", "--skew-ms", "0"]
        self._of_backfill = ["--journal-topic", self.topics.journal, "--group", self.topics.group]

    def bridge(self) -> BridgeProcess:
        """Return a bridge that leaves its group at a stop, so that `settle_all` need not wait for its session's end."""
        arguments = [*self.topics.arguments, "--receipts", "all", "--no-static-membership"]
        return BridgeProcess(self.folder, self.servers, arguments)

    def send(self, value: bytes, delay_ms: int, *more: tuple[str, bytes], target: str, partition: int = 0) -> None:
        headers = [(names.TOPIC, target.encode()), (names.DELAY_MS, b"%d" % delay_ms), ("tenant", b"a"), *more]
        self.cluster.send(self.topics.timers, value, key=b"k", headers=headers, partition=partition)
        self.cluster.flush()

    def first_record(self, topic: str) -> None:
        """Make the topic older than the timers that are sent from now on."""
        self.cluster.send(topic, b"first", partition=0)
        self.cluster.flush()
        (record,) = self.cluster.read(topic)
        until(lambda: now_ms() > record.timestamp()[1])

    def settle_all(self) -> None:
        """Commit progress as if all requests had been delivered: what was not is lost."""
        consumer: Any = Consumer({"bootstrap.servers": self.servers, "group.id": self.topics.group})
        known = {record.partition(): record.offset() + 1 for record in self.cluster.read(self.topics.timers)}
        progress = {at: Progress(end, END, end, 1) for at, end in known.items()}
        asked = [TopicPartition(self.topics.timers, at, p[0], metadata=p.metadata()) for at, p in progress.items()]

        def committed() -> bool:
            try:
                consumer.commit(offsets=asked, asynchronous=False)
            except KafkaException:  # the bridge is still leaving the group
                return False
            return True

        until(committed)
        consumer.close()

    def lose(self, topic: str, *partitions: int) -> None:
        """What lies there, for ever."""
        ends = {TopicPartition(topic, number, -1): None for number in partitions}
        for done in self.cluster.admin.delete_records(list(ends)).values():
            done.result(PATIENCE_S)

    def audit(self, name: str, *more: str) -> int:
        return audit.main([*self._where, *self._of_audit, "--out", str(self.folder / name), *more])

    def archive(self, out: Path) -> int:
        access = KafkaAccess(self.servers)
        return archive.run_archive(archive.ArchiveArguments(access=access, out=out, timer_topic=self.topics.timers))

    def backfill(self, name: str, *more: str) -> dict[str, int]:
        given = [*self._where, *self._of_backfill, "--audit", str(self.folder / name)]
        assert backfill.main([*given, "--resent-topic", self.marks, "--backfilled-topic", self.former, *more]) == 0
        outcomes = pq.read_table(self.folder / name / "backfill").column("outcome").to_pylist()
        return {outcome: outcomes.count(outcome) for outcome in outcomes}


@pytest.fixture
def world(kafka: Broker, tmp_path: Path) -> World:
    return World(kafka, tmp_path)


@pytest.mark.slow
def test_what_lies_before_a_hole_in_the_archive_may_have_been_cancelled_there(world: World, tmp_path: Path) -> None:
    """Journal and receipts have forgotten it by then, and a cancel always wins."""
    old = tmp_path / "archive"
    with world.bridge():
        world.send(b"cancelled", 5_000, (names.ID, b"x"), target=world.orders)
        assert world.archive(old) == 1
        world.cluster.send(world.topics.timers, None, headers=[(names.ACTION, b"cancel"), (names.ID, b"x")])
        world.send(b"later", 6_000, target=world.bills)
        until(lambda: len(world.cluster.values(world.bills)) == 1)
    for topic in (world.topics.timers, world.topics.journal, world.topics.receipts):
        world.lose(topic, 0)
    assert world.audit("first", "--archive", str(old)) == 1
    told = world.backfill("first", "--archive", str(old), "--apply", "--although-unknown", world.orders)
    assert told == {"cannot-tell": 1}
    assert world.cluster.values(world.orders) == []


@pytest.mark.slow
def test_a_gap_is_filled_once_beside_a_bridge_at_work(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one partition the requests are gone too, but for the archive."""
    old = ["--archive", str(tmp_path / "archive")]
    lost = [b"1", b"2", b"3", b"4", b"5"]
    with world.bridge():
        for value in lost:
            also = [(names.KEY, b"other"), (names.PARTITION, b"1")] if value == b"2" else []
            world.send(value, 100, *also, target=world.orders, partition=int(value) % 2)
        assert world.archive(tmp_path / "archive") == len(lost)
        world.send(b"ended", 3_600_000, (names.ID, b"x"), target=world.orders)
        world.cluster.send(world.topics.timers, None, headers=[(names.ACTION, b"cancel"), (names.ID, b"x")])
        world.send(b"waits", 3_600_000, target=world.orders)
        for partition in (0, 1):
            world.send(b"stays", 900, target=world.bills, partition=partition)
        until(lambda: len(world.cluster.values(world.bills)) == 2)
        before = {each.value(): each for each in world.cluster.read(world.orders)}
        assert sorted(before) == lost
        assert world.archive(tmp_path / "archive") == 5
        world.lose(world.orders, 0, 1)
        world.lose(world.topics.timers, 1)

        assert world.audit("first", *old) == 1
        assert f"Not judged: 5 due timers for {world.orders}." in (tmp_path / "first" / "report.html").read_text()
        assert world.backfill("first") == {"cannot-tell": 5}
        named = ["--although-unknown", world.orders]
        assert world.backfill("first", *named) == {"would-be-sent": 2, "gone": 3}
        assert world.cluster.values(world.orders) == []
        old += ["--apply", *named]
        assert world.backfill("first", *old, "--limit", "2", "--rate", "50") == {"sent": 2, "beyond-limit": 3}
        assert world.backfill("first", *old) == {"sent": 3, "backfilled-before": 2}
        after = {each.value(): each for each in world.cluster.read(world.orders)}
        assert sorted(after) == lost
        for value in lost:
            assert _told(after[value]) == _told(before[value])
        marks = {each.key(): json.loads(each.value())["target"] for each in world.cluster.read(world.marks)}
        origins = [dict(each.headers())[names.ORIGIN] for each in after.values()]
        assert marks == {b"backfill/" + origin: world.orders for origin in origins}
        world.cluster.create(world.former, cleanup_policy="compact")
        for origin in origins:  # as a former version has marked them
            world.cluster.send(world.former, b'{"v": 1, "at_ms": 1, "target": "orders"}', key=origin)
        world.cluster.flush()
        assert world.backfill("first", *old, "--resent-topic", f"other-{world.marks}") == {"backfilled-before": 5}
        assert world.audit("second", *old[:2]) == 0, capsys.readouterr().out


def _told(message: Any) -> tuple[Any, ...]:
    """All that must be as the bridge had delivered it."""
    kept = [header for header in message.headers() if header[0] != names.RELEASED_MS]
    return message.key(), message.value(), message.partition() if message.key() == b"other" else 0, kept


def test_what_a_bridge_has_or_will_deliver_is_not_touched(world: World) -> None:
    """Missing to an audit while no bridge runs; then it comes, while the audit's word still says missing."""
    world.first_record(world.orders)
    with world.bridge():
        world.send(b"stored", 12_000, target=world.orders)
        world.send(b"first", 0, target=world.bills)
        until(lambda: len(world.cluster.values(world.bills)) == 1)
    world.send(b"unread", 0, target=world.orders, partition=1)
    until(lambda: now_ms() > world.cluster.read(world.topics.timers)[0].timestamp()[1] + 12_000)
    assert world.audit("down") == 3
    assert world.backfill("down", "--apply") == {"live": 1, "unread": 1}
    with world.bridge():
        until(lambda: len(world.cluster.values(world.orders)) == 3)
        assert world.backfill("down", "--apply") == {"came": 2}
    assert sorted(world.cluster.values(world.orders)) == [b"first", b"stored", b"unread"]  # type: ignore[type-var]


def test_what_a_topic_that_was_created_again_may_have_had_is_sent_only_by_its_name(world: World) -> None:
    """`orders` is created again before the audit, between 20 deliveries and 5. A timer that `bills` lacks is missing.

    `bills` is created again after the audit, whose verdict that its timer is missing no longer holds. What was
    cancelled or sent again since the audit is not sent: nothing was pending, so neither journal nor progress tells.
    """
    with world.bridge():
        for number in range(20):
            world.send(b"%d" % number, 0, (names.ID, b"%d" % number), target=world.orders)
        until(lambda: len(world.cluster.values(world.orders)) == 20)
        delivered_ms = now_ms()
        world.cluster.delete(world.orders)
        world.cluster.create(world.orders, 1, message_timestamp_type="LogAppendTime")
        until(lambda: now_ms() > delivered_ms + GRACE_MS)
        for number in range(20, 25):
            world.send(b"%d" % number, 0, (names.ID, b"%d" % number), target=world.orders)
        until(lambda: len(world.cluster.values(world.orders)) == 5)
    world.first_record(world.bills)
    world.send(b"lost", 0, target=world.bills)
    world.settle_all()
    assert world.audit("first") == 3
    rows = pq.read_table(world.folder / "first" / "requests").column("class").to_pylist()
    assert {name: rows.count(name) for name in rows} == {"unjudged": 20, "delivered": 5, "missing": 1}
    world.cluster.send(world.topics.timers, None, headers=[(names.ACTION, b"cancel"), (names.ID, b"0")])
    world.send(b"1", 3_600_000, (names.ID, b"1"), target=world.orders)
    assert world.backfill("first") == {"cannot-tell": 20, "would-be-sent": 1}
    world.cluster.delete(world.bills)
    world.cluster.create(world.bills, 2, message_timestamp_type="LogAppendTime")
    named = ["--apply", "--although-unknown"]
    assert world.backfill("first", *named, world.orders) == {"superseded": 2, "cannot-tell": 1, "sent": 18}
    assert sorted(map(int, map(bytes, world.cluster.values(world.orders)))) == [*range(2, 25)]  # type: ignore[arg-type]
    both = f"{world.orders},{world.bills}"
    assert world.backfill("first", *named, both) == {"superseded": 2, "backfilled-before": 18, "sent": 1}
    assert world.cluster.values(world.bills) == [b"lost"]
