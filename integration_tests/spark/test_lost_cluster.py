"""A cluster is lost with its disks: `timer-bridge adopt` sends what its mirror says was pending to a second cluster."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bridge.dev.embedded_kafka import EmbeddedKafka
from integration_tests.support.bridge_command import Names, command
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S, until
from scripts.common.processes import BridgeProcess
from spark_jobs.audit import main

pytestmark = [pytest.mark.timeout(900), pytest.mark.broker, pytest.mark.spark, pytest.mark.usefixtures("spark")]

PREFIX = "primary."
FAR = ("timer-delay-ms", b"15000")
CANCEL = ("timer-action", b"cancel")
MOVE = ("timer-action", b"move")
BY_BROKER = {"message_timestamp_type": "LogAppendTime"}


class Site:
    """A cluster with a bridge; the timer topic has two partitions, an id goes to the one of its first letter."""

    def __init__(self, broker: EmbeddedKafka, names: Names, folder: Path) -> None:
        self.broker, self.cluster, self._names = broker, Cluster(broker.bootstrap_servers), names
        self.cluster.create(names.target, 2, **BY_BROKER)
        arguments = [*names.arguments, "--roll-window", "1s", "--receipts", "all"]
        self.bridge = BridgeProcess(folder, broker.bootstrap_servers, arguments)
        self.bridge.start()

    def send(self, name: str, *headers: tuple[str, bytes], id_: str = "") -> None:
        target = [] if CANCEL in headers or MOVE in headers else [("timer-topic", self._names.target.encode())]
        named = [("timer-id", id_.encode())] if id_ else []
        partition = ord((id_ or name)[0]) % 2
        self.cluster.send(
            self._names.timers, name.encode(), key=b"k", headers=[*target, *named, *headers], partition=partition
        )
        self.cluster.flush()

    def delivered(self) -> Counter[str]:
        return Counter((value or b"").decode() for value in self.cluster.values(self._names.target))

    def headers(self, topic: str) -> list[dict[str, bytes]]:
        return [dict(record.headers() or ()) for record in self.cluster.read(topic)]


def mirror(first: Cluster, second: Cluster, topic: str) -> None:
    """Copy a topic as MirrorMaker 2 does: committed records, with partition, key, value, headers and timestamp."""
    producer: Any = Producer({"bootstrap.servers": second.bootstrap_servers, "enable.idempotence": True})
    second.create(PREFIX + topic, 2)
    for record in first.read(topic):
        producer.produce(
            PREFIX + topic,
            record.value(),
            record.key(),
            record.partition(),
            timestamp=record.timestamp()[1],
            headers=record.headers(),
        )
    assert producer.flush(PATIENCE_S) == 0


def test_pending_timers_of_a_lost_cluster_are_delivered_once_by_a_second_one(
    make_kafka: Callable[[dict[str, str]], EmbeddedKafka], names: Names, tmp_path: Path
) -> None:
    first, broker = Site(make_kafka({}), names, tmp_path / "first"), make_kafka({})
    second = Cluster(broker.bootstrap_servers)
    due_from = str(time.time_ns() // 1_000_000)
    for name in ("a pending", "b pending"):
        first.send(name, FAR)
    first.send("c with an id", FAR, ("tenant", b"t"), id_="c")
    first.send("d cancelled", FAR, id_="d")
    first.send("d cancels", CANCEL, id_="d")
    first.send("e replaced", FAR, id_="e")
    first.send("e replaces", FAR, ("timer-action", b"replace"), id_="e")
    first.send("f moved", ("timer-delay-ms", b"3600000"), id_="f")
    first.send("f moves", FAR, MOVE, id_="f")
    first.send("g cancelled after the loss", FAR, id_="g")
    first.send("h recurring", ("timer-every-ms", b"4000"), ("timer-count", b"5"), ("timer-missed", b"all"), id_="h")
    for name in ("i delivered", "i delivered", "j delivered"):
        first.send(name, ("timer-delay-ms", b"300"))
    until(lambda: first.delivered()["i delivered"] == 2 and first.delivered()["j delivered"], "deliveries")
    until(lambda: first.delivered()["h recurring"], "an occurrence")
    rolled = [headers for headers in first.headers(names.timers) if headers.get("timer-rolls", b"0") >= b"2"]
    assert {headers["timer-topic"] for headers in rolled} == {names.target.encode()}, "copies that have rolled"

    mirror(first.cluster, second, names.target)
    first.send("k delivered, its delivery not mirrored", ("timer-delay-ms", b"300"))
    until(lambda: first.delivered()["k delivered, its delivery not mirrored"], "the last delivery")
    mirror(first.cluster, second, names.timers)
    first.send("l not mirrored", FAR)
    first.bridge.kill()
    first.broker.kill()

    site = Site(broker, names, tmp_path / "second")
    site.send("g cancels", CANCEL, id_="g")
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--timer-topic", names.timers, "--group", names.group]
    asked = ["adopt", PREFIX + names.timers, "--prefix", PREFIX, "--due-from", due_from, *where, "--json"]

    def adopted(*more: str) -> dict[str, Any]:
        ended = command(*asked, *more)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    pending = {row["code"]: row["selected"] for row in adopted()["records"]}["pending"]
    assert [adopted("--apply")["sent"], adopted("--apply")["sent"]] == [pending, 0]
    wanted = Counter({"h recurring": 5, "i delivered": 2, "j delivered": 1})
    wanted.update(["a pending", "b pending", "c with an id", "e replaces", "f moved"])
    wanted["k delivered, its delivery not mirrored"] = 1

    def came() -> Counter[str]:
        mirrored = Counter((value or b"").decode() for value in second.values(PREFIX + names.target))
        return mirrored + site.delivered()

    until(lambda: came() >= wanted, "all deliveries")
    assert came() == wanted
    assert site.delivered()["k delivered, its delivery not mirrored"] == 1, (
        "a consumer of the first cluster got it twice"
    )
    assert not {"i delivered", "j delivered"} & site.delivered().keys()
    for headers in site.headers(names.target):
        assert int(headers["timer-released-ms"]) >= int(headers["timer-deliver-ms"])
    site.bridge.stop()
    assert adopted("--apply")["sent"] == 0
    audit = ["--bootstrap-servers", broker.bootstrap_servers, "--out", str(tmp_path / "audit")]
    audit += ["--timer-topic", names.timers, "--rejected-topic", names.rejected, "--receipts-topic", names.receipts]
    assert main([*audit, "--settle-ms", "0"]) == 0
