"""`timer-bridge run --http-port`: answers to probes and operators, also before a broker runs."""

import json
from pathlib import Path

import pytest

from bridge.dev.embedded_kafka import EmbeddedKafka, free_port
from integration_tests.support.bridge_command import Names, command, get
from integration_tests.support.patience import until
from kafka_timer import TimerProducer
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess

SECRET = "s3cr3t-principal"


@pytest.mark.broker
def test_probes_and_pending_from_before_the_broker_until_timers_wait(
    own_kafka: EmbeddedKafka, names: Names, tmp_path: Path
) -> None:
    port, servers = free_port(), own_kafka.bootstrap_servers
    own_kafka.stop()
    arguments = [*names.arguments, "--http-port", str(port), "--log-format", "json"]
    bridge = BridgeProcess(tmp_path, servers, arguments)
    bridge.launch()
    try:
        until(lambda: (get(port, "/health/ready")[1] or {}).get("detail"), "a reason")
        told = get(port, "/health/ready")[1]
        assert (told["reason"], told["shards"]) == ("waiting for the broker", {})
        assert get(port, "/health/live")[0] == 200
        own_kafka.start()
        bridge.await_ready()
        timer_partitions = {f"{names.timers}/{number}": "running" for number in range(2)}
        until(lambda: get(port, "/health/ready") == (200, {"status": "ok", "shards": timer_partitions}), "readiness")

        elsewhere = ["--bootstrap-servers", "127.0.0.1:1", "--data-dir", str(tmp_path / "b")]
        taken = command("run", *elsewhere, "--http-port", str(port))
        assert (taken.returncode, "give this bridge another --http-port" in taken.stderr) == (2, True)

        Admin(servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
        with TimerProducer({"bootstrap.servers": servers}, timer_topic=names.timers) as timers:
            for number in range(3):
                timers.schedule(names.target, b"v", delay="2h", id=f"id-{number}")
        until(lambda: get(port, "/pending")[1].get("pending") == 3, "3 pending timers")
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
    text = bridge.log_path.read_text().splitlines()
    lines = [json.loads(line) for line in text if not line.startswith("timer-bridge is ready")]
    assert {line["shard"] for line in lines if "recovered to offset" in line["message"]} == timer_partitions.keys()


def test_why_it_ended_is_the_last_line_and_quotes_no_secret(tmp_path: Path) -> None:
    """As text: test_security.py."""
    where = ["--bootstrap-servers", "127.0.0.1:1", "--data-dir", str(tmp_path), "--log-format", "json"]
    ended = command("run", *where, "--kafka", f"security.protocol={SECRET}", "--kafka", f"sasl.password={SECRET}")
    line = json.loads(ended.stderr)
    assert (line["level"], line["logger"]) == ("CRITICAL", "bridge.cli.run_command")
    assert line["message"].startswith("kafka settings: Invalid value for configuration property")
    assert SECRET not in ended.stderr
    assert ended.returncode == 2
