"""`send`, `cancel` and others: errors before they connect, and the topics that they send to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bridge.cli import app as cli
from bridge.cli import client_commands
from bridge.cli.app import app
from bridge.cli.client_commands import lines_of
from bridge.errors import SettingsError, exit_code_of
from bridge.testing.fake_kafka import FakeKafka, Timeline
from bridge.tests.simulation.http_fakes import MemoryOutbox
from kafka_timer import TimerOperator
from kafka_timer.control import Paused, Skipped
from kafka_timer.origin import TimerPartition
from schemas.control import read

NOBODY = ["--bootstrap-servers", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["send", "orders", "v", "--in", "5"], "--in: '5' is no duration: write a number with its unit"),
        (["send", "orders", "v", "--at", "2026-12-24T18:00:00"], "--at: .* is no instant"),
        (["send", "a b", "v", "--in", "5s"], "bad-target"),
        (["send", "orders", "v", "--in", "5s", "-H", "trace"], "'trace': write name=value"),
        (["send", "orders", "v", "--in", "5s", "-H", "timer-id=x"], "timer-id is the bridge's"),
        (["send", "orders", "v", "--in", "5s", "--lines", "--id", "x"], "--id with --lines"),
        (["send", "orders", "v", "--in", "5s", "--kafka", "no.such=1"], "kafka settings: .*no.such"),
        (["send", "orders", "v", "--in", "5s", "--partition", "-1"], "bad-header"),
        (["send", "orders", "v", "--in", "5s", "--kafka", "secret"], "^--kafka: write name=value$"),
        (["send", "orders", "v", "--in", "5s", "--config", "/nowhere.toml"], "config /nowhere.toml"),
        (["send", "orders", "v", "--cron", "* * *"], "bad-header: timer-cron"),
        (["send", "orders", "v", "--cron", "* * * * *", "--in", "5s", "--at", "1"], "one of --in, --at and --level"),
        (["send", "orders", "v", "--every", "15m", "--missed", "some"], "timer-missed"),
        (["send", "orders", "v", "--count", "3"], "timer-cron or timer-every-ms"),
        (["cancel", ""], "bad-header: timer-id"),
        (["pause", "a b"], "bad-target"),
        (["pause"], "give one of TOPIC, --id and --origin"),
        (["pause", "orders", "--wait"], "--wait: only a single timer has an outcome"),
        (["resume", "--origin", "timer.requests/0"], "--origin: 'timer.requests/0': write topic/partition"),
        (["move", "x"], "one of --in, --at and --level"),
        (["cancel"], "give an ID or --origin"),
        (["cancel", "--origin", "timer.requests/0/1", "--all-partitions"], "an origin has one partition"),
    ],
)
def test_a_wrong_call_is_refused_with_the_remedy(arguments: list[str], told: str) -> None:
    ended = CliRunner().invoke(app, [*arguments, *NOBODY])
    assert isinstance(ended.exception, SettingsError), ended.output
    with pytest.raises(SettingsError, match=told):
        raise ended.exception
    assert exit_code_of(ended.exception) == 2


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\n", [b"one", b""]),
        (b"one\r\ntwo\r\r\n", [b"one", b"two\r"]),
        ("a\u2028b\x0bc\x85d\n{}\n".encode(), ["a\u2028b\x0bc\x85d".encode(), b"{}"]),
    ],
)
def test_a_message_ends_at_lf_and_cr_lf_only(raw: bytes, lines: list[bytes]) -> None:
    assert lines_of(raw) == lines


def fake_kafka(monkeypatch: pytest.MonkeyPatch, *topics: str) -> FakeKafka:
    """The outbox that the commands send to from now on."""
    kafka = FakeKafka(Timeline())
    for topic in (*topics, CONTROL):
        kafka.create(topic)

    def client(config: Mapping[str, Any], timer_topic: str, control_topic: str, **_: Any) -> TimerOperator:
        outbox = MemoryOutbox(kafka)
        return TimerOperator({}, timer_topic=timer_topic, control_topic=control_topic, outbox=outbox)

    monkeypatch.setattr(client_commands, "TimerOperator", client)
    return kafka


@pytest.mark.parametrize("command", [["send"], ["send", "--lines"], ["replace", "x"]])
def test_standard_input_is_sent_unchanged(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    kafka = fake_kafka(monkeypatch, "timer.requests")
    given = bytes(range(14, 256))
    ended = CliRunner().invoke(app, [*command, "orders", "-", "--in", "5s", *NOBODY], input=given)
    assert ended.exception is None, ended.exception
    assert [entry.value for entry in kafka.read("timer.requests")] == [given]


def test_a_secret_in_the_error_of_a_library_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def client(config: Mapping[str, Any], **_: Any) -> TimerOperator:
        raise SettingsError(f"what is {config['sasl.oauthbearer.config']}?")

    monkeypatch.setattr(client_commands, "TimerOperator", client)
    secret = ["--kafka", "sasl.oauthbearer.config=principal hunter2"]
    monkeypatch.setattr("sys.argv", ["timer-bridge", "cancel", "x", *NOBODY, *secret])
    monkeypatch.setattr("bridge.observe.logs.configure", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (2, "timer-bridge: what is (hidden)?\n")


CONTROL = "operators.control"
TOPICS = ("timers", "timer.payments", "timer.elsewhere")
TWO_TOPICS = (
    'control_topic = "operators.control"\nbootstrap_servers = "127.0.0.1:1"\n'
    '{main}[topics."timer.payments"]\nallow = ["payments"]'
)
MAIN = 'timer_topic = "timers"\n'
COMMANDS = [
    *("send payments v --in 5s", "replace x payments v --in 5s", "move x --in 5s", "release x", "cancel x"),
    *("pause payments", "resume payments", "pause --id x", "resume --id x"),
]


@pytest.mark.parametrize(
    ("command", "toml_main", "environment", "flag", "topic"),
    [
        ("cancel x", MAIN, None, None, "timers"),
        ("cancel x", MAIN, None, "timer.elsewhere", "timer.elsewhere"),
        ("cancel x", MAIN, "timer.elsewhere", None, "timer.elsewhere"),
        ("cancel x", MAIN, "timer.payments", None, "timer.payments"),
        ("cancel x", MAIN, "timer.payments", "timers", "timers"),
        ("cancel x", "", "timers", "timer.payments", "timer.payments"),
        *((command, MAIN, None, "timer.payments", "timer.payments") for command in COMMANDS),
    ],
)
def test_a_flag_overrides_the_environment_and_that_the_config(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    toml_main: str,
    environment: str | None,
    flag: str | None,
    topic: str,
) -> None:
    kafka, config = fake_kafka(monkeypatch, *TOPICS), tmp_path / "bridge.toml"
    config.write_text(TWO_TOPICS.format(main=toml_main))
    given = [] if flag is None else ["--timer-topic", flag]
    asked = [*command.split(), *given, "--config", str(config)]
    ended = CliRunner().invoke(app, asked, env={"TIMER_BRIDGE_TIMER_TOPIC": environment})
    assert ended.exception is None, ended.exception
    paused = (read(entry.key, entry.value)[0] for entry in kafka.read(CONTROL))
    written = [name for name in TOPICS if kafka.read(name)]
    assert [key.timer_topic for key in paused if isinstance(key, Paused)] + written == [topic]


def test_a_record_is_skipped_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, config = fake_kafka(monkeypatch, *TOPICS), tmp_path / "bridge.toml"
    config.write_text(TWO_TOPICS.format(main=MAIN))

    def skip(*place: str) -> Result:
        return CliRunner().invoke(app, ["skip", *place, "--config", str(config)])

    refusals = [skip(*place).exception for place in (("timer.elsewhere", "0", "7"), ("timers", "1", "7"))]
    assert list(map(str, refusals)) == [
        "timer.elsewhere: not a timer topic of this bridge, which has timers, timer.payments: give --config",
        "timers/1: no such partition: it has 1, from 0 on",
    ]
    assert kafka.read(CONTROL) == []
    done = skip("timer.payments", "0", "4711")
    assert done.exception is None
    assert done.output == (
        "skip of timer.payments/0/4711 sent: if it cannot be decoded, the instance that has the partition rejects it"
        " without its contents on timer.rejected and goes on\n"
    )
    (entry,) = kafka.read(CONTROL)
    assert read(entry.key, entry.value) == (Skipped(TimerPartition("timer.payments", 0), 4711), True)
