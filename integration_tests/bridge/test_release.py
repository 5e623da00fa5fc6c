"""Limited and paused targets, paused and recurring timers, of one `timer-bridge run` against a real broker."""

import json
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, command, read
from kafka_timer import Repeat, TimerOperator
from scripts.common.processes import BridgeProcess

PER_S, OVERDUE, ON_TIME = 20, 100, 20
TICKS = 20
"""Of a recurring timer, one a second: more than the first bridge lives."""


@pytest.mark.broker
def test_case_35_targets_and_timers_wait_through_a_kill_and_a_lost_disk_and_delay_no_other(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    """A second group on the journal refuses to start meanwhile."""
    limited, paused, single, ticking = (f"{name}-{uuid4().hex[:8]}" for name in ("limited", "paused", "single", "tick"))
    names.create_target(kafka, limited, paused, single, ticking)
    config = tmp_path / "bridge.toml"
    config.write_text(f'[targets."{limited}"]\nmax_per_s = {PER_S}\n')
    arguments = [*names.arguments, "--config", str(config)]
    where = ["--bootstrap-servers", kafka.bootstrap_servers]

    def switch(*asked: str) -> None:
        ended = command(*asked, *where, "--timer-topic", names.timers)
        assert ended.returncode == 0, ended

    def told(count: int) -> list[tuple[str, str]]:
        found = [json.loads(each.value()) for each in read(kafka, names.receipts, count)]
        return sorted((each["kind"], each.get("id", "")) for each in found)

    bridge = BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments)
    bridge.start()
    broker = {"bootstrap.servers": kafka.bootstrap_servers}
    with TimerOperator(broker, timer_topic=names.timers, control_topic=names.control) as timers:
        timers.pause(paused)
        timers.flush()
        rule = Repeat(every="1s", count=TICKS, missed="all")
        timers.schedule(ticking, "tick", key="k", repeat=rule, id="tick").result(30)
        timers.schedule(single, "gone", delay="1h", id="gone").result(30)
        switch("pause", "--id", "gone")  # a command may take longer than the others' delay
        sent = timers.schedule(single, "once", delay="3s").result(30)
        timers.schedule(single, "again", repeat=Repeat(every="3s", count=2), id="x").result(30)
        timers.pause_timer(sent).result(30)
        timers.pause_timer("x").result(30)
        three_paused = [("paused", ""), ("paused", "gone"), ("paused", "x")]
        assert told(3) == three_paused
        for number in range(OVERDUE):
            timers.schedule(limited, str(number), delay="0")
            timers.schedule(paused, str(number), delay="0")
        for number in range(ON_TIME):
            timers.schedule(names.target, str(number), delay="0")
        timers.flush()
        on_time = read(kafka, names.target, ON_TIME)
        read(kafka, limited, OVERDUE // 4)
        bridge.kill()
        shutil.rmtree(tmp_path / "timer-data")
        timers.schedule(single, "later", delay="4s").result(30)
        with BridgeProcess(tmp_path, kafka.bootstrap_servers, arguments):
            slowly = read(kafka, limited, OVERDUE)
            assert [each.value() for each in read(kafka, single, 1)] == [b"later"]
            switch("cancel", "gone")
            switch("resume", "--origin", "/".join(map(str, sent)))
            timers.resume_timer("x").result(30)
            other = ["--data-dir", str(tmp_path / "other"), *names.arguments, "--group", "another"]
            refused = command("run", *where, *other)
            once_and_again = read(kafka, single, 4)
            assert told(6) == [("cancelled", "gone"), *three_paused, ("resumed", ""), ("resumed", "x")]
            timers.resume(paused)
            timers.flush()
            behind = read(kafka, paused, OVERDUE)
            ticks = read(kafka, ticking, TICKS)
    released = [int(dict(each.headers())["timer-released-ms"]) for each in slowly]
    assert sorted(int(each.value()) for each in slowly) == list(range(OVERDUE))
    assert sorted(int(each.value()) for each in behind) == list(range(OVERDUE))
    assert released[-1] - released[0] >= 1000 * (OVERDUE - 4 * PER_S) // PER_S
    assert max(int(dict(each.headers())["timer-released-ms"]) for each in on_time) < released[-1]
    assert min(int(dict(each.headers())["timer-released-ms"]) for each in behind) >= released[-1]
    assert sorted(each.value() for each in once_and_again) == [b"again", b"again", b"later", b"once"]
    occurrences = [dict(each.headers()) for each in ticks]
    assert [each["timer-occurrence"] for each in occurrences] == [b"%d" % number for number in range(1, TICKS + 1)]
    dues_ms = [int(each["timer-deliver-ms"]) for each in occurrences]
    assert dues_ms == [dues_ms[0] + 1000 * number for number in range(TICKS)]
    assert {(each.key(), each.value()) for each in ticks} == {(b"k", b"tick")}
    assert refused.returncode == 2, refused.stderr
    assert f"the journal {names.journal} belongs to '{names.group} {names.timers}'" in refused.stderr
    assert "start it with the same --group" in refused.stderr
