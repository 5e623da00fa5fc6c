"""Case 22 and 23: kill -9 under load, again and again, once with the data directory deleted: each timer exactly once.

KILLS=50 pytest integration_tests/kafka/test_kill.py       kills; the default is 3
"""

import json
import os
import random
import shutil
import time
from collections import Counter
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names
from integration_tests.support.cluster import Cluster
from integration_tests.support.instances import sending
from integration_tests.support.patience import PATIENCE_S
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Receiver, TimerRequest, cancel, named_timer, timer
from scripts.common.processes import BridgeProcess
from timer.disk import RealDisk
from timer.stopped_store import verify

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("KILLS", "2"))
LIFE_S = (0.5, 2.5)
HOUR_MS = 3_600_000


class Load:
    """A sender that is independent of the bridge. It cancels every tenth timer long before it is due."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster, self._names, self._rng = cluster, names, random.Random(7)
        self.kept = self.cancelled = 0

    def running(self) -> AbstractContextManager[None]:
        return sending(self._cluster, self._send_some)

    def _send_some(self, _: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        for _ in range(self._rng.randrange(1, 60)):
            if self._rng.random() < 0.1:
                id_ = uuid4().hex.encode()
                self._send(named_timer(self._names.target, now_ms + HOUR_MS, b"cancelled", id_))
                self._send(cancel(id_))
                self.cancelled += 1
            else:
                due_ms = now_ms + self._rng.choice((-100, 0, 50, 500, 3_000))
                self._send(timer(self._names.target, due_ms, b"kept"))
                self.kept += 1

    def _send(self, request: TimerRequest) -> None:
        key, value, headers = request
        self._cluster.send(self._names.timers, value, key=key, headers=headers, partition=-1)


def await_deliveries(servers: str, target: str, expected: int) -> None:
    """Return when `expected` deliveries can be read, or after PATIENCE_S without one."""
    count, deadline = 0, time.monotonic() + PATIENCE_S
    with Receiver(servers, [target]) as receiver:
        while count < expected and time.monotonic() < deadline:
            if found := receiver.poll(1.0):
                count, deadline = count + len(found), time.monotonic() + PATIENCE_S


@pytest.mark.parametrize(
    "engines", [("wheel",), ("rocksdb",), pytest.param(("wheel", "rocksdb"), marks=pytest.mark.slow)], ids="-then-".join
)
def test_case_22_and_23_killed_under_load_each_timer_comes_once(
    kafka: Broker, names: Names, tmp_path: Path, engines: tuple[str, ...]
) -> None:
    """engines: the engine of each start, in turn. A start with another engine rebuilds the store."""
    servers, arguments = kafka.bootstrap_servers, [*names.arguments, "--roll-window", "2s"]
    Admin(servers).create_topics([names.target], partitions=2, settings=BROKER_CLOCK)
    engine = cycle(engines)
    bridge = BridgeProcess(tmp_path, servers, [*arguments, "--engine", next(engine)])
    bridge.start()
    cluster, rng = Cluster(servers), random.Random(11)
    load = Load(cluster, names)
    with load.running():
        for kill in range(KILLS):
            time.sleep(rng.uniform(*LIFE_S))
            bridge.kill()
            if kill == KILLS // 2:
                shutil.rmtree(tmp_path / "timer-data" / names.timers)
            bridge = BridgeProcess(tmp_path, servers, [*arguments, "--engine", next(engine)])
            bridge.start()
    await_deliveries(servers, names.target, load.kept)
    bridge.stop()
    stores = [path.parent for path in (tmp_path / "timer-data").rglob("checkpoint")]
    assert [verify(RealDisk(store)).fault for store in stores] == [None, None]
    receipts = [json.loads(value or b"") for value in cluster.values(names.receipts)]
    told = Counter(each["id"] for each in receipts if each["kind"] == "cancelled")
    assert (len(told), set(told.values())) == (load.cancelled, {1})
    found = cluster.read(names.target)
    origins = Counter(dict(message.headers())["timer-origin"] for message in found)
    assert [origin for origin, count in origins.items() if count > 1] == []
    assert len(found) == load.kept
    due_ms = [int(dict(message.headers())["timer-deliver-ms"]) for message in found]
    assert [m.offset() for m, due in zip(found, due_ms, strict=True) if m.timestamp()[1] < due] == []
    assert load.cancelled > 0
