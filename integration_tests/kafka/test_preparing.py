"""A process prepares a store in the background, and the bridge and the process are killed."""

import os
import shutil
import signal
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.instances import BridgeInstance, Field
from integration_tests.support.patience import PATIENCE_S
from scripts.common.kafka_io import Admin

pytestmark = pytest.mark.broker

IN_BACKGROUND = """
from functools import partial
from bridge.cli import app
from bridge.config import settings
from bridge.partition.options import TurnOptions

settings.TurnOptions = partial(TurnOptions, prepare_from=1)
app.main()
"""
"""`timer-bridge` whose every recovery is one in the background."""
TIMERS = 2000
FAR_MS = 10_000


def child_of(bridge: BridgeInstance) -> int:
    """Wait for the first child process of the bridge, and return its pid."""
    path = Path(f"/proc/{bridge.pid}/task/{bridge.pid}/children")
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if children := path.read_text().split():
            return int(children[0])
        time.sleep(0.005)
    raise AssertionError("no child")


def test_a_partition_is_recovered_though_its_bridge_and_then_its_preparing_process_are_killed(
    kafka: Broker, tmp_path: Path
) -> None:
    """The bridge has stored requests, was killed, and has lost its data directory. A preparing process ends with it."""
    servers, short = kafka.bootstrap_servers, ("--kafka", "session.timeout.ms=6000")
    with closing(Field(servers, tmp_path, 2, *short, command=(sys.executable, "-c", IN_BACKGROUND))) as field:
        (bridge,) = field.start("one")
        for number in range(TIMERS):
            field.send(number % 2, FAR_MS + number)
        field.cluster.flush()
        admin = Admin(servers)
        field.until(lambda: sum(admin.committed(field.group, field.timers).values()) >= TIMERS, "all requests stored")
        bridge.kill()
        shutil.rmtree(tmp_path / "one" / "timer-data" / field.timers)
        bridge.launch()
        child = child_of(bridge)
        os.kill(child, signal.SIGSTOP)
        bridge.kill()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
        field.until(lambda: not Path(f"/proc/{child}").exists(), "its end")
        bridge.launch()
        os.kill(child_of(bridge), signal.SIGKILL)
        field.demand_each_once()
        assert bridge.log.count("background recovery ended with -9") == 1
