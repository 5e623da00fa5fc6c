"""Two groups on one timer topic and one journal: the second refuses to start, each message is delivered once."""

import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from integration_tests.bridge.test_run import COMMAND, Names, names, read, run
from integration_tests.conftest import Broker
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess

__all__ = ["names"]


@pytest.fixture
def cluster(kafka: Broker, names: Names) -> Cluster:
    """Return the cluster, with the target topic."""
    Admin(kafka.bootstrap_servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
    return Cluster(kafka.bootstrap_servers)


def send(cluster: Cluster, names: Names, value: bytes, delay_ms: int, partition: int = 0) -> None:
    headers = [("timer-topic", names.target.encode()), ("timer-delay-ms", b"%d" % delay_ms)]
    cluster.send(names.timers, value, headers=headers, partition=partition)
    cluster.flush()


@pytest.mark.broker
def test_a_second_group_refuses_to_start_and_each_message_is_delivered_once(
    kafka: Broker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    other = [*names.arguments, "--group", f"other-{uuid4().hex[:8]}"]
    asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--data-dir", str(tmp_path / "other")]
    with BridgeProcess(tmp_path / "first", kafka.bootstrap_servers, names.arguments):
        refused = run(*asked, *other)
        send(cluster, names, b"one", 200)
        assert [message.value() for message in read(kafka, names.target, 1)] == [b"one"]
        again = run(*asked, *other)
    for ended in (refused, again):
        assert ended.returncode == 2, ended.stderr
        assert f"the journal {names.journal} belongs to '{names.arguments[1]} {names.timers}'" in ended.stderr
        assert "start it with the same --group" in ended.stderr
    with BridgeProcess(tmp_path / "first", kafka.bootstrap_servers, names.arguments):
        send(cluster, names, b"two", 200)
        assert [message.value() for message in read(kafka, names.target, 2)] == [b"one", b"two"]
    assert cluster.values(names.target) == [b"one", b"two"]
    keys = {message.key() for message in cluster.read(names.journal)}
    assert keys == {f"{names.arguments[1]} {names.timers}".encode()}


@pytest.mark.broker
def test_at_most_one_group_delivers_if_two_start_at_once_on_an_empty_journal(
    kafka: Broker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """None does if each has the first claim of one partition."""
    asked = [COMMAND, "run", "--bootstrap-servers", kafka.bootstrap_servers, *names.arguments]
    both = [
        subprocess.Popen(
            [*asked, "--data-dir", str(tmp_path / str(number)), "--group", f"{names.arguments[1]}-{number}"],
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    try:
        end_s = time.monotonic() + PATIENCE_S
        while all(each.poll() is None for each in both):
            assert time.monotonic() < end_s, "both run"
            time.sleep(0.1)
        losers = [each for each in both if each.poll() is not None]
        for loser in losers:
            assert loser.returncode == 2
            assert f"the journal {names.journal} belongs to" in (loser.communicate()[1] or b"").decode()
        if losers == both:
            return
        (winner,) = (each for each in both if each not in losers)
        for number in range(2):
            send(cluster, names, b"%d" % number, 0, number)
        assert sorted(message.value() for message in read(kafka, names.target, 2)) == [b"0", b"1"]
        winner.terminate()
        winner.communicate()
        assert winner.returncode == 0
    finally:
        for each in both:
            each.kill()
            each.wait()
    assert set(cluster.values(names.target)) == {b"0", b"1"}
    assert len(cluster.values(names.target)) == 2
