"""The command line as a whole."""

import shlex
import subprocess
import sys

import pytest
from typer import Context
from typer.main import get_group
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.errors import SettingsError


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["timer-bridge", "pe"], {"pending"}),
        (["timer-bridge", "repl"], {"replace"}),
        (["timer-bridge", "run", "--http"], {"--http-port", "--http-host", "--http-hosts"}),
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


def test_the_help_shows_defaults() -> None:
    told = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).stdout
    assert "Topic of requests. (default: timer.requests)" in told
    assert "Kafka's address, host:port[,host:port...]. (required)" in told


def test_a_removed_setting_is_refused_and_not_in_the_help() -> None:
    told = CliRunner().invoke(app, ["check-config", "--bootstrap-servers", "kafka:9092", "--delivery", "at-least-once"])
    assert isinstance(told.exception, SettingsError)
    assert str(told.exception) == (
        "delivery: removed; take it out: delivery is exactly once, and readers set isolation.level=read_committed"
    )
    assert "--delivery" not in CliRunner().invoke(app, ["run", "--help"]).stdout


def test_the_help_of_each_command_has_an_example_that_parses() -> None:
    commands = get_group(app)
    context = Context(commands)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        if command.context_settings.get("ignore_unknown_options"):  # Spark's parse their own
            continue
        example = str(command.epilog)
        assert example.startswith(f"Example: timer-bridge {name} "), name
        _, *words = shlex.split(example.removeprefix("Example: timer-bridge "))
        command.make_context(name, words)


@pytest.mark.parametrize("job", ["audit", "backfill", "archive", "import"])
def test_options_go_on_to_the_spark_job_whose_help_has_an_example(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option, code in (("--help", 0), ("--no-such-option", 2)):
        with pytest.raises(SystemExit) as ended:
            app([job, option])
        assert ended.value.code == code
    told = capsys.readouterr()
    assert f"Example: timer-bridge {job} --bootstrap-servers broker:9092 " in " ".join(told.out.split())
    assert f"usage: timer-bridge {job}" in told.err


def test_a_running_bridge_does_not_load_pyarrow() -> None:
    """pyarrow takes 31 MB, and only `export` needs it."""
    code = "import bridge.cli, bridge.process, bridge.page.app, sys; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_command_imports_only_what_it_needs() -> None:
    """`--version` and `token` start without pydantic, and `send` without numpy."""
    heavy = {"--version": {"numpy", "pydantic", "confluent_kafka"}, "send --help": {"numpy", "fastapi", "pyarrow"}}
    for call, modules in heavy.items():
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "from bridge.cli import main; main()", *call.split()],
            capture_output=True,
            check=True,
            text=True,
        )
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "typer" in imported
        assert not imported & modules, call


def test_a_removed_command_says_what_to_do_instead() -> None:
    with pytest.raises(SettingsError, match="command size was removed: docs/operations"):
        CliRunner().invoke(app, ["size", "--rate", "1000", "--pending", "1000000"], catch_exceptions=False)
