"""Two groups on one timer topic and one journal: the second refuses to start, each message is delivered once."""

from pathlib import Path
from uuid import uuid4

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import SOON, Names, read, run, send
from integration_tests.support.cluster import Cluster
from scripts.common.processes import BridgeProcess


@pytest.mark.broker
def test_a_second_group_refuses_to_start_and_each_message_is_delivered_once(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    names.create_target(kafka)
    cluster, to = Cluster(kafka.bootstrap_servers), ("timer-topic", names.target.encode())
    other = [*names.arguments, "--group", f"other-{uuid4().hex[:8]}"]
    asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--data-dir", str(tmp_path / "other")]
    with BridgeProcess(tmp_path / "first", kafka.bootstrap_servers, names.arguments):
        refused = run(*asked, *other)
        send(kafka, names, b"one", to, SOON)
        assert [message.value() for message in read(kafka, names.target, 1)] == [b"one"]
        again = run(*asked, *other)
    for ended in (refused, again):
        assert ended.returncode == 2, ended.stderr
        assert f"the journal {names.journal} belongs to '{names.arguments[1]} {names.timers}'" in ended.stderr
        assert "start it with the same --group" in ended.stderr
    with BridgeProcess(tmp_path / "first", kafka.bootstrap_servers, names.arguments):
        send(kafka, names, b"two", to, SOON)
        assert [message.value() for message in read(kafka, names.target, 2)] == [b"one", b"two"]
    assert cluster.values(names.target) == [b"one", b"two"]
    keys = {message.key() for message in cluster.read(names.journal)}
    assert keys == {f"{names.arguments[1]} {names.timers}".encode()}
