"""The command line as a whole."""

import re
import shlex
import subprocess
import sys
import time
from datetime import datetime

import pytest
from typer import Context
from typer.main import get_group
from typer.testing import CliRunner

from bridge.cli.app import _MODULE_OF, app
from bridge.errors import SettingsError


def test_a_switch_takes_no_value() -> None:
    told = CliRunner().invoke(app, ["check-config", "--bootstrap-servers", "kafka:9092", "--no-static-membership"])
    assert re.search(r"^static_membership +False +flag --static-membership$", told.stdout, re.MULTILINE)
    told = CliRunner().invoke(app, ["check-config", "--bootstrap-servers", "kafka:9092", "--page", "true"])
    assert str(told.exception) == "true: not an option; write a switch without a value: --page or --no-page"


def test_the_help_of_each_command_has_the_same_form_and_an_example_that_parses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A section has a title that ends with a colon, and below it two columns that begin at the second character."""
    commands = get_group(app)
    context = Context(commands)
    names = commands.list_commands(context)
    assert set(names) == {*_MODULE_OF, *commands.commands}, "each command has a group"
    for name in names:
        with pytest.raises(SystemExit):
            app([name, "--help"], prog_name="timer-bridge")
        told = capsys.readouterr().out
        assert told.startswith(f"Usage: timer-bridge {name} [OPTIONS]"), name
        assert "Options:\n  -" in told, name
        assert max(map(len, told.splitlines())) <= 80, name
        command = commands.get_command(context, name)
        assert command is not None
        if not command.context_settings.get("ignore_unknown_options"):  # Spark's parse their own
            example = str(command.epilog)
            assert example.startswith(f"Example: timer-bridge {name} "), name
            command.make_context(name, shlex.split(example)[3:])


@pytest.mark.thorough
def test_a_wait_for_a_broker_is_said() -> None:
    call = "send orders --in 5s hello --bootstrap-servers 127.0.0.1:1"
    code = "from bridge.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *call.split()], stderr=subprocess.PIPE, text=True) as sending:
        assert sending.stderr is not None
        assert sending.stderr.readline() == "waiting for broker at 127.0.0.1:1\n"
        sending.kill()


@pytest.mark.parametrize("job", ["audit", "backfill", "archive", "import"])
def test_options_go_on_to_the_spark_job_whose_help_has_an_example(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option, code in (("--help", 0), ("--no-such-option", 2)):
        with pytest.raises(SystemExit) as ended:
            app([job, option])
        assert ended.value.code == code
    told = capsys.readouterr()
    assert f"Example: timer-bridge {job} --bootstrap-servers broker:9092 " in " ".join(told.out.split())
    assert f"Usage: timer-bridge {job} [OPTIONS]" in told.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import bridge.cli, bridge.process, bridge.page.app", {"pyarrow"}),  # 31 MB, and only `export` needs it
        ("from bridge.cli import main; main()  # --version", {"numpy", "pydantic", "confluent_kafka"}),
        ("from bridge.cli import main; main()  # send --help", {"numpy", "fastapi", "pyarrow"}),
    ],
)
def test_a_command_imports_only_what_it_needs(code: str, heavy: set[str]) -> None:
    call = [sys.executable, "-X", "importtime", "-c", code, *code.partition("  # ")[2].split()]
    done = subprocess.run(call, capture_output=True, check=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & heavy


def test_a_removed_command_says_what_to_do_instead() -> None:
    with pytest.raises(SettingsError, match="command size was removed: docs/operations"):
        CliRunner().invoke(app, ["size", "--rate", "1000", "--pending", "1000000"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        (["--cron", "0 9 * * *", "--zone", "Asia/Tokyo"], ["T09:00:00+09:00"] * 5),
        (["--cron", "0 9 * * *", "--count", "2"], ["T09:00:00+00:00"] * 2),
        (["--every", "15m", "--until", "2020-01-01T00:00:00Z"], "has no time before its end"),
        (["--every", "5"], "--every: '5' is no duration"),
        (["--cron", "0 0 30 2 *"], "timer-cron is"),
        ([], "give --cron or --every"),
    ],
)
def test_next_shows_the_times_of_a_rule_in_its_zone(asked: list[str], times: list[str] | str) -> None:
    if isinstance(times, str):
        with pytest.raises(SettingsError, match=times):
            CliRunner().invoke(app, ["next", *asked], catch_exceptions=False)
        return
    shown = CliRunner().invoke(app, ["next", *asked]).stdout.splitlines()
    assert [line.partition("  ")[0][10:] for line in shown] == times
    due_ms = [datetime.fromisoformat(line.partition("  ")[2]).timestamp() * 1000 for line in shown]
    assert due_ms == sorted(due_ms)
    assert due_ms[0] > time.time() * 1000 - 1000
