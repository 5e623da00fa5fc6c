"""A process prepares a store in the background, and the process or the bridge is killed."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.patience import PATIENCE_S
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Delivery, Receiver, TimerSender, timer
from scripts.common.processes import BridgeProcess

pytestmark = pytest.mark.broker

TIMERS = 2000
FAR_MS = 10_000


class Lost:
    """A bridge that has stored requests, was killed, and has lost its data directory."""

    def __init__(self, servers: str, folder: Path) -> None:
        mark = uuid4().hex[:8]
        self.servers, self.folder = servers, folder
        self.target = f"target-{mark}"
        Admin(servers).create_topics([self.target], partitions=2, settings=BROKER_CLOCK)
        self.arguments = ["--partitions", "2", "--group", f"group-{mark}", "--prepare-from", "1"]
        self.arguments += ["--kafka", "session.timeout.ms=6000"]
        for kind in ("timer", "rejected", "journal", "receipts"):
            self.arguments += [f"--{kind}-topic", f"{kind}-{mark}"]
        bridge = BridgeProcess(folder, servers, self.arguments)
        bridge.start()
        sender, due_ms = TimerSender(servers), time.time_ns() // 1_000_000 + FAR_MS
        for number in range(TIMERS):
            sender.send(f"timer-{mark}", timer(self.target, due_ms + number, b"%d" % number))
        sender.flush()
        admin = Admin(servers)
        while sum(admin.committed(f"group-{mark}", f"timer-{mark}").values()) < TIMERS:
            bridge.demand_alive()
            time.sleep(0.05)
        bridge.kill()
        shutil.rmtree(folder / "timer-data" / f"timer-{mark}")

    def bridge(self) -> BridgeProcess:
        return BridgeProcess(self.folder, self.servers, self.arguments)

    def demand_each_once(self) -> None:
        with Receiver(self.servers, [self.target]) as receiver:
            found = list(deliveries(receiver))
        assert sorted(delivery.origin for delivery in found) == sorted({delivery.origin for delivery in found})
        assert len(found) == TIMERS
        assert all(delivery.appended_ms >= delivery.due_ms for delivery in found)


def deliveries(receiver: Receiver) -> Iterator[Delivery]:
    count = quiet = 0
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and (count < TIMERS or quiet < 2):
        found = receiver.poll(1.0)
        quiet = 0 if found else quiet + 1
        count += len(found)
        yield from found


def child_of(bridge: BridgeProcess) -> int:
    """Wait for the first child process of the bridge, and return its pid."""
    path = Path(f"/proc/{bridge.pid}/task/{bridge.pid}/children")
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        bridge.demand_alive()
        if children := path.read_text().split():
            return int(children[0])
        time.sleep(0.005)
    raise AssertionError("no child")


@pytest.fixture
def lost(kafka: Broker, tmp_path: Path) -> Lost:
    return Lost(kafka.bootstrap_servers, tmp_path)


def test_the_bridge_recovers_a_partition_whose_preparing_process_is_killed(lost: Lost) -> None:
    bridge = lost.bridge()
    bridge.launch()
    os.kill(child_of(bridge), signal.SIGKILL)
    lost.demand_each_once()
    assert bridge.log_path.read_text().count("background recovery ended with -9") == 1
    bridge.stop()


@pytest.mark.slow
def test_a_preparing_process_ends_with_a_bridge_that_is_killed(lost: Lost) -> None:
    bridge = lost.bridge()
    bridge.launch()
    child = child_of(bridge)
    os.kill(child, signal.SIGSTOP)
    bridge.kill()
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGCONT)
    until_s = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{child}").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()
    with lost.bridge():
        lost.demand_each_once()
