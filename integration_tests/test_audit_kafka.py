"""The audit on a real broker: deliveries made by hand, with planted faults, in transactions that commit and abort."""

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from schemas import headers as names
from spark_jobs.arguments import AuditArguments
from spark_jobs.audit import main, run_audit

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _sockets_of_pyspark() -> Iterator[None]:
    """It leaves them to the garbage collector, which shall not come in the next test."""
    yield
    gc.collect()


class Sent(NamedTuple):
    """Where a record ended up."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def origin(self) -> bytes:
        return f"{self.topic}/{self.partition}/{self.offset}".encode()


class World:
    """Topics of one test, and a hand that plays senders and bridge."""

    def __init__(self, bootstrap_servers: str) -> None:
        name = uuid4().hex[:8]
        self.servers = bootstrap_servers
        self.timers, self.rejected, self.receipts = f"timers-{name}", f"rejected-{name}", f"receipts-{name}"
        self.orders, self.bills = f"orders-{name}", f"bills-{name}"
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        broker_clock = {"message.timestamp.type": "LogAppendTime"}
        made = admin.create_topics(
            [
                *(
                    NewTopic(topic, 2, 1, config=broker_clock)
                    for topic in (self.timers, self.rejected, self.receipts, self.orders)
                ),
                NewTopic(self.bills, 1, 1, config={"message.timestamp.type": "CreateTime"}),
            ]
        )
        for created in made.values():
            created.result(30)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"hand-{name}"})
        self._producer.init_transactions(30)

    def send(self, topic: str, records: Sequence[dict[str, Any]], *, commit: bool = True) -> list[Sent]:
        """One transaction."""
        sent: list[Sent] = []

        def told(error: object, message: Message) -> None:
            assert error is None, error
            place = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
            sent.append(Sent(*place))  # type: ignore[arg-type]

        self._producer.begin_transaction()
        for record in records:
            self._producer.produce(topic, **{"partition": 0, "key": b"k", "value": b"v", **record}, on_delivery=told)
        self._producer.flush(30)
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
        return sent

    def request(self, *headers: tuple[str, bytes], target: str | None = None, **record: Any) -> Sent:
        where = (names.TOPIC, (target or self.orders).encode())
        return self.send(self.timers, [{"headers": [where, ("tenant", b"a"), *headers], **record}])[0]

    def deliver(
        self, origin: bytes, due_ms: int, *, topic: str | None = None, commit: bool = True, **other: Any
    ) -> None:
        added = [
            (names.ORIGIN, origin),
            (names.DELIVER_MS, b"%d" % due_ms),
            (names.RELEASED_MS, b"%d" % now_ms()),
            (names.ROLLS, b"0"),
        ]
        record = {"headers": [("tenant", b"a"), *added], "timestamp": now_ms(), **other}
        self.send(topic or self.orders, [record], commit=commit)

    def reject(self, origin: bytes, code: str) -> None:
        headers = [("tenant", b"a"), (names.ERROR, code.encode()), (names.ORIGIN, origin)]
        self.send(self.rejected, [{"headers": headers}])

    def audit(self, out: Path, *more: str) -> int:
        topics = ["--timer-topic", self.timers, "--rejected-topic", self.rejected, "--receipts-topic", self.receipts]
        return main(["--bootstrap-servers", self.servers, "--out", str(out), *topics, "--settle-ms", "0", *more])


def now_ms() -> int:
    return int(time.time() * 1000)


def due(at_ms: int) -> tuple[str, bytes]:
    return (names.DELIVER_MS, b"%d" % at_ms)


@pytest.fixture
def world(kafka: Any) -> World:
    return World(kafka.bootstrap_servers)


def clean(world: World) -> int:
    """Delivered by both clocks and in both partitions, rejected, pending; aborted attempts too. Returns how many."""
    now = now_ms()
    absolute = world.request(due(now))
    world.deliver(absolute.origin, now, commit=False)
    world.deliver(absolute.origin, now)
    relative = world.request((names.DELAY_MS, b"1"), target=world.bills, partition=1)
    time.sleep(0.005)
    world.deliver(relative.origin, relative.timestamp_ms + 1, topic=world.bills)
    empty = world.request(due(now), value=None, key=None, partition=1)
    world.deliver(empty.origin, now, value=None, key=None, partition=1)
    world.reject(world.request((names.DELAY_MS, b"-1")).origin, "bad-header")
    world.reject(world.request(due(now), target=world.timers).origin, "bad-target")
    world.request(due(now + 3_600_000))
    world.send(world.timers, [{"headers": [due(now), (names.TOPIC, world.orders.encode())]}], commit=False)
    world.send(world.orders, [{"headers": [("not", b"ours")]}])
    return 6


def test_a_clean_history_exits_0(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = clean(world)
    assert world.audit(tmp_path) == 0
    assert f"Clean: {requests} requests, no fault" in capsys.readouterr().out
    by_topic = {row["topic"]: row for row in pq.read_table(tmp_path / "topics").to_pylist()}
    assert by_topic[world.orders]["clock"] == "LogAppendTime"
    assert by_topic[world.bills]["clock"] == "CreateTime"


def test_planted_faults_exit_3_and_each_is_found(world: World, tmp_path: Path) -> None:
    clean(world)
    now = now_ms()
    planted: dict[str, bytes] = {}
    for name in ("duplicate", "altered", "missing", "rejected-but-delivered"):
        planted[name] = world.request(due(now)).origin
    planted["early"] = world.request(due(now + 3_600_000)).origin
    never = world.send(world.timers, [{"partition": 1, "headers": [due(now)]}], commit=False)[0]
    planted["unexplained"] = never.origin
    world.deliver(planted["duplicate"], now)
    world.deliver(planted["duplicate"], now, partition=1)
    world.deliver(planted["altered"], now, value=b"V")
    world.deliver(planted["rejected-but-delivered"], now)
    world.reject(planted["rejected-but-delivered"], "too-large")
    world.deliver(planted["early"], now + 3_600_000)
    nowhere = world.request(due(now), target="no-such-topic").origin
    world.deliver(planted["unexplained"], now)

    assert world.audit(tmp_path) == 3
    rows = pq.read_table(tmp_path / "requests").to_pylist()
    faulty = {row["origin"].encode(): row["class"] for row in rows if row["faults"]}
    assert faulty == {origin: name for name, origin in planted.items()} | {nowhere: "missing"}
    page = (tmp_path / "report.html").read_text()
    assert "7 faults" in page
    assert "no-such-topic" in page


def test_a_range_of_time_leaves_the_rest_unjudged(world: World, tmp_path: Path) -> None:
    now = now_ms()
    world.request(due(now))  # missing, but before the range
    before = world.request(due(now))
    world.deliver(before.origin, now)
    time.sleep(0.01)
    from_ms = now_ms()
    inside = world.request(due(now))
    world.deliver(inside.origin, now)
    time.sleep(0.01)
    to_ms = now_ms()
    world.request(due(now))  # missing, but after it
    span = AuditArguments(
        bootstrap_servers=world.servers,
        out=tmp_path,
        timer_topic=world.timers,
        rejected_topic=world.rejected,
        receipts_topic=world.receipts,
        from_ms=from_ms,
        to_ms=to_ms,
        settle_ms=0,
        master="local[2]",
    )
    verdict = run_audit(span)
    assert (verdict.clean, verdict.requests, verdict.counts["delivered"]) == (True, 1, 1)
    assert verdict.notes == ("Not judged, as their requests lie outside the range: 1 of the origins on these topics.",)


def test_trouble_exits_1_and_says_what_to_do(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.audit(tmp_path, "--timer-topic", "no-such-topic") == 1
    assert "there is no topic no-such-topic on this cluster: check --timer-topic" in capsys.readouterr().err
