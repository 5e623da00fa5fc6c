"""The command line as a whole."""

import pytest
from typer.testing import CliRunner

from bridge.cli import app


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["timer-bridge", "pe"], {"pending"}),
        (["timer-bridge", "repl"], {"replace"}),
        (["timer-bridge", "run", "--http"], {"--http-port", "--http-host"}),
        (["timer-bridge", "send", "--j"], {"--json"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: list[str], offered: set[str]) -> None:
    asked = {
        "_TIMER_BRIDGE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    told = CliRunner().invoke(app, [], prog_name="timer-bridge", env=asked)
    assert set(told.stdout.split()) == offered
