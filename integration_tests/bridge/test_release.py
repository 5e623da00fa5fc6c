"""A limited and a paused target of one `timer-bridge run`, against a real broker."""

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, read
from kafka_timer import TimerOperator
from scripts.common.processes import BridgeProcess

PER_S, OVERDUE, ON_TIME = 20, 100, 20


@pytest.mark.broker
def test_case_35_targets_wait_through_a_kill_and_a_lost_disk_and_delay_no_other(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    limited, paused = f"limited-{uuid4().hex[:8]}", f"paused-{uuid4().hex[:8]}"
    names.create_target(kafka, limited, paused)
    config = tmp_path / "bridge.toml"
    config.write_text(f'[targets."{limited}"]\nmax_per_s = {PER_S}\n')
    arguments = [*names.arguments, "--config", str(config)]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
        pass
    broker = {"bootstrap.servers": kafka.bootstrap_servers}
    with TimerOperator(broker, timer_topic=names.timers, control_topic=names.control) as timers:
        timers.pause(paused)
        for number in range(OVERDUE):
            timers.schedule(limited, str(number), delay="0")
            timers.schedule(paused, str(number), delay="0")
        for number in range(ON_TIME):
            timers.schedule(names.target, str(number), delay="0")
        timers.flush()
        bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments)
        bridge.start()
        on_time = read(kafka, names.target, ON_TIME)
        read(kafka, limited, OVERDUE // 4)
        bridge.kill()
        shutil.rmtree(tmp_path / "timer-data")
        with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
            slowly = read(kafka, limited, OVERDUE)
            timers.resume(paused)
            timers.flush()
            behind = read(kafka, paused, OVERDUE)
    released = [int(dict(each.headers())["timer-released-ms"]) for each in slowly]
    assert sorted(int(each.value()) for each in slowly) == list(range(OVERDUE))
    assert sorted(int(each.value()) for each in behind) == list(range(OVERDUE))
    assert released[-1] - released[0] >= 1000 * (OVERDUE - 4 * PER_S) // PER_S
    assert max(int(dict(each.headers())["timer-released-ms"]) for each in on_time) < released[-1]
    assert min(int(dict(each.headers())["timer-released-ms"]) for each in behind) >= released[-1]
