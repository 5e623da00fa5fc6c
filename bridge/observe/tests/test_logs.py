"""Log lines on standard error: one line each, without secrets."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.dev.embedded_kafka import HOST
from bridge.observe import logs
from bridge.observe.log_rate_limit import LogRateLimit
from kafka_timer.origin import TimerPartition

PARTITION = TimerPartition("timer.requests", 3)
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
SECRETS = {
    "sasl.password": 's3cr3t "word"',
    "ssl.key.pem": "-----BEGIN KEY-----\nabc\n-----END KEY-----",
    "sasl.oauthbearer.client.secret": "s3cr3t",
}

log = logging.getLogger("bridge.test")


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.excepthook
    yield
    root.handlers[:], sys.excepthook = handlers, hook
    root.setLevel(level)
    for number in logs.SWITCHES:
        signal.signal(number, signal.SIG_DFL)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_has_time_level_worker_logger_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    log.info("%s: recovered", PARTITION)
    logs.configure("text", worker=2)
    log.info("recovered")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f"{TIME} INFO bridge.test timer.requests/3: recovered", first)
    assert re.fullmatch(f"{TIME} INFO worker 2 bridge.test recovered", second)
    logs.configure("json", "warning", worker=2)
    log.info("quiet")
    log.warning("loud")
    assert [(line["worker"], line["message"]) for line in lines(capsys)] == [(2, "loud")]


def test_a_line_of_json_has_the_partition_as_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    log.info("%s: recovered to offset %d", PARTITION, 40)
    log.warning("grüße\n%d%%", 7)
    limit = LogRateLimit(log)
    for now_ms in (0, 1000, 60_000):
        limit.warn(now_ms, "full", "%s: intake pauses: %s", PARTITION, "100% full")
    first, second, lasting, again = lines(capsys)
    assert re.fullmatch(TIME, first.pop("time"))
    assert first == {
        "level": "INFO",
        "logger": "bridge.test",
        "message": "timer.requests/3: recovered to offset 40",
        "shard": "timer.requests/3",
        "topic": "timer.requests",
        "partition": 3,
    }
    assert second["message"] == "grüße\n7%"
    assert "shard" not in second
    assert (lasting["message"], lasting["shard"]) == ("timer.requests/3: intake pauses: 100% full", "timer.requests/3")
    assert again["message"] == "timer.requests/3: intake pauses: 100% full (3 times so far)"


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    for thread in threading.enumerate():
        if thread.name == "log-level":
            thread.join()


@pytest.mark.parametrize("configured", ["info", "error"])
def test_signals_change_the_level_and_each_change_is_logged(
    configured: logs.Level, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("json", configured)
    logs.switch_by_signals(configured)
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        send(number)
        log.debug("after %s", number.name)
    assert [line["message"] for line in lines(capsys)] == [
        "log level: debug from now on, by SIGUSR1",
        "after SIGUSR1",
        "log level: debug from now on, by SIGUSR1",
        "after SIGUSR1",
        f"log level: {configured} from now on, by SIGUSR2",
    ]
    assert logging.getLogger().level == getattr(logging, configured.upper())


@pytest.mark.thorough
def test_signals_change_the_level_of_a_bridge_that_waits_for_a_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-c", "from bridge.cli.app import main; main()", "run", "--log-level", "warning"]
    options = ["--data-dir", str(tmp_path / "d"), "--bootstrap-servers", f"{HOST}:1"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as bridge:
        assert bridge.stderr is not None
        logged = iter(bridge.stderr.readline, "")
        assert any("waiting for a broker" in line for line in logged)
        for number, level in ((signal.SIGUSR1, "debug"), (signal.SIGUSR2, "warning")):
            bridge.send_signal(number)
            assert any(f"log level: {level} from now on, by {number.name}" in line for line in logged)
        bridge.terminate()
        bridge.stderr.read()
    assert bridge.returncode == 0


@pytest.mark.parametrize("format_", ["text", "json"])
def test_secrets_that_a_library_quotes_are_removed(format_: logs.Format, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(format_, "debug", {**SECRETS, "sasl.username": "bridge", "client.id": "us"})
    for secret in SECRETS.values():
        log.debug("invalid value: %s", secret)
        log.error(f"invalid value: {secret}")
        try:
            raise ValueError(secret)
        except ValueError:
            log.exception("bridge could not connect us")
    shown = capsys.readouterr().err
    for secret in SECRETS.values():
        assert secret not in shown
        assert json.dumps(secret)[1:-1] not in shown
    assert shown.count("(hidden)") >= 9
    assert shown.count("bridge could not connect us") == 3


def test_each_word_of_a_secret_is_removed() -> None:
    """librdkafka writes: "Unrecognized sasl.oauthbearer.config beginning at: ..."."""
    shown = logs.without_secrets("beginning at: word2=b c", {"sasl.oauthbearer.config": "word1=a word2=b c"})
    assert shown == f"beginning at: {logs.HIDDEN} c"


def test_settings_that_are_secrets() -> None:
    secret = {*SECRETS, "ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.config", "ssl.key.pem"}
    assert all(map(logs.is_secret, secret))
    assert not any(map(logs.is_secret, ["sasl.mechanism", "ssl.ca.location", "ssl.key.location", "linger.ms"]))


def test_an_unhandled_exception_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    try:
        raise RuntimeError("a bug")
    except RuntimeError as bug:
        sys.excepthook(RuntimeError, bug, bug.__traceback__)
    (line,) = lines(capsys)
    assert line["level"] == "CRITICAL"
    assert line["exc_info"].endswith("RuntimeError: a bug")


# -- the limit of lines


def test_a_fault_is_logged_when_it_begins_and_each_minute_whatever_the_clock_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = LogRateLimit(logging.getLogger("bridge"))
    for second in range(0, 121, 10):
        limit.warn(second * 1000, "broker", "no broker answers")
    limit.warn(30_000, "disk", "the disk is full")
    limit.clear("broker")
    for now_ms in (121_000, 1000, 2000, 61_000):
        limit.warn(now_ms, "broker", "no broker answers")
    assert [record.getMessage() for record in caplog.records] == [
        "no broker answers",
        "no broker answers (7 times so far)",
        "no broker answers (13 times so far)",
        "the disk is full",
        "no broker answers",
        "no broker answers (2 times so far)",
        "no broker answers (4 times so far)",
    ]
