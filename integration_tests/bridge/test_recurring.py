"""A recurring timer of one `timer-bridge run`, against a real broker: exactly once through kills and a lost disk."""

import shutil
import time
from pathlib import Path

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, read
from kafka_timer import Repeat, TimerOperator
from scripts.common.processes import BridgeProcess

OCCURRENCES = 4


@pytest.mark.broker
def test_each_occurrence_is_delivered_once_though_the_bridge_is_killed_in_between(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    names.create_target(kafka)
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
        pass
    broker = {"bootstrap.servers": kafka.bootstrap_servers}
    rule = Repeat(every="1s", count=OCCURRENCES, missed="all")
    with TimerOperator(broker, timer_topic=names.timers, control_topic=names.control) as timers:
        timers.schedule(names.target, "again", key="k", repeat=rule, id="x").result(30)
        for number in range(1, OCCURRENCES):
            bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments)
            bridge.start()
            read(kafka, names.target, number)
            bridge.kill()
            if number % 2:
                shutil.rmtree(tmp_path / "timer-data")
        with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
            read(kafka, names.target, OCCURRENCES)
            time.sleep(2.5)  # beyond the time of one more
            found = read(kafka, names.target, OCCURRENCES)
            timers.cancel("x")
    told = [dict(each.headers()) for each in found]
    assert [each["timer-occurrence"] for each in told] == [b"%d" % number for number in range(1, OCCURRENCES + 1)]
    dues_ms = [int(each["timer-deliver-ms"]) for each in told]
    assert dues_ms == [dues_ms[0] + 1000 * number for number in range(OCCURRENCES)]
    assert {(each.key(), each.value()) for each in found} == {(b"k", b"again")}
