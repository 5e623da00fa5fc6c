"""`--workers 2`: workers are killed under a load. Only the killed one restarts; each timer comes once, none early."""

import os
import re
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import get
from integration_tests.support.instances import BridgeInstance, Field
from scripts.common.processes import workers

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

PARTITIONS = 6
SESSION_S = 60.0
"""Longer than a restart, so that a worker that gets its partitions earlier has not waited for the session's end."""


class Front(NamedTuple):
    """The one port of an instance with workers."""

    port: int

    def get(self, path: str) -> Any:
        status, told = get(self.port, path)
        assert status == 200, told
        return told

    def is_ready(self) -> bool:
        return get(self.port, "/health/ready")[0] == 200

    def owners(self) -> dict[int, int]:
        """Return the worker of each partition."""
        owned = r'^timer_bridge_partition_owned{partition="(\d+)",.*worker="(\d)"}'
        return {int(each): int(worker) for each, worker in re.findall(owned, self.get("/metrics"), re.M)}

    def rebalances(self, worker: int) -> float:
        counter = rf'^timer_bridge_rebalances_total{{worker="{worker}"}} (\S+)$'
        (found,) = re.findall(counter, self.get("/metrics"), re.M)
        return float(found)


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
    front = Front(port := free_port())
    session = ("--kafka", f"session.timeout.ms={SESSION_S * 1000:.0f}")
    arguments = ("--workers", "2", "--http-port", str(port), "--page", *session)
    with closing(Field(kafka.bootstrap_servers, tmp_path, PARTITIONS, *arguments)) as field:
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
        assert front.get("/health/live")["shards"].keys() == partitions
        assert front.get("/pending")["shards"].keys() == partitions
        overview = front.get("/api/v1/overview")
        assert {each["partition"] for each in overview["partitions"]} == partitions
        assert [each["address"] for each in overview["instances"]] == [f"127.0.0.1:{port}/worker-{n}" for n in (1, 2)]
        page = front.get("/")
        assert all(timer_partition in page for timer_partition in partitions)
        field.demand_each_once()  # stops it: SIGTERM drains both, and the exit code is 0
        restarted = re.findall(r"worker (\d): ended with -9; started again in 0 s", instance.log)
        assert restarted == ["2", "1"]
        assert set(re.findall(r" INFO worker (\d) bridge\.(?:partition|kafka)", instance.log)) == {"1", "2"}
