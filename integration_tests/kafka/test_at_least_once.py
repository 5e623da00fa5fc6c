"""`timer-bridge run --delivery at-least-once` against a real broker: killed under load, nothing is lost."""

import json
import time
from pathlib import Path

import pytest

from integration_tests.bridge.test_run import Names, read
from integration_tests.conftest import Broker
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from scripts.common.processes import BridgeProcess

pytestmark = pytest.mark.broker
COUNT = 3000


def test_killed_under_load_a_bridge_loses_no_timer_and_cancels_hold(kafka: Broker, tmp_path: Path) -> None:
    names, cluster = Names(), Cluster(kafka.bootstrap_servers)
    cluster.create(names.target)
    to = ("timer-topic", names.target.encode())
    arguments = [*names.arguments, "--delivery", "at-least-once", "--receipts", "outcomes"]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        pass  # the topics are made
    for number in range(COUNT + 100):
        id_, delay_ms = ("timer-id", b"%d" % number), number % 3000 if number < COUNT else 3_600_000
        asked = [to, id_, ("timer-delay-ms", b"%d" % delay_ms)]
        cluster.send(names.timers, b"%d" % number, partition=number % 2, headers=asked)
        if number >= COUNT:
            gone = [("timer-action", b"cancel"), id_]
            cluster.send(names.timers, None, partition=number % 2, headers=gone)
    cluster.flush()
    bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments)
    bridge.start()
    read(kafka, names.target, 300)
    bridge.kill()
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        delivered: set[bytes | None] = set()
        cancelled: set[str] = set()
        end_s = time.monotonic() + PATIENCE_S
        while len(delivered) < COUNT or len(cancelled) < 100:
            assert time.monotonic() < end_s, f"{len(delivered)} of {COUNT} delivered, {len(cancelled)} of 100 cancelled"
            time.sleep(0.1)
            delivered = set(cluster.values(names.target))
            receipts = [json.loads(value or b"{}") for value in cluster.values(names.receipts)]
            cancelled = {told["id"] for told in receipts if told["kind"] == "cancelled"}
    assert delivered == {b"%d" % number for number in range(COUNT)}
    assert cancelled == {str(number) for number in range(COUNT, COUNT + 100)}
    assert cluster.values(names.rejected) == []


def test_records_that_the_broker_refuses_are_parked_and_the_others_are_sent_once(kafka: Broker, tmp_path: Path) -> None:
    names, cluster = Names(), Cluster(kafka.bootstrap_servers)
    cluster.create(names.target)
    small = cluster.topic("small", max_message_bytes="1000")
    arguments = [*names.arguments, "--delivery", "at-least-once"]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        due = ("timer-delay-ms", b"300")
        for number in range(100):
            cluster.send(names.timers, b"%d" % number, headers=[("timer-topic", names.target.encode()), due])
        for value, topic in ((b"1", b"nowhere"), (b"2" * 2000, small.encode()), (b"3", small.encode())):
            cluster.send(names.timers, value, headers=[("timer-topic", topic), due])
        cluster.flush()
        rejected = {record.value(): dict(record.headers())["timer-error"] for record in read(kafka, names.rejected, 2)}
        read(kafka, names.target, 100)
        read(kafka, small, 1)
    assert rejected == {b"1": b"unknown-topic", b"2" * 2000: b"too-large"}
    assert sorted(map(int, cluster.values(names.target))) == list(range(100))  # type: ignore[arg-type]
    assert cluster.values(small) == [b"3"]
