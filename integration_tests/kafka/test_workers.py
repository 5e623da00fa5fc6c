"""`--workers 2`: workers are killed under a load. Only the killed one restarts; each timer comes once, none early."""

import json
import os
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import Broker
from integration_tests.support.instances import BridgeInstance, Field
from integration_tests.support.patience import PATIENCE_S
from scripts.common.processes import workers

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

PARTITIONS = 6
SESSION_S = 60.0
"""Longer than a restart, so that a worker that gets its partitions earlier has not waited for the session's end."""


class Front:
    """The one port of an instance with workers."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._url + path, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            return refused.code, refused.read().decode()

    def json(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    def is_ready(self) -> bool:
        return self.get("/health/ready")[0] == 200

    def owners(self) -> dict[int, int]:
        """Return the worker of each partition."""
        found = re.findall(r'^timer_bridge_partition_owned{partition="(\d+)",.*worker="(\d)"}', self.metrics(), re.M)
        return {int(partition): int(worker) for partition, worker in found}

    def rebalances(self, worker: int) -> float:
        (found,) = re.findall(rf'^timer_bridge_rebalances_total{{worker="{worker}"}} (\S+)$', self.metrics(), re.M)
        return float(found)

    def metrics(self) -> str:
        return self.get("/metrics")[1]


def kill_worker(field: Field, front: Front, instance: BridgeInstance, number: int) -> None:
    """Kill one worker under the load, and wait until it is back. Check that nothing else has changed."""
    began_s = time.monotonic()
    before, owners, rebalances = workers(instance.pid), front.owners(), front.rebalances(3 - number)
    os.kill(before[number], signal.SIGKILL)
    field.until(lambda: not front.is_ready(), "the instance not ready")
    field.until(lambda: len(workers(instance.pid)) == 2 and front.is_ready(), "the worker back")
    assert time.monotonic() - began_s < SESSION_S - 10
    after = workers(instance.pid)
    assert (after[3 - number], after[number] != before[number]) == (before[3 - number], True)
    assert (front.owners(), front.rebalances(3 - number)) == (owners, rebalances), "no partition has moved"


def test_killed_workers_come_back_alone_and_each_timer_comes_once(kafka: Broker, tmp_path: Path) -> None:
    port = free_port()
    front = Front(port)
    session = ("--kafka", f"session.timeout.ms={SESSION_S * 1000:.0f}")
    arguments = ("--workers", "2", "--http-port", str(port), "--page", *session)
    field = Field(kafka.bootstrap_servers, tmp_path, PARTITIONS, *arguments)
    try:
        (instance,) = field.start("one")
        owners = front.owners()
        assert sorted(owners) == list(range(PARTITIONS))
        assert sorted(owners.values()) == [1, 1, 1, 2, 2, 2]
        with field.load():
            field.until_delivered(50)
            kill_worker(field, front, instance, 2)
            field.until_delivered(50)
            kill_worker(field, front, instance, 1)
            field.until_delivered(50)
        partitions = {f"{field.timers}/{partition}" for partition in range(PARTITIONS)}
        assert front.json("/health/live")["shards"].keys() == partitions
        assert front.json("/pending")["shards"].keys() == partitions
        overview = front.json("/api/v1/overview")
        assert {each["partition"] for each in overview["partitions"]} == partitions
        assert [each["address"] for each in overview["instances"]] == [f"127.0.0.1:{port}/worker-{n}" for n in (1, 2)]
        status, page = front.get("/")
        assert (status, all(timer_partition in page for timer_partition in partitions)) == (200, True)
        field.demand_each_once()  # stops it: SIGTERM drains both, and the exit code is 0
        restarted = re.findall(r"worker (\d): ended with -9; started again in 0 s", instance.log)
        assert restarted == ["2", "1"]
        assert set(re.findall(r" INFO worker (\d) bridge\.(?:partition|kafka)", instance.log)) == {"1", "2"}
    finally:
        field.close()
