"""The examples for Spring, Kafka Streams and Debezium, built by Maven, with a real broker and a real bridge."""

import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bridge.child_process import start_child
from integration_tests.conftest import ROOT, Broker, missing
from integration_tests.support.bridge_command import Names, read
from integration_tests.support.patience import PATIENCE_S
from scripts.common.kafka_io import Admin
from scripts.common.processes import BridgeProcess

REPOSITORY = ROOT / ".run" / "frameworks"
"""Maven's local repository, of these tests alone: each of its jars has to be pinned."""
PINNED = ROOT / "integration_tests" / "producers" / "frameworks.sha512"
MAVEN = ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={REPOSITORY}"]
RUN = [*MAVEN, "--offline", "exec:java"]
"""What `built` has built. The program runs in Maven's own process."""

pytestmark = pytest.mark.broker


def built(project: Path, folder: Path) -> Path:
    """Build a copy of a Maven project, and fetch what it needs to run. Return the copy.

    Skip the test if that cannot be fetched, fail at a jar that is not pinned. To pin versions again, in REPOSITORY:
    find . -name '*.jar' -printf '%P\\n' | sort | xargs sha512sum
    """
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        missing("no Maven or no Java compiler; on Debian: apt-get install maven openjdk-17-jdk-headless")
    copy = shutil.copytree(project, folder / "program", ignore=shutil.ignore_patterns("target"))
    done = subprocess.run(
        [*MAVEN, "compile", "exec:java", "-Dexec.skip"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if "could not be resolved" in done.stdout or "Could not resolve" in done.stdout:
        missing(f"Maven: {done.stdout[-2000:]}")
    assert done.returncode == 0, done.stdout
    pinned = {name: sha512 for sha512, name in (line.split() for line in PINNED.read_text().splitlines())}
    for jar in REPOSITORY.rglob("*.jar"):
        name = str(jar.relative_to(REPOSITORY))
        assert hashlib.sha512(jar.read_bytes()).hexdigest() == pinned.get(name), f"{name}: not the pinned one"
    return copy


@contextmanager
def running(program: Path, *options: str) -> Iterator[None]:
    """Run a program that `built` has built, and kill it at the end."""
    with (program / "log").open("ab") as log:
        process = start_child([*RUN, *options], cwd=program, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def produce(broker: Broker, topic: str, *records: tuple[str, str, dict[str, str]]) -> None:
    """Send records of key, value and headers."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value, headers in records:
        producer.produce(topic, value, key, headers=[(name, text.encode()) for name, text in headers.items()])
    assert producer.flush(PATIENCE_S) == 0


def header(message: Any, name: str) -> str | None:
    value: bytes | None = dict(message.headers() or ()).get(name)
    return None if value is None else value.decode()


def due_ms(message: Any) -> int:
    return int(header(message, "timer-deliver-ms") or "")


def appended_ms(message: Any) -> int:
    """Return the time of a record by the broker's clock."""
    return int(message.timestamp()[1])


def cancelled(broker: Broker, names: Names) -> str:
    """Return the id of the first receipt, which is that of a cancel."""
    (receipt,) = (json.loads(record.value()) for record in read(broker, names.receipts, 1))
    assert receipt["kind"] == "cancelled"
    return str(receipt["id"])


def count(broker: Broker, topic: str) -> int:
    """Return the number of records, and of markers of transactions."""
    return sum(Admin(broker.bootstrap_servers).ends(topic).values())


def test_spring_schedules_and_sends_failed_records_back_to_their_group_and_then_to_the_dlq(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    program, dead_letters = built(ROOT / "examples" / "spring", tmp_path), f"DLQ.{names.group}"
    names.create_target(kafka, dead_letters)
    theirs = {"timer-retry-group": "another", "timer-retries": "1"}
    produce(kafka, names.target, ("6", "fail, as the other group said", theirs), ("8", "fail", {"tenant": "a"}))
    options = [f"-Dservers={kafka.bootstrap_servers}", f"-Dtopic={names.target}", f"-Dgroup={names.group}"]
    options += [f"-Dtimer-topic={names.timers}", "-Dretry-delays-ms=300,600"]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments), running(program, *options):
        (dead,) = read(kafka, dead_letters, 1)
        _, *records = read(kafka, names.target, 5)
    (payment,) = (record for record in records if record.value() == b"pay")
    assert (payment.key(), appended_ms(payment) >= due_ms(payment)) == (b"7", True)
    failed, *retries = (record for record in records if record.value() == b"fail")
    for before, retry, delay_ms in zip((failed, retries[0]), retries, (300, 600), strict=True):
        assert appended_ms(before) + delay_ms <= due_ms(retry) <= appended_ms(retry)
    place = f"{names.target}/0/{failed.offset()}"
    for number, record in enumerate((*retries, dead)):
        assert (record.key(), record.value(), header(record, "tenant")) == (b"8", b"fail", "a")
        told = [header(record, f"timer-{name}") for name in ("retries", "retry-group", "retry-of")]
        assert told == [str(min(number + 1, 2)), names.group, place]
    assert (header(dead, "kafka_dlt-original-topic"), count(kafka, names.timers)) == (names.target, 3)


def test_a_wake_up_of_kafka_streams_survives_the_loss_of_its_instance(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    program = built(ROOT / "examples" / "streams", tmp_path)
    wakeups, unpaid = f"{names.target}.wakeups", f"{names.target}.unpaid"
    names.create_target(kafka, wakeups, unpaid)
    own = {"bootstrap.servers": kafka.bootstrap_servers, "application.id": wakeups, "pay.within.ms": "5000"}
    own |= {"orders.topic": names.target, "wakeups.topic": wakeups, "unpaid.topic": unpaid, "timer.topic": names.timers}
    shown = (program / "unpaid-orders.properties").read_text()
    for name in ("first", "second"):  # each with an empty folder for its state, as on another machine
        config = shown
        for key, value in {**own, "state.dir": str(tmp_path / name)}.items():
            config, replaced = re.subn(rf"^{key}=.*$", f"{key}={value}", config, flags=re.MULTILINE)
            assert replaced == 1
        (program / name).write_text(config)
    produce(kafka, names.target, ("7", "placed", {}), ("8", "placed", {}), ("8", "paid", {}))
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        with running(program, "-Dexec.args=first"):
            read(kafka, names.timers, 3)
            assert cancelled(kafka, names) == "unpaid-8"
            assert (count(kafka, wakeups), count(kafka, unpaid)) == (0, 0)
        (wakeup,) = read(kafka, wakeups, 1)
        with running(program, "-Dexec.args=second"):
            (report,) = read(kafka, unpaid, 1)
        assert (wakeup.key(), appended_ms(wakeup) >= due_ms(wakeup)) == (b"7", True)
    assert (report.key(), report.value(), report.headers()) == (b"7", b"placed", None)


def test_rows_of_an_outbox_become_timers_by_the_config_of_debezium(kafka: Broker, names: Names, tmp_path: Path) -> None:
    program = built(ROOT / "integration_tests" / "producers" / "outbox", tmp_path)
    names.create_target(kafka)
    shown = (ROOT / "examples" / "debezium" / "outbox-connector.json").read_text()
    assert shown.count("timer.requests") == 1
    (program / "connector.json").write_text(shown.replace("timer.requests", names.timers))
    soon_ms = int(time.time() * 1000) + 3000
    rows = [
        ("e1", names.target, "7", "reminder-7", soon_ms, "schedule", '{"remind": 7}'),
        ("e2", names.target, "8", "reminder-8", soon_ms + 3_600_000, "schedule", "{}"),
        ("e3", names.target, "8", "reminder-8", soon_ms, "cancel"),
    ]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        done = subprocess.run(
            [*RUN, f"-Dexec.args=connector.json {kafka.bootstrap_servers}"],
            cwd=program,
            input="".join("\t".join(map(str, row)) + "\n" for row in rows),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        (delivered,) = read(kafka, names.target, 1)
        assert cancelled(kafka, names) == "reminder-8"
    assert (delivered.key(), delivered.value(), header(delivered, "id")) == (b"7", b'{"remind": 7}', "e1")
    assert soon_ms == due_ms(delivered) <= appended_ms(delivered)
