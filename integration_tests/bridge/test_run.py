"""`timer-bridge run` as a process: its output, its exit codes, and the records that it writes."""

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import SOON, Names, command, get, read, send
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from integration_tests.support.wire import limit_producer, produce_raw
from kafka_timer.headers import UNREADABLE_HEADERS, decoded_headers
from kafka_timer.retry import retry_of
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Receiver, send_all, timer
from scripts.common.processes import BridgeProcess, workers

LIMIT_BYTES = 2 << 20
Pairs = list[tuple[str, bytes | None]]
Asked = tuple[bytes | None, bytes | None, Pairs]
"""Key, value and foreign headers."""


def framed(payload: bytes, schema: int) -> bytes:
    """Return the payload as a schema registry's serializers write it: magic 0, the schema's id, the payload."""
    return b"\0" + schema.to_bytes(4, "big") + payload


def largest(takes: Callable[[int], bool], below: int) -> int:
    """Return the largest size that `takes` accepts, at most 1000 below `below`."""
    taken = below - 1000
    while taken + 1 < below:
        size = (taken + below) // 2
        taken, below = (size, below) if takes(size) else (taken, size)
    return taken


@pytest.mark.broker
def test_case_31_records_come_back_as_they_went(kafka: Broker, names: Names, tmp_path: Path) -> None:
    admin, tight = Admin(kafka.bootstrap_servers), f"{names.target}-tight"
    size_limit = {"max.message.bytes": str(LIMIT_BYTES)}
    with_room = {"max.message.bytes": str(LIMIT_BYTES + 1000)}  # a delivery's own headers are longer
    right = BROKER_CLOCK | {"retention.bytes": "-1", "compression.type": "uncompressed"}
    admin.create_topics([names.timers], partitions=2, settings=right | size_limit)
    admin.create_topics([names.target], partitions=1, settings=BROKER_CLOCK | with_room)
    admin.create_topics([tight], partitions=1, settings=BROKER_CLOCK | size_limit)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": 10 * LIMIT_BYTES})

    def is_taken(record: Asked, target: str = names.target) -> bool:
        key, value, headers = record
        told: list[Any] = []
        ours = [("timer-topic", target.encode()), SOON, *headers]
        producer.produce(names.timers, value, key, headers=list(ours), on_delivery=lambda no, _: told.append(no))
        assert producer.flush(PATIENCE_S) == 0
        return told[0] is None

    foreign: Pairs = [("trace", b"1"), ("trace", b"1"), ("none", None), ("raw", b"\xff\xfe"), ("", b"")]
    sent: list[Asked] = [
        (b"key", b"value", foreign),
        (b"key", None, foreign),
        (b"key", b"", []),
        (None, b"null key", []),
        (b"", b"empty key", []),
        (b"key", os.urandom(1 << 20), foreign),
        (b"key", b"many headers", [(f"h-{number % 300}", b"%d" % number) for number in range(1000)]),
        (b"key", framed(b"\x02\x06abc", 100_042), [("content-type", b"avro/binary")]),
    ]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        assert all(map(is_taken, sent))

        def takes(size: int) -> bool:
            record: Asked = (b"key", b"%07d" % size + bytes(size - 7), [])
            was_taken = is_taken(record)
            sent.extend([record] * was_taken)
            return was_taken

        size = largest(takes, LIMIT_BYTES)
        assert is_taken((b"key", bytes(size - len("-tight")), []), tight)
        found = read(kafka, names.target, len(sent))
        (parked,) = read(kafka, names.rejected, 1)
    for record in found:
        added = dict(record.headers()[-4:])
        assert record.timestamp()[1] >= int(added["timer-released-ms"]) >= int(added["timer-deliver-ms"])
        assert added["timer-origin"].startswith(names.timers.encode())
    came = [(record.key(), record.value(), record.headers()[:-4]) for record in found]
    assert sorted(came, key=repr) == sorted(sent, key=repr)
    assert max(len(value or b"") for _, value, _ in came) == size
    assert (parked.value(), dict(parked.headers())["timer-error"]) == (bytes(size - len("-tight")), b"too-large")
    assert not Receiver(kafka.bootstrap_servers, [names.target]).poll(1)[len(sent) :]


@pytest.mark.broker
def test_case_33_a_header_whose_name_is_no_text_is_rejected_and_what_stands_behind_it_goes_on(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    names.create_target(kafka)
    ours = [(b"timer-topic", names.target.encode()), (b"timer-delay-ms", b"3000")]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        for _ in range(50):  # CPython specialises the call that reads headers
            send(kafka, names, None, ("timer-action", b"cancel"), ("timer-id", b"nobody"))
        produce_raw(kafka.bootstrap_servers, names.timers, 0, b"raw", [(b"\xff\xfe", b"1"), *ours])
        produce_raw(kafka.bootstrap_servers, names.timers, 0, b"fine", [("é".encode(), b"1"), (b"", None), *ours])
        (rejected,) = read(kafka, names.rejected, 1)
    headers = dict(rejected.headers())
    assert (rejected.value(), headers["timer-error"]) == (b"raw", b"bad-header")
    assert b"no UTF-8" in headers["timer-error-detail"]
    shutil.rmtree(tmp_path / "timer-data")  # a rebuild reads both again
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        (delivered,) = read(kafka, names.target, 1)
    assert (delivered.value(), delivered.headers()[:2]) == (b"fine", [("é", b"1"), ("", None)])
    assert len(read(kafka, names.rejected, 1)) == 1
    unreadable = [each for each in read(kafka, names.timers, 52) if decoded_headers(each) is UNREADABLE_HEADERS]
    assert [decoded_headers(each) for each in unreadable] == [UNREADABLE_HEADERS], "a second read has no hole either"
    with pytest.raises(ValueError, match="no UTF-8"):
        retry_of(unreadable[0], group="group")


@pytest.mark.broker
@pytest.mark.parametrize(
    "bytes_per_s",
    [
        2_000_000,
        pytest.param(200_000, marks=pytest.mark.slow),  # a transaction takes longer than its usual time-out
    ],
)
def test_a_quota_of_the_broker_delays_records_and_each_comes_once(
    kafka: Broker, names: Names, tmp_path: Path, bytes_per_s: float
) -> None:
    count, client = 400, f"client-{uuid4().hex[:8]}"
    names.create_target(kafka)
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        pass
    due_ms = time.time_ns() // 1_000_000
    values = [b"%03d" % number + os.urandom(10_000) for number in range(count)]
    send_all(kafka.bootstrap_servers, names.timers, (timer(names.target, due_ms, value) for value in values))
    limit_producer(kafka.bootstrap_servers, client, bytes_per_s)
    port = free_port()
    asked = [*names.arguments, "--kafka", f"client.id={client}", "--http-port", str(port)]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, asked):
        found = read(kafka, names.target, count)
        throttle = r"^timer_bridge_broker_throttle_seconds_total (\S+)$"
        (throttled,) = re.findall(throttle, get(port, "/metrics")[1], re.M)
    assert float(throttled) > 1 or bytes_per_s > 1_000_000, "the broker did not hold anything back, or nobody heard"
    assert sorted(record.value() for record in found) == values
    assert len(Cluster(kafka.bootstrap_servers).read(names.target)) == count


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [("run",), ("check-config", "--connect")])
def test_without_a_broker_it_waits_and_ends_with_1(asked: tuple[str, ...], tmp_path: Path) -> None:
    where = ["--bootstrap-servers", f"127.0.0.1:{free_port()}", "--data-dir", str(tmp_path)]
    ended = command(*asked, *where, TIMER_BRIDGE_STARTUP_TIMEOUT="1s")
    assert ended.returncode == 1
    assert "waiting for a broker" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.thorough
def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    bridge = BridgeProcess(tmp_path, "127.0.0.1:1", ["--workers", "2"])
    bridge.launch()
    deadline_s = time.monotonic() + PATIENCE_S
    while len(pids := workers(bridge.pid)) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    bridge.kill()
    while any(is_running := [Path(f"/proc/{pid}").exists() for pid in pids.values()]):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert is_running == [False, False]


@pytest.mark.broker
def test_a_check_of_the_cluster_finds_what_a_start_would_refuse_and_makes_nothing(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    cluster, folder = Cluster(kafka.bootstrap_servers), tmp_path / "data"
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--data-dir", str(folder), *names.arguments]

    def check(*more: str) -> tuple[int, str]:
        ended = command("check-config", *where, "--connect", *more)
        return ended.returncode, ended.stdout + ended.stderr

    code, told = check("--target", names.target)
    assert (code, "kafka-acls.sh" in told, folder.exists()) == (0, False, False), told
    assert re.search(f"not tried: Read and Write on topics that do not exist: .*{names.target}", told)
    code, told = check("--replication-factor", "99")
    assert (code, f"making topic {names.timers}" in told) == (1, True), told
    assert cluster.admin.list_topics(timeout=PATIENCE_S).topics.keys().isdisjoint({names.timers, names.control})

    right = {"message_timestamp_type": "LogAppendTime", "retention_bytes": "-1", "max_message_bytes": "8388608"}
    cluster.create(names.timers, 3, compression_type="uncompressed", **right)
    cluster.create(names.journal, 1, **right)
    code, told = check()
    assert (code, f"{names.timers} grew from 1 to 3 partitions" in told) == (0, True), told
    assert len(cluster.admin.list_topics(timeout=PATIENCE_S).topics[names.journal].partitions) == 1
    code, told = check("--max-pending", "2")
    assert (code, "max_pending = 2" in told) == (2, True), told
    cluster.create(names.control, 2)
    code, told = check()
    refused = command("run", *where)
    assert (code, refused.returncode, told.endswith(refused.stderr)) == (2, 2, True), told + refused.stderr
