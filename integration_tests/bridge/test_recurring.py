"""A recurring timer of one `timer-bridge run`, against a real broker: exactly once through kills and a lost disk."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import COMMAND, Names, read
from integration_tests.support.patience import PATIENCE_S
from kafka_timer import Repeat, TimerOperator, TimerProducer
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


@pytest.mark.broker
def test_paused_timers_wait_through_a_kill_and_a_lost_disk(kafka: Broker, names: Names, tmp_path: Path) -> None:
    names.create_target(kafka)
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--timer-topic", names.timers]

    def switch(*asked: str) -> None:
        ended = subprocess.run([COMMAND, *asked, *where], capture_output=True, timeout=PATIENCE_S, check=False)
        assert ended.returncode == 0, ended

    def told(count: int) -> list[tuple[str, str]]:
        found = [json.loads(each.value()) for each in read(kafka, names.receipts, count)]
        return sorted((each["kind"], each.get("id", "")) for each in found)

    bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments)
    bridge.start()
    broker = {"bootstrap.servers": kafka.bootstrap_servers}
    with TimerProducer(broker, timer_topic=names.timers) as timers:
        timers.schedule(names.target, "gone", delay="1h", id="gone").result(30)
        switch("pause", "--id", "gone")  # a command may take longer than the others' delay
        sent = timers.schedule(names.target, "once", delay="3s").result(30)
        timers.schedule(names.target, "again", repeat=Repeat(every="3s", count=2), id="x").result(30)
        timers.pause_timer(sent).result(30)
        timers.pause_timer("x").result(30)
        paused = [("paused", ""), ("paused", "gone"), ("paused", "x")]
        assert told(3) == paused
        bridge.kill()
        shutil.rmtree(tmp_path / "timer-data")
        timers.schedule(names.target, "later", delay="4s").result(30)
        with BridgeProcess(tmp_path, kafka.bootstrap_servers, names.arguments):
            assert [each.value() for each in read(kafka, names.target, 1)] == [b"later"]
            switch("cancel", "gone")
            switch("resume", "--origin", "/".join(map(str, sent)))
            timers.resume_timer("x").result(30)
            found = read(kafka, names.target, 4)
            assert told(6) == [("cancelled", "gone"), *paused, ("resumed", ""), ("resumed", "x")]
    assert sorted(each.value() for each in found) == [b"again", b"again", b"later", b"once"]
