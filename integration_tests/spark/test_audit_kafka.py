"""The audit on a real broker: deliveries made by hand, with planted faults, in transactions that commit and abort."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message, Producer
from pyspark.errors import AnalysisException

from bridge.page.find_verdicts import verdicts
from integration_tests.conftest import Broker, started
from integration_tests.support.bridge_command import Names, read
from integration_tests.support.patience import PATIENCE_S, until
from kafka_timer import headers as names
from kafka_timer.murmur2 import partition_of
from scripts.common.kafka_io import BROKER_CLOCK, Admin, now_ms
from scripts.common.processes import BridgeProcess
from spark_jobs.audit import main, run_audit
from spark_jobs.audit_run import requests_table
from spark_jobs.audit_run.arguments import parse
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka import admin
from spark_jobs.kafka.security import KafkaAccess

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.usefixtures("spark")]


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
        name, self.topics = uuid4().hex[:8], Names()
        self.servers = bootstrap_servers
        self.timers, self.rejected, self.receipts = self.topics.timers, self.topics.rejected, self.topics.receipts
        self.orders, self.bills = f"orders-{name}", f"bills-{name}"
        by_broker = (self.timers, self.rejected, self.receipts, self.orders)
        for_bridge = {"retention.bytes": "-1", "compression.type": "uncompressed", "max.message.bytes": "8388608"}
        Admin(bootstrap_servers).create_topics(by_broker, partitions=2, settings=BROKER_CLOCK | for_bridge)
        by_sender = {"message.timestamp.type": "CreateTime"}
        Admin(bootstrap_servers).create_topics([self.bills], partitions=2, settings=by_sender)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"hand-{name}"})
        self._producer.init_transactions(30)
        self.send(self.orders, [{}])  # the topic is older than the requests

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
        self._producer.flush(PATIENCE_S)
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
        reason = [(names.ERROR, code.encode()), (names.ERROR_DETAIL, b"why"), (names.ORIGIN, origin)]
        headers = [("tenant", b"a"), *reason]
        self.send(self.rejected, [{"headers": headers}])

    def confirm(self, kind: str, request: bytes, origin: bytes) -> Sent:
        said = {"v": 1, "kind": kind, "at_ms": now_ms(), "request": request.decode(), "origin": origin.decode()}
        return self.send(self.receipts, [{"value": json.dumps(said).encode()}])[0]

    def audit(self, out: Path, *more: str) -> int:
        return main([*self.arguments(out), *more])

    def arguments(self, out: Path) -> list[str]:
        """Of an audit."""
        topics = ["--timer-topic", self.timers, "--rejected-topic", self.rejected, "--receipts-topic", self.receipts]
        at_once = ["--settle-ms", "0", "--skew-ms", "0"]
        return ["--bootstrap-servers", self.servers, "--out", str(out), *topics, *at_once]


def due(at_ms: int) -> tuple[str, bytes]:
    return (names.DELIVER_MS, b"%d" % at_ms)


@pytest.fixture
def world(kafka: Broker) -> World:
    return World(kafka.bootstrap_servers)


def clean(world: World) -> None:
    """Delivered by both clocks, in both partitions, in RocketMQ's headers; rejected, pending, aborted."""
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
    spelled = [("REAL_TOPIC", world.orders.encode()), ("TIMER_DELIVER_MS", b"%d" % now), ("tenant", b"a")]
    world.deliver(world.send(world.timers, [{"headers": spelled}])[0].origin, now)


SERVED = {
    "plain": ("delivered", None),
    "level": ("delivered", None),
    "rolled": ("delivered", None),
    "cancelled": ("cancelled", "receipt"),
    "cancelled-2": ("cancelled", "receipt"),
    "replaced": ("replaced", "receipt"),
    "cancel": ("cancel-done", "receipt"),
    "cancel twice": ("cancel-not-found", "receipt"),
    "replaces": ("delivered", None),
    **dict.fromkeys(("too far", "bad", "nowhere", "forged"), ("rejected", None)),
    "cancel after rolls": ("cancel-done", "receipt"),
    "last": ("delivered", None),
    "waits": ("pending", None),
}
"""Class and proof of each request that `served` sends."""


def served(kafka: Broker, world: World, folder: Path) -> dict[str, Sent]:
    """Let a real bridge serve requests: ids, cancels, replaced ones, rolls in a window of 1 s, levels, refusals."""
    topics, sent = world.topics, dict[str, Sent]()
    Admin(kafka.bootstrap_servers).create_topics([topics.target], partitions=2, settings=BROKER_CLOCK)

    def send(name: str, *headers: tuple[str, bytes], target: str = topics.target) -> None:
        sent[name] = world.request(*headers, target=target, value=name.encode())

    def after(ms: int) -> tuple[str, bytes]:
        return (names.DELAY_MS, b"%d" % ms)

    def named(id_: str) -> tuple[str, bytes]:
        return (names.ID, id_.encode())

    end = (names.ACTION, b"cancel")
    settings = ["--roll-window", "1s", "--receipts", "all"]
    with BridgeProcess(folder, kafka.bootstrap_servers, [*topics.arguments, *settings]) as bridge:
        send("plain", after(100))
        send("level", (names.DELAY_LEVEL, b"1"))
        send("rolled", after(8_000), named("r"))
        send("cancelled", after(60_000), named("c"))
        send("cancelled-2", after(60_000), named("rolling"))
        send("replaced", after(60_000), named("p"))
        send("cancel", end, named("c"))
        send("cancel twice", end, named("c"))
        send("replaces", after(200), named("p"), (names.ACTION, b"replace"))
        send("too far", (names.DELIVER_MS, b"99999999999999"), named("p2"))
        send("bad", after(100), (names.DELIVER_MS, b"5"))
        send("nowhere", after(100), target=f"{topics.target}-none")
        send("forged", (names.DELIVER_MS, b"5"), (names.ORIGIN, sent["rolled"].origin), (names.ROLLS, b"1"))
        delivered = {r.value() for r in read(kafka, topics.target, 4)}
        assert delivered == {b"plain", b"level", b"rolled", b"replaces"}
        send("cancel after rolls", end, named("rolling"))
        send("last", after(50))
        read(kafka, topics.target, 5)
        send("waits", after(3_600_000))
        # Accepted 10, delivered 5, cancelled 2, not found, replaced, rejected 4: with these all is done.
        read(kafka, world.receipts, 23)
        bridge.demand_alive()
    return sent


def test_planted_faults_exit_3_and_each_is_found_beside_the_timers_of_a_real_bridge(
    kafka: Broker, world: World, tmp_path: Path
) -> None:
    sent = served(kafka, world, tmp_path / "bridge")
    clean(world)
    now = now_ms()
    planted: dict[str, bytes] = {}
    for name in ("duplicate", "altered", "rejected-but-delivered"):
        planted[name] = world.request(due(now)).origin
    planted["early"] = world.request(due(now + 3_600_000)).origin
    of_id = (names.ID, b"x")
    cancelled, cancel = world.request(due(now), of_id), world.request((names.ACTION, b"cancel"), of_id)
    told_ms = world.confirm("cancelled", cancel.origin, cancelled.origin).timestamp_ms
    until(lambda: now_ms() > told_ms)
    planted["cancelled-but-delivered"] = cancelled.origin
    world.deliver(cancelled.origin, now)
    forged = world.request(due(now), (names.ORIGIN, planted["early"]), (names.ROLLS, b"9")).origin
    never = world.send(world.timers, [{"partition": 1, "headers": [due(now)]}], commit=False)[0]
    planted["unexplained"] = never.origin
    world.deliver(planted["duplicate"], now)
    world.deliver(planted["duplicate"], now, partition=1)
    world.deliver(planted["altered"], now, value=b"V")
    world.deliver(planted["rejected-but-delivered"], now)
    world.reject(planted["rejected-but-delivered"], "too-large")
    world.deliver(planted["early"], now + 3_600_000)
    # An hour ago, bills had all of its partitions.
    world.send(world.bills, [{"partition": 1, "timestamp": now - 3_600_000}])
    elsewhere = world.request(due(now), target=world.bills).origin
    world.deliver(elsewhere, now, topic=world.bills, partition=1 - partition_of(b"k", 2))
    soon = now_ms() + 500
    first, second = world.request(due(soon)).origin, world.request(due(soon)).origin
    until(lambda: now_ms() > soon)
    for origin in (second, first):
        world.deliver(origin, soon)
    nowhere = world.request(due(now), target="no-such-topic").origin
    world.deliver(planted["unexplained"], now)
    trace = (names.TRACE_ID, b"7F00")
    planted["missing"] = world.request(due(now), trace).origin
    world.send(world.orders, [{"headers": [("tenant", b"a"), trace]}])

    assert world.audit(tmp_path, "--metrics-file", str(tmp_path / "audit.prom")) == 3
    told = (tmp_path / "audit.prom").read_text()
    for name in planted:
        count = {"missing": 2, "altered": 2}.get(name, 1)
        assert f'timer_audit_faults{{class="{name}",timer_topic="{world.timers}"}} {count}.0' in told
    assert f'timer_audit_faults{{class="out-of-order",timer_topic="{world.timers}"}} 1.0' in told
    rows = pq.read_table(tmp_path / "requests").to_pylist()
    unstamped = [row for row in rows if row["class"] == "unstamped"]
    assert [f"{row['topic']}/{row['partition']}/{row['offset']}".encode() for row in unstamped] == [planted["missing"]]
    faulty = {row["origin"].encode(): row["class"] for row in rows if row["faults"] and row not in unstamped}
    others = {forged: "missing", elsewhere: "altered"}
    assert faulty == {origin: name for name, origin in planted.items()} | others
    assert {row["class"] for row in rows if row["origin"].encode() == nowhere} == {"unjudged"}, "deleted since?"
    of_bridge = {name: row for name, at in sent.items() for row in rows if row["origin"].encode() == at.origin}
    assert {name: (row["class"], row["proof"]) for name, row in of_bridge.items()} == SERVED
    assert of_bridge["rolled"]["copies"] >= 2
    assert of_bridge["cancelled-2"]["copies"] >= 1
    (early,) = verdicts(str(tmp_path), [planted["early"].decode()])
    assert (early["class"], early["delivered_topic"]) == ("early", world.orders)
    by_topic = {row["topic"]: row["clock"] for row in pq.read_table(tmp_path / "topics").to_pylist()}
    assert (by_topic[world.orders], by_topic[world.bills]) == ("LogAppendTime", "CreateTime")
    page = (tmp_path / "report.html").read_text()
    assert "11 faults" in page
    assert f"1 deliveries, such as those of {second.decode()}" in page
    assert "no-such-topic" in page


@pytest.mark.slow
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
    (at_once,) = parse(world.arguments(tmp_path), {})
    verdict = run_audit(replace(at_once, from_ms=from_ms, to_ms=to_ms))
    assert (verdict.clean, verdict.requests, verdict.counts["delivered"]) == (True, 1, 1)
    assert verdict.notes == ("Not judged, as their requests lie outside the range: 1 origins.",)


@pytest.mark.slow
def test_what_an_open_transaction_hides_is_pending_until_it_is_decided(world: World, tmp_path: Path) -> None:
    """Another sender's, on the real topic and on the rejected one: what stands behind it may not be read yet."""
    now = now_ms()
    came, refused, lost = world.request(due(now)), world.request((names.DELAY_MS, b"-1")), world.request(due(now))
    name = f"other-{world.orders}"
    other = Producer({"bootstrap.servers": world.servers, "transactional.id": name, "transaction.timeout.ms": 600_000})
    other.init_transactions(PATIENCE_S)
    other.begin_transaction()
    for topic in (world.orders, world.rejected):
        other.produce(topic, b"not ours", partition=0, headers=[(names.ORIGIN, b"other.timers/0/1")])
    other.flush(PATIENCE_S)
    world.deliver(came.origin, now)
    world.reject(refused.origin, "bad-header")

    def told(name: str) -> dict[bytes, str]:
        assert world.audit(tmp_path / name, "--hanging-ms", "0") == 3
        rows = pq.read_table(tmp_path / name / "requests").to_pylist()
        return {row["origin"].encode(): row["class"] for row in rows}

    assert told("open") == {came.origin: "pending", refused.origin: "pending", lost.origin: "missing"}
    page = (tmp_path / "open" / "report.html").read_text()
    assert "Pending, though due: 2 timers" in page
    hanging = [f"A transaction on {topic}/0 has been open since" in page for topic in (world.orders, world.rejected)]
    assert hanging == [True, True]
    other.commit_transaction(PATIENCE_S)
    assert told("decided") == {came.origin: "delivered", refused.origin: "rejected", lost.origin: "missing"}
    assert "has been open since" not in (tmp_path / "decided" / "report.html").read_text()


@pytest.mark.slow
def test_one_who_sends_from_tomorrow_hides_nothing_from_an_audit_of_a_day(world: World, tmp_path: Path) -> None:
    """`bills` has the times that senders say."""
    now = now_ms()
    timer = world.request(due(now), target=world.bills)
    world.send(world.bills, [{"timestamp": now + 1_800_000}])
    world.deliver(timer.origin, now, topic=world.bills)
    time.sleep(0.01)
    as_of = datetime.fromtimestamp(now_ms() / 1000, UTC).isoformat()
    assert world.audit(tmp_path, "--daily", "--as-of", as_of) == 0
    (rows,) = (pq.read_table(day).to_pylist() for day in (tmp_path / "requests").iterdir())
    assert [(row["origin"].encode(), row["class"]) for row in rows] == [(timer.origin, "delivered")]


@pytest.mark.slow
def test_several_timer_topics_are_audited_in_one_run(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in a folder of its own. One that fails stops no other."""
    now, others, out = now_ms(), (f"none-{world.timers}", f"more-{world.timers}"), tmp_path / "audits"
    Admin(world.servers).create_topics([others[1]], partitions=1, settings=BROKER_CLOCK)
    world.deliver(world.request(due(now)).origin, now)
    world.send(others[1], [{"headers": [(names.TOPIC, world.orders.encode()), due(now)]}])
    (tmp_path / "bridge.toml").write_text("\n".join(f'[topics."{topic}"]' for topic in others))
    given = [*world.arguments(out), "--config", str(tmp_path / "bridge.toml")]
    place = given.index("--timer-topic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMER_BRIDGE_TIMER_TOPIC", world.timers)
        assert main(given[:place] + given[place + 2 :]) == 3
    told = capsys.readouterr()
    assert f"timer-bridge audit: {others[0]}: there is no topic {others[0]} on this cluster" in told.err
    assert f"{world.timers}:\nClean: 1 requests" in told.out
    classes = [pq.read_table(out / topic / "requests")["class"].to_pylist() for topic in (world.timers, others[1])]
    assert classes == [["delivered"], ["missing"]]


@pytest.mark.slow
def test_a_table_that_cannot_be_merged_hides_no_fault(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AnalysisException("the catalog is away")

    monkeypatch.setattr(requests_table, "opened", lambda *_: fail)
    now = now_ms()
    world.deliver(world.request(due(now)).origin, now)
    for expected in 1, 3:
        assert world.audit(tmp_path, "--table", "lake.audit.requests") == expected
        assert "--table lake.audit.requests lacks this audit's rows: the catalog is away" in capsys.readouterr().out
        world.request(due(now_ms()))


def test_trouble_exits_1_and_says_what_to_do(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.timers = "no-such-topic"
    assert world.audit(tmp_path) == 1
    assert "there is no topic no-such-topic on this cluster: check --timer-topic" in capsys.readouterr().err


def test_an_advertised_address_that_cannot_be_reached_ends_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that was asked first answers, and names itself by a name that does not resolve."""
    monkeypatch.setattr(admin, "TIMEOUT_S", 10.0)
    hidden = {"advertised.listeners": "PLAINTEXT://nowhere.invalid:9092", "auto.create.topics.enable": "true"}
    with started("nowhere", hidden) as broker:
        client = Producer({"bootstrap.servers": broker.bootstrap_servers})
        until(lambda: client.list_topics("timers", timeout=PATIENCE_S).topics["timers"].partitions)
        cluster, begin_s = admin.Cluster(KafkaAccess(broker.bootstrap_servers)), time.monotonic()
        with pytest.raises(JobFailedError, match=r"nowhere.invalid.*correct advertised.listeners"):
            cluster.spans(["timers"])
        assert time.monotonic() - begin_s < admin.TIMEOUT_S + 10
