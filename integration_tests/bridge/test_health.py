"""`timer-bridge run --http-port`: answers to probes and operators, also before a broker runs."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.dev.embedded_kafka import EmbeddedKafka, free_port
from integration_tests.conftest import FAST_RESTART, start, to_be_started
from integration_tests.support.bridge_command import Names, command, get, run
from integration_tests.support.patience import PATIENCE_S
from kafka_timer import TimerProducer
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess

SECRET = "s3cr3t-principal"


@pytest.fixture
def later_kafka() -> Iterator[EmbeddedKafka]:
    """Return a broker that has an address and does not run yet."""
    broker = to_be_started("health", FAST_RESTART)
    yield broker
    broker.stop()


def until(look: Callable[[], tuple[int, Any]], is_so: Callable[[int, Any], bool]) -> Any:
    """Return the first body for which `is_so` is true."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_so(*(answer := look())):
        assert time.monotonic() < end_s, answer
        time.sleep(0.05)
    return answer[1]


def logged(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if not line.startswith("timer-bridge is ready")]


@pytest.mark.broker
def test_probes_and_pending_from_before_the_broker_until_timers_wait(
    later_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    names, port = Names(), free_port()
    arguments = [*names.arguments, "--http-port", str(port), "--log-format", "json"]
    bridge = BridgeProcess(tmp_path, later_kafka.bootstrap_servers, arguments)
    bridge.launch()
    try:
        told = until(lambda: get(port, "/health/ready"), lambda _, answer: bool(answer and answer.get("detail")))
        assert (told["reason"], told["shards"]) == ("waiting for the broker", {})
        assert get(port, "/health/live")[0] == 200
        start(later_kafka)
        bridge.await_ready()
        timer_partitions = {f"{names.timers}/{number}": "running" for number in range(2)}
        told = until(lambda: get(port, "/health/ready"), lambda status, answer: status == 200)
        assert told == {"status": "ok", "shards": timer_partitions}

        taken = run(
            *("--bootstrap-servers", "127.0.0.1:1", "--data-dir", str(tmp_path / "b")), "--http-port", str(port)
        )
        assert (taken.returncode, "give this bridge another --http-port" in taken.stderr) == (2, True)

        Admin(later_kafka.bootstrap_servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
        with TimerProducer({"bootstrap.servers": later_kafka.bootstrap_servers}, timer_topic=names.timers) as timers:
            for number in range(3):
                timers.schedule(names.target, b"v", delay="2h", id=f"id-{number}")
        until(lambda: get(port, "/pending"), lambda status, answer: status == 200 and answer["pending"] == 3)
        asked = command("pending", "--url", f"http://127.0.0.1:{port}", "--topic", names.target, "--json")
        assert (asked.returncode, asked.stderr) == (0, "")
        found = json.loads(asked.stdout)
        assert (found["pending"], found["shards"].keys()) == (3, timer_partitions.keys())
        assert found["topics"][names.target]["pending"] == 3
        one = command("pending", "--http-port", str(port), "--id", "id-1", "--json")
        assert [timer["state"] for timer in json.loads(one.stdout)["timers"]] == ["pending"]
        running = command("pending", "--data-dir", str(tmp_path / "timer-data"))
        assert (running.returncode, "ask it by its --http-port" in running.stderr) == (2, True)
    finally:
        bridge.stop()
    stopped = command("pending", "--data-dir", str(tmp_path / "timer-data"), "--json")
    assert (json.loads(stopped.stdout)["pending"], stopped.stderr) == (3, "")
    lines = logged(bridge.log_path.read_text())
    assert {line["shard"] for line in lines if "recovered to offset" in line["message"]} == timer_partitions.keys()


@pytest.mark.parametrize("format_", ["text", "json"])
def test_why_it_ended_is_the_last_line_and_quotes_no_secret(format_: str, tmp_path: Path) -> None:
    where = ["--bootstrap-servers", "127.0.0.1:1", "--data-dir", str(tmp_path), "--log-format", format_]
    ended = run(*where, "--kafka", f"security.protocol={SECRET}", "--kafka", f"sasl.password={SECRET}")
    (last,) = ended.stderr.splitlines()
    if format_ == "json":
        line = json.loads(last)
        assert (line["level"], line["logger"]) == ("CRITICAL", "bridge.cli.run_command")
        last = f"timer-bridge: {line['message']}"
    assert last.startswith("timer-bridge: kafka settings: Invalid value for configuration property")
    assert SECRET not in ended.stderr
    assert ended.returncode == 2
