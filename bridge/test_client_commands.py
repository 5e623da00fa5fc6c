"""What `send`, `cancel` and `replace` say about a wrong call, before they look for a broker."""

import pytest
from typer.testing import CliRunner

from bridge.cli import app
from bridge.client_commands import lines_of
from bridge.errors import SettingsError

NOBODY = ["--bootstrap-servers", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["send", "orders", "v"], "one of --in, --at and --level"),
        (["send", "orders", "v", "--in", "5s", "--at", "1"], "one of --in, --at and --level"),
        (["send", "orders", "v", "--in", "soon"], "delay: 'soon' is no duration: write 500ms"),
        (["send", "orders", "v", "--at", "2026-12-24T18:00:00"], "at: .* is no instant"),
        (["send", "a b", "v", "--in", "5s"], "bad-target"),
        (["send", "orders", "v", "--in", "5s", "-H", "trace"], "'trace': write name=value"),
        (["send", "orders", "v", "--in", "5s", "-H", "timer-id=x"], "timer-id is the bridge's"),
        (["send", "orders", "v", "--in", "5s", "--lines", "--id", "x"], "--id with --lines"),
        (["send", "orders", "v", "--in", "5s", "--kafka", "no.such=1"], "kafka settings: .*no.such"),
        (["send", "orders", "v", "--in", "5s", "--partition", "-1"], "bad-header"),
        (["send", "orders", "v", "--in", "5s", "--kafka", "secret"], "^--kafka: write name=value$"),
        (["send", "orders", "v", "--in", "5s", "--expire-at", "soon"], "expire_at: .* is no instant"),
        (["send", "orders", "v", "--in", "5s", "--config", "/nowhere.toml"], "config /nowhere.toml"),
        (["replace", "x", "orders", "v"], "one of --in, --at and --level"),
        (["cancel", ""], "bad-header: timer-id"),
        (["pause", "a b"], "bad-target"),
        (["move", "x"], "one of --in, --at and --level"),
        (["move", "x", "--in", "soon"], "delay: 'soon' is no duration"),
        (["release", ""], "bad-header: timer-id"),
        (["resume", "__x"], "bad-target"),
    ],
)
def test_a_wrong_call_is_told_with_its_remedy(arguments: list[str], told: str) -> None:
    ended = CliRunner().invoke(app, [*arguments, *NOBODY])
    assert isinstance(ended.exception, SettingsError), ended.output
    with pytest.raises(SettingsError, match=told):
        raise ended.exception
    assert ended.exception.exit_code == 2


def test_without_a_cluster_it_says_where_one_is_named() -> None:
    ended = CliRunner().invoke(app, ["cancel", "x"], env={"TIMER_BRIDGE_BOOTSTRAP_SERVERS": None})
    assert isinstance(ended.exception, SettingsError)
    assert "bootstrap_servers is missing: give --bootstrap-servers, TIMER_BRIDGE_BOOTSTRAP_SERVERS" in str(
        ended.exception
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\ntwo\n", ["one", "two"]),
        ("one\n\n", ["one", ""]),
        ('{"note": "a\u2028b\x0bc\x85d"}\n{}\n', ['{"note": "a\u2028b\x0bc\x85d"}', "{}"]),
    ],
)
def test_a_message_ends_where_its_line_does_and_nowhere_else(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines
