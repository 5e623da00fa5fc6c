"""Librdkafka's settings reach every client, except reserved ones. Secrets are never shown."""

from pathlib import Path

import pytest

from bridge.config.kafka_config import RESERVED, Connection
from bridge.config.settings import load
from bridge.config.topic_requirements import FETCH_SIZES, fetch_limits
from bridge.errors import SettingsError
from bridge.kafka import ConfluentTopics, Retrier
from bridge.kafka import client_config as clients
from kafka_timer import TimerProducer

SECRET = "s3cr3t-word"
SECURITY = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": SECRET}
SERVERS = {"bootstrap_servers": "here:9092"}


def test_file_environment_and_flags_are_merged_by_name(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(
        '[kafka]\nsasl.password = "x"\nsasl.username = "u"\n"security.protocol" = "SASL_SSL"\n'
        "socket.nagle.disable = true\nretry.backoff.ms = 5"
    )
    environment = {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": SECRET, "TIMER_BRIDGE_KAFKA_SSL_CA_LOCATION": "/ca.pem"}
    assert load(SERVERS | {"kafka": {"ssl.ca.location": "/other.pem"}}, environment, file).kafka == {
        "sasl.password": SECRET,
        "sasl.username": "u",
        "security.protocol": "SASL_SSL",
        "socket.nagle.disable": "true",
        "retry.backoff.ms": "5",
        "ssl.ca.location": "/other.pem",
    }


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_value_is_read_from_its_file(tmp_path: Path, end: str) -> None:
    secret, config = tmp_path / "password", tmp_path / "bridge.toml"
    secret.write_bytes(f" {SECRET}é {end}".encode())
    config.write_text(f'[kafka]\nsasl.password = "file:{secret}"')
    environment = {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": f"file:{secret}"}
    for found in (
        load(SERVERS, {}, config),
        load(SERVERS, environment, None),
        load(SERVERS | {"kafka": {"sasl.password": f"file:{secret}"}}, {}, None),
    ):
        assert found.kafka == {"sasl.password": f" {SECRET}é "}
    secret.unlink()
    assert load(SERVERS | {"kafka": {"sasl.password": "x"}}, environment, None).kafka == {"sasl.password": "x"}


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file or directory: give a file"), (b"", "is empty"), (b"\n", "is empty"), (b"\xff", "no UTF-8")],
)
def test_an_unreadable_or_empty_value_file_is_named(tmp_path: Path, content: bytes | None, told: str) -> None:
    secret = tmp_path / "password"
    if content is not None:
        secret.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"^kafka: sasl\.password: {secret}.*{told}"):
        load(SERVERS, {"TIMER_BRIDGE_KAFKA_SASL_PASSWORD": f"file:{secret}"}, None)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_each_client_gets_the_settings_and_what_only_it_needs(protocol: str) -> None:
    kafka = SECURITY | {"linger.ms": "7"}
    flags = SERVERS | {"group_protocol": protocol, "compression": "lz4", "kafka": kafka}
    connection = load(flags, {}, None).connection("one")
    member, reader = clients.group_member(connection), clients.reader(connection)
    producer = clients.producer(connection, 0)
    for config in (member, reader, producer, clients.admin(connection)):
        assert kafka.items() <= config.items()
        assert config["bootstrap.servers"] == "here:9092"
    assert (member["group.protocol"], member["group.instance.id"]) == (protocol, "one")
    assert ("session.timeout.ms" in member) is (protocol == "classic")
    assert (reader["group.protocol"], "group.instance.id" in reader) == ("classic", False)
    assert (producer["compression.type"], "compression.type" in member) == ("lz4", False)


def test_a_member_fetches_one_batch_at_a_time_where_batches_may_be_compressed() -> None:
    """Many small batches could become gigabytes. librdkafka has two names for the limit, of which the last wins."""
    config = clients.group_member(Connection("here:1", fetched=fetch_limits(1 << 20, is_compressed=True)))
    sizes = {name: int(value) for name, value in config.items() if name == "fetch.min.bytes" or name in FETCH_SIZES}
    assert (sizes["fetch.message.max.bytes"], sizes["fetch.min.bytes"], len(sizes)) == (1, 1, 4)


@pytest.mark.parametrize("name", sorted(FETCH_SIZES))
def test_what_bounds_a_read_of_compressed_records_may_not_be_set(name: str) -> None:
    flags = SERVERS | {"kafka": {name: "1000000000"}}
    assert load(flags, {}, None).kafka[name] == "1000000000"
    with pytest.raises(SettingsError, match=f"{name} may not be set with compressed_requests = allow"):
        load(flags | {"compressed_requests": "allow"}, {}, None)


def test_settings_under_kafka_override_ours() -> None:
    def connection(**flags: object) -> Connection:
        return load(SERVERS | flags, {}, None).connection("one")

    own = clients.group_member(connection(kafka={"group.instance.id": "pod-1", "session.timeout.ms": "8000"}))
    assert (own["group.instance.id"], own["session.timeout.ms"]) == ("pod-1", "8000")
    assert "group.instance.id" not in clients.group_member(connection(static_membership="false"))
    assert clients.producer(connection(), 0)["linger.ms"] == 5
    above = connection(compression="lz4", kafka={"compression.type": "zstd"})
    assert clients.producer(above, 0)["compression.type"] == "zstd"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_reserved_setting_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} may not be set: ") as refused:
        load(SERVERS | {"kafka": {name: SECRET}}, {}, None)
    assert SECRET not in str(refused.value)


def test_all_fixed_settings_are_reserved() -> None:
    musts = clients.READER_MUSTS | clients.PRODUCER_MUSTS
    assert musts.keys() <= RESERVED.keys()


@pytest.mark.parametrize(
    ("toml", "environment", "told"),
    [
        ('[kafka]\nsasl = "{secret}"\nsasl.password = "x"', {}, "fix the TOML"),
        ('[kafka]\nsasl.password = "{secret}\n', {}, r"config .*bridge\.toml: .*: fix the TOML"),
        ('kafka = "{secret}"', {}, r"give a table \[kafka\]"),
        ("", {"TIMER_BRIDGE_KAFKA": f"sasl.password={SECRET}"}, r"give a table \[kafka\]"),
    ],
)
def test_a_malformed_setting_is_refused_without_its_secret(
    tmp_path: Path, toml: str, environment: dict[str, str], told: str
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(toml.format(secret=SECRET))
    with pytest.raises(SettingsError, match=told) as refused:
        load(SERVERS, environment, file)
    assert SECRET not in str(refused.value)


def test_settings_in_text_hide_secrets() -> None:
    settings = load(SERVERS | {"kafka": SECURITY}, {}, None)
    assert settings.kafka == SECURITY
    assert SECRET not in repr(settings) + str(settings) + repr(settings.connection("one"))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("stats_cb", SECRET, r"kafka settings: .*leave it out"),
        ("default.topic.config", SECRET, r"kafka settings: .*leave it out"),
        ("oauth_cb", "nowhere:token", r"kafka\.oauth_cb: .*: give package\.module:function"),
        ("oauth_cb", "json:nothing", r"kafka\.oauth_cb: .*: give package\.module:function"),
        ("oauth_cb", "json", r"kafka\.oauth_cb: .*: give package\.module:function"),
        ("oauth_cb", ":token", r"kafka\.oauth_cb: .*: give package\.module:function"),
        ("security.protocol", SECRET, "Invalid value for configuration property"),
        ("debug", SECRET, "Invalid value for configuration property"),
        ("acks", SECRET, "Invalid value for configuration property"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_and_not_shown(name: str, value: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as refused:
        ConfluentTopics(Connection("here:9092", kafka={name: value}), Retrier())
    assert SECRET not in str(refused.value)
    if told.startswith("Invalid"):
        with pytest.raises(SettingsError, match=told) as refused:
            TimerProducer({"bootstrap.servers": "here:9092", name: value})
        assert SECRET not in str(refused.value)
