"""`timer-bridge check-config` prints each setting with its source, hides secrets, and refuses what `run` refuses."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.config.settings import Settings
from bridge.errors import SettingsError

SECRET = "s3cr3t-word"
TOML = """
bootstrap_servers = "from-file:9092"
group = "of-file"
roll_window = "3d"
[kafka]
sasl.username = "file:{user}"
sasl.password = "file:{secret}"
client.id = "of-file"
[topics."timer.payments"]
allow = ["payments.*", "bills"]
max_delay = "90m"
max_request_bytes = "1500kB"
max_pending_bytes = 1000
[targets."mails.*"]
max_per_s = 20
"""


PAGE = ["--bootstrap-servers", "a:1", "--http-port", "8321", "--page"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "user").write_text("who-it-is")
    file = tmp_path / "bridge.toml"
    file.write_text(TOML.format(secret=tmp_path / "secret", user=tmp_path / "user"))
    return file


def rows(told: str) -> dict[str, tuple[str, str]]:
    """Return value and source of each setting."""
    found = [re.split(r"  +", line.strip()) for line in told.splitlines()]
    assert found[0] == ["setting", "value", "source"]
    return {name: (value, source) for name, value, source in found[1:]}


def told(*given: str, **environment: str) -> str:
    ended = CliRunner().invoke(app, ["check-config", *given], env=environment, catch_exceptions=False)
    assert ended.exit_code == 0
    return ended.stdout


def test_each_setting_is_printed_with_its_value_and_source_and_tables_with_what_their_names_imply(config: Path) -> None:
    given = ["--config", str(config), "--partitions", "2000", "--peer-networks", "10.1.0.0/16", "--profiles", "native"]
    found = rows(told(*given, TIMER_BRIDGE_GROUP="of-env"))
    in_file = f"file {config}"
    assert found["bootstrap_servers"] == ("from-file:9092", in_file)
    assert found["group"] == ("of-env", "environment TIMER_BRIDGE_GROUP")
    assert found["partitions"] == ("2000", "flag --partitions")
    assert found["peer_networks"] == ("10.1.0.0/16", "flag --peer-networks")
    assert found["roll_window"] == ("3d", in_file)
    assert found["max_delay"] == ("366d", "default")
    assert found["min_free_bytes"] == ("1GiB", "default")
    assert found["allow_targets"] == ("*", "default")
    assert found["max_pending"] == ("none", "default")
    assert Settings.model_fields.keys() - found.keys() == {"kafka", "topics", "targets"}
    assert found['topics."timer.payments".allow'] == ("payments.*,bills", in_file)
    for name, value in (("max_delay", "1h30m"), ("max_request_bytes", "1500kB"), ("max_pending_bytes", "1kB")):
        assert found[f'topics."timer.payments".{name}'][0] == value
    assert found['topics."timer.payments".journal_topic'] == ("timer.payments.journal", "default")
    assert found['topics."timer.payments".profiles'] == ("native", "default")
    assert found['targets."mails.*".max_per_s'] == ("20.0", in_file)


def test_secrets_and_contents_of_files_are_hidden(config: Path) -> None:
    given = {"TIMER_BRIDGE_KAFKA_SSL_KEY_PASSWORD": "another-word", "TIMER_BRIDGE_KAFKA_CLIENT_ID": "of-env"}
    text = told("--config", str(config), "--kafka", "sasl.oauthbearer.client.secret=third", **given)
    found = rows(text)
    assert found["kafka.sasl.password"] == (f"(hidden), file:{config.parent / 'secret'}", f"file {config}")
    assert found["kafka.sasl.username"] == (f"(hidden), file:{config.parent / 'user'}", f"file {config}")
    assert found["kafka.ssl.key.password"] == ("(hidden)", "environment TIMER_BRIDGE_KAFKA_SSL_KEY_PASSWORD")
    assert found["kafka.client.id"] == ("of-env", "environment TIMER_BRIDGE_KAFKA_CLIENT_ID")
    assert found["kafka.sasl.oauthbearer.client.secret"][0] == "(hidden)"
    assert [secret for secret in (SECRET, "who-it-is", "another-word", "third") if secret in text] == []


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ([], "bootstrap_servers is missing"),
        (["--bootstrap-servers", "a:1", "--slots", "1000"], "slots: removed; take it out: the wheel"),
        (["--bootstrap-servers", "a:1", "--kafka", "no.such.setting=1"], "No such configuration property"),
        ([*PAGE, "--page-read-tokens", "/nowhere"], "tokens /nowhere: No such file"),
    ],
)
def test_check_config_refuses_what_run_refuses(given: list[str], wrong: str) -> None:
    ended = CliRunner().invoke(app, ["check-config", *given])
    assert isinstance(ended.exception, SettingsError)
    assert wrong in str(ended.exception)
