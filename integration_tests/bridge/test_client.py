"""The client, its commands and the example, with a real broker and a real `timer-bridge run`."""

import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer, admin

from integration_tests.conftest import ROOT, Broker
from integration_tests.support.bridge_command import COMMAND, Names, command, read
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S, until
from kafka_timer import cancel_headers, headers_for, partition_for
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess

PARTITIONS = 4


class Served:
    """A running bridge, and clients of it."""

    def __init__(self, broker: Broker, names: Names, config: Path) -> None:
        self.broker, self.names, self.config = broker, names, config

    def command(self, *arguments: str, timers: str | None = None) -> "subprocess.CompletedProcess[str]":
        where = ["--bootstrap-servers", self.broker.bootstrap_servers, "--timer-topic", timers or self.names.timers]
        return command(*arguments, *where)

    def started(self, *arguments: str) -> "subprocess.Popen[str]":
        where = ["--bootstrap-servers", self.broker.bootstrap_servers]
        pipe = subprocess.PIPE
        return subprocess.Popen([COMMAND, *arguments, *where], stdout=pipe, stderr=pipe, text=True)

    def outcomes(self, count: int) -> list[tuple[str, str]]:
        """(kind, id) of the first receipts, sorted."""
        said = [json.loads(record.value()) for record in read(self.broker, self.names.receipts, count)]
        return sorted((each["kind"], each.get("id", "")) for each in said)


@pytest.fixture
def served(kafka: Broker, names: Names, tmp_path: Path) -> Iterator[Served]:
    names.create_target(kafka)
    arguments = [*names.arguments, "--partitions", str(PARTITIONS), "--levels", "1s"]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        config = tmp_path / "topics.toml"
        topics = f'receipts_topic = "{names.receipts}"\nrejected_topic = "{names.rejected}"\n'
        config.write_text(f'{topics}[kafka]\n"linger.ms" = 5\n')  # which no consumer takes
        yield Served(kafka, names, config)


@pytest.mark.broker
def test_commands_send_replace_and_cancel(served: Served) -> None:
    target = served.names.target
    assert served.command("send", target, "old", "--in", "1h", "--id", "a").returncode == 0
    sent = served.command("send", target, "gone", "--in", "1h", "--id", "b", "--key", "k", "--json")
    (place,) = json.loads(sent.stdout)["sent"]
    assert (place["topic"], place["partition"]) == (served.names.timers, partition_for("b", PARTITIONS))
    replaced = served.command("replace", "a", target, "new", "--in", "100ms", "-H", "trace=1", "-H", "trace=2")
    assert (replaced.returncode, replaced.stderr) == (0, "")
    assert replaced.stdout == f"replacement of a sent to {served.names.timers}/{partition_for('a', PARTITIONS)}\n"
    (delivered,) = read(served.broker, target, 1)
    assert delivered.headers()[:2] == [("trace", b"1"), ("trace", b"2")]
    cancelled = served.command("cancel", "b")
    assert cancelled.stdout == f"cancel of b sent to {served.names.timers}/{partition_for('b', PARTITIONS)}\n"
    assert served.outcomes(2) == [("cancelled", "b"), ("replaced", "a")]
    canary = ("canary", "--once", "--topic", f"canary-{target}")
    arrived = served.command(*canary, "--delay", "200ms")
    assert (arrived.returncode, json.loads(arrived.stdout)["event"]) == (0, "arrived"), arrived
    lost = served.command(*canary, "--delay", "0", "--timeout", "1ms", timers=target)  # where no bridge reads it
    assert (lost.returncode, json.loads(lost.stdout)["event"]) == (3, "lost"), lost


@contextmanager
def running(example: str, *arguments: str) -> Iterator[list[str]]:
    """Run an example until the end of the block, and add its output to the list."""
    said: list[str] = []
    command, env = [sys.executable, "-m", f"examples.{example}", *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield said
        finally:
            process.send_signal(signal.SIGTERM)
            said.append(process.communicate(timeout=PATIENCE_S)[0])
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.broker
def test_a_share_group_gets_a_failed_record_again_later_and_once(kafka: Broker, names: Names, tmp_path: Path) -> None:
    """If its consumer dies, a second retry replaces the first: bridge/tests/test_client.py."""
    group, servers = f"share-{uuid4().hex[:8]}", kafka.bootstrap_servers
    retries = f"{names.target}.retry"
    names.create_target(kafka, retries)
    set_up_share_group(servers, group)
    cluster = Cluster(servers)
    for value in (b"fine", b"fails"):
        cluster.send(names.target, value)
    cluster.flush()
    arguments = ["--bootstrap-servers", servers, "--group", group, "--topic", names.target]
    arguments += ["--retry-topic", retries, "--timer-topic", names.timers]
    bridge = BridgeProcess(tmp_path, servers, [*names.arguments, "--levels", "1s"])
    with bridge, running("share_group", *arguments) as said:
        (retried,) = read(kafka, retries, 1)
    assert (retried.value(), dict(retried.headers())["timer-retries"]) == (b"fails", b"1")
    assert cluster.values(retries) == [b"fails"]
    assert "failed fails" in said[0]


def set_up_share_group(servers: str, group: str) -> None:
    """Let the group read from the beginning."""
    kafka_admin: Any = admin
    set_ = {"incremental_operation": kafka_admin.AlterConfigOpType.SET}
    entries = [kafka_admin.ConfigEntry("share.auto.offset.reset", "earliest", **set_)]
    of_group = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.GROUP, group, incremental_configs=entries)
    client = admin.AdminClient({"bootstrap.servers": servers})
    for future in client.incremental_alter_configs([of_group]).values():
        future.result(PATIENCE_S)


@pytest.mark.broker
def test_case_9_the_example_retries_until_the_dead_letters(served: Served) -> None:
    group = f"billing-{uuid4().hex[:8]}"
    dead = f"DLQ.{group}"
    Admin(served.broker.bootstrap_servers).create_topics([dead], partitions=1, settings=BROKER_CLOCK)
    cluster = Cluster(served.broker.bootstrap_servers)
    cluster.send(served.names.target, b"fine")
    last = [("timer-retries", b"14"), ("timer-retry-group", group.encode()), ("trace", b"1")]
    cluster.send(served.names.target, b"fails", key=b"key", headers=last)
    cluster.flush()
    arguments = ["--bootstrap-servers", served.broker.bootstrap_servers, "--topic", served.names.target]
    arguments += ["--group", group, "--timer-topic", served.names.timers]
    with running("consumer_retry", *arguments) as output:
        (letter,) = read(served.broker, dead, 1)
    (said,) = output
    assert (letter.key(), letter.value()) == (b"key", b"fails")
    assert dict(letter.headers())["timer-retries"] == b"16"
    values = [message.value() for message in read(served.broker, served.names.target, 4)]
    assert values == [b"fine", b"fails", b"fails", b"fails"]
    assert "handled fine after 0 retries" in said
    assert said.count(f"sent to {served.names.timers}") == 2
    assert f"sent to {dead}" in said


@pytest.mark.broker
def test_commands_wait_for_the_outcome(served: Served) -> None:
    topics = ["--wait", "--config", str(served.config)]
    target = served.names.target
    for words, said, code in (
        (["send", target, "v", "--in", "200ms"], "delivered, ", 0),
        (["send", target, "v", "--in", "400d"], "rejected: too-far: ", 4),
        (["send", target, "v", "--in", "1h", "--id", "a", "--timeout", "1s"], "no outcome within 1s", 5),
        (["move", "a", "--in", "2h"], "moved\n", 0),
        (["resume", "--id", "b"], "not-found", 4),
        (["replace", "a", target, "w", "--in", "1h"], "replaced\n", 0),
        (["replace", "new", target, "w", "--in", "1h"], "not-found", 4),
        (["release", "new", "--json"], '{"outcome": {"state": "moved", "at_ms": ', 0),
        (["cancel", "a", "--all-partitions"], "", 0),
    ):
        ended = served.command(*words, *topics)
        assert (ended.returncode, (ended.stdout + ended.stderr).startswith(said)) == (code, True), (words, ended)


@pytest.mark.broker
def test_a_cancel_by_another_partitioner_tells_where_the_timer_may_be(served: Served) -> None:
    at_crc32: list[int | None] = []
    other = Producer({"bootstrap.servers": served.broker.bootstrap_servers})

    def send(id_: str, headers: Sequence[tuple[str, bytes | None]]) -> None:
        other.produce(
            served.names.timers,
            b"v",
            id_,
            headers=list(headers),
            on_delivery=lambda _, it: at_crc32.append(it.partition()),
        )
        assert other.flush(PATIENCE_S) == 0

    ids = [f"order-{number}" for number in range(9)]
    differ = [each for each in ids if zlib.crc32(each.encode()) % PARTITIONS != partition_for(each, PARTITIONS)]
    for each in differ[:2]:
        send(each, headers_for(served.names.target, delay="1h", id=each))
        missed = served.command("cancel", each, "--wait", "--config", str(served.config))
        ours = partition_for(each, PARTITIONS)
        places = f"this is partition {ours}; the id goes to partition {ours} by murmur2 (Java, kafka_timer)"
        assert missed.stdout.startswith(f"not-found: {places} and to {at_crc32[-1]} by CRC32"), missed
    log = served.config.parent / "bridge.log"
    assert "by CRC32" not in log.read_text()
    for each in ids:
        send(each, cancel_headers(each))
    assert len(served.outcomes(2 + len(ids))) == 2 + len(ids)
    until(lambda: "by CRC32" in log.read_text(), "the warning")  # it is logged after the commit
    assert log.read_text().count("by CRC32") == 1
    send(differ[0], headers_for(served.names.target, delay="1h", id=differ[0]))
    everywhere = ["--in", "1h", "--all-partitions", "--wait", "--config", str(served.config)]
    replaced = served.command("replace", differ[0], served.names.target, "w", *everywhere)
    assert (replaced.returncode, "cancelled\n" in replaced.stdout) == (0, True), replaced


@pytest.mark.broker
def test_read_shows_deliveries_with_their_lateness_and_refusals(served: Served) -> None:
    target, lost, all_ = served.names.target, f"no-{served.names.target}", ["--from-beginning", "--count", "1"]
    with served.started("read", target) as reading:
        assert reading.stderr is not None
        assert reading.stdout is not None
        assert reading.stderr.readline() == f"reading {target}; Ctrl-C ends it\n"
        for value, topic in (("hello \x1b", target), ("lost?", lost)):
            assert served.command("send", topic, value, "--key", "7", "--in", "200ms").returncode == 0
        line = reading.stdout.readline()
        assert re.fullmatch(rf"{target}/0/\d+  (0|\d+(ms|s)\S*) late  key 7  hello \\x1b\n", line), line
        reading.send_signal(signal.SIGINT)
        assert reading.wait(PATIENCE_S) == 0
    (delivered, rejected) = (
        served.command("read", topic, *all_, "--json") for topic in (target, served.names.rejected)
    )
    first = json.loads(delivered.stdout)
    late_ms = int(first["headers"]["timer-released-ms"]) - int(first["headers"]["timer-deliver-ms"])
    assert (first["key"], first["value"], first["late_ms"]) == ("7", "hello \x1b", late_ms)
    assert json.loads(rejected.stdout)["late_ms"] is None
    text = served.command("read", served.names.rejected, *all_).stdout
    assert re.fullmatch(rf"{served.names.rejected}/\d/0  unknown-topic: topic {lost} .*  key 7  lost\?\n", text), text
    missing = served.command("read", lost)
    assert (missing.returncode, "cannot be read" in missing.stderr) == (1, True), missing
