"""Access to running bridges over a real Kafka: tokens as hashes, hosts, members that announce a false address."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from bridge.dev.embedded_kafka import free_port
from integration_tests.bridge.test_health import until
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, command
from integration_tests.support.patience import PATIENCE_S
from scripts.common.processes import BridgeProcess


def private(file: Path, text: str) -> str:
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


@contextmanager
def member_at(broker: Broker, names: Names, address: str) -> Iterator[None]:
    """Run a consumer in the bridges' group that announces `address`, as any user with Read on the group can."""
    group = names.group
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "client.id": f"x@{address}"}
    member = Consumer({**settings, "partition.assignment.strategy": "cooperative-sticky"})
    member.subscribe([names.timers])
    try:

        def joined() -> tuple[int, Any]:
            member.poll(0.1)
            return 200, member.assignment()

        until(joined, lambda _, assigned: bool(assigned))
        yield
    finally:
        member.close()


@pytest.mark.broker
def test_two_bridges_with_hashed_tokens_read_from_each_other_and_from_no_other_address(
    kafka: Broker, tmp_path: Path
) -> None:
    names = Names()
    made = command("token", "ada").stdout.splitlines()
    secret, line = (each.rpartition(": ")[2] for each in made)
    arguments = [*names.arguments, "--page", "--min-free-bytes", "0", "--partitions", "6"]
    arguments += ["--page-operator-tokens", private(tmp_path / "operators", line)]
    arguments += ["--page-secret", private(tmp_path / "secret", "s" * 64), "--peer-networks", "127.0.0.1/32"]
    ports = [free_port(), free_port()]
    bridges = [
        BridgeProcess(tmp_path / str(port), kafka.bootstrap_servers, [*arguments, "--http-port", str(port)])
        for port in ports
    ]

    def ask(port: int, token: str = secret, **headers: str) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{port}/api/v1/overview"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", **headers})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    try:
        for bridge in bridges:
            bridge.start()
        owners = {f"127.0.0.1:{port}" for port in ports}
        for port in ports:
            until(
                partial(ask, port),
                lambda status, told: status == 200 and {each["owner"] for each in told["partitions"]} == owners,
            )
        assert ask(ports[0], Host="evil.example")[0] == get_as("evil.example", ports[0], "/metrics") == 403
        assert ask(ports[0], line.rpartition(":")[2])[0] == 401, "the hash is no token"
        with socket.create_server(("127.0.0.2", 0)) as inside:
            inside.settimeout(1)
            with member_at(kafka, names, f"127.0.0.2:{inside.getsockname()[1]}"):
                told = until(partial(ask, ports[0]), lambda _, told: "peer_networks" in str(told["missing"]))
                # While the group rebalances, other partitions may be missing for another reason.
                assert any("127.0.0.2 is not an address of an instance" in each["why"] for each in told["missing"])
            with pytest.raises(TimeoutError):
                inside.accept()
    finally:
        for bridge in bridges:
            bridge.stop()
    log = "".join(bridge.log_path.read_text() for bridge in bridges)
    assert secret not in log
    assert log.count("refused: no known token") == 1


def get_as(host: str, port: int, path: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    return refused.value.code
