"""Settings for librdkafka: all of them reach every client, but ours, and what may be a secret is never shown."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.client import TimerProducer
from bridge.config.kafka_config import RESERVED, Connection
from bridge.config.settings import Settings, load
from bridge.errors import SettingsError
from bridge.kafka import ConfluentTopics, Retrier
from bridge.kafka import client_config as clients

SECRET = "s3cr3t-word"
SECURITY = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": SECRET}
SERVERS = {"bootstrap_servers": "here:9092"}


def with_kafka(toml: str, tmp_path: Path, flags: dict[str, object] | None = None) -> Settings:
    file = tmp_path / "bridge.toml"
    file.write_text(f"[kafka]\n{toml}")
    return load(SERVERS | (flags or {}), {}, file)


def test_a_table_may_be_written_with_dots_numbers_and_booleans(tmp_path: Path) -> None:
    toml = 'sasl.password = "x"\n"security.protocol" = "SASL_SSL"\nsocket.nagle.disable = true\nretry.backoff.ms = 5'
    assert with_kafka(toml, tmp_path).kafka == {
        "sasl.password": "x",
        "security.protocol": "SASL_SSL",
        "socket.nagle.disable": "true",
        "retry.backoff.ms": "5",
    }


def test_a_flag_changes_one_setting_of_the_file_and_leaves_the_others(tmp_path: Path) -> None:
    found = with_kafka('sasl.password = "x"\nclient.id = "y"', tmp_path, {"kafka": {"client.id": "z"}})
    assert found.kafka == {"sasl.password": "x", "client.id": "z"}


def test_in_the_environment_each_has_a_variable_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text('[kafka]\nsasl.password = "x"\nsasl.username = "u"')
    environment = {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": SECRET, "TIMER_BRIDGE_KAFKA_SSL_CA_LOCATION": "/ca.pem"}
    found = load(SERVERS | {"kafka": {"ssl.ca.location": "/other.pem"}}, environment, file)
    assert found.kafka == {"sasl.password": SECRET, "sasl.username": "u", "ssl.ca.location": "/other.pem"}


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_value_may_stand_in_a_file(tmp_path: Path, end: str) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(f" {SECRET}é {end}".encode())
    in_file = f"file:{secret}"
    for found in (
        with_kafka(f'sasl.password = "{in_file}"', tmp_path),
        load(SERVERS, {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": in_file}, None),
        load(SERVERS | {"kafka": {"sasl.password": in_file}}, {}, None),
    ):
        assert found.kafka == {"sasl.password": f" {SECRET}é "}


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file or directory: give a file"), (b"", "is empty"), (b"\n", "is empty"), (b"\xff", "no UTF-8")],
)
def test_a_file_without_a_value_is_named_with_the_remedy(tmp_path: Path, content: bytes | None, told: str) -> None:
    secret = tmp_path / "password"
    if content is not None:
        secret.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"^kafka: sasl\.password: {secret}.*{told}"):
        load(SERVERS, {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": f"file:{secret}"}, None)


def test_a_setting_that_is_overridden_needs_no_file() -> None:
    environment = {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": "file:/nowhere"}
    assert load(SERVERS | {"kafka": {"sasl.password": "x"}}, environment, None).kafka == {"sasl.password": "x"}


def test_every_client_gets_them() -> None:
    connection = Connection("here:9092", "group", "one", SECURITY | {"linger.ms": "7", "session.timeout.ms": "8000"})
    for config in (
        clients.group_member(connection),
        clients.reader(connection),
        clients.producer(connection, 0),
        clients.admin(connection),
    ):
        assert connection.kafka.items() <= config.items()
        assert config["bootstrap.servers"] == "here:9092"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_static_membership_and_the_protocol_reach_the_member_of_the_group_alone(protocol: str) -> None:
    settings = load(SERVERS | {"static_membership": "true", "group_protocol": protocol}, {}, None)
    connection = settings.connection("one")
    member, reader = clients.group_member(connection), clients.reader(connection)
    assert (member["group.protocol"], member["group.instance.id"]) == (protocol, "one")
    assert ("session.timeout.ms" in member) is (protocol == "classic")
    assert reader["group.protocol"] == "classic"
    assert "group.instance.id" not in reader
    own = load(SERVERS | {"static_membership": "true", "kafka": {"group.instance.id": "pod-1"}}, {}, None)
    assert clients.group_member(own.connection("one"))["group.instance.id"] == "pod-1"
    assert "group.instance.id" not in clients.group_member(load(SERVERS, {}, None).connection("one"))


def test_a_setting_with_a_name_reaches_what_publishes_and_kafka_stands_above_it() -> None:
    named = load(SERVERS | {"compression": "lz4", "linger_ms": "0.5"}, {}, None)
    for config in (clients.producer(named.connection("i"), 0), clients.early_delivery_producer(named.connection("i"))):
        assert (config["compression.type"], config["linger.ms"]) == ("lz4", "0.5")
    assert "compression.type" not in clients.group_member(named.connection("i"))
    above = load(SERVERS | {"compression": "lz4", "kafka": {"compression.type": "zstd"}}, {}, None)
    assert clients.producer(above.connection("i"), 0)["compression.type"] == "zstd"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_is_not_the_operators_to_set_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not to be set: ") as refused:
        load(SERVERS | {"kafka": {name: SECRET}}, {}, None)
    assert SECRET not in str(refused.value)


def test_musts_cannot_be_forgotten_among_the_reserved() -> None:
    musts = clients.READER_MUSTS | clients.PRODUCER_MUSTS
    assert musts.keys() <= RESERVED.keys()


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    settings = load(SERVERS | {"kafka": SECURITY}, {}, None)
    assert settings.kafka == SECURITY
    assert SECRET not in repr(settings) + str(settings) + repr(settings.connection("one"))
    for wrong in (f'sasl.password = ["{SECRET}"]', f'sasl = "{SECRET}"\nsasl.password = "{SECRET}"'):
        try:
            shown = repr(with_kafka(wrong, tmp_path))
        except SettingsError as refused:
            shown = str(refused)
        assert SECRET not in shown
    with pytest.raises(SettingsError, match=r"\[kafka\]") as refused_text:
        load(SERVERS, {"TIMER_BRIDGE_KAFKA": f"sasl.password={SECRET}"}, None)
    assert SECRET not in str(refused_text.value)


@pytest.mark.parametrize("end", [b"\n", b"\xff", b'"\n[kafka]'])
def test_a_file_that_cannot_be_read_is_named_and_its_secret_is_not_shown(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "bridge.toml"
    file.write_bytes(b'[kafka]\nsasl.password = "' + SECRET.encode() + end)
    with pytest.raises(SettingsError, match=r"config .*bridge\.toml: .*: fix the TOML") as refused:
        load(SERVERS, {}, file)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("command", [["run"], ["send", "orders", "x", "--in", "1s"]])
def test_a_secret_that_is_written_wrongly_is_not_shown_either(command: list[str]) -> None:
    given = [*command, "--bootstrap-servers", "here:9092", "--kafka", f"sasl.password:{SECRET}"]
    done = CliRunner().invoke(app, given)
    assert isinstance(done.exception, SettingsError)
    assert str(done.exception) == "--kafka: write name=value"
    assert SECRET not in done.output


@pytest.mark.parametrize("name", ["stats_cb", "oauth_cb", "default.topic.config"])
def test_a_setting_that_takes_more_than_text_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"kafka settings: .*leave it out") as refused:
        ConfluentTopics(Connection("here:9092", kafka={name: SECRET}), Retrier())
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("name", ["security.protocol", "debug", "acks"])
def test_a_secret_beside_the_wrong_name_is_not_shown(name: str) -> None:
    with pytest.raises(SettingsError, match="Invalid value for configuration property") as by_the_bridge:
        ConfluentTopics(Connection("here:9092", kafka={name: SECRET}), Retrier())
    with pytest.raises(SettingsError, match="Invalid value for configuration property") as by_the_client:
        TimerProducer({"bootstrap.servers": "here:9092", name: SECRET})
    assert SECRET not in str(by_the_bridge.value) + str(by_the_client.value)
