"""`timer-bridge run` as people run it: a process, its words, its exit codes, and what it does to records."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bridge.embedded import EmbeddedKafka, free_port
from integration_tests.conftest import Broker
from scripts.kafka_io import BROKER_CLOCK, Admin, Receiver, send_all, timer
from scripts.processes import BridgeProcess

COMMAND = str(Path(sys.executable).with_name("timer-bridge"))
SOON: tuple[str, bytes] = ("timer-delay-ms", b"200")


class Names:
    """Topics and a group of a test's own."""

    def __init__(self) -> None:
        mark = uuid4().hex[:8]
        self.timers, self.rejected, self.target = f"timers-{mark}", f"rejected-{mark}", f"orders-{mark}"
        self.journal, self.receipts = f"journal-{mark}", f"receipts-{mark}"
        self.arguments = ["--group", f"group-{mark}", "--partitions", "2", "--timer-topic", self.timers]
        self.arguments += ["--rejected-topic", self.rejected, "--journal-topic", self.journal]
        self.arguments += ["--receipts-topic", self.receipts]


@pytest.fixture
def names() -> Names:
    return Names()


def send(broker: Broker, names: Names, value: bytes | None, *headers: tuple[str, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(names.timers, value, b"key", headers=list(headers))
    assert producer.flush(10) == 0


def read(broker: Broker, topic: str, count: int) -> list[Any]:
    """The first `count` committed records of a topic with one or more partitions."""
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid4().hex, "isolation.level": "read_committed"}
    )
    partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
    reader.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[Any] = []
    while len(found) < count:
        message: Any = reader.poll(20)
        assert message is not None, f"{len(found)} of {count} records came on {topic}"
        assert message.error() is None, message.error()
        found.append(message)
    reader.close()
    return found


@pytest.mark.broker
def test_records_come_back_as_they_went(kafka: Broker, names: Names, tmp_path: Path) -> None:
    Admin(kafka.bootstrap_servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
    foreign: list[tuple[str, bytes | None]] = [("trace", b"1"), ("trace", b"1"), ("none", None), ("raw", b"\xff\xfe")]
    to = ("timer-topic", names.target.encode())
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        send(kafka, names, b"value", to, SOON, *foreign)
        (delivered,) = read(kafka, names.target, 1)
        assert (delivered.key(), delivered.value()) == (b"key", b"value")
        assert delivered.headers()[:4] == foreign
        added = dict(delivered.headers()[4:])
        assert delivered.timestamp()[1] >= int(added["timer-deliver-ms"])
        assert int(added["timer-released-ms"]) >= int(added["timer-deliver-ms"])
        assert added["timer-origin"].startswith(names.timers.encode())
        send(kafka, names, None, to, SOON)
        send(kafka, names, b"", to, SOON, ("timer-key", b"other"))
        later = read(kafka, names.target, 3)[1:]
        assert {(record.key(), record.value()) for record in later} == {(b"key", None), (b"other", b"")}


@pytest.mark.broker
def test_case_25_and_32_what_cannot_be_taken_is_rejected_and_delays_nobody(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    admin = Admin(kafka.bootstrap_servers)
    admin.create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
    admin.create_topics([f"{names.target}-small"], partitions=1, settings={"max.message.bytes": "1000"})
    to, small = ("timer-topic", names.target.encode()), ("timer-topic", f"{names.target}-small".encode())
    asked: dict[bytes, tuple[str, list[tuple[str, bytes | None]]]] = {
        b"1": ("bad-header", [to, ("timer-delay-ms", b"-1")]),
        b"2": ("bad-target", [SOON, ("timer-topic", names.timers.encode())]),
        b"3": ("unknown-topic", [SOON, ("timer-topic", b"nowhere")]),
        b"4": ("unknown-partition", [SOON, to, ("timer-partition", b"7")]),
        b"5" * 2000: ("too-large", [SOON, small]),
        b"6": ("not-ours", [SOON, to, ("timer-rolls", b"1")]),
    }
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        for value, (_, headers) in asked.items():
            send(kafka, names, value, *headers)
        for _ in range(30):
            send(kafka, names, b"x" * 100, SOON, small)
        send(kafka, names, b"fine", SOON, to)
        rejected = {record.value(): dict(record.headers()) for record in read(kafka, names.rejected, len(asked))}
        assert {value: headers["timer-error"].decode() for value, headers in rejected.items()} == {
            value: code for value, (code, _) in asked.items()
        }
        assert [record.value() for record in read(kafka, names.target, 1)] == [b"fine"]
        assert len(read(kafka, f"{names.target}-small", 30)) == 30


@pytest.mark.broker
def test_sigterm_in_a_burst_ends_in_time_and_nothing_is_lost_or_doubled(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    count = 30_000
    Admin(kafka.bootstrap_servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        pass
    due_ms = time.time_ns() // 1_000_000
    send_all(kafka.bootstrap_servers, names.timers, (timer(names.target, due_ms, b"v" * 200) for _ in range(count)))
    with Receiver(kafka.bootstrap_servers, [names.target]) as receiver:
        bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments)
        bridge.start()
        found = receiver.poll(30)
        assert found, "nothing was delivered"
        bridge.stop(timeout_s=10)
        with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
            while len(found) < count and (more := receiver.poll(20)):
                found += more
        found += receiver.poll(1)
    assert len(found) == len({delivery.origin for delivery in found}) == count


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return command("run", *arguments, **environment)


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_wrong_setting_is_named_with_the_remedy_and_ends_with_2(tmp_path: Path) -> None:
    ended = run("--bootstrap-servers", "127.0.0.1:1", "--tick-ms", "soon", "--data-dir", str(tmp_path))
    assert (ended.returncode, "tick_ms = 'soon'" in ended.stderr) == (2, True)
    assert "Traceback" not in ended.stderr


def test_without_a_broker_it_waits_and_ends_with_1(tmp_path: Path) -> None:
    asked = ["--bootstrap-servers", f"127.0.0.1:{free_port()}", "--data-dir", str(tmp_path)]
    ended = run(*asked, TIMER_BRIDGE_STARTUP_TIMEOUT="1s")
    assert ended.returncode == 1
    assert "waiting for a broker" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.broker
def test_a_second_process_on_one_directory_refuses(kafka: Broker, names: Names, tmp_path: Path) -> None:
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        data = str(tmp_path / "timer-data")
        ended = run("--bootstrap-servers", kafka.bootstrap_servers, "--data-dir", data, *names.arguments)
    assert (ended.returncode, "another bridge runs on it" in ended.stderr) == (2, True)


@pytest.mark.broker
def test_case_16_a_retention_that_would_lose_timers_is_refused(kafka: Broker, names: Names, tmp_path: Path) -> None:
    settings = {**BROKER_CLOCK, "retention.ms": "1000"}
    Admin(kafka.bootstrap_servers).create_topics([names.timers], partitions=1, settings=settings)
    data = str(tmp_path / "data")
    ended = run("--bootstrap-servers", kafka.bootstrap_servers, "--data-dir", data, *names.arguments)
    assert ended.returncode == 2
    assert "retention.ms is 1000" in ended.stderr
    assert "set retention.ms to" in ended.stderr


@pytest.mark.broker
def test_a_broker_that_asks_for_a_password_gets_it_and_nobody_else(
    make_kafka: Callable[[dict[str, str]], EmbeddedKafka], names: Names, tmp_path: Path
) -> None:
    password = uuid4().hex
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker = make_kafka(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": f'{login} username="bridge" password="{password}"'
            f' user_bridge="{password}";',
        }
    )
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "bridge"}
    table = "[kafka]\n" + "".join(f'{name} = "{value}"\n' for name, value in security.items())
    config, wrong = tmp_path / "bridge.toml", tmp_path / "wrong.toml"
    config.write_text(f'{table}sasl.password = "{password}"\n')
    wrong.write_text(f'{table}sasl.password = "{password[::-1]}"\n')
    ours: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, **security, "sasl.password": password}
    admin = AdminClient(ours)
    admin.create_topics([NewTopic(names.target, 1)])[names.target].result()
    to = ["send", names.target, "hello", "--in", "1ms", "--bootstrap-servers", broker.bootstrap_servers]
    with BridgeProcess(tmp_path, broker.bootstrap_servers, [*names.arguments, "--config", str(config)]) as bridge:
        sent = command(*to, "--timer-topic", names.timers, "--config", str(config))
        assert (sent.returncode, sent.stdout) == (0, f"1 sent to {names.timers}\n")
        reader = Consumer({**ours, "group.id": uuid4().hex, "isolation.level": "read_committed"})
        reader.assign([TopicPartition(names.target, 0, 0)])
        delivered: Any = reader.poll(20)
        reader.close()
        assert delivered.value() == b"hello"
    refused = run(
        *("--bootstrap-servers", broker.bootstrap_servers, "--data-dir", str(tmp_path / "other")),
        *("--startup-timeout", "2s", "--config", str(wrong)),
    )
    assert refused.returncode == 1
    assert "authentication failed" in refused.stderr.lower()
    for shown in (bridge.log_path.read_text(), sent.stderr, refused.stdout, refused.stderr):
        assert password not in shown
        assert password[::-1] not in shown
